"""The compiler process: reads one JSON request a line, writes one JSON answer a line.

It runs alone (``python compile_worker.py``) in a clean environment, so that nothing of the parent's process, modules
or variables reaches the compiled code, and the parent never loads the compiler.
"""

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ends this process when the thread that started it ends, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == 1:
            sys.exit(1)


def _compile(request: dict[str, Any]) -> dict[str, Any]:
    import torch
    import torch._inductor

    from graphspec.cache.compiling.sizes import demands_of
    from graphspec.cache.compiling.torch_state import set_torch_state

    began = time.perf_counter()
    for name in request["modules"]:
        importlib.import_module(name)
    for path in request["libraries"]:
        torch.ops.load_library(path)
    set_torch_state(request["torch_state"])
    program = torch.export.load(request["program"])
    options = {**request["options"], "aot_inductor.output_path": request["output"]}
    with contextlib.ExitStack() as stack:
        described = request["described"]
        kernels = stack.enter_context(_in_place_of_a_gpu(described)) if described else []
        examples = _examples(request, fake=bool(described))
        with torch.no_grad():
            path = torch._inductor.aot_compile(program.module(), examples, options=options)
    symbols = request["symbols"]
    return {
        "library": path,
        "seconds": time.perf_counter() - began,
        "kernels": kernels,
        "demands": demands_of(program, symbols) if symbols is not None else [],
    }


def _examples(request: dict[str, Any], *, fake: bool) -> tuple[Any, ...]:
    """Tensors like the inputs; without memory where there is no device to have them."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with FakeTensorMode(shape_env=ShapeEnv()) if fake else contextlib.nullcontext():
        return tuple(
            torch.empty(size, dtype=getattr(torch, dtype), device=request["device"])
            for size, dtype in request["inputs"]
        )


@contextlib.contextmanager
def _in_place_of_a_gpu(described: dict[str, Any]) -> Iterator[list[Any]]:
    """The described GPU for this machine's own, and a driver library to link against. Gives what becomes of its kernels."""
    from graphspec.cache.compiling.described import DescribedGpu, described_gpu
    from graphspec.cache.compiling.without_driver import driver_stub

    # Searched after all other places: where the driver is, nothing changes.
    os.environ["LIBRARY_PATH"] = driver_stub(os.environ["TMPDIR"])
    with described_gpu(DescribedGpu(**described)) as kernels:
        yield kernels


def main() -> None:
    """Answers requests until standard input ends."""
    die_with_parent()
    # Compilers print; the channel of answers must hold answers only.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = _compile(json.loads(line))
        except Exception as error:
            answer = {
                "error": f"{type(error).__name__}: {error}",
                "traceback": traceback.format_exc(),
            }
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
