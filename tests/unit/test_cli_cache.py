"""``graphspec cache``: ls, stats, show and verify from the command line."""

import os
import time
from pathlib import Path

import pytest

from graphspec.cache.entry import Entry
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.history import Run, append_run
from graphspec.cache.leftovers import unique_name
from graphspec.cache.units import EntryKey
from graphspec.keys.encoding import encode
from graphspec.keys.factors import digest
from support.cache_folder import DAY, CacheFolder
from support.entries import METADATA, entry_of, key_of
from support.processes import run_python


@pytest.fixture
def cache(tmp_path, capsys):
    return CacheFolder(str(tmp_path / "cache"), capsys)


def test_help_names_every_command_and_imports_none():
    """What is not called costs nothing."""
    code = """
        import sys
        from graphspec.cli import _root
        from graphspec.cli.common import run
        run(_root, ["cache", "--help"])
        print([n for n in sys.modules if n.startswith("graphspec.cli.cache_")])
        """
    *shown, loaded = run_python(code).splitlines()
    assert loaded == "[]"
    for name in "ls stats show verify gc prune export import keygen".split():
        assert any(line.strip().startswith(f"{name} ") for line in shown)


def test_an_unknown_command_is_a_usage_error_with_the_nearest_one(cache):
    """The group behaves as the top one does."""
    code, _, err = cache.call("stat")
    assert code == 2
    assert "did you mean 'stats'?" in err


@pytest.mark.parametrize(
    "command", [["ls"], ["stats"], ["verify"], ["gc"], ["prune", "--all", "--yes"]]
)
def test_an_absent_folder_is_empty_and_stays_absent(cache, command):
    """No command makes a cache."""
    code, out, err = cache.call(*command)
    assert (code, err) == (0, "")
    assert cache.root in out
    assert not os.path.exists(cache.root)


def test_ls_lists_units_sizes_and_uses(cache):
    """One row an entry, with what its header says."""
    path = cache.put("a", idle=DAY, unit="mix", compile_seconds=2.5, provenance={"torch": "2.13.0"})
    code, told = cache.answer("ls")
    (row,) = told["entries"]
    assert code == 0
    assert row.pop("last_used") == pytest.approx(time.time() - DAY, abs=60)
    assert row == {
        "key": key_of("a").digest,
        "unit": "mix",
        "device": "cpu",
        "bytes": path.stat().st_size,
        "compile_seconds": 2.5,
        "torch": "2.13.0",
        "signed": False,
        "readable": True,
        "other_format": False,
    }
    assert told["bytes"] == path.stat().st_size


def test_ls_tells_what_is_unreadable_from_what_another_version_wrote(cache):
    """Damage is a finding; an entry of a newer graphspec in a shared folder is none."""
    other = cache.put("a")
    other.rename(str(other).replace(".v3.", ".v4."))
    assert cache.answer("ls")[0] == 0
    cache.put("b").write_bytes(b"bad")
    code, told = cache.answer("ls")
    assert code == 1
    assert sorted((r["readable"], r["other_format"]) for r in told["entries"]) == [
        (False, False),
        (False, True),
    ]
    assert "2 entries" in cache.call("ls")[1]


def test_terminal_codes_in_names_are_not_obeyed(cache):
    """A header may hold any text."""
    cache.put("a", unit="\x1b[2Jgone")
    for command in (["ls"], ["stats"], ["show", key_of("a").digest]):
        assert "\x1b" not in cache.call(*command)[1]


def test_stats_counts_by_unit_and_device(cache):
    """Entries, bytes and seconds, and what lies beside them."""
    sizes = [
        cache.put("a", idle=3 * DAY, unit="mix", compile_seconds=2.0).stat().st_size,
        cache.put("b", unit="mix", device="cuda", compile_seconds=3.0).stat().st_size,
        cache.put("c", unit="scale", compile_seconds=4.0).stat().st_size,
    ]
    cache.put("d").write_bytes(b"bad")
    cache.store.get(key_of("d"))
    Path(cache.root, "tmp", unique_name()).write_bytes(b"12345")
    code, told = cache.answer("stats")
    assert code == 0
    assert (told["entries"], told["bytes"], told["compile_seconds"]) == (3, sum(sizes), 9.0)
    assert told["units"] == {
        "mix": {"entries": 2, "bytes": sizes[0] + sizes[1], "compile_seconds": 5.0},
        "scale": {"entries": 1, "bytes": sizes[2], "compile_seconds": 4.0},
    }
    assert {name: d["entries"] for name, d in told["devices"].items()} == {"cpu": 2, "cuda": 1}
    assert (told["unreadable"], told["other_formats"], told["signed"]) == (0, 0, 0)
    assert told["quarantine"]["files"] == 2
    assert told["temporaries"] == {"bytes": 5, "files": 1}
    assert told["newest_use"] - told["oldest_use"] == pytest.approx(3 * DAY, abs=60)
    assert told["history"]["runs"] == 0


def test_stats_shows_the_same_to_people(cache):
    """Every number of the folder, and that no run is on record."""
    cache.put("a", unit="mix", compile_seconds=2.0)
    code, out, _ = cache.call("stats")
    assert code == 0
    for text in (
        cache.root,
        "1 entry",
        "2.0 s of compiling",
        "mix",
        "all for cpu",
        "no run is on record",
    ):
        assert text in out


def test_stats_adds_up_what_past_runs_did(cache):
    """Hits and misses of all runs on record."""
    cache.put("a")
    for hits in (1, 2):
        run_of = Run(
            at=1000.0 * hits,
            outcomes={"hit": hits, "miss": 1},
            compiled=1,
            seconds=5.0,
            seconds_saved=10.0 * hits,
        )
        append_run(cache.root, run_of)
    assert cache.answer("stats")[1]["history"] == {
        "runs": 2,
        "outcomes": {"hit": 3, "miss": 2},
        "compiled": 2,
        "seconds": 10.0,
        "seconds_saved": 30.0,
        "since": 1000.0,
        "last": 2000.0,
    }
    assert "2 runs since 1970-01-01 00:16 UTC: 3 hit, 2 miss" in cache.call("stats")[1]


def test_show_needs_only_the_beginning_of_a_key(cache):
    """As much as tells it from the others, in either case of letters."""
    path = cache.put("a", reads=["model.rms_norm_eps"], provenance={"torch": "2.13.0"})
    code, told = cache.answer("show", key_of("a").digest[:6].upper())
    assert code == 0
    assert (told["key"], told["path"], told["problem"]) == (key_of("a").digest, str(path), "")
    assert told["header_bytes"] + told["payload_bytes"] + 216 == told["bytes"]
    assert (told["format"], told["signed_by"]) == (3, None)
    assert told["metadata"] == {"unit": "'toy'", "device": "'cpu'", "compile_seconds": "1.5"}
    assert told["reads"] == ["model.rms_norm_eps"]
    assert told["provenance"] == {"torch": "2.13.0"}
    assert told["key_parts"] == {"unit": {"": "'a'"}}
    assert "unit = 'a'" in cache.call("show", key_of("a").digest)[1]


def test_show_of_an_ambiguous_or_unknown_beginning_is_a_usage_error(cache):
    """With the keys that it could be."""
    names = [str(i) for i in range(40)]
    for name in names:
        cache.put(name)
    first = next(a for a in "0123456789abcdef" if sum(key_of(n).digest[0] == a for n in names) > 1)
    code, _, err = cache.call("show", first)
    assert code == 2
    assert "have a key that begins with" in err
    for beginning in ("zz", "../../x"):
        code, _, err = cache.call("show", beginning)
        assert code == 2
        assert "no entry" in err
    assert cache.call("show", "")[0] == 2


def test_show_of_a_damaged_entry_says_what_is_wrong(cache):
    """Exit code 1; what the fixed part says is shown."""
    path = cache.put("a")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    code, told = cache.answer("show", key_of("a").digest)
    assert (code, told["problem"]) == (1, "the payload's SHA-256 differs")
    assert told["payload_bytes"] == 100
    path.write_bytes(b"bad")
    code, out, _ = cache.call("show", key_of("a").digest)
    assert code == 1
    assert "finding: truncated" in out


def test_show_hides_what_is_secret(cache):
    """Variables that are credentials by their name, or hold a password, wherever a key has an environment."""
    text = encode(
        {
            "unit": "a",
            "environment": {"HF_TOKEN": "hf_secret", "SHARDS": "4", "UNSET": None},
            "toolchain": {
                "torch": "2.13.0",
                "environment": {"PROXY": "http://me:secret@host"},
            },
        }
    )
    key = EntryKey(text, digest(text))
    cache.store.put(Entry(key=key, metadata=METADATA, payload=b""))
    _, out, _ = cache.call("show", key.digest)
    assert "hf_secret" not in out
    assert "me:secret" not in out
    for line in (
        "environment: HF_TOKEN = (hidden)",
        "environment: SHARDS = 4",
        "environment: UNSET = not set",
        "toolchain: environment.PROXY = (hidden)",
        "toolchain: torch = '2.13.0'",
    ):
        assert f"  {line}\n" in out


def flip(path):
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def move(path):
    (path.parent.parent / "zz").mkdir()
    path.rename(path.parent.parent / "zz" / path.name)


def make_folder(path):
    path.unlink()
    path.mkdir()


def make_link(path):
    path.unlink()
    path.symlink_to("nowhere")


DAMAGES = {
    "flipped": (flip, "the payload's SHA-256 differs"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "truncated"),
    "renamed": (lambda p: p.rename(p.parent / f"{'0' * 32}.v3.entry"), "the entry of another key"),
    "in another folder": (move, "it lies where no lookup finds it"),
    "a folder": (make_folder, "a folder lies where the entry should be"),
    "a link to nothing": (make_link, "a symbolic link that leads nowhere"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES)
def test_verify_finds_each_damage_and_repair_sets_it_aside(cache, damage, reason):
    """Exit code 1 with the reason and the path; nothing is touched before --repair."""
    cache.put("b")
    damage(cache.put("a"))
    for _ in range(2):
        code, told = cache.answer("verify")
        assert (code, told["entries"]) == (1, 1)
        (found,) = told["damages"]
        assert reason in found["reason"]
        assert not found["repaired"]
    code, out, _ = cache.call("verify", "--repair")
    assert code == 1
    assert "set aside" in out
    assert cache.answer("verify") == (
        0,
        {**told, "entries": 1, "damages": []},
    )
    notes = list(Path(cache.root, "quarantine").glob("*.reason"))
    assert [reason in n.read_text() for n in notes] == [True]


def test_verify_with_keys_asks_who_signed(cache, tmp_path):
    """An unsigned entry is a finding where signatures are asked for."""
    pytest.importorskip("cryptography")
    from graphspec.cache.signing import PublicKey, SigningKey

    key = SigningKey.generate()
    trusted = tmp_path / "trusted"
    trusted.write_text(PublicKey(key.public_key).line + "\n")
    DiskStore(cache.root, signer=key).put(entry_of("a"))
    assert cache.answer("verify", "--trust", str(trusted))[0] == 0
    cache.put("b")
    code, told = cache.answer("verify", "--trust", str(trusted))
    assert code == 1
    assert "not signed" in told["damages"][0]["reason"]


@pytest.mark.parametrize(
    "options",
    [
        ["--recompile"],
        ["--config", "x.yaml"],
        ["--unit", "mix"],
        ["--recompile", "--config", "x.yaml", "--repair"],
    ],
)
def test_options_of_verify_that_do_not_go_together_are_a_usage_error(cache, options):
    """Checking files and compiling anew are two things."""
    assert cache.call("verify", *options)[0] == 2
