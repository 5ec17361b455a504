"""`read_bundle`: checks all of a bundle, structure and every entry, before anything of it is used."""

import contextlib
import hashlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO, NoReturn

import attrs

from graphspec.cache import entry as entry_format
from graphspec.cache.bundle.layout import (
    PREFIX_BYTES,
    Listed,
    Machine,
    MalformedError,
    Manifest,
    Sizes,
    machine_of,
    read_manifest,
    read_prefix,
)
from graphspec.cache.entry import Entry, EntryCorruptError, Seal, Trust, pack, unpack
from graphspec.cache.regular import open_regular
from graphspec.errors import BundleError, KeyFactorError, Problem, UntrustedError
from graphspec.keys.encoding import encode_decoded

Source = bytes | bytearray | memoryview | BinaryIO
"""A bundle's bytes, or a file that is open for reading bytes and can seek."""

_Read = Callable[[int, int], bytes | memoryview]


@attrs.frozen(kw_only=True, eq=False)
class Bundle:
    """A bundle that was found whole. It reads from its source, which has to stay open.

    `seal` says who claims to have signed it; that is checked only where `read_bundle` was given a `trust`.
    """

    where: str
    manifest: Manifest
    seal: Seal | None
    size: int
    _read: _Read = attrs.field(repr=False)
    _start: int

    @property
    def entries(self) -> Sequence[Listed]:
        """What the bundle holds, in the order of the keys' digests."""
        return self.manifest.entries

    @property
    def machines(self) -> Sequence[Machine]:
        """The toolchains and devices that its entries are for."""
        return self.manifest.machines

    @property
    def created_by(self) -> Mapping[str, str]:
        """Facts of the program that wrote it."""
        return self.manifest.created_by

    def load(self, listed: Listed, trust: Trust | None = None) -> Entry:
        """One entry, checked again: the source may have changed. Raises `BundleError` or, with `trust`, `UntrustedError`."""
        data = self._read(self._start + listed.offset, listed.size)
        try:
            if hashlib.sha256(data).digest() != listed.sha256:
                raise MalformedError("the SHA-256 is not the one that is listed")
            seal = entry_format.read_prefix(data).seal
            distrust = trust(seal) if trust is not None else ""
            if distrust:
                raise _untrusted(self.where, f"entry {listed.digest}: {distrust}")
            return _checked(data, listed, self.machines[listed.machine])
        except (MalformedError, EntryCorruptError) as error:
            _refuse(self.where, f"entry {listed.digest}: {error}")

    def _promises(self, listed: Listed) -> int:
        """Length of an entry in bytes as its own fixed part has it."""
        fixed = self._read(self._start + listed.offset, entry_format.PREFIX_BYTES)
        try:
            return entry_format.read_prefix(fixed).end
        except EntryCorruptError as error:
            _refuse(self.where, f"entry {listed.digest}: {error}")


def read_bundle(
    source: Source,
    *,
    where: str = "bundle",
    trust: Trust | None = None,
    entry_trust: Trust | None = None,
) -> Bundle:
    """The bundle in `source`, after all of it was checked: sizes, digests, order, and each entry as a cache would.

    `where` is its name in errors. Raises `BundleError` for anything that is not a whole bundle. `trust` asks for a signature of the bundle and
    `entry_trust` for one of each entry; a missing, strange or wrong one is an `UntrustedError`. At most one entry is in
    memory at a time, and nothing is allocated for a size that the source does not have.
    """
    size, read = _opened(source, where)
    try:
        sizes = read_prefix(read(0, min(size, PREFIX_BYTES)))
        if sizes.whole != size:
            raise MalformedError(_length(size, sizes.whole))
        manifest = _manifest(read, sizes, where, trust)
    except MalformedError as error:
        _refuse(where, str(error))
    start = PREFIX_BYTES + sizes.manifest
    bundle = Bundle(
        where=where, manifest=manifest, seal=sizes.seal, size=size, read=read, start=start
    )
    for listed in bundle.entries:
        if bundle._promises(listed) != listed.size:
            _refuse(where, f"entry {listed.digest}: its size is not the one that is listed")
        bundle.load(listed, entry_trust)
    return bundle


@contextlib.contextmanager
def open_bundle(path: str) -> Iterator[BinaryIO]:
    """The file of a bundle, open for `read_bundle`. Raises `BundleError` where there is none."""
    try:
        file = open_regular(path)
    except OSError as error:
        _refuse(path, error.strerror or str(error), "a file that graphspec cache export wrote")
    with file:
        yield file


def _manifest(read: _Read, sizes: Sizes, where: str, trust: Trust | None) -> Manifest:
    content = bytes(read(PREFIX_BYTES, sizes.manifest))
    if hashlib.sha256(content).digest() != sizes.manifest_digest:
        raise MalformedError("the manifest's SHA-256 differs")
    # Before the manifest is interpreted, as with an entry.
    distrust = trust(sizes.seal) if trust is not None else ""
    if distrust:
        raise _untrusted(where, distrust)
    return read_manifest(content, sizes.whole - PREFIX_BYTES - sizes.manifest)


def _checked(data: bytes | memoryview, listed: Listed, machine: Machine) -> Entry:
    entry = unpack(data)
    if entry.key.digest != listed.digest:
        raise MalformedError(f"it has the key {entry.key.digest}")
    if encode_decoded(machine_of(entry.key.text)) != encode_decoded(machine):
        raise MalformedError("its key names another toolchain or device than is listed")
    if _header(entry) != bytes(data[entry_format.PREFIX_BYTES : len(data) - len(entry.payload)]):
        raise MalformedError("its header holds more than a header does")
    return entry


def _header(entry: Entry) -> bytes:
    """The header as a cache writes it that packs the entry again: what is not in it would be lost, and the seal with it."""
    try:
        return pack(attrs.evolve(entry, payload=b""))[entry_format.PREFIX_BYTES :]
    except KeyFactorError as error:
        raise MalformedError(
            f"its header cannot be written again: {error.problems[0].found}"
        ) from None


def _opened(source: Source, where: str) -> tuple[int, _Read]:
    """Size in bytes of the source, and what reads a number of bytes at an offset of it."""
    if isinstance(source, bytes | bytearray | memoryview):
        view = memoryview(source).cast("B")
        return len(view), lambda offset, count: view[offset : offset + count]
    file = source

    def read(offset: int, count: int) -> bytes:
        try:
            file.seek(offset)
            data = file.read(count)
        except OSError as error:
            _refuse(where, error.strerror or str(error), "a file that can be read")
        if len(data) != count:
            _refuse(where, "a file that became shorter while it was read")
        return data

    try:
        size = file.seek(0, io.SEEK_END)
    except OSError as error:
        _refuse(where, error.strerror or str(error), "a file that can be read")
    return size, read


def _length(found: int, wanted: int) -> str:
    if found < wanted:
        return f"truncated: {found} bytes, the fixed part promises {wanted}"
    return f"{found - wanted} bytes follow the last entry"


def _refuse(where: str, found: str, wanted: str = "a whole, unaltered bundle") -> NoReturn:
    hint = "export or copy it again; nothing was imported"
    raise BundleError(Problem(where=where, found=found, wanted=wanted, hint=hint)) from None


def _untrusted(where: str, found: str) -> UntrustedError:
    return UntrustedError(
        Problem(
            where=where,
            found=found,
            wanted="a signature of a key that the trust file lists",
            hint="ask who made it for its public key; nothing was imported",
        )
    )
