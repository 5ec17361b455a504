"""Key locks: one holder a key, free at once when the holder dies, and never in the way of the work."""

import os
import signal
import subprocess
import sys

import pytest

from graphspec.cache.folder.locks import KeyLocks
from support.entries import key_of
from support.processes import TESTS

_HOLD = """
import sys
from graphspec.cache.folder.locks import KeyLocks
from support.entries import key_of
with KeyLocks(sys.argv[1]).try_lock(key_of("a")) as free:
    print(free, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "cache")


@pytest.fixture
def holder(root):
    """Another process that holds the lock of key a until its standard input is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        cwd=TESTS.parent,
    )
    assert process.stdout.readline() == "True\n"
    yield process
    process.kill()
    process.communicate()


def test_a_free_lock_is_held_inside_the_block_only(root):
    """The value is True, and afterwards the same key can be locked again."""
    for _ in range(2):
        with KeyLocks(root).try_lock(key_of("a")) as free:
            assert free


def test_a_lock_that_another_process_holds_is_refused_at_once(root, holder):
    """The value is False, without waiting, while the holder lives; other keys are free."""
    locks = KeyLocks(root)
    with locks.try_lock(key_of("a")) as free, locks.try_lock(key_of("b")) as other:
        assert (free, other) == (False, True)
    holder.communicate()
    with locks.try_lock(key_of("a")) as free:
        assert free


def test_the_lock_of_a_killed_process_is_free_at_once(root, holder):
    """A holder that dies delays nobody."""
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with KeyLocks(root).try_lock(key_of("a")) as free:
        assert free


def test_a_second_user_in_this_process_is_refused_too(root):
    """Two warmups in one process do not compile the same unit at once."""
    with (
        KeyLocks(root).try_lock(key_of("a")) as first,
        KeyLocks(root).try_lock(key_of("a")) as second,
    ):
        assert (first, second) == (True, False)


def test_lock_files_stay_in_place(root):
    """A lock file is never removed: two processes would lock two files of one name."""
    for name in "ab":
        with KeyLocks(root).try_lock(key_of(name)):
            pass
    files = sorted(os.listdir(os.path.join(root, "locks")))
    assert files == sorted(key_of(name).digest + ".lock" for name in "ab")


def test_an_error_inside_the_block_releases_the_lock(root):
    """A failed compile does not keep others from trying, and its error is raised on."""
    for error in (OSError, TimeoutError, KeyboardInterrupt):
        with pytest.raises(error), KeyLocks(root).try_lock(key_of("a")):
            raise error
    with KeyLocks(root).try_lock(key_of("a")) as free:
        assert free


@pytest.mark.parametrize("where", ["root", "locks", "lock"])
def test_where_no_lock_can_be_made_the_work_goes_on(root, where):
    """A folder that takes no lock file counts as free: compiling twice is better than not at all."""
    path = {
        "root": root,
        "locks": os.path.join(root, "locks"),
        "lock": os.path.join(root, "locks", key_of("a").digest + ".lock", "folder", "x"),
    }[where]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8"):
        pass
    with KeyLocks(root).try_lock(key_of("a")) as free:
        assert free
