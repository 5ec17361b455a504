"""Theme A of the field reports, B01 to B12: keys that forget something.

Each report's own test and right outcome, as far as keys decide them. An engine's start is a lookup in a store on disk and,
on a miss, an entry of a made-up library: nothing is compiled here. Left to other files, with the reason:

- B06, code that reads an undeclared variable while it is traced: the watch, tests/fault/test_f35_hermeticity.py. Here: every
  variable that graphspec's own code reads is in the table.
- B07, B11 and B12, real libraries on real devices: here the key and the store's answer decide, and what is compiled on a
  miss is for the tests of the cache.
- B10, hints of dynamic sizes: units have none to give. Here: all that a unit declares of a size is in its key.
"""

import ast
import functools
import importlib.metadata
import itertools
import os
import shutil
import sys
from pathlib import Path

import attrs
import pytest

from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.store import Outcome
from graphspec.cache.units import DynamicDim, TensorInput, signature
from graphspec.config.device import DeviceConfig, DeviceProfile, Target
from graphspec.config.speculative import SpeculativeConfig
from graphspec.fields import Stage
from graphspec.keys.encoding import decode
from graphspec.keys.environment import code_environment, lookup
from graphspec.keys.factors import compute_hash
from graphspec.keys.inventory import config_classes
from graphspec.resolve.spec import EngineSpec
from graphspec.speculators.registry import known_methods, speculator_config_class
from support.keyed import TOOLCHAIN, key, start, unit
from support.processes import run_python
from support.speculative import CASES, METHODS, keys_of, resolved, resolved_case

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


def test_B01_each_depth_of_the_report_has_a_hash_of_its_own():
    """The report's section with k from 1 to 16, before anything is resolved: 16 CAPTURE hashes."""
    sections = [
        SpeculativeConfig(method="dflash", model="d", num_speculative_tokens=k) for k in DEPTHS
    ]
    assert len({compute_hash(section, Stage.CAPTURE) for section in sections}) == 16


@pytest.mark.parametrize("name", BAKED)
def test_B01_a_drafter_with_k_in_its_shapes_has_16_compile_hashes(name):
    """What is compiled, not only what is captured, is told apart."""
    assert len({compile_key(at_depth(name, k)) for k in DEPTHS}) == 16


@pytest.mark.parametrize("name", BAKED)
@pytest.mark.parametrize("order", [(7, 9), (9, 7)], ids=str)
def test_B01_the_second_start_is_a_recorded_miss_in_either_order(store, name, order):
    """A unit of the draft compiled for one k is never loaded for another; each k finds its own."""
    draft = unit("speculative")
    first, second = (key(draft, at_depth(name, k)) for k in order)
    assert [start(store, k)[0] for k in (first, second, first, second)] == [MISS, MISS, HIT, HIT]
    assert start(store, first)[1] != start(store, second)[1]


def test_B01_to_be_independent_of_k_is_a_declaration_of_the_method(store):
    """Written in its class as `bakes_k_into_graphs`; then the second start loads what the first one compiled."""
    independent = {name for name in CASES if not declared(name)}
    assert independent >= {"ngram", "suffix", "eagle", "eagle3", "mtp", "draft_model"}
    assert not independent & set(BAKED)
    draft = unit("speculative")
    outcomes = [start(store, key(draft, at_depth("eagle3", k)))[0] for k in (7, 9)]
    assert outcomes == [MISS, HIT]


def declared(name):
    return resolved_case(name).speculative.speculator.bakes_k_into_graphs


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(METHODS, 2)))
def test_B02_every_pair_of_methods_differs(one, other):
    """As configs with otherwise equal fields, and resolved; no pair is on a list of exceptions, since there is none."""
    sections = [
        SpeculativeConfig(method=m, model="/d", num_speculative_tokens=4) for m in (one, other)
    ]
    for stage in Stage:
        assert len({compute_hash(section, stage) for section in sections}) == 2
    assert not set(keys_of(resolved_case(one))) & set(keys_of(resolved_case(other)))


def test_B02_a_new_method_joins_by_itself():
    """The list of methods that the matrix is made of is the registry's."""
    assert set(known_methods()) >= set(METHODS)
    assert {cls for m in known_methods() for cls in [speculator_config_class(m)]} <= set(
        config_classes([EngineSpec])
    )


BUDGETS = (2048, 8192, 131072)


def test_B05_each_token_budget_has_a_hash_of_its_own(store):
    """Three compile hashes, and three entries for a unit whose token dimension ends at the budget."""
    specs = [
        resolved(None, scheduler={"max_num_batched_tokens": budget, "max_num_seqs": 8})
        for budget in BUDGETS
    ]
    assert len({compile_key(spec) for spec in specs}) == 3
    keys = [key(unit(tokens=s.scheduler.max_num_batched_tokens), s) for s in specs]
    assert [start(store, k)[0] for k in (*keys, *keys)] == [MISS] * 3 + [HIT] * 3


SPLIT = """
    from support.keyed import key, unit
    from support.speculative import resolved
    print(key(unit(environment=("PIPELINE_SPLIT",)), resolved(None)).digest)
    print(key(unit(), resolved(None)).digest)
"""


def test_B06_a_declared_variable_is_in_the_key_by_value():
    """Two layer splits in fresh processes give two keys, and unset a third; a unit that does not declare it has one."""
    runs = [run_python(SPLIT, **given).split() for given in splits()]
    assert len({with_split for with_split, _ in runs}) == 3
    assert len({without for _, without in runs}) == 1


def splits():
    return [{"PIPELINE_SPLIT": "16,16"}, {"PIPELINE_SPLIT": "20,12"}, {}]


def variables_read():
    """Names of the environment variables that graphspec's own code reads, and where."""
    for folder in ("graphspec", "cache", "capture", "kernels"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            names = {
                t.id: node.value.value
                for node in ast.walk(tree)
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
                for t in node.targets
                if isinstance(t, ast.Name)
            }
            for node in ast.walk(tree):
                for asked in environ_arguments(node):
                    if isinstance(asked, ast.Constant) or getattr(asked, "id", None) in names:
                        yield names.get(getattr(asked, "id", None)) or asked.value, path.name


def environ_arguments(node):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        owner = ast.unparse(node.func)
        if owner.endswith(("environ.get", "environ.pop", "environ.setdefault", "os.getenv")):
            yield node.args[0]
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("os.environ"):
        yield node.slice


def test_B06_no_code_of_ours_reads_a_variable_that_nobody_has_judged():
    """Each is declared relevant or irrelevant in the table, with a reason."""
    found = dict(variables_read())
    assert "GRAPHSPEC_CACHE_DIR" in found
    unjudged = {name: where for name, where in found.items() if lookup(name) is None}
    assert unjudged == {}
    assert all(lookup(name).reason for name in found)


@pytest.mark.parametrize("declared_by", ["the unit", "the table"])
def test_B07_a_switch_that_is_toggled_finds_its_first_entry_again(store, monkeypatch, declared_by):
    """0, 1, 0: miss, miss, hit, and the third start runs what the first one compiled."""
    spec = resolved(None)
    flag = "FAST_ALL_REDUCE" if declared_by == "the unit" else "TRITON_F32_DEFAULT"
    outcomes, payloads = [], []
    for value in ("0", "1", "0"):
        monkeypatch.setenv(flag, value)
        declares = (flag,) if declared_by == "the unit" else ()
        chain = {**TOOLCHAIN, "environment": code_environment(os.environ)}
        outcome, payload = start(store, key(unit(environment=declares), spec, toolchain=chain))
        outcomes.append(outcome)
        payloads.append(payload)
    assert outcomes == [MISS, MISS, HIT]
    assert payloads[2] == payloads[0] != payloads[1]


CHANGED = {
    "name": "other",
    "shape": (DynamicDim(name="tokens", maximum=16), 16),
    "dtype": "bfloat16",
    "minimum": 2,
    "maximum": 4096,
}


@pytest.mark.parametrize("cls", [TensorInput, DynamicDim], ids=lambda cls: cls.__name__)
def test_B10_all_that_is_declared_of_a_size_is_in_the_key(cls):
    """Every attribute, found by reflection: a dimension has a name and bounds, and no hint beside them."""
    spec, plain = resolved(None), unit()
    for name in attrs.fields_dict(cls):
        (x,) = plain.inputs
        rows, width = x.shape
        if cls is TensorInput:
            x = attrs.evolve(x, **{name: CHANGED[name]})
        else:
            x = attrs.evolve(x, shape=(attrs.evolve(rows, **{name: CHANGED[name]}), width))
        other = attrs.evolve(plain, inputs=(x,))
        assert signature(other) != signature(plain)
        assert key(other, spec).digest != key(plain, spec).digest


def gpu(major, minor, name="NVIDIA H100"):
    return DeviceProfile(
        kind="cuda",
        name=name,
        capability=(f"sm_{major}{minor}",),
        multiprocessors=132,
        memory_bytes=80 << 30,
        warp_size=32,
    )


BOARDS = {
    "12.0": gpu(12, 0),
    "12.1": gpu(12, 1),
    "9.0": gpu(9, 0),
    "9.0 of another name": gpu(9, 0, "NVIDIA GH200"),
}


def test_B11_boards_of_a_neighbouring_capability_share_nothing(store):
    """Four boards, four keys: the exact capability counts, and so does the name, as docs/keys.md says."""
    spec = resolved(None)
    keys = {name: key(unit(), spec, device=board) for name, board in BOARDS.items()}
    assert [start(store, k)[0] for k in keys.values()] == [MISS] * 4
    page = (ROOT / "docs" / "keys.md").read_text()
    assert "for a GPU name, exact capability" in page.replace("\n", " ")
    for name, made in keys.items():
        assert decode(made.text)["device"].fields["capability"] == BOARDS[name].capability


def test_B11_an_entry_is_not_loaded_under_another_board_s_name(store):
    """A file copied by hand to the place of the other key says which key it has, and is refused."""
    spec = resolved(None)
    here, there = (key(unit(), spec, device=BOARDS[name]) for name in ("12.0", "12.1"))
    start(store, here)
    os.makedirs(os.path.dirname(store.path_of(there)), exist_ok=True)
    shutil.copy(store.path_of(here), store.path_of(there))
    found = store.get(there)
    assert found.entry is None
    assert found.outcome is not HIT
    assert found.reason


def changed_version(monkeypatch, what):
    """Another version of one part of the toolchain."""
    torch = pytest.importorskip("torch")
    if what == "triton":
        distribution = importlib.metadata.distribution

        class Other:
            version, files = "99.0", None

        def found(name):
            return Other() if name == "triton" else distribution(name)

        monkeypatch.setattr(importlib.metadata, "distribution", found)
    else:
        owner, name = {
            "torch": (torch, "__version__"),
            "torch build": (torch.version, "git_version"),
            "CUDA runtime": (torch.version, "cuda"),
            "graphspec": (sys.modules["graphspec"], "__version__"),
        }[what]
        monkeypatch.setattr(owner, name, "99.0")


@pytest.mark.parametrize("what", ["torch", "torch build", "triton", "CUDA runtime", "graphspec"])
def test_B12_each_version_that_makes_code_is_in_the_key(monkeypatch, what):
    """Patched in turn for a CUDA device; each gives another key, and back again the first one."""
    from graphspec.cache.compiling.toolchain import toolchain

    cuda, spec = DeviceConfig(target=Target.CUDA), resolved(None, device={"target": "cuda"})
    before = key(unit(), spec, toolchain=toolchain(cuda))
    changed_version(monkeypatch, what)
    assert key(unit(), spec, toolchain=toolchain(cuda)) != before
    monkeypatch.undo()
    assert key(unit(), spec, toolchain=toolchain(cuda)) == before


def test_B12_the_driver_is_not_in_the_key():
    """The rule is written in the toolchain's module: code for a toolkit runs under any driver that supports it."""
    from graphspec.cache.compiling import toolchain

    assert "driver" in toolchain.__doc__
    facts = toolchain.toolchain(DeviceConfig(target=Target.CUDA))
    assert not any("driver" in name.lower() for name in facts)
