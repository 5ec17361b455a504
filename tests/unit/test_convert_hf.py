"""Hugging Face folders: a target by its folder, a draft in speculators format by its method and depth."""

import json

import pytest

from graphspec.config.engine import EngineConfig
from graphspec.errors import SpecError
from graphspec.formats.hf import from_hf

DRAFT = {
    "speculators_model_type": "eagle3",
    "dtype": "bfloat16",
    "auto_map": {"": "config.Eagle3SpeculatorConfig"},
    "speculators_config": {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [
            {"proposal_type": "greedy", "speculative_tokens": 3, "accept_tolerance": 0.0},
            {"proposal_type": "sample", "speculative_tokens": 5},
        ],
        "verifier": {"name_or_path": "org/target", "architectures": ["A"]},
    },
}


def folder(tmp_path, facts):
    text = facts if isinstance(facts, str) else json.dumps(facts, indent=1)
    (tmp_path / "config.json").write_text(text)
    return str(tmp_path)


def left_of(carried):
    return {left.where: left for left in carried.left}


@pytest.mark.parametrize(
    ("facts", "dtype"),
    [
        ({"model_type": "llama", "torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16"}, "float16"),
        ({"dtype": "float32", "torch_dtype": "float32"}, "float32"),
        ({"text_config": {"dtype": "bfloat16"}}, "bfloat16"),
        ({"torch_dtype": None, "text_config": {"torch_dtype": "float16"}}, "float16"),
        ({"model_type": "llama"}, None),
        ({"dtype": "float8_e4m3fn"}, None),
    ],
)
def test_a_target_is_its_folder_and_its_type(facts, dtype, tmp_path):
    """The rest of the config is read from the folder; a type that is not known is reported."""
    path = folder(tmp_path, facts)
    carried = from_hf(path)
    assert carried.data["model"].pop("source") == path
    assert carried.data["model"] == ({"dtype": dtype} if dtype else {})
    left = left_of(carried)
    assert ("model.dtype" in left or "dtype" in left) is (dtype is None)
    EngineConfig.from_dict(from_hf(path).data)


def test_a_draft_names_its_method_depth_and_target(tmp_path):
    """The folder is the draft; the verifier is the model."""
    path = folder(tmp_path, DRAFT)
    carried = from_hf(path)
    assert carried.data == {
        "speculative": {"model": path, "method": "eagle3", "num_speculative_tokens": 3},
        "model": {"source": "org/target"},
    }
    assert set(left_of(carried)) == {
        "auto_map",
        "dtype",
        "model.dtype",
        "device.target",
        "speculators_model_type",
        "speculators_config.default_proposal_method",
        "speculators_config.proposal_methods[0].proposal_type",
        "speculators_config.proposal_methods[0].accept_tolerance",
        "speculators_config.proposal_methods[1]",
        "speculators_config.verifier.architectures",
    }
    EngineConfig.from_dict(carried.data)


def test_no_part_of_the_section_is_lost(tmp_path):
    """Taking any key away changes the data or what is left."""
    whole = from_hf(folder(tmp_path, DRAFT))
    section = DRAFT["speculators_config"]
    first, *others = section["proposal_methods"]
    fewer = [{k: v for k, v in section.items() if k != key} for key in section]
    fewer += [
        section | {"proposal_methods": [{k: v for k, v in first.items() if k != key}, *others]}
        for key in first
    ]
    fewer += [section | {"verifier": {k: v}} for k, v in section["verifier"].items()]
    for changed in fewer:
        assert from_hf(folder(tmp_path, DRAFT | {"speculators_config": changed})) != whole


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("eagle", {"method": "eagle"}),
        ("dflash", {"method": "dflash"}),
        ("dspark", {"method": "dspark"}),
        ("mtp", {"method": "mtp"}),
        ("medusa", {"method": "medusa"}),
        ("peagle", {"method": "eagle3", "parallel_drafting": True}),
        ("mlp", {}),
        (None, {}),
    ],
)
def test_each_algorithm_has_its_method(algorithm, expected, tmp_path):
    """One that is not known is left, and the method is then inferred from the checkpoint."""
    facts = {"speculators_config": {"algorithm": algorithm}}
    carried = from_hf(folder(tmp_path, facts))
    section = carried.data["speculative"]
    del section["model"]
    assert section == expected
    assert "model.source" in left_of(carried)
    only_type = {"speculators_config": {"x": 1}, "speculators_model_type": algorithm}
    again = from_hf(folder(tmp_path, only_type)).data["speculative"]
    assert {n: v for n, v in again.items() if n != "model"} == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "wanted an object"),
        ("{", "invalid JSON"),
        ('{"speculators_config": 3}', "speculators_config.*found 3.*a mapping"),
        ('{"speculators_config": {"proposal_methods": 3}}', "proposal_methods.*a list"),
        (
            '{"speculators_config":\n {"proposal_methods": [{"speculative_tokens": "3"}]}}',
            r"json:2: .*speculative_tokens: found '3' \(a string\); wanted an integer",
        ),
        ('{"dtype": 3}', "dtype.*found 3"),
    ],
)
def test_a_wrong_file_is_a_problem_with_its_place(text, message, tmp_path):
    """Nothing is coerced."""
    with pytest.raises(SpecError, match=message):
        from_hf(folder(tmp_path, text))


def test_a_missing_file_is_a_problem(tmp_path):
    """A folder without config.json holds no model."""
    with pytest.raises(SpecError, match="no such file"):
        from_hf(str(tmp_path))
