"""Trees of drafts in the engine: whichever branch is right, the text is the model's, and every row is read where it belongs.

Most drafters here know the text that the model will write, and hide it somewhere in a random tree.
"""

import random

import attrs
import pytest
import torch

from graphspec.config.compilation import CudagraphMode
from graphspec.engine.buffers import RequestRows
from graphspec.engine.drafters.protocol import Proposal
from graphspec.engine.sampling import SamplingParams
from graphspec.engine.verification import check_trees
from graphspec.errors import SpecError
from graphspec.fields import evolve
from support.drafters import TARGET, engine_spec
from support.engine_sim import tree_around
from support.replays import ReplayEngine, plain_executor
from support.texts import ties_and_strays
from support.tiny_engine import tiny_engine

VOCABULARY = TARGET["vocab_size"]
NODES, TOKENS = 7, 20
UP_AND_DOWN = [[1, 2, 7], [3, 3, 2], [4, 4, 5], [5, 6, 0]]
TREE = {"num_speculative_tokens": NODES, "speculator_options": {"top_k": 3}}
GREEDY = SamplingParams(max_tokens=TOKENS)
SAMPLED = [
    SamplingParams(max_tokens=TOKENS, temperature=1.5, top_p=0.9, seed=at, ignore_eos=True)
    for at in range(8)
]


def with_mode(spec, mode):
    return evolve(spec, mode=evolve(spec.mode, granted=mode))


def spec_of(folder, *, mode=None, blocks=None, **section):
    spec = engine_spec(folder, "medusa", **{**TREE, **section})
    if mode is not None:
        spec = with_mode(spec, mode)
    if blocks is not None:
        spec = evolve(spec, kv_cache=evolve(spec.kv_cache, num_blocks=blocks))
        spec = evolve(spec, scheduler=evolve(spec.scheduler, max_num_batched_tokens=64))
    return spec


def prompts_of(count=8):
    made = random.Random(5)
    roots = [[made.randrange(VOCABULARY) for _ in range(9)] for _ in range(2)]
    return [
        made.choice(roots)[: made.randint(0, 9)]
        + [made.randrange(VOCABULARY) for _ in range(made.randint(1, 14))]
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """What the model writes alone, greedily and sampled with the seeds of `SAMPLED`."""
    spec = spec_of(tmp_path_factory.mktemp("plain")).without_speculation()
    engine = tiny_engine(with_mode(spec, CudagraphMode.NONE))
    return {
        "greedy": engine.generate(prompts_of(), GREEDY),
        "sampled": engine.generate(prompts_of(), SAMPLED),
    }


class Knowing:
    """Proposes what `tree(text, at, wanted)` makes of a request's whole text and how much of it is written already; keeps
    what it is shown."""

    def __init__(self, known, tree):
        self.texts = [[*p, *m.tokens] for p, m in zip(prompts_of(), known, strict=True)]
        self.tree, self.seen = tree, []

    def propose(self, step):
        # A copy: the next replay writes over the states.
        hidden = None if step.hidden is None else step.hidden.clone()
        self.seen.append(attrs.evolve(step, hidden=hidden))
        return [self._one(r) if r.wanted else Proposal() for r in step.requests]

    def _one(self, request):
        tokens = list(request.tokens)
        text = next((t for t in self.texts if t[: len(tokens)] == tokens), tokens)
        drafts, parents = self.tree(text, len(tokens), request.wanted)
        return Proposal(tokens=drafts, parents=parents)

    def forget(self, request):
        pass


def hidden_in_a_tree(seed):
    """A random tree around the text."""
    made = random.Random(seed)

    def tree(text, at, wanted):
        def after(tokens):
            known = text[: len(tokens)] == tokens and len(tokens) < len(text)
            return text[len(tokens)] if known else made.randrange(VOCABULARY)

        return tree_around(made, text[:at], wanted, after, VOCABULARY)

    return tree


def second_branch(text, at, wanted):
    """A wrong draft first; beside it two that are right, one behind the other."""
    right = [*text[at : at + 2], 0, 0][:2]
    return [(right[0] + 1) % VOCABULARY, *right], [-1, -1, 1]


def first_of_second_branch(text, at, wanted):
    """The first branch of that tree alone."""
    drafts, _ = second_branch(text, at, wanted)
    return drafts[:1], None


def with_drafter(engine, drafter):
    engine._drafter = drafter
    return engine


def assert_same(found, known):
    compared, ties, strays = ties_and_strays(found, known)
    assert strays == 0
    assert ties * 100 <= compared


@pytest.mark.parametrize(
    "mode", [CudagraphMode.FULL_AND_PIECEWISE, CudagraphMode.PIECEWISE, CudagraphMode.NONE]
)
def test_whichever_branch_is_right_the_text_is_the_models(tmp_path, wanted, mode):
    """Depths up and down with trees cut to them, chunks, few blocks so that requests are preempted, a cache cold and hot."""
    spec = spec_of(
        tmp_path, mode=mode, blocks=36, num_speculative_tokens_per_batch_size=UP_AND_DOWN
    )
    drafter = Knowing(wanted["greedy"], hidden_in_a_tree(3))
    engine = with_drafter(tiny_engine(spec), drafter)
    for _ in ("cold", "hot"):
        assert_same(engine.generate(prompts_of(), GREEDY), wanted["greedy"])
    counts = engine.counts
    assert counts.preemptions > 0
    assert counts.prefix_hits > 0
    assert counts.kv_usage == 0
    assert counts.accepted_at[2] > 0
    assert len(counts.depths) > 2
    full = counts.modes.get(("full", ""), 0)
    assert (full > 0) == (mode is CudagraphMode.FULL_AND_PIECEWISE)


def test_sampled_text_with_trees_is_to_the_token_that_without(tmp_path, wanted):
    """A row of a tree takes the random number that plain sampling takes at its position, so drafts change nothing at all."""
    drafter = Knowing(wanted["sampled"], hidden_in_a_tree(4))
    engine = with_drafter(tiny_engine(spec_of(tmp_path, mode=CudagraphMode.NONE)), drafter)
    made = engine.generate(prompts_of(), SAMPLED)
    assert [m.tokens for m in made] == [m.tokens for m in wanted["sampled"]]
    assert sum(m.accepted for m in made) > 40


def test_a_tree_is_accepted_where_its_first_branch_is_wrong(tmp_path, wanted):
    """On the same prompts: the first branch alone gives one token a step, the whole tree three."""
    made = {}
    for name, tree in (("tree", second_branch), ("first branch", first_of_second_branch)):
        engine = tiny_engine(spec_of(tmp_path, mode=CudagraphMode.NONE))
        with_drafter(engine, Knowing(wanted["greedy"], tree))
        made[name] = engine.generate(prompts_of(), GREEDY)
        assert_same(made[name], wanted["greedy"])
    assert sum(m.accepted for m in made["first branch"]) == 0
    for tree, branch in zip(made["tree"], made["first branch"], strict=True):
        assert (branch.steps, tree.steps) == (TOKENS, 1 + -(-(TOKENS - 1) // 3))


def test_a_drafter_is_shown_the_states_of_the_kept_branch(tmp_path, wanted):
    """Its rows are those of the path, one behind the other, as if nothing else had been in the step."""
    spec = spec_of(tmp_path, mode=CudagraphMode.NONE)
    drafter = Knowing(wanted["greedy"], hidden_in_a_tree(6))
    with_drafter(tiny_engine(spec), drafter).generate(prompts_of(), GREEDY)
    executor = plain_executor(spec)
    states = {}
    for text in drafter.texts:
        rows = RequestRows(tokens=text, position=0, blocks=range(1, 40))
        states[tuple(text)] = executor.run([rows], [0]).hidden.clone()
    compared = 0
    for step in drafter.seen:
        for r in step.requests:
            whole = next(t for t in states if t[: len(r.tokens)] == tuple(r.tokens))
            shown = step.hidden[r.row : r.row + r.count]
            there = states[whole][r.first : r.first + r.count]
            assert torch.allclose(shown, there, atol=2e-3, rtol=2e-3)
            compared += r.count > 1
    assert compared > 20


def test_each_graph_replays_trees_as_they_run_eagerly(tmp_path):
    """Full graphs with every number of rows, on random trees, chains and padding: to the bit what the padded step gives."""
    spec = spec_of(tmp_path, num_speculative_tokens_per_batch_size=UP_AND_DOWN)
    engine = ReplayEngine(spec, plain_executor(spec, debug_padding=True))
    made = random.Random(2)
    for key in engine.manager.plan.keys:
        for count in sorted({1, key.bucket}):
            requests = [
                attrs.evolve(
                    r, parents=[made.randint(-1, at - 1) for at in range(len(r.tokens) - 1)]
                )
                if made.random() < 0.8
                else r
                for r in engine.requests(count, key.k)
            ]
            engine.check(engine.batch(key, requests))


def test_a_method_that_drafts_trees_is_not_verified_by_a_rule_that_needs_chains(tmp_path):
    """FLy and synthetic acceptance, and adaptive verification, are refused with the contract; and by the engine once more,
    for methods that do not look."""
    lossy = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
    for section, where in (
        (lossy, "rejection_sample_method"),
        ({"rejection_sample_method": "fly"}, "rejection_sample_method"),
        ({"enable_adaptive_verification": True}, "enable_adaptive_verification"),
    ):
        with pytest.raises(SpecError) as refused:
            spec_of(tmp_path, **section)
        assert [p.where for p in refused.value.problems] == [f"speculative.{where}"]
    spec = spec_of(tmp_path)
    check_trees(spec)
    method = type(spec.speculative.verification.rejection_sample_method)
    rule = evolve(spec.speculative.verification, rejection_sample_method=method.SYNTHETIC)
    with pytest.raises(SpecError, match="trees of drafts"):
        check_trees(evolve(spec, speculative=evolve(spec.speculative, verification=rule)))


def test_a_tree_may_have_as_many_nodes_as_the_heads_candidates_make(tmp_path):
    """Three candidates of each of four heads make 3 + 9 + 27 + 81 nodes; one candidate each makes a chain of four."""
    assert spec_of(tmp_path, num_speculative_tokens=120).num_speculative_tokens == 120
    with pytest.raises(SpecError, match="120: 3 candidates of each of the checkpoint's 4 heads"):
        spec_of(tmp_path, num_speculative_tokens=121)
    with pytest.raises(SpecError, match="4 heads, one a draft"):
        spec_of(tmp_path, num_speculative_tokens=5, speculator_options={"top_k": 1})


def test_a_tree_that_the_contract_does_not_have_is_refused(tmp_path, wanted):
    """Graphs and buffers have no mask then. A tree that is a chain is one."""
    spec = with_mode(engine_spec(tmp_path, "ngram"), CudagraphMode.NONE)

    def chain(text, at, wanted):
        drafts = text[at : at + wanted]
        return drafts, list(range(-1, len(drafts) - 1))

    engine = with_drafter(tiny_engine(spec), Knowing(wanted["greedy"], chain))
    assert_same(engine.generate(prompts_of(), GREEDY), wanted["greedy"])
    assert engine.counts.accepted_tokens > 0
    engine = with_drafter(tiny_engine(spec), Knowing(wanted["greedy"], second_branch))
    with pytest.raises(SpecError, match="drafts_in_trees"):
        engine.generate(prompts_of(), GREEDY)
