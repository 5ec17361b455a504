"""The audit of keys: each field of a spec is changed alone, and what moves is compared: unit keys and traced graphs.

A field that no code reads while the program lists its units and while they are traced is answered for without another
trace, since the same code would run the same way. All such fields are then changed together and traced once more, which
checks the reading itself.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from graphspec.errors import GraphspecError, Problem, SpecError, UndeclaredFactorError
from graphspec.fields import Stage, is_config_class
from graphspec.resolve.spec import EngineSpec
from graphspec.testing.audit_report import Cell, Finding, Method, Report, Row, Unit, Verdict
from graphspec.testing.described import cuda_traceable
from graphspec.testing.perturb import Leaf, leaves, put, shown
from graphspec.testing.sides import Graph, Machine, Side, brief, diff_of, inputs_of
from graphspec.text import did_you_mean, plural

_ATTEMPTS = 6
"""How many other values of a field are tried before the audit says that none works."""

Listener = Callable[[str], None]


def audit(
    spec: EngineSpec,
    *,
    units: Sequence[str] = (),
    one_by_one: bool = False,
    values: int = 1,
    hash_seeds: Sequence[int] = (),
    listener: Listener = lambda path: None,
) -> Report:
    """Changes every field of `spec` alone and reports, for each unit, whether key and graph moved.

    `units`: only these. `one_by_one`: trace for every field, and take nothing as proven. `values`: how many other
    values of each field. `hash_seeds`: trace the spec itself in a process of its own with each PYTHONHASHSEED, and
    report graphs that differ. `listener` is told of each field before its turn.

    Needs no device and no weights. Raises `GraphspecError` where the program refuses the spec as it is.
    """
    began = time.perf_counter()
    with cuda_traceable():
        run = _Audit(spec, units, one_by_one, values)
        rows = []
        for leaf in leaves(spec):
            listener(leaf.path)
            rows += run.rows(leaf)
        unstable = [*run.unstable.values()]
        if hash_seeds:
            from graphspec.testing.seeds import compare_seeds

            unstable += compare_seeds(spec, run.origin, hash_seeds)
    return Report(
        spec_hash=spec.compute_hash(Stage.COMPILE),
        device=spec.device.target.value,
        units=[run.unit(name) for name in run.origin.units],
        rows=rows,
        unstable=unstable,
        notes=run.notes,
        traces=run.machine.traces,
        seconds=time.perf_counter() - began,
    )


class _Audit:
    def __init__(
        self, spec: EngineSpec, names: Sequence[str], one_by_one: bool, values: int
    ) -> None:
        self.machine = Machine()
        self.notes: list[str] = []
        self.unstable: dict[str, Finding] = {}
        self._names = names
        self._values = values
        self.origin = Side(spec, self.machine, names, watch=True)
        self._bases: dict[int, Side | GraphspecError] = {id(spec): self.origin}
        self._repeated: set[str] = set()  # units that were traced twice already
        self._kept: list[EngineSpec] = []  # alive, since bases are told apart by address
        self._check_names()
        self._all = one_by_one
        self._all = one_by_one or not self._reading_is_complete()
        for name in self.origin.units if one_by_one else ():
            self._repeat(name)

    def _check_names(self) -> None:
        unknown = [n for n in self._names if n not in self.origin.units]
        if unknown:
            known = [u for u in Side(self.origin.spec, self.machine).units]
            raise SpecError(
                Problem(
                    where="--unit",
                    found=repr(name),
                    wanted="the name of a unit of this program",
                    hint=did_you_mean(name, known),
                )
                for name in unknown
            )

    def unit(self, name: str) -> Unit:
        """A unit as the spec has it."""
        fingerprint = ""
        if not isinstance(graph := self._graph(self.origin, name), GraphspecError):
            fingerprint = graph.fingerprint
        key = self.machine.key(self.origin.units[name], self.origin.spec)
        return Unit(name=name, key=key.digest, fingerprint=fingerprint)

    def _is_unread(self, path: str, side: Side, name: str | None = None) -> bool:
        """Whether nothing has read a field: while units were listed and, of one unit or of all, while it was traced."""
        if self._all or path in side.reads:
            return False
        graphs = [self._graph(side, n) for n in (side.units if name is None else [name])]
        return not any(path in g.reads for g in graphs if not isinstance(g, GraphspecError))

    def _graph(self, side: Side, name: str) -> Any:
        try:
            return side.graph(name)
        except GraphspecError as error:
            return error

    def _reading_is_complete(self) -> bool:
        """Changes all fields that nothing has read together: every graph must stay.

        Sections that go, or become another class, take the fields inside along, so they have a turn of their own, the
        innermost ones.
        """
        unread = [
            leaf
            for leaf in leaves(self.origin.spec)
            if not leaf.inside and self._is_unread(leaf.path, self.origin)
        ]
        whole = [leaf for leaf in unread if is_config_class(type(leaf.value))]
        values = [leaf for leaf in unread if leaf not in whole]
        inner = [
            leaf
            for leaf in whole
            if not any(other.path.startswith(leaf.path + ".") for other in whole)
        ]
        for group in (values, inner):
            moved = self._moved_by(group)
            if moved:
                self.notes.append(
                    f"{moved} moved when {plural(len(group), 'field')} that nothing had read changed together, "
                    "so every field was traced for"
                )
                return False
        self.notes.append(
            f"{plural(len(values) + len(inner), 'field')} that no code read changed together, and no graph moved"
        )
        return True

    def _moved_by(self, group: Sequence[Leaf]) -> str:
        """What moves when all fields of a group change, or an empty text."""
        changed = self.origin.spec
        for leaf in group:
            for value in leaf.others:
                try:
                    changed = put(changed, leaf.path, value)
                    break
                except SpecError:  # a value that does not stand beside the others
                    continue
        try:
            side = Side(changed, self.machine, self._names)
        except GraphspecError:
            return "the list of units"
        if list(side.units) != list(self.origin.units):
            return "the list of units"
        for name in side.units:
            before, after = self._graph(self.origin, name), self._graph(side, name)
            if isinstance(before, GraphspecError):
                continue
            if not isinstance(after, GraphspecError) and before.fingerprint == after.fingerprint:
                self._repeated.add(name)
                continue
            self._repeat(name)
            if name not in self.unstable:
                return f"unit {name}"
        return ""

    def _repeat(self, name: str) -> None:
        """Traces a unit of the spec itself again; a graph that differs then is a finding of its own."""
        before = self._graph(self.origin, name)
        if isinstance(before, GraphspecError) or name in self._repeated:
            return
        self._repeated.add(name)
        after = self.origin.fresh(name)
        if after.fingerprint != before.fingerprint:
            self.unstable[name] = Finding(
                kind="unstable",
                where=f"unit {name}",
                text="two traces of the same spec in one process gave two graphs",
                diff=diff_of(before.lines, after.lines),
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
                if not self._is_unread(leaf.path, base):
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
            and name not in self.unstable
            and not isinstance(self._graph(base, name), GraphspecError)
            for name, cell in row.cells.items()
        )

    def _base(self, leaf: Leaf) -> Side | GraphspecError:
        """The side that a leaf is compared with: the spec itself, or the spec with an example of an absent section."""
        if leaf.inside and self._is_unread(leaf.inside, self.origin):
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
            old="hidden" if leaf.is_secret else shown(leaf.value),
            **more,
        )

    def _compared(
        self, leaf: Leaf, value: Any, base: Side, changed: EngineSpec, side: Side | None
    ) -> Row:
        names = dict.fromkeys([*base.units, *([] if side is None else side.units)])
        return self._row(
            leaf,
            new="hidden" if leaf.is_secret else shown(value),
            cells={name: self._cell(name, leaf, base, changed, side) for name in names},
        )

    def _cell(
        self, name: str, leaf: Leaf, base: Side, changed: EngineSpec, side: Side | None
    ) -> Cell:
        units = base.units if side is None else side.units
        if name not in base.units or name not in units:
            there = "old" if name in base.units else "new"
            reason = f"there only with the {there} value"
            return Cell(verdict=Verdict.SOUND, method=Method.INPUTS, moved=True, reason=reason)
        before = self._graph(base, name)
        if isinstance(before, GraphspecError):
            reason = f"the unit does not trace before any change: {brief(before)}"
            return Cell(verdict=Verdict.FAILED, method=Method.TRACED, reason=reason)
        one, other = base.units[name], units[name]
        method, after = Method.UNREAD, before
        try:
            keys = self.machine.key(one, leaf.base), self.machine.key(other, changed)
            moved = keys[0].text != keys[1].text
            declared = leaf.base.key_text(Stage.COMPILE) != changed.key_text(Stage.COMPILE)
            if side is not None and not self._is_unread(leaf.path, base, name):
                if moved and declared and not self._all and inputs_of(one) != inputs_of(other):
                    return Cell(verdict=Verdict.SOUND, method=Method.INPUTS, moved=True)
                method, after = Method.TRACED, side.graph(name)
        except UndeclaredFactorError as error:
            return Cell(verdict=Verdict.REFUSED, method=method, reason=brief(error))
        except GraphspecError as error:
            return Cell(verdict=Verdict.FAILED, method=method, reason=brief(error))
        if after.fingerprint == before.fingerprint:
            return self._same_graph(method, moved, leaf.base, changed)
        self._repeat(name)
        if name in self.unstable:
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
        f"the graph moves, and the field is {stage}: the spec's COMPILE hash stays. The unit's key moves by the "
        "unit's inputs alone"
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
