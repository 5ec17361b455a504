"""Drafters in the engine: what they are shown, and what they give."""

import torch

from graphspec.engine.drafters.early_exit import write_early_exit
from graphspec.engine.drafters.extract import to_folder
from graphspec.engine.sampling import SamplingParams
from support.checkpoints import write_checkpoint
from support.drafters import TARGET, K, engine_spec
from support.tiny_engine import tiny_engine

PROMPTS = [[5, 6, 7, 8] * 3, list(range(20, 43)), [9]]


def test_a_request_of_one_step_is_exported_whole(tmp_path):
    """The usual export: a prompt and one token. Its only step is its last, and its states are there."""
    found = {}
    spec = engine_spec(tmp_path, "extract_hidden_states")
    engine = tiny_engine(spec, export=found.__setitem__)
    engine.generate(PROMPTS, SamplingParams(max_tokens=1))
    assert [found[at]["token_ids"].tolist() for at in range(3)] == PROMPTS
    for at, prompt in enumerate(PROMPTS):
        states = found[at]["hidden_states"]
        assert states.shape[::2] == (len(prompt), TARGET["hidden_size"])
        assert states.abs().sum(-1).min() > 0


def test_exported_states_do_not_depend_on_steps_and_batches(tmp_path):
    """Chunks, batches and a cached prefix give the states that one request alone gives in one step."""
    found = {}
    engine = tiny_engine(engine_spec(tmp_path, "extract_hidden_states"), export=found.__setitem__)
    for prompt in PROMPTS:
        engine.generate([prompt], SamplingParams(max_tokens=1))
    engine.generate(PROMPTS, SamplingParams(max_tokens=6))
    for at, prompt in enumerate(PROMPTS):
        alone, together = found[at]["hidden_states"], found[at + 3]["hidden_states"]
        assert len(together) == len(prompt) + 5
        assert torch.allclose(alone, together[: len(prompt)], atol=1e-4, rtol=1e-4)


def test_files_are_written_for_each_request(tmp_path):
    """One file a request in the folder that is given."""
    spec = engine_spec(tmp_path, "extract_hidden_states")
    engine = tiny_engine(spec, export=to_folder(str(tmp_path / "out")))
    engine.generate(PROMPTS, SamplingParams(max_tokens=2))
    assert {f.name for f in (tmp_path / "out").iterdir()} == {
        f"request-{at}.safetensors" for at in range(3)
    }


def test_a_draft_of_all_the_targets_layers_is_always_right(tmp_path):
    """The engine shows a drafter true tokens, positions and blocks: a copy of the target has every draft accepted."""
    spec = engine_spec(tmp_path, "draft_model")
    copy = write_checkpoint(tmp_path / "copy", TARGET)
    spec = engine_spec(tmp_path, "draft_model", model=str(copy))
    engine = tiny_engine(spec)
    for done in engine.generate(PROMPTS, SamplingParams(max_tokens=21)):
        assert done.drafted == done.accepted > 0
        assert done.steps <= 1 + -(-21 // (1 + K))


def test_the_same_copy_is_right_again_on_a_cached_prefix(tmp_path):
    """Blocks that another request's drafter filled, its last step's among them, draft as well as one's own."""
    copy = write_checkpoint(tmp_path / "copy", TARGET)
    engine = tiny_engine(engine_spec(tmp_path, "draft_model", model=str(copy)))
    (first,) = engine.generate([PROMPTS[1]], SamplingParams(max_tokens=12))
    longer = [*PROMPTS[1], *first.tokens]
    (second,) = engine.generate([longer], SamplingParams(max_tokens=12))
    assert second.cached > len(PROMPTS[1])
    assert second.drafted == second.accepted > 0


def test_an_early_exit_has_some_drafts_accepted(tmp_path):
    """Half of the target's layers agree with all of them now and then, also where the rest is random."""
    spec = engine_spec(tmp_path, "draft_model")
    folder = write_early_exit(str(tmp_path / "exit"), spec.model.source, 3)
    engine = tiny_engine(engine_spec(tmp_path, "draft_model", model=folder))
    done = engine.generate(PROMPTS, SamplingParams(max_tokens=40))
    assert sum(d.accepted for d in done) > 0
