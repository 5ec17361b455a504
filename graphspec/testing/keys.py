"""Assertions on keys, for an engine's own tests. Each says which factors or fields differ, and why."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from graphspec.fields import FieldPolicy, Stage, is_config_class, policies
from graphspec.keys import encoding
from graphspec.keys.factors import key_text
from graphspec.keys.golden import (
    GoldenFile,
    advice,
    changes,
    drift,
    golden_key,
    golden_of,
    read_goldens,
    write_goldens,
)
from graphspec.text import plural, show

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from graphspec.cache.units import CompileUnit, UnitSource
    from graphspec.resolve.spec import EngineSpec

UPDATE = "pytest --graphspec-update-goldens"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@attrs.frozen(kw_only=True)
class GoldenAssertion:
    """Compares keys with golden files in `folder`, one file a name; with `update` it writes them."""

    folder: Path
    update: bool = False

    def __call__(self, section: Any, name: str) -> None:
        """Fails when `section`, usually an `EngineSpec`, has other keys than the golden `name`, factor by factor."""
        __tracebackhide__ = True
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} cannot name a golden: it takes letters, digits, dots, dashes and underscores"
            )
        path, now = self.folder / f"{name}.json", golden_of(section)
        if self.update:
            write_goldens(str(path), GoldenFile(epoch=encoding.EPOCH, goldens={name: now}))
            return
        if not path.exists():
            raise AssertionError(f"there is no golden {path}; write it with\n  {UPDATE}")
        file = read_goldens(str(path))
        lines = list(drift(name, file.goldens[name], now))
        if lines or file.epoch != encoding.EPOCH:
            raise AssertionError("\n".join([*lines, advice(file.epoch, UPDATE)]))


def assert_moves_key(spec: Any, other: Any, stage: Stage) -> None:
    """Fails when both have one key for `stage`, and lists the fields in which they differ and why no key has them."""
    __tracebackhide__ = True
    one = golden_key(key_text(spec, stage))
    if one != golden_key(key_text(other, stage)):
        return
    found = [
        f"  {path}: {show(before)} -> {show(after)}; {_why(policy, stage)}"
        for path, before, after, policy in _differences(spec, other)
    ]
    raise AssertionError(
        "\n".join([f"both have the {stage.name} key {one.hash}", *(found or ["  they are equal"])])
    )


def assert_keeps_key(spec: Any, other: Any, stage: Stage) -> None:
    """Fails when the two have different keys for `stage`, and lists the factors that differ."""
    __tracebackhide__ = True
    one, two = (golden_key(key_text(s, stage)) for s in (spec, other))
    if one == two:
        return
    found = [f"  {change}" for change in changes(one, two)]
    raise AssertionError(
        "\n".join([f"the {stage.name} key changed, {one.hash} -> {two.hash}", *found])
    )


def _differences(one: Any, other: Any, path: str = "") -> Iterator[tuple[str, Any, Any, Any]]:
    """Path, both values and policies of each field in which two objects of one class differ."""
    yield from _below(one, other, path, ())


def _below(
    one: Any, other: Any, path: str, along: tuple[FieldPolicy, ...]
) -> Iterator[tuple[str, Any, Any, tuple[FieldPolicy, ...]]]:
    if type(one) is not type(other):
        yield path or "class", type(one).__qualname__, type(other).__qualname__, along
        return
    for name, policy in policies(type(one)).items():
        before, after = getattr(one, name), getattr(other, name)
        place, chain = f"{path}.{name}".lstrip("."), (*along, policy)
        if is_config_class(type(before)) and type(before) is type(after):
            yield from _below(before, after, place, chain)
        elif (type(before), before) != (type(after), after):
            yield place, before, after, chain


def _why(along: Sequence[FieldPolicy], stage: Stage) -> str:
    for policy in along:
        if policy.stage is None:
            return f"unkeyed: {policy.reason}"
        if not stage.covers(policy.stage):
            return f"a {policy.stage.name} field, which the {stage.name} key leaves out"
    return f"declared for the {stage.name} key"
