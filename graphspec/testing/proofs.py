"""What an audit knows of graphs without tracing again: which fields nothing has read, and that the reading misses none."""

from collections.abc import Sequence

from graphspec.errors import GraphspecError, SpecError
from graphspec.fields import is_config_class
from graphspec.resolve.spec import EngineSpec
from graphspec.testing.audit_report import Finding
from graphspec.testing.perturb import Leaf, leaves, put
from graphspec.testing.sides import Machine, Side, diff_of
from graphspec.text import plural


class Proofs:
    """The spec as it is, watched, and what follows from the watch.

    With `one_by_one`, or where the check of the watch fails, nothing follows, and every graph must be traced for.
    `unstable` are units whose graph differs by itself. `notes` say how much was taken as known.
    """

    def __init__(
        self, spec: EngineSpec, machine: Machine, names: Sequence[str], one_by_one: bool
    ) -> None:
        self.origin = Side(spec, machine, names, watch=True)
        self.unstable: dict[str, Finding] = {}
        self.notes: list[str] = []
        self._machine = machine
        self._names = names
        self._repeated: set[tuple[Side, str]] = set()
        self.all_traced = one_by_one
        if one_by_one:
            for name in self.origin.units:
                self.repeat(self.origin, name)
        else:
            self.all_traced = not self._reading_is_complete()

    def is_unread(self, path: str, side: Side, name: str | None = None) -> bool:
        """Whether nothing has read a field while units were listed and, of one unit or of all, while it was traced."""
        if self.all_traced or path in side.reads:
            return False
        names = side.units if name is None else [name]
        graphs = [side.graph(n) for n in names if side.failure(n) is None]
        return not any(path in graph.reads for graph in graphs)

    def repeat(self, side: Side, name: str) -> None:
        """Traces a unit of the same spec again, once in an audit; a graph that differs is a finding of its own."""
        if (side, name) in self._repeated or side.failure(name) is not None:
            return
        self._repeated.add((side, name))
        before, after = side.graph(name), side.fresh(name)
        if after.fingerprint != before.fingerprint:
            self.unstable[name] = Finding(
                kind="unstable",
                where=f"unit {name}",
                text="two traces of the same spec in one process gave two graphs",
                diff=diff_of(before.lines, after.lines),
            )

    def _reading_is_complete(self) -> bool:
        """Changes all fields that nothing has read together: every graph must stay.

        Sections that go, or become another class, would take the fields inside along, so they stay.
        """
        unread = [
            leaf
            for leaf in leaves(self.origin.spec)
            if not (leaf.inside or is_config_class(type(leaf.value)))
            and self.is_unread(leaf.path, self.origin)
        ]
        moved = self._moved_by(unread)
        fields = plural(len(unread), "field")
        self.notes.append(
            f"{moved} moved when {fields} that nothing had read changed together, so every field was traced for"
            if moved
            else f"{fields} that no code read changed together, and no graph moved"
        )
        return not moved

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
            side = Side(changed, self._machine, self._names)
        except GraphspecError:
            return "the list of units"
        if list(side.units) != list(self.origin.units):
            return "the list of units"
        for name in side.units:
            if self.origin.failure(name) is not None:
                continue
            if side.failure(name) is None:
                if side.graph(name).fingerprint == self.origin.graph(name).fingerprint:
                    self._repeated.add((self.origin, name))
                    continue
                self.repeat(self.origin, name)
            if name not in self.unstable:
                return f"unit {name}"
        return ""
