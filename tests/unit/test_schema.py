"""The JSON Schema of a config: current, valid itself, and of one mind with `EngineConfig.from_dict`."""

import json
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from jsonschema import Draft202012Validator
from jsonschema.validators import extend

from graphspec.config.engine import EngineConfig
from graphspec.errors import SpecError
from graphspec.fields import policies
from graphspec.formats import schema as schema_module
from graphspec.formats.schema import config_schema, main, schema_text
from graphspec.formats.yaml_reader import read_yaml
from graphspec.testing.strategies import CONFIG_CLASSES, near_misses
from support.specs import ROOT

SHIPPED = Path(schema_module.__file__).with_name("schema.json")
SCHEMA = config_schema()
VALIDATOR = Draft202012Validator(SCHEMA)
# JSON Schema counts 7.0 among the integers. Files tell 7 and 7.0 apart, and so do we.
STRICT = extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: type(value) is int
    ),
)(SCHEMA)


def accepted(data):
    try:
        EngineConfig.from_dict(data)
    except SpecError:
        return False
    return True


def is_json(data):
    try:
        json.dumps(data, allow_nan=False)
    except ValueError:
        return False
    return True


def sections():
    """Every object in the schema that describes a section, with its class."""
    classes = {cls.__name__: cls for cls in CONFIG_CLASSES}
    return [(EngineConfig, SCHEMA)] + [(classes[n], s) for n, s in SCHEMA["$defs"].items()]


def test_the_shipped_file_is_current():
    """graphspec/formats/schema.json is what the fields of today say."""
    assert SHIPPED.read_text(encoding="utf-8") == schema_text(), (
        "a config class has changed; write the file again: "
        "python -m graphspec.formats.schema > graphspec/formats/schema.json"
    )


def test_the_command_writes_the_text(capsys):
    """What the message says to run prints the schema, the same in every run."""
    main()
    assert capsys.readouterr().out == schema_text()
    assert schema_text() == schema_text()
    assert schema_text().endswith("}\n")


def test_the_schema_is_valid_itself():
    """It keeps the rules of JSON Schema 2020-12, and names its dialect and itself."""
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["$id"] == "urn:graphspec-engine:config:1"
    assert SCHEMA["title"]


def test_every_field_says_what_it_is_for():
    """All fields of all sections are there with doc, stage and reason; others are refused, required ones demanded."""
    assert {cls for cls, _ in sections()} == {c for c in CONFIG_CLASSES if c.__name__ in TITLES}
    for cls, section in sections():
        declared = policies(cls)
        assert list(section["properties"]) == list(declared)
        assert section["additionalProperties"] is False
        required = {n for n, f in attrs.fields_dict(cls).items() if f.default is attrs.NOTHING}
        assert set(section["required"]) == required
        for name, field in section["properties"].items():
            policy = declared[name]
            assert field["description"] == policy.doc
            assert field["x-stage"] == (policy.stage.value if policy.stage else "none")
            assert field.get("x-reason", "") == policy.reason
            assert field.get("x-group", "") == policy.group
            assert (field.get("minimum"), field.get("maximum")) == (policy.minimum, policy.maximum)
            assert ("default" in field) is (name not in required)


TITLES = {EngineConfig.__name__, *SCHEMA["$defs"]}


@pytest.mark.parametrize(
    ("section", "field", "wanted"),
    [
        ("ModelConfig", "dtype", {"enum": ["float32", "bfloat16", "float16"]}),
        ("ModelConfig", "max_model_len", {"type": ["integer", "null"], "default": None}),
        ("SchedulerConfig", "max_num_seqs", {"minimum": 1, "maximum": 65536, "default": 64}),
        ("KVCacheConfig", "enable_prefix_caching", {"type": "boolean", "x-stage": "none"}),
        ("SpeculativeConfig", "suffix_decoding_min_token_prob", {"type": ["number", "null"]}),
        ("SpeculativeConfig", "method", {"x-group": "source and parallelism"}),
    ],
)
def test_a_field_looks_as_declared(section, field, wanted):
    """Enums list their values, nullable fields say so, bounds and defaults are those of the field."""
    found = SCHEMA["$defs"][section]["properties"][field]
    assert {name: found[name] for name in wanted} == wanted


def test_a_range_of_the_table_is_three_integers():
    """A tuple of fixed length is an array with its items in order and no others."""
    table = SCHEMA["$defs"]["SpeculativeConfig"]["properties"][
        "num_speculative_tokens_per_batch_size"
    ]
    (rows,) = [choice["items"] for choice in table["anyOf"] if choice["type"] == "array"]
    assert rows["prefixItems"] == [{"type": "integer"}] * 3
    assert (rows["minItems"], rows["maxItems"], rows["items"]) == (3, 3, False)


def test_defaults_are_valid():
    """What a field holds when nothing is written is a value that the schema takes."""
    for _, section in sections():
        for field in section["properties"].values():
            whole = {**field, "$defs": SCHEMA["$defs"]}
            if "default" in field:
                Draft202012Validator(whole).validate(field["default"])


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.name)
def test_the_examples_validate(path):
    """Every example config keeps the schema."""
    VALIDATOR.validate(read_yaml(path.read_text(encoding="utf-8"), path.name).data)


@given(miss=near_misses(EngineConfig))
def test_the_schema_and_from_dict_agree(miss):
    """Both take a generated config. Both refuse its twin with a wrong type, bound or spelling, or without a key."""
    valid, broken, _ = miss
    EngineConfig.from_dict(valid)
    assert [error.message for error in STRICT.iter_errors(valid)] == []
    assert not accepted(broken)
    if is_json(broken):
        assert not STRICT.is_valid(broken)


@pytest.mark.parametrize(
    "data",
    [
        {"model": {"source": "m"}, "scheduler": {"max_num_seqs": 7.0}},
        {"model": {"source": "m"}, "speculative": {"tensor_parallel_size": 2}},
        {"model": {"source": "m"}, "kernels": {"attention_backend": "FLASHY"}},
        {"model": {"source": "m"}, "speculative": {"fly_window_size": 2}},
    ],
)
def test_what_a_schema_cannot_say_is_left_to_from_dict(data):
    """A whole float for an integer, and the rules between fields, are refused by from_dict alone."""
    assert VALIDATOR.is_valid(data)
    assert not accepted(data)


def test_hyphens_are_for_from_dict_alone():
    """The schema knows the one spelling that is documented."""
    data = {"model": {"source": "m"}, "kv-cache": {"block-size": 8}}
    assert accepted(data)
    assert not VALIDATOR.is_valid(data)


def test_a_type_without_a_schema_is_named():
    """A field whose type has no schema fails when the schema is made, with the type."""
    with pytest.raises(TypeError, match="bytes"):
        schema_module._value(bytes, {})
