"""Entries that look like compiled units: the real keys, the real read sets if asked for, and no library."""

from collections.abc import Sequence
from pathlib import Path

from graphspec.cache.entry import Entry
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.load import Keyed, first_of_each_key, keyed_units
from graphspec.cache.units import CompileUnit
from graphspec.resolve.spec import EngineSpec

NO_LIBRARY = b"no library"
"""What is stored in place of a compiled unit."""


def store_units(
    folder: Path, units: Sequence[CompileUnit], spec: EngineSpec, reads: Sequence[str] | None = None
) -> Sequence[Keyed]:
    """Stores an entry for each unit, one for equal ones. `reads` is the read set of all; None: that of a real trace."""
    store, keyed = DiskStore(str(folder)), keyed_units(units, spec)
    for one in first_of_each_key(keyed).values():
        metadata = {
            "unit": one.unit.name,
            "device": spec.device.target.value,
            "reads": list(traced_reads(one.unit, spec) if reads is None else reads),
            "compile_seconds": 1.0,
        }
        assert store.put(Entry(key=one.key, metadata=metadata, payload=NO_LIBRARY)).written
    return keyed


def traced_reads(unit: CompileUnit, spec: EngineSpec) -> Sequence[str]:
    """The fields that a trace of the unit reads."""
    from graphspec.cache.compiling.trace import trace

    return trace(unit, spec, spec.device.target.value).reads
