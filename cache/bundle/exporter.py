"""`export_bundle`: entries of a cache folder as one file that can be carried to another machine."""

import contextlib
import hashlib
import os
import platform
import stat
from collections.abc import Mapping, Sequence

import attrs

import graphspec
from graphspec.cache.bundle.layout import Listed, MalformedError, Manifest, machine_of, pack_front
from graphspec.cache.entry import EntryCorruptError, Signer, Trust, unpack
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.publish import sync_file
from graphspec.cache.folder.reading import read_entry
from graphspec.cache.leftovers import sweep, unique_name
from graphspec.cache.load import Keyed, first_of_each_key
from graphspec.cache.store import Outcome
from graphspec.errors import CacheError, Problem
from graphspec.keys.encoding import encode_decoded


@attrs.frozen(kw_only=True)
class Candidate:
    """A file of a cache folder that is to be exported, and the key that it has to hold."""

    path: str
    digest: str


@attrs.frozen(kw_only=True)
class ExportedEntry:
    """One entry in the bundle. `size` is in bytes."""

    digest: str
    unit: str
    size: int


@attrs.frozen(kw_only=True)
class Exported:
    """What an export wrote; no entries: nothing was written. `left_out` is why each other file was not taken."""

    path: str
    size: int
    entries: tuple[ExportedEntry, ...]
    machines: int
    left_out: Mapping[str, str]
    signer: bytes | None


def all_entries(store: DiskStore) -> Sequence[Candidate]:
    """Every entry of a folder, readable or not."""
    return [
        Candidate(path=path, digest=os.path.basename(path).partition(".")[0])
        for path, _, _ in store.entries()
    ]


def entries_of(
    keyed: Sequence[Keyed], store: DiskStore
) -> tuple[Sequence[Candidate], Sequence[tuple[Keyed, str]]]:
    """The stored entries of units, and the units that have none, each with the reason. Equal units have one entry."""
    found, missing = [], []
    for one in first_of_each_key(keyed).values():
        lookup = store.look(one.key)
        if lookup.outcome is Outcome.HIT:
            found.append(Candidate(path=store.path_of(one.key), digest=one.key.digest))
        else:
            missing.append((one, lookup.reason))
    return found, missing


def export_bundle(
    path: str,
    candidates: Sequence[Candidate],
    *,
    signer: Signer | None = None,
    trust: Trust | None = None,
    facts: Mapping[str, str] | None = None,
) -> Exported:
    """Writes the entries to a new file at `path`, as they are stored, each checked before. `signer` signs the manifest.

    Equal entries give equal bytes: no time and no name of a host or user is written. `facts` are written beside what is
    always told of the program. The file is there whole or not at all. Files that are not what they should be, or not
    trusted by `trust`, are left out. Raises `CacheError` when the file cannot be written.
    """
    _check_target(path)
    left_out: dict[str, str] = {}
    sources = _checked_sources(candidates, trust, left_out)
    while sources:
        front = _front(path, sources, signer, facts or {})
        gone = _write(path, front, sources)
        if gone is None:
            break
        # Evicted or replaced since it was checked. What is left is still a good bundle.
        left_out[gone.path] = "it was removed or changed while the bundle was written"
        sources = [s for s in sources if s is not gone]
    return Exported(
        path=os.path.abspath(path),
        size=len(front) + sum(s.size for s in sources) if sources else 0,
        entries=tuple(ExportedEntry(digest=s.digest, unit=s.unit, size=s.size) for s in sources),
        machines=len({s.machine for s in sources}),
        left_out=left_out,
        signer=signer.public_key if signer is not None else None,
    )


@attrs.frozen(kw_only=True)
class _Source:
    path: str
    digest: str
    unit: str
    size: int
    sha256: bytes
    machine: bytes
    key_text: bytes


def _checked_sources(
    candidates: Sequence[Candidate], trust: Trust | None, left_out: dict[str, str]
) -> list[_Source]:
    sources: dict[str, _Source] = {}
    for candidate in candidates:
        try:
            source = _source(candidate, read_entry(candidate.path), trust)
        except OSError as error:
            left_out[candidate.path] = error.strerror or str(error)
        except EntryCorruptError as error:
            left_out[candidate.path] = str(error)
        else:
            sources[source.digest] = source
    return [sources[digest] for digest in sorted(sources)]


def _source(candidate: Candidate, data: bytes, trust: Trust | None) -> _Source:
    entry = unpack(data, trust=trust)
    if entry.key.digest != candidate.digest:
        raise EntryCorruptError(f"its name is that of another key than {entry.key.digest}")
    return _Source(
        path=candidate.path,
        digest=entry.key.digest,
        unit=str(entry.metadata.get("unit", "")),
        size=len(data),
        sha256=hashlib.sha256(data).digest(),
        machine=encode_decoded(machine_of(entry.key.text)),
        key_text=entry.key.text,
    )


def _front(
    path: str, sources: Sequence[_Source], signer: Signer | None, facts: Mapping[str, str]
) -> bytes:
    texts = sorted({s.machine for s in sources})
    numbers = {text: i for i, text in enumerate(texts)}
    keys = {s.machine: s.key_text for s in sources}
    listed, offset = [], 0
    for s in sources:
        listed.append(
            Listed(
                digest=s.digest,
                machine=numbers[s.machine],
                offset=offset,
                size=s.size,
                sha256=s.sha256,
            )
        )
        offset += s.size
    manifest = Manifest(
        created_by={**facts, **_program()},
        machines=[machine_of(keys[text]) for text in texts],
        entries=listed,
    )
    try:
        return pack_front(manifest, signer)
    except MalformedError as error:
        raise _not_written(path, str(error), "fewer entries") from None


def _program() -> Mapping[str, str]:
    # Nothing that differs between two runs, users or hosts of one kind.
    return {
        "graphspec": graphspec.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
    }


def _write(path: str, front: bytes, sources: Sequence[_Source]) -> _Source | None:
    """Writes the file and gives it its name; or gives the first source that is no longer what it was, and no file."""
    folder = os.path.dirname(os.path.abspath(path))
    temporary = os.path.join(folder, unique_name())
    sweep(folder)
    try:
        try:
            descriptor = os.open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666
            )
            try:
                gone = _write_all(descriptor, front, sources)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if gone is None:
                os.rename(temporary, path)
                sync_file(folder)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
    except OSError as error:
        raise _not_written(path, error.strerror or str(error)) from None
    return gone


def _write_all(descriptor: int, front: bytes, sources: Sequence[_Source]) -> _Source | None:
    _write_bytes(descriptor, front)
    for source in sources:
        try:
            data = read_entry(source.path)
        except (OSError, EntryCorruptError):
            return source
        if hashlib.sha256(data).digest() != source.sha256:
            return source
        _write_bytes(descriptor, data)
    return None


def _write_bytes(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _check_target(path: str) -> None:
    """A rename would put a plain file in the place of a device or a pipe."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise _not_written(path, error.strerror or str(error)) from None
    if not stat.S_ISREG(mode):
        raise _not_written(path, "something that is no regular file")


def _not_written(path: str, found: str, wanted: str = "") -> CacheError:
    return CacheError(
        Problem(
            where=path,
            found=found,
            wanted=wanted or "a place that a new file can be written to",
            hint="nothing was written",
        )
    )
