"""A seal over Triton's compiler: after "ready", a kernel that would be compiled is an error, or is counted."""

from collections.abc import Callable, Sequence
from typing import Any, Self

from graphspec.errors import KernelError, Problem
from graphspec.kernels.variants import PACKAGE

Hook = Callable[..., Any]


class KernelSeal:
    """Watches every launch that finds no compiled kernel in this process. Use as a context manager, or `open` it in the end.

    A kernel of graphspec's is then a `KernelError` at the launch, unless `strict` is off: `variants` lists all of them, and
    a launch beyond the list is a defect. Kernels of others are compiled and counted: they are not ours to refuse. `seen`
    has one line for each. Kernels that are in Triton's cache on disk count too: loading them also stops a step.
    """

    def __init__(self, *, strict: bool = True) -> None:
        self._strict = strict
        self._before: Hook | None = None
        self.seen: list[str] = []

    def __enter__(self) -> Self:
        from triton import knobs

        self._before = knobs.runtime.jit_cache_hook
        knobs.runtime.jit_cache_hook = self._look
        return self

    def __exit__(self, *exception: object) -> None:
        self.open()

    def open(self) -> None:
        """Ends the watch. Whoever watched before goes on."""
        from triton import knobs

        knobs.runtime.jit_cache_hook = self._before

    @property
    def ours(self) -> Sequence[str]:
        """Those of `seen` that are graphspec's kernels."""
        return [line for line in self.seen if line.startswith(PACKAGE)]

    def _look(self, **told: Any) -> Any:
        function = told["fn"]
        types, constants = told["compile"]["signature"], told["compile"]["constants"]
        values = [value for _, value in sorted(constants.items())]
        form = f"({', '.join(map(str, types.values()))}), constants {values}"
        line = f"{function.module}.{function.name}{form}"
        self.seen.append(line)
        if self._strict and line.startswith(PACKAGE):
            raise KernelError(
                Problem(
                    where=f"kernel {function.name}",
                    found=f"a launch that nothing was compiled ahead for: {form}",
                    wanted="one of the variants that the warmup has loaded",
                    hint="graphspec kernels list names them; KernelSeal(strict=False) counts instead",
                )
            )
        return self._before(**told) if self._before is not None else None
