"""Units that differ in nothing but the name are one: compiled, stored, loaded and counted once (see B56)."""

import functools

import attrs
import pytest

from graphspec.cache.bundle.exporter import entries_of
from graphspec.cache.explain import explain
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.locks import KeyLocks, NoLocks
from graphspec.cache.load import keyed_units, load_or_compile, outcome_counts
from graphspec.cache.recompile import recompile
from graphspec.cache.store import DisabledStore, Outcome
from graphspec.capture.preview import preview
from graphspec.cli.tables import done_with
from graphspec.config.engine import EngineConfig
from support import fake_compiler, sized, toy
from support.stored import NO_LIBRARY, store_units

LAYERS = [f"layer {at}" for at in range(sized.LAYERS)]


@pytest.fixture
def root(tmp_path):
    """A cache folder that is not there yet."""
    return tmp_path / "cache"


class Layer:
    """A layer as an object, whose method builds its unit."""

    def __init__(self, depth):
        self.depth = depth

    def build(self, spec):
        return lambda x: x * self.depth


def layer_units(*builds):
    """A unit for each build function, and what is compiled of them."""
    return [sized.scale_unit(f"layer {at}", build, 2) for at, build in enumerate(builds)]


ONE, OTHER = Layer(1), Layer(2)
ALIKE = {
    "methods of two objects": ([ONE.build, OTHER.build], 2),
    "a method of one object": ([ONE.build, ONE.build], 1),
    "partials of one function": ([functools.partial(toy.build_scale) for _ in range(2)], 2),
    "one partial": ([functools.partial(toy.build_scale)] * 2, 1),
}


@pytest.mark.parametrize(("builds", "compiles"), ALIKE.values(), ids=ALIKE)
def test_only_the_very_same_function_makes_units_equal(
    tiny_spec, root, monkeypatch, builds, compiles
):
    """An object may hold what no key has, so functions that only look alike have entries of their own."""
    compiled = []
    fake_compiler.install(
        lambda unit: compiled.append(unit.name) or b"%d" % len(compiled), monkeypatch.setattr
    )
    artifacts, results = load_or_compile(
        layer_units(*builds), tiny_spec, DiskStore(str(root)), KeyLocks(str(root))
    )
    assert len(compiled) == len(set(artifacts.values())) == compiles
    assert [done_with(r) for r in results][1] == (
        "compiled" if compiles == 2 else "same as layer 0"
    )


def test_units_that_differ_in_anything_but_the_name_are_not_equal(tiny_spec):
    """Scope, modules, inputs, variables: each makes another unit of the same function, with a key of its own."""
    (unit,) = layer_units(toy.build_scale)
    (row,) = unit.inputs
    changes = [
        {"scope": attrs.evolve(unit.scope, paths=("model.hidden_size",))},
        {"modules": ("support.toy",)},
        {"inputs": (attrs.evolve(row, shape=(3, toy.WIDTH)),)},
        {"inputs": (attrs.evolve(row, dtype="float64"),)},
        {"environment": ("SOME_SWITCH",)},
    ]
    others = [attrs.evolve(unit, name=f"other {at}", **c) for at, c in enumerate(changes)]
    keyed = keyed_units([unit, attrs.evolve(unit, name="equal"), *others], tiny_spec)
    assert keyed[0].key == keyed[1].key
    assert len({k.key for k in keyed}) == 1 + len(others)


def test_without_a_cache_equal_layers_are_compiled_once_too(tiny_spec, monkeypatch):
    """They share what is in memory; what could not be stored is told once, and each compile is one lookup."""
    fake_compiler.install(lambda unit: unit.name.encode(), monkeypatch.setattr)
    units = sized.layered(tiny_spec).units()
    told = []
    artifacts, results = load_or_compile(
        units,
        tiny_spec,
        DisabledStore("off", problem=True),
        NoLocks(),
        jobs=4,
        listener=told.append,
    )
    assert [artifacts[name] for name in LAYERS] == [b"layer 0"] * sized.LAYERS
    assert sum(r.compiled for r in results) == 3
    assert [r.name for r in results if r.store_problem] == ["first", "layer 0", "last"]
    assert outcome_counts(results) == {"disabled": 3}
    assert sorted(r.name for r in told) == sorted(u.name for u in units)


def test_every_command_counts_equal_layers_once(tiny_config, root, monkeypatch):
    """A preview, an explanation, a bundle and a recompile of one layer by its name all mean the one entry."""
    spec = EngineConfig.from_dict(tiny_config(program="support.sized:layered")).resolve()
    units, store = sized.layered(spec).units(), DiskStore(str(root))
    seen = preview(spec, cache_dir=str(root))
    assert (seen.missing, seen.present, len(seen.units)) == (3, 0, 34)
    store_units(root, units, spec, reads=())
    seen = preview(spec, cache_dir=str(root)).as_dict()
    assert (seen["would_compile"], seen["would_load"]) == (0, 3)
    found = explain(units, spec, cache_dir=str(root)).units
    assert [(u.unit, u.outcome) for u in found] == [
        (name, Outcome.HIT) for name in ("first", "layer 0", "last")
    ]
    candidates, missing = entries_of(keyed_units(units, spec), store)
    assert (len({c.digest for c in candidates}), len(candidates), missing) == (3, 3, [])
    monkeypatch.setattr("graphspec.cache.recompile._compiled", lambda keyed, spec: NO_LIBRARY)
    assert [r.equal for r in recompile(units, spec, store)] == [True] * 3
    assert [r.equal for r in recompile(units, spec, store, names=["layer 7", "layer 8"])] == [True]
