"""`remote_store`: the tier that an address names. A bad address is a list of problems, and never shows a secret.

file:///mnt/share/graphspec?access=group
s3://bucket/prefix?endpoint=https://store.example:9000&region=eu-west-1
redis://user:password@host:6379/0?prefix=graphspec&ttl=604800
"""

import importlib.util
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from graphspec.cache.entry import Signer, Trust
from graphspec.cache.tiers.breaker import Breaker
from graphspec.cache.tiers.remote import MAX_ENTRY_BYTES, Blobs, RemoteStore
from graphspec.cache.tiers.shared_folder import SharedFolder
from graphspec.errors import EnvironmentProblem, Problem, SpecError
from graphspec.text import did_you_mean, one_of, show

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9._/-]*")
_LOCAL = ("", "localhost")


def remote_store(
    url: str, *, signer: Signer | None = None, trust: Trust | None = None
) -> RemoteStore | SharedFolder:
    """The tier at an address: ``file:``, ``s3:``, ``redis:`` or ``rediss:`` (Redis over TLS). Nothing is connected yet.

    Options of all: ``write=no`` for a tier that is only read. Of `file`: ``access=group``, ``durable=no``. Of `s3` and
    `redis`: ``timeout`` in seconds, ``max_entry_bytes``. Of `s3`: ``endpoint``, ``region``. Of `redis`: ``prefix``,
    ``ttl`` in seconds. Raises `SpecError` with every problem of the address, and `EnvironmentProblem` where the package
    for its scheme is not installed.
    """
    address = _Address(url)
    made = address.make(signer, trust)
    if address.problems or made is None:
        raise SpecError(address.problems)
    return made


class _Address:
    """An address as it is taken apart, and what is wrong with it. Messages show its parts, and never what may be secret."""

    def __init__(self, url: str) -> None:
        self.problems: list[Problem] = []
        self._url = _split(url)
        self._scheme = self._url.scheme
        self._options: dict[str, str] = {}

    def make(self, signer: Signer | None, trust: Trust | None) -> RemoteStore | SharedFolder | None:
        kinds: Mapping[str, Callable[..., RemoteStore | SharedFolder | None]] = {
            "file": self._file,
            "s3": self._s3,
            "redis": self._redis,
            "rediss": self._redis,
        }
        if self._url.scheme not in kinds:
            self._wrong("", "an address of another kind", one_of(f"{kind}://" for kind in kinds))
            return None
        self._read_options()
        writable = self._choice("write", ("yes", "no")) != "no"
        return kinds[self._scheme](writable=writable, signer=signer, trust=trust)

    def _file(self, **common: Any) -> SharedFolder | None:
        group = self._choice("access", ("private", "group")) == "group"
        durable = self._choice("durable", ("yes", "no")) != "no"
        path = unquote(self._url.path)
        if self._url.netloc not in _LOCAL:
            self._wrong(
                "", "a host, or a path with two slashes", "file:///PATH, with three slashes"
            )
        if group and common["trust"] is None:
            hint = "set cache.trust to a file of public keys"
            self._wrong(
                "access",
                "a group that may write, and entries need no signature",
                "trusted signatures",
                hint,
            )
        if not path.strip("/") or not path.startswith("/") or "\0" in path:
            self._wrong("", "no path of a folder", "an absolute path: file:///PATH")
        return SharedFolder(path, group=group, durable=durable, **common) if self._fine() else None

    def _s3(self, **common: Any) -> RemoteStore | None:
        endpoint, region = self._endpoint(), self._options.pop("region", None)
        timeout_s, limit = self._timeout(), self._integer("max_entry_bytes", MAX_ENTRY_BYTES)
        bucket, prefix = self._url.netloc, unquote(self._url.path).strip("/")
        if "@" in bucket:
            hint = "credentials come from AWS variables, a profile or a role"
            self._wrong("", "a user or password", "only the name of the bucket", hint)
        elif not _BUCKET.fullmatch(bucket):
            self._wrong("", "no right bucket", "3 to 63 lower-case letters, digits, . or -")
        self._check_prefix(prefix)
        if region is not None and not re.fullmatch(r"[a-z0-9-]+", region):
            self._wrong("region", show(region), "a region such as eu-west-1")
        if not self._fine():
            return None
        _require("boto3", "s3")
        from graphspec.cache.tiers.s3 import S3Blobs

        blobs = S3Blobs(bucket, prefix, endpoint=endpoint, region=region, timeout_s=timeout_s)
        return _over(blobs, timeout_s, max_entry_bytes=limit, **common)

    def _redis(self, **common: Any) -> RemoteStore | None:
        from graphspec.cache.tiers.redis_blobs import RedisAddress, RedisBlobs

        timeout_s, limit = self._timeout(), self._integer("max_entry_bytes", MAX_ENTRY_BYTES)
        prefix = self._options.pop("prefix", "graphspec")
        ttl_s = self._integer("ttl", None)
        self._check_prefix(prefix, "prefix")
        db = self._url.path.strip("/") or "0"
        if not db.isdecimal() or not db.isascii() or len(db) > 9:
            # Not shown: with a slash too few it is the password.
            self._wrong("", "no database", "its number: redis://HOST:6379/0")
        if not self._url.hostname:
            self._wrong("", "no host", "redis://HOST:6379/0")
        port = self._port()
        if not self._fine():
            return None
        _require("redis", "redis")
        address = RedisAddress(
            host=self._url.hostname or "",
            port=port or 6379,
            db=int(db),
            tls=self._scheme == "rediss",
            username=_decoded(self._url.username),
            password=_decoded(self._url.password),
        )
        blobs = RedisBlobs(address, prefix, ttl_s=ttl_s, timeout_s=timeout_s)
        return _over(blobs, timeout_s, max_entry_bytes=limit, **common)

    def _read_options(self) -> None:
        for name, value in parse_qsl(self._url.query, keep_blank_values=True):
            if name in self._options:
                self._wrong(name, "the option twice", "each option once")
            self._options[name] = value
        if self._url.fragment or "#" in self._url.geturl():
            self._wrong("", "a # and what follows it", "nothing after the options", "write %23")

    def _fine(self) -> bool:
        """Whether all is well, once the options that have a meaning are taken out."""
        known = {
            "file": ("write", "access", "durable"),
            "s3": ("write", "timeout", "max_entry_bytes", "endpoint", "region"),
        }.get(self._scheme, ("write", "timeout", "max_entry_bytes", "prefix", "ttl"))
        for name in self._options:
            # With a ? in a password, what follows it looks like an option.
            shown = repr(name) if re.fullmatch(r"[A-Za-z_]{1,32}", name) else "of no right name"
            hint = did_you_mean(name, known)
            self._wrong("", f"an option {shown}", f"an option of {self._scheme}:", hint)
        return not self.problems

    def _endpoint(self) -> str | None:
        text = self._options.pop("endpoint", None)
        if text is None:
            return None
        url = _split(text)
        whole = url.scheme in ("http", "https") and url.hostname
        if not whole or "@" in url.netloc or url.query or url.fragment or not _port_is_right(url):
            # Not shown: what stands before an @ is a password.
            self._wrong("endpoint", "another value", "http://HOST:PORT or https://HOST:PORT")
        return text

    def _choice(self, name: str, values: tuple[str, ...]) -> str:
        value = self._options.pop(name, values[0])
        if value not in values:
            self._wrong(name, show(value), one_of(values))
        return value

    def _integer(self, name: str, default: Any) -> Any:
        text = self._options.pop(name, None)
        if text is None:
            return default
        if not re.fullmatch(r"[1-9][0-9]{0,11}", text):
            self._wrong(name, show(text), "an integer above zero")
            return default
        return int(text)

    def _timeout(self) -> float:
        text = self._options.pop("timeout", "5")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= 600:
            self._wrong("timeout", show(text), "seconds, above 0 and at most 600")
            return 5.0
        return value

    def _port(self) -> int | None:
        if not _port_is_right(self._url):
            self._wrong("", "no right port", "a port from 1 to 65535")
            return None
        return self._url.port

    def _check_prefix(self, prefix: str, where: str = "") -> None:
        if not _PREFIX.fullmatch(prefix):
            self._wrong(where, "a prefix with other characters", "letters, digits, . _ - and /")

    def _wrong(self, option: str, found: str, wanted: str, hint: str = "") -> None:
        where = "cache.remote" + (f", option {option}" if option else "")
        self.problems.append(Problem(where=where, found=found, wanted=wanted, hint=hint))


def _over(blobs: Blobs, timeout_s: float, **options: Any) -> RemoteStore:
    # One timeout is enough to switch the tier off, with some room for a clock that runs differently.
    breaker = partial(Breaker, patience_s=0.8 * timeout_s)
    return RemoteStore(blobs, breaker=breaker, **options)


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult("", "", "", "", "")


def _port_is_right(url: SplitResult) -> bool:
    try:
        return url.port != 0
    except ValueError:
        return False


def _decoded(text: str | None) -> str | None:
    return unquote(text) if text else None


def _require(package: str, extra: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise EnvironmentProblem(
            Problem(
                where=f"package {package}",
                found="nothing that can be imported",
                wanted=f"the package behind {extra}: addresses",
                hint=f"pip install 'graphspec-engine[{extra}]'",
            )
        )
