"""`write_config`: a config as YAML, TOML or JSON that reads back as equal data."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Literal

import yaml

from graphspec.config.structure import unstructure
from graphspec.errors import Problem, SpecError
from graphspec.fields import is_config_class
from graphspec.formats.document import MAX_DEPTH, MAX_DIGITS, Path, dotted, is_unicode
from graphspec.formats.yaml_reader import trap
from graphspec.text import one_of, show

Kind = Literal["yaml", "toml", "json"]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST_ROW = 16


def write_config(config: Any, kind: Kind) -> str:
    """The text of a config object, or of plain data with a mapping at its root.

    TOML has no null: entries of mappings that are None are left out there. Raises `SpecError` with the paths of all
    values that the format cannot hold.

    >>> print(write_config({"model": {"source": "m"}, "table": [[1, 8, 4]]}, "yaml"), end="")
    model:
      source: m
    table:
    - [1, 8, 4]
    """
    writers = {"yaml": _yaml, "toml": _toml, "json": _json}
    if kind not in writers:
        raise SpecError(Problem(where="kind", found=show(kind), wanted=one_of(writers)))
    data = unstructure(config) if is_config_class(type(config)) else config
    copy = _Copy(without_null=kind == "toml")
    plain = copy.of(data, ())
    if not isinstance(data, Mapping):
        copy.problems.insert(0, Problem(where="", found=show(data), wanted="a mapping of sections"))
    if copy.problems:
        raise SpecError(copy.problems)
    return writers[kind](plain)


class _Copy:
    """Copies plain data into dicts and lists of its own, and notes what no format can hold."""

    def __init__(self, *, without_null: bool) -> None:
        self.problems: list[Problem] = []
        self._without_null = without_null

    def of(self, value: Any, path: Path) -> Any:
        if len(path) > MAX_DEPTH:
            self._report(path, value, f"at most {MAX_DEPTH} levels of nesting")
            return None
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if isinstance(value, list | tuple):
            return [self.of(inner, (*path, i)) for i, inner in enumerate(value)]
        if value is None and self._without_null:
            hint = "TOML has no null: only a field of a mapping can be left out"
            self._report(path, value, "a value in each item of a list", hint)
        elif type(value) is float and not math.isfinite(value):
            self._report(path, value, "a finite number")
        elif type(value) is int and abs(value) >= 10**MAX_DIGITS:
            self._report(path, value, f"at most {MAX_DIGITS} digits")
        elif type(value) is str and not is_unicode(value):
            self._report(path, value, "whole Unicode characters")
        elif value is not None and type(value) not in (bool, int, float, str):
            self._report(path, value, "plain data")
        return value

    def _mapping(self, value: Mapping[Any, Any], path: Path) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, inner in value.items():
            if type(key) is not str or not is_unicode(key):
                self._report(path, key, "keys that are strings")
            elif inner is not None or not self._without_null:
                made[key] = self.of(inner, (*path, key))
        return made

    def _report(self, path: Path, value: Any, wanted: str, hint: str = "") -> None:
        problem = Problem(where=dotted(path), found=show(value), wanted=wanted, hint=hint)
        self.problems.append(problem)


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, without aliases, with quotes where a plain scalar would be a trap."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = '"' if trap(text) or not text.isprintable() else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _row(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
    short = len(items) <= _LONGEST_ROW and all(type(item) is int for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=short)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(list, _row)


def _yaml(data: Mapping[str, Any]) -> str:
    # Folded lines are the one part of YAML's text that does not survive every reader.
    text: str = yaml.dump(
        data,
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=math.inf,
    )
    return text


def _toml(data: Mapping[str, Any]) -> str:
    return "\n\n".join(_tables(data, ())) + "\n"


def _tables(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    """The blocks of a table and of the tables in it, each with its header."""
    inner = {key: value for key, value in table.items() if isinstance(value, dict)}
    lines = [f"{_key(k)} = {_value(v)}" for k, v in table.items() if k not in inner]
    if path and (lines or not inner):
        lines.insert(0, f"[{'.'.join(map(_key, path))}]")
    blocks = ["\n".join(lines)] if lines else []
    for key, value in inner.items():
        blocks += _tables(value, (*path, key))
    return blocks


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _quoted(key)


def _quoted(text: str) -> str:
    # A TOML string takes the escapes of JSON, and wants one more character escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, dict):
        pairs = ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items())
        return f"{{{pairs}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return _quoted(value)
    return str(value).lower() if isinstance(value, bool) else repr(value)
