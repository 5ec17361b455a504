"""Every built-in drafter keeps its promises on the stage: fresh keys and values, its own slots, its own window."""

import pytest

from support.drafters import Stage, engine_spec, play

WITH_MODEL = [
    "draft_model",
    "draft_model parallel",
    "eagle",
    "eagle3",
    "eagle3 parallel",
    "mtp",
    "mtp multi-module",
    "dflash",
    "dspark",
    "dspark fill-in",
    "medusa",
]
SPARE = {"eagle": 1, "eagle3": 1, "eagle3 parallel": 1, "mtp": 1, "mtp multi-module": 2}
"""Slots declared and not written. A head's row lies one position before its token, so the last draft that it reads back lies
at k - 1; a second module gives its draft where the first gave one. The declared k is the contract that engines know."""


@pytest.mark.parametrize("name", WITH_MODEL)
def test_drafts_equal_those_of_a_fresh_drafter_and_slots_those_declared(tmp_path, name):
    """Through chunks, accepted and rejected drafts, changing batches and depths, nothing stale is ever read."""
    spec = engine_spec(tmp_path, name)
    stage = Stage(spec, seed=1)
    play(stage, 40)
    assert stage.compared > 30
    assert stage.reach == spec.num_lookahead_tokens - SPARE.get(name, 0)
