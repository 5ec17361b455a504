"""The strategies that users get: every config class, near misses, pairs that differ in one field, whole engines."""

import importlib
import json
import pkgutil
from typing import ClassVar

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

import graphspec.config
from graphspec.config.engine import EngineConfig
from graphspec.config.schedule import table_problems
from graphspec.config.structure import structure, unstructure
from graphspec.errors import Problem, SpecError
from graphspec.fields import Stage, config_class, is_config_class, keyed, policies, unkeyed
from graphspec.keys.factors import key_text
from graphspec.testing.strategies import (
    CONFIG_CLASSES,
    configs,
    engine_configs,
    hash_pairs,
    near_misses,
    plain,
    sections,
    tables,
)
from support.specs import config_folder

# The whole has all sections but few examples of each; the other half gives every class its share.
some_class = pytest.mark.parametrize(
    "classes",
    [st.just(EngineConfig), st.sampled_from(CONFIG_CLASSES)],
    ids=["the whole", "each class"],
)


def test_no_class_is_forgotten():
    """Every config class that a module of graphspec.config defines has a strategy."""
    folder = pkgutil.iter_modules(graphspec.config.__path__)
    modules = [importlib.import_module(f"graphspec.config.{m.name}") for m in folder]
    defined = {value for m in modules for value in vars(m).values() if is_config_class(value)}
    assert defined == set(CONFIG_CLASSES)


@some_class
@given(data=st.data())
def test_a_config_survives_the_way_through_plain_data(classes, data):
    """Objects are valid, since they could be made, and their plain data is JSON that reads as an equal object."""
    cls = data.draw(classes)
    config = data.draw(configs(cls))
    text = json.dumps(unstructure(config), allow_nan=False)
    assert type(config) is cls
    assert structure(json.loads(text), cls) == config


@some_class
@given(data=st.data())
def test_a_near_miss_is_one_problem_at_its_path(classes, data):
    """The valid half is accepted; the broken one is refused, and all that is named is the path of the difference."""
    cls = data.draw(classes)
    valid, broken, path = data.draw(near_misses(cls))
    structure(valid, cls)
    with pytest.raises(SpecError) as caught:
        structure(broken, cls)
    assert {p.where for p in caught.value.problems} == {path}


def changes(one, other, path=""):
    """Paths at which two pieces of plain data differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        found = [changes(one.get(k, ...), other.get(k, ...), f"{path}.{k}") for k in one | other]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        found = [changes(a, b, f"{path}[{i}]") for i, (a, b) in pairs]
    else:
        # 1, 1.0 and True are equal, and a near miss may be just that.
        return [] if (type(one), one) == (type(other), other) else [path]
    return [change for inner in found for change in inner]


@some_class
@given(data=st.data())
def test_a_near_miss_differs_in_one_place(classes, data):
    """Both halves are the same outside of the path, so that nothing else can be the reason of a refusal."""
    valid, broken, path = data.draw(near_misses(data.draw(classes)))
    assert all(change.startswith(f".{path}") for change in changes(valid, broken))
    assert changes(valid, broken)


@pytest.mark.parametrize(
    "kind",
    [
        lambda valid, broken: broken is None,
        lambda valid, broken: type(valid) is int and type(broken) is float,
        lambda valid, broken: type(valid) is int and type(broken) is bool,
        lambda valid, broken: type(valid) is int and type(broken) is str,
        lambda valid, broken: type(valid) is bool and broken == "true",
        lambda valid, broken: type(valid) is int and type(broken) is int,
        lambda valid, broken: type(broken) is float and broken != broken,  # noqa: PLR0124
        lambda valid, broken: type(valid) is str and type(broken) is str,
    ],
    ids="null float boolean text true bound nan enum".split(),
)
def test_each_kind_of_near_miss_occurs(kind):
    """Null, a float or boolean or text for an integer, a text for a boolean, a bound, NaN, an enum's misspelling."""

    def occurs(miss):
        valid, broken, path = miss
        for step in path.replace("[", ".[").split("."):
            key = int(step[1:-1]) if step.startswith("[") else step
            try:
                valid, broken = valid[key], broken[key]
            except (KeyError, IndexError):
                return False
        return kind(valid, broken)

    whole = st.sampled_from([EngineConfig, *CONFIG_CLASSES]).flatmap(near_misses)
    found_one(whole, occurs)


def found_one(strategy, condition):
    return find(
        strategy,
        condition,
        settings=settings(max_examples=5000, phases=[Phase.generate], database=None),
    )


def differences(one, other, path=""):
    """Dotted paths of the fields in which two objects differ; sections of one class are compared by their fields."""
    if not is_config_class(type(one)) or type(one) is not type(other):
        return [] if one == other else [path]
    pairs = [(n, getattr(one, n), getattr(other, n)) for n in policies(type(one))]
    return [d for n, a, b in pairs for d in differences(a, b, f"{path}.{n}".lstrip("."))]


@some_class
@given(data=st.data())
def test_a_pair_differs_in_one_field(classes, data):
    """Nothing else differs than the field at the path, and the policies are those of the fields on the way."""
    pair = data.draw(hash_pairs(data.draw(classes)))
    assert differences(pair.one, pair.other) == [pair.path]
    section = pair.one
    for name, policy in zip(pair.path.split("."), pair.policies, strict=True):
        assert policies(type(section))[name] == policy
        section = getattr(section, name)
    assert pair.policy is pair.policies[-1]


@some_class
@given(data=st.data())
def test_a_pair_s_stage_says_which_keys_tell_it_apart(classes, data):
    """A key differs exactly when its stage covers the pair's: the field's own, weakened by the sections around it."""
    pair = data.draw(hash_pairs(data.draw(classes)))
    for stage in Stage:
        differs = key_text(pair.one, stage) != key_text(pair.other, stage)
        assert differs is stage.covers(pair.stage)


def _ordered(section):
    if section.low > section.high:
        yield Problem(where="low", found=str(section.low), wanted=f"at most {section.high}")


@config_class
class Window:
    """A class as users write them, with a rule that no strategy knows."""

    low: int = keyed(Stage.COMPILE, minimum=0, maximum=9, doc="Low end.")
    high: int = unkeyed(minimum=0, maximum=9, doc="High end.", reason="a test")

    rules: ClassVar = (_ordered,)


@given(config=configs(Window))
def test_a_class_of_one_s_own_keeps_its_rules(config):
    """Examples that break the rules of a class that graphspec does not know are thrown away."""
    assert 0 <= config.low <= config.high <= 9


def test_a_field_of_a_type_that_configs_do_not_have_is_named():
    """A strategy that cannot be made says for which type."""

    @config_class
    class Odd:
        """A field that no file can hold."""

        kind: bytes = keyed(Stage.COMPILE, doc="Bytes.")

    with pytest.raises(TypeError, match="bytes"):
        find(configs(Odd), lambda _: True)


@given(tables())
def test_a_table_keeps_the_rules(table):
    """Ranges start at 1 and do not overlap, in whatever order."""
    assert table_problems(table) == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(config_folder(tmp_path_factory.mktemp("target")))


@given(data=sections())
def test_sections_resolve(folder, data):
    """With a source they are a config that keeps the rules between sections: it resolves."""
    config = EngineConfig.from_dict({**data, "model": {"source": folder, **data["model"]}})
    assert config.resolve().scheduler.max_num_seqs == data["scheduler"]["max_num_seqs"]


DRAFTS = {name: f"/drafts/{name}" for name in ("draft_model", "eagle3", "dspark", "mtp")}
WITHOUT = ("ngram", "ngram_gpu", "suffix", "extract_hidden_states")


@given(data=engine_configs("/target", DRAFTS))
def test_whole_engines_keep_the_rules_of_their_sections(data):
    """Every one is accepted as a config, with the folder of its method."""
    config = EngineConfig.from_dict(data)
    assert config.model.source == "/target"
    if config.speculative is not None:
        assert config.speculative.method in (*DRAFTS, *WITHOUT)
        assert config.speculative.model == DRAFTS.get(config.speculative.method)


@pytest.mark.parametrize("method", [None, *DRAFTS, *WITHOUT])
def test_each_method_occurs(method):
    """Methods whose folder is given, those that need none, and no drafting at all."""

    def has(data):
        return (data["speculative"] or {}).get("method") == method

    found_one(engine_configs("/target", DRAFTS), has)


def test_plain_data_of_a_strategy_reads_as_its_object():
    """`plain` is what a file would hold: enum values, lists, and no field at its default."""
    found = find(plain(configs(EngineConfig)), lambda data: "device" in data)
    assert found == {"model": {"source": ""}, "device": {"isa": "x86-64-v3"}} or found[
        "device"
    ] == {"target": "cuda"}
