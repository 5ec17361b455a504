"""Exported hidden states are the target's own, for every token that it computed, whatever steps it took."""

import torch
from safetensors.torch import load_file

from graphspec.engine.drafters.extract import to_folder
from graphspec.engine.outputs import aux_layers
from support.drafters import Stage, engine_spec


def run(folder, **changes):
    spec = engine_spec(folder, "extract_hidden_states")
    stage = Stage(spec, seed=1, **changes)
    long, short = stage.enter(23), stage.enter(5)
    for _ in range(5):
        stage.step([long, short], 0, chunk=6)
        stage.step([short], 0)
    return stage, long, short


def expected(stage, actor):
    """The scripted target's auxiliary states of all computed tokens."""
    hidden, layers = stage.spec.model.hidden_size, len(aux_layers(stage.spec))
    rows = stage.states.of(actor.tokens, range(actor.computed))[:, hidden:]
    return rows.view(actor.computed, layers, hidden)


def test_states_of_a_running_request_can_be_read(tmp_path):
    """Chunks, decode steps and other requests between them: each computed token has its state, in order."""
    stage, long, short = run(tmp_path)
    for actor in (long, short):
        found = stage.drafter.states(actor.id)
        assert torch.equal(found["hidden_states"], expected(stage, actor))
        assert found["token_ids"].tolist() == actor.tokens[: actor.computed]


def test_a_finished_request_is_exported_once(tmp_path):
    """One file a request, with states and token ids; what comes after the end does not change it."""
    stage, long, short = run(tmp_path, export=to_folder(str(tmp_path / "out")))
    wanted, tokens = expected(stage, short), short.tokens[: short.computed]
    stage.leave(short)
    stage.step([long], 0)
    stage.drafter.forget(short.id)
    (file,) = (tmp_path / "out").iterdir()
    assert file.name == f"request-{short.id}.safetensors"
    found = load_file(file)
    assert torch.equal(found["hidden_states"], wanted)
    assert found["token_ids"].tolist() == tokens


def test_a_cached_prefix_has_its_states_without_being_computed_again(tmp_path):
    """A request that starts after a prefix in blocks of another one exports the states of those blocks."""
    stage, long, _ = run(tmp_path)
    found = stage.drafter.states(long.id)
    twin = stage.enter(1)
    twin.tokens, twin.prompt = list(long.tokens), len(long.tokens)
    twin.blocks = [*long.blocks[:3], *twin.blocks[3:]]
    twin.computed = 12
    stage.step([twin], 0)
    again = stage.drafter.states(twin.id)
    assert torch.equal(again["hidden_states"][: long.computed], found["hidden_states"])


def test_nothing_is_kept_of_a_request_that_ended(tmp_path):
    """Without an export its states go with its blocks."""
    stage, _, short = run(tmp_path)
    stage.leave(short)
    assert short.id not in stage.drafter._known
