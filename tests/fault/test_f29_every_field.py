"""F29: every field of every config class, found by reflection, changes exactly the keys that it is declared for.

tests/property/test_key_properties.py has the same promise over generated values.
"""

import contextlib
import enum
import importlib
import itertools
import pkgutil
import typing

import attrs
import pytest

import graphspec.config
import graphspec.resolve
import graphspec.speculators
from graphspec.annotations import alternatives, is_mapping
from graphspec.config.compilation import RunnerFacts
from graphspec.config.engine import EngineConfig
from graphspec.config.speculative import SpeculativeConfig
from graphspec.errors import SpecError
from graphspec.fields import Stage, field_types, is_config_class, policies
from graphspec.frozen import JsonValue
from graphspec.keys.factors import compute_hash
from graphspec.resolve.draft import DraftOverrides
from graphspec.resolve.records import Note
from graphspec.speculators.base import DraftModelSpeculatorConfig, SpeculatorConfig
from graphspec.speculators.registry import known_methods, speculator_config_class
from graphspec.speculators.vocabulary import VocabularyMap
from graphspec.testing import perturb
from support.keyed import key, unit
from support.speculative import CASES, engine, resolved_case

NO_OTHER_VALUE = {
    (SpeculativeConfig, "tensor_parallel_size"): "a trap: any value is refused",
}
"""Fields that cannot differ between two configs, each with the reason."""

EVERYTHING = {
    "kv_cache": {"connector": {"name": "c"}},
    "lora": {},
    "watermark": {"key": 7, "algorithm": "dual_key_gumbel"},
    "compilation": {"runner": {"full_graphs_per_k": True, "central_trimming": True}},
}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
ENGINES = [
    engine(None),
    engine({**NGRAM, "num_speculative_tokens_per_batch_size": [[1, 2, 2], [3, 4, 1]]}),
    engine({**CASES["eagle3"].section}, **EVERYTHING),
    # What one way of verifying reads can only change where that way is chosen.
    engine({"rejection_sample_method": "fly", "fly_window_size": 2, "fly_entropy_top_k": 2}),
    engine({"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5, 0.25]}),
    engine({"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}),
]
"""Plain data of configs that together set every section, and every field that depends on another one."""


def config_classes():
    """Every config class defined below config, speculators and resolve."""
    found = set()
    for package in (graphspec.config, graphspec.speculators, graphspec.resolve):
        for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            module = importlib.import_module(info.name)
            found |= {
                v for v in vars(module).values() if is_config_class(v) and v.__module__ == info.name
            }
    return found


def sections(whole):
    """`whole` and every config object inside it."""
    yield whole
    for name in policies(type(whole)):
        value = getattr(whole, name)
        if is_config_class(type(value)):
            yield from sections(value)


def made_instances():
    """Objects of every config class: parts of configs and of contracts of every method, and what stands in neither."""
    for data in ENGINES:
        yield from sections(EngineConfig.from_dict(data))
    for name in CASES:
        yield from sections(resolved_case(name))
    yield from sections(resolved_case("eagle3", **EVERYTHING))
    for method in known_methods():
        yield from (example for _, example in speculator_config_class(method).examples())
    yield from (SpeculatorConfig(), DraftModelSpeculatorConfig())
    yield RunnerFacts(full_graphs_per_k=True, central_trimming=False)
    yield VocabularyMap(draft_to_target=(1, 0), target_vocab_size=2)
    yield Note(code="code", text="text")


@pytest.fixture(scope="module")
def instances():
    """The same by class, each object once."""
    found = {}
    for section in made_instances():
        found.setdefault(type(section), []).append(section)
    return {
        cls: [s for i, s in enumerate(all_) if s not in all_[:i]] for cls, all_ in found.items()
    }


def samples(annotation, instances):
    """Some values that a field of this type can hold."""
    if annotation is type(None):
        return [None]
    if annotation in SCALARS:
        return SCALARS[annotation]
    if is_mapping(annotation):
        return [{"a": 1}, {}]
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return list(annotation)
    if typing.get_origin(annotation) is tuple:
        items = typing.get_args(annotation)
        if items[-1] is not Ellipsis:
            return [
                tuple(v)
                for v in itertools.islice(
                    itertools.product(*(samples(i, instances)[:2] for i in items)), 4
                )
            ]
        one = samples(items[0], instances)[:2]
        return [(), tuple(one[:1]), tuple(one[1:]), tuple(one)]
    return instances.get(annotation, OTHERS.get(annotation, []))


SCALARS = {
    bool: [False, True],
    int: [1, 2, 3, 64],
    float: [0.25, 0.5, 2.0],
    str: ["a", "b", "FLASH_ATTN", "TRITON_ATTN", "a.b:c", "d.e:f"],
    JsonValue: [1, "a", None],
}
OTHERS = {
    DraftOverrides: [DraftOverrides(method=m, target={}) for m in ("eagle", "eagle3")],
}
"""Values of classes that are no config classes and stand in unkeyed fields only."""


def near(value):
    """Values of the same kind close by, which rules between fields are the likeliest to accept."""
    if type(value) is int:
        return [value * 2, value + 1, value - 1]
    if type(value) is float:
        return [value * 2, value / 2]
    if isinstance(value, tuple):
        return [value[:-1], (*value, *value)]
    return []


def changed(section, name, instances):
    """Copies of `section` in which only the field `name` differs."""
    value, annotation = getattr(section, name), field_types(type(section))[name]
    for other in (
        *near(value),
        *(v for p in alternatives(annotation) for v in samples(p, instances)),
    ):
        if other == value and type(other) is type(value):
            continue
        try:
            made = attrs.evolve(section, **{name: other})
        except SpecError:
            continue
        if getattr(made, name) != value:
            yield made


def leaves(whole, path=(), chain=()):
    """The path of every field below `whole` that holds no section, with its owner's class and the policies along it."""
    for name, policy in policies(type(whole)).items():
        value = getattr(whole, name)
        below, along = (*path, name), (*chain, policy)
        if is_config_class(type(value)):
            yield from leaves(value, below, along)
        if not is_config_class(type(value)) or type(value) is not field_types(type(whole))[name]:
            yield below, type(whole), along


def changed_below(whole, path, instances):
    """Copies of `whole` in which only the field at `path` differs."""
    if len(path) == 1:
        yield from changed(whole, path[0], instances)
        return
    for inner in changed_below(getattr(whole, path[0]), path[1:], instances):
        yield attrs.evolve(whole, **{path[0]: inner})


FIELDS = sorted(
    ((cls, name) for cls in config_classes() for name in policies(cls)),
    key=lambda pair: (pair[0].__name__, pair[1]),
)


def test_F29_every_config_class_has_an_instance_here(instances):
    """No config class escapes the tests of this file."""
    assert config_classes() == set(instances)
    assert len(FIELDS) > 200


@pytest.mark.parametrize(("cls", "name"), FIELDS, ids=lambda v: getattr(v, "__name__", v))
def test_F29_a_changed_field_changes_exactly_the_keys_it_is_declared_for(instances, cls, name):
    """COMPILE changes both keys, CAPTURE the capture key alone, unkeyed none; for sections, each field in them."""
    found = {}
    for section in instances[cls]:
        for path, owner, chain in leaves(section):
            if path[0] == name and (owner, path[-1]) not in NO_OTHER_VALUE:
                found.setdefault(path, []).append((section, chain))
    bare = {type(getattr(section, name)) for section in instances[cls]}
    assert found or (cls, name) in NO_OTHER_VALUE or all(not policies(c) for c in bare)
    for path, places in found.items():
        pairs = (
            (section, other, chain)
            for section, chain in places
            for other in changed_below(section, path, instances)
        )
        section, other, chain = next(pairs, (None, None, None))
        assert section is not None, f"no other value found for {cls.__name__}.{'.'.join(path)}"
        for stage in Stage:
            differs = compute_hash(section, stage) != compute_hash(other, stage)
            assert differs is all(stage.covers(policy.stage) for policy in chain), (path, stage)


@pytest.mark.parametrize(("cls", "name"), NO_OTHER_VALUE, ids=lambda v: getattr(v, "__name__", v))
def test_F29_a_field_that_is_left_out_here_has_one_value_only(instances, cls, name):
    """Nothing but its default is accepted, so no two configs can differ in it."""
    for section in instances[cls]:
        assert getattr(section, name) is None
        assert list(changed(section, name, instances)) == []


@pytest.mark.parametrize("name", ["ngram", "eagle3", "dspark"])
def test_F29_a_changed_field_moves_the_key_of_a_stored_unit_exactly_if_compiled_code_may_hold_it(
    name,
):
    """The unit may read everything. Each field of the contract, at any depth, is changed alone."""
    spec = resolved_case(name, lora={"max_loras": 2})
    sections = [n for n, policy in policies(type(spec)).items() if policy.stage is Stage.COMPILE]
    reader, compiled = unit(*sections), 0
    for leaf in perturb.leaves(spec):
        other = next(accepted(leaf), None)
        if other is not None:
            may_matter = leaf.stage is Stage.COMPILE or (
                leaf.path == "speculative.num_speculative_tokens"
                and spec.speculative.speculator.bakes_k_into_graphs
            )
            assert (key(reader, other) != key(reader, leaf.base)) is may_matter, leaf.path
            compiled += may_matter
    assert compiled > 70


def accepted(leaf):
    """Specs in which the field has another value that the rules accept."""
    for value in leaf.others:
        with contextlib.suppress(SpecError):
            yield leaf.changed(value)
