"""The weights are right: against transformers on the real model, and against hand-made files."""

import json
import shutil

import pytest
import torch

from graphspec.api import load
from graphspec.capture.warmup import make_ready
from graphspec.config.engine import EngineConfig
from graphspec.engine.buffers import RequestRows
from graphspec.engine.tokenizer import load_tokenizer
from graphspec.engine.weights import _half_split, load_weights
from graphspec.errors import EnvironmentProblem
from graphspec.resolve.model_facts import locate_checkpoint

PROMPTS = [
    "The capital of France is Paris, and the capital of Italy is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Once upon a time",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "Der schnelle braune Fuchs springt über den faulen Hund.",
    "日本語のテキスト",
    "x",
    "SELECT * FROM table WHERE id = 42;",
    "The mitochondria is the powerhouse of the cell. " * 6,
    "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n",
]


@pytest.mark.slow
@pytest.mark.deep
def test_logits_agree_with_transformers_on_the_same_file(shared_cache, monkeypatch):
    """Compiled units with our weights give the logits that transformers gives from the same GGUF, within 1e-3."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    spec = load("examples/smollm2-ngram.yaml")
    executor = make_ready(spec, cache_dir=str(shared_cache)).source
    tokenizer = load_tokenizer(spec.model)
    folder, _, name = locate_checkpoint(spec.model.source).rpartition("/")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.float32
    )
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    worst = 0.0
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt)
        assert ids == their_tokenizer(prompt, add_special_tokens=False).input_ids
        assert tokenizer.decode(ids) == their_tokenizer.decode(ids, skip_special_tokens=True)
        blocks = list(range(1, 2 + len(ids) // spec.kv_cache.block_size))
        ours = executor.logits([RequestRows(tokens=ids, position=0, blocks=blocks)])
        with torch.no_grad():
            wanted = theirs(torch.tensor([ids])).logits[0]
        worst = max(worst, float((ours - wanted).abs().max()))
    print(f"largest difference of a logit: {worst:.2e}")
    assert worst < 1e-3


def test_half_split_undoes_the_interleaving_of_the_converter():
    """Rows of each head return from pairs (0, d/2, 1, d/2+1, ...) to halves, for any number of heads."""
    for heads, dim, width in ((1, 4, 3), (3, 8, 5), (9, 64, 16)):
        weight = torch.randn(heads * dim, width)
        converted = (
            weight.view(heads, 2, dim // 2, width).transpose(1, 2).reshape(heads * dim, width)
        )
        assert torch.equal(_half_split(converted, heads), weight)


def test_fused_weights_keep_every_row(tiny_spec, tiny_checkpoint):
    """q, k and v lie one after another in w_qkv, gate before up in w_gate_up, and a tied head is the embedding."""
    from safetensors.torch import load_file

    raw = load_file(tiny_checkpoint / "model.safetensors")
    weights = load_weights(tiny_spec.model, tiny_spec.device)
    for at, layer in enumerate(weights.layers):
        p = f"model.layers.{at}."
        parts = [raw[p + f"self_attn.{n}_proj.weight"] for n in "qkv"]
        assert torch.equal(layer.w_qkv, torch.cat(parts))
        parts = [raw[p + f"mlp.{n}_proj.weight"] for n in ("gate", "up")]
        assert torch.equal(layer.w_gate_up, torch.cat(parts))
    assert weights.w_head is weights.embedding


def test_units_are_given_the_memory_of_the_weights_and_not_copies(tiny_spec, tiny_checkpoint):
    """A copy would keep old values when new ones are loaded into the weights; and a unit takes contiguous tensors only."""
    weights = load_weights(tiny_spec.model, tiny_spec.device)
    pairs = [(weights.w_head, weights.head_for_units)]
    for layer, given in zip(weights.layers, weights.unit_layers, strict=True):
        names = ("attention_norm", "w_qkv", "w_o", "mlp_norm", "w_gate_up", "w_down")
        pairs += [(getattr(layer, name), getattr(given, name)) for name in names]
    for stored, given in pairs:
        assert given.data_ptr() == stored.data_ptr()
        assert given.is_contiguous()
        stored.fill_(3)
        assert torch.equal(given, torch.full_like(given, 3))


@pytest.mark.parametrize(
    ("damage", "names"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "safetensors"),
        (lambda folder: rewrite(folder, hidden_size=64, head_dim=8), "embed_tokens"),
        (lambda folder: rewrite(folder, num_hidden_layers=3), "model.layers.2"),
        (lambda folder: rewrite(folder, tie_word_embeddings=False), "lm_head"),
    ],
)
def test_weights_that_do_not_fit_are_named(tiny_checkpoint, tmp_path, damage, names):
    """A tensor that is absent or of another shape is an error with its name, not a crash later."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoint, folder)
    damage(folder)
    config = EngineConfig.from_dict({"model": {"source": str(folder), "max_model_len": 64}})
    spec = config.resolve()
    with pytest.raises(EnvironmentProblem, match=names):
        load_weights(spec.model, spec.device)


def rewrite(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
