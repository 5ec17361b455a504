"""The soak fails when it should: each thing that it checks is broken once, and is told."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from graphspec.cache import entry as format_
from graphspec.cache.leftovers import unique_name

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def soak(monkeypatch):
    """The script as a module."""
    monkeypatch.syspath_prepend(str(BENCH))
    import soak

    return soak


def worked(worker, acts=400):
    """What a worker found wrong after some actions and its report."""
    for _ in range(acts):
        worker.act()
    worker.report()
    return worker.wrong


def test_a_good_cache_passes(soak, tmp_path, capsys):
    """Nothing is wrong, and something was damaged, put and got."""
    worker = soak.Worker(str(tmp_path), 1)
    assert worked(worker) == []
    assert all(worker.own[kind] for kind in ("get", "put", "damage", "delete"))
    assert worker.counters.snapshot().problem() == ""


def test_wrong_bytes_are_found(soak, tmp_path, monkeypatch, capsys):
    """Without a check of payloads, flipped bits come through, and the worker sees them."""
    monkeypatch.setattr(format_, "_check_payload", lambda *args, **kwargs: None)
    assert any("wrong bytes" in w for w in worked(soak.Worker(str(tmp_path), 1)))


def test_counts_that_do_not_add_up_are_found(soak, tmp_path, capsys):
    """A lookup past the counters is one that was made and not counted."""
    worker = soak.Worker(str(tmp_path), 1)
    worker.own["get"] += 1
    assert any("are counted" in w for w in worked(worker))


def test_puts_that_fail_are_found(soak, tmp_path, monkeypatch, capsys):
    """A disk that takes nothing."""
    monkeypatch.setattr(
        soak.DiskStore, "_written", lambda *args: (_ for _ in ()).throw(OSError(28, "full"))
    )
    assert any("put failed" in w for w in worked(soak.Worker(str(tmp_path), 1)))


def test_what_is_left_behind_is_found(soak, tmp_path):
    """A temporary of a living process, and other bytes under a key."""
    root = tmp_path / "cache"
    other = soak.Entry(key=soak.key(39), metadata={"unit": "other"}, payload=b"other")
    soak.DiskStore(str(root)).put(other)
    (root / "tmp" / unique_name()).touch()
    run = soak.Soak(str(root), 0, 0, 0)
    run.check_folder()
    left, wrong = run.wrong
    assert left.startswith("temporaries are left")
    assert wrong == "wrong bytes under key 39 in the end"


def test_a_folder_beyond_its_limits_is_found(soak, tmp_path, monkeypatch):
    """More files than the limits allow, where nothing makes room."""
    store = soak.DiskStore(str(tmp_path))
    for number in range(soak.CAPS.max_entries + 1):
        store.put(soak.entry(number))
    monkeypatch.setattr(soak, "BoundedStore", lambda inner, caps: inner)
    run = soak.Soak(str(tmp_path), 0, 0, 0)
    run.check_folder()
    (told,) = run.wrong
    assert told.endswith("are beyond the limits")


def test_a_worker_that_hangs_or_crashes_is_found(soak, tmp_path, monkeypatch):
    """One that prints nothing any more, and one that ends by itself with an error."""
    monkeypatch.setattr(soak, "HANG_S", 0.0)
    run = soak.Soak(str(tmp_path / "cache"), 0, 0, 0)
    log = tmp_path / "log"
    log.touch()
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    process.wait()
    run.processes[process.pid] = (process, log)
    run.seen[process.pid] = ("", time.monotonic() - 1)
    run.look()
    run.reap(process.pid, killed=False)
    assert [w.partition(" ")[2].partition(" ")[2] for w in run.wrong] == [
        "made no progress for 0 s",
        "ended with 3: ",
    ]
    assert not os.path.exists(log)


def test_a_worker_that_ends_before_its_time_is_found(soak, tmp_path, monkeypatch):
    """Workers that cannot even start end the run at once, with what they said: nothing would be tested from then on."""
    monkeypatch.setattr(sys, "path", [])
    run = soak.Soak(str(tmp_path / "cache"), 60, 2, 0)
    began = time.monotonic()
    run.run()
    assert time.monotonic() - began < 30
    assert "ended by itself" in run.wrong[0]
    assert "ModuleNotFoundError" in run.wrong[0]
