"""Speculation changes speed and never text: on the real model, and on a tiny one under every kind of batch."""

import pytest

from graphspec.api import load
from graphspec.capture.warmup import make_ready
from graphspec.engine.generate import Generator
from graphspec.engine.sampling import SamplingParams
from graphspec.engine.tokenizer import load_tokenizer
from support.texts import ties_and_strays

MAX_TOKENS = 32

CODE = "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n    return a - b\n\n\n"
PROMPTS = [
    "The capital of France is",
    "Once upon a time, there was a little",
    "1 2 3 4 5 6 7 8 9 10 11 12",
    "a b c d a b c d a b c d a b c",
    "Water boils at a temperature of",
    "Q: What is the tallest mountain?\nA:",
    CODE + "def multiply(a, b):\n",
    CODE + "Now the same functions again:\n\ndef add(a, b):\n",
    "Name: Ada\nJob: engineer\n\nName: Bob\nJob: baker\n\nName: Cem\nJob:",
    "{'x': 1, 'y': 2}\n{'x': 3, 'y': 4}\n{'x': 5, 'y':",
    "Repeat after me: the quick brown fox jumps over the lazy dog. The quick brown fox",
    "Translate to French. cat: chat. dog: chien. house: maison. tree:",
    "Der Hund läuft über die Straße und",
    "日本の首都は",
    "!!!! ???? !!!! ???? !!!!",
    "x",
    "The following is a list of planets:\n- Mercury\n- Venus\n- Earth\n-",
    "To be, or not to be, that is the question. To be, or not to be, that is",
    "SELECT id, name FROM users WHERE id = 1;\nSELECT id, name FROM users WHERE id = 2;\nSELECT id,",
    "In machine learning, a neural network is " + "very " * 60 + "useful because",
]


@pytest.fixture(scope="module")
def engines(shared_cache):
    """The example engine with and without speculation, and its tokenizer."""
    spec = load("examples/smollm2-ngram.yaml")
    with_drafts = make_ready(spec, cache_dir=str(shared_cache))
    without = make_ready(spec.without_speculation(), cache_dir=str(shared_cache))
    return with_drafts, without, load_tokenizer(spec.model)


def run(ready, prompts, stop=frozenset()):
    generator = Generator(ready.source, ready.manager, end_of_text=stop)
    params = SamplingParams(max_tokens=MAX_TOKENS)
    return generator.generate(prompts, params), generator.routes


@pytest.mark.slow
@pytest.mark.parametrize("size", [*(pytest.param(n, marks=pytest.mark.deep) for n in (1, 7)), 20])
def test_greedy_text_is_the_same_with_and_without_speculation(engines, size):
    """On 20 prompts of several kinds, alone and in batches, drafts change no token but near ties (1 in 1,000)."""
    ready, plain, tokenizer = engines
    ids = [tokenizer.encode(p) for p in PROMPTS]
    # All 20 together; some alone and seven at once, so that every captured graph is used.
    groups = [ids[i : i + size] for i in range(0, len(ids), size)][: 2 if size == 1 else 1]
    drafted_out, plain_out = [], []
    for group in groups:
        out, routes = run(ready, group, tokenizer.stop_ids)
        drafted_out += out
        assert set(routes) <= {str(k) for k in ready.manager.captured} | {PREFILL}
        plain_out += run(plain, group, tokenizer.stop_ids)[0]
    compared, ties, strays = ties_and_strays(drafted_out, plain_out)
    print(f"{compared} tokens, {ties} near ties, {strays} other differences")
    assert strays == 0
    assert ties * 1000 <= max(compared, 1000)
    assert sum(g.accepted for g in drafted_out) > 0 or size == 1


PREFILL = "a request in the batch is still in prefill"


@pytest.mark.slow
def test_repetitive_prompts_need_fewer_steps(engines):
    """Where text repeats, drafts are accepted and a token costs less than a step."""
    ready, plain, tokenizer = engines
    ids = [tokenizer.encode("one two three four five six seven eight nine ten. " * 6)]
    (drafted,), _ = run(ready, ids)
    (stepwise,), _ = run(plain, ids)
    assert drafted.accepted > 0
    assert drafted.steps < stepwise.steps == len(stepwise.tokens)
    assert drafted.steps + drafted.accepted == len(drafted.tokens)


@pytest.mark.slow
def test_both_engines_compile_the_same_units(engines):
    """Speculation is no factor of this model's units: the second engine compiled nothing."""
    with_drafts, without, _ = engines
    assert without.report.compiled == 0
    assert [u.key for u in with_drafts.report.units] == [u.key for u in without.report.units]
    assert with_drafts.report.graphs.fallthrough == without.report.graphs.fallthrough == ()
