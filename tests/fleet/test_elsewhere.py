"""Units built for a GPU that is not here: checked in place of being loaded, and found by a node that has it."""

from typing import ClassVar

import attrs
import pytest

from graphspec.cache import elsewhere, load, recompile
from graphspec.cache.compiling import trace, without_driver
from graphspec.cache.compiling.compiler import Compiled
from graphspec.cache.compiling.compiler import Compiler as RealCompiler
from graphspec.cache.compiling.without_driver import driver_stub
from graphspec.cache.elsewhere import build_elsewhere, kernel_problems, kernels_of
from graphspec.cache.entry import Entry
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.load import keyed_units, load_or_compile
from graphspec.cache.loading import artifact
from graphspec.cache.opened import open_cache
from graphspec.cache.store import Outcome
from graphspec.capture.program import load_program
from graphspec.config.engine import EngineConfig
from graphspec.errors import CacheError, EnvironmentProblem
from graphspec.fleet import cross
from graphspec.fleet.cross import described_gpu_of, warm_for
from graphspec.fleet.devices import KNOWN, describe_device
from support import fake_compiler, toy

small_kernel = pytest.importorskip("support.small_kernel")
H200 = describe_device("nvidia-h200")
GPU = described_gpu_of(H200)


@pytest.fixture
def cuda_spec(tiny_config):
    return EngineConfig.from_dict(
        tiny_config(program=toy.NAME, device={"target": "cuda"})
    ).resolve()


def facts(number=90, **changes):
    """What the compiler's process tells of the kernel in a library."""
    from graphspec.cubin import read_cubin

    read = read_cubin(small_kernel.cubin(number))
    told = {
        "kernel": "triton_0",
        "digest": read.digest,
        "registers": read.registers,
        "spills": read.spills,
        "shared": 16,
        "threads": 128,
        "config": "XBLOCK=256 num_warps=4",
        "configs": 2,
    }
    return {**told, **changes}


class Compiler(fake_compiler.FakeCompiler):
    """Gives each unit a library with the small kernel in it, and notes for whom."""

    told = facts
    number = 90
    compiled: ClassVar[list[str]] = []

    def __init__(self):
        pass

    def compile(self, unit, traced):
        self.compiled.append(unit.name)
        library = b"library of " + unit.name.encode() + small_kernel.cubin(self.number)
        return Compiled(
            library=library,
            seconds=1.0,
            provenance={"compiler": "none"},
            kernels=[Compiler.told(self.number)],
        )


@pytest.fixture
def compiler(monkeypatch):
    """Stands in the place of the compiler's process, and of tracing."""
    monkeypatch.setattr(Compiler, "compiled", [])
    monkeypatch.setattr(elsewhere._Elsewhere, "_compiler", lambda run: Compiler())
    monkeypatch.setattr(trace, "trace", lambda unit, spec, device: fake_compiler._Traced())
    return Compiler


def build(spec, folder):
    cache = open_cache(spec.cache, str(folder))
    units = load_program(spec).units()
    return build_elsewhere(units, spec, cache.store, cache.locks, H200.profile, GPU)


def test_what_is_built_is_stored_and_found_by_the_next_process(cuda_spec, tmp_path, compiler):
    """The second run compiles nothing, and tells the same of the kernels as the first."""
    first = build(cuda_spec, tmp_path)
    assert [(b.result.name, b.result.compiled) for b in first] == [("scale", True), ("mix", True)]
    again = build(cuda_spec, tmp_path)
    assert [b.result.outcome for b in again] == [Outcome.HIT] * 2
    assert [b.kernels for b in again] == [b.kernels for b in first]
    assert [k.kernel for k in again[0].kernels] == ["triton_0"]
    assert compiler.compiled == ["scale", "mix"]


def test_a_node_with_the_device_loads_it_as_its_own(cuda_spec, tmp_path, compiler, monkeypatch):
    """Under the key that the device makes, by the loader of every entry, with nothing compiled."""
    build(cuda_spec, tmp_path)
    monkeypatch.setattr(load, "measure_device", lambda device: H200.profile)
    monkeypatch.setattr(artifact, "load_artifact", lambda entry, *, single_threaded: entry)
    cache = open_cache(cuda_spec.cache, str(tmp_path))
    units = load_program(cuda_spec).units()
    artifacts, results = load_or_compile(
        units, cuda_spec, cache.store, cache.locks, offline=str(tmp_path)
    )
    assert [(r.outcome, r.compiled) for r in results] == [(Outcome.HIT, False)] * 2
    entry = artifacts["mix"]
    assert bytes(entry.payload).startswith(b"library of mix")
    assert (entry.metadata["unit"], entry.metadata["device"]) == ("mix", "cuda")


def test_what_a_node_has_compiled_is_taken_as_it_is(cuda_spec, tmp_path, compiler):
    """An entry that tells of no kernels was loaded where it was made: it is a hit, and not made again."""
    cache = open_cache(cuda_spec.cache, str(tmp_path))
    keyed = keyed_units(load_program(cuda_spec).units(), cuda_spec, device=H200.profile)
    for one in keyed:
        metadata = {"unit": one.unit.name, "device": "cuda", "compile_seconds": 1.0}
        cache.store.put(Entry(key=one.key, metadata=metadata, payload=b"made on a node"))
    built = build(cuda_spec, tmp_path)
    assert [(b.result.outcome, b.kernels) for b in built] == [(Outcome.HIT, None)] * 2
    assert compiler.compiled == []


@pytest.mark.parametrize(
    ("changes", "number", "said"),
    [
        ({"digest": "0" * 64}, 90, "no such binary"),
        ({}, 80, "code for sm_80"),
        ({"shared": (227 << 10) + 1}, 90, "bytes of shared memory"),
        ({"threads": 2048}, 90, "2048 threads"),
    ],
)
def test_a_library_that_does_not_fit_is_not_stored(
    changes, number, said, cuda_spec, tmp_path, compiler, monkeypatch
):
    """Named by the unit and the kernel, before anybody could load it."""
    monkeypatch.setattr(compiler, "told", lambda number: facts(number, **changes))
    monkeypatch.setattr(compiler, "number", number)
    with pytest.raises(CacheError, match=said) as caught:
        build(cuda_spec, tmp_path)
    assert caught.value.problems[0].where == "unit scale, kernel triton_0"
    keyed = keyed_units(load_program(cuda_spec).units(), cuda_spec, device=H200.profile)
    cache = open_cache(cuda_spec.cache, str(tmp_path))
    assert cache.store.get(keyed[0].key).entry is None


def test_registers_beyond_the_device_are_a_problem(cuda_spec):
    """Read of the binary, whatever the entry says of it."""
    key = keyed_units(load_program(cuda_spec).units(), cuda_spec, device=H200.profile)[0].key
    metadata = {"unit": "scale", "kernels": [facts(registers=1)]}
    entry = Entry(key=key, metadata=metadata, payload=b"library" + small_kernel.cubin(90))
    assert kernel_problems(entry, kernels_of(entry), GPU) == []
    (problem,) = kernel_problems(entry, kernels_of(entry), attrs.evolve(GPU, registers=2))
    assert "at most 2, which the device gives" in problem.wanted


def test_an_entry_that_is_spoilt_is_made_again(cuda_spec, tmp_path, compiler):
    """One whose kernels are told in other words is set aside, as one that does not load is."""
    build(cuda_spec, tmp_path)
    cache = open_cache(cuda_spec.cache, str(tmp_path))
    keyed = keyed_units(load_program(cuda_spec).units(), cuda_spec, device=H200.profile)[0]
    entry = cache.store.get(keyed.key).entry
    load.set_aside(cache.store, keyed.key, "for a test")
    cache.store.put(attrs.evolve(entry, metadata={**entry.metadata, "kernels": [{"name": "x"}]}))
    built = build(cuda_spec, tmp_path)
    assert [b.result.outcome for b in built] == [Outcome.STALE, Outcome.HIT]
    assert "in other words" in built[0].result.reason
    assert compiler.compiled == ["scale", "mix", "scale"]


def test_the_report_says_what_was_built_and_what_a_device_has_to_tell(
    cuda_spec, tmp_path, compiler, monkeypatch
):
    """With a compiler for it there are no findings. Notes name what was chosen untried, and what makes other keys."""
    monkeypatch.setattr(cross, "_why_not", lambda device: "")
    monkeypatch.setattr(cross, "needed_variants", lambda spec: [])
    report = warm_for(cuda_spec, H200, cache_dir=str(tmp_path))
    assert (report.findings, report.compiled) == ([], 2)
    said = report.as_dict()
    assert [(u["name"], u["stored"]) for u in said["units"]] == [("scale", True), ("mix", True)]
    assert said["units"][0]["kernels"][0]["config"] == "XBLOCK=256 num_warps=4"
    known, native, untried = report.notes
    assert "record its facts" in known
    assert "x86-64-v3 travels" in native
    assert untried.startswith("2 kernels of units have several configurations")
    again = warm_for(cuda_spec, H200, cache_dir=str(tmp_path))
    assert (again.findings, again.compiled) == ([], 0)


@pytest.mark.parametrize(
    ("cuda", "version", "limits", "said"),
    [
        (None, "2.13.0+cpu", True, "has no CUDA in it"),
        ("13.0", "2.99.0", True, "2.99.0 is not known"),
        ("13.0", "2.13.0", False, "is not known of sm_90"),
        ("13.0", "2.13.0", True, ""),
    ],
)
def test_why_units_cannot_be_built_is_said_in_a_sentence(cuda, version, limits, said, monkeypatch):
    """Before any is tried."""
    import torch

    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch, "__version__", version)
    device = H200 if limits else attrs.evolve(H200, limits=None)
    why_not = cross._why_not(device)
    assert (said in why_not) if said else why_not == ""


def test_only_nvidia_gpus_with_known_limits_are_described():
    """Of others a compiler could not be told what it asks."""
    assert described_gpu_of(attrs.evolve(H200, limits=None)) is None
    assert described_gpu_of(describe_device("amd-mi300x")) is None
    for name, known in KNOWN.items():
        gpu = described_gpu_of(describe_device(name))
        if known.profile.kind == "cuda":
            assert (gpu.registers, gpu.threads, gpu.warp_size) == (255, 1024, 32)


def test_the_stand_in_for_the_driver_says_that_there_is_no_device(tmp_path):
    """It is called as the driver is, is made once, and each call fails as without a device."""
    import ctypes

    place = driver_stub(str(tmp_path))
    library = ctypes.CDLL(f"{place}/libcuda.so")
    assert library.cuModuleLoadData() == 100
    before = (tmp_path / "driver-stub" / "libcuda.so.1").stat().st_mtime_ns
    assert driver_stub(str(tmp_path)) == place
    assert (tmp_path / "driver-stub" / "libcuda.so.1").stat().st_mtime_ns == before


@pytest.fixture
def no_toolkit(monkeypatch, tmp_path):
    """No variable, and nothing on the path."""
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    exists = without_driver.os.path.exists
    monkeypatch.setattr(
        without_driver.os.path,
        "exists",
        lambda p: not p.startswith("/usr/local/cuda") and exists(p),
    )
    return tmp_path


def toolkit(folder):
    (folder / "include").mkdir(parents=True)
    (folder / "include" / "cuda.h").touch()
    (folder / "bin").mkdir()
    nvcc = folder / "bin" / "nvcc"
    nvcc.touch(mode=0o755)
    return folder


def test_the_toolkit_is_named_or_is_where_its_compiler_is(no_toolkit, monkeypatch):
    """A name without headers is passed over: a script on the path that calls a compiler elsewhere, say."""
    real = toolkit(no_toolkit / "real")
    script = no_toolkit / "bin" / "nvcc"
    script.parent.mkdir()
    script.touch(mode=0o755)
    with pytest.raises(EnvironmentProblem, match="set CUDA_HOME") as caught:
        without_driver.cuda_home()
    assert str(no_toolkit) in caught.value.problems[0].found
    monkeypatch.setenv("PATH", str(real / "bin"))
    assert without_driver.cuda_home() == str(real)
    other = toolkit(no_toolkit / "other")
    monkeypatch.setenv("CUDA_HOME", str(other))
    assert without_driver.cuda_home() == str(other)


def test_the_compilers_process_for_a_described_gpu_sees_no_other(no_toolkit, monkeypatch):
    """Whatever this machine has, and however many helpers its inductor would start; others are as they were."""
    monkeypatch.setenv("CUDA_HOME", str(toolkit(no_toolkit / "cuda")))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    described = RealCompiler((), {}, "cuda", GPU)._environment()
    assert described["CUDA_VISIBLE_DEVICES"] == ""
    assert described["TORCHINDUCTOR_COMPILE_THREADS"] == "1"
    assert described["CUDA_HOME"] == str(no_toolkit / "cuda")
    usual = RealCompiler((), {}, "cuda")._environment()
    assert usual["CUDA_VISIBLE_DEVICES"] == "3"
    assert "TORCHINDUCTOR_COMPILE_THREADS" not in usual


def test_line_tables_are_left_out_for_gpus_alone(monkeypatch):
    """They have paths of the build. Whoever asks for them has them in the key, and gets them."""
    monkeypatch.delenv("TRITON_DISABLE_LINE_INFO", raising=False)
    assert RealCompiler((), {}, "cuda")._environment()["TRITON_DISABLE_LINE_INFO"] == "1"
    assert "TRITON_DISABLE_LINE_INFO" not in RealCompiler((), {}, "cpu")._environment()
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "0")
    assert RealCompiler((), {}, "cuda")._environment()["TRITON_DISABLE_LINE_INFO"] == "0"


def test_an_entry_that_was_built_without_the_gpu_is_not_compared(cuda_spec, tmp_path, compiler):
    """A compile beside the GPU may choose otherwise, and be as right."""
    build(cuda_spec, tmp_path)
    keyed = keyed_units(load_program(cuda_spec).units(), cuda_spec, device=H200.profile)[0]
    compared = recompile._compared(keyed, cuda_spec, DiskStore(str(tmp_path)))
    assert "built without its GPU" in compared.reason
    assert compiler.compiled == ["scale", "mix"]
