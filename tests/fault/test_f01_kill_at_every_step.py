"""F1: a process is killed at every step of a put. A reader sees no file or a whole one, and the next put works.

Every step means every one: each call of `os` by which the store changes something, and, without a list of calls that
could be incomplete, each system call of the process.
"""

import itertools
import os

import pytest

from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Outcome
from support import crash_actions
from support.crash_actions import ENTRY, PAYLOAD, damage
from support.entries import entry_of, key_of
from support.faults import Killer, memory_folder

PUTS = {
    "put": {"open", "write", "close", "mkdir", "link", "unlink"},
    "put_durable": {"open", "write", "close", "mkdir", "link", "unlink", "fsync"},
    "put_without_links": {"open", "write", "close", "mkdir", "rename", "unlink", "fsync"},
}
SITUATIONS = ["no folder", "another entry", "a file that is no entry"]


@pytest.fixture(scope="module")
def killer():
    with Killer() as running:
        yield running


@pytest.fixture
def fresh():
    """Makes cache folders in one of the situations."""
    number = itertools.count()
    with memory_folder() as folder:

        def make(situation):
            root = os.path.join(folder, str(next(number)))
            if situation == "another entry":
                DiskStore(root).put(entry_of("b", b"neighbour"))
            if situation == "a file that is no entry":
                damage(root)
            return root

        yield make


def named(action):
    return f"{crash_actions.__name__}:{action}"


def nothing_is_left(root):
    """A put sweeps what the dead have left: true when no temporary and no probe is there after one."""
    assert not DiskStore(root).put(entry_of("c")).failed
    folders = os.listdir(os.path.join(root, "entries"))
    return os.listdir(os.path.join(root, "tmp")) == [] and all(len(f) == 2 for f in folders)


def outcome_after_a_kill(root, situation):
    """How a lookup ends after a kill; checks the promises that hold whenever the kill came."""
    store = DiskStore(root)
    found = store.look(ENTRY.key)
    if found.outcome is Outcome.HIT:
        assert bytes(found.entry.payload) == PAYLOAD
    elif found.outcome is Outcome.CORRUPT:
        assert situation == "a file that is no entry"
        assert found.reason == "truncated: 11 bytes, the fixed part has 216"
    else:
        assert found.outcome is Outcome.MISS
    stored = store.put(ENTRY)
    assert not stored.failed
    assert stored.written is (found.outcome is not Outcome.HIT)
    assert bytes(store.get(ENTRY.key).entry.payload) == PAYLOAD
    if situation == "another entry":
        assert bytes(store.get(key_of("b")).entry.payload) == b"neighbour"
    assert nothing_is_left(root)
    return found.outcome


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("action", PUTS)
def test_F01_a_put_killed_at_any_step_leaves_no_file_or_a_whole_one(
    killer, fresh, action, situation
):
    """Killed around each call of `os`: no part of an entry has its name, and the next put heals everything."""
    steps = killer.steps(named(action), fresh(situation))
    assert PUTS[action] <= set(steps)
    assert steps.count("write") >= 5
    hits = []
    for step in range(len(steps) + 1):
        root = fresh(situation)
        killer.kill(named(action), root, step)
        hits.append(outcome_after_a_kill(root, situation) is Outcome.HIT)
    # The entry is there exactly from the step on that gives it its name: the last of its kind.
    publishing = "rename" if action == "put_without_links" else "link"
    published = len(steps) - 1 - steps[::-1].index(publishing)
    assert hits == [step > published for step in range(len(steps) + 1)]


def test_F01_a_put_killed_at_any_system_call_leaves_no_file_or_a_whole_one(killer, fresh):
    """The same, where the kernel stops the process: at each system call, whatever code makes it."""
    hits = []
    for number in itertools.count():
        root = fresh("no folder")
        if not killer.kill_at_system_call(named("put_durable"), root, number):
            break
        hits.append(outcome_after_a_kill(root, "no folder") is Outcome.HIT)
    assert len(hits) > 40
    # First misses only, then hits only.
    assert hits == sorted(hits)
    assert len(set(hits)) == 2


@pytest.mark.parametrize("action", ["put_again", "get", "problem"])
def test_F01_nothing_that_is_killed_harms_an_entry_that_is_there(killer, fresh, action):
    """A second writer, a reader and a check may die anywhere: the entry stays a hit with its own bytes."""
    root = fresh("no folder")
    store = DiskStore(root)
    store.put(ENTRY)

    def long_unused():
        os.utime(store.path_of(ENTRY.key), (0, 0))

    long_unused()
    steps = killer.steps(named(action), root)
    assert steps
    for step in range(len(steps) + 1):
        long_unused()
        killer.kill(named(action), root, step)
        assert bytes(store.look(ENTRY.key).entry.payload) == PAYLOAD
    assert nothing_is_left(root)
