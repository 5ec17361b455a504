"""Theme B of the field reports, B15 to B26: keys that hold too much, or are not stable.

Each report's own test and right outcome, as far as keys decide them. Left to other files: B25, a real warmup between the
two hashes, gets the frozen contract; here a plan is made of it.
"""

import functools
import itertools
import json
import os
import shutil
import sys
from pathlib import Path

import attrs
import pytest

from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Outcome
from graphspec.capture.plan import plan_capture
from graphspec.config.engine import EngineConfig
from graphspec.config.extras import LoRAConfig
from graphspec.errors import KeyFactorError, UndeclaredFactorError
from graphspec.fields import Stage, evolve, field_types, policies
from graphspec.frozen import FrozenMap
from graphspec.keys.encoding import decode, encode
from graphspec.keys.environment import code_environment
from graphspec.keys.factors import compute_hash, key_text
from graphspec.keys.inventory import config_classes
from graphspec.keys.source import source_digest
from graphspec.resolve.spec import EngineSpec
from support.keyed import TOOLCHAIN, key, start, unit
from support.processes import run_python
from support.speculative import CASES, engine, keys_of, resolved, resolved_case, variant

ROOT = Path(__file__).resolve().parents[2]
DEPTHS = range(1, 17)
BAKED = ["dflash", "dspark", "eagle3 parallel", "draft_model parallel"]
HIT, MISS = Outcome.HIT, Outcome.MISS


@pytest.fixture
def store(tmp_path):
    """An empty cache folder."""
    return DiskStore(str(tmp_path / "cache"))


@functools.cache
def at_depth(name, k):
    """The contract of a method at one depth."""
    return resolved_case(name, {"num_speculative_tokens": k})


def compile_key(spec):
    return spec.compute_hash(Stage.COMPILE)


PLACED = """
    import json, sys
    from support.keyed import key, unit
    from support.speculative import keys_of, resolved_case
    spec = resolved_case("eagle3")
    print(json.dumps([*keys_of(spec), key(unit("model", "speculative"), spec).digest]))
"""


def test_B15_placement_does_not_split_the_cache():
    """Four engines of one node, each with its own rank, bundle and device: one key of each kind."""
    runs = [
        run_python(
            PLACED,
            RANK=str(i),
            LOCAL_RANK=str(i),
            WORLD_SIZE="4",
            RAY_PLACEMENT_BUNDLE_INDEX=str(i),
            VLLM_RAY_BUNDLE_INDICES=str(i),
            CUDA_VISIBLE_DEVICES=str(i),
            HOSTNAME=f"pod-{i}",
        )
        for i in range(4)
    ]
    assert len(set(runs)) == 1
    assert json.loads(runs[0])[:2] == list(keys_of(resolved_case("eagle3")))


def test_B16_a_cache_moves_with_its_root_and_its_home(tmp_path, monkeypatch):
    """Warmed below one root, copied to another, started with every folder variable moved: the same keys, all hits."""
    names = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TORCHINDUCTOR_CACHE_DIR", "HF_HOME")

    def starts(root):
        chain = {**TOOLCHAIN, "environment": code_environment(os.environ)}
        specs = (resolved_case(name) for name in ("ngram", "eagle3", "dspark"))
        keys = [key(unit("speculative"), spec, toolchain=chain) for spec in specs]
        return [start(DiskStore(str(root)), k)[0] for k in keys], keys

    for name in names:
        monkeypatch.setenv(name, str(tmp_path / "one" / name))
    outcomes, keys = starts(tmp_path / "R1")
    assert outcomes == [MISS] * 3
    shutil.copytree(tmp_path / "R1", tmp_path / "R2")
    shutil.rmtree(tmp_path / "R1")
    for name in names:
        monkeypatch.setenv(name, str(tmp_path / "two" / name))
    assert starts(tmp_path / "R2") == ([HIT] * 3, keys)


def texts_in(value):
    """Every string inside a decoded key."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for k, v in value.items():
            yield from (*texts_in(k), *texts_in(v))
    elif isinstance(value, list | tuple | frozenset):
        for v in value:
            yield from texts_in(v)
    elif attrs.has(type(value)):
        yield from texts_in(attrs.asdict(value))


@pytest.mark.parametrize("name", CASES)
def test_B16_no_absolute_path_is_among_the_factors(name):
    """Neither in the spec's keys nor in a unit's."""
    spec = resolved_case(name, model={"weights": "/w", "tokenizer": "/t"})
    texts = [spec.key_text(stage) for stage in Stage] + [key(unit("model"), spec).text]
    for text in texts:
        assert [t for t in texts_in(decode(text)) if t.startswith(("/", "~")) or ":/" in t] == []


def test_B17_the_content_of_a_model_counts_and_its_folder_does_not(tmp_path):
    """Equal in two folders, other after one number changes, other for another model under the same path."""
    a, b = (variant(tmp_path / place / "m", "target-llama") for place in ("a", "b"))
    assert keys_of(resolved(None, a)) == keys_of(resolved(None, b))
    variant(tmp_path / "b" / "m", "target-llama", rope_theta=1e6)
    changed = keys_of(resolved(None, b))
    assert not set(keys_of(resolved(None, a))) & set(changed)
    variant(tmp_path / "b" / "m", "target-moe")
    assert not set(keys_of(resolved(None, b))) & set(changed)


def test_B17_the_same_for_a_draft(tmp_path):
    """The draft's folder does not count either, and what it says does."""
    a, b = (variant(tmp_path / place / "head", "eagle3-head") for place in ("a", "b"))
    first, second = (keys_of(resolved_case("eagle3", {"model": draft})) for draft in (a, b))
    assert first == second
    variant(tmp_path / "b" / "head", "eagle3-head", rope_theta=1e6)
    assert keys_of(resolved_case("eagle3", {"model": b}))[0] != first[0]


SETS = """
    import random
    from graphspec.keys.encoding import encode
    names = [f"op_{i}" for i in range(40)]
    found = set()
    for _ in range(20):
        random.shuffle(names)
        made = set()
        for name in names:
            made.add(name)
        found.add(encode({"ops": made, "frozen": frozenset(names)}).hex())
    print(*found)
"""


def test_B20_a_set_has_one_hash_in_whatever_order_it_was_filled():
    """20 orders in each of 5 processes with seeds of their own."""
    runs = {run_python(SETS, PYTHONHASHSEED=str(seed)) for seed in (0, 1, 2, 3, 4)}
    assert len(runs) == 1
    assert " " not in runs.pop()


def test_B20_which_fields_have_an_order_is_declared_by_their_types():
    """A tuple has one and a mapping none; no field is a set. Tables of ranges are sorted before they act."""
    for cls in config_classes([EngineConfig, EngineSpec]):
        assert not any("set[" in str(field_types(cls)[n]).lower() for n in policies(cls))
    spec = resolved(None)
    names = ("LlamaForCausalLM", "Other")
    ways = [evolve(spec, model=evolve(spec.model, architectures=n)) for n in (names, names[::-1])]
    assert compile_key(ways[0]) != compile_key(ways[1])
    table = [[1, 8, 4], [9, 32, 2], [33, 64, 1]]
    field = "num_speculative_tokens_per_batch_size"
    rows = [resolved_case("ngram", {field: list(r)}) for r in itertools.permutations(table)]
    assert len({keys_of(r) for r in rows}) == 1


def test_B21_shared_and_separate_objects_have_one_hash():
    """Equal content, whether one object stands in two places or two; the same for equal strings."""
    shared, word = [1, 2], bytes([116, 114, 105, 116, 111, 110]).decode()
    assert encode({"a": shared, "b": shared}) == encode({"a": [1, 2], "b": [1, 2]})
    assert word is not sys.intern("triton")
    assert encode((word, word)) == encode((word, sys.intern("triton")))
    spec = resolved_case("eagle3")
    twin = FrozenMap(json.loads(json.dumps(dict(spec.model.extra))))
    both = evolve(spec, model=evolve(spec.model, extra={"a": {"b": 1}}))
    again = evolve(spec, model=evolve(spec.model, extra={"a": FrozenMap({"b": 1})}))
    assert keys_of(both) == keys_of(again)
    assert keys_of(evolve(spec, model=evolve(spec.model, extra=twin))) == keys_of(spec)


def test_B22_the_order_of_listings_does_not_matter(monkeypatch):
    """Folders, environment and module lists in reverse: the same hashes."""
    modules = ("support.keyed", "graphspec.config.device", "graphspec.frozen")
    listing, walk = os.listdir, os.scandir
    variables = {"TRITON_F32_DEFAULT": "ieee", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "A": "1"}
    spec, package = resolved_case("dspark"), resolved(None, "target-llama")
    before = (keys_of(spec), keys_of(package), encode(source_digest(modules)))
    environment = encode(code_environment(variables))
    monkeypatch.setattr(os, "listdir", lambda *a: list(reversed(listing(*a))))
    monkeypatch.setattr(os, "scandir", lambda *a: iter(list(walk(*a))[::-1]))
    after = (
        keys_of(resolved_case("dspark")),
        keys_of(resolved(None, "target-llama")),
        encode(source_digest(modules[::-1])),
    )
    assert after == before
    assert encode(code_environment(dict(reversed(variables.items())))) == environment


@pytest.mark.parametrize("name", CASES)
def test_B25_the_identity_is_the_same_before_and_after_everything(name):
    """The config's right after validation and after it was resolved; the contract's before and after its plan is made."""
    config = EngineConfig.from_dict(engine(CASES[name].section, CASES[name].target))
    h0 = [compute_hash(config, stage) for stage in Stage]
    spec = config.resolve()
    d0 = keys_of(spec)
    plan = plan_capture(spec)
    assert plan.schedule.max_num_seqs == spec.scheduler.max_num_seqs
    list(map(repr, (spec, plan)))
    assert [compute_hash(config, stage) for stage in Stage] == h0
    assert keys_of(spec) == d0 == keys_of(config.resolve())


def test_B25_nothing_can_be_set_on_a_validated_object():
    """Fields, sections of sections, new names and items of mappings."""
    spec = resolved_case("eagle3")
    config = EngineConfig.from_dict(engine(CASES["eagle3"].section))
    for owner in (spec, spec.model, spec.speculative, spec.speculative.speculator, config):
        for name in [*policies(type(owner)), "brand_new"]:
            with pytest.raises(AttributeError):
                setattr(owner, name, None)
    with pytest.raises(TypeError):
        spec.speculative.draft_model.extra["x"] = 1


def test_B26_neighbouring_values_do_not_run_into_each_other():
    """Strings that join to the same, and nothing before or after a value."""
    assert encode(("ab", "c")) != encode(("a", "bc"))
    assert encode((None, "h")) != encode(("h", None))
    assert encode(("h",)) != encode(("h", None)) != encode(("h", ""))
    assert encode([["a"], []]) != encode([[], ["a"]])
    assert encode({"a": "b"}) != encode({"ab": ""})


def test_B26_no_key_is_made_of_nothing():
    """A unit without code, a scope of nothing, and a class without fields: refused, refused, and named."""
    with pytest.raises(KeyFactorError, match="no importable module"):
        source_digest(())
    with pytest.raises(UndeclaredFactorError, match="no COMPILE-keyed field"):
        key(unit("nothing.at_all"), resolved(None))
    speculator = resolved_case("suffix").speculative.speculator
    assert type(speculator).__qualname__.encode() in key_text(speculator, Stage.COMPILE)
    other = resolved_case("ngram").speculative.speculator
    assert compute_hash(speculator, Stage.COMPILE) != compute_hash(other, Stage.COMPILE)


CONSTANT = {
    "Note": "explanation only, and unkeyed where it stands",
    "NgramSpeculatorConfig": "matching runs on the host; its class is a factor",
    "NgramGPUSpeculatorConfig": "the same",
    "SuffixSpeculatorConfig": "the same",
    "CacheConfig": "where compiled code is kept, and unkeyed where it stands",
}
"""Sections whose fields are in no key, each with the reason."""


def test_B26_no_section_hashes_to_a_constant():
    """Every class with fields has a keyed one, except those on the list, whose fields all say why."""
    without = {
        cls
        for cls in config_classes([EngineConfig, EngineSpec])
        if policies(cls)
        and cls.__module__.startswith("graphspec.")
        and all(policy.stage is None for policy in policies(cls).values())
    }
    assert {cls.__name__ for cls in without} == set(CONSTANT)
    assert all(policy.reason for cls in without for policy in policies(cls).values())


def ten_thousand():
    """Contracts that each differ from all others in a keyed field: ten numbers for each of four fields."""
    spec, numbers = resolved_case("ngram"), range(1, 11)
    adapters = [LoRAConfig(max_loras=n) for n in numbers]
    budgets = [evolve(spec.scheduler, max_num_batched_tokens=512 * n) for n in numbers]
    for layers, width in itertools.product(numbers, numbers):
        model = evolve(spec.model, num_hidden_layers=layers, intermediate_size=64 * width)
        for lora, scheduler in itertools.product(adapters, budgets):
            yield evolve(spec, model=model, lora=lora, scheduler=scheduler)


def test_B26_ten_thousand_contracts_have_ten_thousand_keys():
    """No two of them share a COMPILE key."""
    found = [compile_key(spec) for spec in ten_thousand()]
    assert len(set(found)) == len(found) == 10_000
