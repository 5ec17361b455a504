"""``graphspec cache``: ls, stats, show, verify, gc and prune from the command line."""

import json
import os
import time
from pathlib import Path

import attrs
import pytest

from graphspec.cache.disk import DiskStore
from graphspec.cache.entry import Entry
from graphspec.cache.history import Run, append_run
from graphspec.cache.leftovers import unique_name
from graphspec.cache.store import Outcome
from graphspec.cache.units import EntryKey
from graphspec.cli import _root
from graphspec.cli.common import run
from graphspec.keys.encoding import encode
from graphspec.keys.factors import digest
from support.entries import METADATA, entry_of, key_of
from support.processes import run_python

DAY = 86_400.0


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "cache")


@pytest.fixture
def called(root, capsys):
    """Runs one command on the folder, and gives exit code, standard output and standard error."""

    def call(*arguments):
        code = run(_root, ["cache", *arguments, "--cache-dir", root])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def answer(called):
    """Exit code of one command, and its output as JSON."""

    def call(*arguments):
        code, out, err = called(*arguments, "--json")
        assert err == ""
        return code, json.loads(out)

    return call


def put(root, name, idle=0.0, **metadata):
    """Stores an entry that was last used so long ago, and gives its path."""
    entry = attrs.evolve(entry_of(name, name.encode() * 100), metadata={**METADATA, **metadata})
    store = DiskStore(root)
    assert store.put(entry).written
    at = time.time() - idle
    os.utime(store.path_of(entry.key), (at, at))
    return Path(store.path_of(entry.key))


def there(root, names="abcdef"):
    return {n for n in names if DiskStore(root).look(key_of(n)).outcome is Outcome.HIT}


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


def test_an_unknown_command_is_a_usage_error_with_the_nearest_one(called):
    """The group behaves as the top one does."""
    code, _, err = called("stat")
    assert code == 2
    assert "did you mean 'stats'?" in err


@pytest.mark.parametrize(
    "command", [["ls"], ["stats"], ["verify"], ["gc"], ["prune", "--all", "--yes"]]
)
def test_an_absent_folder_is_empty_and_stays_absent(called, root, command):
    """No command makes a cache."""
    code, out, err = called(*command)
    assert (code, err) == (0, "")
    assert root in out
    assert not os.path.exists(root)


def test_ls_lists_units_sizes_and_uses(answer, root):
    """One row an entry, with what its header says."""
    path = put(root, "a", idle=DAY, unit="mix", compile_seconds=2.5, provenance={"torch": "2.13.0"})
    code, told = answer("ls")
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


def test_ls_tells_what_is_unreadable_from_what_another_version_wrote(answer, called, root):
    """Damage is a finding; an entry of a newer graphspec in a shared folder is none."""
    other = put(root, "a")
    other.rename(str(other).replace(".v2.", ".v3."))
    assert answer("ls")[0] == 0
    put(root, "b").write_bytes(b"bad")
    code, told = answer("ls")
    assert code == 1
    assert sorted((r["readable"], r["other_format"]) for r in told["entries"]) == [
        (False, False),
        (False, True),
    ]
    assert "2 entries" in called("ls")[1]


def test_terminal_codes_in_names_are_not_obeyed(called, root):
    """A header may hold any text."""
    put(root, "a", unit="\x1b[2Jgone")
    for command in (["ls"], ["stats"], ["show", key_of("a").digest]):
        assert "\x1b" not in called(*command)[1]


def test_stats_counts_by_unit_and_device(answer, root):
    """Entries, bytes and seconds, and what lies beside them."""
    sizes = [
        put(root, "a", idle=3 * DAY, unit="mix", compile_seconds=2.0).stat().st_size,
        put(root, "b", unit="mix", device="cuda", compile_seconds=3.0).stat().st_size,
        put(root, "c", unit="scale", compile_seconds=4.0).stat().st_size,
    ]
    put(root, "d").write_bytes(b"bad")
    DiskStore(root).get(key_of("d"))
    Path(root, "tmp", unique_name()).write_bytes(b"12345")
    code, told = answer("stats")
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


def test_stats_shows_the_same_to_people(called, root):
    """Every number of the folder, and that no run is on record."""
    put(root, "a", unit="mix", compile_seconds=2.0)
    code, out, _ = called("stats")
    assert code == 0
    for text in (
        root,
        "1 entry",
        "2.0 s of compiling",
        "mix",
        "all for cpu",
        "no run is on record",
    ):
        assert text in out


def test_stats_adds_up_what_past_runs_did(answer, called, root):
    """Hits and misses of all runs on record."""
    put(root, "a")
    for hits in (1, 2):
        run_of = Run(
            at=1000.0 * hits,
            outcomes={"hit": hits, "miss": 1},
            compiled=1,
            seconds=5.0,
            seconds_saved=10.0 * hits,
        )
        append_run(root, run_of)
    assert answer("stats")[1]["history"] == {
        "runs": 2,
        "outcomes": {"hit": 3, "miss": 2},
        "compiled": 2,
        "seconds": 10.0,
        "seconds_saved": 30.0,
        "since": 1000.0,
        "last": 2000.0,
    }
    assert "2 runs since 1970-01-01 00:16 UTC: 3 hit, 2 miss" in called("stats")[1]


def test_show_needs_only_the_beginning_of_a_key(answer, called, root):
    """As much as tells it from the others, in either case of letters."""
    path = put(root, "a", reads=["model.rms_norm_eps"], provenance={"torch": "2.13.0"})
    code, told = answer("show", key_of("a").digest[:6].upper())
    assert code == 0
    assert (told["key"], told["path"], told["problem"]) == (key_of("a").digest, str(path), "")
    assert told["header_bytes"] + told["payload_bytes"] + 200 == told["bytes"]
    assert (told["format"], told["signed_by"]) == (2, None)
    assert told["metadata"] == {"unit": "'toy'", "device": "'cpu'", "compile_seconds": "1.5"}
    assert told["reads"] == ["model.rms_norm_eps"]
    assert told["provenance"] == {"torch": "2.13.0"}
    assert told["key_parts"] == {"unit": {"": "'a'"}}
    assert "unit = 'a'" in called("show", key_of("a").digest)[1]


def test_show_of_an_ambiguous_or_unknown_beginning_is_a_usage_error(called, root):
    """With the keys that it could be."""
    names = [str(i) for i in range(40)]
    for name in names:
        put(root, name)
    first = next(a for a in "0123456789abcdef" if sum(key_of(n).digest[0] == a for n in names) > 1)
    code, _, err = called("show", first)
    assert code == 2
    assert "have a key that begins with" in err
    for beginning in ("zz", "../../x"):
        code, _, err = called("show", beginning)
        assert code == 2
        assert "no entry" in err
    assert called("show", "")[0] == 2


def test_show_of_a_damaged_entry_says_what_is_wrong(answer, called, root):
    """Exit code 1; what the fixed part says is shown."""
    path = put(root, "a")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    code, told = answer("show", key_of("a").digest)
    assert (code, told["problem"]) == (1, "the payload's SHA-256 differs")
    assert told["payload_bytes"] == 100
    path.write_bytes(b"bad")
    code, out, _ = called("show", key_of("a").digest)
    assert code == 1
    assert "finding: truncated" in out


def test_show_hides_what_is_secret(called, root):
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
    DiskStore(root).put(Entry(key=key, metadata=METADATA, payload=b""))
    _, out, _ = called("show", key.digest)
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
    "renamed": (lambda p: p.rename(p.parent / f"{'0' * 32}.v2.entry"), "the entry of another key"),
    "in another folder": (move, "it lies where no lookup finds it"),
    "a folder": (make_folder, "a folder lies where the entry should be"),
    "a link to nothing": (make_link, "a symbolic link that leads nowhere"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES)
def test_verify_finds_each_damage_and_repair_sets_it_aside(answer, called, root, damage, reason):
    """Exit code 1 with the reason and the path; nothing is touched before --repair."""
    put(root, "b")
    damage(put(root, "a"))
    for _ in range(2):
        code, told = answer("verify")
        assert (code, told["entries"]) == (1, 1)
        (found,) = told["damages"]
        assert reason in found["reason"]
        assert not found["repaired"]
    code, out, _ = called("verify", "--repair")
    assert code == 1
    assert "set aside" in out
    assert answer("verify") == (
        0,
        {**told, "entries": 1, "damages": []},
    )
    notes = list(Path(root, "quarantine").glob("*.reason"))
    assert [reason in n.read_text() for n in notes] == [True]


def test_verify_with_keys_asks_who_signed(answer, root, tmp_path):
    """An unsigned entry is a finding where signatures are asked for."""
    pytest.importorskip("cryptography")
    from graphspec.cache.signing import PublicKey, SigningKey

    key = SigningKey.generate()
    trusted = tmp_path / "trusted"
    trusted.write_text(PublicKey(key.public_key).line + "\n")
    DiskStore(root, signer=key).put(entry_of("a"))
    assert answer("verify", "--trust", str(trusted))[0] == 0
    put(root, "b")
    code, told = answer("verify", "--trust", str(trusted))
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
def test_options_of_verify_that_do_not_go_together_are_a_usage_error(called, options):
    """Checking files and compiling anew are two things."""
    assert called("verify", *options)[0] == 2


def test_gc_removes_what_dead_processes_left_and_old_quarantine(answer, called, root):
    """Entries within the caps stay."""
    put(root, "a")
    put(root, "b").write_bytes(b"bad")
    DiskStore(root).get(key_of("b"))
    parts = unique_name().split(".")
    Path(root, "tmp", ".".join([*parts[:3], "4194305", *parts[4:]])).write_bytes(b"")
    living = Path(root, "tmp", unique_name())
    living.write_bytes(b"")
    code, told = answer("gc")
    assert code == 0
    assert (told["temporaries"], told["quarantined"], told["evicted"]) == (1, 0, [])
    assert living.exists()
    code, told = answer("gc", "--keep-quarantine", "0s")
    assert (code, told["quarantined"]) == (0, 2)
    assert there(root) == {"a"}


def test_gc_brings_the_folder_within_the_caps_that_are_asked_for(answer, called, root):
    """A dry run names what would go; then it goes, and nothing more."""
    for i, name in enumerate("abc"):
        put(root, name, idle=(9 - i) * DAY)
    size = DiskStore(root).path_of(key_of("a"))
    limit = ["--max-bytes", f"{2.5 * os.path.getsize(size) / 1000:.3f}kB"]
    code, told = answer("gc", *limit, "--dry-run")
    assert (code, told["dry_run"], told["temporaries"]) == (0, True, None)
    assert [e["key"] for e in told["evicted"]] == [key_of("a").digest]
    assert there(root) == {"a", "b", "c"}
    assert answer("gc", *limit)[1]["freed_bytes"] == told["freed_bytes"] > 0
    assert there(root) == {"b", "c"}
    code, out, _ = called("gc", "--max-entries", "1")
    assert code == 0
    assert f"removed {key_of('b').digest}" in out


def test_gc_says_when_something_within_its_grace_had_to_go(called, answer, root):
    """Caps win, and it is told."""
    put(root, "a", idle=60)
    put(root, "b", idle=30)
    code, out, _ = called("gc", "--max-entries", "1", "--grace", "1h")
    assert code == 0
    assert "1 entry of them were used within the grace period" in out
    assert there(root) == {"b"}
    assert answer("gc", "--max-entries", "0", "--grace", "10s")[1]["evicted_within_grace"] == 0


def test_gc_that_cannot_remove_is_a_finding(called, answer, root, monkeypatch):
    """The folder is still above its cap, and the reason is said."""
    put(root, "a")

    def refuse(*arguments, **named):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "rename", refuse)
    monkeypatch.setattr(os, "unlink", refuse)
    code, told = answer("gc", "--max-entries", "0")
    assert (code, told["over"]) == (1, True)
    assert "Operation not permitted" in told["refused"][0]
    assert "above a cap" in called("gc", "--max-entries", "0")[1]


@pytest.mark.parametrize(
    "options",
    [["--max-bytes", "many"], ["--max-bytes", "5XB"], ["--grace", "1y"], ["--max-entries", "-1"]],
)
def test_gc_refuses_what_is_no_size_or_time(called, root, options):
    """With an example of what it takes."""
    put(root, "a")
    code, _, err = called("gc", *options)
    assert code == 2
    assert options[1] in err
    assert there(root) == {"a"}


PRUNED = {
    "all": (["--all"], "abc"),
    "unit": (["--unit", "mix"], "ab"),
    "age": (["--older-than", "2"], "ac"),
    "both": (["--unit", "mix", "--older-than", "2"], "a"),
    "nothing": (["--unit", "other"], ""),
}


@pytest.mark.parametrize(("options", "chosen"), PRUNED.values(), ids=PRUNED)
def test_prune_removes_what_meets_every_condition(called, answer, root, options, chosen):
    """Not without --yes; a dry run names exactly what then goes."""
    put(root, "a", idle=9 * DAY, unit="mix")
    put(root, "b", idle=DAY, unit="mix")
    put(root, "c", idle=9 * DAY, unit="scale")
    code, _, err = called("prune", *options)
    assert code == 2
    assert "--yes" in err
    assert there(root) == {"a", "b", "c"}
    code, told = answer("prune", *options, "--dry-run")
    assert code == 0
    assert {r["key"] for r in told["removed"]} == {key_of(n).digest for n in chosen}
    assert there(root) == {"a", "b", "c"}
    code, told = answer("prune", *options, "--yes")
    assert (code, len(told["removed"]), told["refused"]) == (0, len(chosen), [])
    assert there(root) == {"a", "b", "c"} - set(chosen)
    assert os.listdir(os.path.join(root, "tmp")) == []
    assert DiskStore(root).put(entry_of("a")).failed is False


@pytest.mark.parametrize("options", [["--yes"], ["--all", "--unit", "mix", "--yes"]])
def test_prune_without_a_clear_choice_is_a_usage_error(called, root, options):
    """Everything is only ever removed when that is said, and nothing else is."""
    put(root, "a")
    assert called("prune", *options)[0] == 2
    assert there(root) == {"a"}


def test_prune_of_what_cannot_go_is_a_finding(answer, root, monkeypatch):
    """The others go."""
    stuck = put(root, "a")
    put(root, "b")
    rename, unlink = os.rename, os.unlink

    def refuse(real):
        def call(path, *more, **named):
            if str(path) == str(stuck):
                raise PermissionError(1, "Operation not permitted")
            return real(path, *more, **named)

        return call

    monkeypatch.setattr(os, "rename", refuse(rename))
    monkeypatch.setattr(os, "unlink", refuse(unlink))
    code, told = answer("prune", "--all", "--yes")
    assert code == 1
    assert told["refused"] == [{"path": str(stuck), "reason": "Operation not permitted"}]
    assert there(root) == {"a"}
