"""A preview of a warmup: the plan, and which units the cache holds. Nothing is compiled, captured or written."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from graphspec.cache.load import keyed_units
from graphspec.cache.opened import open_cache
from graphspec.capture.left_out import left_out_of
from graphspec.capture.plan import CapturePlan, plan_capture
from graphspec.capture.plan_report import graph_as_dict
from graphspec.capture.program import captures_of, load_program
from graphspec.capture.report import Decisions
from graphspec.capture.sizes import Buckets
from graphspec.fields import Stage
from graphspec.resolve.spec import EngineSpec


@attrs.frozen(kw_only=True)
class UnitPreview:
    """One unit: whether its entry is there, and why not."""

    name: str
    key: str
    stored: bool
    reason: str


@attrs.frozen(kw_only=True)
class Preview:
    """What a warmup would do."""

    spec_hash: str
    capture_hash: str
    decisions: Decisions
    units: Sequence[UnitPreview]
    plan: CapturePlan

    @property
    def missing(self) -> int:
        """Units that would be compiled. Those of one key are compiled once."""
        return len({u.key for u in self.units if not u.stored})

    @property
    def present(self) -> int:
        """Units that would be loaded, counted in the same way."""
        return len({u.key for u in self.units if u.stored})

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data: what ``warmup --dry-run --json`` prints."""
        return {
            "spec_hash": self.spec_hash,
            "capture_hash": self.capture_hash,
            **self.decisions.as_dict(),
            "notes": [str(note) for note in self.decisions.notes],
            "units": [
                {"name": u.name, "key": u.key, "stored": u.stored, "reason": u.reason}
                for u in self.units
            ],
            "graphs": {
                "planned": [graph_as_dict(key) for key in self.plan.keys],
                "reachable": len(self.plan.reachable()),
                "fallthrough": list(self.plan.fallthrough()),
                "left_out": [part.as_dict() for part in left_out_of(self.plan)],
            },
            "would_compile": self.missing,
            "would_load": self.present,
        }


def preview(
    spec: EngineSpec, *, cache_dir: str | None = None, buckets: Buckets | None = None
) -> Preview:
    """The preview for a spec, a cache folder, and buckets in place of the ladder's."""
    cache = open_cache(spec.cache, cache_dir)
    program = load_program(spec)
    listed = program.units()
    units = []
    for keyed in keyed_units(listed, spec):
        found = cache.look(keyed.key)
        units.append(
            UnitPreview(
                name=keyed.unit.name,
                key=keyed.key.digest,
                stored=found.entry is not None,
                reason=found.reason,
            )
        )
    return Preview(
        spec_hash=spec.compute_hash(Stage.COMPILE),
        capture_hash=spec.compute_hash(Stage.CAPTURE),
        decisions=Decisions.of(spec, listed),
        units=units,
        plan=plan_capture(spec, captures=captures_of(program), buckets=buckets),
    )
