"""One process of bench/cache.py: ``prepare``, ``load``, ``put``, ``memory`` or ``check``. Prints one JSON line.

The unit is the example's attention output and MLP, whose library is 1.5 MB as torch's compiler leaves it by default
(graphspec's own compiler strips it to 0.3 MB). Every way of loading gets the same unit, and ours the very same library.
"""

import json
import os
import statistics
import sys
import time
import zipfile
from types import SimpleNamespace

UNIT = "attention_output"
AGAIN = 8
AGAIN_COMPILE = 3


def unit_of_the_example():
    import graphspec
    from graphspec.capture.program import load_program

    spec = graphspec.load("examples/smollm2-ngram.yaml")
    return spec, {u.name: u for u in load_program(spec).units()}


def inputs_of(unit, rows=5):
    import torch

    from graphspec.cache.units import DynamicDim

    return [
        torch.ones(
            [rows if isinstance(d, DynamicDim) else d for d in i.shape],
            dtype=getattr(torch, i.dtype),
        )
        for i in unit.inputs
    ]


def library_in(package):
    with zipfile.ZipFile(package) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".so")]
        return archive.read(name)


def key_of(name):
    from graphspec.cache.units import EntryKey
    from graphspec.keys.factors import digest

    text = f"bench {name}".encode()
    return EntryKey(text, digest(text))


def entry_of(name, payload, metadata):
    from graphspec.cache.entry import Entry

    return Entry(key=key_of(name), metadata=metadata, payload=payload)


def compiled(unit, spec, inputs):
    """torch.compile of the unit, called once: it compiles, or loads, at its first call."""
    import torch

    from graphspec.cache.units import DynamicDim

    function = torch.compile(unit.build(spec), fullgraph=True)
    for wanted, tensor in zip(unit.inputs, inputs, strict=True):
        if isinstance(wanted.shape[0], DynamicDim):
            torch._dynamo.mark_dynamic(tensor, 0)
    function(*inputs)
    return function


def prepare(folder):
    """Compiles the unit in each way, and stores our entries: one for the first load, and one for each after it.

    Entries after the first hold the library with a few bytes behind it, so that each load is of a new library.
    """
    import torch
    from torch._inductor import aoti_compile_and_package, standalone_compile
    from torch.fx.experimental.proxy_tensor import make_fx

    from graphspec.cache.folder.disk import DiskStore
    from graphspec.cache.units import DynamicDim, signature

    spec, units = unit_of_the_example()
    unit = units[UNIT]
    function, examples = unit.build(spec), tuple(inputs_of(unit, rows=7))

    class Module(torch.nn.Module):
        def forward(self, *tensors):
            return function(*tensors)

    rows = torch.export.Dim("tokens", max=spec.scheduler.max_num_batched_tokens)
    dynamic = tuple({0: rows} if isinstance(i.shape[0], DynamicDim) else {} for i in unit.inputs)
    seconds = {}
    with torch.no_grad():
        began = time.perf_counter()
        program = torch.export.export(Module(), examples, dynamic_shapes=(dynamic,), strict=False)
        package = os.path.join(folder, "unit.pt2")
        options = {"aot_inductor.precompile_headers": False, "cpp.vec_isa_ok": True}
        aoti_compile_and_package(program, package_path=package, inductor_configs=options)
        seconds["package"] = time.perf_counter() - began
        began = time.perf_counter()
        graph = make_fx(lambda *tensors: [function(*tensors)], tracing_mode="symbolic")(*examples)
        artifact = standalone_compile(graph, list(examples), dynamic_shapes="from_graph")
        artifact.save(path=os.path.join(folder, "artifact"), format="binary")
        seconds["artifact"] = time.perf_counter() - began
        began = time.perf_counter()
        compiled(unit, spec, inputs_of(unit))
        seconds["compile"] = time.perf_counter() - began
    library = library_in(package)
    metadata = {
        "unit": UNIT,
        "device": "cpu",
        "signature": signature(unit),
        "outputs": [],
        "compile_seconds": seconds["package"],
    }
    store = DiskStore(os.path.join(folder, "store"))
    for at in range(AGAIN + 1):
        payload = library + at.to_bytes(8, "little")
        assert store.put(entry_of(f"load {at}", payload, metadata)).written
    return {"cold_s": seconds, "library_bytes": len(library)}


def ours(folder, at):
    from graphspec.cache.folder.disk import DiskStore
    from graphspec.cache.loading.artifact import load_artifact

    return load_artifact(DiskStore(os.path.join(folder, "store")).get(key_of(f"load {at}")).entry)


def package(folder, at):
    import torch._inductor

    return torch._inductor.aoti_load_package(os.path.join(folder, "unit.pt2"))


def artifact(folder, at):
    import torch._inductor

    forget(at)
    path = os.path.join(folder, "artifact")
    return torch._inductor.CompiledArtifact.load(path=path, format="binary")


def torch_compile(folder, at):
    spec, units = unit_of_the_example()
    forget(at)
    return compiled(units[UNIT], spec, inputs_of(units[UNIT]))


def forget(at):
    """Clears what torch has in memory from an earlier load, so that it loads from its hot caches on disk."""
    if at:
        import torch._dynamo
        import torch._inductor.utils

        torch._dynamo.reset()
        torch._inductor.utils.clear_caches()


WAYS = {f.__name__: f for f in (ours, package, artifact, torch_compile)}


def load(way, folder):
    """Milliseconds to a callable. `start_ms`: in a new process, from the moment when torch is imported, with what the way
    imports. `again_ms`: the median of later loads, with everything imported. Both also as processor time, which other
    work on the machine does not stretch."""
    import torch

    taken, spent, loaded = [], [], []
    with torch.no_grad():
        for at in range((AGAIN_COMPILE if way == "torch_compile" else AGAIN) + 1):
            began, busy = time.perf_counter(), time.process_time()
            loaded.append(WAYS[way](folder, at))
            taken.append((time.perf_counter() - began) * 1000)
            spent.append((time.process_time() - busy) * 1000)
        inputs = inputs_of(unit_of_the_example()[1][UNIT])
        for call in loaded:
            out = call(*inputs)
            out = out[0] if isinstance(out, list | tuple) else out
            assert out.shape == (5, 576)
    return {
        "start_ms": taken[0],
        "again_ms": statistics.median(taken[1:]),
        "start_cpu_ms": spent[0],
        "again_cpu_ms": statistics.median(spent[1:]),
        "sum": out.sum().item(),
        "inductor_loaded": "torch._inductor" in sys.modules,
    }


def memory(folder):
    """By how many bytes the process's peak grows from lookup to callable."""
    import resource

    import torch

    import graphspec.cache.loading.artifact  # noqa: F401

    torch.ones(8, 8) @ torch.ones(8, 8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loaded = ours(folder, 0)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert loaded.name == UNIT
    return {"growth_bytes": (after - before) * 1024}


def put(folder, durable, name, count):
    """Puts `count` entries of 1.5 MB. It says when it is ready, and begins when it is told to."""
    from graphspec.cache.folder.disk import DiskStore

    store = DiskStore(folder, durable=durable == "durable")
    library = os.urandom(1 << 20) + bytes(1 << 19)
    entries = [
        entry_of(f"{name} {at}", library + f"{name} {at}".encode(), {"unit": "bench"})
        for at in range(int(count))
    ]
    print("ready", flush=True)
    sys.stdin.readline()
    taken = []
    for entry in entries:
        began = time.perf_counter()
        assert store.put(entry).written
        taken.append((time.perf_counter() - began) * 1000)
    return {"put_ms": taken}


def check():
    """Microseconds that the signature check of a call takes, for each unit of the example and one of twelve inputs."""
    import torch

    from graphspec.cache.loading.signature import Signature
    from graphspec.cache.units import DynamicDim, TensorInput, signature

    tokens = DynamicDim(name="tokens", maximum=512)
    twelve = [
        TensorInput(name=f"x{at}", shape=(tokens if at < 4 else 64, 64), dtype="float32")
        for at in range(12)
    ]
    units = {**unit_of_the_example()[1], "twelve": SimpleNamespace(inputs=twelve)}
    made = {
        name: (Signature(name, signature(u), "cpu").check, tuple(inputs_of(u)))
        for name, u in units.items()
    }
    taken = {name: [] for name in made}
    with torch.no_grad():
        for _ in range(1000):
            for name, (run, inputs) in made.items():
                began = time.perf_counter_ns()
                for _ in range(100):
                    run(inputs)
                taken[name].append((time.perf_counter_ns() - began) / 100_000)
    return {
        name: {
            "inputs": len(made[name][1]),
            "median_us": statistics.median(samples),
            "least_us": min(samples),
        }
        for name, samples in taken.items()
    }


ACTIONS = {f.__name__: f for f in (prepare, load, memory, put, check)}

if __name__ == "__main__":
    print(json.dumps(ACTIONS[sys.argv[1]](*sys.argv[2:])))
