"""Plain data to config classes: nothing is coerced, nothing is ignored, everything is reported at once."""

import copy

import pytest

from graphspec.config.compilation import CudagraphMode
from graphspec.config.engine import EngineConfig
from graphspec.config.model import Dtype
from graphspec.config.partial import UnreadableError
from graphspec.config.scheduler import SchedulerConfig
from graphspec.config.structure import structure_partial
from graphspec.errors import SpecError
from graphspec.frozen import thaw

BASE = {"model": {"source": "somewhere"}}


def problems_of(data):
    with pytest.raises(SpecError) as caught:
        EngineConfig.from_dict(data)
    return {p.where: p for p in caught.value.problems}


def test_a_full_config_is_taken_as_it_is():
    """Every section arrives with its values; enums come from their names, lists become tuples."""
    config = EngineConfig.from_dict(
        {
            "model": {
                "source": "m",
                "dtype": "bfloat16",
                "max_model_len": 64,
                "hf_overrides": {"rope_theta": 5},
            },
            "parallel": {"tensor_parallel_size": 2},
            "scheduler": {"max_num_seqs": 8},
            "compilation": {"cudagraph_mode": "PIECEWISE", "strict": True},
            "speculative": {
                "method": "ngram",
                "num_speculative_tokens": 4,
                "num_speculative_tokens_per_batch_size": [[1, 4, 4], [5, 8, 2]],
            },
            "program": "a.b:c",
        }
    )
    assert config.model.dtype is Dtype.BFLOAT16
    assert config.model.hf_overrides == {"rope_theta": 5}
    assert config.compilation.cudagraph_mode is CudagraphMode.PIECEWISE
    assert config.compilation.strict is True
    assert config.parallel.tensor_parallel_size == 2
    assert config.speculative.num_speculative_tokens_per_batch_size == ((1, 4, 4), (5, 8, 2))
    assert config.program == "a.b:c"


def test_defaults_fill_what_is_not_written():
    """Only model.source has no default; speculation is off."""
    config = EngineConfig.from_dict(BASE)
    assert config.speculative is None
    assert config.scheduler == SchedulerConfig()


@pytest.mark.parametrize(
    ("section", "field", "value", "wanted"),
    [
        ("scheduler", "max_num_seqs", "7", "an integer"),
        ("scheduler", "max_num_seqs", 7.0, "an integer"),
        ("scheduler", "max_num_seqs", True, "an integer"),
        ("scheduler", "max_num_seqs", None, "an integer"),
        ("scheduler", "max_num_seqs", [7], "an integer"),
        ("kv_cache", "enable_prefix_caching", "true", "true or false"),
        ("kv_cache", "enable_prefix_caching", 1, "true or false"),
        ("compilation", "cudagraph_mode", "full", "FULL"),
        ("compilation", "cudagraph_mode", 1, "FULL"),
        ("compilation", "runner", None, "v2"),
        ("model", "source", 3, "a string"),
        ("model", "max_model_len", "128", "an integer"),
        ("model", "max_model_len", 128.0, "an integer"),
        ("model", "hf_overrides", [], "a mapping"),
        ("speculative", "num_speculative_tokens_per_batch_size", {}, "a list"),
    ],
)
def test_nothing_is_coerced(section, field, value, wanted):
    """A value of another type is refused with its path, what it is, and what was wanted."""
    data = copy.deepcopy(BASE)
    if section == "speculative":
        data["speculative"] = {"method": "ngram", "num_speculative_tokens": 1}
    data.setdefault(section, {})[field] = value
    found = problems_of(data)
    assert list(found) == [f"{section}.{field}"]
    assert wanted in found[f"{section}.{field}"].wanted


@pytest.mark.parametrize("section", ["model", "scheduler", "speculative", "device"])
@pytest.mark.parametrize("value", ["x", 3, [], True])
def test_a_section_that_is_no_mapping_names_its_fields(section, value):
    """A section written as a scalar or list says which keys it has."""
    found = problems_of({**BASE, section: value})
    assert list(found) == [section]
    assert "a mapping" in found[section].wanted


def test_only_an_optional_section_may_be_null():
    """speculative: null is the same as no speculation; scheduler: null is an error."""
    assert EngineConfig.from_dict({**BASE, "speculative": None}).speculative is None
    assert list(problems_of({**BASE, "scheduler": None})) == ["scheduler"]


@pytest.mark.parametrize("whole", [None, [], "x", 3])
def test_a_config_that_is_no_mapping_is_refused(whole):
    """The root must be a mapping of sections."""
    assert list(problems_of(whole)) == [""]


@pytest.mark.parametrize(
    ("data", "where", "suggestion"),
    [
        ({"modle": {}}, "modle", "model"),
        ({"scheduler": {"max_num_seq": 4}}, "scheduler.max_num_seq", "max_num_seqs"),
        ({"scheduler": {"max-num-seq": 4}}, "scheduler.max-num-seq", "max_num_seqs"),
        ({"KV_CACHE": {}}, "KV_CACHE", "kv_cache"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_name(data, where, suggestion):
    """Unknown keys are never ignored; the hint names the likely one."""
    found = problems_of({**BASE, **data})
    assert list(found) == [where]
    assert suggestion in found[where].hint


def test_a_hyphen_in_a_key_stands_for_an_underscore():
    """Keys may be written as on a command line, sections and fields alike."""
    config = EngineConfig.from_dict({**BASE, "kv-cache": {"block-size": 8}})
    assert config == EngineConfig.from_dict({**BASE, "kv_cache": {"block_size": 8}})


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ({"scheduler": {"max-num-seqs": 4, "max_num_seqs": 4}}, "scheduler.max_num_seqs"),
        ({"kv-cache": {}, "kv_cache": {}}, "kv_cache"),
    ],
)
def test_one_field_in_two_spellings_is_refused(data, where):
    """Nobody can say which of the two was meant, even where both are equal."""
    found = problems_of({**BASE, **data})
    assert list(found) == [where]
    assert found[where].found == "this field twice"


def test_an_unknown_key_like_no_other_lists_what_is_known():
    """Without a near name the hint lists all."""
    assert "block_size" in problems_of({**BASE, "kv_cache": {"zzz": 1}})["kv_cache.zzz"].hint


def test_an_enum_misspelling_gets_a_suggestion():
    """Near misses of enum values are suggested, not taken."""
    found = problems_of({**BASE, "model": {"source": "m", "dtype": "bfloat"}})
    assert "bfloat16" in found["model.dtype"].hint


def test_a_missing_required_field_is_named():
    """model.source has no default."""
    assert list(problems_of({})) == ["model"]
    assert list(problems_of({"model": {}})) == ["model.source"]


def test_all_problems_come_at_once():
    """Wrong types, bounds, unknown keys, table entries and missing fields of all sections, in one error."""
    found = problems_of(
        {
            "model": {"dtype": "f4"},
            "scheduler": {"max_num_seqs": 0, "max_num_batched_tokens": "many"},
            "kv_cache": {"block": 8},
            "speculative": {
                "num_speculative_tokens": True,
                "num_speculative_tokens_per_batch_size": [[1, 2], [3, 4, "x"], 5],
            },
            "extra": 1,
        }
    )
    table = "speculative.num_speculative_tokens_per_batch_size"
    assert set(found) == {
        "model.dtype",
        "model.source",
        "scheduler.max_num_seqs",
        "scheduler.max_num_batched_tokens",
        "kv_cache.block",
        "speculative.num_speculative_tokens",
        f"{table}[0]",
        f"{table}[1][2]",
        f"{table}[2]",
        "extra",
    }


def test_bounds_of_every_section_hold():
    """A number outside its bounds is named with the bound."""
    found = problems_of({**BASE, "kv_cache": {"block_size": 1 << 17, "num_blocks": 1}})
    assert "at most 65536" in found["kv_cache.block_size"].wanted
    assert "at least 2" in found["kv_cache.num_blocks"].wanted


class Opaque:
    """No plain data."""


@pytest.mark.parametrize(
    ("overrides", "where", "wanted"),
    [
        ({"rope_theta": float("inf")}, "model.hf_overrides.rope_theta", "a finite number"),
        ({"layers": [1, Opaque()]}, "model.hf_overrides.layers", "plain data"),
        ({"text_config": {7: 1}}, "model.hf_overrides.text_config", "keys are strings"),
        ({7: 1}, "model.hf_overrides.7 (an integer)", "a string"),
        (7, "model.hf_overrides", "a mapping or a string"),
    ],
)
def test_overrides_hold_what_json_can_hold(overrides, where, wanted):
    """hf_overrides takes any JSON values under string keys, or the name of a function; the error names the key."""
    found = problems_of({"model": {"source": "m", "hf_overrides": overrides}})
    assert list(found) == [where]
    assert wanted in found[where].wanted


@pytest.mark.parametrize(
    "overrides",
    [{"rope_theta": None, "text_config": {"layer_types": ["a", ["b"]], "eps": 0.5}}, "pkg.mod:fn"],
)
def test_overrides_are_kept_frozen(overrides):
    """Nested overrides compare equal to what was written, as data that nobody can change."""
    kept = EngineConfig.from_dict({"model": {"source": "m", "hf_overrides": overrides}})
    hash(kept)
    assert thaw(kept.model.hf_overrides) == overrides


def test_a_config_does_not_change_with_the_data_it_was_made_from():
    """Frozen means frozen: the caller's dictionary can be reused."""
    data = {"model": {"source": "m", "hf_overrides": {"rope_theta": 5.0}}}
    config = EngineConfig.from_dict(data)
    data["model"]["hf_overrides"]["rope_theta"] = 6.0
    assert config.model.hf_overrides == {"rope_theta": 5.0}


def test_the_data_is_left_as_it_was():
    """Reading a config writes nothing into the caller's data."""
    data = {"model": {"source": "m", "hf_overrides": {"rope_theta": 5.0}}, "speculative": None}
    before = copy.deepcopy(data)
    EngineConfig.from_dict(data)
    assert data == before


def nested(levels):
    data = []
    for _ in range(levels):
        data = [data]
    return data


BAD_SECTIONS = {
    "a type": {"max_num_seqs": "4"},
    "a bound": {"max_num_seqs": 0},
    "an unknown key": {"max_num_seq": 4, "max_num_seqs": 4},
    "no mapping": 3,
}


@pytest.mark.parametrize("scheduler", BAD_SECTIONS.values(), ids=BAD_SECTIONS)
def test_rules_of_a_section_run_beside_problems_elsewhere(scheduler):
    """A rule whose fields are readable reports in the same error as a wrong type or key."""
    speculative = {"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 2, "x": 1}
    found = problems_of({**BASE, "scheduler": scheduler, "speculative": speculative})
    places = [where for where in found if not where.startswith("scheduler")]
    assert places == ["speculative.x", "speculative.prompt_lookup_min"]
    assert len(found) == 3


def test_a_rule_that_lacks_a_field_is_left_out():
    """A field with a problem of its own is reported once, and no rule guesses about it."""
    speculative = {"method": "ngram", "prompt_lookup_min": "5", "prompt_lookup_max": 2}
    found = problems_of({**BASE, "speculative": speculative})
    assert list(found) == ["speculative.prompt_lookup_min"]
    assert found["speculative.prompt_lookup_min"].wanted == "an integer"


def test_a_partial_section_gives_what_was_read():
    """Fields that were read, and defaults, have values; one with a problem, of its type or by a rule, has none."""
    data = {
        **BASE,
        "scheduler": {"max_num_seqs": "4"},
        "speculative": {"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 2},
    }
    made, problems = structure_partial(data, EngineConfig)
    assert len(problems) == 2
    assert made.model.source == "somewhere"
    assert made.scheduler.max_num_batched_tokens == SchedulerConfig().max_num_batched_tokens
    assert (made.speculative.method, made.speculative.prompt_lookup_max) == ("ngram", 2)
    for section, name in (
        (made.scheduler, "max_num_seqs"),
        (made.speculative, "prompt_lookup_min"),
    ):
        with pytest.raises(UnreadableError):
            getattr(section, name)


JUNK = {
    "deep": nested(100_000),
    "digits": 10**5000,
    "digits as a key": {10**5000: 1},
    "long": "x" * 100_000,
    "no key": {None: None},
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_values_that_python_cannot_print_are_still_a_spec_error(junk):
    """Endless digits, levels or text end in a SpecError of bounded length."""
    with pytest.raises(SpecError) as caught:
        EngineConfig.from_dict({**BASE, "scheduler": junk})
    assert len(str(caught.value)) < 5000
