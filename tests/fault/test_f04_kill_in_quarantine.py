"""F4: a process is killed while it sets a bad file aside. The file is in its place or in the quarantine, with its reason.

Killing the eviction and the export is in the tests of those.
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

REASON = "truncated: 11 bytes, the fixed part has 216\n"


@pytest.fixture(scope="module")
def killer():
    with Killer() as running:
        yield running


@pytest.fixture
def fresh():
    """Makes cache folders with a file that is no entry in the place of one, and files set aside before."""
    number = itertools.count()
    with memory_folder() as folder:

        def make(set_aside_before=""):
            root = os.path.join(folder, str(next(number)))
            store = DiskStore(root)
            assert store.put(entry_of("neighbour")).written
            for name in set_aside_before:
                damage(root, name)
                assert store.get(key_of(name)).outcome is Outcome.CORRUPT
            bad = damage(root)
            return root, bad

        yield make


def named(action):
    return f"{crash_actions.__name__}:{action}"


def read(path):
    with open(path, "rb") as file:
        return file.read()


def quarantined(root):
    """Content of each file in the quarantine with its reason, None where that is absent."""
    folder = os.path.join(root, "quarantine")
    found = []
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if not name.endswith(".reason"):
            path = os.path.join(folder, name)
            noted = os.path.exists(path + ".reason")
            found.append((read(path), read(path + ".reason").decode() if noted else None))
    return sorted(found)


def check_after_a_kill(root, bad, before=()):
    """The bad file is in one place, with a reason if that is the quarantine; everything heals."""
    store = DiskStore(root)
    in_place = os.path.exists(store.path_of(ENTRY.key))
    aside = quarantined(root)
    assert aside.count((bad, REASON)) == (not in_place)
    assert all(reason == REASON for _, reason in aside)
    assert set(aside) <= {*before, (bad, REASON)}
    found = store.get(ENTRY.key)
    assert found.outcome is (Outcome.CORRUPT if in_place else Outcome.MISS)
    assert quarantined(root).count((bad, REASON)) == 1
    assert store.put(ENTRY).written
    assert bytes(store.get(ENTRY.key).entry.payload) == PAYLOAD
    assert store.get(key_of("neighbour")).outcome is Outcome.HIT
    return in_place


def test_F04_a_get_killed_at_any_step_of_setting_aside_loses_nothing(killer, fresh):
    """Killed around each call of `os`: the bytes of the bad file are never lost and never without their reason."""
    steps = killer.steps(named("get_corrupt"), fresh()[0])
    assert {"open", "mkdir", "write", "rename"} <= set(steps)
    moved = []
    for step in range(len(steps) + 1):
        root, bad = fresh()
        killer.kill(named("get_corrupt"), root, step)
        moved.append(not check_after_a_kill(root, bad))
    assert moved == [step > steps.index("rename") for step in range(len(steps) + 1)]


def test_F04_a_get_killed_at_any_system_call_of_setting_aside_loses_nothing(killer, fresh):
    """The same, where the kernel stops the process: at each system call."""
    moved = []
    for number in itertools.count():
        root, bad = fresh()
        if not killer.kill_at_system_call(named("get_corrupt"), root, number):
            break
        moved.append(not check_after_a_kill(root, bad))
    assert len(moved) > 15
    assert moved == sorted(moved)
    assert len(set(moved)) == 2


def test_F04_a_get_killed_while_it_removes_the_oldest_files_loses_only_those(killer, fresh):
    """A quarantine beyond its limit is cut from its old end: killed there, each file left has its reason still."""
    steps = killer.steps(named("get_corrupt_beyond_the_limit"), fresh("xyz")[0])
    assert steps.count("unlink") == 4
    for step in range(len(steps) + 1):
        root, bad = fresh("xyz")
        before = quarantined(root)
        assert len(before) == 3
        killer.kill(named("get_corrupt_beyond_the_limit"), root, step)
        assert (b"no entry: z", REASON) in quarantined(root)
        if step == len(steps):
            assert len(quarantined(root)) == 2
        check_after_a_kill(root, bad, before)


def test_F04_a_put_killed_while_it_sets_aside_what_lies_in_its_place_loses_nothing(killer, fresh):
    """A put that finds a bad file in its place may die anywhere: that file is kept, and the next put stores."""
    steps = killer.steps(named("put"), fresh()[0])
    for step in range(len(steps) + 1):
        root, bad = fresh()
        killer.kill(named("put"), root, step)
        found = DiskStore(root).get(ENTRY.key)
        assert found.outcome in (Outcome.CORRUPT, Outcome.MISS, Outcome.HIT)
        assert quarantined(root) == [(bad, REASON)]
        assert not DiskStore(root).put(ENTRY).failed
        assert bytes(DiskStore(root).get(ENTRY.key).entry.payload) == PAYLOAD
