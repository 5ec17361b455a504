"""Every field of a spec has other values, found by reflection, and each changes that field and no other."""

import attrs
import pytest

from graphspec.errors import SpecError
from graphspec.fields import Stage, is_config_class, policies
from graphspec.testing.perturb import leaves, put
from support.specs import plain_spec
from support.speculative import CASES, resolved, resolved_case

SPECS = {"none": lambda: resolved(None), **{n: (lambda n=n: resolved_case(n)) for n in CASES}}


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    """A spec with every optional section that a file can hold."""
    extras = {"lora": {"max_loras": 2}, "watermark": {"key": 12345}}
    connector = {"block_size": 8, "num_blocks": 128, "connector": {"name": "c"}}
    return plain_spec(tmp_path_factory.mktemp("m"), speculative=None, kv_cache=connector, **extras)


def fields_of(section, prefix=""):
    """Path and value of every field that holds no section, in sections that are there."""
    for name in policies(type(section)):
        value = getattr(section, name)
        if is_config_class(type(value)):
            yield from fields_of(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@pytest.mark.parametrize("name", SPECS)
def test_every_field_of_a_spec_is_a_leaf_with_another_value(name):
    """No field of any method's spec is left out, none comes twice, and each can take at least one other value."""
    spec = SPECS[name]()
    found = list(leaves(spec))
    paths = [leaf.path for leaf in found]
    assert len(set(paths)) == len(paths)
    assert {path for path, _ in fields_of(spec)} <= set(paths)
    for leaf in found:
        assert any(is_taken(leaf, value) for value in leaf.others), leaf.path


def is_taken(leaf, value):
    try:
        return leaf.changed(value) != leaf.base
    except SpecError:
        return False


@pytest.mark.parametrize("name", ["none", "ngram", "eagle3"])
def test_a_change_touches_one_field(name):
    """Everything else, derived values too, stays as it was."""
    for leaf in leaves(SPECS[name]()):
        before = dict(fields_of(leaf.base))
        for value in leaf.others:
            try:
                changed = leaf.changed(value)
            except SpecError:
                continue
            after = dict(fields_of(changed))
            moved = {p for p in {*before, *after} if before.get(p) != after.get(p)}
            assert changed != leaf.base
            assert all(f"{p}.".startswith(f"{leaf.path}.") for p in moved), leaf.path


def test_absent_sections_are_examined_through_an_example():
    """A section that the spec lacks is a field, and the fields inside belong to a spec that has it."""
    found = {leaf.path: leaf for leaf in leaves(resolved(None))}
    assert found["lora"].value is None
    assert found["lora"].inside == ""
    rank = found["lora.max_lora_rank"]
    assert rank.inside == "lora"
    assert rank.base.lora is not None
    deep = found["speculative.draft_model.head_dim"]
    assert deep.inside == "speculative"
    assert deep.base.speculative.draft_model.head_dim == deep.value


def test_the_stage_is_the_weakest_on_the_way(spec):
    """A COMPILE field in a CAPTURE section is CAPTURE, and what lies in an unkeyed one is in no key."""
    stages = {leaf.path: leaf.stage for leaf in leaves(spec)}
    assert stages["model.head_dim"] is Stage.COMPILE
    assert stages["kv_cache.connector.layerwise"] is Stage.CAPTURE
    assert stages["watermark.key"] is None


def test_rules_that_span_fields_find_a_value(spec):
    """Heads stay divisible, bounds are kept, known names are known."""
    found = {leaf.path: leaf for leaf in leaves(spec)}
    for path in ("model.num_attention_heads", "model.num_key_value_heads"):
        assert any(is_taken(found[path], v) for v in found[path].others)
    assert "FLASH_ATTN" in found["kernels.attention_backend"].others


def test_no_other_value_equals_the_old_one_or_another(spec):
    """Values differ in type or in content: 1 and True are two values."""
    for leaf in leaves(spec):
        kinds = [(type(v), v) for v in (leaf.value, *leaf.others)]
        assert all(kinds.count(kind) == 1 for kind in kinds), leaf.path


def test_a_secret_is_marked(spec):
    """A report shows no secret."""
    marked = {leaf.path for leaf in leaves(spec) if leaf.is_secret}
    assert "watermark.key" in marked
    assert "watermark.algorithm" not in marked


def test_put_makes_a_copy(spec):
    """The spec that is changed stays as it is, and rules see the change."""
    changed = put(spec, "model.head_dim", 16)
    assert (spec.model.head_dim, changed.model.head_dim) == (8, 16)
    assert attrs.evolve(changed, model=spec.model) == spec
    with pytest.raises(SpecError, match="num_key_value_heads"):
        put(spec, "model.num_key_value_heads", 3)
