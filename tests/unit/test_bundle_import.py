"""Imports: nothing before everything was checked, nothing for another machine, and what is stored stays."""

import hashlib
import os
import sys

import attrs
import pytest

from graphspec.cache.bundle import importer as bundle_import
from graphspec.cache.bundle.exporter import all_entries, export_bundle
from graphspec.cache.bundle.importer import device_config_of, import_bundle, this_machine
from graphspec.cache.bundle.layout import PARTS, machine_of
from graphspec.cache.entry import pack, unpack
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.load import keyed_units
from graphspec.cache.signing import PublicKey, SigningKey, trust_in
from graphspec.cache.store import Outcome, Stored
from graphspec.config.device import CpuIsa, DeviceConfig, DeviceProfile, Target
from graphspec.config.engine import EngineConfig
from graphspec.errors import BundleError, CacheUnusableError, UntrustedError
from graphspec.keys.encoding import decode, encode, encode_decoded
from support import toy
from support.bundles import around, bundle_of, exported, in_order, manifest_of, unit_entry
from support.stored import store_units

A, B, C = (unit_entry(name, name.encode() * 9) for name in "abc")


@pytest.fixture
def store(tmp_path):
    return DiskStore(str(tmp_path / "to"))


@pytest.fixture
def here():
    """What keys of this machine say of it."""
    return decode(encode(this_machine(DeviceConfig())))


def take(path, store, **more):
    return import_bundle(str(path), store, any_device=True, **more)


def files(store):
    """Every file and folder below the store's root; None: there is no root."""
    if not os.path.exists(store.root):
        return None
    return sorted(os.path.join(d, n) for d, _, names in os.walk(store.root) for n in names)


def problems(path, store, **more):
    with pytest.raises(BundleError) as caught:
        import_bundle(str(path), store, **more)
    assert files(store) is None
    return caught.value.problems


def test_what_was_exported_can_be_looked_up(tmp_path, store):
    """Every entry is a hit in the new folder, its file equal byte by byte to the one it came from."""
    done = take(exported(tmp_path, A, B), store)
    assert {e.digest: e.outcome for e in done.entries} == {
        A.key.digest: "imported",
        B.key.digest: "imported",
    }
    old = DiskStore(str(tmp_path / "from"))
    for entry in (A, B):
        assert store.get(entry.key).entry == entry
        with open(old.path_of(entry.key), "rb") as one, open(store.path_of(entry.key), "rb") as two:
            assert one.read() == two.read()
    assert (done.folder, done.signer, done.notes) == (store.root, None, ())
    assert done.created_by["system"] == "Linux"


def test_importing_again_changes_nothing(tmp_path, store):
    """Entries that are there already are told from imported ones, and their files stay as they are."""
    path = exported(tmp_path, A, B)
    take(path, store)
    before = {p: (os.stat(p).st_ino, os.stat(p).st_mtime_ns) for p in files(store)}
    done = take(path, store)
    assert (done.count("present"), done.count("imported")) == (2, 0)
    assert {p: (os.stat(p).st_ino, os.stat(p).st_mtime_ns) for p in files(store)} == before


def test_the_first_writer_wins_and_a_difference_is_news(tmp_path, store):
    """An entry with other bytes under a stored key does not replace it, and is a finding."""
    store.put(attrs.evolve(A, payload=b"what was here first"))
    done = take(exported(tmp_path, A, B), store)
    assert {e.digest: e.outcome for e in done.entries if e.is_finding} == {A.key.digest: "differs"}
    assert done.count("imported") == 1
    assert bytes(store.get(A.key).entry.payload) == b"what was here first"


def test_a_damaged_entry_in_the_folder_is_replaced(tmp_path, store):
    """What could only be set aside at the next start is set aside now, and the whole entry takes its place."""
    store.put(A)
    os.truncate(store.path_of(A.key), 250)
    assert take(exported(tmp_path, A), store).count("imported") == 1
    assert store.get(A.key).entry == A
    assert len(os.listdir(os.path.join(store.root, "quarantine"))) == 2


def bad(change):
    """A bundle of three whole entries but for one, listed with its right digest."""
    packed = in_order(A, B, C)
    changed = change(packed[-1])
    manifest = manifest_of(*packed)
    if len(changed) == len(packed[-1]):
        row = (*manifest["entries"][-1][:4], hashlib.sha256(changed).digest())
        manifest["entries"] = [*manifest["entries"][:-1], row]
    return around(encode_decoded(manifest), b"".join([*packed[:-1], changed]))


BAD = {
    "a flipped bit at the end": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "a flipped bit in the header": lambda data: data[:210] + bytes([data[210] ^ 1]) + data[211:],
    "cut": lambda data: data[:-1],
    "longer": lambda data: data + b"x",
    "another's": lambda data: pack(unit_entry("d", b"d" * 9)),
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_one_bad_entry_and_nothing_is_written(tmp_path, store, change):
    """The last of three is bad: not even the folder is made."""
    path = tmp_path / "a.bundle"
    path.write_bytes(bad(change))
    problems(path, store, any_device=True)


def test_a_bundle_that_is_none_is_named_by_its_path(tmp_path, store):
    """The error says which file, what is wrong, and that nothing was imported."""
    path = tmp_path / "a.bundle"
    (missing,) = problems(path, store)
    assert (missing.where, missing.found) == (str(path), "No such file or directory")
    path.write_bytes(b"GSPECBDL")
    (short,) = problems(path, store)
    assert (short.where, short.found) == (str(path), "truncated: 8 bytes, the fixed part has 168")
    assert "nothing was imported" in short.hint


def test_a_bundle_that_changes_meanwhile_stores_no_wrong_byte(tmp_path, store, monkeypatch):
    """Somebody writes into the file between check and copy: what is stored was checked, the rest is an error."""
    # Larger than what Python keeps of a file in memory.
    pair = [attrs.evolve(e, payload=e.key.text * 1000) for e in (A, B)]
    path = exported(tmp_path, *pair)
    real = DiskStore.put

    def put(self, entry):
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"!")
        return real(self, entry)

    monkeypatch.setattr(DiskStore, "put", put)
    with pytest.raises(BundleError, match="changed after it was checked") as caught:
        take(path, store)
    assert caught.value.problems[0].hint.startswith("1 of 2 entries are stored")
    (stored,) = [e for e in pair if store.look(e.key).outcome is Outcome.HIT]
    assert store.look(stored.key).entry == stored


def changed(machine, part, **facts):
    return {**machine, part: {**machine[part], **facts}}


def test_entries_of_this_machine_are_taken(tmp_path, store, here):
    """Keys that say of the machine what this one says are imported, no question asked."""
    path = exported(tmp_path, unit_entry("a", machine=here))
    done = import_bundle(str(path), store)
    assert (done.count("imported"), done.notes) == (1, ())


def test_keys_of_units_say_what_the_import_compares(tiny_config):
    """What an import holds against a bundle is just what keys are made of: a part more in one is a part more in both."""
    spec = EngineConfig.from_dict(tiny_config(program=toy.NAME)).resolve()
    for keyed in keyed_units(toy.Toy(spec).units(), spec):
        assert encode_decoded(machine_of(keyed.key.text)) == encode(this_machine(spec.device))
        assert set(PARTS) <= set(decode(keyed.key.text))


def test_real_keys_travel(tmp_path, store, tiny_config):
    """The units of a program, stored here, can be imported here, and every unit is then a hit."""
    spec = EngineConfig.from_dict(tiny_config(program=toy.NAME)).resolve()
    units = toy.Toy(spec).units()
    store_units(tmp_path / "from", units, spec, reads=())
    path = tmp_path / "a.bundle"
    export_bundle(str(path), all_entries(DiskStore(str(tmp_path / "from"))))
    assert import_bundle(str(path), store).count("imported") == 2
    for keyed in keyed_units(units, spec):
        assert store.get(keyed.key).outcome is Outcome.HIT


def test_another_toolchain_is_refused_by_its_component(tmp_path, store, here):
    """The error names what differs, with both values, and how many entries it is about; nothing is written."""
    machine = changed(here, "toolchain", torch="2.12.0", pipeline=0)
    path = exported(tmp_path, unit_entry("a", machine=machine), unit_entry("b", machine=here))
    torch, pipeline = sorted(problems(path, store), key=lambda p: p.where, reverse=True)
    assert torch.where == "toolchain.torch"
    assert torch.found == "'2.12.0' in 1 of 2 entries"
    assert torch.wanted == f"{here['toolchain']['torch']!r}, as on this machine"
    assert (pipeline.where, pipeline.found) == ("toolchain.pipeline", "0 in 1 of 2 entries")
    assert "--any-device" in torch.hint + pipeline.hint
    assert take(path, store).count("imported") == 2


def test_another_device_is_refused_by_its_component(tmp_path, store, here):
    """Features of the CPU and options of the compiler are compared too."""
    profile = attrs.evolve(
        this_machine(DeviceConfig())["device"], name="riscv64", capability=("rvv",)
    )
    machine = changed({**here, "device": decode(encode(profile))}, "options", flags=("-O9",))
    found = problems(exported(tmp_path, unit_entry("a", machine=machine)), store)
    assert {p.where for p in found} == {"device.name", "device.capability", "options.flags"}
    assert "'riscv64' in all its entries" in {p.found for p in found}


def test_an_entry_that_names_no_machine_is_refused(tmp_path, store):
    """Nobody can say what it was compiled for."""
    found = problems(exported(tmp_path, unit_entry("a", machine={})), store)
    assert {p.where for p in found} == set(PARTS)
    assert all(p.found == "absent in all its entries" for p in found)


def test_a_device_that_this_machine_lacks_is_refused(tmp_path, store, here, monkeypatch):
    """A bundle for a GPU, on a machine without one, says what the machine lacks."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    gpu = DeviceProfile(kind="cuda", name="H200", capability=("sm_90",))
    machine = {**here, "device": decode(encode(gpu))}
    (problem,) = problems(exported(tmp_path, unit_entry("a", machine=machine)), store)
    assert problem.where == "device"
    assert "H200" in problem.found
    assert "no CUDA device that torch can use" in problem.wanted


def test_settings_of_the_process_are_notes(tmp_path, store, here):
    """Switches of torch and variables belong to a process, not to a machine: another process may well have them."""
    machine = changed(
        here, "toolchain", torch_state={"default dtype": "bfloat16"}, environment={"X": "1"}
    )
    done = import_bundle(str(exported(tmp_path, unit_entry("a", machine=machine))), store)
    assert done.count("imported") == 1
    told = sorted(done.notes)
    assert [note.partition(" {")[0].rpartition(" ")[2] for note in told] == [
        "toolchain.environment",
        "toolchain.torch_state",
    ]
    assert "bfloat16" in told[1]


def test_without_torch_only_any_device_imports(tmp_path, store, here, monkeypatch):
    """A host that only fills a cache needs no torch; one that wants to compare is told that it has none."""
    path = exported(tmp_path, unit_entry("a", machine=here))
    monkeypatch.setitem(sys.modules, "torch", None)
    (problem,) = problems(path, store)
    assert problem.where == "toolchain.torch"
    assert problem.found == f"{here['toolchain']['torch']!r} in all its entries"
    assert take(path, store).count("imported") == 1


BASELINE = DeviceProfile(kind="cpu", name="x86_64", capability=("x86-64-v3",))
GPU = DeviceProfile(kind="cuda", name="H200", capability=("sm_90",))
CONFIGS = {
    "native": ({"device": attrs.evolve(BASELINE, capability=("avx", "avx2"))}, DeviceConfig()),
    "baseline": ({"device": BASELINE}, DeviceConfig(isa=CpuIsa.X86_64_V3)),
    "cuda": ({"device": GPU}, DeviceConfig(target=Target.CUDA)),
    "cuda on a baseline": (
        {"device": GPU, "toolchain": {"host": BASELINE}},
        DeviceConfig(target=Target.CUDA, isa=CpuIsa.X86_64_V3),
    ),
    "nothing": ({}, DeviceConfig()),
    "nonsense": ({"device": 7, "toolchain": [1]}, DeviceConfig()),
    "a kind that nobody knows": ({"device": {"kind": ["tpu"]}}, DeviceConfig()),
}


@pytest.mark.parametrize("case", CONFIGS.values(), ids=CONFIGS)
def test_the_device_of_a_key_is_the_one_that_is_measured(case):
    """Target and baseline of the processor are read from the key, so that like is compared with like."""
    machine, wanted = case
    assert device_config_of(decode(encode(machine))) == wanted


def trusting(key):
    return trust_in([PublicKey(key.public_key)])


def test_trust_is_asked_before_anything_is_written(tmp_path, store):
    """An unsigned bundle, and unsigned entries in a signed one, are refused where signatures are asked for."""
    key = SigningKey.generate()
    signed = exported(tmp_path, A, signer=key)
    plain = tmp_path / "plain"
    plain.write_bytes(bundle_of(*in_order(A)))
    for path, trust in (
        (plain, {"trust": trusting(key)}),
        (signed, {"trust": trusting(SigningKey.generate())}),
        (signed, {"trust": trusting(key), "entry_trust": trusting(key)}),
    ):
        with pytest.raises(UntrustedError):
            take(path, store, **trust)
        assert files(store) is None
    assert take(signed, store, trust=trusting(key)).signer == key.public_key


def test_entries_keep_their_seals(tmp_path):
    """Signed on one machine, exported and imported, an entry is a hit in a shared cache that trusts its maker."""
    key = SigningKey.generate()
    path = exported(tmp_path, unpack(pack(A, key)))
    shared = DiskStore(str(tmp_path / "to"), trust=trusting(key))
    take(path, shared, entry_trust=trusting(key))
    found = shared.get(A.key)
    assert (found.outcome, found.entry.seal.public_key) == (Outcome.HIT, key.public_key)


def test_a_folder_that_takes_nothing_is_an_error_before_the_first_entry(tmp_path):
    """A file lies where the folder should be: exit code 4, and the file stays."""
    place = tmp_path / "to"
    place.write_text("not a folder")
    with pytest.raises(CacheUnusableError, match="a file lies where a folder should be") as caught:
        take(exported(tmp_path, A), DiskStore(str(place)))
    assert caught.value.exit_code == 4
    assert place.read_text() == "not a folder"


def test_an_entry_that_cannot_be_stored_is_a_finding(tmp_path, store, monkeypatch):
    """What is in the way of one entry is told with its reason, and keeps no other entry out."""
    path, real = exported(tmp_path, A, B), DiskStore.put
    full = Stored(written=False, reason="no space is left on the disk")
    monkeypatch.setattr(DiskStore, "put", lambda s, e: full if e.key == A.key else real(s, e))
    done = take(path, store)
    found = {e.digest: (e.outcome, e.reason) for e in done.entries if e.is_finding}
    assert found == {A.key.digest: ("failed", full.reason)}
    assert done.count("imported") == 1


def test_any_device_measures_nothing(monkeypatch, tmp_path, store):
    """Filling a cache for others does not ask what this machine is."""
    monkeypatch.setattr(bundle_import, "this_machine", None)
    assert take(exported(tmp_path, A), store).count("imported") == 1
