"""`RedisBlobs`: blocks of bytes in a Redis database. Needs the package `redis`.

Keys are ``PREFIX:v2:NAME``, so versions of graphspec with other formats can share a database. What the server says in
free text is never repeated: it can quote a command, and so a password.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from graphspec.cache.entry import FORMAT
from graphspec.cache.tiers.breaker import TierError
from graphspec.cache.tiers.remote import Blob

MAX_VALUE_BYTES = 512 << 20
"""What a Redis value can hold."""
_BATCH = 500
_AT_ONCE_S = 0.25


@attrs.frozen(kw_only=True)
class RedisAddress:
    """Where a database is and how to log in. The password is in no text that is made of it."""

    host: str
    port: int = 6379
    db: int = 0
    tls: bool = False
    username: str | None = attrs.field(default=None, repr=False)
    password: str | None = attrs.field(default=None, repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"redis{'s' if self.tls else ''}://{host}:{self.port}/{self.db}"


class RedisBlobs:
    """Blocks of bytes as string values, each stored by one SET NX.

    With `ttl_s` a block goes that many seconds after it was stored, used or not; without it, the server's own memory
    policy decides. A connection, and each wait for bytes, may take `timeout_s` seconds. A call is tried a second time
    when the connection is dropped at once, and never after a timeout.
    """

    def __init__(
        self,
        address: RedisAddress,
        prefix: str = "graphspec",
        *,
        ttl_s: int | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        self._address = address
        self._prefix = f"{prefix}:v{FORMAT}:"
        self._ttl_s = ttl_s
        self._timeout_s = timeout_s
        self._opened: Any = None

    def __repr__(self) -> str:
        return f"RedisBlobs({self.where})"

    @property
    def where(self) -> str:
        return f"{self._address} ({self._prefix}*)"

    def open(self) -> None:
        try:
            self._client()
        except Exception as error:
            raise _failure(error) from None

    def get(self, name: str, limit: int) -> bytes | None:
        key = self._prefix + name
        size, exists = self._call(
            lambda client: client.pipeline(transaction=False).strlen(key).exists(key).execute()
        )
        if not exists:
            return None
        if size <= limit:
            # The value may have been replaced since it was measured: GETRANGE cannot return more than is asked for.
            data: bytes = self._call(lambda client: client.getrange(key, 0, limit))
            size = len(data)
        if size > limit:
            reason = f"the value has {size} bytes or more, at most {limit} are fetched"
            raise TierError(reason, counts=False)
        return data

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if len(data) > MAX_VALUE_BYTES:
            reason = f"{len(data)} bytes; a value of Redis has at most {MAX_VALUE_BYTES}"
            raise TierError(reason, counts=False)
        key = self._prefix + name
        return bool(self._call(lambda client: client.set(key, data, nx=True, ex=self._ttl_s)))

    def list(self) -> Iterator[Blob]:
        # SCAN may show a key twice.
        seen: set[bytes] = set()
        cursor = 0
        pattern = _literal(self._prefix) + "*"

        def scan(client: Any) -> Any:
            return client.scan(cursor, match=pattern, count=_BATCH)

        while True:
            cursor, keys = self._call(scan)
            new = [key for key in keys if key not in seen]
            seen.update(new)
            for key, size in zip(new, self._sizes(new), strict=True):
                yield Blob(name=key.decode(errors="replace").removeprefix(self._prefix), size=size)
            if not cursor:
                return

    def delete(self, name: str) -> None:
        self._call(lambda client: client.delete(self._prefix + name))

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _sizes(self, keys: Sequence[bytes]) -> Any:
        def ask(client: Any) -> Any:
            pipeline = client.pipeline(transaction=False)
            for key in keys:
                pipeline.strlen(key)
            return pipeline.execute()

        return self._call(ask)

    def _call(self, command: Callable[[Any], Any]) -> Any:
        began = time.monotonic()
        try:
            return self._call_once(command)
        except _NoConnectionError:
            # A server that was restarted has dropped the connections of the pool. One that is gone is slow to say so.
            if time.monotonic() - began > _AT_ONCE_S:
                raise
        return self._call_once(command)

    def _call_once(self, command: Callable[[Any], Any]) -> Any:
        try:
            return command(self._client())
        except Exception as error:
            # What redis-py raises depends on its version and on what the other side sends.
            raise _failure(error) from None

    def _client(self) -> Any:
        if self._opened is None:
            self._opened = self._new_client()
        return self._opened

    def _new_client(self) -> Any:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        return redis.Redis(
            host=self._address.host,
            port=self._address.port,
            db=self._address.db,
            username=self._address.username,
            password=self._address.password,
            ssl=self._address.tls,
            socket_connect_timeout=self._timeout_s,
            socket_timeout=self._timeout_s,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )


def _literal(text: str) -> str:
    """The text as a pattern of SCAN that matches only itself."""
    return "".join(f"\\{c}" if c in "*?[]^\\" else c for c in text)


class _NoConnectionError(TierError):
    """There is no connection to the server any more, or none could be made."""


def _failure(error: Exception) -> TierError:
    """The reason for what redis-py raised, without anything of its text but a known code."""
    if "WRONGTYPE" in str(error):
        return TierError("something that is no string lies under this name", counts=False)
    words = {
        "AuthenticationError": "the credentials are refused, or missing",
        "AuthorizationError": "the credentials are refused, or missing",
        "NoPermissionError": "the user may not do this",
        "BusyLoadingError": "the server is loading its data",
        "OutOfMemoryError": "the server is out of memory",
        "ReadOnlyError": "the server is a replica that is only read",
        "MaxConnectionsError": "too many connections",
        "TimeoutError": "no answer in time",
        "InvalidResponse": "the answer is not Redis'",
        "ResponseError": "the server refused the command",
    }
    for kind in type(error).__mro__:
        if kind.__name__ in words:
            return TierError(words[kind.__name__])
        if kind.__name__ == "ConnectionError":
            return _NoConnectionError("no connection, or it was dropped")
    return TierError(f"it failed ({type(error).__name__})")
