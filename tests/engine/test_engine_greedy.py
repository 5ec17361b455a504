"""Greedy text is the same whatever the method, the graphs, the batches and the blocks: one test for all of them.

Engines are tiny and have random weights, so most drafts of the heads are wrong: what is tried is every way to be wrong.
"""

import random

import pytest

from graphspec.config.compilation import CudagraphMode
from graphspec.engine.sampling import SamplingParams
from graphspec.fields import evolve
from graphspec.speculators.registry import known_methods
from support.drafters import NAMES, TARGET, engine_spec
from support.texts import ties_and_strays
from support.tiny_engine import tiny_engine, with_mode

UP_AND_DOWN = [[1, 1, 4], [2, 3, 1], [4, 4, 3], [5, 6, 0]]
"""Depth goes up and down with the batch, and is 0 for the largest."""
LOOKUP = {"prompt_lookup_min": 1, "prompt_lookup_max": 3}


def prompts_of(seed, count=20):
    """Prompts of mixed length, some of them repetitive, in families that share their beginning."""
    made = random.Random(seed)
    vocabulary = TARGET["vocab_size"]
    roots = [[made.randrange(vocabulary) for _ in range(9)] for _ in range(3)]
    return [
        made.choice(roots)[: made.randint(0, 9)]
        + [made.randrange(vocabulary) for _ in range(made.randint(1, 12))] * made.randint(1, 3)
        for _ in range(count)
    ]


def spec_of(folder, name, *, table=True, **section):
    if table:
        section["num_speculative_tokens_per_batch_size"] = UP_AND_DOWN
    if name.startswith("ngram"):
        section |= LOOKUP
    return engine_spec(folder, name, **section)


def with_kv(spec, **changes):
    return evolve(spec, kv_cache=evolve(spec.kv_cache, **changes))


def assert_same(found, wanted):
    """Equal up to near ties, which are rare."""
    compared, ties, strays = ties_and_strays(found, wanted)
    assert strays == 0
    assert ties * 100 <= compared


FEW, MANY = (8, 12), pytest.param((20, 32), marks=pytest.mark.deep)
"""Prompts, and tokens for each."""


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """What the model says: one request at a time, no drafts, no shared blocks, no graphs."""
    spec = spec_of(tmp_path_factory.mktemp("plain"), "ngram", table=False).without_speculation()
    spec = with_mode(with_kv(spec, enable_prefix_caching=False), CudagraphMode.NONE)
    engine, known = tiny_engine(spec), {}

    def texts(count, tokens):
        if (count, tokens) not in known:
            params = SamplingParams(max_tokens=tokens)
            known[count, tokens] = [engine.generate([p], params)[0] for p in prompts_of(7, count)]
        return known[count, tokens]

    return texts


def test_every_method_is_tried():
    """A new method joins by a case in `support.drafters`, or fails here."""
    assert {n.split()[0] for n in NAMES} == set(known_methods()) - {"custom_class"}


@pytest.mark.parametrize("size", [FEW, MANY], ids=["few", "many"])
@pytest.mark.parametrize("name", NAMES)
def test_greedy_text_is_that_of_the_model_alone(tmp_path, wanted, name, size):
    """Dynamic k up and down, chunks, few blocks so that requests are preempted, and a prefix cache cold and hot."""
    count, tokens = size
    spec = with_kv(spec_of(tmp_path, name), num_blocks=26)
    spec = evolve(spec, scheduler=evolve(spec.scheduler, max_num_batched_tokens=48))
    engine, params = tiny_engine(spec), SamplingParams(max_tokens=tokens)
    for _ in ("cold", "hot"):
        assert_same(engine.generate(prompts_of(7, count), params), wanted(*size))
    counts = engine.counts
    assert counts.preemptions > 0
    assert counts.prefix_hits > 0
    assert counts.kv_usage == 0
    drafts = spec.speculative.speculator.proposes_draft_tokens
    # Without drafts every step runs at depth 0, and some runners have no table.
    assert len(counts.depths) > 2 or spec.speculative.schedule.reasons or not drafts
    assert (counts.draft_tokens > 0) == drafts


FULL, PIECES, EAGER = (
    CudagraphMode.FULL_AND_PIECEWISE,
    CudagraphMode.PIECEWISE,
    CudagraphMode.NONE,
)
QUICK = ("ngram", "eagle3")
"""The other methods run in full graphs above, and in each mode with the deep tests."""


@pytest.mark.parametrize("mode", [FULL, PIECES, EAGER])
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.deep) for n in NAMES]
)
def test_graphs_change_no_token(tmp_path, wanted, name, mode):
    """Full graphs with pieces for mixed steps, pieces alone, and no graphs: the same text, of the target and its drafter."""
    spec = with_mode(spec_of(tmp_path, name, table=False), mode)
    engine = tiny_engine(spec, pieces=True)
    made = engine.generate(prompts_of(7, FEW[0]), SamplingParams(max_tokens=FEW[1]))
    assert_same(made, wanted(*FEW))
    counts = engine.counts
    assert (("full", "") in counts.modes) == (mode is FULL)
    assert any(kind == "piecewise" for kind, _ in counts.modes) == (mode is not EAGER)
    assert any(kind == "none" for kind, _ in counts.modes) == (mode is EAGER)
    on_device = engine._executor.drafter is not None
    assert (("full", "") in counts.draft_modes) == (mode is FULL and on_device)


@pytest.mark.parametrize("name", ["ngram", "eagle"])
def test_requests_without_speculation_have_no_drafts_and_the_same_text(tmp_path, wanted, name):
    """Opting out is per request: half of a batch drafts, the other half never does."""
    engine = tiny_engine(spec_of(tmp_path, name, table=False))
    count, tokens = FEW
    wishes = [SamplingParams(max_tokens=tokens, speculate=at % 2 == 0) for at in range(count)]
    made = engine.generate(prompts_of(7, count), wishes)
    assert_same(made, wanted(*FEW))
    assert all(m.drafted == 0 for m in made[1::2])
    assert sum(m.drafted for m in made[::2]) > 0


def test_a_prompt_that_is_cached_whole_takes_one_row_of_a_full_graph(tmp_path):
    """Its last block is copied, its last token computed: the first step is a decode."""
    engine = tiny_engine(spec_of(tmp_path, "ngram", table=False))
    prompt = prompts_of(3)[0] * 2
    prompt = prompt[: len(prompt) // 4 * 4]
    (first,) = engine.generate([prompt], SamplingParams(max_tokens=12))
    before, mixed = engine.counts, ("none", "mixed_batch")
    (again,) = engine.generate([prompt], SamplingParams(max_tokens=12))
    assert_same([again], [first])
    assert again.cached == len(prompt) - 1
    assert engine.counts.modes[mixed] == before.modes[mixed]
