"""Torch and Triton take a described GPU for the machine's own, and are as they were when the context is left."""

import contextlib
import copy
import importlib
import itertools
import types

import attrs
import pytest
import torch

from graphspec.cache.compiling import described
from graphspec.cache.compiling.described import (
    DescribedGpu,
    Replacement,
    described_gpu,
    replaced,
    unknown_torch,
)
from graphspec.cache.compiling.toolchain import compiler_options
from graphspec.config.device import DeviceConfig, Target
from graphspec.errors import EnvironmentProblem

small_kernel = pytest.importorskip("support.small_kernel")
answers = pytest.importorskip("graphspec.cache.compiling.described_torch_2_13")

H200 = DescribedGpu(
    name="NVIDIA H200",
    architecture="sm_90",
    multiprocessors=132,
    memory_bytes=143_156 << 20,
    warp_size=32,
    registers=255,
    threads=1024,
    shared_bytes=227 << 10,
    registers_per_multiprocessor=65536,
    threads_per_multiprocessor=2048,
)

pytestmark = pytest.mark.skipif(
    unknown_torch(str(torch.__version__)) != "", reason="a torch that no range has"
)


def state():
    """All that the context replaces, and the settings that it changes."""
    import torch._inductor.config as settings
    from torch._dynamo.device_interface import get_interface_for_device

    get_interface_for_device("cpu")  # Torch registers its interfaces when it is first asked.
    places = {(id(r.owner), r.name): r._place[r.name] for r in answers._replacements(H200, [])}
    names = list(answers._WITHOUT_TRIALS)
    return places, {name: settings.get_config_copy()[name] for name in names}


@pytest.mark.parametrize("error", [None, RuntimeError("in it"), KeyboardInterrupt()], ids=repr)
def test_everything_is_as_before_however_the_context_is_left(error):
    """Parts by identity, settings by value, and nothing that was remembered of the GPU."""
    from torch._inductor.runtime.hints import DeviceProperties
    from torch.utils._triton import has_triton

    before, had = state(), has_triton()
    expected = contextlib.nullcontext() if error is None else pytest.raises(type(error))
    with expected, described_gpu(H200):
        places, settings = state()
        assert all(places[key] is not held for key, held in before[0].items())
        assert settings == dict(answers._WITHOUT_TRIALS)
        assert has_triton()
        DeviceProperties.create(torch.device("cuda", 0))
        if error is not None:
            raise error
    after = state()
    assert all(after[0][key] is held for key, held in before[0].items())
    assert after[1] == before[1]
    assert has_triton() == had
    assert DeviceProperties.create.cache_info().currsize == 0


@pytest.mark.parametrize(
    ("architecture", "number", "capability"),
    [("sm_80", 80, (8, 0)), ("sm_90", 90, (9, 0)), ("sm_100", 100, (10, 0))],
)
def test_the_gpu_answers_for_itself_in_every_way_that_it_is_asked(architecture, number, capability):
    """Triton's target, torch's interface, torch.cuda and inductor's own notes tell of one device."""
    from torch._dynamo.device_interface import get_interface_for_device
    from torch._inductor.runtime.hints import DeviceProperties
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    gpu = attrs.evolve(H200, architecture=architecture)
    with described_gpu(gpu):
        assert driver.active.get_current_target() == GPUTarget("cuda", number, 32)
        assert torch.cuda.get_device_capability() == capability
        assert torch.cuda.get_device_properties(0).name == "NVIDIA H200"
        assert not torch.cuda.is_available()
        interface = get_interface_for_device("cuda")
        assert interface.is_available()
        assert interface.get_compute_capability() == number
        noted = DeviceProperties.create(torch.device("cuda", 0))
    assert (noted.type, noted.cc, noted.major) == ("cuda", number, capability[0])
    assert (noted.multi_processor_count, noted.warp_size) == (132, 32)
    assert (noted.regs_per_multiprocessor, noted.max_threads_per_multi_processor) == (65536, 2048)


@pytest.mark.parametrize("version", ["2.10.0", "2.99.0+cu130", "3.0.0a0", "unheard of"])
def test_a_torch_that_is_not_known_is_refused_before_anything_changes(version, monkeypatch):
    """The error names the version, the range, and what to do."""
    before = state()
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(EnvironmentProblem) as caught, described_gpu(H200):
        pytest.fail("entered")
    (problem,) = caught.value.problems
    assert version in problem.found
    assert "from 2.13 on and before 2.15" in problem.wanted
    assert "on a node that has the GPU" in problem.hint
    assert state() == before


def test_a_torch_that_lacks_a_part_is_refused_before_anything_changes(monkeypatch):
    """The part is named: a build of a known version that was changed, say."""
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    monkeypatch.delattr(PythonWrapperCodegen, "generate_and_run_autotune_block")
    held = torch.cuda.get_device_properties
    with (
        pytest.raises(EnvironmentProblem, match="generate_and_run_autotune_block"),
        described_gpu(H200),
    ):
        pytest.fail("entered")
    assert torch.cuda.get_device_properties is held


def test_what_is_replaced_comes_back_when_a_later_one_fails():
    """An owner that takes no attribute: those before it are put back."""
    owner, table = types.SimpleNamespace(part=1), {"part": 2}
    with (
        pytest.raises(TypeError, match="bit_length"),
        replaced(
            Replacement(owner, "part", 10),
            Replacement(table, "part", 20),
            Replacement(int, "bit_length", None),
        ),
    ):
        pytest.fail("entered")
    assert (owner.part, table) == (1, {"part": 2})


def test_a_kernel_is_read_where_a_driver_would_load_it():
    """Registers and threads as a driver tells them; a launch says that there is nothing to launch on."""
    with described_gpu(H200):
        kernel = fresh(90)
        kernel._init_handles()
        assert kernel.n_regs == small_kernel_registers()
        assert (kernel.n_spills, kernel.n_max_threads) == (0, 1024)
        with pytest.raises(EnvironmentProblem, match="not here"):
            kernel[(1,)](1, 2, 3)


def test_a_kernel_that_asks_for_more_shared_memory_than_there_is_is_refused_as_on_the_device():
    """By the same error of Triton's, upon which inductor tries another configuration."""
    from triton.runtime.errors import OutOfResources

    assert small_kernel.compiled(90).metadata.shared > 0
    with (
        described_gpu(attrs.evolve(H200, shared_bytes=0)),
        pytest.raises(OutOfResources, match="shared memory"),
    ):
        fresh(90)._init_handles()


def fresh(number):
    """The compiled kernel without what an earlier test's driver made of it."""
    kernel = copy.copy(small_kernel.compiled(number))
    kernel.module = kernel.function = kernel._run = None
    return kernel


def small_kernel_registers():
    from graphspec.cubin import read_cubin

    return read_cubin(small_kernel.cubin(90)).registers


@pytest.mark.parametrize(
    ("registers", "threads"), [(16, 1024), (64, 1024), (65, 896), (128, 512), (255, 256)]
)
def test_threads_that_fit_follow_from_the_registers(registers, threads):
    """65,536 registers in all, in eights to a thread, whole warps of 32."""
    assert H200.threads_with(registers) == threads


LAUNCH = {
    "mangled_name": "triton_0",
    "num_warps": 4,
    "shared_mem": 0,
    "config": {"XBLOCK": 256},
    "inductor_meta": {"grid_type": "Grid1D"},
    "triton_meta": {"signature": {"in_ptr0": "*fp32", "xnumel": "i32"}},
    "def_args": ["in_ptr0", "xnumel"],
    "call_args": ["in_ptr0", "xnumel"],
}


@pytest.mark.parametrize("name", [n for n in LAUNCH if n != "triton_meta"])
def test_a_launch_that_lacks_something_is_named_with_it(name):
    """Whatever the library needs to launch a kernel."""
    assert answers.launch_problems(LAUNCH, "triton_0") == []
    without = {**LAUNCH, name: None}
    assert answers.launch_problems(without, "triton_0") == [name]


def test_a_launch_of_other_arguments_or_of_another_kernel_is_named():
    """An argument without a type, a grid of no form, a binary that does not hold the symbol."""
    untyped = {**LAUNCH, "triton_meta": {"signature": {"in_ptr0": "*fp32"}}}
    assert answers.launch_problems(untyped, "triton_0") == ["the type of xnumel"]
    shapeless = {**LAUNCH, "inductor_meta": {"grid_type": ""}}
    assert answers.launch_problems(shapeless, "triton_0") == ["the form of its grid"]
    (other,) = answers.launch_problems(LAUNCH, "triton_1")
    assert "triton_1" in other


def test_ranges_do_not_overlap_and_each_names_a_module():
    """One module a range of versions."""
    ranges = sorted(described._RANGES, key=lambda r: r.first)
    assert all(a.end <= b.first for a, b in itertools.pairwise(ranges))
    assert all(hasattr(importlib.import_module(r.module), "answers") for r in ranges)


class _Normed(torch.nn.Module):
    """Reduces, and computes with what came of it."""

    def forward(self, x, weight):
        return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) * weight,)


@pytest.fixture
def wrapper_code(monkeypatch, tmp_path):
    """What would go to the C++ compiler, which needs a torch with CUDA in it."""
    from torch._inductor.codecache import AotCodeCompiler

    seen = []

    def compile(graph, wrapper_code, *arguments, **named):
        seen.append(wrapper_code)
        return str(tmp_path / "unit.so")

    monkeypatch.setattr(AotCodeCompiler, "compile", compile)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    return seen


def test_a_graph_is_compiled_for_the_gpu_up_to_its_host_code(wrapper_code):
    """By a torch that has no CUDA at all: kernels with their facts, and host code that launches them by name."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # Patterns are traced on the device itself, for which this torch has no random numbers.
    without = {"use_joint_graph_passes": False, "use_post_grad_passes": False}
    options = {**compiler_options(DeviceConfig(target=Target.CUDA)), **without}
    with FakeTensorMode(shape_env=ShapeEnv()):
        inputs = (torch.empty(8, 64, device="cuda"), torch.empty(64, device="cuda"))
    program = torch.export.export(_Normed(), inputs, strict=False)
    with described_gpu(H200) as kernels, torch.no_grad():
        torch._inductor.aot_compile(program.module(), inputs, options=options)
    assert kernels
    (code,) = wrapper_code
    for kernel in kernels:
        assert f"loadKernel(__{kernel['kernel']}_start" in code
        assert len(kernel["digest"]) == 64
        assert 0 < kernel["registers"] <= H200.registers
        assert 0 < kernel["threads"] <= H200.threads
        assert kernel["shared"] <= H200.shared_bytes
        assert "num_warps=" in kernel["config"]
        assert kernel["configs"] >= 1
