"""The stored heads are read by the example configs, and help."""

import glob
import os

import pytest
import torch

from graphspec.api import load
from graphspec.capture.warmup import make_ready
from graphspec.engine.drafters.context import DraftContext
from graphspec.engine.drafters.making import make_drafter
from graphspec.engine.llm import LLM
from graphspec.engine.sampling import SamplingParams
from graphspec.engine.weights import Weights

NAMES = ("eagle", "medusa")
QUESTIONS = (
    "Explain how a kite flies to a ten year old.",
    "Write a Python function that returns the second largest of a list of numbers.",
    "List all names in the text.\n\nOlga Berg, driver, lives in Bergen.\nPeter Ngo, cook, lives in Hue.",
    "Give me three pieces of advice concerning cheap holidays.",
)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_reads_its_head(name, caplog):
    """Every tensor of the file is there in the shape that the config says, and none is made from a seed."""
    spec = load(f"examples/smollm2-{name}.yaml")
    m = spec.model
    # The target's own, which no head reads before it drafts.
    matrix = torch.empty(m.vocab_size, m.hidden_size)
    weights = Weights(
        embedding=matrix, layers=(), final_norm=torch.ones(m.hidden_size), w_head=matrix
    )
    drafter = make_drafter(DraftContext(spec=spec, weights=weights))
    assert "made from seed" not in caplog.text
    own = {
        n: t
        for n, t in drafter.static_tensors().items()
        if t.is_floating_point() and t is not matrix and "cache" not in n and "draft." not in n
    }
    assert len(own) >= 6
    for tensor in own.values():
        assert tensor.isfinite().all()
        assert tensor.abs().max() > 0
    (file,) = glob.glob(f"examples/heads/{name}/*.safetensors")
    assert os.path.getsize(file) < 10e6


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_stored_head_helps(shared_cache, name):
    """On questions that nobody trained it on, steps give clearly more than one token."""
    spec = load(f"examples/smollm2-{name}.yaml", ["compilation.cudagraph_mode=NONE"])
    llm = LLM(spec, ready=make_ready(spec, cache_dir=str(shared_cache)))
    llm.generate([llm.tokenizer.chat(q) for q in QUESTIONS], SamplingParams(max_tokens=64))
    print(f"{name}: acceptance length {llm.counts.acceptance_length:.2f}")
    assert llm.counts.acceptance_length > 1.3
