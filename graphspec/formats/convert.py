"""Converters by name: another engine's settings from a file or text to a config, and a config to theirs."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from graphspec.config.engine import EngineConfig
from graphspec.errors import Problem, SpecError
from graphspec.formats import sglang, trtllm, vllm
from graphspec.formats.carry import SOURCE, Carried, Grammar, Left, Settings, read_file
from graphspec.formats.deepinfer import from_deepinfer
from graphspec.formats.document import Document
from graphspec.formats.hf import from_hf
from graphspec.formats.json_reader import read_json
from graphspec.formats.read import config_of, read_document
from graphspec.formats.write import write_config
from graphspec.formats.yaml_reader import read_yaml
from graphspec.text import did_you_mean, one_of, show

_MAX_BYTES = 4 << 20
_PROGRAM = re.compile(r"(?:\S*/)?(?:vllm|sglang|python[0-9.]*|exec|export|env)|--?[A-Za-z]\S*")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=\S*")


@attrs.frozen(kw_only=True)
class Converted:
    """A config in the form of one engine, and what was lost or changed on the way from another."""

    text: str
    left: tuple[Left, ...]


def read_foreign(kind: str, text_or_path: str, *, model: str | None = None) -> Carried:
    """The config data of settings of an engine. `text_or_path` is a file, ``-`` for standard input, or the text itself.

    vllm and sglang: a command line, or YAML or JSON by the names of its flags. trtllm: YAML or JSON. deepinfer: lines
    of NAME=value, or JSON. hf: a folder with a config.json. graphspec: a config file. `model` gives the model where
    the settings do not. Raises one `SpecError` with every problem.
    """
    if kind not in SOURCES:
        raise _unknown(kind, SOURCES)
    carried = SOURCES[kind](text_or_path)
    return carried if model is None else _with_model(carried, model)


def write_foreign(kind: str, config: EngineConfig) -> tuple[str, tuple[Left, ...]]:
    """The text that gives a config to an engine, and what it cannot say: a command line for vllm and sglang, YAML for
    trtllm and graphspec."""
    if kind not in TARGETS:
        raise _unknown(kind, TARGETS)
    return TARGETS[kind](config)


def convert(source: str, target: str, text_or_path: str, *, model: str | None = None) -> Converted:
    """Settings of one engine as settings of another: `read_foreign`, then `write_foreign`.

    >>> print(convert("vllm", "sglang", "vllm serve m -tp 2 --enforce-eager").text[:41])
    sglang serve --model-path m --dtype float
    """
    carried = read_foreign(source, text_or_path, model=model)
    if "source" not in carried.data.get("model", {}):
        hint = "give the model beside the settings"
        raise SpecError(Problem(where=SOURCE, found="nothing", wanted="the model", hint=hint))
    text, left = write_foreign(target, EngineConfig.from_dict(carried.data))
    return Converted(text=text, left=carried.left + left)


def _unknown(kind: str, known: Mapping[str, Any]) -> SpecError:
    hint = did_you_mean(kind, known)
    return SpecError(Problem(where="engine", found=show(kind), wanted=one_of(known), hint=hint))


def _with_model(carried: Carried, model: str) -> Carried:
    section = carried.data.get("model", {})
    given = section.get("source", model)
    if given != model:
        raise SpecError(
            Problem(where=SOURCE, found=show(model), wanted=f"{given}, as the settings say")
        )
    return Carried(
        data={**carried.data, "model": {**section, "source": model}},
        left=tuple(left for left in carried.left if left.where != SOURCE),
    )


def _is_text(text_or_path: str) -> bool:
    # The name of a file that is missing is one word, as no settings are.
    return re.search(r"[\s={]", text_or_path) is not None and not os.path.exists(text_or_path)


def _text(text_or_path: str) -> tuple[str, str]:
    """The text, and what to call it in problems."""
    if text_or_path == "-":
        raw = sys.stdin.buffer.read(_MAX_BYTES + 1) if sys.stdin else b""
        return _decoded(raw, "<standard input>"), "<standard input>"
    if _is_text(text_or_path):
        return text_or_path, "<text>"
    try:
        with open(text_or_path, "rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError):
        # It says better what is wrong, and what is there instead.
        read_document(text_or_path)
        raise
    return _decoded(raw, text_or_path), text_or_path


def _decoded(raw: bytes, source: str) -> str:
    wanted = f"at most {_MAX_BYTES} bytes of UTF-8 text"
    try:
        if len(raw) <= _MAX_BYTES:
            return raw.decode("utf-8-sig")
        found = "more bytes"
    except UnicodeDecodeError as error:
        found = f"a byte that is not UTF-8 at offset {error.start}"
    raise SpecError(Problem(where=source, found=found, wanted=wanted))


def _words(text: str, source: str) -> list[str] | None:
    """The words of a command line, or None when the text is none."""
    lines = (line.split() for line in text.splitlines())
    first = next((words[0] for words in lines if words and not words[0].startswith("#")), "")
    if not _PROGRAM.fullmatch(first) and not _ASSIGNMENT.fullmatch(first):
        return None
    try:
        return shlex.split(re.sub(r"\\\r?\n", " ", text), comments=True)
    except ValueError as error:
        found = f"a command line that does not end: {error}"
        raise SpecError(Problem(where=source, found=found, wanted="quotes that close")) from None


def _document(text: str, source: str) -> Document:
    return (read_json if text.lstrip().startswith("{") else read_yaml)(text, source)


def _settings(
    document: Document, grammar: Grammar, carry: Callable[[Settings], Carried]
) -> Carried:
    settings = read_file(document, grammar)
    try:
        return carry(settings)
    except SpecError as error:
        raise document.locate(error.problems) from None


def _read_vllm(text_or_path: str) -> Carried:
    text, source = _text(text_or_path)
    words = _words(text, source)
    if words is not None:
        return vllm.from_vllm(words)
    return _settings(_document(text, source), vllm.GRAMMAR, vllm.from_settings)


def _read_sglang(text_or_path: str) -> Carried:
    text, source = _text(text_or_path)
    words = _words(text, source)
    if words is not None:
        return sglang.from_sglang(words)
    return _settings(_document(text, source), sglang.GRAMMAR, sglang.from_settings)


def _read_trtllm(text_or_path: str) -> Carried:
    text, source = _text(text_or_path)
    json_text = text.lstrip().startswith("{")
    document = _document(text, source) if json_text else trtllm.read_trtllm(text, source)
    return _settings(document, Grammar(), trtllm.from_settings)


def _read_deepinfer(text_or_path: str) -> Carried:
    text, source = _text(text_or_path)
    if not text.lstrip().startswith("{"):
        return from_deepinfer(_variables(text, source))
    document = read_json(text, source)
    try:
        return from_deepinfer(document.data)
    except SpecError as error:
        raise document.locate(error.problems) from None


def _variables(text: str, source: str) -> Mapping[str, str]:
    values: dict[str, str] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{source}:{number}"
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            problems.append(Problem(where=where, found=show(line), wanted="quotes that close"))
            continue
        for word in words[1:] if words[:1] == ["export"] else words:
            name, equals, value = word.partition("=")
            if not equals or not name.isidentifier():
                problems.append(Problem(where=where, found=show(word), wanted="NAME=value"))
            elif name in values:
                found, wanted = "a second value", "one value for each name"
                problems.append(Problem(where=f"{where}: {name}", found=found, wanted=wanted))
            values.setdefault(name, value)
    if problems:
        raise SpecError(problems)
    return values


def _read_graphspec(text_or_path: str) -> Carried:
    inline = _is_text(text_or_path)
    document = _document(text_or_path, "<text>") if inline else read_document(text_or_path)
    config_of(document)
    return Carried(data=document.data, left=())


def _write_vllm(config: EngineConfig) -> tuple[str, tuple[Left, ...]]:
    carried = vllm.to_vllm(config)
    return _line(vllm.vllm_command(carried.data)), carried.left


def _write_sglang(config: EngineConfig) -> tuple[str, tuple[Left, ...]]:
    carried = sglang.to_sglang(config)
    return _line(sglang.sglang_command(carried.data)), carried.left


def _write_trtllm(config: EngineConfig) -> tuple[str, tuple[Left, ...]]:
    carried = trtllm.to_trtllm(config)
    return write_config(carried.data, "yaml"), carried.left


def _write_graphspec(config: EngineConfig) -> tuple[str, tuple[Left, ...]]:
    return write_config(config, "yaml"), ()


def _line(words: Sequence[str]) -> str:
    return shlex.join(words) + "\n"


SOURCES: Mapping[str, Callable[[str], Carried]] = {
    "vllm": _read_vllm,
    "sglang": _read_sglang,
    "trtllm": _read_trtllm,
    "deepinfer": _read_deepinfer,
    "hf": from_hf,
    "graphspec": _read_graphspec,
}
"""Name of an engine or format -> what reads its settings from a file, a folder or text."""

TARGETS: Mapping[str, Callable[[EngineConfig], tuple[str, tuple[Left, ...]]]] = {
    "vllm": _write_vllm,
    "sglang": _write_sglang,
    "trtllm": _write_trtllm,
    "graphspec": _write_graphspec,
}
"""Name of an engine or format -> what writes a config for it."""
