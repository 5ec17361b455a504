"""Entries that look like compiled units: the real keys, the real read sets if asked for, and no library."""

from collections.abc import Sequence
from pathlib import Path

from graphspec.cache.disk import DiskStore
from graphspec.cache.entry import Entry
from graphspec.cache.load import Keyed, keyed_units
from graphspec.cache.units import CompileUnit
from graphspec.resolve.spec import EngineSpec


def store_units(
    folder: Path, units: Sequence[CompileUnit], spec: EngineSpec, reads: Sequence[str] | None = None
) -> Sequence[Keyed]:
    """Stores an entry for each unit. `reads` is the read set of all; None: that of a real trace."""
    store, keyed = DiskStore(str(folder)), keyed_units(units, spec)
    for one in keyed:
        metadata = {
            "unit": one.unit.name,
            "device": spec.device.target.value,
            "reads": list(traced_reads(one.unit, spec) if reads is None else reads),
            "compile_seconds": 1.0,
        }
        assert store.put(Entry(key=one.key, metadata=metadata, payload=b"no library")).written
    return keyed


def traced_reads(unit: CompileUnit, spec: EngineSpec) -> Sequence[str]:
    """The fields that a trace of the unit reads."""
    from graphspec.cache.trace import trace

    return trace(unit, spec, spec.device.target.value).reads
