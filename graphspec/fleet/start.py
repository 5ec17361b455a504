"""The start of an engine of many ranks: one set of keys, one reader of the remote tiers, one set of graphs."""

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from graphspec.cache.entry import EntryCorruptError, pack, unpack
from graphspec.cache.load import Keyed, first_of_each_key, keyed_units
from graphspec.cache.opened import OpenCache, open_cache
from graphspec.cache.units import EntryKey
from graphspec.capture.agreement import agree_on
from graphspec.capture.program import load_program
from graphspec.capture.ranks import Ranks
from graphspec.capture.warmup import Ready, make_ready
from graphspec.errors import CaptureError, Problem
from graphspec.fields import evolve
from graphspec.fleet.facts import facts_of_keys
from graphspec.resolve.spec import EngineSpec

_LACKS, _HAS = b"\1", b"\0"


def start_together(
    spec: EngineSpec,
    ranks: Ranks,
    *,
    cache_dir: str | None = None,
    one_reader: bool = True,
    **options: Any,
) -> Ready:
    """`make_ready` for an engine of many ranks. Every rank calls it.

    Before anything is compiled, the ranks agree on the keys of all units. With `one_reader`, rank 0 alone reads the
    remote tiers, and gives the others what their folders lack. Then each warms as usual, and all agree on the captured
    graphs. `options` are those of `make_ready`. Raises `CaptureError` where the ranks differ, naming the field, the ranks
    and their hosts.
    """
    keyed = keyed_units(load_program(spec).units(), spec)
    agree_on_keys(ranks, keyed)
    if one_reader and spec.cache.remote:
        fetch_together(ranks, list(first_of_each_key(keyed)), open_cache(spec.cache, cache_dir))
        if ranks.rank != 0:
            # What rank 0 did not find, the others do not ask for again.
            spec = evolve(spec, cache=evolve(spec.cache, remote=()))
    return make_ready(spec, cache_dir=cache_dir, ranks=ranks, **options)


def agree_on_keys(ranks: Ranks, keyed: Sequence[Keyed]) -> None:
    """Raises `CaptureError` unless every rank has the same keys. Each factor that differs is a problem, which names the
    ranks that differ from rank 0 in it; the last problem tells which host each rank is on."""
    try:
        agree_on(ranks, facts_of_keys(keyed))
    except CaptureError as error:
        # All ranks are here: what each of them gathered was the same.
        hosts = [host.decode() for host in ranks.gather(platform.node().encode())]
        raise CaptureError([*error.problems, _who(hosts)]) from None


def _who(hosts: Sequence[str]) -> Problem:
    return Problem(
        where="hosts",
        found=", ".join(f"rank {rank} on {host}" for rank, host in enumerate(hosts)),
        wanted="one config, toolchain and kind of device on all of them",
        hint="graphspec doctor --json on each node, and graphspec doctor --fleet FILE... over the answers",
    )


@attrs.frozen(kw_only=True)
class Fetched:
    """What a common read of the remote tiers came to. `problems` are entries that this rank could not keep, by digest."""

    asked: int
    received: int
    problems: Mapping[str, str] = attrs.field(factory=dict)


def fetch_together(ranks: Ranks, keys: Sequence[EntryKey], cache: OpenCache) -> Fetched:
    """Rank 0 looks up what any rank's folder lacks, and all others store it. Every rank calls it with the same keys.

    A rank that cannot store an entry goes on without it, as when a folder is full.
    """
    lacking = [cache.look(key).entry is None for key in keys]
    mine = b"".join(_LACKS if lacks else _HAS for lacks in lacking)
    by_rank = ranks.gather(mine)
    wanted = [at for at in range(len(keys)) if any(r[at : at + 1] == _LACKS for r in by_rank)]
    received = 0
    problems: dict[str, str] = {}
    for at in wanted:
        data = ranks.broadcast(_packed(cache, keys[at]) if ranks.rank == 0 else b"")
        if ranks.rank == 0 or not data or not lacking[at]:
            continue
        reason = _keep(cache, keys[at], data)
        if reason:
            problems[keys[at].digest] = reason
        else:
            received += 1
    return Fetched(asked=len(wanted), received=received, problems=problems)


def _packed(cache: OpenCache, key: EntryKey) -> bytes:
    found = cache.store.get(key)
    return b"" if found.entry is None else pack(found.entry)


def _keep(cache: OpenCache, key: EntryKey, data: bytes) -> str:
    if cache.disk is None:
        return cache.problem or "the cache is switched off"
    try:
        entry = unpack(data)
    except EntryCorruptError as error:
        return str(error)
    if entry.key != key:
        return "it is the entry of another key"
    stored = cache.disk.put(entry)
    return stored.reason if stored.failed else ""
