"""Generated configs: good ones resolve to one contract and one hash everywhere, bad ones only ever raise ours."""

import copy
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from graphspec.capture.plan import plan_capture
from graphspec.config.engine import EngineConfig
from graphspec.errors import GraphspecError, SpecError
from graphspec.fields import Stage
from graphspec.formats.yaml_reader import read_yaml
from graphspec.resolve import check
from graphspec.testing.strategies import engine_configs
from support.peer_cases import folder
from support.specs import config_folder, plain_config, run_python

MODES = ["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return str(config_folder(tmp_path_factory.mktemp("model")))


@st.composite
def sections(draw):
    """A config that keeps every rule, without its model.source."""
    requests, k = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    block, longest = draw(st.sampled_from([1, 4, 16])), draw(st.integers(2, 256))
    speculative = None
    if draw(st.booleans()):
        split = draw(st.integers(1, requests))
        table = [[1, split, draw(st.integers(0, 8))], [split + 1, 99, draw(st.integers(0, 8))]]
        speculative = {"method": "ngram", "num_speculative_tokens": k}
        speculative |= draw(
            st.sampled_from(
                [{}, {"num_speculative_tokens_per_batch_size": table}, {"prompt_lookup_min": 2}]
            )
        )
    return {
        "model": {
            "dtype": draw(st.sampled_from(["float32", "bfloat16", "float16"])),
            "max_model_len": longest,
            "hf_overrides": draw(st.sampled_from([{}, {"rope_theta": 5e5}, {"vocab_size": 7}])),
        },
        "scheduler": {
            "max_num_seqs": requests,
            "max_num_batched_tokens": requests * (1 + k) + draw(st.integers(0, 9)),
        },
        "kv_cache": {"block_size": block, "num_blocks": 2 + longest // block},
        "compilation": {
            "cudagraph_mode": draw(st.sampled_from(MODES)),
            "runner": draw(st.sampled_from(["v1", "v2"])),
        },
        "speculative": speculative,
    }


def placed(config, source):
    made = copy.deepcopy(config)
    made["model"]["source"] = source
    return made


@given(config=sections())
def test_a_good_config_resolves_to_one_contract_and_one_hash(source, config):
    """Resolving is a function: equal configs, in any order of keys, give equal contracts and keys."""
    data = placed(config, source)
    one = EngineConfig.from_dict(data).resolve()
    turned = {name: data[name] for name in reversed(data)}
    other = EngineConfig.from_dict(turned).resolve()
    assert one == other
    for stage in Stage:
        assert one.compute_hash(stage) == other.compute_hash(stage)
        assert one.key_text(stage) == other.key_text(stage)


@given(one=sections(), other=sections())
def test_contracts_that_differ_in_a_key_s_fields_differ_in_the_hash(source, one, other):
    """Two contracts share a capture hash only when they agree in every keyed field."""
    from graphspec.keys.factors import factor_tree

    a, b = (EngineConfig.from_dict(placed(c, source)).resolve() for c in (one, other))
    for stage in Stage:
        same = factor_tree(a, stage) == factor_tree(b, stage)
        assert (a.compute_hash(stage) == b.compute_hash(stage)) is same


@given(config=sections())
def test_the_contract_keeps_its_own_rules(source, config):
    """What resolves fits: the widest step in the budget, the longest sequence in the cache, depth within k."""
    spec = EngineConfig.from_dict(placed(config, source)).resolve()
    schedule = spec.schedule
    for requests in range(1, spec.scheduler.max_num_seqs + 1):
        k = schedule.k_for(requests)
        assert 0 <= k <= spec.num_speculative_tokens
        assert requests * (1 + k) <= spec.scheduler.max_num_batched_tokens
    assert (spec.kv_cache.num_blocks - 1) * spec.kv_cache.block_size >= spec.model.max_model_len
    assert bool(spec.mode.reasons) is (spec.mode.asked is not spec.mode.granted)


@given(config=sections(), budget=st.integers(1, 90))
def test_a_tight_budget_grants_as_many_requests_as_fit(source, config, budget):
    """max_num_seqs is lowered to the most requests whose steps all fit, with a note, and never further.

    Refused is only what cannot be served at all: less than a token for each request, or than one request's drafts.
    """
    data = placed(config, source)
    asked = data["scheduler"]["max_num_seqs"]
    whole = EngineConfig.from_dict(data).resolve()
    data["scheduler"]["max_num_batched_tokens"] = budget
    tokens = [b * (1 + whole.schedule.k_for(b)) for b in range(1, asked + 1)]
    made = check(data)
    if made.spec is None:
        assert [p.where for p in made.problems] == ["scheduler.max_num_batched_tokens"]
        assert budget < max(asked, tokens[0])
        return
    spec = made.spec
    granted = spec.scheduler.max_num_seqs
    assert all(t <= budget for t in tokens[:granted])
    assert granted == asked or tokens[granted] > budget
    assert spec.schedule.dense == whole.schedule.dense[: granted + 1]
    assert [n.code for n in spec.notes] == ["max_num_seqs_lowered"] * (granted < asked)
    plan = plan_capture(spec)
    assert all(key.bucket <= granted and key.tokens <= budget for key in plan.keys)


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=3)
    | st.sampled_from(["ngram", "float32", "FULL", "v2", "cpu", "native"])
)
names = st.sampled_from(
    [
        "model",
        "source",
        "scheduler",
        "max_num_seqs",
        "kv_cache",
        "speculative",
        "method",
        "hf_overrides",
        "model.source",
    ]
)
junk = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(names | scalars, inner, max_size=4)
    ),
    max_leaves=8,
)


def attempt(call, kind):
    """What a call gives and None, or None and the error of this kind that it raises."""
    try:
        return call(), None
    except kind as error:
        return None, error


def only_ours(data):
    """Reading raises nothing but SpecError, resolving nothing but our errors, and checking has what both say."""
    made = check(data)
    assert (made.spec is None) is bool(made.problems)
    config, refused = attempt(lambda: EngineConfig.from_dict(data), SpecError)
    if config is None:
        assert made.problems[: len(refused.problems)] == refused.problems
        assert "Partial" not in str(made.error())
        return
    spec, refused = attempt(config.resolve, GraphspecError)
    assert spec == made.spec
    if spec is None:
        assert type(refused) is type(made.error())
        assert refused.problems == made.problems


@given(junk)
@example({"model": {"source": "x", "hf_overrides": {1: 2}}})
@example({"model": {"source": "package:__main__"}})
def test_junk_raises_only_spec_errors(data):
    """Any plain data at all."""
    only_ours(data)


def replace_one(data, steps, value):
    """Puts `value` in the place of one part of `data`, which `steps` lead to."""
    step, *rest = steps
    keys = list(data) if isinstance(data, dict) else range(len(data))
    key = keys[step % len(keys)]
    if rest and data[key] and isinstance(data[key], dict | list):
        replace_one(data[key], rest, value)
    else:
        data[key] = value


@given(config=sections(), steps=st.lists(st.integers(0, 9), min_size=1, max_size=4), value=junk)
def test_a_good_config_with_one_bad_value_raises_only_ours(source, config, steps, value):
    """One value of a good config replaced by junk, at any depth."""
    data = placed(config, source)
    replace_one(data, steps, value)
    only_ours(data)


TARGET, DRAFTS = (
    "target-llama",
    {"draft_model": "draft-llama", "eagle": "eagle-head", "eagle3": "eagle3-head"},
)


@given(
    config=engine_configs(folder(TARGET), {m: folder(d) for m, d in DRAFTS.items()}),
    changes=st.lists(
        st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=4), junk), min_size=1, max_size=3
    ),
)
def test_several_bad_values_with_any_method_raise_only_ours(config, changes):
    """Up to three values of a config with any drafting method replaced by junk: one report, and no step trips."""
    data = copy.deepcopy(config)
    for steps, value in changes:
        replace_one(data, steps, value)
    only_ours(data)


@given(st.text(max_size=60) | st.text("{}[]:,-&*!|>'\"#%@? \n\tab01<=~", max_size=40))
@example("a: !!bool maybe")
@example("a: !!int ''")
@example("a: !!timestamp x")
@example("? [a]\n: b")
@example("a: &x [*x]")
@example("<<: {a: 1}")
def test_any_text_is_read_or_refused(text):
    """Whatever a file says, reading it raises nothing but SpecError, and every part read has a line."""
    try:
        document = read_yaml(text, "f.yaml")
    except SpecError:
        return
    lines = len(text.splitlines()) + 1
    assert all(1 <= line <= lines for line in document.lines.values())


HASHES = """
import json, sys, graphspec
specs = [graphspec.EngineConfig.from_dict(c).resolve() for c in json.load(open(sys.argv[1]))]
print(json.dumps([[s.compute_hash(stage) for stage in graphspec.Stage] for s in specs]))
"""


def test_the_hash_is_the_same_in_every_process_and_place(source, tmp_path):
    """Another hash seed, working folder, home, time zone, locale and checkpoint folder change no hash."""
    elsewhere = str(config_folder(tmp_path / "elsewhere"))
    table = {"num_speculative_tokens_per_batch_size": [[1, 2, 2], [3, 4, 1]]}
    speculative = {"method": "ngram", "num_speculative_tokens": 2}
    variants = [
        {},
        {"speculative": None},
        {"speculative": speculative | table},
        {"device": {"isa": "x86-64-v3"}},
    ]

    def configs(folder):
        return [plain_config(folder, **sections) for sections in variants]

    here = [
        [EngineConfig.from_dict(c).resolve().compute_hash(stage) for stage in Stage]
        for c in configs(source)
    ]
    assert len({tuple(pair) for pair in here}) == len(variants)
    (tmp_path / "configs.json").write_text(json.dumps(configs(elsewhere)))
    for seed, zone, locale in (("1", "Asia/Tokyo", "C"), ("77", "America/Lima", "C.UTF-8")):
        done = run_python(
            HASHES,
            str(tmp_path / "configs.json"),
            cwd=tmp_path,
            PYTHONHASHSEED=seed,
            HOME=str(tmp_path),
            TZ=zone,
            LC_ALL=locale,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == here
