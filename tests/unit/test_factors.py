"""compute_hash: what is in the two keys beside the fields, and what is in neither. The fields: tests/fault/test_f29_every_field.py."""

import pytest

from graphspec.fields import Stage, evolve
from graphspec.keys.factors import CLASS, compute_hash, factor_tree, flatten, key_text
from graphspec.speculators.base import SpeculatorConfig
from support.specs import plain_spec
from support.speculative import CASES, resolved_case


def test_the_two_stages_never_share_a_key(tmp_path):
    """The stage is part of the key, so a capture key is never taken for a compile key."""
    spec = plain_spec(tmp_path)
    assert spec.compute_hash(Stage.COMPILE) != spec.compute_hash(Stage.CAPTURE)


def test_the_hash_is_32_hexadecimal_digits_of_the_key_text(tmp_path):
    """compute_hash is xxh3-128 of key_text and nothing else."""
    import xxhash

    spec = plain_spec(tmp_path)
    for stage in Stage:
        text = key_text(spec, stage)
        assert spec.key_text(stage) == text
        assert spec.compute_hash(stage) == xxhash.xxh3_128_hexdigest(text)
        assert len(spec.compute_hash(stage)) == 32


def test_the_class_of_a_section_is_part_of_the_key():
    """Two classes with the same fields and values have different keys."""
    from graphspec.fields import config_class, keyed

    def make(name):
        body = {"__annotations__": {"depth": int}, "depth": keyed(Stage.COMPILE, doc="d")}
        return config_class(type(name, (), body))

    one, other = make("One"), make("Other")
    assert compute_hash(one(depth=1), Stage.COMPILE) != compute_hash(other(depth=1), Stage.COMPILE)


BAKING = {"dflash", "dspark", "dspark fill-in", "draft_model parallel", "eagle3 parallel"}


@pytest.mark.parametrize("name", CASES)
def test_k_is_a_compile_factor_only_of_methods_that_bake_it_in(name):
    """A deeper k changes the compile key exactly where shapes hold it: block drafters and parallel drafting."""
    one, other = (resolved_case(name, {"num_speculative_tokens": k}) for k in (4, 6))
    assert one.speculative.speculator.bakes_k_into_graphs is (name in BAKING)
    assert (one.compute_hash(Stage.COMPILE) != other.compute_hash(Stage.COMPILE)) is (
        name in BAKING
    )
    assert one.compute_hash(Stage.CAPTURE) != other.compute_hash(Stage.CAPTURE)


def test_a_method_adds_factors_of_its_own(monkeypatch):
    """What `hash_factors` of a method's class returns is in the section's keys, beside its fields."""

    class Seeded(SpeculatorConfig):
        seed = 1

        def hash_factors(self, stage, k):
            return {"seed": self.seed, **super().hash_factors(stage, k)}

    drafting = evolve(resolved_case("ngram").speculative, speculator=Seeded())
    before = {stage: compute_hash(drafting, stage) for stage in Stage}
    assert all(factor_tree(drafting, stage)["seed"] == 1 for stage in Stage)
    monkeypatch.setattr(Seeded, "seed", 2)
    assert all(compute_hash(drafting, stage) != before[stage] for stage in Stage)


def test_the_location_of_the_model_is_not_in_the_key(tmp_path):
    """The same facts in two folders give one hash, and neither path is in the key text."""
    one, other = plain_spec(tmp_path / "one"), plain_spec(tmp_path / "other")
    assert one.model.source != other.model.source
    for stage in Stage:
        assert one.compute_hash(stage) == other.compute_hash(stage)
        assert str(tmp_path).encode() not in one.key_text(stage)


def test_flatten_gives_every_leaf_of_a_tree_with_its_path(tmp_path):
    """Paths are those of the config as the user wrote it; class names are left out."""
    spec = plain_spec(tmp_path)
    leaves = dict(flatten(factor_tree(spec, Stage.CAPTURE)))
    assert leaves["model.hidden_size"] == 32
    assert leaves["scheduler.max_num_seqs"] == 4
    assert leaves["mode.granted"].value == "FULL_AND_PIECEWISE"
    assert not any(CLASS in path.split(".") for path in leaves)
    assert "model.source" not in leaves
