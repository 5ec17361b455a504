"""``graphspec cache gc`` and ``prune`` from the command line: what goes is what was asked for."""

import os
from pathlib import Path

import pytest

from graphspec.cache.leftovers import unique_name
from support.cache_folder import DAY, CacheFolder
from support.entries import entry_of, key_of


@pytest.fixture
def cache(tmp_path, capsys):
    return CacheFolder(str(tmp_path / "cache"), capsys)


def test_gc_removes_what_dead_processes_left_and_old_quarantine(cache):
    """Entries within the caps stay."""
    cache.put("a")
    cache.put("b").write_bytes(b"bad")
    cache.store.get(key_of("b"))
    parts = unique_name().split(".")
    Path(cache.root, "tmp", ".".join([*parts[:3], "4194305", *parts[4:]])).write_bytes(b"")
    living = Path(cache.root, "tmp", unique_name())
    living.write_bytes(b"")
    code, told = cache.answer("gc")
    assert code == 0
    assert (told["temporaries"], told["quarantined"], told["evicted"]) == (1, 0, [])
    assert living.exists()
    code, told = cache.answer("gc", "--keep-quarantine", "0s")
    assert (code, told["quarantined"]) == (0, 2)
    assert cache.holds() == {"a"}


def test_gc_brings_the_folder_within_the_caps_that_are_asked_for(cache):
    """A dry run names what would go; then it goes, and nothing more."""
    for i, name in enumerate("abc"):
        cache.put(name, idle=(9 - i) * DAY)
    size = cache.store.path_of(key_of("a"))
    limit = ["--max-bytes", f"{2.5 * os.path.getsize(size) / 1000:.3f}kB"]
    code, told = cache.answer("gc", *limit, "--dry-run")
    assert (code, told["dry_run"], told["temporaries"]) == (0, True, None)
    assert [e["key"] for e in told["evicted"]] == [key_of("a").digest]
    assert cache.holds() == {"a", "b", "c"}
    assert cache.answer("gc", *limit)[1]["freed_bytes"] == told["freed_bytes"] > 0
    assert cache.holds() == {"b", "c"}
    code, out, _ = cache.call("gc", "--max-entries", "1")
    assert code == 0
    assert f"removed {key_of('b').digest}" in out


def test_gc_says_when_something_within_its_grace_had_to_go(cache):
    """Caps win, and it is told."""
    cache.put("a", idle=60)
    cache.put("b", idle=30)
    code, out, _ = cache.call("gc", "--max-entries", "1", "--grace", "1h")
    assert code == 0
    assert "1 entry of them were used within the grace period" in out
    assert cache.holds() == {"b"}
    assert (
        cache.answer("gc", "--max-entries", "0", "--grace", "10s")[1]["evicted_within_grace"] == 0
    )


def test_gc_that_cannot_remove_is_a_finding(cache, monkeypatch):
    """The folder is still above its cap, and the reason is said."""
    cache.put("a")

    def refuse(*arguments, **named):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "rename", refuse)
    monkeypatch.setattr(os, "unlink", refuse)
    code, told = cache.answer("gc", "--max-entries", "0")
    assert (code, told["over"]) == (1, True)
    assert "Operation not permitted" in told["refused"][0]
    assert "above a cap" in cache.call("gc", "--max-entries", "0")[1]


@pytest.mark.parametrize(
    "options",
    [["--max-bytes", "many"], ["--max-bytes", "5XB"], ["--grace", "1y"], ["--max-entries", "-1"]],
)
def test_gc_refuses_what_is_no_size_or_time(cache, options):
    """With an example of what it takes."""
    cache.put("a")
    code, _, err = cache.call("gc", *options)
    assert code == 2
    assert options[1] in err
    assert cache.holds() == {"a"}


PRUNED = {
    "all": (["--all"], "abc"),
    "unit": (["--unit", "mix"], "ab"),
    "age": (["--older-than", "2"], "ac"),
    "both": (["--unit", "mix", "--older-than", "2"], "a"),
    "nothing": (["--unit", "other"], ""),
}


@pytest.mark.parametrize(("options", "chosen"), PRUNED.values(), ids=PRUNED)
def test_prune_removes_what_meets_every_condition(cache, options, chosen):
    """Not without --yes; a dry run names exactly what then goes."""
    cache.put("a", idle=9 * DAY, unit="mix")
    cache.put("b", idle=DAY, unit="mix")
    cache.put("c", idle=9 * DAY, unit="scale")
    code, _, err = cache.call("prune", *options)
    assert code == 2
    assert "--yes" in err
    assert cache.holds() == {"a", "b", "c"}
    code, told = cache.answer("prune", *options, "--dry-run")
    assert code == 0
    assert {r["key"] for r in told["removed"]} == {key_of(n).digest for n in chosen}
    assert cache.holds() == {"a", "b", "c"}
    code, told = cache.answer("prune", *options, "--yes")
    assert (code, len(told["removed"]), told["refused"]) == (0, len(chosen), [])
    assert cache.holds() == {"a", "b", "c"} - set(chosen)
    assert os.listdir(os.path.join(cache.root, "tmp")) == []
    assert cache.store.put(entry_of("a")).failed is False


@pytest.mark.parametrize("options", [["--yes"], ["--all", "--unit", "mix", "--yes"]])
def test_prune_without_a_clear_choice_is_a_usage_error(cache, options):
    """Everything is only ever removed when that is said, and nothing else is."""
    cache.put("a")
    assert cache.call("prune", *options)[0] == 2
    assert cache.holds() == {"a"}


def test_prune_of_what_cannot_go_is_a_finding(cache, monkeypatch):
    """The others go."""
    stuck = cache.put("a")
    cache.put("b")
    rename, unlink = os.rename, os.unlink

    def refuse(real):
        def call(path, *more, **named):
            if str(path) == str(stuck):
                raise PermissionError(1, "Operation not permitted")
            return real(path, *more, **named)

        return call

    monkeypatch.setattr(os, "rename", refuse(rename))
    monkeypatch.setattr(os, "unlink", refuse(unlink))
    code, told = cache.answer("prune", "--all", "--yes")
    assert code == 1
    assert told["refused"] == [{"path": str(stuck), "reason": "Operation not permitted"}]
    assert cache.holds() == {"a"}
