"""Every built-in drafter keeps its promises on the stage: fresh keys and values, its own slots, its own window."""

import pytest

from support.drafters import HEADS, Stage, engine_spec, play

WITH_MODEL = ["draft_model", "draft_model parallel"]


@pytest.mark.parametrize("name", WITH_MODEL)
def test_drafts_equal_those_of_a_fresh_drafter_and_slots_those_declared(tmp_path, name):
    """Through chunks, accepted and rejected drafts, changing batches and depths, nothing stale is ever read."""
    spec = engine_spec(tmp_path, name)
    stage = Stage(spec, seed=1)
    play(stage, 40)
    assert stage.compared > 30
    assert stage.reach == spec.num_lookahead_tokens
