"""The model's own greedy texts with its hidden states, by way of the engine's export of hidden states."""

import random
from collections.abc import Sequence
from pathlib import Path

import attrs
import torch
from head_prompts import KINDS, prompts

from graphspec.capture.warmup import make_ready
from graphspec.config.engine import EngineConfig
from graphspec.engine.generate import Generator
from graphspec.engine.llama import rms_norm
from graphspec.engine.sampling import SamplingParams
from graphspec.engine.tokenizer import load_tokenizer

LONGEST, NEW, BATCH, CHUNK = 256, 144, 32, 64
"""Tokens of a text at most, new tokens at most, requests at once, and prompts of one file."""


@attrs.frozen(kw_only=True, eq=False)
class Text:
    """tokens: [n] int64, of which the first `prompt` were given; states: [n - 1, H], the target's after its final norm."""

    tokens: torch.Tensor
    prompt: int
    states: torch.Tensor
    kind: str = ""


class Recorder:
    """An engine that writes down what it computes."""

    def __init__(self, model: str) -> None:
        spec = EngineConfig.from_dict({"model": {"source": model}}).resolve()
        self.spec = EngineConfig.from_dict(
            {
                "model": {
                    "source": model,
                    "dtype": "float32",
                    "max_model_len": LONGEST,
                    "hf_overrides": {
                        "eagle_aux_hidden_state_layer_ids": [spec.model.num_hidden_layers - 1]
                    },
                },
                "scheduler": {"max_num_seqs": BATCH, "max_num_batched_tokens": 512},
                "kv_cache": {"block_size": 16, "num_blocks": 1 + BATCH * LONGEST // 16},
                # Each step has other rows and other requests; graphs would only cost their capture.
                "compilation": {"cudagraph_mode": "NONE"},
                "speculative": {"method": "extract_hidden_states", "num_speculative_tokens": 1},
                "device": {"target": "cpu"},
            }
        ).resolve()
        ready = make_ready(self.spec)
        self.weights = ready.source.weights
        self.tokenizer = load_tokenizer(self.spec.model)
        self._exported: dict[int, torch.Tensor] = {}
        self._engine = Generator(
            ready.source,
            ready.manager,
            end_of_text=self.tokenizer.stop_ids,
            export=lambda at, tensors: self._exported.update({at: tensors["hidden_states"]}),
        )

    def record(self, asked: Sequence[Sequence[int]], kinds: Sequence[str]) -> list[Text]:
        """A text of each prompt, in order."""
        self._exported.clear()
        made = self._engine.generate(
            asked, [SamplingParams(max_tokens=min(NEW, LONGEST - len(p))) for p in asked]
        )
        # Ids rise with arrival.
        states = [self._exported[at][:, 0] for at in sorted(self._exported)]
        norm, eps = self.weights.final_norm, self.spec.model.rms_norm_eps
        texts = [
            Text(
                tokens=torch.tensor([*prompt, *one.tokens]),
                prompt=len(prompt),
                states=rms_norm(rows, norm, eps),
                kind=kind,
            )
            for prompt, one, rows, kind in zip(asked, made, states, kinds, strict=True)
        ]
        assert all(len(t.states) == len(t.tokens) - 1 for t in texts)
        return texts

    def asked(self, count: int, seed: int, *, held: bool) -> tuple[list[list[int]], list[str]]:
        """Token ids and kinds of prompts, those that leave room for an answer."""
        ids, kinds = [], []
        for kind, text, chat in prompts(count, seed, held=held):
            tokens = self.tokenizer.encode(self.tokenizer.chat(text) if chat else text)
            if len(tokens) <= LONGEST - 32:
                ids.append(tokens)
                kinds.append(kind)
        return ids, kinds


def store(path: Path, texts: Sequence[Text]) -> None:
    """One file, whole or not there."""
    from safetensors.torch import save_file

    names = list(KINDS)
    part = path.with_suffix(".part")
    save_file(
        {
            "tokens": torch.cat([t.tokens for t in texts]),
            "states": torch.cat([t.states for t in texts]).contiguous(),
            "lengths": torch.tensor([len(t.tokens) for t in texts]),
            "prompts": torch.tensor([t.prompt for t in texts]),
            "kinds": torch.tensor([names.index(t.kind) for t in texts]),
        },
        part,
    )
    part.rename(path)


def read(folder: Path, name: str) -> list[Text]:
    """All texts that were stored under this name."""
    from safetensors.torch import load_file

    names, texts = list(KINDS), []
    for path in sorted(folder.glob(f"{name}-*.safetensors")):
        held = load_file(path)
        lengths = held["lengths"].tolist()
        rows = held["states"].split([n - 1 for n in lengths])
        for tokens, states, prompt, kind in zip(
            held["tokens"].split(lengths),
            rows,
            held["prompts"].tolist(),
            held["kinds"].tolist(),
            strict=True,
        ):
            texts.append(Text(tokens=tokens, states=states, prompt=prompt, kind=names[kind]))
    return texts


def batch(texts: Sequence[Text], size: int, seed: int, step: int) -> list[Text]:
    """The texts of one step of training: a function of seed and step alone, so that a resumed run goes on the same way."""
    return random.Random(f"{seed} {step}").sample(list(texts), min(size, len(texts)))
