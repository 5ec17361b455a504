"""The model's tokenizer and chat template, from a GGUF file's metadata or a Hugging Face folder."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from graphspec.config.model import ModelSpec
from graphspec.errors import EnvironmentProblem, Problem
from graphspec.resolve.checkpoint import locate_checkpoint
from graphspec.resolve.gguf_header import GGUFHeader, read_gguf_header
from graphspec.text import one_of

_CONTROL_TOKEN = 3
_PRE_TOKENIZERS = ("smollm", "gpt-2")


class Tokenizer:
    """Text to token ids and back. `stop_ids` end a generation."""

    def __init__(self, tokenizer: Any, stop_ids: frozenset[int], template: str | None) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self.stop_ids = stop_ids

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; special tokens that it spells out are recognised, none is added."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids` without special tokens."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    @property
    def vocabulary(self) -> Mapping[str, int]:
        """Id by token, special tokens included; in the order of ids, so that the first of two equal texts is the same anywhere."""
        ids: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return dict(sorted(ids.items(), key=lambda item: item[1]))

    def chat(self, message: str) -> str:
        """The prompt that the model's chat template makes of one user message.

        The template comes with the checkpoint and runs in Jinja's sandbox. Raises `EnvironmentProblem` without one.
        """
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        if self._template is None:
            raise EnvironmentProblem(
                Problem(
                    where="chat template",
                    found="none in the checkpoint",
                    wanted="an instruction-tuned checkpoint",
                    hint="leave --chat out: the prompt is then continued as plain text",
                )
            )
        template = ImmutableSandboxedEnvironment().from_string(self._template)
        return template.render(
            messages=[{"role": "user", "content": message}], add_generation_prompt=True
        )


def load_tokenizer(model: ModelSpec) -> Tokenizer:
    """The tokenizer of the checkpoint behind `model.source`."""
    path = locate_checkpoint(model.source)
    return (
        _from_folder(path)
        if os.path.isdir(path)
        else _from_gguf(read_gguf_header(path, texts=True))
    )


def _from_folder(folder: str) -> Tokenizer:
    import tokenizers

    path = os.path.join(folder, "tokenizer.json")
    if not os.path.exists(path):
        raise EnvironmentProblem(
            Problem(where=folder, found="no tokenizer.json", wanted="a folder with its tokenizer")
        )
    config = _json(os.path.join(folder, "config.json"))
    stop = config.get("eos_token_id", [])
    template = _json(os.path.join(folder, "tokenizer_config.json")).get("chat_template")
    return Tokenizer(
        tokenizers.Tokenizer.from_file(path),
        frozenset([stop] if isinstance(stop, int) else stop or []),
        template if isinstance(template, str) else None,
    )


def _json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _from_gguf(header: GGUFHeader) -> Tokenizer:
    """Byte-level BPE from the file's own vocabulary and merges, split as its `pre` says."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as BPETokenizer

    meta = header.metadata
    kind, split = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or split not in _PRE_TOKENIZERS:
        raise EnvironmentProblem(
            Problem(
                where=f"{header.path}: tokenizer",
                found=f"model {kind!r} with pre-tokenizer {split!r}",
                wanted=f"model 'gpt2' with pre-tokenizer {one_of(_PRE_TOKENIZERS)}",
                hint="use the Hugging Face folder of the same model: its tokenizer.json is read as it is",
            )
        )
    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    merges = [tuple(m.split(" ", 1)) for m in meta["tokenizer.ggml.merges"]]
    tokenizer = BPETokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    levels: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    if split == "smollm":
        levels.insert(0, pre_tokenizers.Digits(individual_digits=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(levels)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, k in zip(tokens, kinds, strict=True)
            if k == _CONTROL_TOKEN
        ]
    )
    stop = meta.get("tokenizer.ggml.eos_token_id")
    return Tokenizer(
        tokenizer,
        frozenset() if stop is None else frozenset([stop]),
        meta.get("tokenizer.chat_template"),
    )
