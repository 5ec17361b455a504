"""The audit of keys: each field of a spec is changed alone, and what moves is compared: unit keys and traced graphs.

A field that no code reads while the program lists its units and while they are traced is answered for without another
trace, since the same code would run the same way. All such fields are then changed together and traced once more, which
checks the reading itself.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from graphspec.errors import GraphspecError, Problem, SpecError, UndeclaredFactorError
from graphspec.fields import HIDDEN, Stage
from graphspec.resolve.spec import EngineSpec
from graphspec.testing.audit_report import Cell, Method, Report, Row, Unit, Verdict, shown
from graphspec.testing.described import cuda_traceable
from graphspec.testing.perturb import Leaf, leaves
from graphspec.testing.proofs import Proofs
from graphspec.testing.sides import Graph, Machine, Side, brief, diff_of, inputs_of
from graphspec.text import did_you_mean

_ATTEMPTS = 6
"""How many other values of a field are tried before the audit says that none works."""

Listener = Callable[[str], None]


def audit(
    spec: EngineSpec,
    *,
    units: Sequence[str] = (),
    fields: Sequence[str] = (),
    one_by_one: bool = False,
    values: int = 1,
    hash_seeds: Sequence[int] = (),
    listener: Listener = lambda path: None,
) -> Report:
    """Changes every field of `spec` alone and reports, for each unit, whether key and graph moved.

    `units`: only these. `fields`: only these paths, and what lies below them. `one_by_one`: trace for every field, and take nothing as known. `values`: how many other
    values of each field. `hash_seeds`: trace the spec itself in a process of its own with each PYTHONHASHSEED, and
    report graphs that differ. `listener` is told of each field before its turn.

    Needs no device and no weights. Raises `GraphspecError` where the program refuses the spec as it is.
    """
    began = time.perf_counter()
    chosen = _chosen(list(leaves(spec)), fields)
    with cuda_traceable():
        run = _Audit(spec, units, one_by_one, values)
        rows: list[Row] = []
        for leaf in chosen:
            listener(leaf.path)
            rows += run.rows(leaf)
        unstable = list(run.proofs.unstable.values())
        if hash_seeds:
            from graphspec.testing.seeds import compare_seeds

            unstable += compare_seeds(spec, run.origin, run.machine, hash_seeds)
    return Report(
        spec_hash=spec.compute_hash(Stage.COMPILE),
        device=spec.device.target.value,
        units=[run.unit(name) for name in run.origin.units],
        rows=rows,
        unstable=unstable,
        notes=run.proofs.notes,
        traces=run.machine.traces,
        seconds=time.perf_counter() - began,
    )


def _chosen(found: Sequence[Leaf], paths: Sequence[str]) -> Sequence[Leaf]:
    if not paths:
        return found
    parents = [leaf.path[:at] for leaf in found for at, c in enumerate(leaf.path) if c == "."]
    _check("--field", paths, {*parents, *(leaf.path for leaf in found)})
    return [leaf for leaf in found if any(f"{leaf.path}.".startswith(f"{path}.") for path in paths)]


def _check(option: str, names: Sequence[str], known: Collection[str]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SpecError(
            Problem(
                where=option,
                found=repr(name),
                wanted="a name that this spec has",
                hint=did_you_mean(name, known),
            )
            for name in unknown
        )


class _Audit:
    def __init__(
        self, spec: EngineSpec, names: Sequence[str], one_by_one: bool, values: int
    ) -> None:
        self.machine = Machine()
        self._names = names
        self._values = values
        if names:
            _check("--unit", names, Side(spec, self.machine).units)
        self.proofs = Proofs(spec, self.machine, names, one_by_one)
        self.origin = self.proofs.origin
        self._bases: dict[int, Side | GraphspecError] = {id(spec): self.origin}
        self._kept: list[EngineSpec] = [spec]  # alive, since bases are told apart by address

    def unit(self, name: str) -> Unit:
        """A unit as the spec has it."""
        traced = self.origin.failure(name) is None
        return Unit(
            name=name,
            key=self.machine.key(self.origin.units[name], self.origin.spec).digest,
            fingerprint=self.origin.graph(name).fingerprint if traced else "",
        )

    def rows(self, leaf: Leaf) -> Iterator[Row]:
        """One row for each value that could be tried, or one that says why there is none."""
        base = self._base(leaf)
        if isinstance(base, GraphspecError):
            yield self._row(leaf, skipped=f"refused with {leaf.inside}: {brief(base)}")
            return
        made, attempts, refusals, broken = 0, 0, [], None
        for value in leaf.others:
            if made == self._values or attempts == _ATTEMPTS * self._values:
                break
            try:
                side: Side | None = None
                changed = leaf.changed(value)
                if not self.proofs.is_unread(leaf.path, base):
                    attempts += 1
                    side = Side(changed, self.machine, self._names)
            except GraphspecError as error:
                refusals.append(brief(error))
                continue
            row = self._compared(leaf, value, base, changed, side)
            if self._another_value_may_do(row, base):
                broken = broken or row
                continue
            made += 1
            yield row
        if not made and broken:
            yield broken
        elif not made:
            reason = refusals[0] if refusals and not leaf.is_secret else ""
            yield self._row(leaf, skipped=reason or "its type has no other value")

    def _another_value_may_do(self, row: Row, base: Side) -> bool:
        return any(
            cell.verdict is Verdict.FAILED
            and name not in self.proofs.unstable
            and base.failure(name) is None
            for name, cell in row.cells.items()
        )

    def _base(self, leaf: Leaf) -> Side | GraphspecError:
        """The side that a leaf is compared with: the spec itself, or the spec with an example of an absent section."""
        if leaf.inside and self.proofs.is_unread(leaf.inside, self.origin):
            return self.origin  # nothing asks whether the section is there
        if id(leaf.base) not in self._bases:
            self._kept.append(leaf.base)
            try:
                self._bases[id(leaf.base)] = Side(leaf.base, self.machine, self._names, watch=True)
            except GraphspecError as error:
                self._bases[id(leaf.base)] = error
        return self._bases[id(leaf.base)]

    def _row(self, leaf: Leaf, **more: Any) -> Row:
        return Row(
            path=leaf.path,
            stage="unkeyed" if leaf.stage is None else leaf.stage.value,
            inside=leaf.inside,
            old=_shown(leaf, leaf.value),
            **more,
        )

    def _compared(
        self, leaf: Leaf, value: Any, base: Side, changed: EngineSpec, side: Side | None
    ) -> Row:
        names = dict.fromkeys([*base.units, *([] if side is None else side.units)])
        cells = {name: self._cell(name, leaf, base, changed, side) for name in names}
        return self._row(leaf, new=_shown(leaf, value), cells=cells)

    def _cell(
        self, name: str, leaf: Leaf, base: Side, changed: EngineSpec, side: Side | None
    ) -> Cell:
        units = base.units if side is None else side.units
        if name not in base.units or name not in units:
            there = "old" if name in base.units else "new"
            reason = f"there only with the {there} value"
            return Cell(verdict=Verdict.SOUND, method=Method.INPUTS, moved=True, reason=reason)
        failure = base.failure(name)
        if failure is not None:
            reason = f"the unit does not trace before any change: {brief(failure)}"
            return Cell(verdict=Verdict.FAILED, method=Method.TRACED, reason=reason)
        one, other = base.units[name], units[name]
        before = after = base.graph(name)
        method = Method.UNREAD
        try:
            keys = self.machine.key(one, leaf.base), self.machine.key(other, changed)
            moved = keys[0].text != keys[1].text
            declared = leaf.base.key_text(Stage.COMPILE) != changed.key_text(Stage.COMPILE)
            if side is not None and not self.proofs.is_unread(leaf.path, base, name):
                known = moved and declared and not self.proofs.all_traced
                if known and inputs_of(one) != inputs_of(other):
                    return Cell(verdict=Verdict.SOUND, method=Method.INPUTS, moved=True)
                method, after = Method.TRACED, side.graph(name)
        except UndeclaredFactorError as error:
            return Cell(verdict=Verdict.REFUSED, method=method, reason=brief(error))
        except GraphspecError as error:
            return Cell(verdict=Verdict.FAILED, method=method, reason=brief(error))
        if after.fingerprint == before.fingerprint:
            return self._same_graph(method, moved, leaf.base, changed)
        self.proofs.repeat(base, name)
        if name in self.proofs.unstable:
            reason = "the unit's graph is another at every trace, so no two can be compared"
            return Cell(verdict=Verdict.FAILED, method=method, moved=moved, reason=reason)
        if moved and declared:
            return Cell(verdict=Verdict.SOUND, method=method, moved=True)
        return _unsound(leaf, moved, before, after)

    def _same_graph(
        self, method: Method, moved: bool, base: EngineSpec, changed: EngineSpec
    ) -> Cell:
        if not moved:
            return Cell(verdict=Verdict.QUIET, method=method)
        if self.machine.given(base.device) != self.machine.given(changed.device):
            reason = "the graph stays; the compiler is given other settings, or another device"
            return Cell(verdict=Verdict.SOUND, method=method, moved=True, reason=reason)
        return Cell(verdict=Verdict.NEEDLESS, method=method, moved=True)


def _unsound(leaf: Leaf, moved: bool, before: Graph, after: Graph) -> Cell:
    stage = "unkeyed" if leaf.stage is None else f"keyed({leaf.stage})"
    reason = (
        f"the graph moves, and the field is {stage}: the spec's COMPILE hash stays. The unit's key moves only by its "
        "inputs, or by what its build function holds"
        if moved
        else f"the graph moves, and the unit's key stays; the field is {stage}"
    )
    return Cell(
        verdict=Verdict.UNSOUND,
        method=Method.TRACED,
        moved=moved,
        reason=reason,
        diff=diff_of(before.lines, after.lines),
    )


def _shown(leaf: Leaf, value: Any) -> str:
    return HIDDEN if leaf.is_secret else shown(value, leaf.path.rpartition(".")[2])
