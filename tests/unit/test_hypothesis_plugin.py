"""``st.from_type`` knows every config class, and nothing of graphspec loads before one is asked for."""

import typing

import attrs
import pytest
from hypothesis import Phase, given, settings
from hypothesis import find as search
from hypothesis import strategies as st
from hypothesis.strategies._internal import types

from graphspec.config.engine import EngineConfig
from graphspec.config.schedule import KSchedule
from graphspec.config.structure import structure, unstructure
from graphspec.fields import Stage, config_class, keyed
from graphspec.keys.inventory import config_classes
from graphspec.resolve.spec import EngineSpec, SpeculativeSpec
from graphspec.speculators.registry import known_methods, speculator_config_class
from graphspec.testing import hypothesis_plugin
from support.processes import run_python

for _method in known_methods():
    speculator_config_class(_method)
CLASSES = sorted(
    (
        c
        for c in config_classes([EngineConfig, EngineSpec])
        if c.__module__.startswith("graphspec.")
    ),
    key=lambda cls: cls.__qualname__,
)


def find(strategy, condition):
    """The first example that meets the condition, as it comes."""
    once = settings(max_examples=2000, phases=[Phase.generate], database=None)
    return search(strategy, condition, settings=once)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_from_type_makes_objects_of_every_config_class(cls):
    """Found by reflection: sections, contracts, schedules, methods."""
    assert type(find(st.from_type(cls), lambda _: True)) is cls


@given(config=...)
@settings(max_examples=20)
def test_given_fills_in_configs_by_annotation(config: EngineConfig):
    """What it makes is valid: it survives the way through plain data."""
    assert structure(unstructure(config), EngineConfig) == config


@given(st.from_type(EngineSpec))
@settings(max_examples=20)
def test_contracts_come_from_resolution(spec):
    """Every spec has keys, and its schedule fits its requests."""
    assert len({spec.compute_hash(stage) for stage in Stage}) == 2
    assert spec.schedule.max_num_seqs == spec.scheduler.max_num_seqs


def test_contracts_of_many_methods_occur():
    """The small models that the strategy has drafts for."""
    seen = set()

    def all_seen(section):
        seen.add(section.method)
        return seen >= {"ngram", "eagle", "eagle3", "draft_model", "dflash", "dspark", "suffix"}

    find(st.from_type(SpeculativeSpec), all_seen)


def test_a_class_of_one_s_own_works_too():
    """A config class that graphspec never heard of, and one inside another type."""

    @config_class
    class Own:
        """A section of an engine."""

        width: int = keyed(Stage.COMPILE, minimum=3, maximum=4, doc="Width.")

    assert find(st.from_type(Own), lambda _: True).width in (3, 4)
    assert find(st.from_type(list[Own]), lambda found: len(found) == 2)[1].width in (3, 4)
    optional = find(st.from_type(typing.Optional[KSchedule]), lambda found: found is not None)  # noqa: UP045
    assert isinstance(optional, KSchedule)


def test_other_types_are_left_alone():
    """Classes of attrs and plain ones are Hypothesis's own business."""

    @attrs.frozen
    class Point:
        x: int

    assert hypothesis_plugin.strategy_for(Point) is None
    assert hypothesis_plugin.strategy_for(int) is None
    assert hypothesis_plugin.strategy_for("EngineConfig") is None
    assert isinstance(find(st.from_type(Point), lambda p: p.x > 1), Point)


def test_importing_hypothesis_loads_nothing_of_graphspec_but_the_hook():
    """Coverage and start-up of other projects are untouched; the first strategy loads the rest."""
    code = """
        import sys
        import hypothesis.strategies as st
        print(sorted(n for n in sys.modules if n.startswith("graphspec")), "attr" in sys.modules)
        from graphspec import EngineConfig
        print("graphspec.testing.strategies" in sys.modules)
        from hypothesis import find
        print(type(find(st.from_type(EngineConfig), lambda _: True)) is EngineConfig)
        """
    names = ["graphspec", "graphspec.testing", "graphspec.testing.hypothesis_plugin"]
    assert run_python(code).splitlines() == [f"{names} False", "False", "True"]


def test_without_the_hook_each_class_is_registered(monkeypatch):
    """Another Hypothesis may lack what its own extras use; then the public way serves graphspec's own classes."""
    monkeypatch.delattr(types, "_global_extra_lookup")
    monkeypatch.setattr(types, "_global_type_lookup", dict(types._global_type_lookup))
    hypothesis_plugin.register()
    assert set(CLASSES) <= set(types._global_type_lookup)
    monkeypatch.undo()
    assert all(cls not in types._global_type_lookup for cls in CLASSES)


@pytest.mark.parametrize("cls", [EngineConfig, KSchedule])
def test_objects_differ(cls):
    """It is not one object over and over."""
    found = set()
    find(st.from_type(cls), lambda made: found.add(made) or len(found) > 5)
