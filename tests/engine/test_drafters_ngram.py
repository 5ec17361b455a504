"""The n-gram drafter: what it keeps of a request goes when the request goes, and drafts are those of the scan."""

import random

import pytest
import torch

from graphspec.capture import warmup
from graphspec.config.engine import EngineConfig
from graphspec.engine.drafters.ngram import NgramSpeculator
from graphspec.engine.drafters.protocol import Computed, TargetStep
from graphspec.kernels import NgramIndex, propose_ngram
from support.ngram import text


def drafter_of(slots):
    return NgramSpeculator(
        NgramIndex(min_n=1, max_n=3, k=4, max_model_len=90, slots=slots, backend="python")
    )


def seen(request, tokens, wanted=4):
    return Computed(
        request=request, tokens=tokens, first=0, count=1, row=0, blocks=(), wanted=wanted
    )


def test_requests_that_come_and_go_get_the_scans_drafts():
    """Requests in any order, some preempted and back with what they had, more of them than slots in the long run."""
    draw = random.Random(3)
    drafter, running, born = drafter_of(3), {}, 0
    for _ in range(200):
        while len(running) < 3:
            running[born] = text(draw, draw.randint(1, 30))
            born += 1
        for tokens in running.values():
            tokens.extend(text(draw, draw.randint(1, 4)))
        wanted = {request: draw.randint(0, 4) for request in running}
        order = draw.sample(sorted(running), 3)
        found = drafter.propose(
            TargetStep(requests=[seen(r, running[r], wanted[r]) for r in order])
        )
        for request, proposal in zip(order, found, strict=True):
            scanned = propose_ngram(running[request], 1, 3, wanted[request], 90)
            assert list(proposal.tokens) == scanned
        preempted = draw.choice(order)
        drafter.forget(preempted)
        ended = [r for r in running if len(running[r]) > 80]
        for request in ended:
            drafter.forget(request)
            del running[request]
    assert born > 5


def test_a_request_that_was_cut_back_gets_drafts_of_what_is_left():
    """Fewer tokens than last time: the text was rolled back."""
    drafter = drafter_of(1)
    drafter.propose(TargetStep(requests=[seen(7, [1, 2, 3, 1, 2, 9])]))
    (proposal,) = drafter.propose(TargetStep(requests=[seen(7, [1, 2, 3, 1, 2])]))
    assert list(proposal.tokens) == [3, 1, 2]


def test_a_request_that_was_never_seen_may_be_forgotten():
    """One that was aborted before its first step has no slot."""
    drafter = drafter_of(1)
    drafter.forget(5)
    assert drafter.static_tensors() == dict[str, torch.Tensor]()


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.parametrize(("requests", "phases"), [(4, 0), (33, 1)])
def test_a_warmup_compiles_what_drafts_where_it_is_compiled(
    requests, phases, tiny_config, shared_cache, monkeypatch
):
    """A small engine drafts in plain Python. For a large one the index is compiled before it says ready."""
    warmed = []
    monkeypatch.setattr(warmup, "warm_ngram", lambda: warmed.append(True))
    scheduler = {"max_num_seqs": requests, "max_num_batched_tokens": 128}
    spec = EngineConfig.from_dict(tiny_config(scheduler=scheduler)).resolve()
    report = warmup.warmup(spec, cache_dir=str(shared_cache))
    assert (len(warmed), list(report.phases).count("drafter")) == (phases, phases)
