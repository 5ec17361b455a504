"""Exports: one whole file or none, equal entries to equal bytes, and nothing left out without a word."""

import errno
import os

import pytest

from graphspec.cache.bundle import exporter as bundle_export
from graphspec.cache.bundle.exporter import Candidate, all_entries, entries_of, export_bundle
from graphspec.cache.bundle.reader import read_bundle
from graphspec.cache.entry import pack
from graphspec.cache.load import Keyed
from graphspec.cache.signing import PublicKey, SigningKey, trust_in
from graphspec.errors import CacheError
from support.bundles import MACHINE, store_of, unit_entry
from support.entries import entry_of

A, B, C = (unit_entry(name) for name in "abc")
OTHER = unit_entry("a", machine={**MACHINE, "device": {"kind": "cuda"}})


def export(path, store, **more):
    return export_bundle(str(path), all_entries(store), **more)


def file_of(store, entry):
    return store.path_of(entry.key)


def test_equal_entries_give_equal_bytes(tmp_path, monkeypatch):
    """Neither the order of storing, nor the folder, its name, the file's name, the user's home nor the time is in it."""
    one = store_of(tmp_path / "one", A, B, OTHER)
    two = store_of(tmp_path / "elsewhere" / "two", OTHER, B, A)
    export(tmp_path / "a.bundle", one)
    for entry in (A, B):
        os.utime(file_of(two, entry), (1, 1))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "elsewhere")
    export("b.bundle", two)
    data = (tmp_path / "a.bundle").read_bytes()
    assert data == (tmp_path / "elsewhere" / "b.bundle").read_bytes()
    assert str(tmp_path).encode() not in data


def test_a_signature_is_the_same_each_time(tmp_path):
    """Signed by one key, equal entries still give equal bytes."""
    key, store = SigningKey.generate(), store_of(tmp_path / "from", A)
    for name in ("a", "b"):
        assert export(tmp_path / name, store, signer=key).signer == key.public_key
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_facts_are_written_only_if_given(tmp_path):
    """A time is in a bundle only where somebody asked for it, and no fact replaces what is always told."""
    store = store_of(tmp_path / "from", A)
    export(tmp_path / "plain", store)
    export(tmp_path / "dated", store, facts={"built": "2026-11-30", "graphspec": "forged"})
    plain = read_bundle((tmp_path / "plain").read_bytes()).created_by
    assert set(plain) == {"graphspec", "python", "system", "machine"}
    dated = read_bundle((tmp_path / "dated").read_bytes()).created_by
    assert dated == {**plain, "built": "2026-11-30"}


def test_the_result_tells_what_is_in_the_file(tmp_path):
    """Entries in the order of their keys, with units and sizes; each machine is counted once."""
    store = store_of(tmp_path / "from", B, A, OTHER)
    done = export(tmp_path / "a.bundle", store)
    assert [e.digest for e in done.entries] == sorted(e.key.digest for e in (A, B, OTHER))
    assert {e.unit for e in done.entries} == {"a", "b"}
    assert {e.size for e in done.entries} == {len(pack(A)), len(pack(OTHER))}
    assert done.size == (tmp_path / "a.bundle").stat().st_size
    assert (done.machines, done.left_out, done.signer) == (2, {}, None)


def test_some_entries_can_be_chosen(tmp_path):
    """Only what is asked for is in the file, and the same entry asked for twice is there once."""
    store = store_of(tmp_path / "from", A, B, C)
    chosen = [Candidate(path=file_of(store, e), digest=e.key.digest) for e in (C, A, C)]
    done = export_bundle(str(tmp_path / "a.bundle"), chosen)
    assert {e.digest for e in done.entries} == {A.key.digest, C.key.digest}


def test_units_that_are_not_stored_are_named(tmp_path):
    """Of the units of a program, those that are stored are candidates; the others come back with the reason."""
    store = store_of(tmp_path / "from", A, B)
    os.truncate(file_of(store, B), 250)
    units = [Keyed(unit=None, key=e.key) for e in (A, B, C)]
    found, missing = entries_of(units, store)
    assert [c.digest for c in found] == [A.key.digest]
    assert [(k.key, why.partition(":")[0]) for k, why in missing] == [
        (B.key, "truncated"),
        (C.key, "nothing is stored under this key"),
    ]


def test_a_file_that_is_no_whole_entry_is_left_out(tmp_path):
    """Damaged, misnamed and unreadable files are named with their reasons, and stay where they are."""
    store = store_of(tmp_path / "from", A, B, C, OTHER)
    damaged, misnamed, pipe = (file_of(store, e) for e in (B, C, OTHER))
    os.truncate(damaged, 250)
    with open(misnamed, "wb") as file:
        file.write(pack(entry_of("another")))
    os.unlink(pipe)
    os.mkfifo(pipe)
    done = export(tmp_path / "a.bundle", store)
    assert [e.digest for e in done.entries] == [A.key.digest]
    reasons = {path: reason.partition(":")[0] for path, reason in done.left_out.items()}
    assert reasons == {
        damaged: "truncated",
        misnamed: f"its name is that of another key than {entry_of('another').key.digest}",
        pipe: "a named pipe lies where the entry should be",
    }
    assert os.path.exists(damaged)
    assert len(read_bundle((tmp_path / "a.bundle").read_bytes()).entries) == 1


def test_what_is_not_trusted_is_left_out(tmp_path):
    """From a shared cache only what a trusted key signed goes into a bundle that somebody else will sign."""
    key = SigningKey.generate()
    store = store_of(tmp_path / "from", A, signer=key)
    store.put(B)
    done = export(tmp_path / "x", store, trust=trust_in([PublicKey(key.public_key)]))
    assert [e.digest for e in done.entries] == [A.key.digest]
    assert "is not signed" in done.left_out[file_of(store, B)]


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_an_entry_that_goes_while_it_is_written_is_left_out(tmp_path, monkeypatch, how):
    """An eviction between check and copy costs that entry alone, and is told."""
    store = store_of(tmp_path / "from", A, B, C)
    victim = file_of(store, B)
    real = bundle_export._write_all

    def write_all(*arguments):
        if how == "removed" and os.path.exists(victim):
            os.unlink(victim)
        elif how == "replaced":
            with open(victim, "wb") as file:
                file.write(pack(entry_of("another")))
        return real(*arguments)

    monkeypatch.setattr(bundle_export, "_write_all", write_all)
    done = export(tmp_path / "a.bundle", store)
    assert {e.digest for e in done.entries} == {A.key.digest, C.key.digest}
    assert done.left_out == {victim: "it was removed or changed while the bundle was written"}
    assert len(read_bundle((tmp_path / "a.bundle").read_bytes()).entries) == 2
    assert sorted(os.listdir(tmp_path)) == ["a.bundle", "from"]


def test_nothing_to_export_writes_nothing(tmp_path):
    """Without an entry there is no file, and the result says so; an older file of that name stays."""
    store = store_of(tmp_path / "from")
    done = export(tmp_path / "a.bundle", store)
    assert (done.entries, done.size, done.machines) == ((), 0, 0)
    assert not (tmp_path / "a.bundle").exists()


def test_an_older_file_is_replaced_at_once(tmp_path):
    """Whoever has the older one open keeps reading that."""
    path, store = tmp_path / "a.bundle", store_of(tmp_path / "from", A)
    path.write_bytes(b"older")
    with path.open("rb") as file:
        export(path, store)
        assert file.read() == b"older"
    assert len(read_bundle(path.read_bytes()).entries) == 1


def test_only_a_plain_file_is_replaced(tmp_path):
    """A rename would put a file in the place of a device or a pipe that somebody named."""
    store = store_of(tmp_path / "from", A)
    os.mkfifo(tmp_path / "pipe")
    os.symlink("/dev/null", tmp_path / "link")
    for name in ("pipe", "link", "from"):
        with pytest.raises(CacheError, match="no regular file"):
            export(tmp_path / name, store)
    with pytest.raises(CacheError, match="No such file or directory"):
        export(tmp_path / "nowhere" / "a.bundle", store)
    with pytest.raises(CacheError, match="Not a directory"):
        export(tmp_path / "from" / "entries" / ".." / ".." / "pipe" / "x", store)
    assert os.readlink(tmp_path / "link") == "/dev/null"


@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO],
                         ids=errno.errorcode.get)  # fmt: skip
def test_a_failing_disk_leaves_the_older_file_and_no_other(tmp_path, monkeypatch, call, number):
    """Whichever step fails, the error says how, no temporary stays, and the next export works."""
    path, store = tmp_path / "a.bundle", store_of(tmp_path / "from", A, B)
    path.write_bytes(b"older")

    real = getattr(os, call)

    def fail(*arguments, **named):
        if call == "open" and not arguments[1] & os.O_CREAT:
            return real(*arguments, **named)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(CacheError) as caught:
            export(path, store)
    (problem,) = caught.value.problems
    assert (problem.where, problem.found) == (str(path), os.strerror(number))
    assert path.read_bytes() == b"older"
    assert sorted(os.listdir(tmp_path)) == ["a.bundle", "from"]
    assert len(export(path, store).entries) == 2


def test_short_writes_are_continued(tmp_path, monkeypatch):
    """A file system that takes a few bytes at a time gets the whole bundle."""
    store, real = store_of(tmp_path / "from", A, B), os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda d, data: real(d, bytes(data)[:7]))
        export(tmp_path / "a.bundle", store)
    assert len(read_bundle((tmp_path / "a.bundle").read_bytes()).entries) == 2


def test_the_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """fsync of the file, then the rename, then fsync of the folder: power loss leaves a whole bundle or none."""
    steps, fsync, rename = [], os.fsync, os.rename

    def synced(descriptor):
        steps.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        return fsync(descriptor)

    def renamed(*names):
        steps.append("rename")
        return rename(*names)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    export(tmp_path / "a.bundle", store_of(tmp_path / "from", A))
    assert steps == ["file", "rename", "folder"]


def test_others_can_read_a_bundle_as_the_umask_allows(tmp_path):
    """It is made to be handed on; cache folders and keys are not."""
    before = os.umask(0o027)
    try:
        export(tmp_path / "a.bundle", store_of(tmp_path / "from", A))
    finally:
        os.umask(before)
    assert (tmp_path / "a.bundle").stat().st_mode & 0o777 == 0o640


def test_more_entries_than_a_manifest_can_list_are_refused(tmp_path, monkeypatch):
    """The limit of the format is an error with a number, not a file that no import reads."""
    monkeypatch.setattr("graphspec.cache.bundle.layout.MAX_MANIFEST_BYTES", 100)
    with pytest.raises(CacheError, match="is beyond 100"):
        export(tmp_path / "a.bundle", store_of(tmp_path / "from", A))
    assert not (tmp_path / "a.bundle").exists()
