"""Entries for GPUs that are not here: built by a CUDA build of torch, and loaded up to the call of the driver.

Run by ``make cross-test``, in a virtual environment of its own. The table that it prints is of the example.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from graphspec.api import load
from graphspec.cache.compiling.compiler import Compiler
from graphspec.cache.compiling.toolchain import compiler_flags, compiler_options
from graphspec.cache.compiling.trace import trace
from graphspec.capture.program import load_program
from graphspec.fleet.cross import described_gpu_of
from graphspec.fleet.devices import describe_device

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = str(ROOT / "examples" / "smollm2-ngram.yaml")
DEVICES = {"nvidia-a100-40gb": "sm_80", "nvidia-h200": "sm_90", "nvidia-b200": "sm_100"}
UNITS = ["attention_input", "attention_output", "head"]
# The library asks CUDA when it makes its first model, and says why on stderr; from torch 2.14 on the loader asks before.
NO_DEVICE = ("create_func_", "CUDA is not available in this process")

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU"),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One folder for all devices, as a builder would fill it."""
    return str(tmp_path_factory.mktemp("cross") / "cache")


def run(*words, **variables):
    """A command in a process of its own, that ended well or with findings."""
    done = subprocess.run(
        [sys.executable, "-P", *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout[-4000:] + done.stderr[-4000:]
    return done


def warmup(cache, device, *more):
    words = ("warmup", "--config", EXAMPLE, "--set", "device.isa=x86-64-v3", "--device", device)
    return run("-m", "graphspec", *words, "--cache-dir", cache, *more)


@pytest.fixture(scope="module")
def first(cache):
    """By device, how the first run for it ended, and what it said."""
    runs = {device: warmup(cache, device, "--json") for device in DEVICES}
    return {device: (done.returncode, json.loads(done.stdout)) for device, done in runs.items()}


@pytest.mark.parametrize("device", DEVICES)
def test_units_and_kernels_are_built_and_nothing_is_lacking(device, first):
    """Each unit of the example is compiled and stored, with the kernels that its library holds."""
    code, said = first[device]
    assert (code, said["findings"]) == (0, [])
    assert [(u["name"], u["stored"]) for u in said["units"]] == [(name, True) for name in UNITS]
    assert all(u["compiled"] and u["kernels"] for u in said["units"])
    assert said["device"]["capability"] == [DEVICES[device]]


@pytest.mark.parametrize("device", DEVICES)
def test_a_fresh_process_finds_all_by_key_and_prints_what_they_take(device, first, cache, capsys):
    """Under the same description nothing is compiled again; the binaries are read once more, and fit."""
    _, said = first[device]
    again = warmup(cache, device, "--json")
    found = json.loads(again.stdout)
    assert (again.returncode, found["compiled"]) == (0, 0)
    assert [u["key"] for u in found["units"]] == [u["key"] for u in said["units"]]
    assert [u["kernels"] for u in found["units"]] == [u["kernels"] for u in said["units"]]
    with capsys.disabled():
        print(f"\n{device}\n{warmup(cache, device).stdout}")


@pytest.mark.parametrize("device", DEVICES)
def test_a_fresh_process_loads_them_up_to_the_driver(device, first, cache):
    """Nothing is compiled; every symbol is found; what stops the loader is that there is no device."""
    _, said = first[device]
    child = str(Path(__file__).with_name("load_child.py"))
    told = run(child, EXAMPLE, device, cache)
    loaded = json.loads(told.stdout.splitlines()[-1])
    assert sorted(loaded) == sorted(u["name"] for u in said["units"])
    for unit in loaded.values():
        assert unit["outcome"] == "hit"
        assert unit["symbols"] == "all found"
        assert any(words in unit["stopped"] for words in NO_DEVICE)
        assert "create_func_" not in unit["stopped"] or "CUDA error: CUDA driver" in told.stderr
    assert all(set(unit["architectures"]) == {DEVICES[device]} for unit in loaded.values())


def test_devices_share_no_entry(first):
    """Each device has keys of its own: none loads what is for another."""
    keys = [unit["key"] for _, said in first.values() for unit in said["units"]]
    assert len(set(keys)) == len(DEVICES) * len(UNITS)


def test_equal_compiles_give_equal_bytes_without_paths():
    """In folders of their own, as on any machine: what a key names is the same wherever it is made."""
    spec = load(EXAMPLE, ["device.target=cuda", "device.isa=x86-64-v3"])
    gpu = described_gpu_of(describe_device("nvidia-h200"))
    unit = load_program(spec).units()[0]
    flags, options = compiler_flags(spec.device), compiler_options(spec.device)
    libraries = []
    for _ in range(2):
        with Compiler(flags, options, "cuda", gpu) as compiler:
            libraries.append(compiler.compile(unit, trace(unit, spec, "cuda")).library)
    assert libraries[0] == libraries[1]
    assert not re.findall(rb"/(?:tmp|home|root|work)/[\w./-]*", libraries[0])
