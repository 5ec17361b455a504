"""Requests to warmed engines while every compile is forbidden, for a process of its own: an audit hook is there for good.

Run as ``python -P -m support.after_ready CACHE CONFIG...``. Each CONFIG is the text of a config. An entry in CACHE without a
library, as `store_units` makes it, stands for the unit's own function.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphspec.cache.entry import Entry
from graphspec.cache.loading import artifact
from graphspec.cache.units import CompileUnit
from graphspec.capture.manager import CaptureManager
from graphspec.capture.program import load_program
from graphspec.capture.warmup import Ready, make_ready
from graphspec.config.engine import EngineConfig
from graphspec.engine.executor import Executor
from graphspec.engine.generate import Generator
from graphspec.engine.sampling import SamplingParams
from graphspec.resolve.spec import EngineSpec
from support.stored import NO_LIBRARY

COMPILERS = (
    "torch._inductor",
    "torch._dynamo",
    "torch.export._trace",
    "triton",
    "numba",
    "graphspec.cache.compiling.compiler",
    "graphspec.cache.dynamo.backend",
    "graphspec.cache.compiling.trace",
)
"""What compiles or traces, or is needed for it."""
PROCESSES = frozenset(
    ("subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system")
)
MAX_TOKENS = 6
PROMPTS = {
    "drafts from the first step on": [5, 6, 7, 8, 9, 10, 5, 6, 7, 8, 9],
    "several chunks": list(range(20, 90)),
    "nothing to compute before the first step": [3],
    "nothing that repeats": [11, 12, 13],
}


class Refused(BaseException):
    """What is forbidden was tried. No handler of Exception takes it for a package that is missing."""


def is_compiler(module: str) -> bool:
    """Whether importing this module is the beginning of a compile."""
    return any(module == name or module.startswith(f"{name}.") for name in COMPILERS)


def compilers_in_memory() -> list[str]:
    """Modules that compile and are loaded."""
    return sorted(name for name in sys.modules if is_compiler(name))


def arm(tried: list[str]) -> None:
    """Refuses the import of a compiler and the start of a process from now on, and lists what was tried."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in PROCESSES or (event == "import" and is_compiler(str(arguments[0]))):
            tried.append(f"import {arguments[0]}" if event == "import" else event)
            raise Refused(tried[-1])

    sys.addaudithook(hook)


def plain(unit: CompileUnit, spec: EngineSpec) -> Callable[..., Any]:
    """The unit's own function, which returns what an artifact returns."""
    function = unit.build(spec)

    def call(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        made = function(*inputs)
        return made if isinstance(made, tuple) else (made,)

    return call


def stand_in(specs: Sequence[EngineSpec]) -> None:
    """Entries without a library are loaded as the function of their unit."""
    functions = {u.name: plain(u, s) for s in specs for u in load_program(s).units()}
    load = artifact.load_artifact

    def load_artifact(entry: Entry, *, single_threaded: bool = False) -> Any:
        if bytes(entry.payload) == NO_LIBRARY:
            return functions[str(entry.metadata["unit"])]
        return load(entry, single_threaded=single_threaded)

    artifact.load_artifact = load_artifact


def serve(ready: Ready) -> Counter[str]:
    """Each prompt alone, and all at once; gives how steps ran, and how many drafts there were. Any other engine than the
    reference replays each of its graphs."""
    if not isinstance(ready.source, Executor):
        return replayed(ready.manager)
    generator = Generator(ready.source, ready.manager)
    prompts = list(PROMPTS.values())
    params = SamplingParams(max_tokens=MAX_TOKENS)
    made = [m for group in ([p] for p in prompts) for m in generator.generate(group, params)]
    made += generator.generate(prompts, params)
    counts = {"drafted": sum(m.drafted for m in made), "tokens": sum(len(m.tokens) for m in made)}
    return generator.routes + Counter(counts)


def replayed(manager: CaptureManager) -> Counter[str]:
    """How often each graph ran."""
    for key in manager.captured:
        manager.replay(key)
    return Counter(map(str, manager.captured))


def noticed(tried: list[str]) -> list[str]:
    """What is refused of a compile by each way that there is; the list is emptied."""
    ways = (
        lambda: torch.compile(torch.relu)(torch.ones(1)),
        lambda: __import__("graphspec.cache.compiling.compiler"),
        lambda: __import__("subprocess").run(["g++", "--version"], check=False),
    )
    for way in ways:
        try:
            way()
        except Refused:
            continue
        tried.append("nothing")
    found = list(tried)
    tried.clear()
    return found


def main() -> None:
    """Prints what was compiled before, what was tried while serving, and what the hook sees of real compiles."""
    cache, *configs = sys.argv[1:]
    specs = [EngineConfig.from_dict(json.loads(text)).resolve() for text in configs]
    stand_in(specs)
    engines = [make_ready(spec, cache_dir=cache) for spec in specs]
    told: dict[str, Any] = {
        "compiled": [ready.report.compiled for ready in engines],
        "captured": [sorted(map(str, ready.manager.captured)) for ready in engines],
        "compilers at ready": compilers_in_memory(),
    }
    tried: list[str] = []
    arm(tried)
    told["served"] = [serve(ready) for ready in engines]
    told["tried while serving"] = list(tried)
    told["compilers after serving"] = compilers_in_memory()
    tried.clear()
    told["noticed afterwards"] = noticed(tried)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
