"""Reports B42, B46 and B47 of shared/reference/field-reports.md: users who share a machine, growth, and who may write.

B41, B45, B50 and B51 are whole warmups: see tests/fault/test_bad_days.py.
"""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from graphspec.cache.entry import Entry
from graphspec.cache.folder.bounded import BoundedStore
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.evict import Caps
from graphspec.cache.location import locate
from graphspec.cache.store import Outcome
from graphspec.cache.trust import PrivateStore, require_private
from graphspec.cache.units import EntryKey
from graphspec.cli import _root
from graphspec.cli.common import run
from graphspec.errors import UntrustedError
from support.entries import METADATA, entry_of, key_of, with_header
from support.processes import TESTS, run_python

OTHER = 12345
MB = 1_000_000
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def test_B42_users_have_folders_of_their_own_by_default(monkeypatch, tmp_path):
    """Below their homes; where a user has none, in the system's folder for temporary files under the user's number."""
    monkeypatch.delenv("GRAPHSPEC_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    folders = []
    for user in ("a", "b"):
        monkeypatch.setenv("HOME", str(tmp_path / user))
        folders.append(locate().folder)
    assert [Path(f).relative_to(tmp_path).parts[0] for f in folders] == ["a", "b"]
    (tmp_path / "no folder").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "no folder"))
    for user in (101, 102):
        monkeypatch.setattr(os, "getuid", lambda user=user: user)
        folders.append(locate().folder)
    assert len(set(folders)) == 4
    assert [f.rpartition("-")[2] for f in folders[2:]] == ["101", "102"]


AS_B = f"""
import os
from graphspec.cache.folder.bounded import BoundedStore
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.evict import Caps
from graphspec.cache.trust import folder_problem
from graphspec.cache.leftovers import unique_name
from support.entries import entry_of, key_of
unique_name()  # the tests' own Python may lie in a home that is closed to B: what is loaded late is loaded now
os.setgid({OTHER}), os.setuid({OTHER})
root = ROOT
print(folder_problem(root) or "trusted")
store = BoundedStore(DiskStore(root), Caps())
for name in "ab":
    lookup = store.get(key_of(name))
    print(lookup.outcome.value, lookup.reason)
stored = store.put(entry_of("b"))
print(stored.written, stored.reason)
"""


def above(top):
    """The folders above that are not open to all anyway, such as the temporary folder is."""
    return [
        p for p in top.parents if p.stat().st_uid == os.getuid() and not p.stat().st_mode & 0o001
    ]


def open_to_readers(top):
    """The folder, what is in it, and pytest's own folders above it, which are closed to others."""
    for folder in (*above(top), top, *top.rglob("*")):
        folder.chmod(folder.stat().st_mode | (0o055 if folder.is_dir() else 0o044))


@needs_root
def test_B42_in_a_folder_that_is_shared_on_purpose_the_second_user_has_hits(tmp_path):
    """Root has warmed it and lets others read: B trusts it and loads; what B compiles is not stored, for one reason."""
    assert DiskStore(str(tmp_path / "cache")).put(entry_of("a")).written
    open_to_readers(tmp_path / "cache")
    printed = run_python(AS_B.replace("ROOT", repr(str(tmp_path / "cache"))))
    assert printed.splitlines() == [
        "trusted",
        "hit ",
        "miss nothing is stored under this key",
        f"False {tmp_path / 'cache'}: permission is denied",
    ]


@needs_root
def test_B42_in_a_folder_that_is_closed_the_second_user_is_told_why(tmp_path):
    """A's folder is closed to B, as it is by default: no exception, and reasons that name the folder."""
    assert DiskStore(str(tmp_path / "cache")).put(entry_of("a")).written
    for folder in (*above(tmp_path), tmp_path):
        folder.chmod(folder.stat().st_mode | 0o055)
    printed = run_python(AS_B.replace("ROOT", repr(str(tmp_path / "cache"))))
    _, hit, miss, put = printed.splitlines()
    for line in (hit, miss):
        assert line.startswith(f"error {tmp_path / 'cache'}")
        assert "Permission denied" in line
    assert put == f"False {tmp_path / 'cache'}: permission is denied"


def size_of(root):
    return sum(p.stat().st_size for p in Path(root).rglob("*") if p.is_file())


def test_B46_the_cache_stays_below_its_limit_and_what_is_used_stays(tmp_path):
    """10 MB; 30 entries of 1 MB in turn, and the first one is read in between: all files together stay below, it survives."""
    root = str(tmp_path / "cache")
    store = BoundedStore(DiskStore(root), Caps(max_bytes=10 * MB))
    for i in range(30):
        assert store.put(entry_of(f"entry {i}", bytes([i]) * MB)).written
        assert size_of(root) <= 10 * MB
        assert bytes(store.get(key_of("entry 0")).entry.payload) == bytes(MB)
    assert size_of(root) > 8 * MB
    assert store.get(key_of("entry 29")).outcome is Outcome.HIT


def test_B46_an_entry_beyond_the_limit_is_refused_with_both_sizes(tmp_path):
    """20 MB do not fit into 10, and nothing has to go for the attempt."""
    store = BoundedStore(DiskStore(str(tmp_path / "cache")), Caps(max_bytes=10 * MB))
    assert store.put(entry_of("small", bytes(MB))).written
    stored = store.put(entry_of("large", bytes(20 * MB)))
    assert stored.failed
    assert "20,000," in stored.reason
    assert "10,000,000" in stored.reason
    assert store.get(key_of("small")).outcome is Outcome.HIT


def test_B46_an_entry_in_use_is_read_to_its_end(tmp_path):
    """A reader has it open while it is evicted."""
    root = str(tmp_path / "cache")
    store = BoundedStore(DiskStore(root), Caps(max_entries=1))
    assert store.put(entry_of("a", b"a" * MB)).written
    with open(DiskStore(root).path_of(key_of("a")), "rb", buffering=0) as reader:
        head = reader.read(1000)
        assert store.put(entry_of("b")).written
        assert store.get(key_of("a")).outcome is Outcome.MISS
        assert (head + reader.read()).endswith(b"a" * MB)


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def poisoned(tmp_path, how):
    """A cache folder with a pickle in the place where the entry's content, or a part of it, should be."""
    marker = str(tmp_path / "marker")
    data = pickle.dumps(Bomb(marker))
    store = DiskStore(str(tmp_path / "cache"))
    if how == "metadata":
        entry = Entry(key=key_of("a"), metadata={**METADATA, "provenance": data}, payload=data)
        assert store.put(entry).written
    else:
        assert store.put(entry_of("a")).written
        content = {"file": data, "header": with_header(data, b"payload")}[how]
        Path(store.path_of(key_of("a"))).write_bytes(content)
    return store, marker


@pytest.mark.parametrize("how", ["file", "header", "metadata"])
def test_B47_a_pickle_in_an_entry_is_never_loaded(tmp_path, capsys, how):
    """(a) Not by a lookup, and by none of the commands that look into the cache."""
    store, marker = poisoned(tmp_path, how)
    folder = ["--cache-dir", store.root]
    codes = [
        run(_root, ["cache", *command, *folder])
        for command in (["ls"], ["stats"], ["show", key_of("a").digest], ["verify"])
    ]
    assert codes == ([0, 0, 0, 0] if how == "metadata" else [1, 0, 1, 1])
    capsys.readouterr()
    expected = Outcome.HIT if how == "metadata" else Outcome.CORRUPT
    assert store.get(key_of("a")).outcome is expected
    assert not os.path.exists(marker)
    pickle.loads(pickle.dumps(Bomb(marker)))
    assert os.path.exists(marker), "the bomb itself works"


def test_B47_a_folder_that_others_can_write_to_is_refused(tmp_path):
    """(b) With its mode, and what to do."""
    root = tmp_path / "cache"
    assert DiskStore(str(root)).put(entry_of("a")).written
    require_private(str(root))
    root.chmod(0o777)
    with pytest.raises(UntrustedError) as caught:
        require_private(str(root))
    text = str(caught.value)
    assert "mode 0777" in text
    assert "others may write" in text
    assert "chmod" in text


@needs_root
def test_B47_an_entry_of_another_user_is_not_loaded(tmp_path):
    """(c) It is set aside with its owner as the reason, and compiled anew."""
    store = DiskStore(str(tmp_path / "cache"))
    assert store.put(entry_of("a")).written
    os.chown(store.path_of(key_of("a")), OTHER, OTHER)
    private = PrivateStore(store, store.path_of)
    found = private.get(key_of("a"))
    assert (found.outcome, found.entry) == (Outcome.CORRUPT, None)
    assert f"owned by uid {OTHER}" in found.reason
    assert private.put(entry_of("a")).written
    assert private.get(key_of("a")).outcome is Outcome.HIT


IDS = ["../../x", "..", "/etc/passwd", "a" * 31, "A" * 32, "0" * 32 + "\n", "", "..%2f..%2fx"]


@pytest.mark.parametrize("name", IDS)
def test_B47_an_id_that_is_no_digest_is_refused(name):
    """(d) No key can have one, so no path can be made of it."""
    with pytest.raises(ValueError, match="digest"):
        EntryKey(b"text", name)


def test_B47_an_id_from_the_command_line_is_compared_and_never_opened(tmp_path):
    """(d) A path is the beginning of no key: usage error, and the file it names stays unread."""
    secret = tmp_path / "x.v3.entry"
    os.mkfifo(secret)  # whoever opened it would hang
    assert DiskStore(str(tmp_path / "cache")).put(entry_of("a")).written
    command = [sys.executable, "-P", "-m", "graphspec", "cache", "show", "../../x", "--json"]
    done = subprocess.run(
        [*command, "--cache-dir", str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    assert done.returncode == 2
    assert "no entry" in json.loads(done.stdout)["problems"][0]["found"]
