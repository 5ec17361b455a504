"""A GPU that is described has the keys of one that is there, and what cannot be built for it here is said with the reason."""

import json
import types

import attrs
import pytest
import torch
import yaml

from graphspec.cache.compiling.device import measure_device
from graphspec.cache.load import keyed_units
from graphspec.capture import kernel_binaries
from graphspec.capture.program import load_program
from graphspec.cli.common import run
from graphspec.cli.devices import devices
from graphspec.cli.warmup import warmup
from graphspec.config.device import DeviceConfig, Target
from graphspec.config.engine import EngineConfig
from graphspec.errors import DeviceFileError
from graphspec.fleet import cross
from graphspec.fleet.cross import warm_for
from graphspec.fleet.devices import KNOWN, describe_device, recorded
from graphspec.kernels.targets import GpuTarget, compile_variant
from graphspec.kernels.variants import Variant, variants_of
from support import toy

CUDA = DeviceConfig(target=Target.CUDA)


@pytest.fixture
def on_device(monkeypatch):
    """Makes this machine say that it has a device, in torch's words."""

    def pretend(name, capability, multiprocessors, memory_bytes):
        number = capability.removeprefix("sm_")
        facts = types.SimpleNamespace(
            name=name,
            major=int(number[:-1]),
            minor=int(number[-1]),
            multi_processor_count=multiprocessors,
            total_memory=memory_bytes,
            warp_size=32,
        )
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: facts)

    return pretend


@pytest.fixture
def cuda_spec(tiny_config):
    return EngineConfig.from_dict(
        tiny_config(program=toy.NAME, device={"target": "cuda"})
    ).resolve()


@pytest.mark.parametrize("name", [n for n, d in KNOWN.items() if d.profile.kind == "cuda"])
def test_a_profile_and_the_device_itself_give_units_the_same_keys(name, cuda_spec, on_device):
    """What torch reports of the device, in the profile's numbers, makes the very keys that the profile makes."""
    profile = KNOWN[name].profile
    units = load_program(cuda_spec).units()
    described = keyed_units(units, cuda_spec, device=profile)
    on_device(profile.name, profile.capability[0], profile.multiprocessors, profile.memory_bytes)
    assert [k.key for k in keyed_units(units, cuda_spec)] == [k.key for k in described]


def test_recorded_facts_are_the_device(on_device, capsys, tmp_path):
    """What a node prints of itself is read elsewhere as the same profile, to the byte."""
    on_device("NVIDIA H200", "sm_90", 132, 150_109_880_320)
    assert run(devices, ["--record"]) == 0
    path = tmp_path / "h200.json"
    path.write_text(capsys.readouterr().out)
    read = describe_device(str(path))
    assert read.profile == measure_device(CUDA)
    assert read.exact
    assert read.limits == KNOWN["nvidia-h200"].limits


def test_facts_cannot_be_recorded_where_no_device_is(monkeypatch, capsys):
    """The error says so, and invents nothing."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Exception, match="no CUDA device"):
        devices.main(["--record"], standalone_mode=False)


@pytest.mark.parametrize(
    "change",
    [
        {"memory_bytes": "much"},
        {"multiprocessors": True},
        {"capability": "sm_90"},
        {"capability": [90]},
        {"more": 1},
    ],
)
def test_facts_that_are_not_as_they_were_written_are_refused(change, tmp_path):
    """A wrong kind, a field too many: a key would be made of it."""
    facts = dict(recorded(KNOWN["nvidia-h100"].profile)["device"])
    path = tmp_path / "device.json"
    path.write_text(json.dumps({"device": facts}))
    assert describe_device(str(path)).profile == KNOWN["nvidia-h100"].profile
    path.write_text(json.dumps({"device": {**facts, **change}}))
    with pytest.raises(DeviceFileError, match="devices --record"):
        describe_device(str(path))


def test_an_unknown_name_suggests_the_nearest():
    """A typing error is no device."""
    with pytest.raises(DeviceFileError, match="nvidia-h200"):
        describe_device("nvidia-h20O")


def test_the_list_has_a_source_for_each_device(capsys):
    """Nothing in it is of nobody's."""
    assert run(devices, ["--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["devices"]
    assert [d["device"] for d in listed] == list(KNOWN)
    assert all(all(d["sources"]) for d in listed)


@pytest.fixture
def one_kernel(monkeypatch) -> Variant:
    """One small kernel in place of all that the contract needs."""
    pytest.importorskip("triton")
    kernel = min(
        variants_of(["graphspec.kernels.batch_triton"]), key=lambda variant: len(variant.types)
    )
    monkeypatch.setattr(cross, "needed_variants", lambda spec: [kernel])
    return kernel


def test_kernels_are_built_here_and_found_there_and_units_are_refused(
    one_kernel, cuda_spec, on_device, tmp_path, monkeypatch
):
    """The kernel that was compiled from the profile is the one that a node with the device looks up. Units are named with
    the reason, and the keys that they would have."""
    described = describe_device("nvidia-h200")
    report = warm_for(cuda_spec, described, cache_dir=str(tmp_path))
    (kernel,) = report.kernels
    assert kernel.compiled
    (finding,) = report.findings
    assert finding.startswith("units scale, mix: not built: torch ")
    assert not any(unit.stored for unit in report.units)
    again = warm_for(cuda_spec, described, cache_dir=str(tmp_path))
    assert not again.kernels[0].compiled
    profile = described.profile
    on_device(profile.name, profile.capability[0], profile.multiprocessors, profile.memory_bytes)
    there = kernel_binaries.device_target(cuda_spec)
    assert there == GpuTarget("cuda", "sm_90")
    assert kernel_binaries.kernel_key(one_kernel, there).digest == kernel.key


def test_a_kernel_beyond_what_the_device_gives_is_a_finding(one_kernel, cuda_spec, tmp_path):
    """It would fail at its first launch, on a machine that this one never sees."""
    described = describe_device("nvidia-h200")
    taken = compile_variant(one_kernel, GpuTarget("cuda", "sm_90")).resources
    small = attrs.evolve(described.limits, registers=taken.registers - 1)
    report = warm_for(cuda_spec, attrs.evolve(described, limits=small), cache_dir=str(tmp_path))
    assert (
        f"takes {taken.registers} registers, and the device gives {small.registers}"
        in report.findings[0]
    )


def test_the_command_tells_what_was_built_and_what_was_not(
    one_kernel, tiny_config, tmp_path, capsys
):
    """Exit code 1, because a node would still have to compile units; in JSON and in text. What is stored is not built again."""
    path = tmp_path / "engine.yaml"
    path.write_text(yaml.safe_dump(tiny_config(program=toy.NAME)))
    words = [
        "--config",
        str(path),
        "--device",
        "nvidia-h200",
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    assert run(warmup, [*words, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["device"]["capability"] == ["sm_90"]
    assert (said["compiled"], [k["kernel"] for k in said["kernels"]]) == (1, [one_kernel.name])
    assert [unit["stored"] for unit in said["units"]] == [False, False]
    assert "known to the MiB" in said["notes"][0]
    assert run(warmup, words) == 1
    printed = capsys.readouterr().out
    assert "finding: units scale, mix: not built" in printed
    assert "compiled 0, stored before 1" in printed
