"""Warmups that are killed, run at once, or meet damaged entries and bad disks end in a usable cache and a named outcome.

They run the toy program (two small units) in processes of their own.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time

import pytest
import yaml

from support import toy
from support.warmups import entry_paths, finish, outcomes, start, warm


@pytest.fixture
def config(tmp_path, tiny_config):
    """A file with the toy program's config."""
    path = tmp_path / "engine.yaml"
    path.write_text(yaml.safe_dump(tiny_config(program=toy.NAME)))
    return path


@pytest.fixture
def warm_copy(config, shared_cache, tmp_path):
    """Makes a folder that holds the toy's entries: a copy of what the run has compiled before."""
    code, _, err = warm(config, shared_cache)
    assert code == 0, err

    def copy(folder):
        shutil.copytree(shared_cache / "entries", folder / "entries")
        return folder

    return copy


def toy_entries(config, cache):
    """The files of the toy's two units, in a folder that may hold others."""
    seen = finish(start(config, cache, "--dry-run"))[1]
    found = [p for u in seen["units"] for p in entry_paths(cache) if p.name.startswith(u["key"])]
    assert len(found) == 2
    return found


@pytest.mark.slow
def test_kill_during_a_cold_warmup_leaves_nothing_in_the_way(
    config, tmp_path, warm_copy, shared_cache
):
    """kill -9 while units compile; the next warmup succeeds, and the one after compiles nothing."""
    cache = tmp_path / "cache"
    process = start(config, cache)
    deadline = time.monotonic() + 120
    # The lock file of a key appears when its compile begins.
    while not list((cache / "locks").glob("*.lock")) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        os.sched_yield()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not entry_paths(cache)
    code, report, err = warm(config, cache, quick=shared_cache)
    assert code == 0, err
    assert outcomes(report) == {"scale": ("miss", True), "mix": ("miss", True)}
    assert os.listdir(cache / "tmp") == []
    code, report, err = warm(config, cache)
    assert outcomes(report) == {"scale": ("hit", False), "mix": ("hit", False)}


@pytest.mark.slow
def test_damaged_entries_are_rebuilt_with_named_outcomes(config, tmp_path, warm_copy, shared_cache):
    """One entry truncated, one byte flipped in another: both end as corrupt, are set aside, and are compiled again."""
    cache = warm_copy(tmp_path / "cache")
    first, second = toy_entries(config, cache)
    first.write_bytes(first.read_bytes()[:-1])
    data = bytearray(second.read_bytes())
    data[len(data) // 2] ^= 1
    second.write_bytes(data)
    code, report, err = warm(config, cache, quick=shared_cache)
    assert code == 0, err
    assert outcomes(report) == {"scale": ("corrupt", True), "mix": ("corrupt", True)}
    reasons = sorted(u["reason"] for u in report["units"])
    assert "differs" in reasons[0]
    assert "truncated" in reasons[1]
    assert len(list((cache / "quarantine").glob("*.reason"))) == 2
    assert outcomes(warm(config, cache)[1]) == {"scale": ("hit", False), "mix": ("hit", False)}


@pytest.mark.deep
@pytest.mark.slow
def test_two_warmups_at_once_compile_each_unit_once(config, tmp_path):
    """Started together on an empty cache, the two compile two units in all, and both report success."""
    cache = tmp_path / "cache"
    pair = [start(config, cache, "--jobs", "1") for _ in range(2)]
    ended = [finish(p) for p in pair]
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert sum(report["compiled"] for _, report, _ in ended) == 2
    assert sum(report["loaded"] for _, report, _ in ended) == 2
    assert len(entry_paths(cache)) == 2


def remount_read_only(folder):
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


def fill(path):
    """Writes until the disk is full."""
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)


@pytest.mark.slow
def test_a_full_disk_is_a_finding_and_strict_makes_it_an_error(
    config, mounted, warm_copy, shared_cache
):
    """Units that do not fit are used all the same; the report says so and exits 1, `--strict` exits 4."""
    cache = mounted("size=64k")
    code, report, err = warm(config, cache, quick=shared_cache)
    assert code == 1, err
    assert report["compiled"] == 2
    assert report["graphs"]["captured"] == report["graphs"]["reachable"]
    (finding,) = report["findings"]
    assert finding.startswith("units scale, mix were not stored")
    assert "no space is left" in finding
    assert os.listdir(cache / "tmp") == []
    fill(cache / "filler")
    code, report, err = warm(config, cache, "--strict")
    assert code == 4
    assert "no space is left" in report["problems"][0]["found"]


@pytest.mark.slow
def test_a_read_only_cache_still_serves_what_it_holds(config, mounted, warm_copy, shared_cache):
    """Mounted read-only, hits load as before and nothing is written; what is missing is a finding."""
    cache = warm_copy(mounted("size=64m"))
    gone = toy_entries(config, cache)[0]
    remount_read_only(cache)
    code, report, err = warm(config, cache)
    assert (code, report["compiled"], report["loaded"]) == (0, 0, 2), err
    subprocess.run(["mount", "-o", "remount,rw", str(cache)], check=True)
    gone.unlink()
    remount_read_only(cache)
    code, report, err = warm(config, cache, quick=shared_cache)
    assert (code, report["compiled"], report["loaded"]) == (1, 1, 1), err
    assert "mounted read-only" in report["findings"][0]
    code, report, err = warm(config, cache, "--strict")
    assert code == 4


def test_a_file_in_the_place_of_the_cache_folder_is_named(config, tmp_path):
    """With `--strict` nothing is compiled for a cache that cannot be: exit 4, and the message says what is there."""
    place = tmp_path / "cache"
    place.write_text("not a folder")
    code, report, _ = warm(config, place, "--strict")
    assert code == 4
    assert "a file lies where a folder should be" in report["problems"][0]["found"]
    assert place.read_text() == "not a folder"
