"""`FleetPlan`: each unit that some variant of a matrix needs, once, and whether it is stored or has to be compiled."""

import statistics
from collections.abc import Mapping, Sequence

import attrs

from graphspec.cache.folder.glance import glance
from graphspec.cache.folder.listing import SUFFIX, entry_paths
from graphspec.cache.load import first_of_each_key, keyed_units
from graphspec.cache.units import EntryKey
from graphspec.capture.program import load_program
from graphspec.config.cache import CacheConfig
from graphspec.errors import EnvironmentProblem, Problem, SpecError
from graphspec.fleet.matrix import Variant
from graphspec.fleet.places import Place, Places
from graphspec.fleet.task import Resources, Task, resources_of

DEFAULT_SECONDS = 20.0
"""Expected of a unit that no stored entry tells anything about. It only orders: all such units are equal."""


@attrs.frozen(kw_only=True)
class Job:
    """One key. `wanted_by` are the labels of the variants that need it; `expected_from` says where the seconds are from.

    `place` is where the entry is before the run.
    """

    key: EntryKey
    unit: str
    wanted_by: tuple[str, ...]
    place: Place
    task: Task = attrs.field(repr=False)
    expected_from: str

    @property
    def expected_seconds(self) -> float:
        """What its compile is expected to take."""
        return self.task.expected_seconds


@attrs.frozen(kw_only=True)
class FleetPlan:
    """Every job, the longest expected first. `units` counts the units of all variants, before equal keys were found."""

    variants: tuple[str, ...]
    units: int
    jobs: tuple[Job, ...]
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> Sequence[Job]:
        """What has to be compiled."""
        return [job for job in self.jobs if job.place is Place.NOWHERE]


def plan_fleet(
    variants: Sequence[Variant], *, cache_dir: str | None = None, memory_bytes: int = 0
) -> FleetPlan:
    """The plan for the variants. Looks into the cache folder and its remote tiers; nothing is compiled or written.

    `memory_bytes` is what each task is said to take. Raises what a program raises for a spec, for all variants at once,
    and `SpecError` for variants that keep entries in different places.
    """
    _check_one_cache(variants)
    places: dict[CacheConfig, Places] = {}
    jobs: dict[EntryKey, Job] = {}
    units = 0
    problems: list[Problem] = []
    raised: type[SpecError | EnvironmentProblem] = EnvironmentProblem
    for variant in variants:
        spec = variant.spec
        if spec.cache not in places:
            places[spec.cache] = Places(spec.cache, cache_dir)
        try:
            keyed = keyed_units(load_program(spec).units(), spec)
        except (SpecError, EnvironmentProblem) as error:
            raised = SpecError if isinstance(error, SpecError) else raised
            problems += (
                attrs.evolve(p, where=f"{variant.label}: {p.where}") for p in error.problems
            )
            continue
        units += len(keyed)
        for key, first in first_of_each_key(keyed).items():
            if key in jobs:
                wanted = (*jobs[key].wanted_by, variant.label)
                jobs[key] = attrs.evolve(jobs[key], wanted_by=wanted)
                continue
            jobs[key] = Job(
                key=key,
                unit=first.unit.name,
                wanted_by=(variant.label,),
                place=places[spec.cache].find(key)[0],
                expected_from="",
                task=Task(
                    spec=spec,
                    unit=first.unit.name,
                    key=key,
                    expected_seconds=DEFAULT_SECONDS,
                    resources=resources_of(spec, memory_bytes),
                    cache_dir=cache_dir,
                ),
            )
    if problems:
        raise raised(problems)
    caches = [place.cache for place in places.values()]
    folders = dict.fromkeys(cache.root for cache in caches)
    missing = any(job.place is Place.NOWHERE for job in jobs.values())
    expected = _stored_seconds(list(folders)) if missing else {}
    ordered = sorted(
        (_expecting(job, expected) for job in jobs.values()),
        key=lambda job: (-job.expected_seconds, job.unit, job.key.digest),
    )
    notes = dict.fromkeys(cache.note for cache in caches if cache.note)
    return FleetPlan(
        variants=tuple(v.label for v in variants),
        units=units,
        jobs=tuple(ordered),
        notes=tuple(notes),
    )


def _check_one_cache(variants: Sequence[Variant]) -> None:
    """A unit that two variants share is stored once: where their caches differ, one of them would not find it."""
    # No values: an address may hold a password.
    problems = [
        Problem(
            where=f"{variant.label}: cache.{name}",
            found="another value than in the first variant",
            wanted="one value for the whole matrix, as a unit that variants share is stored once",
            hint=f"give it with --set cache.{name}=..., or run once for each",
        )
        for variant in variants[1:]
        for name in _PLACES
        if getattr(variant.spec.cache, name) != getattr(variants[0].spec.cache, name)
    ]
    if problems:
        raise SpecError(problems)


_PLACES = ("enabled", "remote", "trust", "signing_key")
"""What decides where an entry is stored, and who may load it. Limits and waits may differ."""


def _stored_seconds(folders: Sequence[str]) -> Mapping[str, float]:
    """The median of what stored entries took to compile, by name of the unit."""
    taken: dict[str, list[float]] = {}
    for folder in folders:
        for path in entry_paths(folder):
            seen = glance(path) if path.endswith(SUFFIX) else None
            if seen is not None and seen.unit is not None and seen.compile_seconds:
                taken.setdefault(seen.unit, []).append(seen.compile_seconds)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def _expecting(job: Job, stored: Mapping[str, float]) -> Job:
    if job.unit in stored:
        seconds, source = stored[job.unit], "stored entries of this unit"
    elif stored:
        # Not the default: it would stand before or behind all that is known by chance.
        seconds, source = statistics.median(stored.values()), "stored entries of other units"
    else:
        seconds, source = DEFAULT_SECONDS, "no entry is stored"
    task = attrs.evolve(job.task, expected_seconds=seconds)
    return attrs.evolve(job, task=task, expected_from=source)


def unplaced(resources: Resources, reason: str, names: Sequence[str]) -> EnvironmentProblem:
    """The error for units that no worker could ever take."""
    return EnvironmentProblem(
        Problem(
            where=f"units {', '.join(names)}",
            found=reason,
            wanted=f"a worker with {resources.cpus} CPUs, {resources.gpus} GPUs and {resources.memory_bytes} bytes of memory",
            hint="choose another --executor or --address, or state less with --memory",
        )
    )
