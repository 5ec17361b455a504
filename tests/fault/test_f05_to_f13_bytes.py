"""F5 to F13: whatever bytes, or no bytes at all, lie where an entry should be: a reason, set aside, healed, hit again.

F12, places taken by what is no file, is in a file of its own.
"""

import os
import pickle
import struct
import tracemalloc
from pathlib import Path

import pytest

from graphspec.cache.entry import PREFIX_BYTES, pack, read_prefix
from graphspec.cache.folder import quarantine
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Outcome
from support.entries import entry_of, fixed_part, key_of, with_header
from support.faults import memory_folder
from support.processes import run_python

ENTRY = entry_of("a", b"library bytes " * 3)
WHOLE = pack(ENTRY)
HEADER_END = PREFIX_BYTES + read_prefix(WHOLE).header


@pytest.fixture
def store(monkeypatch):
    # Thousands of files are set aside here: a small quarantine is a fast one.
    monkeypatch.setattr(quarantine, "KEPT_FILES", 2)
    with memory_folder() as folder:
        yield DiskStore(folder)


def place(store, entry=ENTRY):
    return Path(store.path_of(entry.key))


def lay(store, data):
    """Puts bytes where the entry should be."""
    place(store).parent.mkdir(parents=True, exist_ok=True)
    place(store).write_bytes(data)


def quarantined(store):
    """The newest file in the quarantine and its reason."""
    files = [p for p in Path(store.root, "quarantine").iterdir() if p.suffix != ".reason"]
    newest = max(files, key=lambda p: int(p.name.split(".")[-2]))
    return newest, newest.with_name(newest.name + ".reason").read_text()


def check_heals(store, bad, reason):
    """The whole promise for one bad file: named, set aside with its bytes, a miss, stored anew, a hit."""
    lay(store, bad)
    found = store.get(ENTRY.key)
    assert (found.outcome, found.entry, found.reason) == (Outcome.CORRUPT, None, reason)
    kept, note = quarantined(store)
    assert kept.stat().st_size == len(bad)
    assert kept.read_bytes() == bad
    assert note == reason + "\n"
    assert store.get(ENTRY.key).outcome is Outcome.MISS
    assert store.put(ENTRY).written
    assert bytes(store.get(ENTRY.key).entry.payload) == ENTRY.payload


def test_F05_an_entry_cut_at_any_length_is_set_aside_and_heals(store):
    """Cut at every length, from nothing to all but the last byte."""
    for length in range(len(WHOLE)):
        promised = (
            f"the header promises {len(WHOLE)}"
            if length >= PREFIX_BYTES
            else f"the fixed part has {PREFIX_BYTES}"
        )
        check_heals(store, WHOLE[:length], f"truncated: {length} bytes, {promised}")


def test_F05_an_entry_cut_while_it_is_read_is_not_taken_for_whole(store, monkeypatch):
    """A file that shrinks after its size was looked at gives fewer bytes, and no entry."""
    store.put(ENTRY)
    real = os.read

    def read(descriptor, size):
        os.truncate(place(store), len(WHOLE) - 1)
        return real(descriptor, size)

    with monkeypatch.context() as patched:
        patched.setattr(os, "read", read)
        found = store.look(ENTRY.key)
    assert found.outcome is Outcome.CORRUPT
    assert found.reason == f"truncated: {len(WHOLE) - 1} bytes, the header promises {len(WHOLE)}"


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_F05_an_entry_that_comes_in_pieces_is_whole(store, monkeypatch, at_once):
    """A mount that gives a few bytes at a time gives the entry nevertheless."""
    store.put(ENTRY)
    real = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: real(descriptor, min(size, at_once)))
    assert bytes(store.get(ENTRY.key).entry.payload) == ENTRY.payload


def check_flip_heals(store, bit):
    """One flipped bit is named by where it is."""
    at, bad = bit // 8, bytearray(WHOLE)
    bad[at] ^= 1 << bit % 8
    if at < 8:
        reason = "the magic number differs"
    elif at < 12:
        (version,) = struct.unpack_from("<I", bad, 8)
        reason = f"format version {version}, this graphspec reads 3"
    elif at < PREFIX_BYTES:
        reason = "the fixed part's XXH3-64 differs"
    else:
        reason = f"the {'header' if at < HEADER_END else 'payload'}'s {'SHA-256' if at < HEADER_END else 'XXH3-128'} differs"
    check_heals(store, bytes(bad), reason)


@pytest.mark.parametrize("part", range(4))
def test_F06_every_flipped_bit_of_fixed_part_and_header_is_set_aside_and_heals(store, part):
    """Each single bit, in four parts: damage is named by where it is, and no bit is without meaning."""
    for bit in range(part, HEADER_END * 8, 4):
        check_flip_heals(store, bit)


def test_F06_every_flipped_bit_of_the_payload_is_set_aside_and_heals(store):
    """The payload of the test's entry is short enough for all of its bits."""
    for bit in range(HEADER_END * 8, len(WHOLE) * 8):
        check_flip_heals(store, bit)


def test_F06_a_flipped_bit_anywhere_in_a_large_payload_is_found(store):
    """In an entry of 1.5 MB, at both ends and in steps of a prime number of bits."""
    entry = entry_of("a", bytes(1_500_000))
    store.put(entry)
    path, end = place(store), len(pack(entry))
    for bit in (*range((end - 1_500_000) * 8, end * 8, 1_000_003), end * 8 - 1):
        with path.open("r+b") as file:
            flip(file, bit)
            assert store.look(ENTRY.key).reason == "the payload's XXH3-128 differs"
            flip(file, bit)
    assert store.look(ENTRY.key).outcome is Outcome.HIT


def flip(file, bit):
    file.seek(bit // 8)
    byte = file.read(1)[0]
    file.seek(bit // 8)
    file.write(bytes([byte ^ 1 << bit % 8]))
    file.flush()


@pytest.mark.parametrize(
    "garbage",
    [b"x", b"\0", bytes(4096), WHOLE, pack(entry_of("b"))],
    ids=["a byte", "a zero", "a page of zeros", "itself", "another entry"],
)
def test_F07_an_entry_with_something_behind_it_is_set_aside_and_heals(store, garbage):
    """Nothing may follow the payload, not even a whole entry."""
    check_heals(store, WHOLE + garbage, f"{len(garbage)} bytes follow the payload")


def test_F08_two_swapped_entries_are_set_aside_and_heal(store):
    """A whole entry under another's name is named as what it is. It is no hash collision, which could never heal."""
    entries = {"a": ENTRY, "b": entry_of("b", b"of b")}
    for entry in entries.values():
        store.put(entry)
    a, b = (place(store, e) for e in entries.values())
    data = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(data)
    for name, other in ("ab", "ba"):
        found = store.get(key_of(name))
        assert (found.outcome, found.entry) == (Outcome.CORRUPT, None)
        assert found.reason == f"it is the entry of another key, {key_of(other).digest}"
        assert quarantined(store)[1] == found.reason + "\n"
        assert store.get(key_of(name)).outcome is Outcome.MISS
    for name, entry in entries.items():
        assert store.put(entry).written
        assert bytes(store.get(key_of(name)).entry.payload) == entry.payload


def allocated(action):
    """The most bytes that an action had allocated at one time."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


BEYOND, CUT = "the promised size is beyond the limit", "truncated: 220 bytes, the header promises "
HUGE = {
    "header of 4 GiB": ({"header": 2**32 - 1}, BEYOND),
    "header just beyond the limit": ({"header": (16 << 20) + 1}, BEYOND),
    "header at the limit": ({"header": 16 << 20}, CUT + str(216 + (16 << 20))),
    "payload of 16 EiB": ({"payload": 2**64 - 1}, BEYOND),
    "payload just beyond the limit": ({"payload": (4 << 30) + 1}, BEYOND),
    "payload at the limit": ({"payload": 4 << 30}, CUT + str(216 + (4 << 30))),
}


@pytest.mark.parametrize(("sizes", "reason"), HUGE.values(), ids=HUGE)
def test_F09_a_huge_promised_size_allocates_nothing_and_heals(store, sizes, reason):
    """The promise is compared with the file's size before memory is taken for it."""
    bad = fixed_part(**sizes) + b"rest"
    lay(store, bad)
    assert allocated(lambda: store.look(ENTRY.key)) < 100_000
    check_heals(store, bad, reason)


SPARSE = {
    "zeros": (b"", "the magic number differs"),
    "behind an entry": (WHOLE, f"{(1 << 40) - len(WHOLE)} bytes follow the payload"),
    "behind a huge promise": (fixed_part(payload=1 << 40), BEYOND),
}


@pytest.mark.parametrize(("data", "reason"), SPARSE.values(), ids=SPARSE)
def test_F09_a_huge_file_is_not_read_and_heals(store, data, reason):
    """A file of 1 TiB (without blocks) costs the reader a look at its first bytes."""
    lay(store, data)
    os.truncate(place(store), 1 << 40)
    found = []
    assert allocated(lambda: found.append(store.get(ENTRY.key))) < 100_000
    assert (found[0].outcome, found[0].reason) == (Outcome.CORRUPT, reason)
    assert quarantined(store)[0].stat().st_size == 1 << 40
    assert store.put(ENTRY).written
    assert store.get(ENTRY.key).outcome is Outcome.HIT


@pytest.mark.parametrize("version", [0, 1, 2, 4, 2**32 - 1])
def test_F10_another_format_under_this_formats_name_is_set_aside_and_heals(store, version):
    """An older or newer entry that someone renamed is named by its version and never interpreted."""
    bad = WHOLE[:8] + struct.pack("<I", version) + WHOLE[12:]
    check_heals(store, bad, f"format version {version}, this graphspec reads 3")


@pytest.mark.parametrize("version", [1, 2, 4])
def test_F10_entries_of_other_formats_lie_beside_and_are_left_alone(store, version):
    """Two versions of graphspec share a folder: each is blind to the entries of the other."""
    other = place(store).with_name(f"{ENTRY.key.digest}.v{version}.entry")
    other.parent.mkdir(parents=True)
    other.write_bytes(b"of another version")
    assert store.get(ENTRY.key).outcome is Outcome.MISS
    assert store.put(ENTRY).written
    assert store.get(ENTRY.key).outcome is Outcome.HIT
    assert [path for path, _, _ in store.entries()] == [str(place(store))]
    assert other.read_bytes() == b"of another version"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", f"truncated: 0 bytes, the fixed part has {PREFIX_BYTES}"),
        (bytes(len(WHOLE)), "the magic number differs"),
        (WHOLE[:PREFIX_BYTES] + bytes(len(WHOLE) - PREFIX_BYTES), "the header's SHA-256 differs"),
        (WHOLE[:HEADER_END] + bytes(len(WHOLE) - HEADER_END), "the payload's XXH3-128 differs"),
    ],
    ids=["of no length", "all zeros", "zeros after the fixed part", "zeros after the header"],
)
def test_F11_an_empty_file_or_one_of_zeros_is_set_aside_and_heals(store, bad, reason):
    """What a file system leaves after a power loss: a name without content, or zeros in place of it."""
    check_heals(store, bad, reason)


class Harmful:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def test_F13_a_file_that_would_act_when_unpickled_is_bytes_and_never_acts(store, tmp_path):
    """Anywhere in an entry: as the file, as the header, in the metadata, as the payload. The trap itself works."""
    trap = tmp_path / "acted"
    harmful = pickle.dumps(Harmful(str(trap)))
    check_heals(
        store, harmful, f"truncated: {len(harmful)} bytes, the fixed part has {PREFIX_BYTES}"
    )
    check_heals(store, harmful + bytes(200), "the magic number differs")
    lay(store, with_header(harmful))
    found = store.get(ENTRY.key)
    assert found.outcome is Outcome.CORRUPT
    assert "the header does not say what it should" in found.reason
    entry = entry_of("a", harmful)
    entry = type(entry)(key=entry.key, metadata={"unit": harmful}, payload=harmful)
    assert store.put(entry).written
    found = store.get(ENTRY.key).entry
    assert bytes(found.payload) == found.metadata["unit"] == harmful
    assert [e.metadata["unit"] for _, e, _ in store.entries()] == [harmful]
    assert not trap.exists()
    pickle.loads(harmful)
    assert trap.exists()


def test_F13_reading_an_entry_interprets_nothing():
    """Python's own audit: a get, whatever its outcome, unpickles nothing, runs no code, loads no library or module."""
    told = run_python(
        """
        import pickle, sys, tempfile
        from graphspec.cache.folder.disk import DiskStore
        from support.entries import entry_of, key_of

        code = pickle.dumps(print)
        with tempfile.TemporaryDirectory() as folder:
            store = DiskStore(folder)
            for name in "abc":
                store.put(entry_of(name, code))
            store.get(key_of("c"))
            with open(store.path_of(key_of("b")), "wb") as file:
                file.write(code)
            acts, on = [], False
            forbidden = ("pickle", "marshal", "exec", "compile", "import", "ctypes", "subprocess", "os.system", "os.exec")

            def watch(event, arguments):
                if on and event.startswith(forbidden):
                    acts.append(event)

            sys.addaudithook(watch)
            on = True
            outcomes = [store.get(key_of(name)).outcome.value for name in "abx"]
            list(store.entries())
            told = list(acts)
            pickle.loads(code)
            on = False
        print(*outcomes, *told, "then", *sorted(set(acts)))
        """
    )
    assert told == "hit corrupt miss then pickle.find_class"
