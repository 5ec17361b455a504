"""A process that says what inductor would give the C++ compiler: no library is built, so a unit takes a second.

It reads a line for each spec, a program's name and the pickled spec in base64, and answers in JSON: for each unit the digest
of its key, and that of its source together with the flags that it would be compiled with.
"""

import base64
import contextlib
import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Self

from graphspec.resolve.spec import EngineSpec

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Sources:
    """The process, as a context manager."""

    def __enter__(self) -> Self:
        self._told: dict[tuple[str, EngineSpec], Mapping[str, tuple[str, str]]] = {}
        self._process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join((ROOT, os.path.join(ROOT, "tests"))),
                "PYTHONSAFEPATH": "1",
                "PYTHONWARNINGS": "ignore",
            },
        )
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.communicate()

    def of(self, program: str, spec: EngineSpec) -> Mapping[str, tuple[str, str]]:
        """Key and source of each unit that the program has for the spec, and that can be traced."""
        if (program, spec) not in self._told:
            self._told[program, spec] = self._asked(program, spec)
        return self._told[program, spec]

    def _asked(self, program: str, spec: EngineSpec) -> Mapping[str, tuple[str, str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        text = base64.b64encode(pickle.dumps(spec)).decode()
        self._process.stdin.write(f"{program} {text}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process that generates sources has ended; its errors are above"
        return {name: (key, source) for name, (key, source) in json.loads(line).items()}


@contextlib.contextmanager
def _without_the_last_step() -> Iterator[list[str]]:
    """Keeps what inductor gives its C++ builder, instead of building it."""
    from torch._inductor import config
    from torch._inductor.codecache import AotCodeCompiler

    kept: list[str] = []

    def keep(graph: Any, wrapper: str, kernels: str, extern: Any, **more: Any) -> Any:
        kept.append(f"{wrapper}\n{kernels}\n{extern}")
        return config.aot_inductor.output_path

    before = AotCodeCompiler.compile
    AotCodeCompiler.compile = keep  # type: ignore[assignment,method-assign]
    try:
        yield kept
    finally:
        AotCodeCompiler.compile = before  # type: ignore[method-assign]


def _source(unit: Any, spec: EngineSpec) -> str:
    import torch
    import torch._inductor

    from graphspec.cache.compiling.toolchain import compiler_flags, compiler_options
    from graphspec.cache.compiling.trace import trace

    traced = trace(unit, spec, "cpu")
    examples = tuple(
        torch.empty(size, dtype=getattr(torch, declared.dtype))
        for size, declared in zip(traced.sizes, unit.inputs, strict=True)
    )
    options = {**compiler_options(spec.device), "aot_inductor.output_path": "/nowhere/unit.so"}
    with _without_the_last_step() as kept, torch.no_grad():
        torch._inductor.aot_compile(traced.program.module(), examples, options=options)
    (source,) = kept
    return f"{source}\n{compiler_flags(spec.device)}"


def main() -> None:
    """Answers until standard input ends."""
    from graphspec.cache.load import keyed_units
    from graphspec.capture.program import load_program
    from graphspec.errors import CompileError
    from graphspec.fields import evolve

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        program, text = line.split()
        spec = evolve(pickle.loads(base64.b64decode(text)), program=program)
        told = {}
        for one in keyed_units(load_program(spec).units(), spec):
            with contextlib.suppress(CompileError):  # what does not trace has no source
                source = _source(one.unit, spec).encode()
                told[one.unit.name] = one.key.digest, hashlib.sha256(source).hexdigest()
        answers.write(json.dumps(told) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
