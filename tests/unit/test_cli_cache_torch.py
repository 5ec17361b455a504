"""``graphspec cache prune --toolchain-other-than-this`` and ``verify --recompile``: what needs torch to be answered."""

import json
import os

import pytest
import yaml

from graphspec.cache import recompile
from graphspec.cache.compiling.device import measure_device
from graphspec.cache.compiling.toolchain import toolchain
from graphspec.cache.entry import Entry
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.load import keyed_units
from graphspec.cache.units import EntryKey
from graphspec.cli import _root
from graphspec.cli.common import run
from graphspec.config.device import DeviceConfig, Target
from graphspec.config.engine import EngineConfig
from graphspec.keys.encoding import encode
from graphspec.keys.factors import digest
from support import toy
from support.entries import METADATA, entry_of


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "cache")


def called(capsys, root, *arguments):
    code = run(_root, ["cache", *arguments, "--cache-dir", root])
    out, err = capsys.readouterr()
    return code, out, err


def stored_for(root, name, chain):
    """An entry whose key names that toolchain, or none."""
    content = {"unit": name} if chain is None else {"unit": name, "toolchain": chain}
    key = EntryKey(encode(content), digest(encode(content)))
    store = DiskStore(root)
    assert store.put(Entry(key=key, metadata={**METADATA, "unit": name}, payload=b"x")).written
    return store.path_of(key)


def test_prune_removes_entries_that_another_installation_made(capsys, root):
    """Other versions, an older format; not entries for a GPU, nor of a process with other settings, nor without a word.

    A kernel names Triton alone, and it is that one that counts."""
    cpu, cuda = (toolchain(DeviceConfig(target=target)) for target in Target)
    kept = [
        stored_for(root, "cpu", cpu),
        stored_for(root, "cuda", cuda),
        stored_for(root, "settings", {**cpu, "environment": {"TRITON_F32_DEFAULT": "ieee"}}),
        stored_for(root, "another host", {**cuda, "host": measure_device(DeviceConfig())}),
        stored_for(root, "no word", None),
        stored_for(root, "kernel", {"triton": cuda["triton"]}),
    ]
    gone = [
        stored_for(root, "kernel of another triton", {"triton": ("1.0", "digest")}),
        stored_for(root, "torch", {**cpu, "torch": "1.0.0"}),
        stored_for(root, "python", {**cpu, "python": "cpython 3.1"}),
        stored_for(root, "cuda toolkit", {**cuda, "cuda": "1.0"}),
        stored_for(root, "old format", None),
    ]
    os.rename(gone[-1], gone[-1].replace(".v3.", ".v1."))
    gone[-1] = gone[-1].replace(".v3.", ".v1.")
    damaged = DiskStore(root).path_of(entry_of("damaged").key)
    DiskStore(root).put(entry_of("damaged"))
    with open(damaged, "wb") as file:
        file.write(b"bad")
    code, out, _ = called(capsys, root, "prune", "--toolchain-other-than-this", "--yes", "--json")
    assert code == 0
    assert {r["path"] for r in json.loads(out)["removed"]} == set(gone)
    assert all(os.path.exists(path) for path in [*kept, damaged])
    assert not any(os.path.exists(path) for path in gone)


@pytest.fixture
def config(tmp_path, tiny_config):
    path = tmp_path / "engine.yaml"
    path.write_text(yaml.safe_dump(tiny_config(program=toy.NAME)))
    return path


def store_toy(root, config, payloads):
    """Entries of the toy's units with those payloads."""
    spec = EngineConfig.from_dict(yaml.safe_load(config.read_text())).resolve()
    for keyed in keyed_units(toy.program(spec).units(), spec):
        if keyed.unit.name in payloads:
            entry = Entry(key=keyed.key, metadata=METADATA, payload=payloads[keyed.unit.name])
            assert DiskStore(root).put(entry).written


def test_recompile_says_what_differs_and_what_cannot_be_compared(capsys, root, config, monkeypatch):
    """Equal bytes, other bytes, another length, nothing stored: each unit with its reason."""
    store_toy(root, config, {"scale": b"0123456789"})
    made = {"scale": b"0123456789"}
    monkeypatch.setattr(recompile, "_compiled", lambda keyed, spec: made[keyed.unit.name])
    command = ["verify", "--recompile", "--config", str(config), "--json"]
    code, out, _ = called(capsys, root, *command)
    told = json.loads(out)
    assert (code, told["equal"]) == (1, 1)
    scale, mix = told["units"]
    assert (scale["equal"], scale["stored_bytes"], scale["first"]) == (True, 10, None)
    assert (mix["equal"], mix["bytes"]) == (False, None)
    assert mix["reason"] == "nothing to compare it with: nothing is stored under this key"
    assert called(capsys, root, *command, "--unit", "scale")[0] == 0
    made["scale"] = b"01234_67_9"
    code, out, _ = called(capsys, root, *command, "--unit", "scale")
    (scale,) = json.loads(out)["units"]
    assert (code, scale["first"], scale["differing"]) == (1, 5, 2)
    assert scale["reason"] == "2 of 10 stored bytes differ, the first at 5"
    made["scale"] = b"0123"
    code, out, _ = called(capsys, root, *command[:-1], "--unit", "scale")
    assert code == 1
    assert "finding: unit scale: 4 bytes instead of 10, different from byte 4 on" in out
    assert "0 of 1 units compile to the bytes" in out


def test_recompile_of_an_unknown_unit_names_the_nearest(capsys, root, config):
    """A misspelt unit is a usage error."""
    command = ["verify", "--recompile", "--config", str(config), "--unit", "scal"]
    code, _, err = called(capsys, root, *command)
    assert code == 2
    assert "did you mean 'scale'?" in err
