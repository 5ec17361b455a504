"""``graphspec plan``: the report of a plan as text, JSON and one page, without torch, and nothing invented."""

import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from graphspec.capture.keys import EVERY_KIND, FULL_VERIFY
from graphspec.capture.memory_model import GraphCosts, GraphSample
from graphspec.capture.padding import expected_padding
from graphspec.capture.plan import plan_capture
from graphspec.capture.plan_html import plan_html
from graphspec.capture.plan_report import PlanReport
from graphspec.capture.traffic import Traffic
from graphspec.cli import _root
from graphspec.cli.common import run
from support.plans import spec_for
from support.specs import config_folder, plain_config, plain_spec, run_python
from support.speculative import resolved_case

CASES = json.loads((Path(__file__).parent.parent / "data" / "capture-cases.json").read_text())
TABLE = [[1, 4, 3], [5, 16, 1]]
SAMPLES = [
    {"graph": "a", "tokens": 32, "mib": 100.0, "seconds": 2.0, "opens_pool": True},
    *({"graph": "b", "tokens": t, "mib": 10 + t / 2, "seconds": 1.0} for t in (4, 8, 16, 24)),
]
SPANS = [
    {"row": "phases", "kind": "phase", "name": "units", "start": 0.0, "seconds": 1.5},
    {"row": "units", "kind": "load", "name": "load <b>a</b>", "start": 0.1, "seconds": 0.2},
]


@pytest.fixture
def config(tmp_path):
    """The path of a config with two tiers: 1 to 4 requests have 3 drafts, 5 to 16 have one."""
    drafts = {"method": "ngram", "num_speculative_tokens": 3}
    drafts["num_speculative_tokens_per_batch_size"] = TABLE
    data = plain_config(
        config_folder(tmp_path / "model"),
        scheduler={"max_num_seqs": 16, "max_num_batched_tokens": 64},
        speculative=drafts,
    )
    file = tmp_path / "engine.yaml"
    file.write_text(yaml.safe_dump(data))
    return str(file)


@pytest.fixture
def earlier(tmp_path):
    """The path of a warmup's report."""
    file = tmp_path / "report.json"
    file.write_text(json.dumps({"graphs": {"samples": SAMPLES}, "timeline": SPANS}))
    return str(file)


def called(capsys, *arguments):
    code = run(_root, ["plan", "--config", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def read(capsys, *arguments):
    code, out, err = called(capsys, *arguments, "--json")
    assert (code, err) == (0, ""), out
    return json.loads(out)


def report_for(spec, captures=FULL_VERIFY, **more):
    return PlanReport(
        spec=spec,
        plan=plan_capture(spec, captures=captures),
        captures=captures,
        captures_assumed=False,
        **more,
    )


def test_json_has_the_plan(capsys, config):
    """Mode, tiers, graphs in the order of capture, and the counts; what was not measured is null."""
    plan = read(capsys, config)
    mode = "FULL_AND_PIECEWISE"
    assert plan["mode"] == {"asked": mode, "granted": mode, "reasons": []}
    assert plan["tiers"] == [{"k": 3, "first": 1, "last": 4}, {"k": 1, "first": 5, "last": 16}]
    assert [(g["k"], g["requests"], g["tokens"]) for g in plan["graphs"]] == [
        (1, 16, 32), (1, 14, 28), (1, 12, 24), (1, 10, 20),
        (3, 4, 16), (1, 8, 16), (1, 7, 14), (3, 3, 12), (1, 6, 12), (1, 5, 10), (3, 2, 8), (3, 1, 4),
    ]  # fmt: skip
    assert {(g["phase"], g["mode"]) for g in plan["graphs"]} == {("target_verify", "full")}
    assert set(plan["graphs"][0]) == {"phase", "mode", "k", "requests", "tokens"}
    assert (plan["planned"], plan["reachable"], plan["fallthrough"]) == (12, 12, [])
    assert (
        plan["padded_tokens_mean"] == 0.5
    )  # 9, 11, 13 and 15 requests are padded by 2 tokens each
    assert plan["predicted_mib"] is None
    assert plan["predicted_seconds"] is None
    assert plan["traffic"] is None
    assert [t["waste"] for t in plan["by_tier"]] == [
        0.0,
        pytest.approx(8 / (2 * sum(range(5, 17)))),
    ]
    assert [(e["steps"], e["reason"]) for e in plan["eager"]] == [
        ("prefill", "mixed_batch"),
        ("draft", "no_draft_phase"),
    ]
    assert plan["left_out"][0]["reason"] == "not_capturable"
    assert plan["captures"] == {"assumed": True, "kinds": [["target_verify", "full"]]}


def test_text_says_what_runs_without_a_graph(capsys, config):
    """The table of tiers, each reason, that nothing is measured, and what was assumed."""
    code, out, _ = called(capsys, config)
    assert code == 0
    assert re.search(r"5 to 16 +│ 1 +│ 5 to 8, 10, 12, 14, 16 +│ 8 +│ 8 +│ 0.667 ", out)
    assert "not measured" in out
    assert "without a graph: steps with prefill of 1 to 16 requests: " in out
    assert "(MIXED_BATCH)" in out
    assert "The program was not asked" in out
    assert out.splitlines()[-1] == (
        "planned 12, reachable 12, batch sizes without a graph 0, padded tokens a step 0.5, "
        "memory not measured, time not measured"
    )


def test_no_torch_is_imported(config, earlier, tmp_path):
    """All of it: text, JSON, page, traffic and report."""
    (tmp_path / "steps.log").write_text("3\n9 4\n")
    page, log = str(tmp_path / "plan.html"), str(tmp_path / "steps.log")
    options = ["--report", earlier, "--html", page, "--traffic", log, "--max-mib", "300"]
    code = (
        "import sys\nfrom graphspec.cli import _root\nfrom graphspec.cli.common import run\n"
        "codes = [run(_root, ['plan', '--config', *sys.argv[1:], *more]) for more in ([], ['--json'])]\n"
        "assert codes == [0, 0], codes\n"
        "heavy = {'torch', 'numpy', 'triton', 'numba'} & set(sys.modules)\nassert not heavy, heavy"
    )
    done = run_python(code, config, *options)
    assert done.returncode == 0, done.stderr
    assert Path(page).read_text().startswith("<!doctype html>")


def test_a_mode_without_full_graphs_lists_every_batch_size(capsys, config):
    """Nothing is planned, and each size says why."""
    plan = read(capsys, config, "--set", "compilation.cudagraph_mode=NONE")
    assert plan["graphs"] == []
    assert plan["fallthrough"] == list(range(1, 17))
    assert plan["eager"][0] == {
        "steps": "decode",
        "requests": [[1, 16]],
        "reason": "not_full_mode",
        "why": "the granted graph mode has no full graphs for decode",
    }
    assert [t["padded_tokens_mean"] for t in plan["by_tier"]] == [0.0, 0.0]
    code, out, _ = called(capsys, config, "--set", "compilation.cudagraph_mode=NONE")
    assert code == 0
    assert "batch sizes without a graph 16" in out


def test_a_report_of_a_warmup_gives_the_predictions(capsys, config, earlier):
    """The numbers are those of the fit to its samples; the pool counts once, and in no tier."""
    plan = read(capsys, config, "--report", earlier)
    tokens = [g["tokens"] for g in plan["graphs"]]
    costs = GraphCosts.from_samples(
        [GraphSample(**{k: v for k, v in s.items() if k != "graph"}) for s in SAMPLES]
    )
    assert costs.pool_mib == 74.0
    assert plan["predicted_mib"] == pytest.approx(74 + sum(10 + t / 2 for t in tokens))
    assert plan["predicted_seconds"] == pytest.approx(12)
    parts = [t["predicted_mib"] for t in plan["by_tier"]]
    assert sum(parts) == pytest.approx(plan["predicted_mib"] - 74)


BAD_REPORTS = {
    "no JSON": ("{", ["report.json:1"]),
    "something else": ("[1]", ["[1] (a list)", "graphspec warmup"]),
    "bad entries": (
        '{"graphs": {"samples": [{"tokens": 1}, {"tokens": 1, "mib": -1, "seconds": 1}]}, "timeline": 3}',
        ["graphs.samples[0]", "graphs.samples[1]", "timeline: found 3 (an integer)"],
    ),
}


@pytest.mark.parametrize("name", BAD_REPORTS)
def test_what_is_no_report_is_told(capsys, config, tmp_path, name):
    """Exit code 2 and every problem with its place."""
    text, told = BAD_REPORTS[name]
    file = tmp_path / "report.json"
    file.write_text(text)
    code, _, err = called(capsys, config, "--report", str(file))
    assert code == 2
    assert all(part in err for part in told), err


def test_a_missing_report_is_told(capsys, config):
    """A file that is not there is named."""
    code, _, err = called(capsys, config, "--report", "/nowhere/report.json")
    assert code == 2
    assert "/nowhere/report.json: found a file that cannot be read: No such file" in err


def test_traffic_and_a_limit_give_the_best_ladder(capsys, config, tmp_path):
    """The plan is that of the best buckets; what it saves, and what a budget drops at what price, stand beside it."""
    log = tmp_path / "steps.csv"
    log.write_text("size,count\n2,60\n9,30\n13,10\n")
    plan = read(capsys, config, "--traffic", str(log), "--max-graphs", "4")
    assert [(g["k"], g["requests"]) for g in plan["graphs"]] == [(1, 16), (1, 9), (3, 4), (3, 2)]
    assert plan["padded_tokens_mean"] == pytest.approx(0.1 * 3 * 2)
    found = plan["traffic"]
    assert found["source"] == str(log)
    assert found["best"]["padded_tokens_mean"] == pytest.approx(plan["padded_tokens_mean"])
    assert found["default"]["padded_tokens_mean"] == pytest.approx(0.3 * 2 + 0.1 * 2)
    assert found["saved"] == pytest.approx(0.25)
    assert len(found["budget"]["dropped"]) == 8
    assert found["budget"]["without_graph"] == 0
    code, out, _ = called(capsys, config, "--traffic", str(log), "--max-graphs", "4")
    assert code == 0
    told = "the best ladder pads 25% less than the default one, with 4 graphs instead of 12"
    assert told in out
    assert "of the default ladder the budget would drop 8 buckets" in out
    assert "dropped by budget: " in out


def test_a_limit_alone_counts_every_size_alike(capsys, config):
    """Without a file the traffic is uniform, and the report says so."""
    plan = read(capsys, config, "--max-graphs", "5")
    assert plan["planned"] == 5
    assert plan["traffic"]["source"] is None


def test_what_cannot_be_kept_or_checked_is_refused(capsys, config, tmp_path):
    """MiB of graphs that nobody measured, too few graphs, sizes that the schedule lacks: exit code 2."""
    log = tmp_path / "steps.log"
    log.write_text("17\n")
    for options, told in (
        (["--max-mib", "10"], "not measured"),
        (["--max-graphs", "1"], "1"),
        (["--traffic", str(log)], "17 requests"),
    ):
        code, _, err = called(capsys, config, *options)
        assert code == 2
        assert told in err


def test_a_warmup_captures_the_buckets_that_a_plan_writes(capsys, config, tmp_path):
    """What --output writes, warmup --buckets plans, here in a dry run."""
    file = str(tmp_path / "buckets.json")
    limited = read(capsys, config, "--max-graphs", "5", "--output", file)
    where = ["--cache-dir", str(tmp_path / "cache"), "--buckets", file]
    assert run(_root, ["warmup", "--config", config, *where, "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["graphs"]["planned"]
    planned = [g for g in planned if g["mode"] == "full"]
    assert [(g["k"], g["requests"]) for g in planned] == [
        (g["k"], g["requests"]) for g in limited["graphs"]
    ]
    assert len(planned) == 5


BAD_BUCKETS = {
    "no file": (None, ["a file that cannot be read: No such file"]),
    "no buckets": ('{"sizes": {}}', ["graphspec plan --config"]),
    "bad entries": (
        '{"buckets": {\n"many": [1],\n"3": [true],\n"1": "16"}}',
        [
            "json:2: buckets.many",
            "json:3: buckets.3: found [true]",
            "json:4: buckets.1: found '16'",
        ],
    ),
}


@pytest.mark.parametrize("name", BAD_BUCKETS)
def test_what_are_no_buckets_is_told(capsys, config, tmp_path, name):
    """Exit code 2, every problem with its line, before anything is compiled."""
    text, told = BAD_BUCKETS[name]
    file = tmp_path / "buckets.json"
    if text is not None:
        file.write_text(text)
    assert run(_root, ["warmup", "--config", config, "--buckets", str(file)]) == 2
    err = capsys.readouterr().err
    assert all(part in err for part in told), err


class Tags(HTMLParser):
    """Checks that tags close in order; keeps attributes and text."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.attributes, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parsed(page):
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    return tags, [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def rectangles(svg):
    return [rect for rect in svg.iter() if rect.tag.endswith("rect")]


def test_the_page_stands_alone_and_has_every_plot(capsys, config, earlier, tmp_path):
    """One file: nothing is loaded, each plot is well-formed, each batch size, graph and span is in one."""
    file = tmp_path / "plan.html"
    options = ("--html", str(file), "--report", earlier, "--max-graphs", "6")
    code, _, err = called(capsys, config, *options)
    assert (code, err) == (0, "")
    page = file.read_text()
    tags, (waste, memory, timeline) = parsed(page)
    assert not {"script", "link", "img", "iframe"} & set(tags.seen)
    assert not {"href", "src", "onload", "onclick"} & {name for name, _ in tags.attributes}
    assert re.findall(r"https?://[^\"]+", page) == ["http://www.w3.org/2000/svg"] * 3
    assert "url(" not in page
    assert "@import" not in page
    assert "color-scheme: light dark" in page
    assert len(rectangles(waste)) == 16
    assert len(rectangles(memory)) == 6
    assert len(rectangles(timeline)) == 2
    assert "Memory by bucket" in page
    assert "load &lt;b&gt;a&lt;/b&gt;" in page
    assert "dropped by budget" in page


def test_the_page_escapes_what_it_is_given(tmp_path):
    """A title, a reason or a path with markup stays text."""
    evil = '"><script>alert(1)</script>&<svg/onload=x>'
    page = plan_html(report_for(plain_spec(tmp_path / "model")), evil)
    tags, _ = parsed(page)
    assert "script" not in tags.seen
    assert f"Capture plan: {evil}" in tags.text


def test_without_measurements_the_page_has_tokens(tmp_path):
    """The plot is of tokens, and says that memory is not measured and how it would be."""
    page = plan_html(report_for(plain_spec(tmp_path / "model")), "x")
    assert "Tokens by bucket" in page
    assert "Memory is not measured" in page
    assert "Timeline" not in page


def test_a_page_without_graphs_says_so(tmp_path):
    """Where nothing is captured each batch size has its pale bar, and the plot of buckets is empty."""
    spec = plain_spec(tmp_path / "model", compilation={"cudagraph_mode": "NONE"})
    page = plan_html(report_for(spec), "x")
    tags, (waste, buckets) = parsed(page)
    assert "4 of 4 batch sizes decode without a graph." in tags.text
    assert [rect.get("class") for rect in rectangles(waste)] == ["none"] * 4
    assert rectangles(buckets) == []


def test_drafts_pieces_and_a_program_that_captures_all():
    """Graphs of the draft phase count in their tier, pieces in none, and nothing is left to run eagerly."""
    spec = resolved_case("eagle3")
    report = report_for(spec, EVERY_KIND)
    in_tiers = [key for tier in report.tiers for key in tier.keys]
    assert sorted(map(str, [*in_tiers, *report.pieces])) == sorted(map(str, report.plan.keys))
    assert {key.phase.value for key in in_tiers} == {"target_verify", "draft"}
    assert report.eager == []
    pieces = [g for g in report.as_dict()["graphs"] if g["mode"] == "piecewise"]
    assert len(pieces) == len(report.pieces) > 0
    assert all(g["requests"] is None for g in pieces)
    assert [(e.kind, e.reason.name) for e in report_for(spec).eager] == [
        ("prefill", "MIXED_BATCH"),
        ("draft", "NOT_CAPTURABLE"),
    ]


@pytest.mark.parametrize("case", CASES["cases"][:4], ids=lambda case: case["name"])
def test_the_report_agrees_with_the_plan_and_the_padding(tmp_path, case):
    """Reachable, fall-through and mean padding are what the plan and `expected_padding` say; tiers add up to the mean."""
    spec = spec_for(
        lambda **sections: plain_config(config_folder(tmp_path), **sections),
        [tuple(entry) for entry in case["table"]] if case["table"] else None,
        k=case["num_speculative_tokens"],
        max_num_seqs=case["max_num_seqs"],
    )
    report = report_for(spec)
    data = report.as_dict()
    assert data["planned"] == data["reachable"] == len(data["graphs"])
    assert data["fallthrough"] == []
    demands = Traffic.uniform(case["max_num_seqs"]).split(report.plan.schedule)
    wanted = expected_padding(report.plan.buckets, demands).padded_tokens
    assert data["padded_tokens_mean"] == pytest.approx(wanted)
    total = sum((t.last - t.first + 1) * t.padded_tokens for t in report.tiers)
    assert total / case["max_num_seqs"] == pytest.approx(wanted)


def test_the_page_of_the_docs_has_every_key(capsys, config):
    """docs/plan.md has a row for each key that `plan --json` prints, and for no other."""
    page = (Path(__file__).parents[2] / "docs" / "plan.md").read_text()
    table = page.partition("### JSON")[2].partition("```")[0]
    first_cells = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    named = {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)}
    assert named == set(read(capsys, config))
