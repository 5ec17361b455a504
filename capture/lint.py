"""Lint: runs a program's units and decode steps on a CPU, and lists every operation that no captured graph can repeat."""

import linecache
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import torch

from graphspec.cache.units import CompileUnit, DynamicDim, TensorInput
from graphspec.capture.backends.tape_lint import Illegal, noting
from graphspec.capture.backends.tape_rules import CONSTANT, DATA_SHAPE, HOST_READ, RANDOM
from graphspec.capture.keys import CaptureKey
from graphspec.capture.pieces import pieces_of
from graphspec.capture.plan import plan_capture
from graphspec.capture.program import Program, captures_of, load_program
from graphspec.errors import GraphspecError
from graphspec.resolve.spec import EngineSpec

HINTS: Mapping[str, str] = {
    HOST_READ: "keep the value in a tensor and compute with that, or read it outside the step",
    DATA_SHAPE: "keep the shape static: torch.where or a mask that multiplies, or state the size where it can be stated",
    CONSTANT: "make the tensor once, outside the step, or on the device: torch.full, torch.arange",
    RANDOM: "draw the numbers outside the step and copy them into a static buffer, or register the generator",
}
"""What to do, by what is wrong."""


@attrs.frozen(kw_only=True)
class Finding:
    """An illegal operation at one line of the program's own code, and in which units and steps it ran.

    `code` is that line. `file` is empty where no Python code called the operation.
    """

    operation: str
    what: str
    file: str
    line: int
    code: str
    seen_in: tuple[str, ...]

    @property
    def hint(self) -> str:
        """What to do."""
        return HINTS[self.what]

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data."""
        return {**attrs.asdict(self), "seen_in": list(self.seen_in), "hint": self.hint}


@attrs.frozen(kw_only=True)
class NotRun:
    """A unit or step that could not be run to its end, so that it may have more findings, and why."""

    where: str
    reason: str

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data."""
        return attrs.asdict(self)


@attrs.frozen(kw_only=True)
class LintReport:
    """What ran, and what was found, in the order of units and steps. Nothing that was not run is counted as clean."""

    units: tuple[str, ...]
    steps: tuple[str, ...]
    findings: tuple[Finding, ...]
    not_run: tuple[NotRun, ...]

    @property
    def clean(self) -> bool:
        """True when everything ran and nothing was found."""
        return not self.findings and not self.not_run

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data: what ``lint --json`` prints."""
        return {
            "units": list(self.units),
            "steps": list(self.steps),
            "findings": [finding.as_dict() for finding in self.findings],
            "not_run": [one.as_dict() for one in self.not_run],
        }


def lint(spec: EngineSpec, *, on_cpu: EngineSpec | None = None, steps: bool = True) -> LintReport:
    """Lints the program of `spec`.

    Units run as `spec` has them, on example tensors. Each depth's decode step runs once before it is linted, as before
    a capture. Steps take the weights and buffers of `on_cpu`: the same contract for a CPU, where `spec` is for another
    device. With `steps` False only the units run, which need no weights.

    Raises `EnvironmentProblem` for a program that cannot be imported.
    """
    run = _Run()
    program = load_program(spec)
    for unit in program.units():
        run.unit(unit, spec)
    if steps:
        on_cpu = on_cpu or spec
        run.steps_of(program if on_cpu is spec else load_program(on_cpu), on_cpu)
    return run.report()


class _Run:
    def __init__(self) -> None:
        self._units: list[str] = []
        self._steps: list[str] = []
        self._not_run: list[NotRun] = []
        # Values are used as an ordered set: a loop finds the same thing again and again.
        self._found: dict[tuple[str, int, str, str], dict[str, None]] = {}

    def report(self) -> LintReport:
        return LintReport(
            units=tuple(self._units),
            steps=tuple(self._steps),
            not_run=tuple(self._not_run),
            findings=tuple(
                Finding(
                    operation=operation,
                    what=what,
                    file=file,
                    line=line,
                    code=linecache.getline(file, line).strip(),
                    seen_in=tuple(places),
                )
                for (file, line, operation, what), places in self._found.items()
            ),
        )

    def unit(self, unit: CompileUnit, spec: EngineSpec) -> None:
        where = f"unit {unit.name}"
        self._units.append(unit.name)
        with_inputs = self._attempt(
            where, lambda: (unit.build(spec), [example(i) for i in unit.inputs])
        )
        if with_inputs is not None:
            function, inputs = with_inputs
            self._noted(where, lambda: function(*inputs))

    def steps_of(self, program: Program, spec: EngineSpec) -> None:
        source = self._attempt(
            "steps", lambda: program.start({u.name: _as_artifact(u, spec) for u in program.units()})
        )
        if source is None:
            return
        for key in _one_of_each(plan_capture(spec, captures=captures_of(program)).keys):
            where = f"step {key}"
            self._steps.append(str(key))

            def warmed(key: CaptureKey = key) -> bool:
                source.fill_example(key, 0)
                with torch.no_grad():
                    source.step(key)
                source.fill_example(key, 0)
                return True

            if not self._attempt(where, warmed):
                continue
            # What runs between pieces is in no graph, and may do what it likes.
            pieces = pieces_of(source, key)
            calls = [p.run for p in pieces or () if p.captured] or [partial(source.step, key)]
            for call in calls:
                self._noted(where, call)

    def _noted(self, where: str, call: Callable[[], Any]) -> None:
        def note(illegal: Illegal) -> None:
            place = (illegal.file, illegal.line, illegal.operation, illegal.what)
            self._found.setdefault(place, {})[where] = None

        def noted() -> Any:
            with noting(note, called_from=__file__):
                return call()

        self._attempt(where, noted)

    def _attempt(self, where: str, call: Callable[[], Any]) -> Any:
        """What `call` gives; None, and a line in the report, where it raises."""
        try:
            return call()
        except GraphspecError as error:
            problem = error.problems[0]
            reason = f"{problem.where}: found {problem.found}; wanted {problem.wanted}"
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
        self._not_run.append(NotRun(where=where, reason=reason))
        return None


_DYNAMIC = 2
"""Size of dynamic dimensions: one row would hide what is done for each."""
_ONES_BELOW = 1 << 20
"""Elements from which an example is of zeros, which cost no memory until they are written."""


def example(declared: TensorInput) -> torch.Tensor:
    """A tensor that a unit can be called with, on the CPU. Ones: zero rows or a division by zero would end a run early."""
    shape = [
        max(dim.minimum, min(_DYNAMIC, dim.maximum)) if isinstance(dim, DynamicDim) else dim
        for dim in declared.shape
    ]
    dtype = getattr(torch, declared.dtype)
    count = 1
    for size in shape:
        count *= size
    return (
        torch.ones(shape, dtype=dtype) if count < _ONES_BELOW else torch.zeros(shape, dtype=dtype)
    )


def _as_artifact(unit: CompileUnit, spec: EngineSpec) -> Any:
    """The unit's own function, which returns what its artifact returns: a sequence of tensors."""
    function = unit.build(spec)

    def call(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        made = function(*inputs)
        return made if isinstance(made, tuple) else (made,)

    return call


def _one_of_each(keys: Sequence[CaptureKey]) -> Sequence[CaptureKey]:
    """The smallest graph of each kind, depth and number of adapters: larger ones run the same code on more requests."""
    smallest: dict[tuple[Any, int, int], CaptureKey] = {}
    for key in keys:
        place = (key.kind, key.k, key.lora)
        if place not in smallest or key.tokens < smallest[place].tokens:
            smallest[place] = key
    return tuple(smallest.values())
