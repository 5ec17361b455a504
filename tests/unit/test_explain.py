"""explain: for each unit of a program whether it would hit, else the nearest entry and whether the miss was needed."""

from pathlib import Path

import attrs
import pytest

import graphspec.cache.load as load
import graphspec.cache.units as units_module
from graphspec.cache.entry import Entry
from graphspec.cache.explain import explain
from graphspec.cache.folder.disk import DiskStore
from graphspec.cache.load import keyed_units
from graphspec.cache.store import Outcome
from graphspec.cache.units import EntryKey
from graphspec.keys.encoding import encode
from graphspec.keys.factors import digest
from graphspec.keys.scope import Scope
from support.entries import entry_of
from support.specs import plain_spec
from support.stored import store_units

pytest.importorskip("torch")

from support.toy import NAME, program

EPS = "model.rms_norm_eps"


@pytest.fixture
def spec(tmp_path):
    """The tiny model's spec, with the toy program."""
    return plain_spec(tmp_path / "model", program=NAME)


def changed(tmp_path, **sections):
    """Another spec of the same model."""
    sections = {"program": NAME, **sections}
    model = {"source": str(tmp_path / "model"), "max_model_len": 128, **sections.pop("model", {})}
    return plain_spec(tmp_path / "model", model=model, **sections)


def units_of(spec, *scope):
    """The toy's units; with `scope`, that of `scale` is wider than what it reads."""
    scale, mix = program(spec).units()
    return (attrs.evolve(scale, scope=Scope(scope)) if scope else scale, mix)


def explained(folder, spec, *scope):
    return explain(units_of(spec, *scope), spec, cache_dir=str(folder))


def tree_of(folder):
    """Every file below a folder with its content."""
    return {p: p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


def shown(unit):
    return [(d.part, str(d.difference), d.read) for d in unit.nearest.differences]


def test_an_empty_cache_has_nothing_near(tmp_path, spec):
    """Without any entry each unit is a miss and there is nothing to compare with; no folder is made."""
    found = explained(tmp_path / "cache", spec)
    assert [u.outcome for u in found.units] == [Outcome.MISS] * 2
    assert [u.nearest for u in found.units] == [None, None]
    assert (found.missing, found.entries, found.unreadable) == (2, 0, 0)
    assert found.units[0].verdict == "it would be compiled: nothing is stored under this key"
    assert not found.units[0].needless
    assert not (tmp_path / "cache").exists()


def test_what_is_stored_would_be_loaded(tmp_path, spec):
    """A hit is a hit, and needs no explanation."""
    keyed = store_units(tmp_path / "cache", units_of(spec), spec, reads=[])
    found = explained(tmp_path / "cache", spec)
    assert [(u.unit, u.key, u.outcome) for u in found.units] == [
        (k.unit.name, k.key.digest, Outcome.HIT) for k in keyed
    ]
    assert (found.missing, found.entries) == (0, 2)
    assert {u.verdict for u in found.units} == {"it would be loaded"}
    assert [u.nearest for u in found.units] == [None, None]


def test_a_field_that_the_trace_read_makes_a_needed_miss(tmp_path, spec):
    """Old and new value of the field, that it was read, and that the miss had to be; from a real trace's read set."""
    (scale,) = store_units(tmp_path / "cache", units_of(spec)[:1], spec)
    other = changed(tmp_path, model={"hf_overrides": {"rms_norm_eps": 0.5}})
    unit = explained(tmp_path / "cache", other).units[0]
    assert unit.outcome is Outcome.MISS
    assert unit.nearest.key == scale.key.digest
    assert shown(unit) == [("scope", f"{EPS}: 1e-05 -> 0.5", True)]
    assert unit.nearest.needed
    assert not unit.needless
    assert "must be" in unit.verdict


def test_a_field_that_the_trace_did_not_read_makes_a_needless_miss(tmp_path, spec):
    """A scope that is wider than what is read misses for nothing, and that is said."""
    store_units(tmp_path / "cache", units_of(spec, "model")[:1], spec)
    other = changed(tmp_path, model={"hf_overrides": {"num_hidden_layers": 3}})
    unit = explained(tmp_path / "cache", other, "model").units[0]
    assert shown(unit) == [("scope", "model.num_hidden_layers: 2 -> 3", False)]
    assert unit.needless
    assert "needlessly" in unit.verdict


def test_one_field_that_was_read_among_others_is_enough(tmp_path, spec):
    """A miss is needless only when nothing that differs was read."""
    store_units(tmp_path / "cache", units_of(spec, "model")[:1], spec)
    overrides = {"num_hidden_layers": 3, "rms_norm_eps": 0.5}
    other = changed(tmp_path, model={"hf_overrides": overrides})
    unit = explained(tmp_path / "cache", other, "model").units[0]
    assert {(d.difference.path, d.read) for d in unit.nearest.differences} == {
        ("model.num_hidden_layers", False),
        (EPS, True),
    }
    assert unit.nearest.needed


def test_a_value_inside_a_field_counts_as_that_field(tmp_path, spec):
    """A trace reads the mapping; the difference is named inside it, and it is a read one."""
    overrides = [
        {"rope_scaling": {"rope_type": "linear", "factor": factor}} for factor in (2.0, 4.0)
    ]
    one, other = (changed(tmp_path, model={"hf_overrides": o}) for o in overrides)
    store_units(tmp_path / "cache", units_of(one, "model")[:1], one, reads=["model.extra"])
    unit = explained(tmp_path / "cache", other, "model").units[0]
    assert shown(unit) == [("scope", "model.extra.rope_parameters.factor: 2.0 -> 4.0", True)]
    assert unit.nearest.needed


def test_a_section_that_goes_cannot_be_told_from_the_read_set(tmp_path, spec):
    """Whether a section is there leaves no read of a field behind, so such a miss counts as needed."""
    store_units(tmp_path / "cache", units_of(spec, EPS, "speculative")[:1], spec, reads=[EPS])
    other = changed(tmp_path, speculative=None)
    unit = explained(tmp_path / "cache", other, EPS, "speculative").units[0]
    reads = {d.difference.path: d.read for d in unit.nearest.differences}
    assert reads["speculative:class"] is None
    assert reads["speculative.method"] is False
    assert unit.nearest.needed


@pytest.mark.parametrize(("reads", "needed"), [([EPS], False), ([EPS, "lora"], True)])
def test_a_section_that_comes_is_a_read_only_if_its_absence_was_read(tmp_path, spec, reads, needed):
    """An absent section is a field that is null, and the read set says whether that was looked at."""
    store_units(tmp_path / "cache", units_of(spec, EPS, "lora")[:1], spec, reads=reads)
    other = changed(tmp_path, lora={"max_lora_rank": 8})
    unit = explained(tmp_path / "cache", other, EPS, "lora").units[0]
    assert {d.difference.path for d in unit.nearest.differences} >= {"lora", "lora:class"}
    assert unit.nearest.needed is needed


def test_without_a_read_set_every_field_may_have_been_read(tmp_path, spec):
    """An entry that says nothing about reads never makes a miss needless."""
    (scale,) = keyed_units(units_of(spec, "model")[:1], spec)
    entry = Entry(key=scale.key, metadata={"unit": "scale"}, payload=b"")
    assert DiskStore(str(tmp_path / "cache")).put(entry).written
    other = changed(tmp_path, model={"hf_overrides": {"num_hidden_layers": 3}})
    unit = explained(tmp_path / "cache", other, "model").units[0]
    assert shown(unit) == [("scope", "model.num_hidden_layers: 2 -> 3", None)]
    assert unit.nearest.needed


def test_code_toolchain_device_and_options_are_told_apart(tmp_path, spec, monkeypatch):
    """Each part of the key is named, modules one by one, and none of them is ever needless."""
    store_units(tmp_path / "cache", units_of(spec)[:1], spec, reads=[EPS])
    chain, measure, digests = load.toolchain, load.measure_device, units_module.source_digest
    options = load.compiler_options
    monkeypatch.setattr(load, "toolchain", lambda d: {**chain(d), "torch": "1.0", "new": True})
    monkeypatch.setattr(
        load, "measure_device", lambda d: attrs.evolve(measure(d), capability=("sse9",))
    )
    monkeypatch.setattr(load, "compiler_options", lambda d: {**options(d), "cpp.simdlen": 1})
    monkeypatch.setattr(
        units_module, "source_digest", lambda m: dict.fromkeys(digests(m), "0" * 64)
    )
    unit = explained(tmp_path / "cache", spec).units[0]
    found = {(d.part, d.difference.path) for d in unit.nearest.differences}
    assert found == {
        ("toolchain", "torch"),
        ("toolchain", "new"),
        ("device", "capability"),
        ("options", "cpp.simdlen"),
        ("source", "support.toy"),
    }
    assert {d.read for d in unit.nearest.differences} == {None}
    assert unit.nearest.needed


def test_inputs_are_named_by_number(tmp_path, spec):
    """Another bound of a dynamic dimension is found inside the signature."""
    store_units(tmp_path / "cache", units_of(spec), spec, reads=[EPS])
    other = changed(tmp_path, scheduler={"max_num_seqs": 4, "max_num_batched_tokens": 64})
    for unit in explained(tmp_path / "cache", other).units:
        assert shown(unit) == [
            ("signature", "signature[0].shape: [['rows', 1, 32], 8] -> [['rows', 1, 64], 8]", None)
        ]


def test_the_nearest_entry_has_the_fewest_differing_factors(tmp_path, spec):
    """Of three entries of a unit the one that differs least; one of another unit only when there is none."""
    overrides = [{"rms_norm_eps": 0.5}, {"rms_norm_eps": 0.5, "num_hidden_layers": 3}]
    stored = [
        store_units(
            tmp_path / "cache",
            units_of(other, "model")[:1],
            other,
            reads=[EPS, "model.num_hidden_layers"],
        )[0].key.digest
        for other in (changed(tmp_path, model={"hf_overrides": o}) for o in overrides)
    ]
    scale, mix = explained(tmp_path / "cache", spec, "model").units
    assert scale.nearest.key == stored[0]
    assert (mix.nearest.unit, mix.verdict) == (
        "scale",
        "it would be compiled: no entry of this unit is stored",
    )
    assert ("unit", "unit: 'scale' -> 'mix'", None) in shown(mix)
    assert mix.nearest.needed


def test_an_entry_that_would_have_served_is_preferred(tmp_path, spec):
    """A needless miss is a finding, also when another entry differs in fewer factors."""
    one = changed(tmp_path, model={"hf_overrides": {"rms_norm_eps": 0.5}})
    two = changed(
        tmp_path, model={"hf_overrides": {"num_hidden_layers": 3, "intermediate_size": 128}}
    )
    for other in (one, two):
        store_units(tmp_path / "cache", units_of(other, "model")[:1], other, reads=[EPS])
    unit = explained(tmp_path / "cache", spec, "model").units[0]
    assert {d.difference.path for d in unit.nearest.differences} == {
        "model.num_hidden_layers",
        "model.intermediate_size",
    }
    assert unit.needless


def test_broken_files_are_counted_and_left_alone(tmp_path, spec):
    """A damaged header, a key of another kind and a truncated file are passed over; nothing is moved or removed."""
    _, mix = store_units(tmp_path / "cache", units_of(spec), spec, reads=[EPS])
    store = DiskStore(str(tmp_path / "cache"))
    assert store.put(entry_of("fine, and of a unit without parts")).written
    text = encode({"kind": "something else"})
    other = Entry(key=EntryKey(text, digest(text)), metadata={}, payload=b"")
    assert store.put(other).written
    damaged = Path(store.path_of(mix.key))
    damaged.write_bytes(damaged.read_bytes()[:100])
    before = tree_of(tmp_path / "cache")
    found = explained(tmp_path / "cache", spec)
    assert (found.entries, found.unreadable) == (2, 2)
    assert [u.outcome for u in found.units] == [Outcome.HIT, Outcome.CORRUPT]
    assert "truncated" in found.units[1].verdict
    assert found.units[1].nearest is None
    assert tree_of(tmp_path / "cache") == before


def test_the_data_for_json_says_the_same(tmp_path, spec):
    """as_dict has everything that the objects have, as plain data."""
    store_units(tmp_path / "cache", units_of(spec, "model")[:1], spec, reads=[EPS])
    other = changed(tmp_path, model={"hf_overrides": {"num_hidden_layers": 3}})
    found = explained(tmp_path / "cache", other, "model")
    data = found.as_dict()
    assert (data["entries"], data["unreadable"], data["missing"]) == (1, 0, 2)
    scale = data["units"][0]
    assert (scale["unit"], scale["outcome"], scale["needless"]) == ("scale", "miss", True)
    assert scale["nearest"]["differences"] == [
        {
            "part": "scope",
            "path": "model.num_hidden_layers",
            "kind": "changed",
            "stored": "2",
            "wanted": "3",
            "read": False,
        }
    ]
    assert data["units"][1]["nearest"]["unit"] == "scale"
