"""Each draft pass is a function of static buffers that a graph can hold."""

import pytest
import torch

from graphspec.capture.backends.tape import TapeBackend
from support.drafters import HEADS, K, Stage, engine_spec

PASSES = ("draft_model", "draft_model parallel", *HEADS)


def flat(outputs):
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [t for t in outputs if t is not None]


def captured_pass(stage):
    """The owner of `draft_pass`, what it was last called with, and the tape of such a call."""
    owner = getattr(stage.drafter, "drafter", stage.drafter)
    plain, seen = owner.draft_pass, []

    def watched(*arguments):
        outputs = plain(*arguments)
        seen.append((arguments, [t.clone() for t in flat(outputs)]))
        return outputs

    owner.draft_pass = watched
    stage.step(stage.actors, K)
    arguments, _ = seen[-1]
    return TapeBackend().capture(lambda: flat(plain(*arguments))), seen


@pytest.mark.parametrize("name", PASSES)
def test_a_captured_draft_pass_replays_later_steps_to_the_bit(tmp_path, name):
    """The tape of one step's pass, replayed on what a later step wrote into the buffers, gives that step's outputs."""
    check(engine_spec(tmp_path, name))


@pytest.mark.parametrize("kind", ["fp8", "nvfp4"])
def test_a_pass_with_a_quantised_head_is_captured_too(tmp_path, kind):
    """The narrow weights are unpacked inside of the graph, from tensors at fixed addresses."""
    check(engine_spec(tmp_path, "eagle", draft_lm_head_quantization=kind))


def check(spec):
    stage = Stage(spec, seed=1)
    for _ in range(3):
        stage.enter(8)
    graph, seen = captured_pass(stage)
    for _ in range(3):
        stage.step(stage.actors, K)
        arguments, eager = seen[-1]
        assert arguments == seen[0][0]
        # The pass has written the slots that it writes again: its outputs come from the same inputs.
        replayed = graph.replay()
        assert len(replayed) == len(eager)
        assert all(torch.equal(a, b) for a, b in zip(replayed, eager, strict=True))
    first, last = seen[0][1][0], seen[-1][1][0]
    assert not torch.equal(first, last)
