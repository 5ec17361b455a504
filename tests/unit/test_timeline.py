"""What a warmup tells becomes spans, and spans become a trace-event file that browsers open."""

import itertools
import json
import threading

import attrs
import yaml

from graphspec.cache.load import UnitResult
from graphspec.cache.store import Outcome
from graphspec.capture.spans import Span, trace_events
from graphspec.capture.timeline import Timeline
from graphspec.cli import _root
from graphspec.cli.common import run
from support import toy
from support.graphs import PLAN
from support.stored import store_units

LOADED = UnitResult(
    name="a",
    key="",
    outcome=Outcome.HIT,
    reason="",
    compiled=False,
    seconds=1.0,
    seconds_saved=0.0,
    bytes=1,
)
COMPILED = attrs.evolve(LOADED, compiled=True, seconds=5.0, trace_seconds=2.0)


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Told:
    """A listener that takes a second for each graph, and notes what it is told."""

    def __init__(self, clock):
        self.clock = clock
        self.log = []

    def started(self, units, plan):
        self.log.append("started")

    def unit_done(self, result):
        self.log.append(result.name)

    def phase(self, name):
        self.log.append(name)

    def graph_done(self, phase, key):
        self.log.append(key)
        self.clock.now += 1.0


def shown(spans):
    return [(s.row, s.name, round(s.start, 3), round(s.end, 3)) for s in spans]


def no_overlap(events):
    """The events of each row, none of which begins before the one before it ends."""
    rows = itertools.groupby(sorted(events, key=lambda e: (e["tid"], e["ts"])), lambda e: e["tid"])
    for _, row in rows:
        for before, after in itertools.pairwise(row):
            assert before["ts"] + before["dur"] <= after["ts"], (before, after)


def test_each_phase_and_graph_has_its_time():
    """A phase lasts to the next or to the end; a graph from the one before it, without what listeners take."""
    clock = Clock()
    told = Told(clock)
    timeline = Timeline(told, clock=clock)
    timeline.started((), PLAN)
    clock.now += 1
    timeline.phase("weights")
    clock.now += 2
    timeline.phase("capture")
    for key in PLAN.keys:
        clock.now += 3
        timeline.graph_done("capture", key)
    timeline.ended()
    clock.now += 50
    assert shown(timeline.spans()) == [
        ("phases", "weights", 1, 3),
        ("phases", "capture", 3, 15),
        ("graphs", "capture target_verify k=1 requests=4", 3, 6),
        ("graphs", "capture target_verify k=2 requests=2", 7, 10),
        ("graphs", "capture target_verify k=2 requests=1", 11, 14),
    ]
    assert told.log == ["started", "weights", "capture", *PLAN.keys]


def test_compiled_units_are_a_trace_and_the_rest():
    """Traces hold one lock: of two units that begin together, the second is traced after the first."""
    clock = Clock()
    timeline = Timeline(clock=clock)
    clock.now += 5
    timeline.unit_done(attrs.evolve(COMPILED, name="a"))
    clock.now += 1
    other = threading.Thread(
        target=timeline.unit_done, args=[attrs.evolve(COMPILED, name="b", seconds=6.0)]
    )
    other.start()
    other.join()
    clock.now += 2
    timeline.unit_done(attrs.evolve(LOADED, name="c"))
    timeline.unit_done(attrs.evolve(LOADED, name="d", same_as="c"))
    assert shown(timeline.spans()) == [
        ("units", "trace a", 0, 2),
        ("units", "compile a", 2, 5),
        ("units 2", "trace b", 2, 4),
        ("units 2", "compile b", 4, 6),
        ("units", "load c", 7, 8),
    ]


def test_trace_events_are_what_the_format_says():
    """Complete events in whole microseconds with process and thread, and a name for each of those."""
    spans = [
        Span(row="units", kind="load", name="load a", start=0.1, seconds=0.2),
        Span(row="phases", kind="phase", name="units", start=0.0, seconds=0.3000004),
        Span(row="phases", kind="phase", name="weights", start=0.3000004, seconds=0.5),
    ]
    document = json.loads(json.dumps(trace_events(spans)))
    named = [e for e in document["traceEvents"] if e["ph"] == "M"]
    assert [(e["name"], e["args"]["name"], e["tid"]) for e in named] == [
        ("process_name", "graphspec warmup", 0),
        ("thread_name", "phases", 1),
        ("thread_name", "units", 2),
    ]
    events = [e for e in document["traceEvents"] if e["ph"] == "X"]
    assert [(e["name"], e["cat"], e["ts"], e["dur"], e["tid"]) for e in events] == [
        ("units", "phase", 0, 300_000, 1),
        ("load a", "load", 100_000, 200_000, 2),
        ("weights", "phase", 300_000, 500_000, 1),
    ]
    assert {e["pid"] for e in document["traceEvents"]} == {1}
    no_overlap(events)


def test_a_warmup_writes_its_trace(tmp_path, tiny_config, tiny_checkpoint, capsys, monkeypatch):
    """Units, phases and each graph are in the file, and what one thread did does not overlap."""
    from graphspec.config.engine import EngineConfig
    from support.graphs import mix, scale

    spec = EngineConfig.from_dict(tiny_config(program=toy.NAME)).resolve()
    store_units(tmp_path / "cache", toy.program(spec).units(), spec, reads=())
    functions = {"scale": scale, "mix": mix}
    monkeypatch.setattr(
        "graphspec.cache.loading.artifact.load_artifact",
        lambda entry, **options: functions[str(entry.metadata["unit"])],
    )
    config = tmp_path / "engine.yaml"
    config.write_text(yaml.safe_dump(tiny_config(program=toy.NAME)))
    out = tmp_path / "warmup.trace.json"
    arguments = ["warmup", "--config", str(config), "--cache-dir", str(tmp_path / "cache")]
    code = run(_root, [*arguments, "--json", "--trace", str(out)])
    report = json.loads(capsys.readouterr().out)
    assert code == 0, report
    events = [e for e in json.loads(out.read_text())["traceEvents"] if e["ph"] == "X"]
    assert {e["name"] for e in events if e["cat"] == "load"} == {"load scale", "load mix"}
    assert [e["name"] for e in events if e["cat"] == "phase"] == list(report["phases"])
    assert sum(e["cat"] == "capture" for e in events) == report["graphs"]["captured"]
    assert all(isinstance(e[field], int) for e in events for field in ("ts", "dur", "pid", "tid"))
    assert all(e["dur"] >= 0 for e in events)
    no_overlap(events)
    assert [span["name"] for span in report["timeline"]] == [e["name"] for e in events]


def test_a_trace_that_cannot_be_written_fails_before_the_work(tmp_path, tiny_config, capsys):
    """Exit code 3, and no unit is looked up."""
    config = tmp_path / "engine.yaml"
    config.write_text(yaml.safe_dump(tiny_config(program=toy.NAME)))
    out = str(tmp_path / "nowhere" / "trace.json")
    assert run(_root, ["warmup", "--config", str(config), "--trace", out]) == 3
    assert f"--trace {out}" in capsys.readouterr().err


def test_a_warmup_that_fails_leaves_its_trace(tmp_path, tiny_config, capsys):
    """What ran up to the failure is in the file; a dry run has nothing to tell and says so."""
    config = tmp_path / "engine.yaml"
    config.write_text(yaml.safe_dump(tiny_config(program=toy.NAME)))
    out = tmp_path / "trace.json"
    arguments = ["warmup", "--config", str(config), "--trace", str(out)]
    offline = ["--set", "cache.offline=true", "--cache-dir", str(tmp_path / "cache")]
    assert run(_root, [*arguments, *offline]) == 4
    events = [e for e in json.loads(out.read_text())["traceEvents"] if e["ph"] == "X"]
    assert [e["name"] for e in events] == ["units"]
    assert run(_root, [*arguments, "--dry-run"]) == 2
    assert "--dry-run" in capsys.readouterr().err
