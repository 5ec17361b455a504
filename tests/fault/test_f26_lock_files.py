"""F26: what a lock file may be, whom it keeps out, and what a fork does to it."""

import os

import pytest

from graphspec.cache.folder.locks import KeyLocks
from support.entries import key_of
from support.processes import run_python


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "cache")


def test_F26_a_lock_makes_folders_that_are_closed_to_others(tmp_path):
    """It may come before the first put: under any umask the root that it makes is its owner's alone."""
    before = os.umask(0)
    try:
        with KeyLocks(str(tmp_path / "cache")).try_lock(key_of("a")):
            pass
    finally:
        os.umask(before)
    for folder in ("cache", "cache/locks"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700


def test_F26_a_link_in_the_place_of_a_lock_file_is_not_followed(root, tmp_path):
    """What it leads to is neither made nor emptied; the lock counts as free."""
    (tmp_path / "precious").write_text("content")
    os.makedirs(os.path.join(root, "locks"))
    for name, target in (("a", tmp_path / "precious"), ("b", tmp_path / "new")):
        os.symlink(target, os.path.join(root, "locks", key_of(name).digest + ".lock"))
        with KeyLocks(root).try_lock(key_of(name)) as free:
            assert free
    assert (tmp_path / "precious").read_text() == "content"
    assert not (tmp_path / "new").exists()


def test_F26_a_pipe_in_the_place_of_a_lock_file_does_not_hang(root):
    """A file of another kind is locked or refused, at once."""
    os.makedirs(os.path.join(root, "locks"))
    os.mkfifo(os.path.join(root, "locks", key_of("a").digest + ".lock"))
    with KeyLocks(root).try_lock(key_of("a")) as free:
        assert free


FORK = """
import os, signal, sys
from graphspec.cache.folder.locks import KeyLocks
from support.entries import key_of

def free():
    with KeyLocks(os.environ["ROOT"]).try_lock(key_of("a")) as free:
        return free

said, saying = os.pipe()
heard, telling = os.pipe()
"""


def test_F26_a_child_that_leaves_the_block_does_not_release_its_parents_lock(root):
    """Forked while the lock is held, the child runs to the end of the block: the parent's lock stays held."""
    printed = run_python(
        FORK
        + """
with KeyLocks(os.environ["ROOT"]).try_lock(key_of("a")) as mine:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        print(mine, free())
if not child:
    os._exit(0)
print(free())
""",
        ROOT=root,
    )
    assert printed.splitlines() == ["True False", "True"]


def test_F26_a_child_does_not_keep_its_parents_lock(root):
    """The parent leaves the block while the child lives on in it: the lock is free, and the child can take it."""
    printed = run_python(
        FORK
        + """
with KeyLocks(os.environ["ROOT"]).try_lock(key_of("a")):
    child = os.fork()
    if not child:
        os.write(saying, b"%d" % free())
        os.read(heard, 1)
        os.write(saying, b"%d" % free())
        os._exit(0)
    print(os.read(said, 1))
print(free())
os.write(telling, b"x")
print(os.read(said, 1))
os.waitpid(child, 0)
""",
        ROOT=root,
    )
    assert printed.splitlines() == ["b'0'", "True", "b'1'"]


def test_F26_the_lock_of_a_killed_parent_is_free_although_its_child_lives(root):
    """A worker that outlives its parent does not delay others in its name."""
    printed = run_python(
        FORK
        + """
parent = os.fork()
if not parent:
    with KeyLocks(os.environ["ROOT"]).try_lock(key_of("a")):
        if os.fork():
            signal.pause()
        os.write(saying, b"x")
        os.read(heard, 1)
        os._exit(0)
os.read(said, 1)
print(free())
os.kill(parent, signal.SIGKILL)
os.waitpid(parent, 0)
print(free())
os.write(telling, b"x")
""",
        ROOT=root,
    )
    assert printed.splitlines() == ["False", "True"]
