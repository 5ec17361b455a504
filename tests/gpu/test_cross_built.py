"""A cache that was built without the GPU is loaded by it as any other: nothing is compiled, and outputs are equal."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from graphspec.cache.compiling.described import unknown_torch
from graphspec.cache.compiling.device import measure_device
from graphspec.cache.load import load_or_compile
from graphspec.cache.opened import open_cache
from graphspec.cache.store import Outcome
from graphspec.capture.kernel_binaries import load_or_compile_kernels, needed_variants
from graphspec.capture.program import load_program
from graphspec.cli.common import run
from graphspec.cli.devices import devices
from graphspec.config.device import DeviceConfig, Target
from graphspec.config.engine import EngineConfig
from graphspec.engine import llama
from graphspec.fleet.devices import describe_device
from graphspec.kernels.targets import GpuTarget
from support import toy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(
        unknown_torch(str(torch.__version__)) != "",
        reason="needs a torch that can be told of a GPU",
    ),
]
TESTS = str(Path(__file__).resolve().parents[1])
CUDA = DeviceConfig(target=Target.CUDA)


@pytest.fixture
def facts(tmp_path, capsys):
    """The file that ``devices --record`` writes here, of a device whose limits are known."""
    assert run(devices, ["--record"]) == 0
    path = tmp_path / "device.json"
    path.write_text(capsys.readouterr().out)
    if describe_device(str(path)).limits is None:
        pytest.skip("the limits of this device's architecture are not known")
    return str(path)


def built_elsewhere(config, facts, tmp_path):
    """The cache that a process makes which sees no GPU, and what it said."""
    path = tmp_path / "engine.yaml"
    path.write_text(yaml.safe_dump(config))
    cache = str(tmp_path / "cache")
    path_of_tests = os.pathsep.join(filter(None, (TESTS, os.environ.get("PYTHONPATH"))))
    words = ("--config", str(path), "--device", facts, "--cache-dir", cache, "--json")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "graphspec", "warmup", *words],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path_of_tests},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    said = json.loads(done.stdout)
    assert said["findings"] == []
    assert all(unit["compiled"] and unit["stored"] for unit in said["units"])
    return cache


def loaded(config, cache):
    """Artifacts and results of a process that has the GPU, and may not compile."""
    spec = EngineConfig.from_dict(config).resolve()
    opened = open_cache(spec.cache, cache)
    artifacts, results = load_or_compile(
        load_program(spec).units(),
        spec,
        opened.store,
        opened.locks,
        single_threaded=True,
        offline=cache,
    )
    assert [(r.outcome, r.compiled) for r in results] == [(Outcome.HIT, False)] * len(results)
    return spec, opened, artifacts


def test_the_toy_program_compiles_nothing_and_computes_the_same(facts, tiny_config, tmp_path):
    """Both units, at the smallest, an odd and the largest number of rows: equal to the plain functions. The kernels of
    verification and drafting are found as well, by the keys that the device itself makes."""
    config = tiny_config(program=toy.NAME, device={"target": "cuda"})
    spec, opened, artifacts = loaded(config, built_elsewhere(config, facts, tmp_path))
    profile = measure_device(CUDA)
    target = GpuTarget(profile.kind, profile.capability[0])
    kernels = load_or_compile_kernels(needed_variants(spec), [target], opened)
    assert kernels
    assert not any(k.compiled for k in kernels)
    scale, mix = toy.build_scale(spec), toy.build_mix(spec)
    w = torch.randn(toy.WIDTH, toy.WIDTH, device="cuda")
    for rows in (1, 13, spec.scheduler.max_num_batched_tokens):
        x = torch.randn(rows, toy.WIDTH, device="cuda")
        torch.testing.assert_close(artifacts["scale"](x)[0], scale(x))
        for got, wanted in zip(artifacts["mix"](x, w), mix(x, w), strict=True):
            torch.testing.assert_close(got, wanted)


def test_a_llama_compiles_nothing_and_computes_the_same(facts, tiny_config, tmp_path):
    """The three units of the reference program, whose kernels reduce, rotate and cast: equal to the plain functions."""
    config = tiny_config(device={"target": "cuda"})
    spec, _, artifacts = loaded(config, built_elsewhere(config, facts, tmp_path))
    plain = {
        "attention_input": llama.build_attention_input(spec),
        "attention_output": llama.build_attention_output(spec),
        "head": llama.build_head(spec),
    }
    torch.manual_seed(5)
    for unit in load_program(spec).units():
        for tokens in (1, 13, spec.scheduler.max_num_batched_tokens):
            inputs = [_example(i, tokens) for i in unit.inputs]
            wanted = plain[unit.name](*inputs)
            wanted = wanted if isinstance(wanted, tuple) else (wanted,)
            for got, want in zip(artifacts[unit.name](*inputs), wanted, strict=True):
                torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def _example(declared, tokens):
    shape = [size if isinstance(size, int) else tokens for size in declared.shape]
    dtype = getattr(torch, declared.dtype)
    if not dtype.is_floating_point:
        return torch.arange(shape[0], device="cuda", dtype=dtype)
    # Small weights: sums over the width stay near one, where tolerances mean something.
    return (torch.randn(shape, device="cuda") * 0.1).to(dtype)
