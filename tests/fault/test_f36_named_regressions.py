"""F36: reports of a wrong hit in other caches, each as a test with the issue's number in its name.

An engine's start is a lookup in a store on disk and, on a miss, an entry of a made-up library: nothing is compiled.
tests/unit/test_key_field_reports.py has more of the same reports, by their numbers in the field reports.
"""

import itertools

import pytest

from graphspec.cache.compiling.toolchain import toolchain
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Outcome
from graphspec.cache.units import EntryKey
from graphspec.capture.plan import plan_capture
from graphspec.config.device import DeviceConfig, Target
from graphspec.fields import Stage, is_config_class, policies
from graphspec.keys.encoding import decode
from graphspec.keys.factors import digest
from support.keyed import key, start, unit
from support.speculative import keys_of, resolved, resolved_case, variant

HIT, MISS = Outcome.HIT, Outcome.MISS


@pytest.fixture
def store(tmp_path):
    """The one cache folder that all starts of a test share."""
    return DiskStore(str(tmp_path / "cache"))


def started(store, keys):
    """Starts with these keys in turn: the outcomes. Each start runs what was compiled for its own key."""
    found = [(k, *start(store, k)) for k in keys]
    assert all(payload == f"compiled for {k.digest}".encode() for k, _, payload in found)
    return [outcome for _, outcome, _ in found]


def draft_key(spec):
    return key(unit("speculative"), spec)


@pytest.mark.parametrize("order", itertools.permutations((7, 9, 11)), ids=str)
def test_F36_vllm_53366_a_sweep_of_k_loads_each_depth_its_own_in_any_order(store, order):
    """Depths 7, 9 and 11 of a drafter whose shapes hold k: three entries, and a second sweep loads all three."""
    keys = [
        draft_key(resolved_case("dflash", {"num_speculative_tokens": k})) for k in (*order, *order)
    ]
    assert started(store, keys) == [MISS] * 3 + [HIT] * 3


def test_F36_vllm_53366_depths_1_and_15_share_no_startup_plan():
    """What a start goes by has the depth in it: both hashes of the contract that is captured, and the plan itself."""
    one, fifteen = (resolved_case("eagle3", {"num_speculative_tokens": k}) for k in (1, 15))
    assert one.compute_hash(Stage.CAPTURE) != fifteen.compute_hash(Stage.CAPTURE)
    assert not set(plan_capture(one).keys) & set(plan_capture(fifteen).keys)


def test_F36_vllm_53366_the_schedule_of_k_is_a_factor():
    """Two tables with one largest depth: other graphs are reachable, so the key of a capture is another."""
    tables = ([[1, 8, 4], [9, 64, 1]], [[1, 16, 4], [17, 64, 1]])
    name = "num_speculative_tokens_per_batch_size"
    one, other = (resolved_case("ngram", {name: table}) for table in tables)
    assert one.num_speculative_tokens == other.num_speculative_tokens
    assert one.compute_hash(Stage.CAPTURE) != other.compute_hash(Stage.CAPTURE)
    assert set(plan_capture(one).keys) != set(plan_capture(other).keys)


@pytest.mark.parametrize("name", ["draft_model", "eagle3"])
def test_F36_vllm_53366_the_drafting_mode_is_a_factor(store, name):
    """One after another or in parallel: same model, same depth, other code."""
    modes = [resolved_case(name), resolved_case(f"{name} parallel")]
    assert not set(keys_of(modes[0])) & set(keys_of(modes[1]))
    assert started(store, map(draft_key, modes)) == [MISS, MISS]


def test_F36_vllm_47911_draft_models_with_the_same_aux_layers_share_no_entry(store, tmp_path):
    """Two heads that read the same layers of the target and differ inside: each start loads its own."""
    layers = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}}
    drafts = [
        variant(tmp_path / f"draft{width}", "eagle3-head", intermediate_size=width, **layers)
        for width in (2816, 5632)
    ]
    specs = [resolved_case("eagle3", {"model": draft}) for draft in drafts]
    assert [s.speculative.speculator.aux_layer_ids for s in specs] == [(1, 3, 5)] * 2
    keys = [draft_key(spec) for spec in specs]
    assert started(store, [*keys, *keys]) == [MISS, MISS, HIT, HIT]


def test_F36_vllm_14953_a_variable_that_changes_the_graph_is_in_the_key(store, monkeypatch):
    """A layer split that comes by a variable, which the unit has to declare to be traced at all (F35)."""
    name = "VLLM_PP_LAYER_PARTITION"
    keys = []
    for split in ("16,16", "20,12", None, "16,16"):
        monkeypatch.delenv(name, raising=False)
        if split is not None:
            monkeypatch.setenv(name, split)
        keys.append(key(unit(environment=(name,)), resolved(None)))
    assert started(store, keys) == [MISS, MISS, MISS, HIT]


def test_F36_vllm_26468_29117_fields_are_hashed_by_default_and_factors_are_published(store):
    """What is left out has a written reason, and the entry on disk says by which factors it was found."""
    spec = resolved_case("eagle3")
    assert all(p.stage is not None or p.reason for p in every_policy(spec))
    wanted = key(unit("model.head_dim", "speculative.draft_model"), spec)
    start(store, wanted)
    published = decode(store.look(wanted).entry.key.text)["scope"]
    assert published["model.head_dim"] == spec.model.head_dim
    assert published["speculative.draft_model.intermediate_size"] == 2816


def every_policy(section):
    for name, policy in policies(type(section)).items():
        yield policy
        value = getattr(section, name)
        if is_config_class(type(value)):
            yield from every_policy(value)


def test_F36_vllm_41871_code_of_another_toolchain_is_never_loaded(store):
    """Each fact of the toolchain of a GPU engine, changed alone, is a miss: torch, its build, Triton and all others."""
    facts = dict(toolchain(DeviceConfig(target=Target.CUDA)))
    assert {"torch", "torch_git", "triton", "cuda", "python"} <= facts.keys()
    spec = resolved(None, device={"target": "cuda"})
    others = [{**facts, name: ("older", value)} for name, value in facts.items()]
    keys = [key(unit(), spec, toolchain=chain) for chain in (facts, *others, facts)]
    assert started(store, keys) == [MISS] * (1 + len(facts)) + [HIT]


def test_F36_flashinfer_4490_a_name_is_not_an_identity(store, tmp_path, monkeypatch):
    """One unit of one name and module: edited, it is a miss. A file under the digest of another key is no hit."""
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "planted_fused.py"
    named = unit(modules=("planted_fused",))
    keys = []
    for text in ("SCALE = 1\n", "SCALE = 2\n"):
        module.write_text(text)
        keys.append(key(named, resolved(None)))
    assert started(store, keys) == [MISS, MISS]
    impostor = EntryKey(keys[0].text + b" ", keys[0].digest)
    assert digest(impostor.text) != impostor.digest
    assert store.look(impostor).entry is None


@pytest.mark.parametrize("index", ["0", "3"])
def test_F36_skyrl_2183_pytorch_176532_ranks_share_one_entry(store, monkeypatch, index):
    """Which device and which rank a process has changes neither the key nor the file's place."""
    spec, device = resolved(None, device={"target": "cuda"}), DeviceConfig(target=Target.CUDA)
    first = key(unit("device"), spec, toolchain=toolchain(device))
    for name in ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, index)
    second = key(unit("device"), spec, toolchain=toolchain(device))
    assert started(store, [first, second]) == [MISS, HIT]
    assert store.path_of(first) == store.path_of(second)


def test_F36_skyrl_2183_pytorch_176532_the_size_of_a_group_is_a_factor(store):
    """Code for a quarter of the heads is no code for all of them."""
    sizes = [resolved(None, parallel={"tensor_parallel_size": size}) for size in (1, 4)]
    keys = [key(unit("parallel"), spec) for spec in sizes]
    assert started(store, [*keys, *keys]) == [MISS, MISS, HIT, HIT]
