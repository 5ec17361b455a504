"""Promises of resolution over all methods, checkpoints and engine facts that the strategies can make."""

import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphspec.config.engine import EngineConfig
from graphspec.errors import EnvironmentProblem, GraphspecError, SpecError
from graphspec.fields import Stage
from graphspec.formats.json_reader import read_json
from graphspec.formats.toml_reader import read_toml
from graphspec.formats.write import write_config
from graphspec.formats.yaml_reader import read_yaml
from graphspec.resolve import check, resolution
from graphspec.testing.strategies import engine_configs, near_misses
from support.peer_cases import folder

READERS = {"yaml": read_yaml, "toml": read_toml, "json": read_json}
LLAMA = {
    "draft_model": folder("draft-llama"),
    "eagle": folder("eagle-head"),
    "eagle3": folder("eagle3-head"),
}
TARGETS = {
    "target-llama": LLAMA,
    "target-deepseek-n2": {"mtp": folder("mtp-deepseek-n2")},
    "target-qwen3": {"dflash": folder("dflash-qwen3"), "dspark": folder("dspark-qwen3")},
}


@st.composite
def whole_configs(draw):
    """Plain data of an engine with any method, for one of the small checkpoints."""
    target = draw(st.sampled_from(sorted(TARGETS)))
    return draw(engine_configs(folder(target), TARGETS[target]))


def outcome(data):
    """The spec of plain data, or its problems."""
    made = check(data)
    return made.spec if made.spec is not None else made.problems


@given(whole_configs())
def test_resolving_is_deterministic(data):
    """Equal data gives an equal spec with equal keys, or equal problems."""
    first, second = outcome(copy.deepcopy(data)), outcome(data)
    assert first == second
    if not isinstance(first, tuple):
        assert all(first.compute_hash(s) == second.compute_hash(s) for s in Stage)


@given(whole_configs())
def test_resolving_writes_into_nothing(data):
    """The user's data and the config are what they were, and resolving again gives the same."""
    before = copy.deepcopy(data)
    config = None
    try:
        config = EngineConfig.from_dict(data)
        kept = copy.deepcopy(config)
        first, second = resolution(config), resolution(config)
        assert first == second
    except SpecError:
        pass
    assert data == before
    assert config is None or config == kept


@pytest.mark.parametrize("kind", READERS)
@given(data=whole_configs())
def test_a_written_config_resolves_to_an_equal_spec(kind, data):
    """Write, read and resolve: the same spec, or the same problems, in all three formats."""
    config = EngineConfig.from_dict(data)
    document = READERS[kind](write_config(config, kind), "written")
    assert EngineConfig.from_dict(document.data) == config
    assert outcome(document.data) == outcome(data)


@given(whole_configs())
def test_the_forwards_of_every_valid_config_agree(data):
    """Lookahead is never negative, a verify step has 1 + k tokens a request, and no schedule exceeds k."""
    made = check(data)
    if made.spec is None:
        return
    spec, k = made.spec, made.spec.num_speculative_tokens
    assert spec.uniform_decode_query_len == 1 + k
    assert spec.num_lookahead_tokens >= 0
    assert 0 <= spec.num_hash_lookahead_tokens <= spec.num_prefill_lookahead_tokens
    assert spec.max_num_new_slots_for_drafting >= 0
    assert 1 <= spec.max_num_draft_seqs <= spec.scheduler.max_num_seqs
    assert spec.schedule.max_num_seqs == spec.scheduler.max_num_seqs
    assert max(spec.schedule.depths) <= k
    assert spec.max_draft_len <= spec.model.max_model_len
    assert spec.use_eagle_block_drop <= spec.needs_eagle_block_drop
    widest = max(b * (1 + spec.schedule.k_for(b)) for b in range(1, spec.schedule.max_num_seqs + 1))
    assert widest <= spec.scheduler.max_num_batched_tokens


@given(whole_configs())
def test_no_setting_is_granted_more_than_asked(data):
    """A schedule, a mode or a limit is at most what the config asks for, and less only with a reason."""
    made = check(data)
    if made.spec is None:
        return
    spec, config = made.spec, EngineConfig.from_dict(data)
    assert spec.scheduler.max_num_seqs <= config.scheduler.max_num_seqs
    lowered = spec.scheduler.max_num_seqs < config.scheduler.max_num_seqs
    assert lowered == any(n.code == "max_num_seqs_lowered" for n in spec.notes)
    assert (spec.mode.granted is not spec.mode.asked) == bool(spec.mode.reasons)
    if config.compilation.strict:
        assert not lowered
        assert not spec.mode.reasons
        assert spec.speculative is None or not spec.speculative.schedule.reasons


@given(near_misses(EngineConfig))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_an_invalid_config_raises_our_error_and_no_other(pair):
    """Each near miss is refused with the path of the one place that is wrong."""
    _, broken, path = pair
    made = check(broken)
    assert made.spec is None
    assert isinstance(made.error(), GraphspecError)
    assert any(p.where.startswith(path) or path.startswith(p.where) for p in made.problems)
    with pytest.raises((SpecError, EnvironmentProblem)):
        raise made.error()
