"""F4, the part about bundles: an export or an import that is killed at any step leaves a whole bundle, or none, and a
usable cache."""

import itertools
import os

import pytest

from graphspec.cache.bundle.reader import read_bundle
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Outcome
from support import bundle_actions
from support.bundle_actions import ENTRIES, export_all, import_all
from support.bundles import store_of
from support.faults import Killer, memory_folder

EXPORT, IMPORT = (f"{bundle_actions.__name__}:{name}" for name in ("export_all", "import_all"))


@pytest.fixture(scope="module")
def killer():
    with Killer() as running:
        yield running


@pytest.fixture
def fresh(tmp_path):
    """Makes folders with a filled cache, and with what else a test wants in them."""
    number = itertools.count()
    with memory_folder() as folder:

        def make(bundle=None):
            root = os.path.join(folder, str(next(number)))
            store_of(os.path.join(root, "from"), *ENTRIES)
            if bundle is not None:
                with open(os.path.join(root, "a.bundle"), "wb") as file:
                    file.write(bundle)
            return root

        yield make


def bundle_in(root):
    try:
        with open(os.path.join(root, "a.bundle"), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


@pytest.fixture
def whole(fresh):
    """The bytes of a whole bundle."""
    root = fresh()
    export_all(root)
    return bundle_in(root)


def nothing_else_is_left(root):
    """The next export works, and sweeps what the dead one left beside the bundle."""
    export_all(root)
    assert len(read_bundle(bundle_in(root)).entries) == len(ENTRIES)
    return sorted(os.listdir(root)) == ["a.bundle", "from"]


def test_F04_an_export_killed_at_any_step_leaves_the_whole_file_or_what_was_there(
    killer, fresh, whole
):
    """Killed around each call of `os`: under the bundle's name lies an older file, and then at once the whole new one."""
    older = b"an older file"
    steps = killer.steps(EXPORT, fresh(older))
    assert {"open", "write", "close", "fsync", "rename"} <= set(steps)
    assert steps.count("write") >= 5
    found = []
    for step in range(len(steps) + 1):
        root = fresh(older)
        killer.kill(EXPORT, root, step)
        found.append(bundle_in(root))
        assert nothing_else_is_left(root)
    renamed = steps.index("rename")
    assert found == [whole if step > renamed else older for step in range(len(steps) + 1)]


def test_F04_an_export_killed_at_any_system_call_leaves_the_whole_file_or_none(
    killer, fresh, whole
):
    """The same, where the kernel stops the process: at each system call, whatever code makes it."""
    found = []
    for number in itertools.count():
        root = fresh()
        if not killer.kill_at_system_call(EXPORT, root, number):
            break
        found.append(bundle_in(root))
    assert len(found) > 20
    missing = found.count(None)
    assert found == [None] * missing + [whole] * (len(found) - missing)
    assert 0 < missing < len(found)


def test_F04_an_import_killed_at_any_step_leaves_a_usable_cache(killer, fresh, whole):
    """Each entry is a miss or a hit with its own bytes, the cache of the bundle is as it was, and the next import ends."""
    steps = killer.steps(IMPORT, fresh(whole))
    assert {"open", "write", "close", "mkdir", "link"} <= set(steps)
    hits = []
    for step in range(len(steps) + 1):
        root = fresh(whole)
        killer.kill(IMPORT, root, step)
        store = DiskStore(os.path.join(root, "to"))
        lookups = [store.look(e.key) for e in ENTRIES]
        for entry, lookup in zip(ENTRIES, lookups, strict=True):
            assert lookup.outcome in (Outcome.HIT, Outcome.MISS)
            assert lookup.entry in (None, entry)
        hits.append(sum(lookup.outcome is Outcome.HIT for lookup in lookups))
        assert bundle_in(root) == whole
        import_all(root)
        assert all(store.get(e.key).entry == e for e in ENTRIES)
        assert os.listdir(os.path.join(store.root, "tmp")) == []
    assert hits == sorted(hits)
    assert set(hits) == {0, 1, 2}
