"""Golden keys: keys in a file that people review, one readable line a factor, and what differs from them now."""

import contextlib
import enum
import json
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import attrs

from graphspec.errors import EnvironmentProblem, Problem, SpecError
from graphspec.fields import Stage
from graphspec.keys import encoding
from graphspec.keys.compare import first_difference
from graphspec.keys.encoding import DtypeName, EnumName, Record
from graphspec.keys.factors import CLASS, classes_of, compute_hash, factor_tree, flatten
from graphspec.keys.writers import class_name
from graphspec.text import show

FORMAT = 1
"""Number of the file's layout."""

_CLASS = ":class"
_SHOWN = 120


@attrs.frozen(kw_only=True)
class GoldenKey:
    """One key: its hash, and the text of each factor by path."""

    hash: str
    text: Mapping[str, str]


@attrs.frozen(kw_only=True)
class Golden:
    """The keys of one spec by stage. `config` is what they can be made from again; None: the caller has the spec."""

    keys: Mapping[Stage, GoldenKey]
    config: Mapping[str, Any] | None = None


@attrs.frozen(kw_only=True)
class GoldenFile:
    """What a file of goldens says. `checkpoints` has the configs of the models that the configs name."""

    epoch: int
    goldens: Mapping[str, Golden]
    checkpoints: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class FactorChange:
    """One factor that differs: None for a side that does not have it."""

    path: str
    before: str | None
    after: str | None

    @property
    def kind(self) -> str:
        """``appeared``, ``vanished`` or ``changed``."""
        if self.before is None:
            return "appeared"
        return "vanished" if self.after is None else "changed"

    def __str__(self) -> str:
        values = [v for v in (self.before, self.after) if v is not None]
        start = first_difference(self.before or "", self.after or "")
        return f"{self.kind:<9} {self.path}: {' -> '.join(_cut(v, start) for v in values)}"


def _cut(text: str, start: int) -> str:
    """The text, or of a long one the part from shortly before `start`."""
    if len(text) <= _SHOWN:
        return text
    begin = max(0, start - _SHOWN // 4)
    end = begin + _SHOWN
    return f"{'...' if begin else ''}{text[begin:end]}{'...' if end < len(text) else ''}"


def golden_of(section: Any, config: Mapping[str, Any] | None = None) -> Golden:
    """The keys that `section`, usually an `EngineSpec`, has now."""
    return Golden(keys={stage: golden_key(section, stage) for stage in Stage}, config=config)


def golden_key(section: Any, stage: Stage) -> GoldenKey:
    """The key that `section` has now for one stage."""
    factors = factor_tree(section, stage)
    lines = {path: written(value) for path, value in flatten(factors)}
    lines |= {f"{path}{_CLASS}": written(name) for path, name in classes_of(factors)}
    lines["class"] = written(factors[CLASS])
    return GoldenKey(hash=compute_hash(section, stage), text=dict(sorted(lines.items())))


def written(value: Any) -> str:
    """A factor, live or decoded, as people read it. Values with different encodings never look the same.

    >>> written((1, 1.0, True, "1", None, {"a": ()}))
    '(1, 1.0, true, "1", none, {"a": ()})'
    """
    kind = type(value)
    if kind is str:
        return _quoted(value)
    if kind is int:
        return str(value) if abs(value) < 1 << 63 else hex(value)
    if value is None or kind is bool:
        return str(value).lower()
    if kind is float:
        return repr(value)
    if kind is bytes:
        return f"x'{value.hex()}'"
    if isinstance(value, enum.Enum):
        return _member(value)
    if isinstance(value, EnumName):
        return f"{value.cls}.{value.member}"
    return _written_composite(value)


# A spec has the same names and choices in many places, and a file of goldens has many specs.
@lru_cache(4096)
def _quoted(text: str) -> str:
    # ASCII only: nobody can review what cannot be seen.
    return json.dumps(text)


@lru_cache(4096, typed=True)
def _member(value: enum.Enum) -> str:
    return f"{class_name(type(value))}.{value.name}"


def _written_composite(value: Any) -> str:
    kind = type(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(written, value))}{',' * (len(value) == 1)})"
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, frozenset | set):
        return f"set({', '.join(sorted(map(written, value)))})"
    if isinstance(value, Mapping):
        pairs = sorted((written(k), written(v)) for k, v in value.items())
        return f"{{{', '.join(f'{k}: {v}' for k, v in pairs)}}}"
    if isinstance(value, Record):
        named: Mapping[str, Any] = value.fields
        return f"{value.cls}({', '.join(f'{n}={written(named[n])}' for n in sorted(named))})"
    if attrs.has(kind) and kind is not DtypeName:
        inner = ", ".join(
            f"{n}={written(getattr(value, n))}" for n in sorted(attrs.fields_dict(kind))
        )
        return f"{class_name(kind)}({inner})"
    return value.name if isinstance(value, DtypeName) else str(value)


def changes(before: GoldenKey, after: GoldenKey) -> tuple[FactorChange, ...]:
    """The factors in which two keys differ, by path."""
    paths = sorted(before.text.keys() | after.text.keys())
    pairs = ((p, before.text.get(p), after.text.get(p)) for p in paths)
    return tuple(FactorChange(path=p, before=b, after=a) for p, b, a in pairs if b != a)


def drift(name: str, before: Golden, after: Golden) -> Iterator[str]:
    """What differs between a golden and now, one line each; nothing when both keys are the same.

    What changes both keys is told once, below the COMPILE key.
    """
    told: set[FactorChange] = set()
    for stage in Stage:
        one, other = before.keys[stage], after.keys[stage]
        if one == other:
            continue
        found = changes(one, other)
        if one.hash == other.hash:
            yield f"{name}: the text of the {stage.name} key is not that of its hash: the file was edited by hand"
        else:
            yield f"{name}: the {stage.name} key changed, {one.hash} -> {other.hash}"
        yield from (f"  {change}" for change in found if change not in told)
        if not found:
            yield "  no factor differs: the encoding of keys itself changed"
        elif told.issuperset(found):
            yield "  by the same factors"
        told.update(found)


def advice(epoch: int, lock: str) -> str:
    """What to do about keys that drifted from a file of `epoch`; `lock` is the command that writes it anew."""
    now = encoding.EPOCH
    if epoch != now:
        return f"the goldens are of epoch {epoch} and keys are now of epoch {now}: lock anew with\n  {lock}"
    return (
        f"keys changed while the epoch stayed {now}. Not wanted: undo it. Wanted: raise graphspec.keys.encoding.EPOCH "
        "in the same commit (after a change of your own classes alone: remove the goldens instead), and lock anew with"
        f"\n  {lock}"
    )


def read_goldens(path: str) -> GoldenFile:
    """The goldens in the file at `path`. Raises `SpecError` when it cannot be read or is no such file."""
    try:
        with open(path, "rb") as file:
            data = json.load(file)
        return _file_of(data)
    except (OSError, ValueError, RecursionError) as error:
        found = error.strerror if isinstance(error, OSError) else f"no readable goldens: {error}"
    except (KeyError, TypeError, AttributeError) as error:
        found = f"JSON of another layout ({type(error).__name__}: {error})"
    raise SpecError(
        Problem(
            where=path,
            found=str(found),
            wanted=f"goldens of layout {FORMAT}",
            hint="write them with graphspec keys lock",
        )
    )


def _file_of(data: Any) -> GoldenFile:
    if data["format"] != FORMAT or type(data["epoch"]) is not int:
        raise ValueError(f"layout {show(data['format'])}, epoch {show(data['epoch'])}")
    return GoldenFile(
        epoch=data["epoch"],
        goldens={name: _golden(one) for name, one in data["specs"].items()},
        checkpoints={_plain_name(n): config for n, config in data.get("checkpoints", {}).items()},
    )


def _plain_name(name: str) -> str:
    # The names become folders, and a file that somebody sends must not write anywhere else.
    if not name or name in (".", "..") or set(name) & {"/", "\\", "\0"}:
        raise ValueError(f"a checkpoint named {show(name)}")
    return name


def _golden(data: Any) -> Golden:
    keys: dict[Stage, GoldenKey] = {}
    for stage in Stage:
        key = data[stage.value]
        parts = [line.partition(" = ") for line in key["text"]]
        text = {path: value for path, _, value in parts}
        if "includes" in key:
            text |= keys[Stage(key["includes"])].text
        keys[stage] = GoldenKey(hash=str(key["hash"]), text=dict(sorted(text.items())))
    return Golden(keys=keys, config=data.get("config"))


def write_goldens(path: str, file: GoldenFile) -> None:
    """Writes the file whole or not at all."""
    data: dict[str, Any] = {"format": FORMAT, "epoch": file.epoch}
    if file.checkpoints:
        data["checkpoints"] = dict(file.checkpoints)
    data["specs"] = {name: _plain(golden) for name, golden in file.goldens.items()}
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(temporary, "wb") as out:
            out.write(json.dumps(data, indent=1).encode() + b"\n")
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise EnvironmentProblem(
            Problem(
                where=path, found=f"not writable: {error.strerror}", wanted="a file to write to"
            )
        ) from None


def _plain(golden: Golden) -> dict[str, Any]:
    data: dict[str, Any] = {} if golden.config is None else {"config": dict(golden.config)}
    small, large = golden.keys[Stage.COMPILE], golden.keys[Stage.CAPTURE]
    data[Stage.COMPILE.value] = {"hash": small.hash, "text": _lines(small.text)}
    more = {"hash": large.hash}
    rest = large.text
    if small.text.items() <= large.text.items():
        # Reviewers read each factor once.
        more["includes"] = Stage.COMPILE.value
        rest = {path: value for path, value in large.text.items() if path not in small.text}
    data[Stage.CAPTURE.value] = {**more, "text": _lines(rest)}
    return data


def _lines(text: Mapping[str, str]) -> list[str]:
    return [f"{path} = {value}" for path, value in text.items()]
