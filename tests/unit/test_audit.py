"""The audit of keys: planted bugs are found, sound programs pass, and what is taken as known is known."""

import json
import os
import pickle
from html.parser import HTMLParser

import attrs
import pytest
import yaml

from graphspec.cli import _root
from graphspec.cli.common import run
from graphspec.errors import GraphspecError, SpecError
from graphspec.fields import HIDDEN
from graphspec.keys.scope import RecordingView, Scope
from graphspec.resolve.spec import EngineSpec
from graphspec.testing.audit import audit
from graphspec.testing.audit_html import audit_html
from graphspec.testing.audit_report import Method, Verdict, shown
from graphspec.testing.perturb import leaves
from graphspec.testing.raw_reads import RawReads, unshared
from support.specs import config_folder, plain_config, plain_spec


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("audited") / "model"


@pytest.fixture(scope="module")
def spec_of(folder):
    """A spec whose program is one of `support.audited`."""
    return lambda program, **sections: plain_spec(
        folder, program=f"support.audited:{program}", **sections
    )


@pytest.fixture(scope="module")
def zoo(spec_of):
    """The report over units with planted bugs."""
    return audit(spec_of("zoo", speculative=None, watermark={"key": 271828}))


def row(report, path):
    (found,) = [row for row in report.rows if row.path == path]
    return found


def verdicts(report, path):
    return {name: cell.verdict.value for name, cell in row(report, path).cells.items()}


def test_an_unkeyed_field_read_behind_the_view_is_unsound(zoo):
    """The unit's key stays and its graph moves: found, with what differs between the two graphs."""
    path = "kv_cache.enable_prefix_caching"
    assert verdicts(zoo, path)["behind"] == "unsound"
    cell = row(zoo, path).cells["behind"]
    assert "unkeyed" in cell.reason
    assert [line for line in cell.diff if line.startswith("-") and "aten::mul" in line]
    assert [line for line in cell.diff if line.startswith("+") and "aten::mul" in line]
    (finding,) = [f for f in zoo.findings if f.where.startswith(path)]
    assert (finding.kind, finding.diff) == ("unsound", cell.diff)


@pytest.mark.parametrize(
    ("path", "unit"), [("scheduler.max_num_seqs", "held"), ("kv_cache.num_blocks", "shape")]
)
def test_a_capture_field_in_compiled_code_is_unsound_though_the_units_key_moves(zoo, path, unit):
    """Declared to move captured graphs only, it must move no compiled one: the spec's COMPILE hash knows nothing."""
    cell = row(zoo, path).cells[unit]
    assert (cell.verdict, cell.moved) == (Verdict.UNSOUND, True)
    assert "Stage.CAPTURE" in cell.reason
    assert "COMPILE hash" in cell.reason


def test_a_keyed_field_that_moves_no_graph_is_a_needless_miss(zoo):
    """A scope wider than what is read costs compiles; the rate of the field says how many of its misses."""
    needless = {row.path for row in zoo.rows if "needless" in verdicts(zoo, row.path).values()}
    assert "model.hidden_act" in needless
    assert all(path.startswith("model.") for path in needless)
    assert zoo.needless_rates["model.hidden_act"] == 1.0
    assert zoo.needless_rates["model.rms_norm_eps"] == 0.0
    assert zoo.misses("model.rms_norm_eps") == (0, 2)
    assert zoo.misses()[0] == zoo.counts["needless"] > 10


def test_a_right_unit_is_sound_where_it_reads_and_quiet_elsewhere(zoo):
    """The field in its scope moves key and graph; no other field moves either, the device aside."""
    moves = {row.path for row in zoo.rows if row.cells and row.cells["right"].moved}
    assert moves == {"model.rms_norm_eps", "device.target", "device.isa"}
    assert verdicts(zoo, "model.rms_norm_eps")["right"] == "sound"
    found = {
        row.cells["right"].verdict.value for row in zoo.rows if row.path not in moves and row.cells
    }
    assert found == {"quiet"}


def test_a_read_that_only_another_value_leads_to_is_caught_by_the_watch(zoo):
    """The trace stops with the field's name, so no graph is ever stored under that key: caught."""
    cell = row(zoo, "model.head_dim").cells["deeper"]
    assert cell.verdict is Verdict.REFUSED
    assert "model.vocab_size" in cell.reason


def test_units_that_come_with_a_field_are_other_keys(zoo):
    """A unit that only one of the two specs has cannot be taken for another."""
    cells = row(zoo, "model.num_hidden_layers").cells
    assert cells["layer1"].verdict is Verdict.SOUND
    assert cells["layer1"].reason == "there only with the new value"
    assert cells["layer0"].verdict is Verdict.QUIET
    assert zoo.columns[-1] == "layer1"


def test_what_the_compiler_is_told_counts_as_what_it_is_given(zoo):
    """Another instruction set moves every key and no graph, and is no needless miss: other code comes of it."""
    assert set(verdicts(zoo, "device.isa").values()) == {"sound"}
    assert set(verdicts(zoo, "device.target").values()) == {"sound"}


def test_what_nothing_reads_is_known_without_a_trace(zoo):
    """Fields that no code touched are quiet or needless, by proof; the others were traced for."""
    assert row(zoo, "kv_cache.block_size").methods == Method.UNREAD.value
    assert row(zoo, "kv_cache.enable_prefix_caching").cells["behind"].method is Method.TRACED
    assert "no graph moved" in zoo.notes[0]
    assert zoo.traces < len(zoo.rows)


def test_every_field_is_in_the_report(zoo, spec_of):
    """One row for each field, with its stage; fields of absent sections say which."""
    found = {row.path: row for row in zoo.rows}
    spec = spec_of("zoo", speculative=None, watermark={"key": 271828})
    assert list(found) == [leaf.path for leaf in leaves(spec)]
    assert found["model.tie_word_embeddings"].stage == "unkeyed"
    assert found["lora.max_loras"].inside == "lora"


def test_a_secret_is_in_no_report(zoo):
    """The watermark's key can be changed, and neither value is shown."""
    assert (row(zoo, "watermark.key").old, row(zoo, "watermark.key").new) == (HIDDEN, HIDDEN)
    assert "271828" not in json.dumps(zoo.as_dict()) + audit_html(zoo, "zoo")


def test_the_json_of_a_report_is_plain(zoo):
    """It can be written and read, and says what the report says."""
    data = json.loads(json.dumps(zoo.as_dict()))
    by_path = {field["path"]: field for field in data["fields"]}
    cell = by_path["kv_cache.enable_prefix_caching"]["cells"]["behind"]
    assert (cell["verdict"], cell["key_moved"], cell["checked"]) == ("unsound", False, "traced")
    assert sum(data["counts"].values()) == sum(len(r.cells) for r in zoo.rows)
    assert {f["kind"] for f in data["findings"]} == {"unsound"}
    assert all(f["diff"] for f in data["findings"])


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_stands_alone_and_names_every_field(zoo):
    """No script, nothing loaded, every field, unit and finding in it."""
    text = audit_html(zoo, "zoo.yaml")
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not [a for a in page.attributes if a[0] in ("src", "href") or a[0].startswith("on")]
    for word in ("http:", "https:", "//", "url(", "@import"):
        assert word not in text
    shown_text = "\n".join(page.text)
    told = [*(f.where for f in zoo.findings), *(reason for _, reason in zoo.caught)]
    for name in [*(row.path for row in zoo.rows), *zoo.columns, *told]:
        assert name in shown_text
    assert "@media print" in text


def test_the_page_escapes_what_it_shows(zoo):
    """A value that looks like markup is text."""
    evil = "<script>alert('&')</script>"
    rows = [attrs.evolve(zoo.rows[0], old=evil, skipped=evil, cells={}), *zoo.rows[1:]]
    findings = [attrs.evolve(zoo.findings[0], where=evil, text=evil, diff=[evil])]
    units = [attrs.evolve(zoo.units[0], name=evil), *zoo.units[1:]]
    text = audit_html(
        attrs.evolve(zoo, rows=rows, unstable=findings, units=units, notes=[evil]), evil
    )
    page = Page(text)
    assert "script" not in page.tags
    assert "".join(page.text).count(evil) >= 7
    assert shown("a\x1b[2Jb\u202e") == "a\\x1b[2Jb\\u202e"


def test_tracing_for_every_field_finds_the_same(zoo, spec_of):
    """One by one, nothing is taken as known, and every cell comes out as before."""
    spec = spec_of("zoo", speculative=None, watermark={"key": 271828})
    fields = ("model.rms_norm_eps", "model.hidden_act", "kv_cache", "device")
    slow = audit(spec, fields=fields, units=("behind", "wide"), one_by_one=True)
    assert {r.methods for r in slow.rows if r.cells} == {"traced"}
    for one in slow.rows:
        other = row(zoo, one.path)
        assert (one.old, one.new, one.skipped) == (other.old, other.new, other.skipped)
        for name, cell in one.cells.items():
            assert cell.verdict is other.cells[name].verdict, (one.path, name)


def test_a_read_that_the_watch_cannot_see_makes_it_trace_for_every_field(spec_of):
    """The joint change of all unread fields shows that the watch misses one; then the bug is found by tracing."""
    report = audit(spec_of("sly"), fields=("scheduler",))
    assert "every field was traced for" in report.notes[0]
    assert verdicts(report, "scheduler.async_scheduling") == {"sly": "unsound"}


def test_a_graph_that_is_another_each_time_is_unstable_and_not_unsound(spec_of):
    """No field is blamed for what moves by itself."""
    report = audit(spec_of("restless"), fields=("model.rms_norm_eps", "model.head_dim"))
    assert [f.kind for f in report.findings if f.kind != "failed"] == ["unstable"]
    assert report.counts["unsound"] == 0
    (finding,) = report.unstable
    assert finding.where == "unit restless"
    assert finding.diff


def test_what_cannot_be_traced_fails_and_says_why(spec_of):
    """A unit that never traces is one finding for all fields; a field that no value of traces is one of its own."""
    report = audit(spec_of("broken"), fields=("model.head_dim", "model.rms_norm_eps"))
    assert verdicts(report, "model.head_dim") == {
        "fine": "quiet",
        "never": "failed",
        "narrow": "failed",
    }
    assert verdicts(report, "model.rms_norm_eps") == {
        "fine": "sound",
        "never": "failed",
        "narrow": "quiet",
    }
    texts = {f.where: f.text for f in report.findings}
    assert "never built" in texts["unit never, 2 fields"]
    (narrow,) = [where for where in texts if where.endswith("unit narrow")]
    assert "one width only" in texts[narrow]


def test_values_that_the_program_refuses_are_passed_over(spec_of):
    """The first other value that works is taken; with none, the report says what stands against it."""
    report = audit(
        spec_of("choosy"),
        fields=("model.num_attention_heads", "program", "speculative.draft_model"),
        values=2,
    )
    heads = [r for r in report.rows if r.path == "model.num_attention_heads"]
    assert [r.new for r in heads] == ["2", "12"]
    assert "choosy_other" in row(report, "program").skipped
    drafts = row(report, "speculative.draft_model").cells
    assert drafts["draft"].reason == "there only with the new value"
    widths = [r for r in report.rows if r.path == "speculative.draft_model.hidden_size"]
    assert {r.inside for r in widths} == {"speculative.draft_model"}
    assert {r.cells["draft"].verdict.value for r in widths} == {"sound"}


def test_a_set_that_is_iterated_is_found_with_another_hash_seed(spec_of):
    """The trace is repeated in a process with other string hashes; the unit whose graph differs is named."""
    seed = 1 if os.environ.get("PYTHONHASHSEED") == "0" else 0
    report = audit(spec_of("ordered"), fields=("notes",), hash_seeds=(seed,))
    (finding,) = report.findings
    assert (finding.kind, finding.where) == ("unstable", "unit set")
    assert f"PYTHONHASHSEED {seed}" in finding.text
    assert finding.diff


def test_a_cuda_device_need_not_be_there(spec_of):
    """Units trace for cuda on a machine without one, indexing included, and back to the CPU."""
    spec = spec_of("zoo", device={"target": "cuda"})
    report = audit(spec, units=("right",), fields=("model.rms_norm_eps", "device.target"))
    assert report.device == "cuda"
    assert verdicts(report, "model.rms_norm_eps") == {"right": "sound"}
    assert verdicts(report, "device.target") == {"right": "sound"}


def test_unknown_names_are_refused_with_the_nearest(spec_of):
    """A unit or field that is not there is no empty report."""
    with pytest.raises(SpecError, match=r"rihgt.*\n.*did you mean 'right'"):
        audit(spec_of("zoo"), units=("rihgt",))
    with pytest.raises(SpecError, match=r"kv_cash.*\n.*did you mean 'kv_cache'"):
        audit(spec_of("zoo"), fields=("kv_cash",))


def test_a_spec_that_the_program_refuses_is_an_error(spec_of):
    """Without units there is nothing to audit."""
    with pytest.raises(GraphspecError, match="nothing_like_it"):
        audit(spec_of("nothing_like_it"))


READS = {
    "attribute": lambda spec: spec.scheduler.max_num_seqs,
    "getattr": lambda spec: getattr(spec.scheduler, "max_num_seqs"),  # noqa: B009
    "property": lambda spec: spec.max_num_draft_seqs,
    "comparison": lambda spec: spec.scheduler == attrs.evolve(spec.scheduler),
    "hash": lambda spec: hash(spec.scheduler),
    "repr": repr,
    "asdict": lambda spec: attrs.asdict(spec.scheduler),
    "pickle": pickle.dumps,
    "evolve": lambda spec: attrs.evolve(spec.scheduler),
    "slot": lambda spec: type(spec.scheduler).max_num_seqs.__get__(spec.scheduler),
    "view": lambda spec: view_of(spec).scheduler.max_num_batched_tokens,
}


def view_of(spec):
    return RecordingView(spec, Scope(("scheduler",)), {})


@pytest.mark.parametrize("how", READS)
def test_a_read_is_seen_however_it_is_made(spec_of, how):
    """The section and the field count as read; afterwards, nothing is watched any more."""
    spec = unshared(spec_of("zoo"))
    watch = RawReads(spec)
    slot = vars(type(spec.scheduler))["max_num_seqs"]
    with watch.recording() as reads:
        READS[how](spec)
    assert vars(type(spec.scheduler))["max_num_seqs"] is slot
    field = "max_num_batched_tokens" if how == "view" else "max_num_seqs"
    assert {"scheduler", f"scheduler.{field}"} <= reads
    before = set(reads)
    repr(spec)
    assert reads == before


def test_making_a_view_is_no_read_of_what_it_lists(spec_of):
    """The view asks for the paths of all keyed fields; their values decide nothing."""
    spec = unshared(spec_of("zoo"))
    with RawReads(spec).recording() as reads:
        view_of(spec)
    assert reads == set()


def test_sections_that_are_one_object_are_told_apart(spec_of):
    """n-gram drafting has the target's parallel section for its own; a read of one is none of the other."""
    spec = spec_of("zoo")
    assert spec.parallel is spec.speculative.draft_parallel
    apart = unshared(spec)
    assert apart == spec
    with RawReads(apart).recording() as reads:
        _ = apart.parallel.tensor_parallel_size
    assert reads == {"parallel", "parallel.tensor_parallel_size"}


def test_a_read_of_another_spec_is_none_of_this_one(spec_of):
    """Only the objects of the spec that is watched count."""
    spec, other = unshared(spec_of("zoo")), unshared(spec_of("zoo"))
    with RawReads(spec).recording() as reads:
        repr(other)
    assert reads == set()


@pytest.fixture
def config(folder, tmp_path):
    """The path of a config file for one of the programs."""

    def write(program):
        file = tmp_path / "engine.yaml"
        data = plain_config(config_folder(folder), program=f"support.audited:{program}")
        file.write_text(yaml.safe_dump(data))
        return str(file)

    return write


def called(capsys, *arguments):
    code = run(_root, list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


SOUND = ("--unit", "right", "--field", "model.rms_norm_eps", "--field", "lora")
UNSOUND = ("--unit", "behind", "--field", "kv_cache")


def test_the_command_prints_a_matrix_and_writes_a_page(capsys, config, tmp_path):
    """Exit 0 without a finding; the table has fields, units and a legend, and the page is written."""
    page = tmp_path / "audit.html"
    code, out, err = called(capsys, "audit", "--config", config("zoo"), *SOUND, "--html", str(page))
    assert (code, err) == (0, "")
    assert "model.rms_norm_eps" in out
    assert "lora.max_loras" in out
    assert "a compile for nothing" in out
    assert "\u2026" not in out
    assert "findings 0" in out.splitlines()[-1]
    assert page.read_text().startswith("<!doctype html>")


def test_the_command_fails_with_the_diff(capsys, config):
    """Exit 1 with a finding, which has the two graphs' difference."""
    code, out, _ = called(capsys, "audit", "--config", config("zoo"), *UNSOUND)
    assert code == 1
    assert "finding: unsound: kv_cache.enable_prefix_caching" in out
    assert "+++ after" in out


def test_the_command_prints_json_for_another_device(capsys, config):
    """--device audits for what is not there."""
    code, out, _ = called(
        capsys, "audit", "--config", config("zoo"), *SOUND, "--device", "cuda", "--json"
    )
    assert code == 0
    data = json.loads(out)
    assert (data["device"], data["findings"]) == ("cuda", [])
    assert data["units"][0]["name"] == "right"


@pytest.mark.parametrize("seeds", ["x", "-1", "1,,2", "4294967296"])
def test_seeds_are_numbers(capsys, config, seeds):
    """Anything else is a usage error, before any work."""
    code, _, err = called(capsys, "audit", "--config", config("zoo"), f"--seeds={seeds}")
    assert code == 2
    assert "--seeds" in err


def test_a_page_that_cannot_be_written_is_an_error_before_the_work(capsys, config, tmp_path):
    """Exit 3, with the file's name."""
    target = str(tmp_path / "nowhere" / "audit.html")
    code, out, err = called(capsys, "audit", "--config", config("zoo"), "--html", target)
    assert (code, out) == (3, "")
    assert target in err


def test_the_spec_of_the_tests_has_all_it_should(spec_of):
    """The zoo's bugs are bugs: the fields that they read are declared as the tests say."""
    stages = {leaf.path: leaf.stage for leaf in leaves(spec_of("zoo"))}
    assert stages["kv_cache.enable_prefix_caching"] is None
    assert isinstance(spec_of("zoo"), EngineSpec)
