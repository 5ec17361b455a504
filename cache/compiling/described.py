"""A GPU that is not here, described to torch's compiler: all that it and Triton ask a GPU while they compile for one."""

import contextlib
import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from graphspec.errors import EnvironmentProblem, Problem


@attrs.frozen(kw_only=True)
class DescribedGpu:
    """Facts of one NVIDIA GPU. `architecture` as in ``sm_90``.

    `registers` and `threads` are the most of a thread and of a block, `shared_bytes` what a block may ask for; those of a
    multiprocessor are shared by all blocks that run on it at once.
    """

    name: str
    architecture: str
    multiprocessors: int
    memory_bytes: int
    warp_size: int
    registers: int
    threads: int
    shared_bytes: int
    registers_per_multiprocessor: int
    threads_per_multiprocessor: int

    @property
    def number(self) -> int:
        """The compute capability as torch and Triton write it: 90 for 9.0."""
        return int(self.architecture.removeprefix("sm_"))

    @property
    def capability(self) -> tuple[int, int]:
        """Major and minor compute capability.

        >>> DescribedGpu(name="", architecture="sm_100", multiprocessors=148, memory_bytes=0, warp_size=32, registers=255,
        ...     threads=1024, shared_bytes=0, registers_per_multiprocessor=65536, threads_per_multiprocessor=2048).capability
        (10, 0)
        """
        return divmod(self.number, 10)

    def threads_with(self, registers: int) -> int:
        """The most threads of a block whose threads take so many registers. They are given out in eights to a thread."""
        of_a_warp = max(8, -(-registers // 8) * 8) * self.warp_size
        warps = self.registers_per_multiprocessor // of_a_warp
        return min(self.threads, warps * self.warp_size)


@attrs.frozen(kw_only=True)
class _Range:
    """Versions of torch that ask in the same way, from `first` on and before `end`, and the module that answers them."""

    first: tuple[int, int]
    end: tuple[int, int]
    module: str

    def __str__(self) -> str:
        first, end = (".".join(map(str, v)) for v in (self.first, self.end))
        return f"from {first} on and before {end}"


_RANGES = (
    _Range(first=(2, 13), end=(2, 15), module="graphspec.cache.compiling.described_torch_2_13"),
)


def unknown_torch(version: str) -> str:
    """Why nothing can be compiled for a described GPU by this version of torch; an empty text where it can.

    >>> unknown_torch("2.13.0+cu130")
    ''
    >>> unknown_torch("3.0.1")
    'torch 3.0.1 is not known to ask for a GPU in the way of torch from 2.13 on and before 2.15'
    """
    if _range_of(version) is not None:
        return ""
    known = " or ".join(map(str, _RANGES))
    return f"torch {version} is not known to ask for a GPU in the way of torch {known}"


def _range_of(version: str) -> _Range | None:
    found = re.match(r"(\d+)\.(\d+)", version)
    number = (int(found[1]), int(found[2])) if found else (0, 0)
    return next((r for r in _RANGES if r.first <= number < r.end), None)


@contextlib.contextmanager
def described_gpu(gpu: DescribedGpu) -> Iterator[list[Mapping[str, Any]]]:
    """Torch's compiler and Triton take this process' GPU to be `gpu`, until the context is left, however that happens.

    Gives a list that gets one mapping for each kernel that is compiled meanwhile: what it is called, what it takes, and
    which of how many configurations was taken for it, since none could be tried. Nothing can be run.

    Raises `EnvironmentProblem`, before anything is changed, for a version of torch that is not known, and for one that
    lacks a part that would have to answer. Not for processes that use a GPU: meant for a compiler process of its own.
    """
    import torch

    version = str(torch.__version__)
    known = _range_of(version)
    if known is None:
        raise EnvironmentProblem(
            Problem(
                where="a GPU that is not here",
                found=unknown_torch(version),
                wanted=f"torch {' or '.join(map(str, _RANGES))}",
                hint="compile on a node that has the GPU, and share its entries by a tier or a bundle",
            )
        )
    answers = importlib.import_module(known.module).answers
    with answers(gpu) as kernels:
        yield kernels


@attrs.frozen
class Replacement:
    """A part of another package, and what stands in its place: `name` is an attribute of `owner`, or a key of a mapping."""

    owner: Any
    name: str
    value: Any

    @property
    def _place(self) -> Mapping[str, Any]:
        place: Mapping[str, Any] = self.owner if isinstance(self.owner, dict) else vars(self.owner)
        return place

    def problem(self) -> str:
        """What is missing where this would go; an empty text where nothing is."""
        if self.name in self._place:
            return ""
        return f"{getattr(self.owner, '__name__', type(self.owner).__name__)}.{self.name}"

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Puts the value in place, and what was there before back at the end."""
        held = self._place[self.name]
        self._put(self.value)
        try:
            yield
        finally:
            self._put(held)

    def _put(self, value: Any) -> None:
        if isinstance(self.owner, dict):
            self.owner[self.name] = value
        else:
            setattr(self.owner, self.name, value)


@contextlib.contextmanager
def replaced(*replacements: Replacement) -> Iterator[None]:
    """Puts all replacements in place, until the context is left. Raises `EnvironmentProblem` where parts are missing, and
    changes nothing then."""
    missing = [problem for r in replacements if (problem := r.problem())]
    if missing:
        raise EnvironmentProblem(
            Problem(
                where="a GPU that is not here",
                found=f"no {', '.join(missing)} in this torch or Triton",
                wanted="the parts by which the compiler asks for a GPU",
                hint="install the versions that graphspec was tested with, or compile on a node that has the GPU",
            )
        )
    with contextlib.ExitStack() as stack:
        for replacement in replacements:
            stack.enter_context(replacement.in_place())
        yield
