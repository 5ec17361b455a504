"""Sampled text: distributed as the model says, with drafts and without, and the same again for the same seed.

The model has eight tokens, so that the distribution of two of them is known in full. The test of fit is Pearson's
chi-square on 64 pairs: 63 degrees of freedom, refused above 110.9, where chance lies one time in 5,000.
"""

import pytest
import torch

from graphspec.config.engine import EngineConfig
from graphspec.engine.buffers import RequestRows
from graphspec.engine.sampling import SamplingParams
from graphspec.errors import RequestError
from graphspec.kernels import verify_drafts
from support.checkpoints import TINY, write_checkpoint
from support.tiny_engine import tiny_engine

VOCABULARY, CRITICAL = 8, 110.9
PROMPT = [1, 2, 3, 1, 2, 4, 1, 2]
"""After it n-gram drafts begin with 3."""
TEMPERATURE = 2.0


def spec_of(folder, method=None):
    checkpoint = write_checkpoint(folder, {**TINY, "vocab_size": VOCABULARY})
    config = {
        "model": {"source": str(checkpoint), "max_model_len": 64},
        "scheduler": {"max_num_seqs": 32, "max_num_batched_tokens": 256},
        "kv_cache": {"block_size": 4, "num_blocks": 256},
    }
    if method is not None:
        config["speculative"] = {
            "method": "ngram",
            "num_speculative_tokens": 2,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 3,
            "rejection_sample_method": method,
        }
    return EngineConfig.from_dict(config).resolve()


def exact(engine):
    """p(a, b) for each pair of tokens after the prompt, by the model's own logits."""
    blocks = [1, 2, 3]

    def after(tokens):
        rows = [RequestRows(tokens=tokens, position=0, blocks=blocks)]
        logits = engine._executor.logits(rows)[-1].double()
        return (logits / TEMPERATURE).softmax(-1)

    return torch.stack([after(PROMPT)[a] * after([*PROMPT, a]) for a in range(VOCABULARY)])


def chi_square(engine, count=800):
    """How far the pairs of first tokens of `count` requests, with seeds of their own, lie from the exact distribution;
    and the requests."""
    expected = exact(engine) * count
    assert expected.min() > 2
    wishes = [
        SamplingParams(max_tokens=3, temperature=TEMPERATURE, seed=at, ignore_eos=True)
        for at in range(count)
    ]
    found = torch.zeros(VOCABULARY, VOCABULARY, dtype=torch.float64)
    made = engine.generate([PROMPT] * count, wishes)
    for one in made:
        found[one.tokens[0], one.tokens[1]] += 1
    return float(((found - expected) ** 2 / expected).sum()), made


@pytest.mark.parametrize("method", [None, "standard", "block"])
def test_sampled_text_is_distributed_as_the_model_says(tmp_path, method):
    """Pairs of tokens of 800 requests fit the model's own distribution, whether drafts were verified or not."""
    far, made = chi_square(tiny_engine(spec_of(tmp_path, method)))
    assert far < CRITICAL
    drafted, accepted = sum(m.drafted for m in made), sum(m.accepted for m in made)
    assert (drafted, accepted) == (0, 0) if method is None else drafted > accepted > 0


def test_the_test_of_fit_notices_drafts_that_are_accepted_too_easily(tmp_path, monkeypatch):
    """Its power: where the logit of each draft is raised by 3 before verification, the fit is refused."""

    def lenient(logits, drafts, cu_drafts, **given):
        logits = logits.clone()
        for request, first in enumerate(cu_drafts[:-1].tolist()):
            for at in range(first, int(cu_drafts[request + 1])):
                logits[at + request, drafts[at]] += 3.0
        return verify_drafts(logits, drafts, cu_drafts, **given)

    monkeypatch.setattr("graphspec.engine.verification.verify_drafts", lenient)
    far, _ = chi_square(tiny_engine(spec_of(tmp_path, "standard")))
    assert far > CRITICAL


def test_a_seed_gives_the_same_text_in_any_batch(tmp_path):
    """Random numbers belong to a request's seed and place, not to the batch or the step."""
    engine = tiny_engine(spec_of(tmp_path, "standard"))
    wishes = [
        SamplingParams(max_tokens=12, temperature=1.0, seed=at, ignore_eos=True) for at in range(6)
    ]
    together = engine.generate([PROMPT] * 6, wishes)
    alone = [engine.generate([PROMPT], [w])[0] for w in wishes]
    assert [m.tokens for m in together] == [m.tokens for m in alone]
    assert len({m.tokens for m in together}) > 1


def test_without_a_seed_texts_differ(tmp_path):
    """Each request without a seed gets one of its own."""
    engine = tiny_engine(spec_of(tmp_path))
    made = engine.generate(
        [PROMPT] * 8, SamplingParams(max_tokens=16, temperature=2.0, ignore_eos=True)
    )
    assert len({m.tokens for m in made}) > 1


def test_filters_are_kept_to(tmp_path):
    """With top_k 1 a sampled text is the greedy one, drafts or not, beside requests that are greedy."""
    engine = tiny_engine(spec_of(tmp_path, "standard"))
    greedy = SamplingParams(max_tokens=12, ignore_eos=True)
    narrow = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.8, top_k=1, seed=3)
    first, second = engine.generate([PROMPT] * 2, [greedy, narrow])
    assert first.tokens == second.tokens


def test_logits_that_are_no_distribution_end_one_request_and_no_other(tmp_path):
    """A NaN in one request's rows: it ends with an error and its tokens so far, the others go on."""
    engine = tiny_engine(spec_of(tmp_path))
    run, replay = engine._executor.run, engine._manager.replay
    steps = []

    def spoiled(made):
        steps.append(made)
        if len(steps) == 3:
            rows = made.logits if hasattr(made, "logits") else made[3]
            margins = made.margin if hasattr(made, "margin") else made[2]
            rows[:2] = float("nan")
            margins[:2] = float("nan")
        return made

    engine._executor.run = lambda *given: spoiled(run(*given))
    engine._manager.replay = lambda key: spoiled(replay(key))
    sampled = SamplingParams(max_tokens=6, temperature=1.0, seed=1, ignore_eos=True)
    greedy = SamplingParams(max_tokens=6, ignore_eos=True)
    made = engine.generate([PROMPT] * 3, [greedy, sampled, greedy])
    assert [m.finished.value for m in made] == ["error", "error", "length"]
    assert [len(m.tokens) for m in made] == [2, 2, 6]
    assert engine.counts.kv_usage == 0


def test_wishes_are_checked_before_anything_runs(tmp_path):
    """A bad temperature is an error of the request."""
    with pytest.raises(RequestError, match="temperature"):
        SamplingParams(temperature=-1)
