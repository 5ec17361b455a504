"""The cache section: what of the cache is used, how large it may grow, and whose entries are trusted."""

from graphspec.fields import config_class, unkeyed

_HOST = "where compiled code is kept; nothing of it changes that code"


@config_class
class CacheConfig:
    """The cache of compiled units."""

    enabled: bool = unkeyed(
        default=True, doc="Whether entries are read and written at all.", reason=_HOST
    )
    offline: bool = unkeyed(
        default=False,
        doc="Whether a unit that the cache lacks is an error instead of a compile.",
        reason="forbids compiling; it changes no graph",
    )
    durable: bool = unkeyed(
        default=False, doc="Whether an entry survives power loss once it is stored.", reason=_HOST
    )
    max_bytes: int = unkeyed(
        default=20 << 30,
        minimum=1 << 20,
        maximum=1 << 60,
        doc="Size in bytes beyond which the least valuable entries are removed.",
        reason=_HOST,
    )
    max_entries: int = unkeyed(
        default=20_000,
        minimum=1,
        maximum=1 << 32,
        doc="Number of entries beyond which the least valuable ones are removed.",
        reason=_HOST,
    )
    trust: str | None = unkeyed(
        default=None,
        doc="File of public keys. With it, only entries that one of them signed are used, and the folder may be shared.",
        reason=_HOST,
    )
    signing_key: str | None = unkeyed(
        default=None, doc="File of the private key that new entries are signed with.", reason=_HOST
    )
    remote: tuple[str, ...] = unkeyed(
        default=(),
        doc="Further places to look, nearest first: file:, s3: and redis: addresses.",
        reason=_HOST,
        secret=True,
    )
    lock_wait_seconds: int = unkeyed(
        default=900,
        minimum=0,
        maximum=86_400,
        doc="How long another process may be compiling a unit before this one compiles it too.",
        reason=_HOST,
    )
