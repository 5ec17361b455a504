"""Kernels that numba compiles for this processor, in the cache: compiled once for each kind of processor, and found again."""

import importlib.util
import time
from collections.abc import Sequence

import attrs

from graphspec.cache.bundle.layout import HOST
from graphspec.cache.entry import Entry
from graphspec.cache.explain import offline_miss
from graphspec.cache.load import UnitResult, unit_result, unusable_store
from graphspec.cache.opened import OpenCache
from graphspec.cache.store import Lookup, Outcome, set_aside
from graphspec.cache.units import EntryKey
from graphspec.config.device import DeviceProfile
from graphspec.errors import KernelError
from graphspec.kernels.host_code import (
    HostCode,
    Keeper,
    compiler_facts,
    keep_host_code,
    nobody_keeps,
    processor,
)
from graphspec.keys.encoding import EPOCH, encode
from graphspec.keys.factors import digest
from graphspec.keys.source import source_digest

_LOCK_POLL_S = 0.1


def host_code_key(group: HostCode) -> EntryKey:
    """The key of a group's code: its modules by content, types, numba with its settings, and the processor. Imports numba.

    Its device is of a kind of its own, since numba has its own words for a processor. So a bundle can be imported on another
    one: what was compiled for this is never looked up there.
    """
    target, name, features = processor()
    text = encode(
        {
            "epoch": EPOCH,
            "kind": "host kernel",
            "unit": unit_name(group),
            "source": source_digest(group.modules),
            "signature": {name: str(types) for name, types in group.signatures.items()},
            "compiler": dict(compiler_facts()),
            "device": DeviceProfile(kind=HOST, name=name, capability=(target, *features)),
        }
    )
    return EntryKey(text, digest(text))


def unit_name(group: HostCode) -> str:
    """What listings of the cache and reports call a group."""
    return f"kernel.host.{group.name}"


def load_or_compile_host_code(
    group: HostCode, cache: OpenCache, *, strict: bool = False
) -> UnitResult:
    """Makes a group ready: from the cache, or compiled here and stored. One that is ready is stored where it lacks.

    While another process compiles it, this one waits, at most as long as the cache's configuration says. Where compiling is
    forbidden, code that has to be compiled is an `OfflineMissError`, as a unit is. With `strict`, code that cannot be stored
    is a `CacheUnusableError`.
    """
    began = time.perf_counter()
    key = host_code_key(group)
    first = lookup = _look(group, cache, key)
    if lookup.entry is None and cache.offline is not None and not group.is_ready:
        raise offline_miss([(unit_name(group), key, lookup)], cache.offline)
    while lookup.entry is None:
        late = time.perf_counter() - began > cache.config.lock_wait_seconds
        with cache.locks.try_lock(key) as free:
            if free or late:
                # Whoever held the lock before may have stored it in the meantime.
                lookup = _look(group, cache, key)
                if lookup.entry is None:
                    return _compiled(group, cache, key, first, strict, began)
                break
        time.sleep(_LOCK_POLL_S)
        lookup = _look(group, cache, key)
    saved = float(lookup.entry.metadata["compile_seconds"])
    return unit_result(unit_name(group), lookup.entry, lookup, began, compiled=False, saved=saved)


def keeper_in(cache: OpenCache) -> Keeper:
    """What makes groups ready from a cache, for `keep_host_code`."""

    def keep(group: HostCode) -> None:
        load_or_compile_host_code(group, cache)

    return keep


def keep_host_code_in(cache: OpenCache) -> None:
    """Groups that this process needs later are kept in `cache` too, unless somebody keeps them already."""
    if nobody_keeps():
        keep_host_code(keeper_in(cache))


def _look(group: HostCode, cache: OpenCache, key: EntryKey) -> Lookup:
    lookup = cache.store.get(key)
    if lookup.entry is None:
        return lookup
    try:
        group.load(lookup.entry.payload, float(lookup.entry.metadata["compile_seconds"]))
    except KernelError as error:
        reason = error.problems[0].found
        set_aside(cache.store, key, reason)
        return Lookup(outcome=Outcome.STALE, reason=reason)
    return lookup


def _compiled(
    group: HostCode, cache: OpenCache, key: EntryKey, first: Lookup, strict: bool, began: float
) -> UnitResult:
    fresh = not group.is_ready
    group.compile()
    entry = Entry(
        key=key,
        metadata={
            "unit": unit_name(group),
            "device": "cpu",
            "compile_seconds": group.compile_seconds,
            "provenance": {"numba": str(compiler_facts()["numba"])},
        },
        payload=group.code(),
    )
    stored = cache.store.put(entry)
    if strict and stored.failed:
        raise unusable_store(stored.reason)
    result = unit_result(
        unit_name(group), entry, first, began, compiled=fresh, saved=0.0, stored=stored
    )
    # Names of symbols count up in each process, so two compiles of the same code differ in them: no finding.
    return attrs.evolve(result, differs=False)


def warm_ngram_code(cache: OpenCache, *, strict: bool = False) -> Sequence[UnitResult]:
    """The n-gram index made ready, and what became of it; nothing without numba: drafting then runs in plain Python."""
    if importlib.util.find_spec("numba") is None:
        return ()
    from graphspec.kernels.ngram_compiled import CODE

    return (load_or_compile_host_code(CODE, cache, strict=strict),)
