"""Ed25519 keys that sign entries and bundles, the files they are kept in, and which signatures are trusted.

A private key is a PEM file (PKCS8, no password) that its owner alone can read. Public keys stand in a trust file, one a
line: ``graphspec-ed25519 BASE64 comment``; a line that begins with ``#`` is a comment. Needs the package `cryptography`.
Nothing here compares secrets: public keys and signatures are public, and signing is done in constant time below us.
"""

import base64
import binascii
import importlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

import attrs

from graphspec.cache.entry import Seal, Trust
from graphspec.cache.regular import open_regular
from graphspec.errors import EnvironmentProblem, Problem, UntrustedError

LINE = "graphspec-ed25519"
_KEY_BYTES = 32
_MAX_FILE_BYTES = 1 << 20
_BEGIN, _END = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"
_READ_BITS, _WRITE_BITS = 0o077, 0o022

_WEAK = frozenset(
    bytes.fromhex(text)
    for text in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    )
)
"""Points of small order, without the sign bit. Anybody can make signatures that such a key verifies, for any message."""


@attrs.frozen
class PublicKey:
    """A public key as a trust file has it."""

    raw: bytes
    comment: str = ""

    @property
    def line(self) -> str:
        """The line of a trust file, without the newline."""
        comment = " ".join(self.comment.split())
        return f"{LINE} {base64.b64encode(self.raw).decode()} {comment}".rstrip()

    def __str__(self) -> str:
        return self.line


@attrs.frozen
class SigningKey:
    """A private key: a `Signer` of entries and bundles."""

    _private: Any = attrs.field(repr=False)

    @classmethod
    def generate(cls) -> "SigningKey":
        """A new key from the system's source of randomness."""
        return cls(_ed25519().Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: str) -> "SigningKey":
        """The key in a PEM file. Raises `UntrustedError` for a file that others can read, or that is no such key."""
        lines = list(_lines(path, _READ_BITS, "a private key that its owner alone can read"))
        data = b"".join(_pem_body(path, lines))
        serialization = _package("hazmat.primitives.serialization")
        try:
            private = serialization.load_der_private_key(data, password=None)
        except Exception:
            # What cryptography raises for bad DER depends on its version and on where the DER ends to make sense.
            private = None
        if not isinstance(private, _ed25519().Ed25519PrivateKey):
            kind = "no key" if private is None else f"a key of another kind ({_kind(private)})"
            _refuse(f"{path}:1", kind, "an Ed25519 key in PKCS8", _MAKE)
        return cls(private)

    def save(self, path: str) -> None:
        """Writes a new file of mode 0600. Raises `UntrustedError` when it cannot be made; no file is replaced."""
        serialization = _package("hazmat.primitives.serialization")
        data = self._private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            _refuse(path, "a file that is there already", "a new file", "a key is never replaced")
        except OSError as error:
            _refuse(path, error.strerror or str(error), "a file that can be made")
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
        except OSError as error:
            os.unlink(path)
            _refuse(path, error.strerror or str(error), "a disk that takes a key")

    @property
    def public_key(self) -> bytes:
        """The 32 bytes of the public key."""
        raw: bytes = self._private.public_key().public_bytes_raw()
        return raw

    def sign(self, data: bytes) -> bytes:
        """The 64 bytes of the signature. The same data gives the same signature."""
        signature: bytes = self._private.sign(data)
        return signature


def read_public_keys(path: str) -> tuple[PublicKey, ...]:
    """The keys of a trust file. Raises `UntrustedError` naming each line that is not one, or that others can write it."""
    keys, problems = [], []
    for number, line in enumerate(_lines(path, _WRITE_BITS, "a file that others cannot write"), 1):
        if not line or line.startswith("#"):
            continue
        key, wrong = _public_key(line)
        if key is not None:
            keys.append(key)
        else:
            # The line itself is not shown: the file may be something else, and secret.
            wanted = f"{LINE}, 44 characters of base64, and a comment if you like"
            hint = "this is a private key: never hand it on" if line == _BEGIN else ""
            problems.append(
                Problem(where=f"{path}:{number}", found=wrong, wanted=wanted, hint=hint)
            )
    if problems:
        raise UntrustedError(problems)
    if not keys:
        _refuse(path, "no key", f"at least one line {LINE} BASE64")
    return tuple(keys)


def trust_in(keys: Iterable[PublicKey], what: str = "the entry") -> Trust:
    """Trusts what one of `keys` has signed. `what` is the subject of the sentences that say why something is not trusted."""
    ed25519 = _ed25519()
    known: Mapping[bytes, Any] = {
        key.raw: ed25519.Ed25519PublicKey.from_public_bytes(key.raw) for key in keys
    }

    def distrust(seal: Seal | None) -> str:
        if seal is None:
            return f"{what} is not signed, and only signed ones are trusted here"
        key = known.get(seal.public_key)
        if key is None:
            return (
                f"{what} is signed by a key that is not trusted here: {PublicKey(seal.public_key)}"
            )
        if not _verifies(key, seal):
            return f"{what} has a wrong signature: the key that it names did not sign these bytes"
        return ""

    return distrust


def _verifies(key: Any, seal: Seal) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(seal.signature, seal.signed)
    except InvalidSignature:
        return False
    return True


def _public_key(line: str) -> tuple[PublicKey | None, str]:
    """The key of a line, or why it is none."""
    word, _, rest = line.partition(" ")
    text, _, comment = rest.strip().partition(" ")
    if word != LINE:
        return None, f"a line that does not begin with {LINE}"
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None, "a key that is not base64"
    if len(raw) != _KEY_BYTES:
        return None, f"a key of {len(raw)} bytes"
    if base64.b64encode(raw).decode() != text:
        return None, "a key whose last character has bits that mean nothing"
    if raw[:-1] + bytes([raw[-1] & 0x7F]) in _WEAK:
        return None, "a key that anybody can sign for (a point of small order)"
    return PublicKey(raw, comment.strip()), ""


def _pem_body(path: str, lines: list[str]) -> Iterator[bytes]:
    if not lines or lines[0] != _BEGIN:
        encrypted = bool(lines) and "ENCRYPTED" in lines[0]
        found = "a key with a password" if encrypted else f"no {_BEGIN!r}"
        _refuse(f"{path}:1", found, "a PEM file with one private key and no password", _MAKE)
    for number, line in enumerate(lines[1:], 2):
        if line == _END:
            if any(lines[number:]):
                _refuse(f"{path}:{number + 1}", "more lines", f"nothing after {_END!r}")
            return
        try:
            yield base64.b64decode(line, validate=True)
        except (binascii.Error, ValueError):
            _refuse(f"{path}:{number}", "a line that is not base64", "the key's base64", _MAKE)
    _refuse(f"{path}:{len(lines)}", "the end of the file", f"{_END!r}", _MAKE)


_MAKE = "graphspec cache keygen FILE makes one"


def _lines(path: str, forbidden: int, wanted: str) -> Iterator[str]:
    """The lines of a small text file, without spaces around them. Refuses one whose mode gives others a forbidden bit."""
    data = _content(path, forbidden, wanted)
    for number, line in enumerate(data.splitlines(), 1):
        try:
            yield line.decode("utf-8").strip()
        except UnicodeDecodeError:
            _refuse(f"{path}:{number}", "bytes that are not UTF-8", "text")


def _content(path: str, forbidden: int, wanted: str) -> bytes:
    try:
        with open_regular(path) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        _refuse(path, error.strerror or str(error), "a key file that can be read")
    if mode & forbidden:
        hint = f"chmod {'600' if forbidden == _READ_BITS else 'go-w'} {path}"
        _refuse(path, f"mode {mode:04o}: {_bits(mode & forbidden)}", wanted, hint)
    if len(data) > _MAX_FILE_BYTES:
        _refuse(path, f"more than {_MAX_FILE_BYTES} bytes", "a key file")
    return data


def _bits(found: int) -> str:
    names = {
        stat.S_IRGRP: "the group can read",
        stat.S_IWGRP: "the group can write",
        stat.S_IXGRP: "the group can execute",
        stat.S_IROTH: "others can read",
        stat.S_IWOTH: "others can write",
        stat.S_IXOTH: "others can execute",
    }
    return ", ".join(text for bit, text in names.items() if found & bit)


def _refuse(where: str, found: str, wanted: str, hint: str = "") -> NoReturn:
    raise UntrustedError(Problem(where=where, found=found, wanted=wanted, hint=hint)) from None


def _kind(private: Any) -> str:
    return type(private).__name__.removeprefix("_").removesuffix("PrivateKey")


def _ed25519() -> Any:
    return _package("hazmat.primitives.asymmetric.ed25519")


def _package(module: str) -> Any:
    try:
        return importlib.import_module(f"cryptography.{module}")
    except ImportError:
        raise EnvironmentProblem(
            Problem(
                where="package cryptography",
                found="nothing that can be imported",
                wanted="the package that makes and checks Ed25519 signatures",
                hint="pip install 'graphspec-engine[sign]'",
            )
        ) from None
