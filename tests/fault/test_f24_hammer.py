"""F24: many processes put, get, remove, evict, damage and are killed on few keys; every get gives nothing or the exact bytes."""

import os

import pytest

from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.quarantine import KEPT_FILES
from graphspec.cache.leftovers import sweep
from graphspec.cache.store import Outcome
from support.bad_disks import files_below
from support.hammer import hammer, hammered_entry


def hammered(root, *, processes, keys, seconds, seed):
    """Hammers a folder, and checks what was counted."""
    counted = hammer(root, processes=processes, keys=keys, seconds=seconds, seed=seed)
    lookups = {name: n for name, n in counted.items() if name.startswith("lookup ")}
    assert sum(lookups.values()) == counted["get"]
    assert set(lookups) == {"lookup hit", "lookup miss", "lookup corrupt"}
    puts = counted["put"] + counted["free"]
    assert counted["written"] + counted["kept"] + counted.get("failed", 0) == puts
    assert counted["free"] + counted.get("held", 0) == counted["lock"]
    assert counted["written"] > 0
    assert counted["killed"] >= processes
    return counted


def assert_clean(root, keys):
    """Every file is where it belongs; what is damaged is found, what is missing can be put, and then all is whole."""
    store = DiskStore(root)
    entries = [hammered_entry(str(n)) for n in range(keys)]
    paths = {store.path_of(entry.key) for entry in entries}
    for entry in entries:
        found = store.get(entry.key)
        assert found.outcome in (Outcome.HIT, Outcome.MISS, Outcome.CORRUPT)
        stored = store.put(entry)
        assert stored.written is (found.outcome is not Outcome.HIT)
        assert bytes(store.get(entry.key).entry.payload) == entry.payload
    listed = list(store.entries())
    assert {path for path, _, _ in listed} == paths
    assert all(header is not None for _, header, _ in listed)
    sweep(os.path.join(root, "tmp"))
    kinds = {"entries": [], "quarantine": [], "locks": [], "tmp": []}
    for name in files_below(root):
        kind, _, rest = name.partition("/")
        kinds[kind].append(rest)
    assert kinds["tmp"] == []
    assert len(kinds["entries"]) == keys
    assert set(kinds["locks"]) <= {f"{entry.key.digest}.lock" for entry in entries}
    kept = {name for name in kinds["quarantine"] if not name.endswith(".reason")}
    noted = {name.removesuffix(".reason") for name in kinds["quarantine"]} - kept
    # A process that is killed between the two leaves a note without its file, never a file without its note.
    assert {f"{name}.reason" for name in kept} <= set(kinds["quarantine"])
    assert len(kept | noted) <= KEPT_FILES + 8


def test_F24_no_get_ever_gives_wrong_bytes_under_the_hammer(tmp_path):
    """Four processes on five keys for two seconds."""
    root = str(tmp_path / "cache")
    hammered(root, processes=4, keys=5, seconds=2.0, seed=1)
    assert_clean(root, 5)


def test_F24_one_key_that_all_fight_for(tmp_path):
    """Six processes on one key for a second."""
    root = str(tmp_path / "cache")
    hammered(root, processes=6, keys=1, seconds=1.0, seed=2)
    assert_clean(root, 1)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(4))
def test_F24_no_get_ever_gives_wrong_bytes_under_a_long_hammer(tmp_path, seed):
    """Sixteen processes on eight keys for a minute."""
    root = str(tmp_path / "cache")
    counted = hammered(root, processes=16, keys=8, seconds=60.0, seed=10 + seed)
    assert counted["get"] > 1000
    assert_clean(root, 8)
