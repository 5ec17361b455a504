"""Compiled kernels for NVIDIA's GPUs (cubins): what one takes of a GPU, and which of them a library holds."""

import hashlib
import os
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

import attrs

from graphspec.errors import EnvironmentProblem, Problem

_RESOURCES = re.compile(
    r"Function (?P<symbol>[^\s:]+):\s*REG:(?P<reg>\d+) STACK:(?P<stack>\d+) "
    r"SHARED:\d+ LOCAL:(?P<local>\d+)"
)
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_MAGIC = b"\x7fELF\x02\x01"
_CUDA_MACHINE = 190
_FLAGS_MOVED = 8


@attrs.frozen(kw_only=True)
class Cubin:
    """What a cubin says of its one kernel.

    `registers` of a thread; `spills`: bytes of a thread's stack and local memory, which spilled registers go to. `digest` is
    the SHA-256 of the content. Shared memory is not in it: a launch asks for it, and what the binary has from sm_90 on is the
    KiB that CUDA keeps of each block for itself, which no limit counts.
    """

    symbol: str
    architecture: str
    registers: int
    spills: int
    digest: str


def read_cubin(content: bytes) -> Cubin:
    """As NVIDIA's cuobjdump reads it; Triton's own package brings that program. Needs no GPU.

    Raises `EnvironmentProblem` for what that program does not take for a cubin with one kernel.
    """
    from triton import knobs

    tool = knobs.nvidia.cuobjdump.path
    with tempfile.TemporaryDirectory(prefix="graphspec-cubin-") as folder:
        path = os.path.join(folder, "kernel.cubin")
        with open(path, "wb") as file:
            file.write(content)
        done = subprocess.run(
            [tool, "--dump-resource-usage", path], capture_output=True, text=True, check=False
        )
    found = list(_RESOURCES.finditer(done.stdout))
    if done.returncode or len(found) != 1:
        raise EnvironmentProblem(
            Problem(
                where=tool,
                found=(done.stderr or done.stdout).strip() or f"exit code {done.returncode}",
                wanted="the resources of one kernel",
            )
        )
    (kernel,) = found
    return Cubin(
        symbol=kernel["symbol"],
        architecture=architecture_of(content),
        registers=int(kernel["reg"]),
        spills=int(kernel["stack"]) + int(kernel["local"]),
        digest=hashlib.sha256(content).hexdigest(),
    )


def architecture_of(content: bytes) -> str:
    """The architecture in a cubin's header, as in ``sm_90``; an empty text for what is no cubin.

    Where the number stands is from LLVM's BinaryFormat/ELF.h: the lowest byte of the flags, and from ABI version 8 on,
    which CUDA 13 writes, the byte above it.
    """
    header = _header(content, 0)
    if header is None:
        return ""
    flags = header["flags"] >> 8 if header["abi"] >= _FLAGS_MOVED else header["flags"]
    return f"sm_{flags & 0xFF}"


def cubins_in(library: bytes | memoryview) -> Iterator[bytes]:
    """The cubins that are embedded in a compiled library, in their order."""
    content = bytes(library)
    at = content.find(_MAGIC, 1)
    while at >= 0:
        header = _header(content, at)
        end = at + header["size"] if header is not None else 0
        if at < end <= len(content):
            yield content[at:end]
        at = content.find(_MAGIC, max(end, at + 1))


def _header(content: bytes, at: int) -> dict[str, Any] | None:
    """What a cubin's ELF header at an offset says: `abi`, `flags`, and `size`, up to the end of both tables."""
    if content[at : at + len(_MAGIC)] != _MAGIC or len(content) < at + _HEADER.size:
        return None
    ident, _, machine, _, _, segments, sections, flags, _, *counts, _ = _HEADER.unpack_from(
        content, at
    )
    segment_bytes, segment_count, section_bytes, section_count = counts
    if machine != _CUDA_MACHINE:
        return None
    size = max(segments + segment_bytes * segment_count, sections + section_bytes * section_count)
    return {"abi": ident[8], "flags": flags, "size": size}
