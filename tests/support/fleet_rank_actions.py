"""What ranks do in tests of a fleet's start: a gloo group of two, on the toy program, whose entries a tier holds.

Run as a module with a config file, the folder of the tier, a folder to meet in and the size of the group. Nothing is
compiled: what is loaded of an entry is its unit's own function.
"""

import os
import sys
from typing import Any

import graphspec
from graphspec.cache import load
from graphspec.cache.entry import Entry
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.load import keyed_units
from graphspec.cache.loading import artifact
from graphspec.cache.opened import open_cache
from graphspec.capture.program import load_program
from graphspec.capture.ranks import Ranks
from graphspec.errors import CaptureError
from graphspec.fleet.start import agree_on_keys, fetch_together, start_together
from support import fake_compiler
from support.after_ready import plain
from support.rank_actions import answer

CONFIG, TIER = sys.argv[1:3]
NO_TIER = "file:///nowhere/that/is/there"


def spec_of(ranks: Ranks, *settings: str) -> Any:
    """Rank 0 knows the tier; the others would find nothing in theirs."""
    remote = f"file://{TIER}" if ranks.rank == 0 else NO_TIER
    return graphspec.load(CONFIG, [*settings, f"cache.remote=[{remote}]"])


def folder_of(ranks: Ranks, name: str) -> str:
    return f"{os.path.dirname(TIER)}/{name}-{ranks.rank}"


def keyed_of(spec: Any) -> Any:
    return keyed_units(load_program(spec).units(), spec)


def fill_tier() -> None:
    """Stores both units in the tier, and puts stand-ins for compiling and loading in place in all ranks."""
    spec = graphspec.load(CONFIG, [f"cache.remote=[file://{TIER}]"])
    units = {unit.name: unit for unit in load_program(spec).units()}
    fake_compiler.install(lambda unit: b"library")

    def loaded(entry: Entry, *, single_threaded: bool) -> Any:
        return plain(units[entry.metadata["unit"]], spec)

    artifact.load_artifact = loaded
    cache = open_cache(spec.cache, f"{os.path.dirname(TIER)}/builder")
    _, results = load.load_or_compile(list(units.values()), spec, cache.store, cache.locks)
    assert not any(result.store_problem for result in results), results


def differing(ranks: Ranks) -> Any:
    """Rank 1 has a variable that changes code, and another number in a field that one unit reads."""
    settings = []
    if ranks.rank == 1:
        os.environ["TORCHINDUCTOR_FREEZING"] = "1"
        settings.append("model.hf_overrides={rms_norm_eps: 0.5}")
    try:
        agree_on_keys(ranks, keyed_of(spec_of(ranks, *settings)))
    except CaptureError as error:
        return [[p.where, p.found, p.wanted] for p in error.problems]
    finally:
        os.environ.pop("TORCHINDUCTOR_FREEZING", None)
    return []


def fetching(ranks: Ranks) -> Any:
    """Nobody has anything, and rank 0 reads the tier; then rank 1 has all, and there is nothing to do."""
    spec = spec_of(ranks)
    keys = [one.key for one in keyed_of(spec)]
    cache = open_cache(spec.cache, folder_of(ranks, "fetched"))
    first = fetch_together(ranks, keys, cache)
    stored = [DiskStore(cache.root).look(key).outcome.value for key in keys]
    again = fetch_together(ranks, keys, cache)
    return [first.asked, first.received, dict(first.problems), stored, again.asked]


def refused(ranks: Ranks) -> Any:
    """The folder of rank 1 takes nothing: a file is where a folder should be."""
    spec, folder = spec_of(ranks), folder_of(ranks, "refusing")
    if ranks.rank == 1:
        os.makedirs(folder, mode=0o700)
        with open(f"{folder}/entries", "wb"):
            pass
    keys = [one.key for one in keyed_of(spec)]
    return len(fetch_together(ranks, keys, open_cache(spec.cache, folder)).problems)


def starting(ranks: Ranks) -> Any:
    """A whole start. Whoever compiles fails."""

    def no_compiler(run: Any) -> Any:
        raise AssertionError("compiled")

    load.CompileRun._compiler = no_compiler
    ready = start_together(spec_of(ranks), ranks, cache_dir=folder_of(ranks, "started"))
    report = ready.report.as_dict()
    return [report["compiled"], report["loaded"], sorted(map(str, ready.manager.captured))]


CASES = {case.__name__: case for case in (differing, fetching, refused, starting)}

if __name__ == "__main__":
    fill_tier()
    answer(CASES, *sys.argv[3:])
