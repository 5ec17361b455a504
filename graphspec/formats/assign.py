"""`assign`: one value of a document replaced from the command line, as ``--set path=value`` asks."""

import re
from collections.abc import Mapping
from typing import Any, NoReturn

import attrs

from graphspec.errors import Problem, SpecError
from graphspec.formats.document import MAX_DEPTH, Document, Path, dotted, short
from graphspec.formats.yaml_reader import read_yaml
from graphspec.text import plural, show

_PATH = re.compile(r"[^.\[\]\s]+(\[[0-9]{1,9}\])*(\.[^.\[\]\s]+(\[[0-9]{1,9}\])*)*")
_STEP = re.compile(r"([^.\[\]]+)|\[([0-9]+)\]")
_INDEX = re.compile(r"[0-9]{1,9}")


def assign(document: Document, text: str) -> Document:
    """The document with the value that `text` gives to a path; the given one stays as it is.

    The value is read as YAML, as strictly as a file. Mappings on the way are created; an item of a list must exist and
    is written ``a[0]`` or ``a.0``. Raises `SpecError` with ``--set`` and `text` as the place.

    >>> empty = Document(source="engine.yaml", data={}, lines={})
    >>> assign(empty, "speculative.num_speculative_tokens=3").data
    {'speculative': {'num_speculative_tokens': 3}}
    """
    change = _Change(f"--set {short(text)}")
    name, equals, written = text.partition("=")
    if not equals:
        change.fail("no = in it", "path=value, such as scheduler.max_num_seqs=8")
    steps = change.steps(name.strip())
    path, data = change.put(document.data, steps, change.value(written), ())
    kept = {p: line for p, line in document.lines.items() if p[: len(path)] != path}
    origins = {p: origin for p, origin in document.origins.items() if p[: len(path)] != path}
    known = kept.keys() | origins.keys()
    made = [path[:i] for i in range(1, len(path)) if path[:i] not in known]
    origins |= dict.fromkeys([*made, path], change.origin)
    return attrs.evolve(document, data=data, lines=kept, origins=origins)


@attrs.frozen
class _Change:
    """One option of the command line, which every problem names as its place."""

    origin: str

    def fail(self, found: str, wanted: str, hint: str = "") -> NoReturn:
        raise SpecError(Problem(where=self.origin, found=found, wanted=wanted, hint=hint))

    def steps(self, name: str) -> Path:
        if not _PATH.fullmatch(name):
            found = f"the path {short(name)!r}" if name else "no path before ="
            self.fail(found, "a dotted path, such as model.dtype or a[0].b")
        steps = tuple(int(i) if i else part for part, i in _STEP.findall(name))
        if len(steps) > MAX_DEPTH:
            self.fail(f"a path of {len(steps)} parts", f"at most {MAX_DEPTH}")
        return steps

    def value(self, written: str) -> Any:
        try:
            read = read_yaml(written, self.origin)
        except SpecError as error:
            raise SpecError(attrs.evolve(p, where=self.origin) for p in error.problems) from None
        if not read.lines:
            hint = 'write null for nothing, "" in quotes of its own for empty text'
            self.fail("no value after =", "a value", hint)
        return read.data

    def put(self, around: Any, steps: Path, value: Any, path: Path) -> tuple[Path, Any]:
        """The whole path, in the spelling of the document, and a copy of `around` with the value in place."""
        if not steps:
            return path, value
        made: Any
        if isinstance(around, list):
            key: str | int = self._index(around, steps[0], path)
            made = list(around)
            inner = made[key]
        elif isinstance(steps[0], str) and (around is None or isinstance(around, Mapping)):
            made = dict(around or {})
            key = _spelling(made, steps[0])
            inner = made.get(key)
        else:
            wanted = "a list" if isinstance(steps[0], int) else "a mapping"
            self.fail(f"{show(around)} at {dotted(path) or 'the top'}", wanted)
        path, made[key] = self.put(inner, steps[1:], value, (*path, key))
        return path, made

    def _index(self, around: list[Any], step: str | int, path: Path) -> int:
        size = f"a list of {plural(len(around), 'value')} at {dotted(path) or 'the top'}"
        if isinstance(step, str) and not _INDEX.fullmatch(step):
            self.fail(f"{short(step)!r} for {size}", "an index", f"write {dotted((*path, 0))}")
        if int(step) >= len(around):
            hint = "set the whole list to make it longer"
            self.fail(f"index {step} for {size}", "an index that is there, from 0", hint)
        return int(step)


def _spelling(mapping: Mapping[str, Any], name: str) -> str:
    """The key of `mapping` that `name` means: a hyphen stands for an underscore."""
    if name in mapping:
        return name
    folded = name.replace("-", "_")
    return next((key for key in mapping if key.replace("-", "_") == folded), name)
