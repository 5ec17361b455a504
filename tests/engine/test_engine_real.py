"""The real model under pressure: few blocks, a cache that is cold and hot, with graphs and without, sampled and greedy."""

import pytest

from graphspec.api import load
from graphspec.capture.warmup import make_ready
from graphspec.engine.llm import LLM
from graphspec.engine.sampling import SamplingParams
from support.texts import ties_and_strays

CODE = "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n    return a - b\n\n\n"
PROMPTS = [
    CODE + "def multiply(a, b):\n",
    CODE + "Now the same functions again:\n\ndef add(a, b):\n",
    CODE * 2 + "def divide(a, b):\n",
    "one two three four five six seven eight nine ten. " * 6,
    "Name: Ada\nJob: engineer\n\nName: Bob\nJob: baker\n\nName: Cem\nJob:",
    "The capital of France is",
]
PARAMS = SamplingParams(max_tokens=24)


def engine(cache, *settings, speculation=True):
    spec = load("examples/smollm2-ngram.yaml", ["model.max_model_len=320", *settings])
    spec = spec if speculation else spec.without_speculation()
    return LLM(spec, ready=make_ready(spec, cache_dir=str(cache)))


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["FULL_AND_PIECEWISE", "PIECEWISE", "NONE"])
def test_text_of_the_real_model_does_not_depend_on_blocks_cache_or_graphs(shared_cache, mode):
    """Preempted, from a cold and from a hot cache, in each graph mode: the text of one request after the other without
    drafts, near ties aside."""
    plain = engine(
        shared_cache,
        "kv_cache.enable_prefix_caching=false",
        "compilation.cudagraph_mode=NONE",
        speculation=False,
    )
    wanted = [plain.generate([p], PARAMS)[0] for p in PROMPTS]
    llm = engine(shared_cache, "kv_cache.num_blocks=22", f"compilation.cudagraph_mode={mode}")
    for _ in ("cold", "hot"):
        compared, ties, strays = ties_and_strays(llm.generate(PROMPTS, PARAMS), wanted)
        print(f"{mode}: {compared} tokens, {ties} near ties, {strays} other differences")
        assert strays == 0
        assert ties * 100 <= compared
    counts = llm.counts
    assert counts.preemptions > 0
    assert counts.prefix_hits > 0
    assert counts.accepted_tokens > 0
    assert counts.kv_usage == 0
    assert (("full", "") in counts.modes) == (mode == "FULL_AND_PIECEWISE")
    assert any(kind == "piecewise" for kind, _ in counts.modes) == (mode != "NONE")
    assert llm.report.compiled == 0 or mode == "FULL_AND_PIECEWISE"


@pytest.mark.deep
@pytest.mark.slow
def test_a_sampled_text_of_the_real_model_is_the_same_for_its_seed(shared_cache):
    """Alone and in a batch with greedy ones, streamed and whole."""
    llm = engine(shared_cache)
    sampled = SamplingParams(max_tokens=24, temperature=0.8, top_p=0.9, seed=11)
    (alone,) = llm.generate(PROMPTS[:1], sampled)
    together = llm.generate(PROMPTS[:3], [sampled, PARAMS, PARAMS])
    assert together[0].tokens == alone.tokens
    assert "".join(d.text for d in llm.stream(PROMPTS[:1], sampled)) == alone.text
