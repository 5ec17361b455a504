"""F16 to F19: a folder that is or turns read-only, a permission lost on one entry, a read error, a folder that is deleted.

The main job goes on in each case: what can be read is served, what cannot be stored is said in a sentence.
"""

import builtins
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile

import pytest

from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.locks import KeyLocks
from graphspec.cache.store import Outcome
from support.bad_disks import files_below, remount, tmpfs
from support.entries import entry_of, key_of
from support.processes import TESTS, run_python


@pytest.fixture
def mount(tmp_path):
    """A mounted tmpfs of 4 MB with one entry, "a", in its folder."""
    with tmpfs(tmp_path / "mount", "size=4m") as folder:
        DiskStore(str(folder)).put(entry_of("a"))
        yield str(folder)


@pytest.fixture
def store(tmp_path):
    store = DiskStore(str(tmp_path / "cache"))
    store.put(entry_of("a"))
    return store


def served(store, name):
    """True when a get gives the entry; what it gives is exactly what was put, and a miss has a reason."""
    found = store.get(key_of(name))
    assert (found.outcome is Outcome.HIT) is (found.entry is not None)
    assert found.entry is not None or found.reason
    return found.entry is not None and bytes(found.entry.payload) == entry_of(name).payload


def is_free(locks, name):
    with locks.try_lock(key_of(name)) as free:
        return free


def test_F16_a_folder_that_is_read_only_from_the_start_serves_what_it_has(mount):
    """Hits are hits, put and problem say what is wrong, locks are no obstacle, and nothing is changed."""
    remount(mount, "ro")
    before = files_below(mount)
    store = DiskStore(mount)
    assert served(store, "a")
    assert not served(store, "b")
    assert store.put(entry_of("b")).reason == f"{mount}: the folder is mounted read-only"
    assert store.problem() == f"{mount}: the folder is mounted read-only"
    assert is_free(KeyLocks(mount), "a")
    assert files_below(mount) == before


def test_F16_a_corrupt_entry_on_a_read_only_folder_is_told_and_never_served(mount):
    """It cannot be set aside, so each get says corrupt, and why it is still there."""
    with open(DiskStore(mount).path_of(key_of("a")), "r+b") as file:
        file.truncate(150)
    remount(mount, "ro")
    for _ in range(2):
        found = DiskStore(mount).get(key_of("a"))
        assert (found.outcome, found.entry) == (Outcome.CORRUPT, None)
        assert "could not be set aside: Read-only file system" in found.reason


@pytest.mark.parametrize("call", ["open", "write", "link"])
def test_F16_a_folder_that_turns_read_only_inside_a_put_costs_that_put(mount, monkeypatch, call):
    """Before each of its steps in turn: the put ends in the sentence or is complete, and works when it may write again."""
    store, real, turned = DiskStore(mount), getattr(os, call), []

    def turn(*arguments, **named):
        if not turned:
            # A file that is open for writing keeps a mount writable: the kernel refuses, and the put goes on.
            command = ["mount", "-o", "remount,ro", mount]
            turned.append(subprocess.run(command, check=False, capture_output=True).returncode == 0)
        return real(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, turn)
        stored = store.put(entry_of("b"))
    assert turned == [call != "write"]
    assert stored.written is (call == "write")
    if stored.failed:
        assert stored.reason == f"{mount}: the folder is mounted read-only"
        assert not served(store, "b")
    assert served(store, "a")
    remount(mount, "rw")
    assert store.put(entry_of("b")).written is (call != "write")
    assert served(store, "b")


def test_F16_what_a_read_only_turn_left_is_swept_by_the_next_process(mount):
    """A temporary that could not be removed is no entry, and goes when its process is gone."""
    run_python(
        """
        import os
        from graphspec.cache.folder.disk import DiskStore
        from support.bad_disks import remount
        from support.entries import entry_of
        real = os.link
        def link(*arguments):
            remount(os.environ["ROOT"], "ro")
            real(*arguments)
        os.link = link
        assert DiskStore(os.environ["ROOT"]).put(entry_of("b")).failed
        """,
        ROOT=mount,
    )
    remount(mount, "rw")
    assert len(os.listdir(os.path.join(mount, "tmp"))) == 1
    store = DiskStore(mount)
    assert [path for path, _, _ in store.entries()] == [store.path_of(key_of("a"))]
    assert store.put(entry_of("b")).written
    assert os.listdir(os.path.join(mount, "tmp")) == []


NOBODY = """
import json, os, sys, tempfile
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.locks import KeyLocks
from support.entries import entry_of, key_of

def get(name):
    found = store.get(key_of(name))
    return [found.outcome.value, found.reason, found.entry == entry_of(name)]

def put(name):
    stored = store.put(entry_of(name))
    return [stored.written, stored.reason]

def free(name):
    with locks.try_lock(key_of(name)) as free:
        return free

# Once as root: Python loads modules as it goes, and nobody may not be allowed to read them.
with tempfile.TemporaryDirectory() as root:
    store, locks = DiskStore(root), KeyLocks(root)
    put("a"), free("a")
    os.truncate(store.path_of(key_of("a")), 1)
    get("a")
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for line in sys.stdin:
    root, expression = json.loads(line)
    store, locks = DiskStore(root), KeyLocks(root)
    print(json.dumps(eval(expression)), flush=True)
"""


@pytest.fixture(scope="module")
def as_nobody():
    """What an expression is in a process of the user nobody, for a cache folder: root is above permissions."""
    process = subprocess.Popen(
        [sys.executable, "-c", NOBODY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        cwd=TESTS.parent,
    )

    def ask(root, expression):
        process.stdin.write(json.dumps([root, expression]) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield ask
    process.communicate()
    assert process.returncode == 0


@pytest.fixture
def nobodys(as_nobody):
    """A folder that belongs to the user nobody, at a path that nobody can reach, with the entries a and b."""
    with tempfile.TemporaryDirectory(prefix="graphspec-test-", dir="/tmp") as base:
        os.chmod(base, 0o755)
        root = os.path.join(base, "cache")
        os.mkdir(root)
        os.chown(root, 65534, 65534)
        assert as_nobody(root, "[put(n)[0] for n in 'ab'] + [free('a')]") == [True, True, True]
        yield root


@pytest.mark.parametrize("lost", ["entry", "folder"])
def test_F17_a_permission_lost_on_one_entry_is_an_error_of_that_entry_only(
    nobodys, as_nobody, lost
):
    """Its get is an error that names the file, its put says that it is not stored, and others are served."""
    store = DiskStore(nobodys)
    path = store.path_of(key_of("a"))
    target = path if lost == "entry" else os.path.dirname(path)
    os.chmod(target, 0)
    refused = f"{path}: Permission denied"
    said = as_nobody(nobodys, "[get('a'), put('a'), get('b'), put('c'), get('c'), free('a')]")
    why = refused if lost == "entry" else f"{nobodys}: permission is denied"
    hit = ["hit", "", True]
    assert said == [["error", refused, False], [False, why], hit, [True, ""], hit, True]
    os.chmod(target, 0o700)
    assert served(store, "a")


def test_F17_an_entry_of_another_user_that_may_not_be_read_stays_where_it_is(nobodys, as_nobody):
    """It is not taken for corrupt: whoever may read it still gets it."""
    store = DiskStore(nobodys)
    os.chown(store.path_of(key_of("a")), 0, 0)
    assert as_nobody(nobodys, "get('a')")[0] == "error"
    assert served(store, "a")
    assert not os.path.exists(os.path.join(nobodys, "quarantine"))


@pytest.mark.parametrize("mode", [0o500, 0o000])
def test_F17_a_root_without_the_right_to_write_or_to_enter_is_told(nobodys, as_nobody, mode):
    """With the right to read alone, hits are hits; without any, get is an error. Put and problem say why, locks are free."""
    os.chmod(nobodys, mode)
    said = as_nobody(nobodys, "[get('a')[::2], put('c'), store.problem(), free('c')]")
    denied = f"{nobodys}: permission is denied"
    if mode == 0o500:
        # The folders in it are nobody's own, and entries can still be added to them.
        assert said == [["hit", True], [True, ""], "", True]
    else:
        assert said == [["error", False], [False, denied], denied, True]


def test_F17_folders_that_may_not_be_written_to_are_told(nobodys, as_nobody):
    """A temporary folder, entries and locks of another user: hits are hits, put says why, locks are free."""
    for name in ("tmp", "entries", "locks"):
        os.chown(os.path.join(nobodys, name), 0, 0)
        os.chmod(os.path.join(nobodys, name), 0o755)
    said = as_nobody(nobodys, "[get('a')[::2], put('c'), store.problem(), free('a'), free('c')]")
    denied = f"{nobodys}: permission is denied"
    assert said == [["hit", True], [False, denied], denied, True, True]


def test_F18_a_read_error_of_the_kernel_is_an_error_with_the_path(store):
    """/proc/self/mem opens and fails with EIO at offset 0: the get says so, and nothing is moved."""
    path = store.path_of(key_of("a"))
    os.unlink(path)
    os.symlink("/proc/self/mem", path)
    found = store.get(key_of("a"))
    assert (found.outcome, found.entry) == (Outcome.ERROR, None)
    assert found.reason == f"{path}: {os.strerror(errno.EIO)}"
    assert os.readlink(path) == "/proc/self/mem"
    stored = store.put(entry_of("a"))
    assert (stored.failed, stored.reason) == (True, found.reason)
    assert [header for _, header, _ in store.entries()] == [None]


def test_F18_a_read_error_is_not_taken_for_a_corrupt_entry(store, monkeypatch):
    """A disk that fails for a moment costs no entry: the next get serves it."""
    real = builtins.open

    def fail(path, *arguments, **named):
        if str(path).endswith(".entry"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(path, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(builtins, "open", fail)
        patched.setattr(os, "open", fail)
        found = store.get(key_of("a"))
    assert found.outcome is Outcome.ERROR
    assert served(store, "a")


@pytest.mark.parametrize("deleted", ["", "entries", "tmp", "quarantine", "locks"])
def test_F19_a_folder_that_is_deleted_under_a_live_process_is_made_anew(store, deleted):
    """The whole cache or a part of it goes: get is a miss or a hit, put works again, and so do locks and listings."""
    locks = KeyLocks(store.root)
    assert is_free(locks, "a")
    os.makedirs(os.path.join(store.root, "quarantine"))
    shutil.rmtree(os.path.join(store.root, deleted))
    gone = deleted in ("", "entries")
    assert served(store, "a") is not gone
    assert len(list(store.entries())) == (0 if gone else 1)
    assert is_free(locks, "a")
    assert store.put(entry_of("a")).written is gone
    assert served(store, "a")
    assert store.problem() == ""


def test_F19_a_parent_that_is_deleted_is_made_anew_too(tmp_path):
    """Nothing above the cache is left: the next put makes it all."""
    store = DiskStore(str(tmp_path / "some" / "where" / "cache"))
    assert store.put(entry_of("a")).written
    shutil.rmtree(tmp_path / "some")
    assert not served(store, "a")
    assert store.put(entry_of("a")).written
    assert os.stat(store.root).st_mode & 0o777 == 0o700


@pytest.mark.parametrize("call", ["mkdir", "open", "write", "close", "link", "unlink"])
def test_F19_a_folder_that_is_deleted_inside_a_put_costs_that_put_at_most(store, monkeypatch, call):
    """Before each of its steps in turn: put says what became of it, and no later put or get is harmed."""
    real, gone = getattr(os, call), []

    def delete_first(*arguments, **named):
        if not gone:
            gone.append(call)
            with monkeypatch.context() as undone:
                undone.setattr(os, call, real)
                shutil.rmtree(store.root)
        return real(*arguments, **named)

    if call == "mkdir":
        shutil.rmtree(os.path.join(store.root, "tmp"))
    with monkeypatch.context() as patched:
        patched.setattr(os, call, delete_first)
        stored = store.put(entry_of("b"))
    assert gone
    assert stored.written or stored.reason
    if stored.failed:
        assert not served(store, "b")
    again = store.put(entry_of("b"))
    assert again.written or served(store, "b")
    assert served(store, "b")
    assert served(store, "a") is False


def test_F19_a_folder_that_is_deleted_while_a_corrupt_file_is_set_aside(store, monkeypatch):
    """The get says corrupt and cannot fail."""
    with open(store.path_of(key_of("a")), "r+b") as file:
        file.truncate(10)
    real = os.rename

    def delete_first(*arguments):
        shutil.rmtree(store.root)
        real(*arguments)

    monkeypatch.setattr(os, "rename", delete_first)
    found = store.get(key_of("a"))
    assert (found.outcome, found.entry) == (Outcome.CORRUPT, None)
    monkeypatch.undo()
    assert store.put(entry_of("a")).written


def test_F19_the_working_directory_may_be_deleted_too(store, tmp_path, monkeypatch):
    """A cache at an absolute path does not need it."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    os.rmdir(tmp_path / "here")
    again = DiskStore(store.root)
    assert served(again, "a")
    assert again.put(entry_of("b")).written
    assert is_free(KeyLocks(store.root), "b")
