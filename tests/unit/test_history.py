"""The record of past runs: bounded, never in the way, and damaged lines are left out."""

import json
import os

import pytest

from graphspec.cache.folder import history
from graphspec.cache.folder.history import MOST_BYTES, NAME, Run, append_run, read_runs
from graphspec.cache.folder.holdings import past_of


def run_at(at, **outcomes):
    return Run(at=at, outcomes=outcomes or {"hit": 1}, compiled=0, seconds=0.5, seconds_saved=2.0)


@pytest.fixture
def root(tmp_path):
    return str(tmp_path)


def test_runs_come_back_in_order(root):
    """What was appended is what is read."""
    runs = [run_at(1.0, hit=2, miss=1), run_at(2.5, error=3)]
    for run in runs:
        append_run(root, run)
    assert list(read_runs(root)) == runs


def test_a_folder_without_a_record_has_no_runs(tmp_path):
    """None was made, and a folder that is absent stays so."""
    assert read_runs(str(tmp_path / "absent")) == ()
    append_run(str(tmp_path / "absent"), run_at(1.0))
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_one_line_for_this_user_alone(root):
    """Short, in one write, without names of hosts or users."""
    append_run(root, run_at(1.0))
    path = os.path.join(root, NAME)
    with open(path, encoding="utf-8") as file:
        (line,) = file.readlines()
    assert json.loads(line) == {
        "at": 1.0,
        "outcomes": {"hit": 1},
        "compiled": 0,
        "seconds": 0.5,
        "saved": 2.0,
    }
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_the_record_is_bounded_and_keeps_the_newest(root):
    """At the limit the older half goes; no temporary stays."""
    for i in range(4000):
        append_run(root, run_at(float(i)))
        assert os.path.getsize(os.path.join(root, NAME)) <= MOST_BYTES
    ats = [run.at for run in read_runs(root)]
    assert ats == [float(i) for i in range(4000 - len(ats), 4000)]
    assert len(ats) > 1000
    assert os.listdir(os.path.join(root, "tmp")) == []


DAMAGES = [
    b"\xff\xfe\n",
    b"{}\n",
    b"[1]\n",
    b'{"at":1,"outcomes":{"hit":1},"compiled":0,"seconds":NaN,"saved":0}\n',
    b'{"at":1,"outcomes":{"hit":1},"compiled":1e999,"seconds":1,"saved":0}\n',
    b'{"at":1,"outcomes":[],"compiled":0,"seconds":1}\n',
    b"[" * 4000 + b"\n",
    b"x" * 100_000 + b"\n",
    b'{"at":1,"outco',
]


@pytest.mark.parametrize("damage", DAMAGES, ids=range(len(DAMAGES)))
def test_a_damaged_line_is_left_out(root, damage):
    """Those before it count, and so does what is appended behind a whole line."""
    append_run(root, run_at(1.0))
    with open(os.path.join(root, NAME), "ab") as file:
        file.write(damage)
    append_run(root, run_at(2.0))
    ats = [run.at for run in read_runs(root)]
    assert ats == ([1.0, 2.0] if damage.endswith(b"\n") else [1.0])


def test_outcomes_that_nobody_knows_are_not_counted(root):
    """A newer graphspec may have more of them."""
    append_run(root, run_at(1.0, hit=1))
    with open(os.path.join(root, NAME), "ab") as file:
        file.write(b'{"at":2,"outcomes":{"hit":1,"new":5},"compiled":0,"seconds":0,"saved":0}\n')
    assert past_of(read_runs(root)).outcomes == {"hit": 2}


def test_a_disk_that_fails_costs_the_record_and_nothing_else(root, monkeypatch):
    """Neither a full disk nor a link in the record's place is raised."""

    def fail(*arguments, **named):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", fail)
        append_run(root, run_at(1.0))
    os.unlink(os.path.join(root, NAME))
    os.symlink("/dev/full", os.path.join(root, NAME))
    append_run(root, run_at(1.0))
    os.unlink(os.path.join(root, NAME))
    monkeypatch.setattr(history, "MOST_BYTES", 10)
    monkeypatch.setattr(os, "rename", fail)
    append_run(root, run_at(1.0))
    assert os.listdir(os.path.join(root, "tmp")) == []
