"""Kernels for GPUs that are not here: compiled once, bounded, found by launches, and nothing else is ever compiled."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import attrs
import pytest

pytest.importorskip("triton")

from graphspec.cache.load import UnitResult
from graphspec.cache.store import Outcome
from graphspec.capture import warmup as warmup_module
from graphspec.capture.kernel_binaries import warm_kernels
from graphspec.config.device import DeviceConfig, Target
from graphspec.config.engine import EngineConfig
from graphspec.errors import KernelError, TargetError
from graphspec.kernels.resources import (
    Resources,
    bounds_text,
    over_bounds,
    read_amdgcn,
    read_bounds,
)
from graphspec.kernels.targets import GpuTarget
from support.graphs import Steps
from support.specs import ROOT

BOUNDS = ROOT / "tests" / "data" / "kernel-resources.json"
TARGETS = "cuda:sm_80,cuda:sm_90,cuda:sm_100,hip:gfx942"
NARROW = ("_bf16", "_fp16")
"""Endings of variants that differ from one that is compiled in every run in how they load logits: for the deep run."""


def run(code_or_arguments, cache=None, **environment):
    """A process of its own: other tests may have loaded kernels for the interpreter, which cannot be compiled."""
    variables = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    variables |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", **environment}
    if cache is not None:
        variables["GRAPHSPEC_CACHE_DIR"] = str(cache)
    arguments = (
        ["-c", code_or_arguments]
        if isinstance(code_or_arguments, str)
        else ["-c", "from graphspec.cli import main; main()", *code_or_arguments]
    )
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        capture_output=True,
        text=True,
        env=variables,
        cwd=ROOT,
        check=False,
    )


def compile_command(cache, *options, targets=TARGETS):
    done = run(["kernels", "compile", "--target", targets, "--json", *options], cache)
    return done, json.loads(done.stdout)


def named(names):
    return [part for name in names for part in ("--kernel", name)]


@pytest.mark.slow
def test_kernels_keep_within_the_committed_bounds_on_four_targets(tmp_path):
    """And a second run compiles nothing."""
    names = [n for n in read_bounds(str(BOUNDS)) if not n.endswith(NARROW)]
    done, said = compile_command(tmp_path, "--bounds", str(BOUNDS), *named(names))
    assert said["findings"] == []
    assert done.returncode == 0
    assert said["compiled"] == len(said["kernels"]) == 4 * len(names)
    done, again = compile_command(tmp_path, "--bounds", str(BOUNDS), *named(names))
    assert (again["compiled"], again["loaded"]) == (0, said["compiled"])
    columns = ("kernel", "target", "bytes", "registers", "spills", "shared", "key")
    for one, other in zip(said["kernels"], again["kernels"], strict=True):
        assert [one[c] for c in columns] == [other[c] for c in columns]
        assert (one["outcome"], other["outcome"]) == ("miss", "hit")


@pytest.mark.deep
def test_all_kernels_keep_within_the_committed_bounds_on_four_targets(tmp_path):
    """Every variant that there is."""
    done, said = compile_command(tmp_path, "--bounds", str(BOUNDS))
    assert said["findings"] == []
    assert done.returncode == 0


def test_no_kernel_may_spill_on_sm_90():
    """The bound on spills is 0 for every variant that has one."""
    bounds = read_bounds(str(BOUNDS))
    assert {n: b["cuda:sm_90"].spills for n, b in bounds.items()} == dict.fromkeys(bounds, 0)
    assert bounds


LAUNCHES = """
import os, sys, tempfile
from types import SimpleNamespace
os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
import torch
from triton import knobs
from graphspec.cache.opened import open_cache
from graphspec.capture import kernel_binaries
from graphspec.config.cache import CacheConfig
from graphspec.config.device import DeviceConfig, Target
from graphspec.errors import KernelError
from graphspec.kernels import batch_triton, ngram_gpu
from graphspec.kernels.seal import KernelSeal
from graphspec.kernels.targets import GpuTarget
from support.fake_gpu import fake_gpu
from support.step_rows import int64
from graphspec.kernels.batch import Requests

target = GpuTarget.parse(sys.argv[1] if len(sys.argv) > 1 else "cuda:sm_90")
spec = SimpleNamespace(
    device=DeviceConfig(target=Target.CUDA), speculative=SimpleNamespace(method="ngram_gpu"))
kernel_binaries.kernel_modules = lambda: ["graphspec.kernels.batch_triton", "graphspec.kernels.ngram_gpu"]
kernel_binaries.device_target = lambda spec: target
looked = []
knobs.compilation.listener = lambda **told: looked.append(told["cache_hit"])
with fake_gpu(target.for_triton()) as gpu:
    cache = open_cache(CacheConfig())
    results = kernel_binaries.warm_kernels(spec, cache)
    assert looked[-5:] == [True] * 5, looked
    stored = [cache.store.get(kernel_binaries.kernel_key(v, target)).entry
              for v in kernel_binaries.needed_variants(spec)]
    assert [data for _, data in gpu.loaded] == [bytes(e.payload) for e in stored]
    assert [r.name for r in results] == [e.metadata["unit"] for e in stored]

    def step(rows, columns, k, block_size, count):
        for tie in ("earliest", "latest"):
            ngram_gpu.propose_ngram_gpu(
                torch.zeros(rows, columns, dtype=torch.int32)[:, 1:], torch.zeros(rows, dtype=torch.int32),
                min_n=1, max_n=k, k=k, max_model_len=columns, tie=tie)
        batch_triton.prepare(Requests(
            tokens=int64([1] * count), cu_tokens=int64([0, count]), firsts=int64([0]), padding=int64([0]),
            blocks=torch.zeros(1, columns, dtype=torch.int64), rows=count, block_size=block_size))

    with kernel_binaries.seal_kernels(spec, strict=True) as seal:
        for rows, columns, k, block_size, count in ((1, 2, 1, 1, 1), (16, 65, 16, 16, 16), (3, 2050, 7, 5, 33)):
            step(rows, columns, k, block_size, count)
        assert seal.seen == [], seal.seen
        try:
            ngram_gpu.scan[(1,)](
                *[torch.zeros(8, dtype=d) for d in (torch.int32, torch.int32, torch.int64)],
                1 << 40, 1, 1, 1, LATEST=False, TILE=1024)
        except KernelError as error:
            assert "i64" in str(error) and "scan" in str(error)
        else:
            raise AssertionError("a launch of another form was let through")
        assert len(seal.ours) == 1
    before = len(looked)
    with KernelSeal(strict=False) as counting:
        ngram_gpu.scan[(1,)](
            *[torch.zeros(8, dtype=d) for d in (torch.int32, torch.int32, torch.int64)],
            1 << 40, 1, 1, 1, LATEST=False, TILE=1024)
    assert len(counting.ours) == 1 and len(looked) == before + 1
    assert knobs.runtime.jit_cache_hook is None
print("compiled", sum(r.compiled for r in results))
"""


@pytest.mark.slow
@pytest.mark.deep
def test_launches_find_what_the_cache_holds_and_a_seal_sees_no_other(tmp_path):
    """A driver that only pretends to be an H100: what was compiled ahead is what a launch looks up, loaded once by a warmup, whatever
    sizes and alignments batches have; and a launch of another form is an error, or is counted."""
    done = run(LAUNCHES, tmp_path)
    assert done.stdout.split() == ["compiled", "5"], done.stderr
    done = run(LAUNCHES, tmp_path)
    assert done.stdout.split() == ["compiled", "0"], done.stderr


VERIFICATIONS = """
import os, sys, tempfile
os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
import torch
from graphspec.config.speculative import RejectionSampleMethod
from graphspec.kernels.preload import preload
from graphspec.kernels.seal import KernelSeal
from graphspec.kernels.targets import GpuTarget
from graphspec.kernels.variants import variants_of
from graphspec.kernels.verify import verify_drafts
from graphspec.kernels.verify_values import FlyRule, Sampling
from support.fake_gpu import fake_gpu

target = GpuTarget.parse("cuda:sm_90")
dtypes = {"fp32": torch.float32} if len(sys.argv) < 2 else {
    "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
variants = [v for v in variants_of(["graphspec.kernels.verify_triton"]) if v.name.endswith(tuple(dtypes))]
with fake_gpu(target.for_triton()):
    preload(variants, target)
    with KernelSeal() as seal:
        for dtype in dtypes.values():
            for requests, k, vocab in ((1, 0, 1), (1, 1, 16), (16, 16, 4096), (3, 5, 127)):
                for dense in (False, True):
                    drafts = torch.zeros(requests * k, dtype=torch.int32)
                    verify_drafts(
                        torch.zeros(requests * (k + 1), vocab, dtype=dtype),
                        drafts,
                        torch.arange(requests + 1) * k,
                        sampling=Sampling.of(temperature=[1.0] * requests),
                        methods=RejectionSampleMethod.FLY,
                        fly=FlyRule(window=1),
                        draft_probs=torch.ones(requests * k, vocab) / vocab if dense else None,
                        implementation="triton",
                    )
        assert seal.seen == [], seal.seen
print("sealed")
"""


@pytest.mark.deep
def test_launches_of_verification_find_what_is_listed(tmp_path):
    """Types, constants and options of the list are those of the launches, for any batch."""
    done = run(VERIFICATIONS, tmp_path)
    assert done.stdout.split() == ["sealed"], done.stderr


@pytest.mark.deep
def test_the_same_holds_for_amd(tmp_path):
    """gfx942."""
    done = run(LAUNCHES.replace('"cuda:sm_90"', '"hip:gfx942"'), tmp_path)
    assert done.stdout.split() == ["compiled", "5"], done.stderr


HIDDEN = """
import triton
import triton.language as tl
import graphspec.kernels.variants as v
from graphspec.errors import KernelError

def fails(kernel, signature, constexprs):
    variant = v.Variant(name="x", module="m", kernel=kernel, signature=signature, constexprs=constexprs)
    return [p.where.rpartition(" ")[2] for p in v.variant_problems(variant)]
"""


def test_a_kernel_that_is_specialised_on_values_is_refused(tmp_path):
    """The first request with a batch of 1, or with an aligned buffer, would compile. So would an argument that nobody
    listed. Triton reads kernels from files, so these lie in one."""
    (tmp_path / "hidden.py").write_text(
        HIDDEN
        + """
@triton.jit
def free(x, n, TILE: tl.constexpr):
    pass

@triton.jit(do_not_specialize=["x", "n"])
def aligned(x, n, TILE: tl.constexpr):
    pass

@triton.jit(do_not_specialize=["x", "n"], do_not_specialize_on_alignment=["x", "n"])
def fixed(x, n, TILE: tl.constexpr):
    pass

types, tile = {"x": "*i32", "n": "i32"}, {"TILE": 4}
assert fails(free, types, tile) == ["x", "n"], fails(free, types, tile)
assert fails(aligned, types, tile) == ["x", "n"]
assert fails(fixed, types, tile) == []
assert fails(fixed, {"x": "*i32"}, tile) == ["x"]
assert fails(fixed, {"x": "*i32"}, {**tile, "n": 1}) == ["n"]
print("refused")
"""
    )
    done = run(f"import runpy; runpy.run_path({str(tmp_path / 'hidden.py')!r})")
    assert done.stdout.split() == ["refused"], done.stderr


def test_kernels_for_the_interpreter_cannot_be_compiled(tmp_path):
    """TRITON_INTERPRET is set: an error that says so, and no empty table."""
    done = run(["kernels", "compile", "--target", "cuda:sm_90"], tmp_path, TRITON_INTERPRET="1")
    assert done.returncode == 3
    assert "TRITON_INTERPRET" in done.stderr
    assert "Traceback" not in done.stderr


def test_targets_are_read_and_others_refused():
    """The warp size belongs to the architecture."""
    assert str(GpuTarget.parse("cuda:sm_120")) == "cuda:sm_120"
    assert GpuTarget.parse("cuda:sm_90").warp_size == 32
    assert GpuTarget.parse("hip:gfx942").warp_size == 64
    assert GpuTarget.parse("hip:gfx1100").warp_size == 32
    for text in ("sm_90", "cuda:90", "cuda:gfx942", "hip:sm_90", "cuda:", "xpu:pvc", ""):
        with pytest.raises(TargetError):
            GpuTarget.parse(text)


def test_a_target_that_is_none_is_a_usage_error_of_the_command(tmp_path):
    """Exit code 2, before anything is compiled."""
    done, said = compile_command(tmp_path, targets="cuda:sm_90,cuda:hopper")
    assert done.returncode == 2
    assert "cuda:hopper" in said["problems"][0]["found"]
    assert not list(tmp_path.iterdir())


def test_bounds_say_what_takes_more_what_has_none_and_what_is_gone():
    """One sentence each, and none for what keeps within them."""
    taken = {"a": {"t": Resources(registers=33, spills=4, shared=8)}, "new": {}}
    taken["new"]["t"] = Resources(registers=1, spills=0, shared=0)
    bounds = {
        "a": {"t": Resources(registers=40, spills=0, shared=8)},
        "gone": {"t": Resources(registers=1, spills=0, shared=0)},
    }
    assert list(over_bounds(taken, bounds, ["t"])) == [
        "a for t: spills 4, at most 0",
        "gone for t: there is a bound and no such kernel",
        "new for t: no bound",
    ]


def test_bounds_that_were_written_are_kept_by_what_they_were_written_of(tmp_path):
    """Registers are rounded up to eight, as hardware gives them out."""
    taken = {"a": {"t": Resources(registers=33, spills=0, shared=8)}}
    path = tmp_path / "bounds.json"
    path.write_text(bounds_text(taken))
    bounds = read_bounds(str(path))
    assert bounds["a"]["t"].registers == 40
    assert list(over_bounds(taken, bounds, ["t"])) == []


@pytest.mark.parametrize("text", ["", "[]", '{"a": {"t": {"registers": 1}}}', '{"a": 3}'])
def test_a_file_that_is_no_bounds_is_refused(tmp_path, text):
    """Nothing would be checked."""
    path = tmp_path / "bounds.json"
    path.write_text(text)
    with pytest.raises(TargetError, match="bounds"):
        read_bounds(str(path))


def test_spills_of_amd_count_both_kinds_of_registers():
    """And assembly without the notes is an error, not zero."""
    notes = "    .vgpr_count:     28\n    .vgpr_spill_count: 2\n    .sgpr_spill_count: 3\n"
    assert read_amdgcn(notes) == (28, 5)
    with pytest.raises(KernelError, match="sgpr_spill_count"):
        read_amdgcn(notes.replace(".sgpr_spill_count: 3", ""))


def test_a_described_device_has_a_key_without_a_name():
    """All devices of an architecture share a kernel's entry; architectures do not."""
    profile = GpuTarget.parse("cuda:sm_90").profile()
    assert (profile.kind, profile.name, profile.capability) == ("cuda", "", ("sm_90",))
    assert profile != GpuTarget.parse("cuda:sm_100").profile()


KEYS = """
import attrs
from graphspec.capture.kernel_binaries import kernel_key
from graphspec.kernels.targets import GpuTarget
from graphspec.kernels.variants import all_variants
import os
one, *others = all_variants()
t = GpuTarget.parse("cuda:sm_90")
keys = {kernel_key(v, t).digest for v in (one, *others)}
assert len(keys) == 1 + len(others)
base = kernel_key(one, t).digest
assert base == kernel_key(one, t).digest
for changed in (
    attrs.evolve(one, constexprs={n: 64 for n in one.constexprs}),
    attrs.evolve(one, options={"num_warps": 1}),
    attrs.evolve(one, signature={n: "*i8" for n in one.signature}),
):
    assert kernel_key(changed, t).digest != base
assert kernel_key(one, GpuTarget.parse("cuda:sm_100")).digest != base
os.environ["DISABLE_PTXAS_OPT"] = "1"
assert kernel_key(one, t).digest != base
print(" ".join(sorted(v.name for v in (one, *others))))
from graphspec.cli import main
main(["kernels", "compile", "--target", "cuda:sm_90", "--kernel", "batch_expnd"])
"""


def test_everything_that_changes_a_kernels_code_changes_its_key():
    """Types, constants, warps, target, and a variable by which Triton compiles otherwise. Beside it: each kernel there is
    has a bound, so that one that is added is compiled in CI; and a kernel that there is not is a usage error."""
    done = run(KEYS)
    assert done.stdout.split() == sorted(read_bounds(str(BOUNDS))), done.stderr
    assert done.returncode == 2
    assert "did you mean 'batch_expand'" in done.stderr


def test_a_contract_for_a_cpu_warms_no_kernel():
    """The cache is not even asked."""
    spec = SimpleNamespace(device=DeviceConfig(target=Target.CPU))
    assert warm_kernels(spec, cache=None) == ()


def test_kernels_are_in_the_report_of_a_warmup(monkeypatch, tiny_config, tmp_path):
    """As units are: counted, with their outcome and what could not be stored."""
    kernel = UnitResult(
        name="kernel.batch_expand",
        key="0" * 32,
        outcome=Outcome.MISS,
        reason="",
        compiled=True,
        seconds=1.0,
        seconds_saved=0.0,
        bytes=10,
        store_problem="the disk is full",
    )
    program = SimpleNamespace(units=tuple, start=lambda artifacts: Steps())
    monkeypatch.setattr(warmup_module, "load_program", lambda spec: program)
    monkeypatch.setattr(warmup_module, "warm_kernels", lambda spec, cache, strict: [kernel])
    spec = EngineConfig.from_dict(tiny_config()).resolve()
    report = warmup_module.warmup(spec, cache_dir=str(tmp_path))
    assert report.units == [kernel]
    assert report.compiled == 1
    assert any("kernel.batch_expand was not stored" in f for f in report.findings)


def test_resources_are_plain_values():
    """They go through the cache's header and JSON."""
    assert attrs.asdict(Resources(registers=1, spills=2, shared=3)) == {
        "registers": 1,
        "spills": 2,
        "shared": 3,
    }
