"""The main job on bad days: each ends in graphs that are captured, and one warning. The compiler gives stored libraries.

Full and read-only disks are in test_warmup_faults.py.
"""

import os
import shutil
import time
from pathlib import Path

import pytest
import yaml

from support import toy
from support.processes import as_user_without_a_name
from support.warmups import entry_paths, finish, outcomes, start, warm

STRANGER = 1234567
WARM: set[Path] = set()
"""Folders that this process has warmed."""


@pytest.fixture
def config(tmp_path, tiny_config):
    """A file with the toy program's config."""
    path = tmp_path / "engine.yaml"
    path.write_text(yaml.safe_dump(tiny_config(program=toy.NAME)))
    return path


@pytest.fixture
def libraries(config, shared_cache):
    """A folder with the toy's entries, compiled once for all tests of a run."""
    if shared_cache not in WARM:
        code, _, err = warm(config, shared_cache)
        assert code == 0, err
        WARM.add(shared_cache)
    return shared_cache


def copied(libraries, folder):
    """A cache folder that holds the toy's entries."""
    shutil.copytree(libraries / "entries", folder / "entries")
    folder.chmod(0o700)
    return folder


def works(report):
    """Whether every graph that is reachable was captured and agrees with the eager run."""
    graphs = report["graphs"]
    return graphs["reachable"] == graphs["captured"] == graphs["verified"] > 0


@pytest.mark.slow
def test_B45_a_disk_without_room_for_files_is_one_finding(config, libraries, mounted):
    """20 inodes are not enough for two entries and their folders; the run is used, nothing partial is left."""
    cache = mounted("size=64m,nr_inodes=6")
    code, report, err = warm(config, cache, quick=libraries)
    assert code == 1, err
    assert works(report)
    (finding,) = report["findings"]
    assert "inode" in finding
    assert "inode" not in err
    assert [p for p in entry_paths(cache) if p.stat().st_size < 1000] == []
    assert not (cache / "tmp").exists() or os.listdir(cache / "tmp") == []


@pytest.mark.slow
def test_a_folder_that_is_deleted_meanwhile_is_made_anew(config, libraries, tmp_path):
    """It vanishes while the units are being loaded; the run works, and what it could store is there."""
    cache = copied(libraries, tmp_path / "cache")
    process = start(config, cache, quick=libraries)
    while not (cache / "locks").exists() and process.poll() is None:
        shutil.rmtree(cache, ignore_errors=True)
        time.sleep(0.01)
    shutil.rmtree(cache, ignore_errors=True)
    code, report, err = finish(process)
    assert code in (0, 1), err
    assert works(report)
    assert len(report["findings"]) <= 1


@pytest.mark.deep
@pytest.mark.slow
def test_B41_no_home_and_no_name_is_one_note(config, libraries, tmp_path):
    """A user id that nobody knows, without HOME: a temporary folder of its own, which the note names; then hits."""
    prefix = ["env", "-u", "HOME", "-u", "USER", "-u", "LOGNAME", "-u", "XDG_CACHE_HOME"]
    prefix = [*as_user_without_a_name(STRANGER), *prefix]
    place = tmp_path / f"graphspec-{STRANGER}"
    for expected in ("miss", "hit"):
        code, report, err = warm(config, None, quick=libraries, prefix=prefix, TMPDIR=str(tmp_path))
        assert code == 0, err
        assert works(report)
        assert {outcome for outcome, _ in outcomes(report).values()} == {expected}
        told = [note for note in report["notes"] if str(place) in note]
        assert len(told) == 1
        assert "no home folder" in told[0]
    assert len(entry_paths(place)) == 2


@pytest.mark.deep
@pytest.mark.slow
def test_B47_a_folder_that_others_may_write_to_is_not_used(config, libraries, tmp_path):
    """It holds good entries, and none is loaded: one finding with the mode bits. `--strict` refuses before any work."""
    cache = copied(libraries, tmp_path / "cache")
    cache.chmod(0o777)
    code, report, err = warm(config, cache, quick=libraries)
    assert code == 1, err
    assert works(report)
    assert outcomes(report) == {"scale": ("disabled", True), "mix": ("disabled", True)}
    (finding,) = report["findings"]
    assert "0777" in finding
    code, report, _ = warm(config, cache, "--strict")
    assert code == 4
    assert "0777" in report["problems"][0]["found"]


@pytest.mark.slow
def test_B50_a_cache_that_is_switched_off_reads_and_writes_nothing(config, libraries, tmp_path):
    """An empty folder stays as it is, and so does one with a poisoned entry, which nobody reads."""
    empty = tmp_path / "empty"
    empty.mkdir()
    poisoned = copied(libraries, tmp_path / "poisoned")
    for path in entry_paths(poisoned):
        path.write_bytes(b"poison")
    off = ["--set", "cache.enabled=false"]
    for cache in (empty, poisoned):
        before = sorted(p.relative_to(cache) for p in cache.rglob("*"))
        code, report, err = warm(config, cache, *off, quick=libraries)
        assert code == 0, err
        assert works(report)
        assert {outcome for outcome, _ in outcomes(report).values()} == {"disabled"}
        assert sorted(p.relative_to(cache) for p in cache.rglob("*")) in (
            before,
            [*before, Path("locks")],
        )
    assert {p.read_bytes() for p in entry_paths(poisoned)} == {b"poison"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "noexec mount",
        *(
            pytest.param(kind, marks=pytest.mark.deep)
            for kind in ("symbolic link", "spaces and letters", "deep")
        ),
    ],
)
def test_B51_odd_folders_work(config, libraries, tmp_path, mounted, kind):
    """Libraries are opened from memory, so even a mount without the right to execute serves them."""
    if kind == "noexec mount":
        cache = mounted("size=64m,noexec")
    elif kind == "symbolic link":
        (tmp_path / "real").mkdir(mode=0o700)
        cache = tmp_path / "link"
        cache.symlink_to("real")
    elif kind == "spaces and letters":
        cache = tmp_path / "mit Räumen und 字"
    else:
        cache = tmp_path.joinpath(*["deep" * 5] * 10)
    for expected in ("miss", "hit"):
        code, report, err = warm(config, cache, quick=libraries)
        assert code == 0, err
        assert works(report)
        assert {outcome for outcome, _ in outcomes(report).values()} == {expected}


@pytest.mark.slow
def test_offline_with_an_empty_folder_is_an_error_that_loads_no_compiler(config, tmp_path):
    """Exit 4 with the key of each unit. Neither inductor nor our compiler was imported: both would be in the trace."""
    command = start(config, tmp_path / "cache", GRAPHSPEC_OFFLINE="1", PYTHONPROFILEIMPORTTIME="1")
    code, report, err = finish(command)
    assert code == 4
    assert report["error"] == "OfflineMissError"
    assert [p["where"] for p in report["problems"]] == ["unit scale", "unit mix"]
    assert "graphspec.cache.load" in err
    assert "graphspec.cache.compiling.compiler" not in err
    assert "torch._inductor" not in err


@pytest.mark.deep
@pytest.mark.slow
def test_offline_with_a_warm_folder_is_as_any_start(config, libraries, tmp_path):
    """Mounted or copied from a builder, it serves every unit."""
    cache = copied(libraries, tmp_path / "cache")
    code, report, err = warm(config, cache, "--set", "cache.offline=true")
    assert code == 0, err
    assert (report["compiled"], report["loaded"]) == (0, 2)
