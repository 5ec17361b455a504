"""The toolchain's part of a key: versions, builds, settings and switches that change code, and no others."""

import importlib.metadata
import os
import shutil
import types

import attrs
import pytest
import torch

import graphspec
from graphspec.cache.compiling import toolchain as toolchain_module
from graphspec.cache.compiling.compiler import Compiler, _compiler_version
from graphspec.cache.compiling.device import measure_device
from graphspec.cache.compiling.toolchain import compiler_flags, compiler_options, toolchain
from graphspec.cache.compiling.torch_state import set_torch_state, torch_state
from graphspec.cache.compiling.trace import Trace
from graphspec.cache.entry import Entry
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.load import keyed_units
from graphspec.cache.store import Outcome
from graphspec.cache.units import DynamicDim, unit_key
from graphspec.config.device import CpuIsa, DeviceConfig, DeviceProfile, Target
from graphspec.keys.encoding import decode, encode
from graphspec.keys.factors import digest
from support.entries import METADATA
from support.toy import program

CPU = DeviceConfig()
CUDA = DeviceConfig(target=Target.CUDA)


@pytest.fixture
def unit(tiny_spec):
    return program(tiny_spec).units()[0]


@pytest.fixture
def usual_state():
    """Puts back torch's switches."""
    yield
    set_torch_state({})


def key(unit, spec, device):
    """A key for a described device."""
    return unit_key(unit, spec, toolchain=toolchain(CPU), device=device, options={})


VERSIONS = {
    "torch": (torch, "__version__", "2.99.0"),
    "torch build": (torch.version, "git_version", "abc"),
    "debug build": (torch.version, "debug", True),
    "CUDA toolkit": (torch.version, "cuda", "99.9"),
    "ROCm toolkit": (torch.version, "hip", "9.9"),
    "graphspec": (graphspec, "__version__", "9.9"),
    "pipeline": (toolchain_module, "COMPILER_EPOCH", 99),
    "Python": (toolchain_module.sys, "version_info", (3, 99)),
    "triton": (toolchain_module, "triton_build", lambda: ("9.9", "digest")),
}


@pytest.mark.parametrize(("owner", "name", "value"), VERSIONS.values(), ids=VERSIONS)
def test_B12_each_version_moves_the_toolchain(monkeypatch, owner, name, value):
    """Front end, code generator, toolkit, product: another version of any is another key."""
    before = encode(toolchain(CUDA))
    monkeypatch.setattr(owner, name, value)
    assert encode(toolchain(CUDA)) != before


def test_B12_the_driver_is_in_no_key(monkeypatch):
    """Code for a toolkit runs under every driver that supports it, so another driver is no other key."""
    before = toolchain(CUDA)
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 99999, raising=False)
    assert toolchain(CUDA) == before
    assert "driver" not in str(before)


class File:
    """A line of a wheel's list."""

    def __init__(self, path, value):
        self._path = path
        self.parts = tuple(path.split("/"))
        self.hash = types.SimpleNamespace(value=value) if value else None

    def __str__(self):
        return self._path


def test_the_build_of_triton_is_the_content_of_its_wheel(monkeypatch):
    """Two builds of one version differ; the installer's own files and the order of the list do not matter."""

    def build(*files, version="3.7.1"):
        found = types.SimpleNamespace(version=version, files=[File(*f) for f in files] or None)
        monkeypatch.setattr(importlib.metadata, "distribution", lambda name: found)
        return toolchain_module.triton_build()

    one = (("triton/a.py", "h1"), ("triton/b.so", "h2"))
    usual = build(*one)
    assert build(*reversed(one)) == usual
    assert (
        build(*one, ("triton-3.7.1.dist-info/INSTALLER", "h3"), ("../../bin/proton", "h4")) == usual
    )
    assert build(*one, ("triton/a.pyc", None)) == usual
    assert build(("triton/a.py", "h1"), ("triton/b.so", "h9")) != usual
    assert build(*one, version="3.7.2") != usual
    assert build() is not None


def test_without_triton_there_is_no_build(monkeypatch):
    """A CUDA key of a machine without Triton says so."""

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert toolchain(CUDA)["triton"] is None


def test_the_host_processor_is_in_a_cuda_key(monkeypatch):
    """The code that launches kernels is compiled for the host's processor, or for a baseline that travels."""
    native = toolchain(CUDA)["host"]
    assert native == measure_device(CPU)
    monkeypatch.setattr(
        "graphspec.cache.compiling.device._cpu_flags", lambda: frozenset(("avx2", "sse2"))
    )
    assert toolchain(CUDA)["host"] != native
    assert "host" not in toolchain(CPU)


@pytest.mark.parametrize("target", Target)
def test_a_stated_baseline_holds_for_host_code_on_any_device(target):
    """Flags and vector width follow device.isa, whatever the target."""
    device = DeviceConfig(target=target, isa=CpuIsa.X86_64_V3)
    assert compiler_flags(device) == ("-march=x86-64-v3",)
    assert compiler_options(device)["cpp.simdlen"] == 256
    native = DeviceConfig(target=target)
    assert compiler_flags(native) == ()
    assert "cpp.simdlen" not in compiler_options(native)


def test_usual_settings_add_nothing(monkeypatch):
    """An environment and a torch as they come leave no mark, so that no key holds empty parts."""
    for name in list(toolchain_module.code_environment(os.environ)):
        monkeypatch.delenv(name)
    assert not toolchain(CPU).keys() & {"environment", "torch_state"}


SWITCHES = {
    "default dtype": lambda: torch.set_default_dtype(torch.bfloat16),
    "deterministic operators": lambda: torch.use_deterministic_algorithms(True),
    "precision of matmul on cuda": lambda: torch.set_float32_matmul_precision("high"),
    "precision of convolution on cuda": lambda: setattr(
        torch.backends.cudnn.conv, "fp32_precision", "ieee"
    ),
    "precision of matmul on cpu": lambda: setattr(
        torch.backends.mkldnn.matmul, "fp32_precision", "bf16"
    ),
    "flash attention": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "memory-efficient attention": lambda: torch.backends.cuda.enable_mem_efficient_sdp(False),
    "attention in plain operators": lambda: torch.backends.cuda.enable_math_sdp(False),
}


@pytest.mark.parametrize(("name", "change"), SWITCHES.items(), ids=SWITCHES)
def test_a_switch_of_torch_is_in_the_key_and_can_be_carried_over(usual_state, name, change):
    """An engine that changes the default dtype or asks for determinism has other code: in the key, and in the compiler."""
    assert torch_state() == {}
    change()
    state = torch_state()
    assert name in state
    assert toolchain(CPU)["torch_state"] == state
    encode(state)
    set_torch_state({})
    assert torch_state() == {}
    set_torch_state(state)
    assert torch_state() == state


def test_saying_what_is_usual_changes_nothing(usual_state):
    """Asking for the precision that holds anyway is no other setting."""
    torch.set_float32_matmul_precision("highest")
    assert torch_state() == {}


def test_settings_of_inductor_in_the_parent_do_not_reach_the_compiler(unit, monkeypatch, tmp_path):
    """The compiler is asked with the settings that are in the key, and with nothing of the parent's config."""
    import torch._inductor.config as inductor

    asked = []
    monkeypatch.setattr(Compiler, "_started", lambda self: None)
    monkeypatch.setattr(
        Compiler, "_ask", lambda self, process, request, name: asked.append(request) or 1 / 0
    )
    monkeypatch.setattr(torch.export, "save", lambda program, path: None)
    trace = Trace(
        program=types.SimpleNamespace(), reads=(), sizes=[[7, 8]], outputs=(), seconds=0.0
    )

    def request(folder):
        compiler = Compiler(compiler_flags(CPU), compiler_options(CPU), "cpu")
        compiler._folder = str(folder)
        with pytest.raises(ZeroDivisionError):
            compiler.compile(unit, trace)
        return asked.pop(), compiler._environment(), toolchain(CPU)

    usual = request(tmp_path)
    with inductor.patch({"max_autotune": True, "cpp.simdlen": 256, "epilogue_fusion": False}):
        assert request(tmp_path) == usual
    assert usual[0]["options"] == dict(compiler_options(CPU))
    assert usual[0]["torch_state"] == {}


def test_the_compilers_identity_has_no_path(tmp_path, monkeypatch):
    """What is kept of the C++ compiler is its name and version, wherever it is called from."""
    here = _compiler_version()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "/" not in here
    assert _compiler_version() == "none"


def test_B10_bounds_of_a_dynamic_size_are_in_the_key(unit, tiny_spec):
    """The sizes for which code is made are its bounds: the same graph with another maximum is another key."""

    def bounded(maximum):
        size = DynamicDim(name="rows", maximum=maximum)
        return attrs.evolve(unit, inputs=(attrs.evolve(unit.inputs[0], shape=(size, 8)),))

    assert len({key(bounded(m), tiny_spec, measure_device(CPU)) for m in (16, 4096)}) == 2


def gpu(major, minor, name="NVIDIA H100", **facts):
    """What torch says of a device."""
    return types.SimpleNamespace(
        name=name,
        major=major,
        minor=minor,
        multi_processor_count=facts.get("processors", 132),
        total_memory=facts.get("memory", 80 << 30),
        warp_size=32,
    )


def measured(monkeypatch, properties):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    return measure_device(CUDA)


def test_B11_near_neighbours_have_keys_of_their_own(unit, tiny_spec, monkeypatch):
    """Capability, name, multiprocessors and memory each count: a minor step apart is another key."""
    devices = [
        gpu(9, 0),
        gpu(12, 0),
        gpu(12, 1),
        gpu(9, 0, "NVIDIA H100 NVL"),
        gpu(9, 0, processors=114),
        gpu(9, 0, memory=94 << 30),
    ]
    keys = [key(unit, tiny_spec, measured(monkeypatch, d)).digest for d in devices]
    assert len(set(keys)) == len(devices)
    again = measured(monkeypatch, gpu(9, 0))
    assert key(unit, tiny_spec, again).digest == keys[0]
    assert again == DeviceProfile(
        kind="cuda",
        name="NVIDIA H100",
        capability=("sm_90",),
        multiprocessors=132,
        memory_bytes=80 << 30,
        warp_size=32,
    )


def test_B11_an_entry_that_was_copied_under_another_devices_key_does_not_load(
    unit, tiny_spec, monkeypatch, tmp_path
):
    """An entry says which device it is for; under another's name it is corrupt, never a hit."""
    here, there = (key(unit, tiny_spec, measured(monkeypatch, gpu(12, minor))) for minor in (0, 1))
    assert decode(here.text)["device"].fields["capability"] == ("sm_120",)
    store = DiskStore(str(tmp_path))
    store.put(Entry(key=here, metadata=METADATA, payload=b"library"))
    os.makedirs(os.path.dirname(store.path_of(there)), exist_ok=True)
    shutil.copy(store.path_of(here), store.path_of(there))
    assert store.get(here).outcome is Outcome.HIT
    assert store.get(there).outcome is not Outcome.HIT
    assert store.get(there).entry is None
    assert digest(there.text) == there.digest


def test_a_described_device_and_a_measured_one_have_one_key(unit, tiny_spec, monkeypatch):
    """A key for a GPU that is not in the machine is the key that the machine with it makes."""
    described = DeviceProfile(
        kind="cuda",
        name="NVIDIA H100",
        capability=("sm_90",),
        multiprocessors=132,
        memory_bytes=80 << 30,
        warp_size=32,
    )
    assert key(unit, tiny_spec, described) == key(unit, tiny_spec, measured(monkeypatch, gpu(9, 0)))


def test_a_key_that_changes_while_its_unit_is_compiled_is_refused(
    unit, tiny_spec, monkeypatch, tmp_path
):
    """A file, variable or switch that somebody changes in the middle: nothing is stored, the unit is named."""
    from graphspec.cache.compiling.compiler import Compiled
    from graphspec.cache.folder.locks import KeyLocks
    from graphspec.cache.load import load_or_compile
    from graphspec.errors import CompileError

    def compile_while_it_changes(self, unit, traced):
        monkeypatch.setenv("TORCHINDUCTOR_FREEZING", "1")
        return Compiled(library=b"", seconds=0.0, provenance={})

    monkeypatch.setattr(Compiler, "compile", compile_while_it_changes)
    store = DiskStore(str(tmp_path))
    (before,) = keyed_units([unit], tiny_spec)
    with pytest.raises(CompileError, match="unit scale: found another key than before"):
        load_or_compile([unit], tiny_spec, store, KeyLocks(str(tmp_path)))
    for keyed in (before, *keyed_units([unit], tiny_spec)):
        assert store.get(keyed.key).outcome is Outcome.MISS
