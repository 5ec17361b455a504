"""Reports B85 to B87 and B95 to B102 of shared/reference/field-reports.md: each one's own test and right outcome.

Dynamic k (theme H, tables) and the speculative config (theme J); B105 to B107 are in test_field_reports_sizes.py. Left
to a later issue: the warning about the acceptance of a running engine (B96).
"""

import builtins
import os

import pytest

from graphspec.capture.keys import CaptureKey, Phase
from graphspec.capture.plan import CapturePlan, plan_capture
from graphspec.capture.preview import Preview
from graphspec.capture.report import Decisions
from graphspec.cli import main
from graphspec.cli.tables import show_preview
from graphspec.config.schedule import dense_schedule
from graphspec.fields import Stage
from graphspec.formats.write import write_config
from graphspec.speculators.registry import known_methods, speculator_config_class
from support.peer_cases import folder
from support.speculative import (
    CASES,
    METHODS,
    checkpoint,
    engine,
    keys_of,
    notes_of,
    peer_config,
    refused,
    refused_case,
    resolved,
    resolved_case,
    section_of,
    variant,
)

TABLE = [[1, 4, 4], [5, 8, 2], [9, 32, 1], [33, 64, 0]]
DYNAMIC = {"num_speculative_tokens_per_batch_size": TABLE}
RANKS = {"data_parallel_size": 2}


@pytest.fixture
def command(tmp_path, capsys):
    """Runs a command on the n-gram case with the table, and gives its exit code and output."""

    def run(name, *arguments, **sections):
        path = tmp_path / "engine.yaml"
        path.write_text(write_config(engine(section_of("ngram", DYNAMIC), **sections), "yaml"))
        with pytest.raises(SystemExit) as done:
            main([name, "--config", str(path), *arguments])
        return done.value.code, capsys.readouterr().out

    return run


def test_B85_the_resolved_table_is_in_the_repr():
    """Asked and granted stand in the text of the contract."""
    text = repr(resolved_case("ngram", DYNAMIC).speculative)
    assert "asked=((1, 4, 4), (5, 8, 2), (9, 32, 1), (33, 64, 0))" in text
    assert "granted=KSchedule(dense=(0, 4, 4, 4, 4, 2, 2, 2, 2, 1," in text


def test_B85_the_resolved_table_is_shown(command):
    """`show --resolved` has the table as asked and as granted, and `show --trace` the step that decided it."""
    code, text = command("show", "--resolved")
    assert code == 0
    assert text.count("- [33, 64, 0]") + text.count("[33, 64, 0]") >= 2
    code, text = command("show", "--trace")
    assert code == 0
    assert "k by requests: 1 to 4: 4, 5 to 8: 2, 9 to 32: 1, 33 to 64: 0" in text


def test_B85_the_resolved_table_is_in_the_warmups_output(command):
    """A dry run prints the depths by requests."""
    model = {"source": folder("target-llama"), "dtype": "float32"}
    code, text = command("warmup", "--dry-run", model=model)
    assert code == 0
    assert "asked by table): 1 to 4: 4, 5 to 8: 2, 9 to 32: 1, 33 to 64: 0" in text


def test_B85_dropping_the_table_is_loud(command):
    """With data parallelism every output says that the table is not used and why; strict refuses."""
    spec = resolved_case("ngram", DYNAMIC, parallel=RANKS)
    assert "data_parallel" in spec.speculative.schedule.reasons[0]
    for arguments in (["check"], ["show", "--resolved"], ["show", "--trace"]):
        code, text = command(*arguments, parallel=RANKS)
        assert code == 0
        assert "data_parallel" in text
    strict = {"strict": True}
    found = refused_case("ngram", DYNAMIC, parallel=RANKS, compilation=strict)
    assert list(found) == ["speculative.num_speculative_tokens_per_batch_size"]


def test_B85_a_dropped_table_is_loud_at_warmup_too(capsys):
    """The preview and the report of a warmup say so in a sentence."""
    spec = resolved_case("ngram", DYNAMIC, parallel=RANKS)
    decisions = Decisions.of(spec, ())
    (sentence,) = decisions.lowered
    assert sentence.startswith("the dynamic depth table is not used: data_parallel: ")
    hashes = dict(zip(("spec_hash", "capture_hash"), keys_of(spec), strict=True))
    show_preview(Preview(**hashes, decisions=decisions, units=(), plan=plan_capture(spec)))
    assert sentence in capsys.readouterr().out


def test_B85_the_hash_follows_what_is_used():
    """A table that is dropped is in no hash; one that is used is in the CAPTURE hash."""
    dropped = resolved_case("ngram", DYNAMIC, parallel=RANKS)
    assert keys_of(dropped) == keys_of(resolved_case("ngram", parallel=RANKS))
    used, plain = resolved_case("ngram", DYNAMIC), resolved_case("ngram")
    assert used.compute_hash(Stage.CAPTURE) != plain.compute_hash(Stage.CAPTURE)


SIZES = (*range(1, 9), 16, 24, 32, 64)


def plan_of_report():
    """The report's batch sizes, by tier of its schedule."""
    schedule = dense_schedule([tuple(r) for r in TABLE], 4, 64)
    tiers = {k: (first, last) for first, last, k in schedule.tiers}
    buckets = {k: tuple(s for s in SIZES if a <= s <= b) for k, (a, b) in tiers.items()}
    return CapturePlan(schedule=schedule, buckets=buckets)


def test_B86_exactly_the_pairs_that_the_schedule_reaches():
    """Twelve of the full product's 48, (64, 0) among them, and each of 1..64 requests finds one."""
    plan = plan_of_report()
    pairs = {(key.bucket, key.k) for key in plan.keys}
    assert len(plan.keys) == len(pairs) == 12
    assert (64, 0) in pairs
    assert plan.reachable() == set(plan.keys)
    assert plan.fallthrough() == ()
    assert all(plan.key_for(n, plan.schedule.k_for(n)) in plan.keys for n in range(1, 65))


def test_B86_the_plan_of_the_contract_is_such_a_plan():
    """With graphspec's own ladder: captured equals reachable, no pair for a depth that its size never has."""
    plan = plan_capture(resolved_case("ngram", DYNAMIC))
    assert set(plan.keys) == plan.reachable()
    assert CaptureKey(Phase.TARGET_VERIFY, 0, 64) in plan.keys
    assert {key.k for key in plan.keys} == {4, 2, 1, 0}
    assert plan.fallthrough() == ()
    for key in plan.keys:
        assert plan.schedule.k_for(key.bucket) == key.k
    for requests in range(1, 65):
        assert plan.key_for(requests, plan.schedule.k_for(requests)) in plan.keys


@pytest.mark.parametrize("requests", [33, 40, 63, 64])
def test_B87_a_tier_without_drafts_has_full_graphs_of_width_1(requests):
    """Where speculation is off, graphs are not."""
    spec = resolved_case("ngram", DYNAMIC)
    assert spec.mode.granted.decode_is_full
    key = plan_capture(spec).key_for(requests, 0)
    assert (key.k, key.tokens) == (0, key.bucket)
    assert key.bucket >= requests


NAMED = [
    ("eagle3-head", "target-llama", "eagle3"),
    ("speculators-peagle", "target-llama", "eagle3"),
    ("dflash-qwen3", "target-qwen3", "dflash"),
    ("dspark-qwen3", "target-qwen3", "dspark"),
    ("mtp-deepseek-n1", "target-deepseek-n1", "mtp"),
    ("draft-llama", "target-llama", "draft_model"),
]


@pytest.mark.parametrize(("name", "target", "method"), NAMED)
def test_B95_a_missing_method_is_inferred_from_the_checkpoint_and_told(
    tmp_path, name, target, method
):
    """Under a neutral path the config's own facts decide, and a note says which."""
    section = {"model": variant(tmp_path / "neutral", name), "num_speculative_tokens": 3}
    spec = resolved(section, target)
    assert spec.speculative.method == method
    assert "since the checkpoint" in notes_of(spec)["method_inferred"]


@pytest.mark.parametrize("names", [["SomeDraftModel"], [], None])
def test_B95_an_unknown_draft_architecture_is_no_draft_model(tmp_path, names):
    """The method is required, and all valid ones are listed."""
    draft = variant(tmp_path / "neutral", "draft-llama", architectures=names)
    found = refused({"model": draft, "num_speculative_tokens": 3})
    assert list(found) == ["speculative.method"]
    assert all(name in found["speculative.method"].wanted for name in known_methods())


FUSED = {
    "class name": ("eagle3-head", {}),
    "draft vocabulary": ("eagle3-head", {"architectures": ["LlamaForCausalLM"]}),
    "number of layers": ("eagle-head", {"num_aux_hidden_states": 3}),
    "layer ids": ("eagle-head", {"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}),
    "settings": ("eagle-head", {"eagle_config": {"use_aux_hidden_state": True}}),
}


@pytest.mark.parametrize("fact", FUSED)
def test_B96_a_head_with_fused_input_is_not_run_as_eagle(tmp_path, fact):
    """Whatever fact shows three layers side by side: eagle is refused, eagle3 runs."""
    name, changes = FUSED[fact]
    draft = variant(tmp_path / "head", name, **changes)
    found = refused_case("eagle", {"model": draft})
    assert "set speculative.method to eagle3" in found["speculative.method"].hint
    assert resolved_case("eagle3", {"model": draft})


@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_B96_a_head_of_another_width_is_refused(tmp_path, name):
    """The draft's hidden size must be the target's; both numbers stand in the error."""
    head = CASES[name].section["model"].rpartition("/")[2]
    draft = variant(
        tmp_path / head, head, without="target_hidden_size", hidden_size=512, num_attention_heads=4
    )
    problem = refused_case(name, {"model": draft})["speculative.model"]
    assert "512" in problem.found
    assert "1024" in problem.wanted


REQUIRED = {
    "ngram": ["num_speculative_tokens"],
    "ngram_gpu": ["num_speculative_tokens"],
    "suffix": [],
    "draft_model": ["model"],
    "eagle": ["model"],
    "eagle3": ["model"],
    "mtp": [],
    "dflash": ["model"],
    "dspark": [],
    "extract_hidden_states": ["num_speculative_tokens"],
    "custom_class": ["model", "num_speculative_tokens"],
    "medusa": ["model"],
}
"""What each method needs from the user whatever any checkpoint says."""


@pytest.fixture
def no_files(monkeypatch):
    """From here on, looking at a file fails the test."""
    # Entry points and modules are read once, from files of this installation.
    for method in known_methods():
        speculator_config_class(method)

    def forbidden(*arguments, **options):
        raise AssertionError(f"a file was looked at: {arguments}")

    monkeypatch.setattr(builtins, "open", forbidden)
    for module, names in ((os, ("open", "listdir", "scandir")), (os.path, ("exists", "isdir"))):
        for name in names:
            monkeypatch.setattr(module, name, forbidden)


@pytest.mark.parametrize(
    ("method", "field"), [(m, f) for m, fields in REQUIRED.items() for f in fields]
)
def test_B97_a_missing_field_names_method_and_field_and_opens_no_file(no_files, method, field):
    """One at a time; the other fields are as they should be."""
    section = {"method": method, "num_speculative_tokens": 3}
    if "model" in REQUIRED[method]:
        section["model"] = "package.module.Class" if method == "custom_class" else "/no/such/folder"
    section.pop(field)
    found = refused(section, "/no/such/target")
    assert list(found) == [f"speculative.{field}"]
    assert method in str(found[f"speculative.{field}"])


def test_B97_every_method_is_in_the_table():
    """A new method joins, and those without required fields resolve from the method alone."""
    assert set(REQUIRED) == {*METHODS, "medusa"} <= set(known_methods())
    for name in ("suffix", "mtp"):
        assert resolved({"method": name}, CASES[name].target)


def test_B97_neither_method_nor_model_opens_no_file(no_files):
    """Nothing but a depth: the model is asked for, and the method as a way out."""
    found = refused({"num_speculative_tokens": 3}, "/no/such/target")
    assert "speculative.method" in found["speculative.model"].hint


@pytest.mark.parametrize("name", ["draft_model", "eagle", "eagle3", "dflash"])
def test_B97_a_depth_that_the_checkpoint_could_state_is_asked_for_after_reading_it(name):
    """Method and field are named there too."""
    found = refused_case(name, without="num_speculative_tokens")
    assert name in found["speculative.num_speculative_tokens"].found


def test_B97_the_target_is_never_a_head():
    """dspark without a model looks at the target, and refuses one that ships no modules, by name."""
    found = refused({"method": "dspark", "num_speculative_tokens": 3})
    assert "without DSpark modules" in found["speculative.model"].found


TYPES = {
    "text for a switch": ("enforce_eager", "false", "'false' (a string)"),
    "text for a length": ("max_model_len", "65536", "'65536' (a string)"),
    "a fraction": ("num_speculative_tokens", 1.9, "1.9 (a float)"),
    "true": ("num_speculative_tokens", True, "true (a boolean)"),
    "text for a count": ("num_speculative_tokens", "3", "'3' (a string)"),
    "a whole float": ("num_speculative_tokens", 3.0, "3.0 (a float)"),
    "not a number": ("num_speculative_tokens", float("nan"), "nan (a float)"),
    "huge": ("num_speculative_tokens", 10**12, "1000000000000 (an integer)"),
}


@pytest.mark.parametrize("name", TYPES)
def test_B100_no_value_is_converted(name):
    """Each is an error that names the value and its type."""
    field, value, shown = TYPES[name]
    found = refused_case("eagle3", {field: value})
    assert list(found) == [f"speculative.{field}"]
    assert found[f"speculative.{field}"].found == shown


@pytest.mark.parametrize("section", ["model", "compilation"])
def test_B100_the_same_in_other_sections(section):
    """The target's switch and length are as strict."""
    bad = {"compilation": {"enforce_eager": "false"}, "model": {"max_model_len": "65536"}}
    ((field, _),) = bad[section].items()
    assert list(refused_case("ngram", **{section: bad[section]})) == [f"{section}.{field}"]


def test_B101_a_known_alias_is_the_canonical_method_with_a_notice():
    """deepseek_mtp has the hashes of mtp."""
    alias, plain = resolved_case("mtp", {"method": "deepseek_mtp"}), resolved_case("mtp")
    assert alias.speculative.method == "mtp"
    assert keys_of(alias) == keys_of(plain)
    assert "deepseek_mtp" in notes_of(alias)["method_deprecated"]
    assert "method_deprecated" not in notes_of(plain)


NAMES = {
    "MTP": "mtp",
    "eagle-3": "eagle3",
    "n-gram": "ngram",
    "draft": "draft_model",
    "none": None,
    "": None,
}


@pytest.mark.parametrize("name", NAMES)
def test_B101_an_unknown_name_lists_all_and_the_nearest(name):
    """Every valid name stands in the error, and the nearest; for none, how to go without drafting."""
    found = refused({"method": name, "num_speculative_tokens": 3}, "target-deepseek-n1")
    problem = found["speculative.method"]
    assert all(known in problem.wanted for known in known_methods())
    near = NAMES[name]
    assert (f"did you mean {near!r}" if near else "leave the section out") in problem.hint


def test_B101_suffix_is_known_and_null_is_no_name():
    """suffix is a method; null leaves the method open."""
    assert resolved({"method": "suffix"}).speculative.method == "suffix"
    section = {"method": None, "model": folder("eagle3-head"), "num_speculative_tokens": 3}
    assert resolved(section).speculative.method == "eagle3"


MODULES = {None: 3, 3: 3, 6: 6, 2: 2, 1: 1}


@pytest.mark.parametrize("k", MODULES)
def test_B102_three_modules_and_a_depth_that_fits(k):
    """Absent is 3; 3 and 6 are whole rounds; 2 and 1 use some of the modules."""
    section = {"method": "mtp", "num_speculative_tokens": k}
    spec = resolved(section, "target-deepseek-n3")
    assert spec.num_speculative_tokens == MODULES[k]
    assert ("mtp_modules_reused" in notes_of(spec)) is (k == 6)


def test_B102_four_is_no_multiple_of_three_modules():
    """Both numbers stand in the text, and the depths that would do."""
    section = {"method": "mtp", "num_speculative_tokens": 4}
    problem = refused(section, "target-deepseek-n3")["speculative.num_speculative_tokens"]
    assert "4" in problem.found
    assert "3" in problem.wanted
    assert "3 or 6" in problem.hint


@pytest.mark.parametrize("k", [0, -1])
def test_B102_zero_and_less_are_refused(k):
    """The value and the bound, and nothing about modules."""
    section = {"method": "mtp", "num_speculative_tokens": k}
    problem = refused(section, "target-deepseek-n3")["speculative.num_speculative_tokens"]
    assert str(k) in problem.found
    assert problem.wanted == "at least 1"


def test_B102_without_any_number_k_is_required(tmp_path):
    """A draft with an MTP type that counts no modules, and no k."""
    config = {**peer_config("mtp-deepseek-n1"), "model_type": "deepseek_mtp"}
    del config["num_nextn_predict_layers"]
    section = {"method": "mtp", "model": checkpoint(tmp_path / "d", config)}
    problem = refused(section, "target-deepseek-n1")["speculative.num_speculative_tokens"]
    assert problem.wanted == "the draft depth, at least 1"
    assert "does not say" in problem.hint
