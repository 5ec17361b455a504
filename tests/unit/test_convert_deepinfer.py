"""DeepInfer's variables: a depth and a switch, both strict, and all else left."""

import pytest

from graphspec.config.engine import EngineConfig
from graphspec.errors import SpecError
from graphspec.formats.deepinfer import from_deepinfer

DRAFTS, SWITCH = "DEEPINFER_USE_NEXTN_DECODE", "DEEPINFER_ENABLE_MTP_VARLEN"
ADAPTIVE = "enable_adaptive_verification"


@pytest.mark.parametrize(
    ("environment", "section"),
    [
        ({DRAFTS: "3"}, {"method": "dspark", "num_speculative_tokens": 3}),
        (
            {DRAFTS: "7", SWITCH: "1"},
            {"method": "dspark", "num_speculative_tokens": 7, ADAPTIVE: True},
        ),
        (
            {DRAFTS: "7", SWITCH: "0"},
            {"method": "dspark", "num_speculative_tokens": 7, ADAPTIVE: False},
        ),
        ({SWITCH: "1"}, {"method": "dspark", "num_speculative_tokens": 5, ADAPTIVE: True}),
        ({DRAFTS: "0"}, None),
        ({DRAFTS: "0", SWITCH: "1"}, None),
    ],
)
def test_variables_become_dspark_with_a_depth(environment, section):
    """The depth is 5 when it is not given, and 0 turns drafting off."""
    carried = from_deepinfer(environment)
    assert carried.data.get("speculative") == section
    EngineConfig.from_dict({**carried.data, "model": {"source": "m"}})
    for name in environment:
        fewer = {n: v for n, v in environment.items() if n != name}
        if fewer:
            assert from_deepinfer(fewer) != carried


def test_what_is_not_said_is_reported():
    """The default depth, drafting that is off, and the model that no variable names."""
    assert {left.where for left in from_deepinfer({SWITCH: "1"}).left} == {
        DRAFTS,
        SWITCH,
        "model.source",
        "model.dtype",
        "device.target",
    }
    left = {left.where: left for left in from_deepinfer({DRAFTS: "0", SWITCH: "1"}).left}
    assert "no drafting" in left[DRAFTS].why
    assert "no drafts" in left[SWITCH].why


def test_an_unknown_variable_is_left_and_others_are_not_shown():
    """Only what begins with the prefix is DeepInfer's; the rest of an environment has secrets in it."""
    carried = from_deepinfer({DRAFTS: "3", "DEEPINFER_OTHER": "x", "AWS_SECRET": "hush"})
    left = {left.where: left for left in carried.left}
    assert "not a setting of DeepInfer" in left["DEEPINFER_OTHER"].why
    assert "hush" not in str(carried)


@pytest.mark.parametrize(
    "text", ["", " 5", "5.0", "+5", "-1", "five", "0x5", "\u0665", 5, True, "1" * 10]
)
def test_the_depth_is_digits_alone(text):
    """Nothing is coerced."""
    with pytest.raises(SpecError) as caught:
        from_deepinfer({DRAFTS: text, SWITCH: "yes"})
    assert [p.where for p in caught.value.problems] == [DRAFTS, SWITCH]


def test_an_environment_without_any_of_its_variables_is_refused():
    """An empty input is a mistake, not the default."""
    with pytest.raises(SpecError, match="begins with DEEPINFER_"):
        from_deepinfer({"PATH": "/bin"})


def test_a_depth_beyond_the_bound_names_the_variable():
    """The field's own bounds hold."""
    with pytest.raises(SpecError, match=f"{DRAFTS}: found 99999"):
        from_deepinfer({DRAFTS: "99999"})
