"""What a compiled kernel takes of a GPU, read from the binary itself, and bounds on it."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from graphspec.cubin import read_cubin
from graphspec.errors import KernelError, Problem, TargetError

_ALLOCATED_AT_ONCE = 8
"""Registers of a thread are given out in eights, on both makers' GPUs: less than that is no difference."""


@attrs.frozen(kw_only=True)
class Resources:
    """registers: vector registers of a thread. spills: on cuda, bytes of a thread's stack and local memory, which spilled
    registers go to; on hip, the number of registers spilled. shared: bytes of a block that the launch asks for."""

    registers: int
    spills: int
    shared: int


def resources_of(backend: str, asm: Mapping[str, Any], metadata: Any) -> Resources:
    """Of what Triton compiled: `asm` its texts and binary by kind, `metadata` its own notes."""
    shared = int(metadata.shared)
    if backend == "cuda":
        cubin = read_cubin(asm["cubin"])
        registers, spills = cubin.registers, cubin.spills
    else:
        registers, spills = read_amdgcn(asm["amdgcn"])
    return Resources(registers=registers, spills=spills, shared=shared)


def read_amdgcn(text: str) -> tuple[int, int]:
    """Vector registers and spilled registers of both kinds, from the notes at the end of the assembly."""

    def number(name: str) -> int:
        found = re.findall(rf"^\s*\.{name}:\s*(\d+)\s*$", text, re.MULTILINE)
        if len(found) != 1:
            raise KernelError(
                Problem(
                    where="assembly of a hip kernel", found=f"{len(found)} of .{name}", wanted="one"
                )
            )
        return int(found[0])

    return number("vgpr_count"), number("vgpr_spill_count") + number("sgpr_spill_count")


Bounds = Mapping[str, Mapping[str, Resources]]
"""By name of the variant and target: the most that it may take."""


def read_bounds(path: str) -> Bounds:
    """Bounds from a JSON file: ``{variant: {target: {registers, spills, shared}}}``. Raises `TargetError`."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        return {
            name: {target: Resources(**most) for target, most in targets.items()}
            for name, targets in content.items()
        }
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise TargetError(
            Problem(
                where=f"bounds {path}",
                found=str(error),
                wanted="JSON of the form {variant: {target: {registers, spills, shared}}}",
                hint="graphspec kernels compile --write-bounds FILE writes one",
            )
        ) from None


def bounds_text(measured: Mapping[str, Mapping[str, Resources]]) -> str:
    """A file of bounds that `measured` keeps: registers rounded up to what the hardware gives out, the rest as it is."""
    content = {
        name: {
            target: {
                **attrs.asdict(taken),
                "registers": -(-taken.registers // _ALLOCATED_AT_ONCE) * _ALLOCATED_AT_ONCE,
            }
            for target, taken in sorted(targets.items())
        }
        for name, targets in sorted(measured.items())
    }
    return json.dumps(content, indent=1) + "\n"


def over_bounds(
    measured: Mapping[str, Mapping[str, Resources]], bounds: Bounds, targets: Sequence[str]
) -> Iterator[str]:
    """One sentence for each variant that takes more than it may, has no bound, or is bounded and no longer there."""
    for name in sorted({*measured, *bounds}):
        for target in targets:
            taken = measured.get(name, {}).get(target)
            most = bounds.get(name, {}).get(target)
            if taken is None:
                if most is not None:
                    yield f"{name} for {target}: there is a bound and no such kernel"
                continue
            if most is None:
                yield f"{name} for {target}: no bound"
                continue
            for part, value in attrs.asdict(taken).items():
                limit = getattr(most, part)
                if value > limit:
                    yield f"{name} for {target}: {part} {value}, at most {limit}"
