"""What environment variables can change: which enter a key, which reach the compiler, and which are never shown.

Only variables that are listed with `Effect.CODE` reach the compiler's process, and those are in the key of each unit. So
a variable that nobody has thought of cannot change code: it stays outside. `graphspec.keys.variables` is the list.
"""

import enum
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache

import attrs

HIDDEN = "(hidden)"
"""What stands for the value of a secret, wherever values are shown."""


class Effect(enum.Enum):
    """What a variable can change, and so where it goes."""

    CODE = "code"
    """Changes what is traced or compiled: in the key of each unit, and given to the compiler's process."""
    CAPTURE = "capture"
    """Changes how a graph is captured or run, and no compiled code: in reports of a capture."""
    LOCATION = "location"
    """Says where files lie. What is found there is keyed by its content, or the compiler does not look there."""
    HOST = "host"
    """Says where a process runs and which one it is: ports, hosts, ranks, users, visible devices."""
    SECRET = "secret"
    """A credential. Its value is never shown and never stored."""
    NOTHING = "nothing"
    """Changes no code: logs, dumps, or a setting that graphspec makes itself."""


@attrs.frozen(kw_only=True)
class Variable:
    """One row of the table: a name, or a pattern with ``*``, and what is known of it."""

    name: str
    effect: Effect
    owner: str
    reason: str


@cache
def lookup(name: str) -> Variable | None:
    """The row for a variable: its own, or else that of a secret, or else the longest pattern's. None if unknown."""
    exact, patterns = _index()
    return exact.get(name) or next((row for row in patterns if _matches(row.name, name)), None)


@cache
def _index() -> tuple[Mapping[str, Variable], Sequence[Variable]]:
    from graphspec.keys.variables import TABLE

    exact = {row.name: row for row in TABLE if "*" not in row.name}
    patterns = [row for row in TABLE if "*" in row.name]
    return exact, sorted(patterns, key=lambda r: (r.effect is not Effect.SECRET, -len(r.name)))


def _matches(pattern: str, name: str) -> bool:
    """Whether a name is of a pattern, in which ``*`` stands for any text, also none."""
    first, *middle, last = pattern.split("*")
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    at = len(first)
    for part in middle:
        at = name.find(part, at, len(name) - len(last)) + len(part)
        if at < len(part):
            return False
    return True


def code_environment(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The variables that are set and can change compiled code, sorted: part of a unit's key, and of the compiler's
    environment.

    >>> code_environment({"TRITON_F32_DEFAULT": "ieee", "HOME": "/root", "TORCHINDUCTOR_FOO": "1"})
    {'TRITON_F32_DEFAULT': 'ieee'}
    """
    return _with_effect(environ, Effect.CODE)


def capture_environment(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The variables that are set and can change how graphs are captured or run, sorted.

    >>> capture_environment({"NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO", "RANK": "3"})
    {'NCCL_ALGO': 'Ring'}
    """
    return _with_effect(environ, Effect.CAPTURE)


def _with_effect(environ: Mapping[str, str], effect: Effect) -> Mapping[str, str]:
    return {
        name: environ[name]
        for name in sorted(environ)
        if (row := lookup(name)) is not None and row.effect is effect
    }


def unknown_variables(environ: Mapping[str, str]) -> Sequence[str]:
    """Names that begin like those of torch, Triton or CUDA and are not in the table. They do not reach the compiler.

    >>> unknown_variables({"TORCHINDUCTOR_FOO": "1", "EDITOR": "vi"})
    ['TORCHINDUCTOR_FOO']
    """
    from graphspec.keys.variables import KNOWN_PREFIXES

    return sorted(n for n in environ if n.startswith(KNOWN_PREFIXES) and lookup(n) is None)


def is_secret(name: str) -> bool:
    """True when the name is that of a credential."""
    row = lookup(name)
    return row is not None and row.effect is Effect.SECRET


_WITH_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]*@")


def shown(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The variables as a report may show them, sorted: what is secret by name, or holds a password, is hidden.

    >>> shown({"HF_TOKEN": "hf_abc", "RANK": "3", "PROXY": "http://me:pw@host:1"})
    {'HF_TOKEN': '(hidden)', 'PROXY': '(hidden)', 'RANK': '3'}
    """
    return {
        name: HIDDEN if is_secret(name) or _WITH_PASSWORD.search(environ[name]) else environ[name]
        for name in sorted(environ)
    }


def declared_environment(names: Sequence[str]) -> Mapping[str, str | None]:
    """The values of the variables that a unit declares, None for one that is not set: part of the unit's key.

    Raises `KeyFactorError` for a secret, whose value must not be stored.
    """
    from graphspec.errors import KeyFactorError, Problem

    secrets = [name for name in names if is_secret(name)]
    if secrets:
        raise KeyFactorError(
            Problem(
                where=f"environment variable {name}",
                found="the name of a secret",
                wanted="a variable whose value may be stored in a key",
                hint="code that is compiled cannot need a credential: read it outside of the unit",
            )
            for name in secrets
        )
    return {name: os.environ.get(name) for name in sorted(names)}
