"""`open_cache`: from the cache section of a contract to the store, the locks and the limits that it asks for."""

import os
import time
from collections.abc import Sequence

import attrs

from graphspec.cache.entry import Signer, Trust
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.history import Run, append_run
from graphspec.cache.folder.locks import KeyLocks, Locks, NoLocks
from graphspec.cache.load import UnitResult, outcome_counts
from graphspec.cache.location import locate
from graphspec.cache.store import DisabledStore, Lookup, Store
from graphspec.cache.tiers.counting import Counters, CountingStore
from graphspec.cache.units import EntryKey
from graphspec.config.cache import CacheConfig

OFFLINE = "GRAPHSPEC_OFFLINE"


@attrs.frozen(kw_only=True)
class OpenCache:
    """A cache that is ready for use. `disk` is its folder, None where that is not used.

    `problem` says why nothing can be stored, `note` where the folder is if nobody chose it; both are sentences or empty.
    """

    root: str
    store: Store
    locks: Locks
    disk: DiskStore | None
    config: CacheConfig
    counters: Counters
    note: str = ""
    problem: str = ""

    @property
    def offline(self) -> str | None:
        """The folder to explain misses from, where compiling is forbidden."""
        forbidden = self.config.offline or os.environ.get(OFFLINE, "0") not in ("", "0")
        return self.root if forbidden else None

    def record(self, results: Sequence[UnitResult]) -> None:
        """Adds this run to the history that ``graphspec cache stats`` shows."""
        if self.disk is not None:
            compiled = [r for r in results if r.compiled]
            run = Run(
                at=time.time(),
                outcomes=outcome_counts(results),
                compiled=len(compiled),
                seconds=sum(r.seconds for r in compiled),
                seconds_saved=sum(r.seconds_saved for r in results),
            )
            append_run(self.root, run)

    def look(self, key: EntryKey) -> Lookup:
        """What the folder holds under a key, without touching anything. Remote places are not asked."""
        return self.disk.look(key) if self.disk is not None else self.store.get(key)

    def why_not_stored(self) -> str:
        """Why entries cannot be stored, in a sentence, or an empty text. Tries it."""
        return self.disk.problem() if self.disk is not None else self.problem


def open_cache(config: CacheConfig, cache_dir: str | None = None) -> OpenCache:
    """The cache that `config` describes. Nothing is created before the first put.

    A folder that others could have written to is not used, and `problem` says so, unless the config names whose
    signatures to trust. Raises `UntrustedError` for a file of keys that is not as it should be.
    """
    place, counters = locate(cache_dir), Counters()
    signer, trust = _keys(config)
    problem = "" if trust is not None or not config.enabled else _folder_problem(place.folder)
    disk: DiskStore | None = None
    if not config.enabled:
        store: Store = DisabledStore("the cache is switched off")
    elif problem:
        store = DisabledStore(problem, problem=True)
    else:
        disk = DiskStore(place.folder, durable=config.durable, signer=signer, trust=trust)
        store = _levels(disk, config, signer, trust)
    return OpenCache(
        root=place.folder,
        store=CountingStore(store, counters),
        locks=NoLocks() if disk is None else KeyLocks(place.folder),
        disk=disk,
        config=config,
        counters=counters,
        note=place.note,
        problem=problem,
    )


def _keys(config: CacheConfig) -> tuple[Signer | None, Trust | None]:
    if config.trust is None and config.signing_key is None:
        return None, None
    from graphspec.cache.signing import SigningKey, read_public_keys, trust_in

    signer = SigningKey.load(config.signing_key) if config.signing_key else None
    return signer, trust_in(read_public_keys(config.trust)) if config.trust else None


def _folder_problem(folder: str) -> str:
    from graphspec.cache.trust import folder_problem

    return folder_problem(folder)


def _levels(
    disk: DiskStore, config: CacheConfig, signer: Signer | None, trust: Trust | None
) -> Store:
    from graphspec.cache.folder.bounded import BoundedStore
    from graphspec.cache.folder.evict import Caps
    from graphspec.cache.tiers.layers import ReadOnlyStore
    from graphspec.cache.trust import PrivateStore

    caps = Caps(max_bytes=config.max_bytes, max_entries=config.max_entries)
    first: Store = BoundedStore(disk, caps)
    if trust is None:
        first = PrivateStore(first, disk.path_of)
    elif signer is None:
        # What nobody trusts must neither take a name nor push out what others sign.
        first = ReadOnlyStore(
            first, "entries here have to be signed, and cache.signing_key names no key"
        )
    if not config.remote:
        return first
    from graphspec.cache.tiers.layers import LayeredStore
    from graphspec.cache.tiers.remote_url import remote_store

    remote = (remote_store(url, signer=signer, trust=trust) for url in config.remote)
    return LayeredStore((first, *remote))
