"""Libraries: loaded from the very bytes that were verified, never another's, without a second copy in memory."""

import os
import tempfile

import attrs
import pytest
import torch
import xxhash

from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.locks import KeyLocks
from graphspec.cache.leftovers import is_ours
from graphspec.cache.load import keyed_units, load_or_compile
from graphspec.cache.loading import library
from graphspec.cache.loading.artifact import load_artifact
from graphspec.errors import CacheError, SignatureError
from support.processes import run_python
from support.toy import NAME, WIDTH, program


@pytest.fixture
def entries(tiny_spec, shared_cache):
    """The stored entries of the toy's two units by name, compiled at most once in a run."""
    spec, root = attrs.evolve(tiny_spec, program=NAME), str(shared_cache)
    units, store = program(spec).units(), DiskStore(root)
    load_or_compile(units, spec, store, KeyLocks(root))
    return {k.unit.name: store.get(k.key).entry for k in keyed_units(units, spec)}


def test_bytes_that_are_no_library_are_an_error_of_the_cache(entries):
    """A payload that cannot be loaded names the unit; it is neither a crash nor another library."""
    with pytest.raises(CacheError, match="unit scale: found its library does not load"):
        load_artifact(attrs.evolve(entries["scale"], payload=b"\x7fELF and nothing more"))


def test_a_library_never_stands_in_for_one_loaded_before(entries, shared_cache):
    """Each of two libraries gives its own results although the first was dropped before the second was loaded.

    The loader knows a library by its path, and a memory file's path is its descriptor's number: were the first one's
    closed, the second would get its number, and the loader would hand out the first library again.
    """
    paths = [DiskStore(str(shared_cache)).path_of(e.key) for e in entries.values()]
    printed = run_python(
        """
        import gc, os, torch
        from graphspec.cache.loading.artifact import load_artifact
        from graphspec.cache.entry import unpack

        def load(path):
            with open(path, "rb") as file:
                return load_artifact(unpack(file.read()))

        scale, mix = os.environ["PATHS"].split(os.pathsep)
        for _ in range(2):
            artifact = load(scale)
            print(len(artifact(torch.ones(2, 8))))
            del artifact
            gc.collect()
            artifact = load(mix)
            print([t.sum().item() for t in artifact(torch.ones(2, 8), torch.eye(8))])
            del artifact
            gc.collect()
        """,
        PATHS=os.pathsep.join(paths),
    )
    assert printed.splitlines() == ["1", "[16.0, 16.0]"] * 2


def variant(entry, tail):
    """The same library with other bytes behind it, which the loader does not look at."""
    return attrs.evolve(entry, payload=bytes(entry.payload) + tail)


def ones(artifact):
    return [t.tolist() for t in artifact(torch.zeros(2, WIDTH))]


def test_equal_bytes_share_one_file(entries):
    """Loading the same library again opens no second file."""
    entry = variant(entries["scale"], b"shared")
    load_artifact(entry)
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        assert ones(load_artifact(entry)) == [[[1.0] * WIDTH] * 2]
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_libraries_of_one_hash_are_told_apart(entries, monkeypatch):
    """Which library is loaded does not depend on a hash: the bytes are compared."""
    monkeypatch.setattr(xxhash, "xxh3_128_digest", lambda data: b"one for all")
    monkeypatch.setattr(library, "_mapped", {})
    x, w = torch.zeros(2, WIDTH), torch.eye(WIDTH)
    for _ in range(2):
        assert len(load_artifact(entries["scale"])(x)) == 1
        assert len(load_artifact(entries["mix"])(x, w)) == 2


@pytest.mark.parametrize(
    "missing", [OSError(38, "not implemented"), AttributeError("memfd_create")]
)
def test_without_memory_files_a_private_file_takes_their_place(
    entries, tmp_path, monkeypatch, missing
):
    """It is readable by nobody else, and its name lets a later process remove it."""

    def refuse(*arguments):
        raise missing

    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    entry = variant(entries["scale"], repr(missing).encode())
    assert ones(load_artifact(entry)) == [[[1.0] * WIDTH] * 2]
    (name,) = os.listdir(tmp_path)
    assert is_ours(name)
    assert os.stat(tmp_path / name).st_mode & 0o777 == 0o600


def test_no_place_to_load_from_is_an_error_of_the_cache(entries, tmp_path, monkeypatch):
    """Where neither memory files nor temporary files can be made, the error names the unit."""

    def refuse(*arguments):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    entry = variant(entries["scale"], b"nowhere")
    with pytest.raises(CacheError, match=r"unit scale: found its library does not load: .*No such"):
        load_artifact(entry)


def test_a_library_for_graph_capture_gives_the_same(entries):
    """Loaded without its own stream handling, a unit computes what it did."""
    artifact = load_artifact(entries["scale"], single_threaded=True)
    assert ones(artifact) == ones(load_artifact(entries["scale"]))
    with pytest.raises(SignatureError, match="unit scale: input x"):
        artifact(torch.ones(2, WIDTH).double())


@pytest.mark.parametrize("single_threaded", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_loading_takes_little_more_memory_than_the_payload(entries, tmp_path, single_threaded):
    """From lookup to callable, a process grows by the payload and at most 10 MB, whatever the payload's size."""
    padding = 32 << 20
    entry = variant(entries["scale"], bytes(padding))
    assert DiskStore(str(tmp_path)).put(entry).written
    printed = run_python(
        """
        import os, resource, torch
        from graphspec.cache.loading.artifact import load_artifact
        from graphspec.cache.folder.disk import DiskStore
        from graphspec.cache.units import EntryKey
        def peak_kib():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        store = DiskStore(os.environ["ROOT"])
        key = EntryKey(bytes.fromhex(os.environ["KEY"]), os.environ["DIGEST"])
        torch.ones(2, 8) + 1
        before = peak_kib()
        artifact = load_artifact(store.get(key).entry, single_threaded=bool(os.environ["SINGLE"]))
        print(peak_kib() - before)
        assert artifact(torch.zeros(1, 8))[0].tolist() == [[1.0] * 8]
        """,
        ROOT=str(tmp_path),
        KEY=entry.key.text.hex(),
        DIGEST=entry.key.digest,
        SINGLE="1" if single_threaded else "",
    )
    assert int(printed) * 1024 <= len(entry.payload) + (10 << 20)
