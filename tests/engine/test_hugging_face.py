"""A Hugging Face folder is read right: an independent implementation gives the same logits from the same folder."""

import pytest
import torch

from graphspec.config.engine import EngineConfig
from graphspec.engine.buffers import RequestRows
from graphspec.engine.executor import Executor
from graphspec.engine.llama import program
from graphspec.engine.weights import load_weights
from support.checkpoints import TINY, write_checkpoint

VARIANTS = {
    "as it is": {},
    "one key head": {"num_key_value_heads": 1},
    "as many key heads as heads": {"num_key_value_heads": 4},
    "heads wider than the model": {"head_dim": 16},
    "another rotary base": {"rope_theta": 500000.0},
    "another epsilon": {"rms_norm_eps": 0.1},
}


def plain_units(spec):
    """The program's units without a compiler, in place of artifacts."""

    def wrapped(function):
        def call(*tensors):
            made = function(*tensors)
            return made if isinstance(made, tuple) else (made,)

        return call

    return {unit.name: wrapped(unit.build(spec)) for unit in program(spec).units()}


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_agree_with_transformers(tmp_path, monkeypatch, name):
    """For each shape of head, rotary base and epsilon, prompt logits agree to rounding."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    folder = write_checkpoint(tmp_path / "model", {**TINY, **VARIANTS[name]})
    config = {"model": {"source": str(folder)}, "kv_cache": {"block_size": 4}}
    spec = EngineConfig.from_dict(config).resolve()
    executor = Executor(spec, load_weights(spec.model, spec.device), plain_units(spec))
    ids = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46]
    with torch.no_grad():
        ours = executor.logits([RequestRows(tokens=ids, position=0, blocks=[7, 2, 5])])
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        wanted = theirs(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-4)


def test_chunks_give_what_the_whole_prompt_gives(tmp_path):
    """A prompt computed in chunks, beside another request, has the logits of the prompt at once."""
    folder = write_checkpoint(tmp_path / "model", TINY)
    spec = EngineConfig.from_dict({"model": {"source": str(folder)}}).resolve()
    executor = Executor(spec, load_weights(spec.model, spec.device), plain_units(spec))
    ids, other = list(range(5, 45)), list(range(50, 70))
    whole = executor.logits([RequestRows(tokens=ids, position=0, blocks=[1, 2, 3])])
    executor.logits([RequestRows(tokens=ids[:17], position=0, blocks=[4, 5, 6])])
    mixed = executor.logits(
        [
            RequestRows(tokens=ids[17:], position=17, blocks=[4, 5, 6]),
            RequestRows(tokens=other, position=0, blocks=[7, 8]),
        ]
    )
    torch.testing.assert_close(mixed[: len(ids) - 17], whole[17:], rtol=1e-4, atol=1e-4)
