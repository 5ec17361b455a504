"""F20 and F21: roots of any name and length, mounts that know no case, and folders of one cache on several devices."""

import errno
import os
import re
import subprocess

import pytest

from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.locks import KeyLocks
from graphspec.cache.leftovers import unique_name
from graphspec.cache.store import Outcome
from support.bad_disks import files_below, tmpfs
from support.entries import entry_of, key_of

NAMES = {
    "spaces": "a folder  with spaces ",
    "non-ASCII": "Zwischenspeicher-ü-缓存-🗄",
    "decomposed": "u\u0308ber",
    "right to left": "\u202e\u05d0\u05d1",
    "newline and quotes": "a\nb'c\"d",
    "percent and braces": "%s{0}%(x)d",
    "dots and dashes": "-rf ..",
    "undecodable bytes": os.fsdecode(b"\xff\xfe"),
    "looks like an entry": "x.v3.entry",
    "200 characters": "d" * 200,
    "deep": "/".join(["folder"] * 200),
}


def works(root):
    """Put, get, set aside, list, lock and check, in a folder that was not there before."""
    store, locks = DiskStore(root), KeyLocks(root)
    assert store.get(key_of("a")).outcome is Outcome.MISS
    with locks.try_lock(key_of("a")) as free, locks.try_lock(key_of("a")) as second:
        assert (free, second) == (True, False)
        assert store.put(entry_of("a")).written
    assert bytes(store.get(key_of("a")).entry.payload) == entry_of("a").payload
    assert [path for path, _, _ in store.entries()] == [store.path_of(key_of("a"))]
    os.truncate(store.path_of(key_of("a")), 30)
    assert store.get(key_of("a")).outcome is Outcome.CORRUPT
    assert store.put(entry_of("a")).written
    assert store.problem() == ""


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_F20_a_root_of_any_name_works(tmp_path, name):
    """Everything that a cache does, below a folder with that name."""
    works(str(tmp_path / name / "cache"))
    assert os.listdir(tmp_path) == [name.split("/", maxsplit=1)[0]]


def test_F20_a_root_that_is_a_link_works(tmp_path):
    """The cache behind a symbolic link is the cache."""
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real").mkdir()
    works(str(tmp_path / "link"))
    assert DiskStore(str(tmp_path / "real")).get(key_of("a")).outcome is Outcome.HIT


TOO_LONG = {
    "a name of 256 bytes": lambda base: os.path.join(base, "n" * 256),
    "a root beyond the limit": lambda base: base + "/folder" * 700,
    "a root just below the limit": lambda base: (base + ("/" + "f" * 99) * 40)[:4080],
}


@pytest.mark.parametrize("make", TOO_LONG.values(), ids=TOO_LONG)
def test_F20_a_name_that_is_too_long_ends_in_a_sentence(tmp_path, make):
    """Get is a miss or an error with a reason, put and problem say what is wrong, the lock counts as free."""
    root = make(str(tmp_path))
    store = DiskStore(root)
    found = store.get(key_of("a"))
    assert found.outcome in (Outcome.MISS, Outcome.ERROR)
    assert found.reason
    with KeyLocks(root).try_lock(key_of("a")) as free:
        assert free
    assert store.problem() == f"{store.root}: {os.strerror(errno.ENAMETOOLONG)}"
    assert store.put(entry_of("a")).reason == store.problem()
    assert list(store.entries()) == []


def test_F20_names_differ_by_more_than_case(tmp_path):
    """On a mount that knows no case no two keys meet: what names an entry or a lock is lower-case hexadecimal."""
    store, root = DiskStore(str(tmp_path)), str(tmp_path)
    keys = [key_of(str(n)) for n in range(300)]
    assert all(re.fullmatch("[0-9a-f]{32}", key.digest) for key in keys)
    paths = {os.path.relpath(store.path_of(key), root) for key in keys}
    assert paths == {path.lower() for path in paths}
    assert len(paths) == len(keys)
    for name in ("a", "b"):
        with KeyLocks(root).try_lock(key_of(name)):
            store.put(entry_of(name))
    assert all(name == name.lower() for name in files_below(root))


def test_F20_temporaries_differ_by_more_than_case():
    """Two hosts whose names differ in case only still make different temporaries: each name has 32 random bits."""
    names = {unique_name().casefold() for _ in range(500)}
    assert len(names) == 500
    assert {len(name.rsplit(".", 1)[1]) for name in names} == {8}


@pytest.mark.parametrize("name", ["tmp", "entries", "quarantine", "locks"])
def test_F21_one_folder_of_the_cache_on_another_device_ends_well(tmp_path, name):
    """Nothing can be moved between them: put works or says so, and a corrupt entry is never in the way of a good one."""
    root = tmp_path / "cache"
    root.mkdir()
    with tmpfs(root / name, "size=1m"):
        store = DiskStore(str(root))
        stored = store.put(entry_of("a"))
        if name in ("tmp", "entries"):
            assert (
                stored.reason
                == f"{root}: its folders tmp and entries lie on different file systems"
            )
            assert store.get(key_of("a")).outcome is Outcome.MISS
        else:
            assert stored.written
            os.truncate(store.path_of(key_of("a")), 30)
            assert store.get(key_of("a")).outcome is Outcome.CORRUPT
            assert store.put(entry_of("a")).written
            assert store.get(key_of("a")).outcome is Outcome.HIT
        assert os.listdir(root / "tmp") == []
        with KeyLocks(str(root)).try_lock(key_of("a")) as free:
            assert free


def test_F21_an_entry_that_links_to_another_device_is_served_and_set_aside(tmp_path):
    """The link is what moves to the quarantine; what it leads to stays as it is."""
    store = DiskStore(str(tmp_path / "cache"))
    store.put(entry_of("a"))
    path = store.path_of(key_of("a"))
    with tmpfs(tmp_path / "other", "size=1m") as other:
        there = other / "entry"
        with open(path, "rb") as file:
            there.write_bytes(file.read())
        os.unlink(path)
        os.symlink(there, path)
        assert store.get(key_of("a")).outcome is Outcome.HIT
        os.truncate(there, 30)
        assert store.get(key_of("a")).outcome is Outcome.CORRUPT
        assert there.stat().st_size == 30
        assert store.put(entry_of("a")).written
        assert store.get(key_of("a")).outcome is Outcome.HIT


@pytest.fixture
def image(tmp_path):
    """A cache with the entries a and b in a read-only layer, mounted below a writable one, as in a container image."""
    lower = DiskStore(str(tmp_path / "lower"))
    for name in "ab":
        lower.put(entry_of(name))
    with tmpfs(tmp_path / "layers", "size=4m") as layers:
        for name in ("upper", "work", "merged"):
            (layers / name).mkdir()
        options = f"lowerdir={lower.root},upperdir={layers}/upper,workdir={layers}/work"
        command = ["mount", "-t", "overlay", "-o", options, "overlay", str(layers / "merged")]
        ran = subprocess.run(command, check=False, capture_output=True)
        if ran.returncode:
            pytest.skip(f"this machine does not let the test mount an overlay: {ran.stderr!r}")
        try:
            yield lower, DiskStore(str(layers / "merged"))
        finally:
            subprocess.run(["umount", str(layers / "merged")], check=True)


def test_F21_the_layers_of_a_container_are_one_cache(image):
    """Entries of the image are hits, a corrupt one is set aside and replaced, and the image stays as it is."""
    lower, store = image
    os.truncate(lower.path_of(key_of("b")), 30)
    before = files_below(lower.root)
    assert store.get(key_of("a")).outcome is Outcome.HIT
    assert store.put(entry_of("a")).written is False
    assert store.get(key_of("b")).outcome is Outcome.CORRUPT
    assert store.put(entry_of("b")).written
    assert store.get(key_of("b")).outcome is Outcome.HIT
    assert store.put(entry_of("c")).written
    assert len(list(store.entries())) == 3
    assert files_below(lower.root) == before
