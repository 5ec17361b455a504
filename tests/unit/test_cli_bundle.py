"""``graphspec cache export``, ``import`` and ``keygen``: outputs, exit codes, and errors without a traceback."""

import json
import os

import pytest
import yaml

from graphspec.cache.bundle.importer import this_machine
from graphspec.cache.bundle.reader import read_bundle
from graphspec.cache.entry import pack, unpack
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.signing import SigningKey, read_public_keys
from graphspec.cache.store import Outcome
from graphspec.cli import _root
from graphspec.cli.common import run
from graphspec.config.device import DeviceConfig
from graphspec.config.engine import EngineConfig
from graphspec.keys.encoding import decode, encode
from support import toy
from support.bundles import store_of, unit_entry
from support.stored import store_units


@pytest.fixture
def call(capsys):
    """Runs a ``graphspec cache`` command; its exit code, standard output and standard error."""

    def run_it(*arguments):
        code = run(_root, ["cache", *map(str, arguments)])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return code, captured.out, captured.err

    return run_it


@pytest.fixture
def data(call):
    """Runs a command with ``--json``; its exit code and the printed object."""

    def run_it(*arguments):
        code, out, err = call(*arguments, "--json")
        assert err == ""
        return code, json.loads(out)

    return run_it


@pytest.fixture
def pair():
    """Two entries for this machine."""
    machine = decode(encode(this_machine(DeviceConfig())))
    return [unit_entry(name, name.encode() * 9, machine) for name in "ab"]


@pytest.fixture
def cache(tmp_path, pair):
    """A folder with the two entries."""
    store_of(tmp_path / "cache", *pair)
    return tmp_path / "cache"


def test_export_and_import_carry_entries(call, data, tmp_path, cache, pair):
    """All entries go into one file and come out of it, and both commands say which and how many."""
    code, done = data("export", tmp_path / "b", "--cache-dir", cache)
    assert code == 0
    assert {e["key"]: e["unit"] for e in done["entries"]} == {
        e.key.digest: e.metadata["unit"] for e in pair
    }
    assert (done["bytes"], done["machines"]) == ((tmp_path / "b").stat().st_size, 1)
    assert (done["signed_by"], done["missing"], done["left_out"]) == (None, [], [])
    code, done = data("import", tmp_path / "b", "--cache-dir", tmp_path / "to")
    assert (code, done["imported"], done["present"], done["findings"]) == (0, 2, 0, [])
    assert (done["folder"], done["signature_checked"]) == (str(tmp_path / "to"), False)
    code, out, _ = call("import", tmp_path / "b", "--cache-dir", tmp_path / "to")
    assert code == 0
    assert "0 imported, 2 present, 0 differs, 0 failed" in out
    assert DiskStore(str(tmp_path / "to")).get(pair[0].key).entry == pair[0]


def test_keys_choose_entries_and_may_be_cut_short(call, data, tmp_path, cache, pair):
    """A beginning that one entry alone has is enough; one that none or several have is an error of usage."""
    key = pair[0].key.digest
    code, done = data("export", tmp_path / "b", key[:6].upper(), "--cache-dir", cache)
    assert (code, [e["key"] for e in done["entries"]]) == (0, [key])
    for wrong, why in (("zz", "no entry has a key"), ("", "2 entries have a key")):
        code, _, err = call("export", tmp_path / "c", wrong, "--cache-dir", cache)
        assert (code, why in err) == (2, True)
        assert not (tmp_path / "c").exists()


@pytest.fixture
def config(tmp_path, tiny_config):
    path = tmp_path / "engine.yaml"
    path.write_text(yaml.safe_dump(tiny_config(program=toy.NAME)))
    return path


def test_config_takes_its_units_and_names_those_that_are_missing(
    call, data, tmp_path, cache, config, tiny_config
):
    """Of a cache that holds more, only the units of the config's program are exported; a missing one is a finding."""
    spec = EngineConfig.from_dict(tiny_config(program=toy.NAME)).resolve()
    scale, mix = store_units(cache, toy.Toy(spec).units(), spec, reads=())
    arguments = ("export", tmp_path / "b", "--config", config, "--cache-dir", cache)
    code, done = data(*arguments)
    assert (code, {e["unit"] for e in done["entries"]}) == (0, {"scale", "mix"})
    os.unlink(DiskStore(str(cache)).path_of(mix.key))
    code, done = data(*arguments)
    assert (code, [e["key"] for e in done["entries"]]) == (1, [scale.key.digest])
    reason = "nothing is stored under this key"
    assert done["missing"] == [{"unit": "mix", "key": mix.key.digest, "reason": reason}]
    code, out, _ = call(*arguments, "--set", "model.max_model_len=64")
    assert (code, "finding: unit mix is not in the bundle" in out) == (1, True)


def test_without_an_entry_nothing_is_written(call, data, tmp_path, config):
    """An empty cache is a finding and no file, not an empty bundle."""
    code, done = data("export", tmp_path / "b", "--cache-dir", tmp_path / "none")
    assert (code, done["entries"], done["bytes"]) == (1, [], 0)
    code, out, _ = call(
        "export", tmp_path / "b", "--config", config, "--cache-dir", tmp_path / "none"
    )
    assert code == 1
    assert out.count("finding: unit") == 2
    assert "finding: nothing was written" in out
    assert not (tmp_path / "b").exists()
    assert not (tmp_path / "none").exists()


def test_a_damaged_file_is_a_finding_of_the_export(call, tmp_path, cache, pair):
    """The bundle holds the whole entries, and the exit code says that it is not all."""
    os.truncate(DiskStore(str(cache)).path_of(pair[0].key), 250)
    code, out, _ = call("export", tmp_path / "b", "--cache-dir", cache)
    assert code == 1
    assert "is not in the bundle: truncated" in out
    assert len(read_bundle((tmp_path / "b").read_bytes()).entries) == 1


def test_an_entry_that_differs_is_a_finding_of_the_import(data, tmp_path, cache, pair):
    """What was there stays, and the exit code asks for a look."""
    data("export", tmp_path / "b", "--cache-dir", cache)
    other = unit_entry("a", b"other", decode(pair[0].key.text))
    assert other.key == pair[0].key
    store_of(tmp_path / "to", other)
    code, done = data("import", tmp_path / "b", "--cache-dir", tmp_path / "to")
    assert (code, done["differs"], done["imported"]) == (1, 1, 1)
    assert "other bytes are stored under its key, and stayed" in done["findings"][0]


@pytest.fixture
def keys(data, tmp_path):
    """A private key's file and the trust file that holds its public key, both made by the command."""
    _, made = data("keygen", tmp_path / "key.pem", "--comment", "the build machine")
    (tmp_path / "trust").write_text(made["public_key"] + "\n")
    return tmp_path / "key.pem", tmp_path / "trust"


def test_keygen_makes_a_pair(call, tmp_path, keys):
    """The private key is in a file of its owner's, the public line on the screen; no key is replaced."""
    private, trust = keys
    (public,) = read_public_keys(str(trust))
    assert SigningKey.load(str(private)).public_key == public.raw
    assert public.comment == "the build machine"
    before = private.read_bytes()
    code, _, err = call("keygen", private)
    assert (code, "a file that is there already" in err) == (4, True)
    assert private.read_bytes() == before
    code, out, _ = call("keygen", tmp_path / "second.pem")
    assert (code, out.startswith("graphspec-ed25519 ")) == (0, True)


def test_a_signature_can_be_demanded(call, data, tmp_path, cache, keys):
    """Signed bundles pass with --trust; unsigned ones and those of strangers are refused with exit code 4."""
    private, trust = keys
    _, done = data("export", tmp_path / "signed", "--sign", private, "--cache-dir", cache)
    assert done["signed_by"] in trust.read_text()
    data("export", tmp_path / "plain", "--cache-dir", cache)
    arguments = ("--trust", trust, "--cache-dir", tmp_path / "to")
    code, done = data("import", tmp_path / "plain", *arguments)
    assert (code, done["error"]) == (4, "UntrustedError")
    assert not (tmp_path / "to").exists()
    code, done = data("import", tmp_path / "signed", *arguments)
    assert (code, done["imported"], done["signature_checked"]) == (0, 2, True)
    data("keygen", tmp_path / "other.pem")
    data("export", tmp_path / "strange", "--sign", tmp_path / "other.pem", "--cache-dir", cache)
    code, _, err = call("import", tmp_path / "strange", *arguments)
    assert (code, "signed by a key that is not trusted here" in err) == (4, True)


def test_a_shared_cache_demands_signed_entries(call, data, tmp_path, pair, keys):
    """With --shared each entry needs a seal of its own, on the way in and on the way out."""
    private, trust = keys
    signed = unpack(pack(pair[0], SigningKey.load(str(private))))
    store_of(tmp_path / "cache", signed, pair[1])
    where = ("--cache-dir", tmp_path / "cache")
    code, done = data("export", tmp_path / "b", "--sign", private, "--trust", trust, *where)
    assert (code, [e["key"] for e in done["entries"]]) == (1, [signed.key.digest])
    assert "is not signed" in done["left_out"][0]["reason"]
    arguments = ("--trust", trust, "--shared", "--cache-dir", tmp_path / "to")
    code, done = data("import", tmp_path / "b", *arguments)
    assert (code, done["imported"]) == (0, 1)
    data("export", tmp_path / "all", "--sign", private, *where)
    code, _, err = call("import", tmp_path / "all", *arguments)
    assert (code, "the entry is not signed" in err) == (4, True)
    code, _, err = call("import", tmp_path / "b", "--shared")
    assert (code, "give --trust too" in err) == (2, True)


def test_another_machine_is_refused_and_any_device_takes_it(call, data, tmp_path):
    """The component that differs is named with both values; --any-device fills the cache all the same."""
    store_of(tmp_path / "cache", unit_entry("a"))
    data("export", tmp_path / "b", "--cache-dir", tmp_path / "cache")
    to = ("--cache-dir", tmp_path / "to")
    code, done = data("import", tmp_path / "b", *to)
    assert (code, done["error"], done["exit_code"]) == (2, "BundleError", 2)
    (torch,) = [p for p in done["problems"] if p["where"] == "toolchain.torch"]
    assert torch["found"] == "'2.13.0' in all its entries"
    code, _, err = call("import", tmp_path / "b", *to)
    assert (code, "--any-device fills a cache for others" in err) == (2, True)
    assert not (tmp_path / "to").exists()
    code, done = data("import", tmp_path / "b", "--any-device", *to)
    assert (code, done["imported"]) == (0, 1)


def test_a_damaged_bundle_is_an_error_of_usage(call, data, tmp_path, cache):
    """Exit code 2, the reason, and no file in the cache."""
    data("export", tmp_path / "b", "--cache-dir", cache)
    os.truncate(tmp_path / "b", 500)
    code, _, err = call("import", tmp_path / "b", "--cache-dir", tmp_path / "to")
    assert code == 2
    assert "truncated: 500 bytes" in err
    assert not (tmp_path / "to").exists()


def test_a_folder_that_others_can_write_to_is_neither_exported_nor_filled(call, tmp_path, cache):
    """Whoever can write there could have put an entry there, and a signature would vouch for it."""
    call("export", tmp_path / "b", "--cache-dir", cache)
    cache.chmod(0o777)
    for command in ("export", "import"):
        code, _, err = call(command, tmp_path / "b", "--cache-dir", cache)
        assert (code, "the cache is not trusted" in err) == (4, True)


def test_facts_are_written_into_the_bundle(call, data, tmp_path, cache):
    """What --fact says comes out of an import; without an equals sign it is an error of usage."""
    where = ("--cache-dir", cache)
    data("export", tmp_path / "b", "--fact", "built=2026-11-30=now", *where)
    _, done = data("import", tmp_path / "b", *where)
    assert done["created_by"]["built"] == "2026-11-30=now"
    for wrong in ("built", "=x"):
        code, _, err = call("export", tmp_path / "b", "--fact", wrong, *where)
        assert (code, "is not NAME=VALUE" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("export", "b", "--set", "a.b=1"), "--set changes a config"),
        (("export", "b", "abc", "--config", "x"), "give KEYs or --config"),
        (("export",), "Missing argument"),
        (("import",), "Missing argument"),
    ],
    ids=["set without config", "keys and config", "export nothing", "import nothing"],
)
def test_wrong_calls_are_errors_of_usage(call, arguments, why):
    """Exit code 2, and the sentence says what goes with what."""
    code, _, err = call(*arguments)
    assert (code, why in err) == (2, True)


def test_a_bundle_cannot_command_a_terminal(call, tmp_path):
    """Control characters in names that a stranger wrote are shown, not obeyed."""
    store_of(tmp_path / "cache", unit_entry("\x1b[2Jgone"))
    for command in ("export", "import"):
        code, out, err = call(
            command,
            tmp_path / "b",
            *(["--any-device"] if command == "import" else []),
            "--cache-dir",
            tmp_path / "cache",
        )
        assert code == 0, err
        assert "gone" in out
        assert "\x1b" not in out


def test_an_imported_entry_is_looked_up_as_if_compiled_here(data, tmp_path, cache, pair):
    """The store finds it under its key at once, with nothing else to do."""
    data("export", tmp_path / "b", "--cache-dir", cache)
    data("import", tmp_path / "b", "--cache-dir", tmp_path / "to")
    found = DiskStore(str(tmp_path / "to")).get(pair[1].key)
    assert (found.outcome, bytes(found.entry.payload)) == (Outcome.HIT, b"b" * 9)
