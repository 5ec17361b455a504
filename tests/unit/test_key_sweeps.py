"""Every method and every depth: which of them share a key, over all checkpoints that the repository has."""

import os

import pytest

from graphspec.config.speculative import SpeculativeConfig
from graphspec.fields import Stage
from graphspec.keys.factors import compute_hash
from graphspec.resolve import check
from graphspec.speculators.registry import known_methods
from support.peer_cases import FOLDER, folder
from support.speculative import CASES, METHODS, engine, keys_of, resolved, resolved_case, variant

DEPTHS = range(1, 17)
BAKED = ["dflash", "dspark", "dspark fill-in", "eagle3 parallel", "draft_model parallel"]
"""Methods whose graphs contain k: block drafters, P-EAGLE and PARD."""
LOOPED = ["mtp", "eagle", "eagle3", "draft_model", "ngram", "ngram_gpu", "suffix"]
"""Methods that run one graph k times, or none."""


def sweep(name, depths=DEPTHS):
    """COMPILE and CAPTURE keys of a method for each depth."""
    made = [keys_of(resolved_case(name, {"num_speculative_tokens": k})) for k in depths]
    return [{keys[i] for keys in made} for i in range(2)]


@pytest.mark.parametrize("name", BAKED)
def test_each_depth_of_a_method_that_bakes_it_in_has_a_compile_key_of_its_own(name):
    """k from 1 to 16 gives 16 COMPILE keys, and 16 CAPTURE keys."""
    assert list(map(len, sweep(name))) == [16, 16]


@pytest.mark.parametrize("name", LOOPED)
def test_all_depths_of_a_method_that_loops_share_one_compile_key(name):
    """k from 1 to 16 gives one COMPILE key, so nothing compiles again, and 16 CAPTURE keys."""
    assert list(map(len, sweep(name))) == [1, 16]


def test_modules_of_their_own_are_told_apart():
    """With two MTP modules in the checkpoint, k = 1 runs one of them and any other depth both, in turn."""
    compiled, captured = sweep("mtp multi-module", [1, *range(2, 17, 2)])
    assert (len(compiled), len(captured)) == (2, 9)


def test_every_built_in_method_is_in_the_sweep():
    """A new method must be sorted into one of the lists, or here with its reason."""
    sorted_in = {name.split()[0] for name in (*BAKED, *LOOPED)}
    no_sweep = {
        "extract_hidden_states": "exports states and proposes nothing: its depth is 1",
        "custom_class": "an engine's own class declares whether it bakes k in",
    }
    assert sorted_in | set(no_sweep) == set(METHODS)


def accepted(targets):
    """Every combination of a target, a method and a draft checkpoint that resolves."""
    for target in targets:
        for method in METHODS:
            drafts = [None]
            if method == "custom_class":
                drafts = ["package.module.Drafter"]
            elif method not in ("ngram", "ngram_gpu", "suffix", "extract_hidden_states"):
                drafts += [folder(name) for name in sorted(os.listdir(FOLDER / "models"))]
            for draft in drafts:
                section = {"method": method, "num_speculative_tokens": 4, "model": draft}
                spec = check(engine(section, target)).spec
                if spec is not None:
                    yield (target, method, draft), spec


@pytest.mark.parametrize("targets", [("target-llama", "target-moe"), ("target-qwen3",)], ids=str)
def test_no_two_methods_share_a_key(targets):
    """Over all drafts that each method accepts: another method is another COMPILE and another CAPTURE key."""
    found = dict(accepted(targets))
    for stage in Stage:
        owner = {}
        for (target, method, _), spec in found.items():
            key = spec.compute_hash(stage)
            assert owner.setdefault(key, (target, method)) == (target, method)
    methods = {method for _, method, _ in found}
    assert methods >= {"ngram", "suffix", "eagle", "eagle3", "mtp", "custom_class"}


def test_every_case_of_every_method_has_keys_of_its_own():
    """All pairs of the methods and their variants, MTP and block drafters among them."""
    made = {name: keys_of(resolved_case(name)) for name in CASES}
    assert len({key for keys in made.values() for key in keys}) == 2 * len(CASES)


def test_registered_methods_join_the_matrix(tmp_path):
    """What an entry point adds, as it does medusa, has keys that no built-in method has."""
    registered = sorted(set(known_methods()) - set(METHODS))
    assert "medusa" in registered
    draft = variant(tmp_path, "eagle-head", medusa_num_heads=4)
    section = {"method": "medusa", "model": draft, "num_speculative_tokens": 4}
    made = keys_of(resolved(section))
    assert len(set(made)) == 2
    assert not set(made) & {key for name in CASES for key in keys_of(resolved_case(name))}


@pytest.mark.parametrize("stage", list(Stage), ids=lambda stage: stage.name)
def test_configs_that_differ_in_the_method_alone_differ_in_both_keys(stage):
    """Before anything is resolved, for every method that is known, registered ones included."""
    sections = [
        SpeculativeConfig(method=name, num_speculative_tokens=4, model="/d")
        for name in known_methods()
    ]
    assert len({compute_hash(section, stage) for section in sections}) == len(known_methods())
