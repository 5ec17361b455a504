"""Reports B27 to B40 of shared/reference/field-reports.md (theme C, corruption, races, locks): each one's test and right outcome."""

import os
import threading
from types import SimpleNamespace

import attrs
import pytest

from graphspec.cache import load
from graphspec.cache.compiling import compiler as compiler_module
from graphspec.cache.compiling import trace
from graphspec.cache.entry import pack
from graphspec.cache.folder.bounded import BoundedStore, packed_bytes
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.evict import Caps, total_of
from graphspec.cache.folder.listing import entry_files, stored_files
from graphspec.cache.folder.locks import KeyLocks
from graphspec.cache.folder.usage import NAME as USAGE
from graphspec.cache.load import keyed_units, load_or_compile
from graphspec.cache.prune import remove
from graphspec.cache.store import Outcome
from graphspec.errors import CompileError, Problem
from support import fake_compiler, toy
from support.bad_disks import files_below
from support.cold_start import cold_start
from support.entries import entry_of, key_of
from support.hammer import hammer, hammered_entry
from support.races import Troupe


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "cache")


@pytest.fixture(scope="module")
def send():
    """Starts other processes."""
    with Troupe() as troupe:
        yield troupe.send


@pytest.fixture
def unit(tiny_spec):
    """One small unit."""
    return toy.program(tiny_spec).units()[0]


@pytest.fixture
def start(root, unit, tiny_spec):
    """Loads or compiles the unit, and gives its outcome, whether it was compiled, and its library."""

    def run():
        artifacts, (result,) = load_or_compile([unit], tiny_spec, DiskStore(root), KeyLocks(root))
        return result.outcome, result.compiled, artifacts[unit.name]

    return run


def leave_halves(store, entry):
    """Half an entry under names of temporaries, in the folder of temporaries and beside the entry."""
    data = pack(entry)
    path = store.path_of(entry.key)
    tmp = os.path.join(store.root, "tmp")
    for folder in (os.path.dirname(path), tmp):
        os.makedirs(folder, exist_ok=True)
    for name in (f".{os.path.basename(path)}.tmp", f"{os.path.basename(path)}.x.tmp", ".x.tmp"):
        for folder in (os.path.dirname(path), tmp):
            with open(os.path.join(folder, name), "wb") as file:
                file.write(data[: len(data) // 2])


def read_and_written(root, seconds):
    """Sixteen processes write and read one key beside half entries."""
    store, entry = DiskStore(root), hammered_entry("0")
    leave_halves(store, entry)
    counted = hammer(root, processes=16, keys=1, seconds=seconds, gentle=True)
    assert counted.get("failed", 0) == 0
    assert counted["written"] == 1
    assert counted["lookup hit"] + counted.get("lookup miss", 0) == counted["get"]
    assert bytes(store.get(entry.key).entry.payload) == entry.payload
    assert [path for path, _, _ in store.entries()] == [store.path_of(entry.key)]
    assert not os.path.exists(os.path.join(root, "quarantine"))


def test_B27_temporaries_are_never_opened_by_readers(root):
    """Half entries lie beside a good one while sixteen processes write and read it: no error, one good entry."""
    read_and_written(root, 1.0)


@pytest.mark.deep
def test_B27_temporaries_are_never_opened_by_readers_for_long(root):
    """The same for half a minute."""
    read_and_written(root, 30.0)


def test_B30_a_failed_compile_leaves_nothing_that_hides_its_error(root, start, monkeypatch):
    """Run 1 shows "boom" and leaves no entry, run 2 compiles, run 3 hits."""
    failures = [CompileError(Problem(where="unit scale", found="boom", wanted="a library"))]

    def compile(unit):
        if failures:
            raise failures.pop()
        return b"library"

    fake_compiler.install(compile, monkeypatch.setattr)
    with pytest.raises(CompileError, match="boom"):
        start()
    assert [name for name in files_below(root) if not name.startswith("locks/")] == []
    assert start() == (Outcome.MISS, True, b"library")
    assert start() == (Outcome.HIT, False, b"library")


def test_B31_eight_servers_that_start_at_once_share_one_entry(root):
    """Fifty times eight processes on a cold key: no failure, equal bytes for all, and nothing left over.

    Locks are used: each key is compiled once, so the time is that of one compile.
    """
    for number, started in enumerate(cold_start(root, rounds=50)):
        assert {s["outcome"] for s in started} <= {"miss", "hit"}
        assert [s["compiled"] for s in started].count(True) == 1
        assert len({s["library"] for s in started}) == 1
        assert started[0]["library"].startswith(f"library of round {number} by ")
    listed = list(DiskStore(root).entries())
    assert sorted(header.metadata["unit"] for _, header, _ in listed) == sorted(
        f"round {number}" for number in range(50)
    )
    assert os.listdir(os.path.join(root, "tmp")) == []
    assert not os.path.exists(os.path.join(root, "quarantine"))


def test_B32_a_writer_that_is_overtaken_between_its_steps_ends_well(root, send):
    """A has written all bytes and not yet published; B runs to its end; A goes on. Both end well, the entry names no path."""
    store = DiskStore(root)
    with send(root, "put", at="before link").arrive() as first:
        with send(root, "put") as second:
            assert second.result() == {"written": True, "reason": "", "differs": False}
        assert first.result() == {"written": False, "reason": "", "differs": False}
    ((path, header, _),) = store.entries()
    assert header is not None
    with open(path, "rb") as file:
        assert root.encode() not in file.read()
    assert os.listdir(os.path.join(root, "tmp")) == []


def test_B35_a_clean_up_while_others_compile_costs_them_compiles_only(root):
    """Everything is removed again and again while four processes start ten times: each gets its library."""
    done = threading.Event()
    cleaned = []

    def clean():
        while not done.wait(0.001):
            removed = remove(root, list(entry_files(root)))
            assert removed.refused == {}
            cleaned.extend(removed.files)

    cleaner = threading.Thread(target=clean)
    cleaner.start()
    try:
        rounds = cold_start(root, processes=4, rounds=10)
    finally:
        done.set()
        cleaner.join()
    for number, started in enumerate(rounds):
        assert {s["outcome"] for s in started} <= {"miss", "hit"}
        assert all(s["library"].startswith(f"library of round {number} by ") for s in started)
        assert {s["problem"] for s in started} == {""}
    assert cleaned
    assert os.listdir(os.path.join(root, "tmp")) == []


def test_B35_what_is_cleaned_up_loses_its_name_before_its_bytes(root, send):
    """A remover that is stopped in the middle leaves nothing that a reader could find, and the next process tidies up."""
    store = DiskStore(root)
    store.put(entry_of("a"))
    with send(root, "remove", at="before unlink").arrive() as remover:
        assert store.get(key_of("a")).outcome is Outcome.MISS
        assert len(os.listdir(os.path.join(root, "tmp"))) == 1
        assert store.put(entry_of("a")).written
        remover.kill()
    assert DiskStore(root).put(entry_of("b")).written
    assert os.listdir(os.path.join(root, "tmp")) == []
    assert store.get(key_of("a")).outcome is Outcome.HIT


WORKER = """
import json, os, sys
request = json.loads(sys.stdin.readline())
sys.stderr.buffer.write(b"error: boom in line 1\\nnote: \\xff is no UTF-8\\n")
sys.stderr.flush()
if {how!r} == "status 1":
    sys.exit(1)
if {how!r} == "empty":
    open(request["output"], "w").close()
print(json.dumps({{"library": request["output"], "seconds": 0.0, "demands": [], "kernels": []}}), flush=True)
sys.stdin.readline()
"""

ENDED = {
    "status 1": "the compiler process ended with status 1",
    "no file": "no library, although it ended well",
    "empty": "an empty library, although it ended well",
}


@pytest.fixture
def unsaved(monkeypatch, unit):
    """Stands in for the trace: the compiler process gets a name in place of a program."""
    sizes = [(2,)] * len(unit.inputs)
    traced = SimpleNamespace(
        program=SimpleNamespace(example_inputs=None), sizes=sizes, seconds=0.0, outputs=(), reads=()
    )
    monkeypatch.setattr(trace, "trace", lambda unit, spec, device: traced)
    monkeypatch.setattr(compiler_module.torch.export, "save", lambda program, path: None)


@pytest.mark.parametrize("how", ENDED)
def test_B36_a_compiler_that_gives_no_library_is_an_error_with_its_words(
    root, start, unsaved, tmp_path, monkeypatch, how
):
    """It exits with 1, or ends well without a file or with an empty one: nothing is published, its output is shown."""
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER.format(how=how))
    monkeypatch.setattr(compiler_module, "_WORKER", str(worker))
    with pytest.raises(CompileError) as caught:
        start()
    (problem,) = caught.value.problems
    assert problem.where == "unit scale"
    assert problem.found.startswith(ENDED[how])
    assert "error: boom in line 1" in problem.hint
    assert "is no UTF-8" in problem.hint
    assert [name for name in files_below(root) if not name.startswith("locks/")] == []
    with KeyLocks(root).try_lock(key_of("a")) as free:
        assert free


GCC = """#!/bin/sh
# Answers questions as the real one; what it is asked to compile ends as a file beside it says.
case "$*" in *--version*|*-dumpversion*|*-print-*) exec {real} "$@" ;; esac
echo "stub: boom" >&2
while [ $# -gt 0 ]; do case "$1" in -o) shift; out=$1 ;; esac; shift; done
case "$(cat {folder}/mode)" in fails) exit 1 ;; empty) : > "$out" ;; esac
"""


@pytest.mark.deep
@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("fails", "stub: boom"),
        ("nothing", "No such file or directory"),
        ("empty", "an empty library, although it ended well"),
    ],
)
def test_B36_the_same_with_the_real_inductor_and_a_broken_gcc(
    root, start, tmp_path, monkeypatch, mode, said
):
    """Whatever inductor makes of a compiler that fails, gives nothing or gives an empty file, nothing is published.

    What a compiler says that ends well is not in inductor's output.
    """
    (tmp_path / "mode").write_text(mode)
    stub = tmp_path / "g++"
    real = compiler_module.shutil.which("g++")
    stub.write_text(GCC.format(real=real, folder=tmp_path))
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(CompileError, match="unit scale") as caught:
        start()
    assert said in str(caught.value)
    assert [name for name in files_below(root) if not name.startswith("locks/")] == []


def test_B36_two_compilers_share_no_folder(monkeypatch, tmp_path):
    """Each has a folder of its own for its files and its log, and removes it when it ends."""
    monkeypatch.setattr(compiler_module.tempfile, "gettempdir", lambda: str(tmp_path))
    worker = tmp_path / "worker.py"
    worker.write_text("import sys; sys.stdin.read()")
    monkeypatch.setattr(compiler_module, "_WORKER", str(worker))
    with compiler_module.Compiler((), {}, "cpu") as first:
        with compiler_module.Compiler((), {}, "cpu") as second:
            first._started(), second._started()
            made = sorted(p.name for p in tmp_path.iterdir() if p.is_dir())
            assert len(made) == 2
            assert all(p.stat().st_mode & 0o777 == 0o700 for p in tmp_path.iterdir() if p.is_dir())
        assert len([p for p in tmp_path.iterdir() if p.is_dir()]) == 1
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == []


def test_B37_a_reader_never_sees_a_part_of_a_file(root, monkeypatch):
    """A writer that writes five bytes at a time, against a reader after each of them: nothing, and in the end all of it."""
    store, reader, real = DiskStore(root), DiskStore(root), os.write
    seen = []

    def write(descriptor, data):
        count = real(descriptor, bytes(data)[:5])
        seen.append(reader.get(key_of("a")).outcome)
        assert list(reader.entries()) == []
        return count

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        assert store.put(entry_of("a")).written
    assert len(seen) > 40
    assert set(seen) == {Outcome.MISS}
    assert reader.get(key_of("a")).outcome is Outcome.HIT


def test_B37_an_entry_is_looked_for_again_under_the_lock(root, unit, tiny_spec, start, monkeypatch):
    """Stored by another process after the first look and before the lock: it is loaded, not compiled a second time."""
    (keyed,) = keyed_units([unit], tiny_spec)
    metadata = {"unit": unit.name, "compile_seconds": 1.0}
    entry = attrs.evolve(entry_of("a", b"theirs"), key=keyed.key, metadata=metadata)
    fake_compiler.install(lambda unit: b"ours", monkeypatch.setattr)
    real = load.CompileRun.compile_all

    def late(run, pending, jobs):
        assert DiskStore(root).put(entry).written
        real(run, pending, jobs)

    monkeypatch.setattr(load.CompileRun, "compile_all", late)
    assert start() == (Outcome.HIT, False, b"theirs")


ORPHANS = {
    "no total": lambda root: os.unlink(os.path.join(root, USAGE)),
    "half a total": lambda root: os.truncate(os.path.join(root, USAGE), 20),
    "a total of another folder": lambda root: write(root, USAGE, bytes(32)),
    "a file that is no entry": lambda root: write(root, "entries/00/" + "0" * 32 + ".v3.entry"),
    "an entry of another version": lambda root: write(root, "entries/00/" + "0" * 32 + ".v1.entry"),
    "a reason without its file": lambda root: write(root, "quarantine/x.v3.entry.reason"),
    "a file without its reason": lambda root: write(root, "quarantine/x.v3.entry"),
    "a folder among the entries": lambda root: os.makedirs(os.path.join(root, "entries/00/x")),
}


def write(root, name, data=b"orphan" * 40):
    path = os.path.join(root, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


@pytest.mark.parametrize("orphan", ORPHANS.values(), ids=ORPHANS)
def test_B40_an_orphan_file_blocks_no_write(root, orphan):
    """With a cap of four entries that is reached, and a file that belongs to nothing: each put is stored, the cap holds."""
    each = packed_bytes(entry_of("0"))
    caps = Caps(max_bytes=4 * each, max_entries=4)
    store = BoundedStore(DiskStore(root), caps)
    for name in "0123":
        assert store.put(entry_of(name)).written
    orphan(root)
    store = BoundedStore(DiskStore(root), caps)
    for name in "abc":
        stored = store.put(entry_of(name))
        assert (stored.written, stored.reason) == (True, "")
        assert store.get(key_of(name)).outcome is Outcome.HIT
        assert total_of(list(stored_files(root))).within(caps)


def test_B40_an_orphan_goes_before_entries_of_its_age(root):
    """What is no entry saves nothing: of files that are all beyond the grace period it is removed first."""
    caps = Caps(max_entries=4)
    store = BoundedStore(DiskStore(root), caps)
    for name in "012":
        store.put(entry_of(name))
    ORPHANS["a file that is no entry"](root)
    for file in entry_files(root):
        os.utime(file.path, (0, file.last_used - 3 * caps.grace_seconds))
    assert store.put(entry_of("a")).written
    assert BoundedStore(DiskStore(root), caps).put(entry_of("b")).written
    left = {os.path.basename(file.path)[:32] for file in entry_files(root)}
    assert "0" * 32 not in left
    assert {key_of("a").digest, key_of("b").digest} <= left
    assert len(left) == 4
