"""Overrides of a checkpoint's config: every level, every name of a fact, functions, and chains that travel."""

import pytest

from graphspec.config.model import ModelConfig
from graphspec.errors import SpecError
from graphspec.frozen import FrozenMap, freeze
from graphspec.resolve.model_facts import facts_of, model_spec
from graphspec.resolve.overrides import apply_overrides
from support.checkpoints import TINY
from support.specs import config_folder

WHERE = "model.hf_overrides"
NESTED = {
    "model_type": "vl",
    "text_config": {"model_type": "t", "hidden_size": 4, "window": 1},
    "vision_config": {"hidden_size": 9},
}
FUNCTIONS = """
from collections import ChainMap
number = 3
def wider(config):
    config["hidden_size"] *= 2
    config["window"] = [1, {"a": None}]
    return config
def sealed(config):
    return ChainMap({"vocab_size": 7}, config)
def nothing(config):
    config["hidden_size"] = 0
def fails(config):
    return config["no_such_field"]
def objects(config):
    return {"hidden_size": object()}
class Rewriting:
    @staticmethod
    def rename(config):
        return {**config, "model_type": "renamed"}
"""


@pytest.fixture
def functions(tmp_path, monkeypatch):
    """The name of an importable module with functions of all kinds."""
    (tmp_path / "override_functions.py").write_text(FUNCTIONS)
    (tmp_path / "override_broken.py").write_text("raise RuntimeError('broken on import')")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "override_functions"


def problem_of(config, overrides):
    with pytest.raises(SpecError) as caught:
        apply_overrides(config, overrides, WHERE)
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize("overrides", [None, {}])
def test_no_overrides_leave_the_config_as_it_is(overrides):
    """The result is frozen all the way down, and equal."""
    made = apply_overrides({"a": [1, {"b": 2}]}, overrides, WHERE)
    assert made == {"a": (1, {"b": 2})}
    assert isinstance(made, FrozenMap)
    assert hash(made)


def test_an_override_replaces_and_the_given_config_stays():
    """Fields are replaced, null among the values, and facts may be added."""
    config = freeze({"hidden_size": 4, "rope_scaling": {"factor": 2.0}, "own": 1})
    made = apply_overrides(config, {"rope_scaling": None, "own": [2], "vocab_size": 7}, WHERE)
    assert made == {"hidden_size": 4, "rope_scaling": None, "own": (2,), "vocab_size": 7}
    assert config["rope_scaling"] == {"factor": 2.0}


def test_an_override_wins_at_every_level():
    """It is set above, and below where the field is or where it is a fact of the language model."""
    made = apply_overrides(NESTED, {"hidden_size": 8, "window": 2, "vocab_size": 3}, WHERE)
    text = made["text_config"]
    assert (made["hidden_size"], text["hidden_size"]) == (8, 8)
    assert (made["window"], text["window"]) == (2, 2)
    assert (made["vocab_size"], text["vocab_size"]) == (3, 3)
    assert made["vision_config"] == {"hidden_size": 9}
    assert facts_of(made).hidden_size == 8
    assert apply_overrides(NESTED, {"architectures": ["A"]}, WHERE)["text_config"] == freeze(
        NESTED["text_config"]
    )


def test_a_mapping_for_the_nested_model_replaces_its_fields():
    """What it does not name stays; a mapping that is no model is replaced as a whole."""
    made = apply_overrides(
        NESTED, {"text_config": {"hidden_size": 8}, "vision_config": {"depth": 1}}, WHERE
    )
    assert made["text_config"] == {"model_type": "t", "hidden_size": 8, "window": 1}
    assert made["vision_config"] == {"depth": 1}


@pytest.mark.parametrize(
    ("config", "override", "fact"),
    [
        ({"n_routed_experts": 256}, {"num_experts": 8}, "num_experts"),
        ({"num_experts": 256}, {"n_routed_experts": 8}, "num_experts"),
        ({"hidden_activation": "gelu"}, {"hidden_act": "silu"}, "hidden_act"),
        ({"torch_dtype": "float16"}, {"dtype": "float32"}, "dtype"),
        ({"rope_scaling": {"type": "yarn"}}, {"rope_type": "linear"}, "rope_type"),
        ({"rope_parameters": {"rope_type": "yarn"}}, {"rope_type": "default"}, "rope_type"),
        ({}, {"rope_type": "linear"}, "rope_type"),
        ({"rope_parameters": {"rope_theta": 1.0}}, {"rope_theta": 5.0}, "rope_theta"),
        ({"rope_scaling": {"factor": 1.0}, "rope_theta": 1.0}, {"rope_theta": 5.0}, "rope_theta"),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}},
            {"rope_theta": 5.0},
            "rope_theta",
        ),
    ],
)
def test_a_fact_is_replaced_under_every_name_it_has(config, override, fact):
    """The user's name for a fact need not be the one that the family uses."""
    for nested in (config, {"text_config": config}):
        made = facts_of(apply_overrides(nested, override, WHERE))
        assert getattr(made, fact) == next(iter(override.values()))
        assert made.bad == ()


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("value", [None, {"rope_type": "yarn", "factor": 4.0}])
def test_new_rotary_parameters_keep_the_base_of_the_old_ones(name, value):
    """Either generation's name replaces either, and the base goes only when it is replaced itself."""
    kind = "yarn" if value else "default"
    for old in (
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5.0}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5.0},
    ):
        made = facts_of(apply_overrides(old, {name: value}, WHERE))
        assert (made.rope_type, made.rope_theta) == (kind, 5.0)
        assert made.rope_parameters.get("factor") == (4.0 if value else None)
        both = {"rope_theta": 7.0, name: value}
        assert facts_of(apply_overrides(old, both, WHERE)).rope_theta == 7.0


@pytest.mark.parametrize(
    ("name", "near"),
    [("hiden_size", "hidden_size"), ("windows", "window"), ("num_expert", "num_experts")],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, near):
    """Names of the config at both levels and names of facts are known; a misspelt one would change nothing."""
    problem = problem_of(NESTED, {name: 1})
    assert problem.where == f"{WHERE}.{name}"
    assert problem.hint == f"did you mean {near!r}?"


def test_unknown_names_come_together_and_with_their_level():
    """Each is a problem of its own; one inside a nested model says so."""
    with pytest.raises(SpecError) as caught:
        apply_overrides(NESTED, {"zz": 1, "qq": 2}, WHERE)
    assert [p.where for p in caught.value.problems] == [f"{WHERE}.zz", f"{WHERE}.qq"]
    problem = problem_of(NESTED, {"text_config": {"zz": 1}})
    assert problem.where == f"{WHERE}.text_config.zz"


def test_a_function_gets_plain_data_and_gives_the_config(functions):
    """It may change what it got or return another mapping; the caller's config stays."""
    config = freeze({"hidden_size": 4})
    made = apply_overrides(config, f"{functions}:wider", WHERE)
    assert made == {"hidden_size": 8, "window": (1, {"a": None})}
    assert config == {"hidden_size": 4}
    assert apply_overrides(config, f"{functions}:sealed", WHERE) == {
        "vocab_size": 7,
        "hidden_size": 4,
    }
    renamed = apply_overrides(config, f"{functions}:Rewriting.rename", WHERE)
    assert renamed["model_type"] == "renamed"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("no colon", "'no colon'"),
        ("", "''"),
        ("a:", "'a:'"),
        (":f", "':f'"),
        ("a.b:c:d", "'a.b:c:d'"),
        ("no_such_module_x:f", "no_such_module_x:f, which cannot be imported: ModuleNotFoundError"),
        ("override_functions:absent", "cannot be imported: AttributeError"),
        ("override_broken:f", "cannot be imported: RuntimeError: broken on import"),
        ("override_functions:number", "override_functions:number, int"),
        ("override_functions:nothing", "override_functions:nothing, which returned NoneType"),
        ("override_functions:fails", "override_functions:fails, which raised KeyError"),
        ("override_functions:objects", "override_functions:objects, which returned something else"),
    ],
)
def test_a_function_that_cannot_serve_is_named(functions, name, found):
    """No name, no module, no function, no mapping, an exception inside: each is a SpecError at the field."""
    problem = problem_of({"hidden_size": 4}, name)
    assert problem.where == WHERE
    assert found in problem.found


def test_the_message_of_an_exception_inside_a_function_is_kept(functions):
    """What the function said, and the exception itself as the cause."""
    with pytest.raises(SpecError, match="no_such_field") as caught:
        apply_overrides({}, f"{functions}:fails", WHERE)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_target_is_resolved_with_a_function(functions, tmp_path):
    """hf_overrides as a name acts on the model facts as a mapping does."""
    folder = config_folder(tmp_path / "m", TINY)
    spec = model_spec(ModelConfig(source=str(folder), hf_overrides=f"{functions}:wider"))
    assert spec.hidden_size == 2 * TINY["hidden_size"]
    assert spec.extra["window"] == (1, {"a": None})
