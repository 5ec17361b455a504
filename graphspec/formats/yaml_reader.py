"""YAML to a `Document`: duplicate keys refused, lines kept, depth and size bounded, no object ever constructed."""

from typing import Any

import yaml

from graphspec.errors import Problem, SpecError
from graphspec.formats.document import Document, Path
from graphspec.text import show

_MAX_DEPTH = 32
_MAX_NODES = 100_000
_STANDARD = "tag:yaml.org,2002:"
_TAGS = {
    yaml.MappingNode: frozenset({_STANDARD + "map"}),
    yaml.SequenceNode: frozenset({_STANDARD + "seq"}),
    yaml.ScalarNode: frozenset(
        _STANDARD + kind for kind in ("null", "bool", "int", "float", "str", "timestamp")
    ),
}


def read_yaml(text: str, source: str) -> Document:
    """The document that `text` holds. Raises `SpecError` with all duplicate or unusable keys, or the syntax error."""
    builder = _Builder(source)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = {} if node is None else builder.build(node, (), 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        raise SpecError(
            Problem(
                where=where,
                found=f"invalid YAML: {error.problem or error.context}",
                wanted="a YAML mapping",
                hint="strings with a colon, a hash or a leading special character need quotes",
            )
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SpecError(
            Problem(where=source, found=f"unreadable YAML: {error}", wanted="a YAML mapping")
        ) from None
    if builder.problems:
        raise SpecError(builder.problems)
    return Document(source=source, data=data, lines=builder.lines)


class _Builder:
    """Turns YAML nodes into plain data. Scalars go through PyYAML's own safe constructors."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []
        self._nodes = 0
        self._scalars = yaml.constructor.SafeConstructor()

    def build(self, node: yaml.Node, path: Path, depth: int) -> Any:
        self._nodes += 1
        if depth > _MAX_DEPTH or self._nodes > _MAX_NODES:
            # An alias that contains itself never ends, and nested aliases multiply.
            raise ValueError(f"more than {_MAX_DEPTH} levels or {_MAX_NODES} values")
        self.lines[path] = node.start_mark.line + 1
        if node.tag not in _TAGS[type(node)]:
            # Building such a value as if it had no tag would be something else than what was written.
            tag = node.tag.replace(_STANDARD, "!!")
            self._report(self.lines[path], path, f"the tag {tag}", "plain values without tags")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, i), depth + 1) for i, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        try:
            return self._scalars.construct_object(node)
        except (ValueError, LookupError, AttributeError, ArithmeticError):
            # What PyYAML lets through when a value does not fit its tag: a 13th month, !!bool maybe, !!int of nothing.
            kind = node.tag.replace(_STANDARD, "")
            line = node.start_mark.line + 1
            self._report(line, path, show(node.value), f"text that reads as {kind}")
            return None

    def _mapping(self, node: yaml.MappingNode, path: Path, depth: int) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _STANDARD + "str":
                kind = key_node.tag.replace(_STANDARD, "")
                shown = f" {key_node.value!r}" if isinstance(key_node, yaml.ScalarNode) else ""
                self._report(line, path, f"a key{shown} of kind {kind}", "keys that are strings")
                continue
            key = key_node.value
            if key in data:
                first = self.lines[(*path, key)]
                self._report(
                    line,
                    (*path, key),
                    f"a second value (the first is on line {first})",
                    "one value a key",
                )
                continue
            data[key] = self.build(value_node, (*path, key), depth + 1)
            self.lines[(*path, key)] = line
        return data

    def _report(self, line: int, path: Path, found: str, wanted: str) -> None:
        where = ".".join(map(str, path))
        self.problems.append(
            Problem(where=f"{self.source}:{line}: {where}".rstrip(": "), found=found, wanted=wanted)
        )
