"""Reports B52 to B57 of shared/reference/field-reports.md (theme E, warmup and cold start): each one's test and right outcome."""

import functools
import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import attrs
import pytest
import yaml

from graphspec.cache import load
from graphspec.cache.compiling.compiler import Compiled
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.folder.locks import KeyLocks
from graphspec.cache.load import keyed_units, load_or_compile
from graphspec.cache.store import Outcome
from graphspec.capture.dispatch import Step, dispatch
from graphspec.capture.plan import plan_capture
from graphspec.capture.report import Decisions
from graphspec.capture.warmup import warmup
from graphspec.config.engine import EngineConfig
from graphspec.engine.buffers import RequestRows
from graphspec.engine.executor import Executor
from graphspec.engine.llama import program as llama
from graphspec.engine.weights import load_weights
from support import sized, toy
from support.after_ready import plain
from support.checkpoints import TINY
from support.processes import TESTS, run_module
from support.speculative import METHODS, checkpoint, resolved_case
from support.stored import store_units
from support.warmups import entry_paths, warm

pytest_plugins = ["pytester"]

ROOT = TESTS.parent
EXAMPLE = ROOT / "examples" / "smollm2-ngram.yaml"


@pytest.fixture
def root(tmp_path):
    """A cache folder that is not there yet."""
    return tmp_path / "cache"


@pytest.fixture
def libraries(shared_cache, tiny_config):
    """A folder with the toy's two entries, compiled once in a run."""
    spec = EngineConfig.from_dict(tiny_config(program=toy.NAME)).resolve()
    folder = str(shared_cache)
    load_or_compile(toy.program(spec).units(), spec, DiskStore(folder), KeyLocks(folder))
    return shared_cache


def toy_entries(folder, spec):
    """The entries of the toy's two units."""
    store, keyed = DiskStore(str(folder)), keyed_units(toy.program(spec).units(), spec)
    return {k.unit.name: store.look(k.key).entry for k in keyed}


def spec_of(tiny_config, program, **sections):
    """The contract of a program, without drafts."""
    return EngineConfig.from_dict(
        tiny_config(program=program, speculative=None, **sections)
    ).resolve()


class ScaleCompiler:
    """Gives each unit the library of the toy's scale, which every unit of `sized` is, and counts."""

    def __init__(self, library):
        self.library = library
        self.compiled = []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def compile(self, unit, traced):
        self.compiled.append(unit.name)
        return Compiled(library=self.library, seconds=traced.seconds + 1.0, provenance={})


@pytest.fixture
def compiler(libraries, tiny_spec, monkeypatch):
    """A compiler that takes no time. Units are traced, and what it gives is loaded and runs."""
    made = ScaleCompiler(bytes(toy_entries(libraries, tiny_spec)["scale"].payload))
    monkeypatch.setattr(load.CompileRun, "_compiler", lambda run: made)
    return made


def configs_that_run(base):
    """A config for each method that the reference engine drafts with, and one that drafts nothing."""
    section = {"num_speculative_tokens": 2, "prompt_lookup_min": 1}
    tiers = {"num_speculative_tokens_per_batch_size": [[1, 2, 2], [3, 4, 1]]}
    return [
        base(speculative={"method": "ngram", **section, **tiers}),
        base(speculative={"method": "ngram_gpu", **section}),
        base(speculative=None),
    ]


def assert_served_without_a_compile(told):
    """Nothing was compiled, imported or started after ready, each step had its graph, and the hook sees what it should."""
    assert told["tried while serving"] == []
    assert told["compilers at ready"] == told["compilers after serving"] == []
    assert set(told["compiled"]) == {0}
    prefill = "a request in the batch is still in prefill"
    for captured, served in zip(told["captured"], told["served"], strict=True):
        assert set(served) - {"drafted", "tokens", prefill} <= set(captured)
        assert set(served) & set(captured)
    seen = told["noticed afterwards"]
    assert len(seen) == 3
    assert seen[0].startswith("import torch._dynamo")
    assert seen[1:] == ["import graphspec.cache.compiling.compiler", "subprocess.Popen"]


def test_B52_requests_of_every_method_that_runs_compile_nothing(libraries, root, tiny_config):
    """After ready a hook fails on every compile: requests with drafts, with others and without any meet none.

    The toy's libraries are real. Those of the reference engine are the units' functions here, and real in the deep test.
    """
    shutil.copytree(libraries / "entries", root / "entries")
    root.chmod(0o700)
    configs = configs_that_run(tiny_config)
    spec = EngineConfig.from_dict(configs[0]).resolve()
    store_units(root, llama(spec).units(), spec, reads=())
    head = {**TINY, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
    folder = checkpoint(root.parent / "head", head)
    drafting = {"method": "eagle", "model": folder, "num_speculative_tokens": 2}
    configs += [tiny_config(speculative=drafting), tiny_config(program=toy.NAME)]
    told = run_module("support.after_ready", str(root), *map(json.dumps, configs))
    assert_served_without_a_compile(told)
    drafted = [served.get("drafted", 0) for served in told["served"]]
    assert [count > 0 for count in drafted] == [True, True, False, True, False]
    assert "target_verify k=1 requests=4" in told["served"][0]
    assert "draft k=2 requests=4" in told["captured"][3]


@pytest.mark.deep
@pytest.mark.slow
def test_B52_requests_to_the_example_compile_nothing(shared_cache):
    """The same for a real model with its compiled libraries."""
    example = yaml.safe_load(EXAMPLE.read_text())
    example["scheduler"]["max_num_seqs"] = 4
    configs = configs_that_run(lambda **sections: {**example, **sections})
    warmup(EngineConfig.from_dict(configs[0]).resolve(), cache_dir=str(shared_cache))
    told = run_module("support.after_ready", str(shared_cache), *map(json.dumps, configs))
    assert_served_without_a_compile(told)


@pytest.mark.parametrize("name", METHODS)
def test_B52_no_step_of_a_method_is_outside_the_warmup(tiny_spec, name):
    """Whatever its batch and the depth that its drafts were proposed at, a decode step has a planned graph, and each planned
    graph has a step. A draft model that no unit reads is a finding, so that nobody takes such a method for warmed."""
    spec = resolved_case(name)
    plan = plan_capture(spec)
    planned = frozenset(plan.keys)
    went = {
        dispatch(plan, planned, Step(requests=requests, proposed_k=k, prefill=False)).key
        for requests in range(1, spec.schedule.max_num_seqs + 1)
        for k in range(spec.num_speculative_tokens + 1)
    }
    assert went == planned
    assert len(planned) > 1
    assert plan.fallthrough() == ()
    told = Decisions.of(spec, llama(tiny_spec).units()).lowered
    cold = spec.speculative.speculator.has_draft_model
    assert any("is not compiled" in found for found in told) is cold


@pytest.mark.parametrize("method", ["ngram", "ngram_gpu", None])
def test_B52_a_step_runs_the_units_that_are_listed_and_no_other(tiny_config, method):
    """Every graph and a prefill together call each unit that the warmup compiles, and ask for nothing else."""
    section = {"method": method, "num_speculative_tokens": 2}
    spec = EngineConfig.from_dict(tiny_config(speculative=section if method else None)).resolve()
    units, called = llama(spec).units(), set()

    def recorded(unit):
        function = plain(unit, spec)
        return lambda *inputs: called.add(unit.name) or function(*inputs)

    artifacts = {unit.name: recorded(unit) for unit in units}
    executor = Executor(spec, load_weights(spec.model, spec.device), artifacts)
    steps = [functools.partial(executor.step, key) for key in plan_capture(spec).keys]
    chunk = [RequestRows(tokens=[3, 4, 5], position=0, blocks=[1])]
    for step in (*steps, lambda: executor.run(chunk, [0])):
        called.clear()
        step()
        assert called == {unit.name for unit in units}


def sizes_warmed(tiny_config, root, program, largest, **limits):
    """Warms one request to `largest`; gives units compiled, units loaded, and tokens of the captured graphs."""
    scheduler = {"max_num_seqs": largest, "max_num_batched_tokens": 32, **limits}
    spec = spec_of(tiny_config, program, scheduler=scheduler)
    report = warmup(spec, cache_dir=str(root), jobs=1)
    assert report.findings == []
    assert report.graphs.captured == len(report.graphs.verified) == largest
    return report.compiled, report.loaded


def stored_bytes(root):
    """Each entry file, with its content."""
    return {path.name: path.read_bytes() for path in entry_paths(root)}


def test_B55_one_unit_for_all_sizes_is_compiled_once(tiny_config, root, compiler):
    """Sizes [1], then [1, 2], then [1, 2] again: 1, 0 and 0 compiles, since no captured size is in the code.

    The bound of the dynamic dimension is in the key: beyond it there is another entry, and the first stays as it is.
    """
    warmed = functools.partial(sizes_warmed, tiny_config, root, "support.sized:dynamic")
    assert warmed(1) == (1, 0)
    first = stored_bytes(root)
    assert [warmed(2), warmed(2)] == [(0, 1), (0, 1)]
    assert stored_bytes(root) == first
    assert warmed(2, max_num_batched_tokens=31) == (1, 0)
    assert first.items() < stored_bytes(root).items()
    assert warmed(1) == (0, 1)


def test_B55_a_size_that_is_new_compiles_alone(tiny_config, root, compiler):
    """With a unit for each size: 1, 1 and 0 compiles, the second of size 2 only. The first entry is loaded unchanged."""
    warmed = functools.partial(sizes_warmed, tiny_config, root, "support.sized:static")
    assert warmed(1) == (1, 0)
    first = stored_bytes(root)
    assert warmed(2) == (1, 1)
    assert compiler.compiled == ["scale of 1", "scale of 2"]
    both = stored_bytes(root)
    assert first.items() < both.items()
    assert len(both) == 2
    assert warmed(2) == (0, 2)
    assert stored_bytes(root) == both
    assert compiler.compiled == ["scale of 1", "scale of 2"]


@pytest.mark.deep
@pytest.mark.slow
def test_B55_the_same_with_the_real_compiler(tiny_config, root):
    """1, 1 and 0 compiles for units of static size."""
    warmed = functools.partial(sizes_warmed, tiny_config, root, "support.sized:static")
    assert [warmed(1), warmed(2), warmed(2)] == [(1, 0), (1, 1), (0, 2)]


LAYERS = [f"layer {at}" for at in range(sized.LAYERS)]


def test_B56_equal_layers_are_compiled_stored_and_loaded_once(tiny_config, root, compiler):
    """32 layers, a first and a last unit: 3 artifacts stored on a cold start, 3 loaded on a warm one, tracing told apart."""
    spec = spec_of(tiny_config, "support.sized:layered")
    cold = warmup(spec, cache_dir=str(root), jobs=1)
    assert compiler.compiled == ["first", "layer 0", "last"]
    assert (cold.compiled, cold.loaded, len(entry_paths(root))) == (3, 0, 3)
    assert [u.name for u in cold.units] == ["first", *LAYERS, "last"]
    assert {u.name: u.same_as for u in cold.units if u.same_as} == dict.fromkeys(
        LAYERS[1:], "layer 0"
    )
    traced = [u.trace_seconds for u in cold.units if u.compiled]
    assert min(traced) > 0
    assert cold.as_dict()["trace_seconds"] == round(sum(traced), 3)
    assert cold.trace_seconds < cold.phases["units"]
    before = stored_bytes(root)
    again = warmup(spec, cache_dir=str(root), jobs=1)
    assert (again.compiled, again.loaded) == (0, 3)
    assert again.trace_seconds == again.as_dict()["trace_seconds"] == 0
    assert stored_bytes(root) == before
    assert len(compiler.compiled) == 3
    assert cold.findings == again.findings == []
    assert len(again.graphs.verified) == again.graphs.captured > 0


@pytest.mark.deep
@pytest.mark.slow
def test_B56_the_same_with_the_real_compiler_in_processes(tiny_config, root, tmp_path):
    """`graphspec warmup --json` says 3 compiled and then 3 loaded, and how long tracing took."""
    config = tmp_path / "engine.yaml"
    config.write_text(yaml.safe_dump(tiny_config(program="support.sized:layered")))
    code, cold, err = warm(config, root)
    assert (code, cold["compiled"], cold["loaded"]) == (0, 3, 0), err
    assert 0 < cold["trace_seconds"] < cold["phases"]["units"]
    assert len(entry_paths(root)) == 3
    code, again, err = warm(config, root)
    assert (code, again["compiled"], again["loaded"], again["trace_seconds"]) == (0, 0, 3, 0), err


def test_B56_the_reference_model_has_three_units_whatever_its_depth(tiny_config):
    """A model of 32 layers has the entries of one with 2: layers are no factor of the units that serve them."""

    def keys(layers):
        config = tiny_config()
        config["model"]["hf_overrides"] = {"num_hidden_layers": layers}
        spec = EngineConfig.from_dict(config).resolve()
        assert spec.model.num_hidden_layers == layers
        return [keyed.key for keyed in keyed_units(llama(spec).units(), spec)]

    assert len(keys(32)) == 3
    assert keys(32) == keys(2)


@pytest.fixture
def poisoned(libraries, tiny_spec, tmp_path, monkeypatch):
    """Two default folders, the variable's and the user's own. Each has a corrupt entry of the toy's and a wrong one: the
    library of another unit under a key that is right."""
    folders = [tmp_path / "variable", tmp_path / "user" / "graphspec"]
    entries = toy_entries(libraries, tiny_spec)
    for folder in folders:
        store = DiskStore(str(folder))
        store.put(entries["scale"])
        store.put(attrs.evolve(entries["mix"], payload=bytes(entries["scale"].payload)))
        Path(store.path_of(entries["scale"].key)).write_bytes(b"poison")
        looked = [store.look(entries[name].key).outcome for name in ("scale", "mix")]
        assert looked == [Outcome.CORRUPT, Outcome.HIT]
    monkeypatch.setenv("GRAPHSPEC_CACHE_DIR", str(folders[0]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folders[1].parent))
    return folders


def state(folders):
    """Every file below the folders, with when it was written and what is in it."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for folder in folders
        for path in [folder, *folder.rglob("*")]
    }


COUNTED = """
from pathlib import Path
from support.warmups import entry_paths, outcomes, warm

def test_cold_and_warm_are_counted(graphspec_cache):
    expected = {{"cold": (2, 2, 0, "miss"), "warm": (0, 0, 2, "hit")}}
    for compiled, saved, loaded, outcome in expected.values():
        before = entry_paths(graphspec_cache)
        code, report, err = warm(Path({config!r}), None, quick=Path({libraries!r}))
        assert code == 0, err
        written = len(entry_paths(graphspec_cache)) - len(before)
        assert (report["compiled"], written, report["loaded"]) == (compiled, saved, loaded)
        assert {{found for found, _ in outcomes(report).values()}} == {{outcome}}
        graphs = report["graphs"]
        assert graphs["verified"] == graphs["captured"] > 0
"""


def test_B57_the_plugin_s_cache_is_cold_whatever_the_user_s_folder_holds(
    pytester, poisoned, libraries, tiny_config, tmp_path
):
    """With poison in both default folders, a test with the fixture compiles 2, saves 2, loads 0, then 0, 0, 2, each in a
    process of its own; the folders stay as they are, to the byte."""
    config = tmp_path / "engine.yaml"
    config.write_text(yaml.safe_dump(tiny_config(program=toy.NAME)))
    pytester.makepyfile(COUNTED.format(config=str(config), libraries=str(libraries)))
    before = state(poisoned)
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
    assert state(poisoned) == before


def results_of(order, selection, at):
    """Runs tests in the order of a seed, in a process of its own; gives each one's result, in that order."""
    report = at / f"{order}.xml"
    arguments = ["-p", "support.shuffled", "--order", str(order), f"--junitxml={report}"]
    where = ["-p", "no:cacheprovider", f"--basetemp={at / str(order)}"]
    # Hypothesis draws the same examples in both runs, and neither takes itself for a worker of the outer run.
    variables = {"HYPOTHESIS_PROFILE": "ci", "PYTEST_XDIST_WORKER": ""}
    run_module("pytest", *selection, *arguments, *where, read=lambda out: None, **variables)
    return {
        f"{case.get('classname')}.{case.get('name')}": [part.tag for part in case]
        for case in ET.parse(report).iter("testcase")
    }


def assert_order_and_leftovers_decide_nothing(selection, poisoned, at):
    before = state(poisoned)
    first, second = (results_of(order, selection, at) for order in (1, 2))
    assert first == second
    assert list(first) != list(second)
    assert len(first) > 10
    assert state(poisoned) == before


QUICK = ["tests/unit/test_opened.py", "tests/unit/test_disk.py"]


@pytest.mark.deep
def test_B57_tests_give_equal_results_twice_and_in_any_order(poisoned, tmp_path):
    """Some tests of the cache, run twice in one environment, in two orders, over poisoned default folders."""
    assert_order_and_leftovers_decide_nothing(QUICK, poisoned, tmp_path)


@pytest.mark.deep
@pytest.mark.slow
def test_B57_all_tests_of_the_cache_give_equal_results_twice_and_in_any_order(poisoned, tmp_path):
    """The same for every test file that uses a folder of entries, without slow tests."""
    files = [p for p in sorted((ROOT / "tests" / "unit").glob("test_*.py")) if p != Path(__file__)]
    selection = [str(p) for p in files if "DiskStore" in p.read_text()]
    assert len(selection) > 20
    assert_order_and_leftovers_decide_nothing(
        [*selection, "-m", "not slow and not deep"], poisoned, tmp_path
    )
