"""Keys over generated configs and contracts: equal ones share a key, and one changed field moves exactly its keys.

The classes are found by reflection, so a new section or method joins by itself. tests/fault/test_f29_every_field.py has
the deterministic form of the same promise.
"""

import copy
import pickle

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from graphspec.config.engine import EngineConfig
from graphspec.config.schedule import KSchedule
from graphspec.config.structure import structure, unstructure
from graphspec.errors import SpecError
from graphspec.fields import Stage, evolve, is_config_class, policies
from graphspec.frozen import FrozenMap
from graphspec.keys.encoding import decode, encode_decoded
from graphspec.keys.factors import compute_hash, factor_tree, flatten, key_text
from graphspec.keys.golden import golden_of
from graphspec.keys.inventory import config_classes
from graphspec.resolve.spec import EngineSpec, SpeculativeSpec
from graphspec.speculators.registry import known_methods, speculator_config_class
from graphspec.testing.spec_strategies import spec_pairs, specs
from graphspec.testing.strategies import engine_configs, hash_pairs
from support.peer_cases import folder

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
RESOLVED = (EngineSpec, SpeculativeSpec)
"""Classes whose objects come from resolution; `spec_pairs` changes every field of them and of all sections inside."""

few = settings(max_examples=max(10, settings().max_examples // 4))
LLAMA = {name: folder(f"{name}-head") for name in ("eagle", "eagle3")}
TARGETS = {
    "target-llama": {**LLAMA, "draft_model": folder("draft-llama")},
    "target-deepseek-n1": {"mtp": folder("mtp-deepseek-n1")},
    "target-deepseek-n2": {"mtp": folder("mtp-deepseek-n2")},
    "target-qwen3": {"dflash": folder("dflash-qwen3"), "dspark": folder("dspark-qwen3")},
}


@st.composite
def peer_specs(draw):
    """Contracts of any method for one of the small checkpoints."""
    target = draw(st.sampled_from(sorted(TARGETS)))
    return draw(specs(engine_configs(folder(target), TARGETS[target])))


def moved(pair, stage):
    """Whether the keys of `stage` tell the two apart. Where a method bakes k in, it adds k to the COMPILE key."""
    drafting = getattr(pair.one, "speculative", None)
    if pair.path == "speculative.num_speculative_tokens" and isinstance(drafting, SpeculativeSpec):
        return stage is Stage.CAPTURE or drafting.speculator.bakes_k_into_graphs
    return stage.covers(pair.stage)


def check(pair):
    """Exactly the keys that the changed field is declared for differ, and they name that field."""
    for stage in Stage:
        differs = compute_hash(pair.one, stage) != compute_hash(pair.other, stage)
        assert differs is moved(pair, stage), (pair.path, stage)
        leaves = [dict(flatten(factor_tree(side, stage))) for side in (pair.one, pair.other)]
        changed = {p for p in leaves[0].keys() | leaves[1].keys() if is_other(*leaves, p)}
        assert all(p == pair.path or p.startswith(f"{pair.path}.") for p in changed)


def is_other(one, other, path):
    missing = object()
    return one.get(path, missing) != other.get(path, missing)


@pytest.mark.parametrize(
    "cls",
    [c for c in CLASSES if policies(c) and c not in RESOLVED],
    ids=lambda cls: cls.__name__,
)
@few
@given(data=st.data())
def test_one_changed_field_moves_its_keys_and_no_other(cls, data):
    """For every class: COMPILE fields move both keys, CAPTURE fields one, unkeyed fields none."""
    try:
        pair = data.draw(hash_pairs(cls))
    except SpecError:
        reject()  # rules of a method's class span its fields
    check(pair)


@given(spec_pairs(peer_specs()))
def test_one_changed_field_of_a_contract_moves_its_keys_and_no_other(pair):
    """The same for what configs resolve to, at any depth, for every method."""
    check(pair)


def same(value):
    """An equal value, made of other objects."""
    if is_config_class(type(value)):
        return evolve(value, **{name: same(getattr(value, name)) for name in policies(type(value))})
    if isinstance(value, FrozenMap):
        return FrozenMap({k: same(v) for k, v in reversed(list(value.items()))})
    if isinstance(value, tuple):
        return tuple(map(same, value))
    return copy.deepcopy(value)


@given(peer_specs())
def test_equal_contracts_have_equal_keys(spec):
    """Rebuilt of new objects in another order, copied, pickled: no identity and no order reaches a key."""
    for other in (same(spec), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
        assert other == spec
        assert all(key_text(other, stage) == key_text(spec, stage) for stage in Stage)


@few
@given(st.from_type(EngineConfig), st.randoms())
def test_equal_configs_have_equal_keys(config, random):
    """Plain data in any order of its keys gives the same."""
    other = structure(shuffled(unstructure(config), random), EngineConfig)
    assert other == config
    assert all(key_text(other, stage) == key_text(config, stage) for stage in Stage)


def shuffled(data, random):
    """Plain data whose mappings are filled in another order."""
    if isinstance(data, list):
        return [shuffled(item, random) for item in data]
    if not isinstance(data, dict):
        return data
    names = list(data)
    random.shuffle(names)
    return {name: shuffled(data[name], random) for name in names}


@few
@given(peer_specs(), peer_specs())
def test_contracts_share_a_key_only_when_no_keyed_factor_differs(one, other):
    """Equal hash if and only if equal factors with equal classes: the golden text is a faithful picture of the key."""
    for stage, golden in golden_of(one).keys.items():
        twin = golden_of(other).keys[stage]
        assert (golden.hash == twin.hash) == (golden.text == twin.text)


@few
@given(peer_specs())
def test_a_key_text_reads_back_as_its_factors(spec):
    """What a stored entry keeps is the whole tree, with epoch and stage, and nothing of a location."""
    for stage in Stage:
        text = spec.key_text(stage)
        read = decode(text)
        assert encode_decoded(read) == text
        assert read["stage"] == stage.value
        assert (
            dict(flatten(read["factors"])).keys() == dict(flatten(factor_tree(spec, stage))).keys()
        )
        assert b"/peer-cases/" not in text


@few
@given(peer_specs())
def test_the_capture_key_covers_the_compile_key(spec):
    """Every COMPILE factor of a field is a CAPTURE factor too, with the same value."""
    compiled, captured = (dict(flatten(factor_tree(spec, stage))) for stage in Stage)
    assert compiled.items() <= captured.items()


def test_the_classes_that_have_no_pairs_are_the_ones_without_fields():
    """Reflection left out nothing else."""
    assert {c for c in CLASSES if not policies(c)} <= {
        c for c in CLASSES if c.__module__.startswith("graphspec.speculators.")
    }
    assert KSchedule in CLASSES
    assert len(CLASSES) > 30
