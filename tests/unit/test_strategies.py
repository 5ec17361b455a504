"""The strategies that users get: every config class, near misses, pairs that differ in one field, whole engines."""

import enum
import importlib
import json
import math
import pkgutil
import re
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
def test_a_near_miss_is_one_problem_at_its_path(classes, data):
    """One half is accepted. The other differs in one place, and the problems of its refusal name that place alone."""
    cls = data.draw(classes)
    valid, broken, path = data.draw(near_misses(cls))
    structure(valid, cls)
    with pytest.raises(SpecError) as caught:
        structure(broken, cls)
    assert {p.where for p in caught.value.problems} == {path}
    (change,) = changes(valid, broken)
    assert f".{path}".startswith(change) or change.startswith(f".{path}")


KINDS = {
    "null": lambda valid, broken: broken is None,
    "float": lambda valid, broken: type(valid) is int and type(broken) is float,
    "boolean": lambda valid, broken: type(valid) is int and type(broken) is bool,
    "number as text": lambda valid, broken: type(valid) is int and type(broken) is str,
    "boolean as text": lambda valid, broken: type(valid) is bool and type(broken) is str,
    "bound": lambda valid, broken: type(valid) is int and type(broken) is int,
    "no number": lambda valid, broken: type(broken) is float and not math.isfinite(broken),
    "spelling": lambda valid, broken: type(valid) is str and type(broken) is str,
    "unknown": lambda valid, broken: valid is MISSING and broken is not MISSING,
    "missing": lambda valid, broken: valid is not MISSING and broken is MISSING,
}
MISSING = object()


def at(data, path):
    """What stands at a path of plain data or of an object."""
    for step in re.findall(r"[^.\[\]]+", path):
        try:
            if is_config_class(type(data)):
                data = getattr(data, step)
            else:
                data = data[int(step) if step.isdigit() else step]
        except (AttributeError, LookupError, TypeError):
            return MISSING
    return data.value if isinstance(data, enum.Enum) else data


def test_each_kind_of_near_miss_occurs():
    """Wrong types of every sort, bounds, misspelt enums and keys, missing keys: a search meets all of them."""
    seen = set()

    def all_seen(pair):
        cls, (valid, broken, path) = pair
        halves = at(structure(valid, cls), path), at(broken, path)
        seen.update(name for name, occurs in KINDS.items() if occurs(*halves))
        return seen == set(KINDS)

    classes = st.sampled_from(CONFIG_CLASSES)
    search(classes.flatmap(lambda cls: st.tuples(st.just(cls), near_misses(cls))), all_seen)


def search(strategy, condition):
    once = settings(max_examples=5000, phases=[Phase.generate], database=None)
    return find(strategy, condition, settings=once)


def differences(one, other, path=""):
    """Dotted paths of the fields in which two objects differ; sections of one class are compared by their fields."""
    if not is_config_class(type(one)) or type(one) is not type(other):
        return [] if one == other else [path]
    pairs = [(n, getattr(one, n), getattr(other, n)) for n in policies(type(one))]
    return [d for n, a, b in pairs for d in differences(a, b, f"{path}.{n}".lstrip("."))]


@some_class
@given(data=st.data())
def test_a_pair_differs_in_one_field(classes, data):
    """Nothing else differs than the field at the path, with its policy. Its stage says which keys tell the two apart."""
    pair = data.draw(hash_pairs(data.draw(classes)))
    assert differences(pair.one, pair.other) == [pair.path]
    section = pair.one
    for name, policy in zip(pair.path.split("."), pair.policies, strict=True):
        assert policies(type(section))[name] == policy
        section = getattr(section, name)
    assert pair.policy is pair.policies[-1]
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


def test_each_method_occurs():
    """Methods whose folder is given, those that need none, and no drafting at all."""
    seen = set()

    def all_seen(data):
        seen.add((data["speculative"] or {}).get("method"))
        return seen == {None, *DRAFTS, *WITHOUT}

    search(engine_configs("/target", DRAFTS), all_seen)
