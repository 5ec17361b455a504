"""A folder on a network mount as a tier: a stale handle, a late name, a group, a server that is gone."""

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest

from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Outcome
from graphspec.cache.tiers.shared_folder import SharedFolder
from support.entries import entry_of, key_of
from support.processes import run_python


def trusted(seal):
    return ""


@pytest.fixture
def root(tmp_path):
    return tmp_path / "share" / "cache"


@pytest.fixture
def store(root):
    root.parent.mkdir(mode=0o700)
    return SharedFolder(str(root))


def failing(number, times=1000):
    """A replacement of `os.NAME` that fails so many times and then works."""
    left = [times]

    def wrap(real):
        def call(*arguments, **named):
            if left[0]:
                left[0] -= 1
                raise OSError(number, os.strerror(number))
            return real(*arguments, **named)

        return call

    return wrap


def test_it_is_a_cache_folder_like_any_other(store, root):
    """What one host puts, a plain disk store on the same folder finds, and the other way round."""
    assert store.get(key_of("a")).outcome is Outcome.MISS
    assert store.put(entry_of("a")).written
    plain = DiskStore(str(root))
    assert plain.get(key_of("a")).outcome is Outcome.HIT
    plain.put(entry_of("b"))
    assert store.get(key_of("b")).outcome is Outcome.HIT
    assert store.put(entry_of("b", b"other")).differs
    assert store.problem() == ""


def test_a_stale_handle_is_tried_again(store, root, monkeypatch):
    """Another host removed or replaced the file while this one opened it: the second call finds what is there now."""
    store.put(entry_of("a"))
    for call in ("open", "link"):
        with monkeypatch.context() as patched:
            patched.setattr(os, call, failing(errno.ESTALE, 1)(getattr(os, call)))
            assert store.get(key_of("a")).outcome is Outcome.HIT
            assert store.put(entry_of(call)).written


def test_a_name_that_is_seen_late_costs_a_put_and_nothing_else(store, monkeypatch):
    """Here the entry of another host is not visible yet: the link fails, so the first writer has won, and nothing breaks."""
    store.put(entry_of("a", b"first"))
    path = store._disk.path_of(key_of("a"))
    real, late = os.lstat, [3]

    def lstat(name, *arguments, **named):
        if name == path and late[0]:
            late[0] -= 1
            raise FileNotFoundError(errno.ENOENT, "not there yet", name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(os, "lstat", lstat)
    assert store.get(key_of("a")).outcome is Outcome.MISS
    stored = store.put(entry_of("a", b"second"))
    assert not stored.written
    assert late == [0]
    assert bytes(store.get(key_of("a")).entry.payload) == b"first"


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EIO, errno.ESTALE, errno.EHOSTDOWN],
                         ids=errno.errorcode.get)  # fmt: skip
def test_a_server_that_is_gone_is_left_alone_for_a_while(store, root, monkeypatch, number):
    """Three lookups reach the mount; the rest are told why at once, and puts too."""
    store.put(entry_of("a"))
    calls = []

    def stat(path, *arguments, **named):
        calls.append(path)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr("graphspec.cache.folder.disk.os.lstat", stat)
        found = [store.get(key_of("a")) for _ in range(40)]
        reached = len(calls)
        stored = [store.put(entry_of("b")) for _ in range(40)]
    assert {f.outcome for f in found} == {Outcome.ERROR}
    assert os.strerror(number) in found[0].reason
    assert str(root) in found[0].reason
    assert all("switched off" in f.reason for f in found[3:])
    assert reached == 3
    assert all("switched off" in s.reason for s in stored)
    assert len(calls) == 3


def test_a_mount_that_is_missing_is_not_replaced_by_a_folder(tmp_path):
    """Without the mount, nothing is made on the disk of this host."""
    store = SharedFolder(str(tmp_path / "nothing-mounted" / "cache"))
    assert store.get(key_of("a")).outcome is Outcome.MISS
    assert store.put(entry_of("a")).failed
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_entry_is_set_aside_and_a_put_heals(store, root):
    """The bytes are kept in the quarantine of the share."""
    store.put(entry_of("a"))
    path = Path(store._disk.path_of(key_of("a")))
    path.write_bytes(path.read_bytes()[:-1])
    assert store.look(key_of("a")).outcome is Outcome.CORRUPT
    assert path.exists()
    assert store.get(key_of("a")).outcome is Outcome.CORRUPT
    assert len(list((root / "quarantine").glob("*.reason"))) == 1
    assert store.put(entry_of("a")).written


def states(root):
    facts = {p: p.stat() for p in root.rglob("*")}
    return {p: (f.st_ino, f.st_mode, f.st_size, f.st_mtime_ns) for p, f in facts.items()}


def test_a_folder_that_is_only_read_is_never_changed(store, root):
    """Damage stays, a put is refused with a reason, and no file is touched."""
    store.put(entry_of("a"))
    path = Path(store._disk.path_of(key_of("a")))
    path.write_bytes(path.read_bytes()[:-1])
    before = states(root)
    reader = SharedFolder(str(root), writable=False)
    assert reader.get(key_of("a")).outcome is Outcome.CORRUPT
    assert "it is only read here" in reader.put(entry_of("b")).reason
    assert reader.problem() == ""
    assert states(root) == before
    shutil.rmtree(root)
    assert "No such file" in reader.problem()


def test_a_seal_that_is_not_trusted_is_refused_and_stays(store, root):
    """One host with a wrong trust file must not empty the share of all others."""
    store.put(entry_of("a"))
    strict = SharedFolder(str(root), trust=lambda seal: "the entry is not signed")
    for found in (strict.get(key_of("a")), strict.look(key_of("a"))):
        assert (found.outcome, found.entry) == (Outcome.CORRUPT, None)
        assert found.reason == f"{root}: the entry is not signed"
    assert strict.put(entry_of("a")).reason == f"{root}: the entry is not signed"
    assert store.get(key_of("a")).outcome is Outcome.HIT


def test_a_folder_that_others_can_write_to_needs_trust(store, root):
    """Without signatures, whoever can write here could run code as this user: nothing is read, and the bits are named."""
    store.put(entry_of("a"))
    root.chmod(0o777)
    open_to_all = SharedFolder(str(root))
    for _ in range(5):
        found = open_to_all.get(key_of("a"))
        assert found.outcome is Outcome.ERROR
        assert f"{root}: mode 0777" in found.reason
    assert "mode 0777" in open_to_all.put(entry_of("b")).reason
    assert "mode 0777" in open_to_all.problem()
    signed = SharedFolder(str(root), trust=trusted)
    assert signed.get(key_of("a")).outcome is Outcome.HIT


def test_entries_are_private_unless_a_group_is_asked_for(store, root):
    """The default shares nothing with anybody but other hosts of the same user."""
    store.put(entry_of("a"))
    modes = {stat.S_IMODE(p.stat().st_mode) for p in [root, *root.rglob("*")]}
    assert modes == {0o700, 0o600}


def test_entries_are_durable_unless_told_otherwise(root, monkeypatch):
    """A file server may say only at a sync that it has no room: then the entry gets no name."""
    root.parent.mkdir(mode=0o700)
    monkeypatch.setattr(os, "fsync", failing(errno.EDQUOT)(os.fsync))
    durable, quick = SharedFolder(str(root)), SharedFolder(str(root), durable=False)
    assert durable.put(entry_of("a")).reason == f"{root}: the disk quota is used up"
    assert durable.get(key_of("a")).outcome is Outcome.MISS
    assert quick.put(entry_of("a")).written


MEMBERS = """
import os, tempfile, traceback
from graphspec.cache.tiers.shared_folder import SharedFolder
from support.entries import entry_of, key_of

def as_user(uid, gid, work):
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
            os.umask(0o077)
            work(SharedFolder(root, group=True, trust=lambda seal: ""))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0

def use(store):
    found, one, two = store.get(key_of("a")), store.put(entry_of("a")), store.put(entry_of(str(os.getuid())))
    print(found.outcome.value, one.written, two.written, store.problem().partition(": ")[2], flush=True)

with tempfile.TemporaryDirectory() as above:
    os.chown(above, 0, 4242)
    os.chmod(above, 0o2775)
    # Once as root: Python's own files may be in a folder that only root can read, and all that is needed is loaded then.
    root = above + "/loads-everything"
    use(SharedFolder(root, group=True, trust=lambda seal: ""))
    root = above + "/cache"
    as_user(4001, 4242, use)
    as_user(4002, 4242, use)
    as_user(4003, 4003, use)
    paths = [root] + [os.path.join(f, n) for f, names, files in os.walk(root) for n in names + files]
    print(sorted({(os.path.isdir(p), oct(os.stat(p).st_mode), os.stat(p).st_gid) for p in paths}))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to run processes as other users")
def test_members_of_a_group_read_and_write_each_others_entries():
    """Two users with the strictest umask share a folder of their group, and a stranger gets nothing out of it."""
    _, first, second, stranger, modes = run_python(MEMBERS).splitlines()
    assert first == "miss True True "
    assert second == "hit False True "
    assert stranger == "error False False permission is denied"
    assert modes == str([(False, "0o100660", 4242), (True, "0o42770", 4242)])
