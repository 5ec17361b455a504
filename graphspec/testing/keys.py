"""Assertions on keys, for an engine's own tests. Each says which factors or fields differ, and why."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from graphspec.errors import CompileError, GraphspecError, UndeclaredFactorError
from graphspec.fields import Stage
from graphspec.keys import encoding
from graphspec.keys.explain import differences
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

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from graphspec.cache.units import CompileUnit, UnitSource
    from graphspec.resolve.spec import EngineSpec
    from graphspec.testing.sides import Machine

    Program = Callable[[EngineSpec], UnitSource] | Sequence[CompileUnit]
    """A program's factory, or units that are the same for every spec."""

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
        file = read_goldens(str(path)) if path.exists() else None
        if file is None or name not in file.goldens:
            raise AssertionError(f"there is no golden {name} in {path}; write it with\n  {UPDATE}")
        lines = list(drift(name, file.goldens[name], now))
        if lines or file.epoch != encoding.EPOCH:
            raise AssertionError("\n".join([*lines, advice(file.epoch, UPDATE)]))


def assert_moves_key(spec: Any, other: Any, stage: Stage) -> None:
    """Fails when both have one key for `stage`, and lists the fields in which they differ and why no key has them."""
    __tracebackhide__ = True
    one = golden_key(spec, stage)
    if one != golden_key(other, stage):
        return
    found = _told(spec, other) or ["  they are equal"]
    raise AssertionError("\n".join([f"both have the {stage.name} key {one.hash}", *found]))


def assert_keeps_key(spec: Any, other: Any, stage: Stage) -> None:
    """Fails when the two have different keys for `stage`, and lists the factors that differ."""
    __tracebackhide__ = True
    one, two = (golden_key(s, stage) for s in (spec, other))
    if one == two:
        return
    found = [f"  {change}" for change in changes(one, two)]
    raise AssertionError(
        "\n".join([f"the {stage.name} key changed, {one.hash} -> {two.hash}", *found])
    )


def _told(one: Any, other: Any) -> list[str]:
    return [
        f"  {d.difference} ({', '.join(s.name for s in d.moves) or 'in no key'}): {d.why}"
        for d in differences(one, other)
    ]


def assert_key_sound(
    program: "Program", strategy: "SearchStrategy[Any]", *, max_examples: int = 20
) -> None:
    """Fails when two specs give a unit one key and two graphs: whichever came first, the other would run its graph.

    `strategy` gives specs, of which pairs are drawn, or pairs: tuples, or what `spec_pairs` gives. Units with equal
    keys are traced on fake tensors, so no device and no weights are needed. A spec that the program refuses is passed
    over, and so is a unit that traces for neither. One that reads outside its scope is an `UndeclaredFactorError`.
    """
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    from graphspec.testing.described import cuda_traceable
    from graphspec.testing.sides import Machine

    machine = Machine()

    @settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def sound(data: st.DataObject) -> None:
        one, other = _pair(data.draw(strategy), lambda: data.draw(strategy))
        _compare(program, one, other, machine)

    with cuda_traceable():
        sound()


def _pair(drawn: Any, again: Callable[[], Any]) -> "tuple[EngineSpec, EngineSpec]":
    if isinstance(drawn, tuple):
        return drawn[0], drawn[1]
    if hasattr(drawn, "other"):
        return drawn.one, drawn.other
    return drawn, again()


def _compare(
    program: "Program", one: "EngineSpec", other: "EngineSpec", machine: "Machine"
) -> None:
    units, twins = _units(program, one), _units(program, other)
    if one == other or units is None or twins is None:
        return
    found = {u.name: u for u in twins}
    for unit in units:
        twin = found.get(unit.name)
        if twin is None or machine.key(unit, one) != machine.key(twin, other):
            continue
        lines = list(_unlike((unit, one), (twin, other)))
        if lines:
            head = f"unit {unit.name} has one key, {machine.key(unit, one).digest}, and two graphs"
            fields = ["the specs differ in", *_told(one, other)]
            raise AssertionError("\n".join([head, *fields, *lines]))


def _units(program: "Program", spec: "EngineSpec") -> "Sequence[CompileUnit] | None":
    if not callable(program):
        return program
    try:
        return list(program(spec).units())
    except UndeclaredFactorError:
        raise
    except GraphspecError:
        return None


def _unlike(*sides: "tuple[CompileUnit, EngineSpec]") -> Iterator[str]:
    from graphspec.cache.compiling.fingerprint import graph_fingerprint, graph_lines
    from graphspec.cache.compiling.trace import trace
    from graphspec.testing.sides import diff_of

    graphs: list[Any] = []
    for unit, spec in sides:
        try:
            graphs.append(trace(unit, spec, spec.device.target.value).program)
        except CompileError as error:
            graphs.append(error)
    one, other = graphs
    if isinstance(one, CompileError) or isinstance(other, CompileError):
        if type(one) is not type(other):
            yield f"one of them does not trace: {one if isinstance(one, CompileError) else other}"
    elif graph_fingerprint(one) != graph_fingerprint(other):
        yield from diff_of(graph_lines(one), graph_lines(other))
