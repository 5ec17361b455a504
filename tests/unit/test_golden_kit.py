"""Golden keys: what is locked can be checked anywhere, every drift is told by factor, and the epoch guards the file."""

import enum
import json
import time
from pathlib import Path

import pytest

from graphspec.config.engine import EngineConfig
from graphspec.errors import EnvironmentProblem, SpecError
from graphspec.fields import Stage
from graphspec.keys import encoding, factors
from graphspec.keys.encoding import decode, encode
from graphspec.keys.golden import GoldenFile, golden_of, read_goldens, write_goldens, written
from graphspec.speculators.ngram import NgramSpeculatorConfig
from graphspec.testing.goldens import GoldenDriftError, check_goldens, lock
from support.peer_cases import folder
from support.speculative import CASES, engine, peer_config, resolved_case, section_of, variant

NGRAM = {"method": "ngram", "num_speculative_tokens": 4}


@pytest.fixture
def goldens(tmp_path):
    """Where a test keeps its goldens."""
    return str(tmp_path / "ci" / "goldens.json")


def edited(path, change):
    """The file with `change` made to its data."""
    data = json.loads(Path(path).read_text())
    change(data)
    Path(path).write_text(json.dumps(data))


def set_epoch(monkeypatch, epoch):
    """Keys of another epoch, as after a commit that raises it."""
    for module in (encoding, factors):
        monkeypatch.setattr(module, "EPOCH", epoch)


@pytest.mark.parametrize("name", CASES)
def test_what_is_locked_is_found_unchanged(goldens, name):
    """The spec made from the file alone has the keys of the spec that was locked, for every method."""
    lock(goldens, {name: engine(CASES[name].section, CASES[name].target)})
    golden = read_goldens(goldens).goldens[name]
    spec = resolved_case(name)
    assert {s: k.hash for s, k in golden.keys.items()} == {s: spec.compute_hash(s) for s in Stage}
    report = check_goldens(goldens)
    assert (report.drifted, report.advice) == ((), "")


def test_fifty_goldens_are_checked_within_a_second(goldens):
    """Processor time, so that a busy machine does not decide; the start of the process is measured by the bench."""
    names = list(CASES)
    configs = {f"{names[i % len(names)]} {i}": engine(**case(names, i)) for i in range(50)}
    lock(goldens, configs)
    assert len(read_goldens(goldens).goldens) == 50
    began = time.process_time()
    report = check_goldens(goldens)
    seconds = time.process_time() - began
    print(f"50 goldens checked in {seconds:.2f} s of processor time")
    assert report.advice == ""
    assert seconds < 1


def case(names, i):
    """Method and target of the i-th of many configs, each with a number of requests of its own."""
    chosen = CASES[names[i % len(names)]]
    return {
        "section": chosen.section,
        "target": chosen.target,
        "scheduler": {"max_num_seqs": 8 + i},
    }


def test_a_golden_needs_no_checkpoint_and_holds_no_place(tmp_path, goldens):
    """The checkpoints are gone and the file lies elsewhere: the keys are the same, and no path is in the file."""
    target, draft = tmp_path / "models" / "t", variant(tmp_path / "models" / "d", "eagle3-head")
    variant(target, "target-llama")
    section = {"method": "eagle3", "model": draft, "num_speculative_tokens": 3}
    lock(goldens, {"prod": engine(section, str(target))})
    text = Path(goldens).read_text()
    assert str(tmp_path) not in text
    (tmp_path / "models").rename(tmp_path / "gone")
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text(text)
    assert check_goldens(str(elsewhere)).advice == ""


def test_what_keys_do_not_depend_on_stays_out_of_the_file(tmp_path, goldens):
    """Secrets, tokenizers, load options and bookkeeping are in no golden; what decides a keyed field stays."""
    section = {
        **section_of("eagle3"),
        "draft_load_config": {"token": "hf_secret"},
        "disable_eagle_block_drop": True,
        "rejection_sample_method": "block",
    }
    data = engine(
        section,
        model={
            "tokenizer": "/home/me/tok",
            "weights": "/home/me/w",
            "hf_overrides": {"rope_theta": 5e5},
        },
        watermark={"key": 424242, "algorithm": "dual_key_gumbel"},
        parallel={"distributed_executor_backend": "ray"},
    )
    lock(goldens, {"prod": data})
    text = Path(goldens).read_text()
    for secret in ("hf_secret", "/home/me", "424242", "ray", "disable_eagle_block_drop"):
        assert secret not in text
    config = read_goldens(goldens).goldens["prod"].config
    assert config["watermark"] == {"key": 0, "algorithm": "dual_key_gumbel"}
    assert "hf_overrides" not in config["model"]  # the checkpoint says the same
    lock(goldens, {"prod": engine(NGRAM, model={"hf_overrides": {"rope_theta": 7e5}})})
    assert read_goldens(goldens).goldens["prod"].config["model"]["hf_overrides"] == {
        "rope_theta": 7e5
    }


def test_drafts_inside_the_targets_checkpoint_are_pinned_with_it(tmp_path, goldens):
    """One checkpoint for both, also where the weights lie elsewhere."""
    data = engine(
        {"method": "mtp", "num_speculative_tokens": 2},
        "target-deepseek-n1",
        model={"weights": str(tmp_path / "weights")},
    )
    lock(goldens, {"prod": data})
    assert list(read_goldens(goldens).checkpoints) == ["target-deepseek-n1"]
    assert check_goldens(goldens).advice == ""


def test_checkpoints_of_one_name_are_kept_apart(tmp_path, goldens):
    """Two folders called `model` with different configs; two with the same are one."""
    for place, layers in (("a", 8), ("b", 9), ("c", 8)):
        variant(tmp_path / place / "model", "target-llama", num_hidden_layers=layers)
    configs = {place: engine(None, str(tmp_path / place / "model")) for place in ("a", "b", "c")}
    lock(goldens, configs)
    file = read_goldens(goldens)
    assert list(file.checkpoints) == ["model", "model-2"]
    assert [g.config["model"]["source"] for g in file.goldens.values()] == [
        "model",
        "model-2",
        "model",
    ]
    assert check_goldens(goldens).advice == ""


def test_a_method_that_only_a_parent_folder_tells_must_be_named(tmp_path, goldens):
    """A golden that would mean something else in another folder is refused, with what to do."""
    draft = variant(tmp_path / "eagle-heads" / "mine", "eagle-head")
    section = {"model": draft, "num_speculative_tokens": 3}
    with pytest.raises(SpecError, match=r"prod\.speculative\.model: .*in any folder") as caught:
        lock(goldens, {"prod": engine(section)})
    assert "speculative.method" in caught.value.problems[0].hint
    lock(goldens, {"prod": engine({**section, "method": "eagle"})})
    assert check_goldens(goldens).advice == ""


def seeded(monkeypatch, seed):
    """A method of the code as it will be: it adds a factor."""

    def hash_factors(self, stage, k):
        return {"seed": seed}

    monkeypatch.setattr(NgramSpeculatorConfig, "hash_factors", hash_factors)


def test_a_factor_that_appears_is_named(goldens, monkeypatch):
    """Both keys change; the factor is told once, and the epoch must be raised in the same commit."""
    lock(goldens, {"prod": engine(NGRAM), "plain": engine(None)})
    seeded(monkeypatch, 7)
    report = check_goldens(goldens)
    assert [v.name for v in report.drifted] == ["prod"]
    lines = report.drifted[0].lines
    assert lines[0].startswith("prod: the COMPILE key changed, ")
    assert lines[1] == "  appeared  speculative.seed: 7"
    assert lines[2].startswith("prod: the CAPTURE key changed, ")
    assert lines[3:] == ("  by the same factors",)
    assert "raise graphspec.keys.encoding.EPOCH in the same commit" in report.advice
    assert f"graphspec keys lock --output {goldens}" in report.advice


def test_a_factor_that_vanishes_or_changes_is_named_with_its_values(goldens, monkeypatch):
    """Before and after, as they are written in the file."""
    seeded(monkeypatch, 7)
    lock(goldens, {"prod": engine(NGRAM)})
    seeded(monkeypatch, (7, "x"))
    assert '  changed   speculative.seed: 7 -> (7, "x")' in check_goldens(goldens).drifted[0].lines
    monkeypatch.undo()
    assert "  vanished  speculative.seed: 7" in check_goldens(goldens).drifted[0].lines


def test_a_factor_of_one_stage_alone_is_kept_apart(goldens, monkeypatch):
    """A method may add other factors to each key; then both texts are written whole."""

    def hash_factors(self, stage, k):
        return {"of": stage.value, f"only_{stage.value}": 1}

    monkeypatch.setattr(NgramSpeculatorConfig, "hash_factors", hash_factors)
    lock(goldens, {"prod": engine(NGRAM)})
    assert "includes" not in Path(goldens).read_text()
    keys = read_goldens(goldens).goldens["prod"].keys
    assert [k.text["speculative.of"] for k in keys.values()] == ['"compile"', '"capture"']
    assert check_goldens(goldens).advice == ""


def test_of_long_values_the_part_that_differs_is_told(goldens, monkeypatch):
    """A schedule or a checkpoint's other fields may be pages long."""
    seeded(monkeypatch, (*range(500), "x"))
    lock(goldens, {"prod": engine(NGRAM)})
    seeded(monkeypatch, (*range(500), "y"))
    line = check_goldens(goldens).drifted[0].lines[1]
    assert '"x")' in line.partition(" -> ")[0]
    assert line.endswith('"y")')
    assert "..." in line
    assert len(line) < 400


def test_a_changed_encoding_is_told_apart_from_changed_factors(goldens):
    """Equal factors with another hash: nothing of the config, but how it is written."""
    lock(goldens, {"prod": engine(None)})
    edited(goldens, lambda data: data["specs"]["prod"]["compile"].update(hash="0" * 32))
    lines = check_goldens(goldens).drifted[0].lines
    assert lines[1] == "  no factor differs: the encoding of keys itself changed"


def test_a_text_that_was_edited_is_told(goldens):
    """The readable text and the hash belong together."""
    lock(goldens, {"prod": engine(None)})
    edited(goldens, lambda data: data["specs"]["prod"]["compile"]["text"].pop())
    assert "the file was edited" in check_goldens(goldens).drifted[0].lines[0]


def test_another_epoch_asks_to_lock_anew(goldens, monkeypatch):
    """Even when no factor differs: what the hashes mean has changed."""
    lock(goldens, {"prod": engine(None)})
    set_epoch(monkeypatch, encoding.EPOCH + 1)
    report = check_goldens(goldens)
    assert f"keys are now of epoch {encoding.EPOCH}: lock anew" in report.advice
    assert "raise" not in report.advice
    lock(goldens)
    assert check_goldens(goldens).advice == ""
    assert read_goldens(goldens).epoch == encoding.EPOCH


def test_no_golden_gets_another_key_under_one_epoch(goldens, monkeypatch):
    """Locking anew is refused with the factors until the epoch is raised, with and without the configs."""
    configs = {"prod": engine(NGRAM)}
    lock(goldens, configs)
    before = Path(goldens).read_text()
    seeded(monkeypatch, 7)
    for again in (None, configs):
        with pytest.raises(GoldenDriftError, match=r"appeared +speculative\.seed: 7") as caught:
            lock(goldens, again)
        assert caught.value.exit_code == 1
        assert Path(goldens).read_text() == before
    set_epoch(monkeypatch, encoding.EPOCH + 1)
    lock(goldens)
    assert check_goldens(goldens).advice == ""


def test_another_config_or_checkpoint_is_locked_under_its_old_name(tmp_path, goldens):
    """What the user changed is no drift: keys of another config are other keys."""
    model = tmp_path / "model"
    variant(model, "target-llama")
    lock(goldens, {"prod": engine(NGRAM, str(model))})
    lock(goldens, {"prod": engine({**NGRAM, "num_speculative_tokens": 5}, str(model))})
    variant(model, "target-llama", num_hidden_layers=3)
    lock(goldens, {"prod": engine({**NGRAM, "num_speculative_tokens": 5}, str(model))})
    assert check_goldens(goldens).advice == ""


def test_a_golden_that_no_longer_resolves_is_a_finding(goldens):
    """The other goldens are still checked."""
    lock(goldens, {"one": engine(NGRAM), "two": engine(None)})
    edited(goldens, lambda data: data["specs"]["one"]["config"]["kv_cache"].update(num_blocks=1))
    report = check_goldens(goldens)
    assert [v.name for v in report.drifted] == ["one"]
    assert report.drifted[0].lines[0].startswith("one: it no longer resolves: one.kv_cache")


def test_a_golden_without_a_config_is_left_to_its_test(goldens):
    """What the pytest fixture wrote has keys and no config; the command says so."""
    spec = resolved_case("ngram")
    file = GoldenFile(epoch=encoding.EPOCH, goldens={"made in a test": golden_of(spec)})
    write_goldens(goldens, file)
    assert read_goldens(goldens) == file
    (verdict,) = check_goldens(goldens).drifted
    assert "checked by its test" in verdict.lines[0]


BROKEN = {
    "no JSON": "{",
    "a list": "[]",
    "another layout": '{"format": 99, "epoch": 1, "specs": {}}',
    "an epoch in words": '{"format": 1, "epoch": "1", "specs": {}}',
    "no specs": '{"format": 1, "epoch": 1}',
    "a spec without keys": '{"format": 1, "epoch": 1, "specs": {"a": {}}}',
    "a text that is no list": '{"format": 1, "epoch": 1, "specs": {"a": '
    '{"compile": {"hash": "0", "text": 1}, "capture": {"hash": "0", "text": []}}}}',
    "a checkpoint that would be written elsewhere": '{"format": 1, "epoch": 1, "specs": {}, '
    '"checkpoints": {"../../x": {}}}',
    "a checkpoint in the folder itself": '{"format": 1, "epoch": 1, "specs": {}, '
    '"checkpoints": {"..": {}}}',
    "nested without end": "[" * 100_000,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_holds_no_goldens_is_named(goldens, name):
    """One error with the file's name, whatever is in it."""
    Path(goldens).parent.mkdir()
    Path(goldens).write_text(BROKEN[name])
    with pytest.raises(SpecError) as caught:
        check_goldens(goldens)
    assert caught.value.problems[0].where == goldens


def test_a_missing_file_is_named(goldens):
    """For checking, and for locking anew what it should hold."""
    for call in (check_goldens, lock):
        with pytest.raises(SpecError, match="No such file"):
            call(goldens)


def test_a_config_that_does_not_resolve_is_not_locked(goldens):
    """Its problems carry the golden's name, and no file is written."""
    with pytest.raises(SpecError, match=r"prod\.kv_cache"):
        lock(goldens, {"prod": engine(None, kv_cache={"num_blocks": 2})})
    with pytest.raises(EnvironmentProblem, match=r"prod\.model\.source"):
        lock(goldens, {"prod": engine(None, "/nowhere/model")})
    assert not Path(goldens).exists()


def test_a_golden_says_which_checkpoint_and_which_factor(goldens):
    """The file is made to be read: one line a factor, the checkpoint's own words, sections by class."""
    lock(goldens, {"prod": engine(NGRAM)})
    data = json.loads(Path(goldens).read_text())
    assert data["checkpoints"]["target-llama"] == peer_config("target-llama")
    compiled, captured = (data["specs"]["prod"][stage.value] for stage in Stage)
    text = compiled["text"]
    assert text == sorted(text, key=lambda line: line.split(" = ")[0])
    assert "model.hidden_size = 1024" in text
    assert "model.dtype = graphspec.config.model.Dtype.BFLOAT16" in text
    assert 'class = "graphspec.resolve.spec.EngineSpec"' in text
    assert 'speculative:class = "graphspec.resolve.spec.SpeculativeSpec"' in text
    assert captured["includes"] == "compile"  # each factor is read once
    assert "speculative.num_speculative_tokens = 4" in captured["text"]
    assert not set(text) & set(captured["text"])
    assert data["specs"]["prod"]["config"]["model"]["source"] == "target-llama"
    assert folder("target-llama") not in json.dumps(data)


def test_writing_fails_with_the_files_name(tmp_path):
    """A folder in the place of the file, or a file in the place of its folder."""
    file = GoldenFile(epoch=1, goldens={})
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "goldens.json"):
        with pytest.raises(EnvironmentProblem, match="not writable"):
            write_goldens(str(path), file)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert not list(tmp_path.parent.glob(f"{tmp_path.name}.*"))


class One(enum.IntEnum):
    """Equal to 1, and to the other's member."""

    ONE = 1


class Other(enum.IntEnum):
    """Equal to 1 as well."""

    ONE = 1


VALUES = [
    *(One.ONE, Other.ONE),
    *(None, True, False, 0, 1, 1.0, -0.0, 0.0, "1", "true", "none", b"1", "x'31'", 10**400),
    *((), (1,), (1, 2), [], [1], [(1,)], frozenset(), frozenset({1, "1"}), {}, {"a": 1}),
    *(float("nan"), "nan", "\u202e", "a = b\n", Stage.COMPILE, "graphspec.fields.Stage.COMPILE"),
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_values_of_different_types_never_look_the_same(value):
    """No two of these are written alike, none breaks its line, and all is ASCII."""
    text = written(decode(encode(value)))
    assert text == written(value)
    SEEN.setdefault(text, encode(value))
    assert SEEN[text] == encode(value)
    assert text.isascii()
    assert "\n" not in text


SEEN: dict[str, bytes] = {}


def test_any_config_object_has_a_golden():
    """The kit is not limited to contracts: a section has keys too."""
    config = EngineConfig.from_dict(engine(NGRAM))
    text = golden_of(config).keys[Stage.COMPILE].text
    assert text["speculative.method"] == '"ngram"'
