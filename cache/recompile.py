"""`recompile`: units compiled anew beside what is stored of them, to see that equal keys give equal bytes."""

import time
from collections.abc import Callable, Collection, Sequence

import attrs

from graphspec.cache.compiling.toolchain import compiler_flags, compiler_options
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.load import Keyed, first_of_each_key, keyed_units
from graphspec.cache.units import CompileUnit
from graphspec.resolve.spec import EngineSpec


@attrs.frozen(kw_only=True)
class Recompiled:
    """One unit. `reason` says why there is nothing to compare with, or in what the bytes differ; empty: they are equal.

    `stored_bytes` and `bytes` are lengths of the payloads, None where there is none. `first` is the offset of the first
    byte that differs, `differing` how many do up to the end of the shorter one.
    """

    unit: str
    key: str
    reason: str
    seconds: float = 0.0
    stored_bytes: int | None = None
    bytes: int | None = None
    first: int | None = None
    differing: int = 0

    @property
    def equal(self) -> bool:
        """Whether the compile gave the bytes that are stored."""
        return not self.reason


def recompile(
    units: Sequence[CompileUnit],
    spec: EngineSpec,
    store: DiskStore,
    *,
    names: Collection[str] = (),
    listener: Callable[[Recompiled], None] = lambda result: None,
) -> tuple[Recompiled, ...]:
    """Compiles each unit that is stored, in one process after another, and compares. Nothing is stored or changed.

    With `names` these units only. Of units that are equal one is compiled.

    Raises `CompileError` for a unit that does not compile.
    """
    results = []
    asked = [k for k in keyed_units(units, spec) if not names or k.unit.name in names]
    for keyed in first_of_each_key(asked).values():
        result = _compared(keyed, spec, store)
        listener(result)
        results.append(result)
    return tuple(results)


def _compared(keyed: Keyed, spec: EngineSpec, store: DiskStore) -> Recompiled:
    unit, key = keyed.unit.name, keyed.key.digest
    lookup = store.look(keyed.key)
    if lookup.entry is None:
        return Recompiled(unit=unit, key=key, reason=f"nothing to compare it with: {lookup.reason}")
    if "kernels" in lookup.entry.metadata:
        reason = (
            "built without its GPU: a compile beside one chooses between configurations by trial"
        )
        return Recompiled(unit=unit, key=key, reason=f"nothing to compare it with: {reason}")
    began = time.perf_counter()
    made, stored = _compiled(keyed, spec), bytes(lookup.entry.payload)
    seconds = time.perf_counter() - began
    first, differing = _difference(stored, made)
    reason = ""
    if made != stored:
        reason = f"{differing:,} of {len(stored):,} stored bytes differ, the first at {first:,}"
        if len(made) != len(stored):
            reason = (
                f"{len(made):,} bytes instead of {len(stored):,}, different from byte {first:,} on"
            )
    return Recompiled(
        unit=unit,
        key=key,
        reason=reason,
        seconds=seconds,
        stored_bytes=len(stored),
        bytes=len(made),
        first=first,
        differing=differing,
    )


def _compiled(keyed: Keyed, spec: EngineSpec) -> bytes:
    # A compiler process of its own for each unit: what it compiled before must not help it to be equal.
    from graphspec.cache.compiling.compiler import Compiler
    from graphspec.cache.compiling.trace import trace

    device = spec.device.target.value
    flags, options = compiler_flags(spec.device), compiler_options(spec.device)
    with Compiler(flags, options, device) as compiler:
        return compiler.compile(keyed.unit, trace(keyed.unit, spec, device)).library


def _difference(one: bytes, other: bytes) -> tuple[int | None, int]:
    if one == other:
        return None, 0
    places = [i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b]
    return places[0] if places else min(len(one), len(other)), len(places)
