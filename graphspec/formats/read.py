"""A config file, or standard input, to an `EngineConfig`."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from graphspec.config.engine import EngineConfig
from graphspec.errors import Problem, SpecError
from graphspec.formats.document import Document
from graphspec.formats.yaml_reader import read_yaml
from graphspec.speculators.registry import speculator_config_class
from graphspec.text import show

_MAX_BYTES = 4 << 20


def read_document(path: str) -> Document:
    """What the file at `path` (``-``: standard input) says. Raises `SpecError` when it cannot be read."""
    source = "<standard input>" if path == "-" else path
    try:
        if path == "-":
            raw = sys.stdin.buffer.read(_MAX_BYTES + 1)
        else:
            with open(path, "rb") as file:
                raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(raw) > _MAX_BYTES:
        raise SpecError(
            Problem(where=source, found=f"more than {_MAX_BYTES} bytes", wanted="a config file")
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(
            Problem(
                where=source,
                found=f"a byte that is not UTF-8 at offset {error.start}",
                wanted="UTF-8 text",
                hint="save the file as UTF-8",
            )
        ) from None
    return read_yaml(text, source)


def _unreadable(path: str, error: OSError) -> SpecError:
    if isinstance(error, FileNotFoundError):
        folder = os.path.dirname(path) or "."
        names = sorted(n for n in _listing(folder) if n.endswith((".yaml", ".yml")))
        hint = (
            f"in {folder}: {', '.join(names[:8])}"
            if names
            else f"the working folder is {os.getcwd()}"
        )
        return SpecError(
            Problem(where=path, found="no such file", wanted="a config file", hint=hint)
        )
    if isinstance(error, IsADirectoryError):
        return SpecError(
            Problem(where=path, found="a folder", wanted="a config file", hint="name a file in it")
        )
    return SpecError(
        Problem(
            where=path,
            found=f"a file that cannot be read: {error.strerror}",
            wanted="a readable file",
        )
    )


def _listing(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def config_of(document: Document) -> EngineConfig:
    """The config that a document describes. Problems carry file and line."""
    if not isinstance(document.data, dict):
        raise document.locate(
            [Problem(where="", found=show(document.data), wanted="a mapping of sections")]
        )
    try:
        return EngineConfig.from_dict(document.data)
    except SpecError as error:
        raise document.locate([*error.problems, *_unknown_method(document.data)]) from None


def _unknown_method(data: Mapping[str, Any]) -> Sequence[Problem]:
    """The problem of an unknown drafting method. Resolution checks the name, and a config with other problems never
    gets there, so its reader would learn of it only in a second round."""
    section = data.get("speculative")
    method = section.get("method") if isinstance(section, Mapping) else None
    if isinstance(method, str):
        try:
            speculator_config_class(method)
        except SpecError as error:
            return error.problems
    return ()
