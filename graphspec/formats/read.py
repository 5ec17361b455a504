"""A config file, or standard input, to an `EngineConfig`."""

import os
import sys

from graphspec.config.engine import EngineConfig
from graphspec.errors import Problem, SpecError
from graphspec.formats.document import Document
from graphspec.formats.json_reader import read_json
from graphspec.formats.toml_reader import read_toml
from graphspec.formats.yaml_reader import read_yaml
from graphspec.text import show

_MAX_BYTES = 4 << 20
_READERS = {".yaml": read_yaml, ".yml": read_yaml, ".toml": read_toml, ".json": read_json}


def read_document(path: str) -> Document:
    """What the file at `path` (``-``: standard input) says. Raises `SpecError` when it cannot be read.

    The suffix says whether it is YAML, TOML or JSON. Without a known one, text that begins with ``{`` is JSON and any
    other is YAML.
    """
    source = "<standard input>" if path == "-" else path
    text = _text(_bytes(path, source), source)
    read = _READERS.get(os.path.splitext(path)[1].lower())
    if read is None:
        read = read_json if text.lstrip().startswith("{") else read_yaml
    return read(text, source)


def _bytes(path: str, source: str) -> bytes:
    try:
        if path == "-":
            # There is no stream at all when the shell closed it (<&-).
            raw = sys.stdin.buffer.read(_MAX_BYTES + 1) if sys.stdin else b""
        else:
            with open(path, "rb") as file:
                raw = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise _unreadable(source, error) from None
    if len(raw) > _MAX_BYTES:
        raise SpecError(
            Problem(where=source, found=f"more than {_MAX_BYTES} bytes", wanted="a config file")
        )
    return raw


def _text(raw: bytes, source: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(
            Problem(
                where=source,
                found=f"a byte that is not UTF-8 at offset {error.start}",
                wanted="UTF-8 text",
                hint="save the file as UTF-8",
            )
        ) from None


def _unreadable(path: str, error: OSError | ValueError) -> SpecError:
    if isinstance(error, FileNotFoundError):
        folder = os.path.dirname(path) or "."
        names = sorted(n for n in _listing(folder) if n.lower().endswith(tuple(_READERS)))
        hint = (
            f"in {folder}: {', '.join(names[:8])}"
            if names
            else f"no file in {folder} ends in {', '.join(_READERS)}{_working_folder()}"
        )
        return SpecError(
            Problem(where=path, found="no such file", wanted="a config file", hint=hint)
        )
    if isinstance(error, IsADirectoryError):
        return SpecError(
            Problem(where=path, found="a folder", wanted="a config file", hint="name a file in it")
        )
    # A path with a NUL is a ValueError; any other failure has the system's own words.
    words = error.strerror if isinstance(error, OSError) else str(error)
    return SpecError(
        Problem(where=path, found=f"a file that cannot be read: {words}", wanted="a readable file")
    )


def _listing(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _working_folder() -> str:
    try:
        return f"; the working folder is {os.getcwd()}"
    except OSError:
        # It was removed while we stand in it.
        return ""


def config_of(document: Document) -> EngineConfig:
    """The config that a document describes. Problems carry file and line."""
    if not isinstance(document.data, dict):
        raise document.locate(
            [Problem(where="", found=show(document.data), wanted="a mapping of sections")]
        )
    try:
        return EngineConfig.from_dict(document.data)
    except SpecError as error:
        raise document.locate(error.problems) from None
