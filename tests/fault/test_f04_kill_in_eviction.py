"""F4: a process is killed while it evicts. Each entry is there whole or not at all, and the caps hold when another goes on."""

import itertools
import os
import shutil

import pytest

from graphspec.cache.folder.bounded import BoundedStore
from graphspec.cache.folder.check import check_folder
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.evict import total_of
from graphspec.cache.folder.listing import entry_files, stored_files
from graphspec.cache.folder.usage import RunningTotal
from graphspec.cache.store import Outcome
from support import evict_actions
from support.entries import entry_of, key_of
from support.evict_actions import CAPS, NEW, OLD, fill, payload
from support.faults import Killer, memory_folder


@pytest.fixture(scope="module")
def killer():
    with Killer() as running:
        yield running


@pytest.fixture
def full():
    """Makes cache folders with three entries, which is all that their caps allow."""
    number = itertools.count()
    with memory_folder() as folder:
        model = os.path.join(folder, "model")
        fill(model)

        def make():
            root = os.path.join(folder, str(next(number)))
            shutil.copytree(model, root)
            return root

        yield make


def named(action):
    return f"{evict_actions.__name__}:{action}"


def there(root):
    """The names of the entries that are stored, each checked to be exactly what was put."""
    store, found = DiskStore(root), ""
    for name in OLD + NEW:
        lookup = store.get(key_of(name))
        assert lookup.outcome in (Outcome.HIT, Outcome.MISS), lookup.reason
        if lookup.entry is not None:
            assert bytes(lookup.entry.payload) == payload(name)
            found += name
    return found


def check_after_a_kill(root):
    """No file is damaged, the hint is not too low, and the next process puts, sweeps and keeps the caps."""
    assert check_folder(DiskStore(root)).damages == ()
    held, told = total_of(list(stored_files(root))), RunningTotal(root).read()
    assert held.within(CAPS)
    assert told is None or (told.total.bytes >= held.bytes and told.total.files >= held.files)
    found = there(root)
    store = BoundedStore(DiskStore(root), CAPS)
    assert not store.put(entry_of(NEW, payload(NEW))).failed
    assert NEW in there(root)
    assert total_of(list(stored_files(root))).within(CAPS)
    assert store.put(entry_of("e", payload("e"))).written
    assert os.listdir(os.path.join(root, "tmp")) == []
    return found


def ends(killer, full, action):
    """What is stored after a kill before each step of an action, and after the last."""
    steps = killer.steps(named(action), full())
    assert {"rename", "unlink"} <= set(steps)
    found = []
    for step in range(len(steps) + 1):
        root = full()
        killer.kill(named(action), root, step)
        found.append(check_after_a_kill(root))
    return found


def test_F04_a_put_killed_at_any_step_of_making_room_leaves_the_caps_kept(killer, full):
    """Three entries; then the oldest is gone; then the new one is there. Nothing else is ever seen."""
    found = ends(killer, full, "put")
    assert [name for name, _ in itertools.groupby(found)] == ["abc", "bc", "bcd"]


def test_F04_an_eviction_killed_at_any_step_has_removed_whole_entries(killer, full):
    """One after the other goes, in the order of the plan."""
    found = ends(killer, full, "evict_two")
    assert [name for name, _ in itertools.groupby(found)] == ["abc", "bc", "c"]


def test_F04_a_gc_killed_at_any_step_has_removed_whole_entries(killer, full):
    """The command does what an eviction does."""
    found = ends(killer, full, "collect")
    assert [name for name, _ in itertools.groupby(found)] == ["abc", "bc", "c"]


def test_F04_a_prune_killed_at_any_step_leaves_temporaries_that_the_next_process_removes(
    killer, full
):
    """First all names go, one after the other in the order of their digests, and then the bytes."""
    order = sorted(OLD, key=lambda name: key_of(name).digest)
    found = ends(killer, full, "prune")
    left = ["".join(n for n in OLD if n in order[at:]) for at in range(4)]
    assert [name for name, _ in itertools.groupby(found)] == left


def test_F04_an_eviction_killed_at_any_system_call_has_removed_whole_entries(killer, full):
    """The same, where the kernel stops the process: at each system call."""
    found = []
    for number in itertools.count():
        root = full()
        if not killer.kill_at_system_call(named("evict_two"), root, number):
            break
        found.append(check_after_a_kill(root))
    assert len(found) > 40
    assert [name for name, _ in itertools.groupby(found)] == ["abc", "bc", "c"]


def test_F04_a_kill_leaves_nothing_that_counts_for_ever(killer, full):
    """What a killed process had taken out of the store but not removed is no entry, and is swept."""
    steps = killer.steps(named("evict_two"), full())
    root = full()
    killer.kill(named("evict_two"), root, steps.index("unlink"))
    assert len(os.listdir(os.path.join(root, "tmp"))) == 1
    assert len(list(entry_files(root))) == 2
    assert total_of(list(stored_files(root))).files == 2
