"""compute_hash: what each declared field does to the two keys, found by reflection over all config classes."""

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
from graphspec.fields import Stage, evolve, field_types, is_config_class, policies
from graphspec.frozen import JsonValue
from graphspec.keys.factors import CLASS, compute_hash, factor_tree, flatten, key_text
from graphspec.resolve.draft import DraftOverrides
from graphspec.resolve.records import Note
from graphspec.speculators.base import DraftModelSpeculatorConfig, SpeculatorConfig
from graphspec.speculators.registry import known_methods, speculator_config_class
from graphspec.speculators.vocabulary import VocabularyMap
from support.specs import plain_spec
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


def test_every_config_class_has_an_instance_here(instances):
    """No config class escapes the tests of this file."""
    assert config_classes() == set(instances)
    assert len(FIELDS) > 200


@pytest.mark.parametrize(("cls", "name"), FIELDS, ids=lambda v: getattr(v, "__name__", v))
def test_a_changed_field_changes_exactly_the_keys_it_is_declared_for(instances, cls, name):
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
        for key in Stage:
            differs = compute_hash(section, key) != compute_hash(other, key)
            assert differs is all(key.covers(policy.stage) for policy in chain), (path, key)


@pytest.mark.parametrize(("cls", "name"), NO_OTHER_VALUE, ids=lambda v: getattr(v, "__name__", v))
def test_a_field_that_is_left_out_here_has_one_value_only(instances, cls, name):
    """Nothing but its default is accepted, so no two configs can differ in it."""
    for section in instances[cls]:
        assert getattr(section, name) is None
        assert list(changed(section, name, instances)) == []


def test_the_two_stages_never_share_a_key(tmp_path):
    """The stage is part of the key, so a capture key is never taken for a compile key."""
    spec = plain_spec(tmp_path)
    assert spec.compute_hash(Stage.COMPILE) != spec.compute_hash(Stage.CAPTURE)


def test_the_hash_is_32_hexadecimal_digits_of_the_key_text(tmp_path):
    """compute_hash is xxh3-128 of key_text and nothing else."""
    import xxhash

    spec = plain_spec(tmp_path)
    for stage in Stage:
        text = key_text(spec, stage)
        assert spec.key_text(stage) == text
        assert spec.compute_hash(stage) == xxhash.xxh3_128_hexdigest(text)
        assert len(spec.compute_hash(stage)) == 32


def test_the_class_of_a_section_is_part_of_the_key():
    """Two classes with the same fields and values have different keys."""
    from graphspec.fields import config_class, keyed

    def make(name):
        body = {"__annotations__": {"depth": int}, "depth": keyed(Stage.COMPILE, doc="d")}
        return config_class(type(name, (), body))

    one, other = make("One"), make("Other")
    assert compute_hash(one(depth=1), Stage.COMPILE) != compute_hash(other(depth=1), Stage.COMPILE)


BAKING = {"dflash", "dspark", "dspark fill-in", "draft_model parallel", "eagle3 parallel"}


@pytest.mark.parametrize("name", CASES)
def test_k_is_a_compile_factor_only_of_methods_that_bake_it_in(name):
    """A deeper k changes the compile key exactly where shapes hold it: block drafters and parallel drafting."""
    one, other = (resolved_case(name, {"num_speculative_tokens": k}) for k in (4, 6))
    assert one.speculative.speculator.bakes_k_into_graphs is (name in BAKING)
    assert (one.compute_hash(Stage.COMPILE) != other.compute_hash(Stage.COMPILE)) is (
        name in BAKING
    )
    assert one.compute_hash(Stage.CAPTURE) != other.compute_hash(Stage.CAPTURE)


def test_a_method_adds_factors_of_its_own(monkeypatch):
    """What `hash_factors` of a method's class returns is in the section's keys, beside its fields."""

    class Seeded(SpeculatorConfig):
        seed = 1

        def hash_factors(self, stage, k):
            return {"seed": self.seed, **super().hash_factors(stage, k)}

    drafting = evolve(resolved_case("ngram").speculative, speculator=Seeded())
    before = {stage: compute_hash(drafting, stage) for stage in Stage}
    assert all(factor_tree(drafting, stage)["seed"] == 1 for stage in Stage)
    monkeypatch.setattr(Seeded, "seed", 2)
    assert all(compute_hash(drafting, stage) != before[stage] for stage in Stage)


def test_the_location_of_the_model_is_not_in_the_key(tmp_path):
    """The same facts in two folders give one hash, and neither path is in the key text."""
    one, other = plain_spec(tmp_path / "one"), plain_spec(tmp_path / "other")
    assert one.model.source != other.model.source
    for stage in Stage:
        assert one.compute_hash(stage) == other.compute_hash(stage)
        assert str(tmp_path).encode() not in one.key_text(stage)


def test_flatten_gives_every_leaf_of_a_tree_with_its_path(tmp_path):
    """Paths are those of the config as the user wrote it; class names are left out."""
    spec = plain_spec(tmp_path)
    leaves = dict(flatten(factor_tree(spec, Stage.CAPTURE)))
    assert leaves["model.hidden_size"] == 32
    assert leaves["scheduler.max_num_seqs"] == 4
    assert leaves["mode.granted"].value == "FULL_AND_PIECEWISE"
    assert not any(CLASS in path.split(".") for path in leaves)
    assert "model.source" not in leaves
