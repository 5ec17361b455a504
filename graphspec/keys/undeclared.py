"""Everything that a watched trace depended on and that the unit's key does not cover, in one list."""

from collections.abc import Sequence

from graphspec.errors import Problem
from graphspec.keys.environment import Effect, lookup
from graphspec.keys.loaded import stale_problems
from graphspec.keys.module_globals import global_problems
from graphspec.keys.source import file_problems
from graphspec.keys.watch import EVERY, Watch


def undeclared(
    watch: Watch, modules: Sequence[str], environment: Sequence[str], unit: str
) -> Sequence[Problem]:
    """The problems of a trace: code outside `modules`, variables outside `environment`, module globals whose values do
    not follow from the source, loops over sets, and code that its file no longer holds."""
    functions = list(watch.functions.values())
    return [
        *file_problems(watch.files, modules, unit),
        *variable_problems(watch, environment, unit),
        *global_problems(functions, modules, unit),
        *stale_problems(functions, modules, unit),
    ]


def variable_problems(watch: Watch, environment: Sequence[str], unit: str) -> Sequence[Problem]:
    """One problem for each environment variable that the unit's code read and no key holds."""
    copies = {place for name, place in watch.variables if name == EVERY}
    return [
        Problem(
            where=f"unit {unit}",
            found=(
                f"a read of all environment variables at {place}"
                if name == EVERY
                else f"a read of the environment variable {name} at {place}"
            ),
            wanted="values that the key covers",
            hint="make it a field of the spec, or list the variable in the unit's `environment`",
        )
        for name, place in watch.variables
        if name == EVERY or not (place in copies or name in environment or _in_every_key(name))
    ]


def _in_every_key(name: str) -> bool:
    row = lookup(name)
    return row is not None and row.effect is Effect.CODE
