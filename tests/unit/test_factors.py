"""compute_hash: what each declared field does to the two keys, found by reflection over all config classes."""

import enum
import importlib
import pkgutil
from collections.abc import Mapping

import attrs
import pytest

import graphspec.config
import graphspec.resolve
import graphspec.speculators
from graphspec.config.engine import EngineConfig
from graphspec.errors import SpecError
from graphspec.fields import Stage, field_types, is_config_class, policies
from graphspec.keys.factors import CLASS, compute_hash, factor_tree, flatten, key_text
from support.specs import config_folder, plain_config, plain_spec

TABLE = [[1, 2, 2], [3, 4, 1]]


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


@pytest.fixture(scope="module")
def instances(tmp_path_factory):
    folder = config_folder(tmp_path_factory.mktemp("facts"))
    data = plain_config(folder)
    data["speculative"] |= {"num_speculative_tokens_per_batch_size": TABLE}
    config = EngineConfig.from_dict(data)
    from graphspec.speculators.base import SpeculatorConfig

    found = [*sections(config), *sections(config.resolve()), SpeculatorConfig()]
    return {type(section): section for section in found}


def other_values(value, annotation):
    """Values of the field's type that differ from `value`, the likeliest to be valid first."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, enum.Enum):
        yield from (m for m in type(value) if m is not value)
    elif isinstance(value, int):
        yield from (value * 2, value + 1, value - 1)
    elif isinstance(value, float):
        yield value * 2
    elif isinstance(value, str):
        yield value + "x"
    elif isinstance(value, tuple):
        yield from (value[:-1], (*value, *value), ("x",))
    elif isinstance(value, Mapping):
        yield {"rope_theta": 5.0}
    elif value is None:
        yield 3


def changed(section, name):
    """A copy of `section` in which only the field `name` differs."""
    value = getattr(section, name)
    for other in other_values(value, field_types(type(section))[name]):
        try:
            return attrs.evolve(section, **{name: other})
        except SpecError:
            continue
    raise AssertionError(f"no other value found for {type(section).__name__}.{name}")


def leaves(whole, path=(), chain=()):
    """The path of every field below `whole` that holds no section, with the policies along it."""
    for name, policy in policies(type(whole)).items():
        value = getattr(whole, name)
        below, along = (*path, name), (*chain, policy)
        if is_config_class(type(value)):
            yield from leaves(value, below, along)
        else:
            yield below, along


def changed_below(whole, path):
    """A copy of `whole` in which only the field at `path` differs."""
    if len(path) == 1:
        return changed(whole, path[0])
    return attrs.evolve(whole, **{path[0]: changed_below(getattr(whole, path[0]), path[1:])})


FIELDS = sorted(
    ((cls, name) for cls in config_classes() for name in policies(cls)),
    key=lambda pair: (pair[0].__name__, pair[1]),
)


def test_every_config_class_has_an_instance_here(instances):
    """No config class escapes the tests of this file."""
    assert config_classes() == set(instances)
    assert len(FIELDS) > 50


@pytest.mark.parametrize(("cls", "name"), FIELDS, ids=lambda v: getattr(v, "__name__", v))
def test_a_changed_field_changes_exactly_the_keys_it_is_declared_for(instances, cls, name):
    """COMPILE changes both keys, CAPTURE the capture key alone, unkeyed none; for sections, each field in them."""
    section = instances[cls]
    found = [(path, chain) for path, chain in leaves(section) if path[0] == name]
    assert found or not policies(type(getattr(section, name)))
    for path, chain in found:
        other = changed_below(section, path)
        for key in Stage:
            differs = compute_hash(section, key) != compute_hash(other, key)
            assert differs is all(key.covers(policy.stage) for policy in chain), (path, key)


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


def test_k_is_a_compile_factor_only_of_methods_that_bake_it_in(tmp_path):
    """The depth changes the compile key exactly when the method's class declares bakes_k_into_graphs."""
    from graphspec.resolve.spec import SpeculativeSpec
    from graphspec.speculators.base import SpeculatorConfig

    class Baking(SpeculatorConfig):
        bakes_k_into_graphs = True

    schedule = plain_spec(tmp_path).schedule

    def key(speculator, k):
        section = SpeculativeSpec(
            method="m", num_speculative_tokens=k, schedule=schedule, speculator=speculator
        )
        return compute_hash(section, Stage.COMPILE)

    assert key(SpeculatorConfig(), 2) == key(SpeculatorConfig(), 3)
    assert key(Baking(), 2) != key(Baking(), 3)


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
