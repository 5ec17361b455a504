"""A plan as one HTML page: nothing loaded from elsewhere, no scripts, right in light and in dark, fit for paper."""

from collections.abc import Iterator, Sequence
from html import escape

from graphspec.capture.keys import CaptureKey, GraphMode, Phase
from graphspec.capture.left_out import left_out_of
from graphspec.capture.plan_report import BatchSize, PlanReport
from graphspec.capture.plan_text import ASSUMED, compared, padding, ranges, told
from graphspec.capture.spans import Span
from graphspec.capture.svg import Bar, Stretch, bars, rows
from graphspec.capture.traffic_report import TrafficReport
from graphspec.text import plural

_COLOURS = 6
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 66rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.note { opacity: .8; font-size: 14px; }
.facts { display: flex; flex-wrap: wrap; gap: .6rem; padding: 0; list-style: none; }
.facts li { border: 1px solid #8886; border-radius: .4rem; padding: .4rem .8rem; }
.facts b { display: block; font-size: 1.25rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border: 1px solid #8886; padding: .2rem .6rem; text-align: left; vertical-align: top; font-size: 14px; }
td.number { text-align: right; white-space: nowrap; }
svg { width: 100%; height: auto; } svg text { fill: CanvasText; font: 12px system-ui, sans-serif; }
svg text.on { fill: #fff; } svg .grid { stroke: #8884; } svg .error { stroke: CanvasText; }
svg rect:hover { opacity: .7; } svg .part { stroke: Canvas; }
.c0 { fill: #3672c9; background: #3672c9; } .c1 { fill: #b8651b; background: #b8651b; }
.c2 { fill: #2e8a55; background: #2e8a55; } .c3 { fill: #9a4fb0; background: #9a4fb0; }
.c4 { fill: #8d7516; background: #8d7516; } .c5 { fill: #2b8494; background: #2b8494; }
.none { fill: #c4202040; background: #c4202040; }
.key span { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
.bad { color: #c42020; font-weight: bold; } .good { color: #2e9e44; font-weight: bold; }
@media (prefers-color-scheme: dark) { .bad { color: #ff7b72; } .good { color: #56d364; } }
@media print { body { margin: 0; max-width: none; } * { print-color-adjust: exact; } }
"""


def plan_html(
    report: PlanReport,
    title: str,
    *,
    traffic: TrafficReport | None = None,
    timeline: Sequence[Span] = (),
) -> str:
    """The whole page. `title` says whose plan it is; like every text it may hold any character."""
    return "\n".join(_page(report, title, traffic, timeline)) + "\n"


def _page(
    report: PlanReport, title: str, traffic: TrafficReport | None, timeline: Sequence[Span]
) -> Iterator[str]:
    name = escape(title)
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>Capture plan: {name}</title>\n<style>{_STYLE}</style>\n</head>\n<body>"
    yield f"<h1>Capture plan: {name}</h1>"
    yield from _glance(report)
    yield from _waste(report)
    yield from _memory(report)
    yield from _eager(report)
    yield from _tiers(report)
    if traffic is not None:
        yield from _traffic(traffic)
    if timeline:
        yield from _timeline(timeline)
    yield from _graphs(report.plan.keys)
    yield "</body>\n</html>"


def _glance(report: PlanReport) -> Iterator[str]:
    plan, mode = report.plan, report.spec.mode
    without = plan.fallthrough()
    if without:
        most = plan.schedule.max_num_seqs
        yield f'<p class="bad">{len(without)} of {most} batch sizes decode without a graph.</p>'
    else:
        yield '<p class="good">Every batch size decodes in a graph of exactly its depth.</p>'
    facts = [
        (str(len(plan.keys)), "graphs to capture"),
        (str(len(report.reachable)), "of them reachable"),
        (f"{report.padded_tokens:.3g}", "padded tokens a step, in the mean"),
        (told(report.mib), "memory of the graphs"),
        (told(report.seconds), "to capture them"),
        (mode.granted.value, f"graph mode (asked: {mode.asked.value})"),
    ]
    yield '<ul class="facts">'
    yield "".join(f"<li><b>{escape(value)}</b>{escape(what)}</li>" for value, what in facts)
    yield "</ul>"
    notes = list(mode.reasons)
    if report.captures_assumed:
        notes.append(ASSUMED)
    yield from (f'<p class="note">{escape(note)}</p>' for note in notes)


def _waste(report: PlanReport) -> Iterator[str]:
    depths = report.plan.schedule.depths
    yield "<h2>Padding by batch size</h2>"
    yield _key([(_colour(at), f"k = {k}") for at, k in enumerate(depths)] + [("none", "no graph")])
    drawn = [
        Bar(
            label=str(size.requests),
            told=_batch(size),
            value=None if size.key is None else 100 * size.waste,
            style=_colour(depths.index(size.k)),
        )
        for size in report.batch_sizes
    ]
    yield bars(
        drawn,
        title="Padded tokens by batch size",
        across="requests in the batch",
        up="padded, % of useful tokens",
    )


def _batch(size: BatchSize) -> str:
    what = f"{plural(size.requests, 'request')}, k = {size.k}"
    if size.key is None:
        return f"{what}: no graph"
    padded = plural(size.padded_tokens, "token")
    return (
        f"{what}: runs as {size.key.bucket}, {padded} padded ({size.waste:.0%} of the useful ones)"
    )


def _memory(report: PlanReport) -> Iterator[str]:
    measured = report.costs.mib
    yield f"<h2>{'Memory' if measured else 'Tokens'} by bucket</h2>"
    if measured is None:
        yield (
            '<p class="note">Memory is not measured, so this has the tokens of each graph. --report FILE takes what graphs '
            "took from the JSON report of a warmup.</p>"
        )
    else:
        once = report.costs.pool_mib or 0.0
        yield f'<p class="note">Predicted; their common pool takes {once:.4g} MiB more, once.</p>'
    keys = report.plan.keys
    # Full graphs of the target by depth come first, so that a depth has the colour that it has above.
    depths = [f"{Phase.TARGET_VERIFY.value} k = {k}" for k in report.plan.schedule.depths]
    kinds = list(dict.fromkeys([*depths, *(_kind(key) for key in keys)]))
    yield _key([(_colour(at), kind) for at, kind in enumerate(kinds)])
    drawn = []
    for key in sorted(keys, key=lambda key: (kinds.index(_kind(key)), key.bucket, key.lora)):
        value = float(key.tokens) if measured is None else measured.at(key.tokens)
        unit = "tokens" if measured is None else "MiB"
        drawn.append(
            Bar(
                label=str(key.bucket),
                told=f"{key}: {value:.4g} {unit}",
                value=value,
                style=_colour(kinds.index(_kind(key))),
                error=None if measured is None else measured.error,
            )
        )
    yield bars(
        drawn,
        title="Graphs by bucket",
        across="bucket: requests, or tokens of piecewise graphs",
        up="tokens of a pass" if measured is None else "MiB",
    )


def _kind(key: CaptureKey) -> str:
    if key.mode is GraphMode.PIECEWISE:
        return f"{key.phase.value} piecewise"
    return f"{key.phase.value} k = {key.k}"


def _eager(report: PlanReport) -> Iterator[str]:
    yield "<h2>What runs without a graph, and why</h2>"
    if not report.eager:
        yield '<p class="good">Nothing.</p>'
    else:
        cells = [(steps.kind, steps.sizes, steps.reason.name, steps.why) for steps in report.eager]
        yield _table(("steps", "requests", "reason", "why"), cells)
    left_out = left_out_of(report.plan)
    if left_out:
        yield "<ul>" + "".join(f"<li>{escape(str(part))}</li>" for part in left_out) + "</ul>"


def _tiers(report: PlanReport) -> Iterator[str]:
    yield "<h2>Tiers of the schedule</h2>"
    yield _table(
        (
            "requests",
            "k",
            "buckets",
            "graphs",
            "reachable",
            "padded tokens a step",
            "MiB",
            "seconds",
        ),
        [
            (
                f"{tier.first} to {tier.last}",
                str(tier.k),
                ranges(tier.buckets),
                str(len(tier.keys)),
                str(tier.reachable),
                padding(tier.padded_tokens, tier.waste),
                told(tier.mib),
                told(tier.seconds),
            )
            for tier in report.tiers
        ],
    )


def _traffic(found: TrafficReport) -> Iterator[str]:
    yield "<h2>The best ladder for the traffic</h2>"
    source = found.source or "no file: every batch size alike"
    yield f"<p>{escape(source)}. The best ladder pads {compared(found.choice)}.</p>"
    yield _table(
        ("ladder", "graphs", "padded tokens a step", "MiB", "buckets by depth"),
        [
            (
                name,
                str(ladder.graphs),
                f"{ladder.padding.padded_tokens:.4g}",
                told(ladder.mib),
                "; ".join(f"k = {k}: {ranges(s)}" for k, s in ladder.buckets.items()),
            )
            for name, ladder in (("best", found.choice.best), ("default", found.choice.default))
        ],
    )
    if found.budgeted is not None:
        yield "<h2>What the budget would drop of the default ladder</h2>"
        dropped = [escape(str(one)) for one in found.budgeted.dropped]
        yield (
            "<ol>" + "".join(f"<li>{one}</li>" for one in dropped) + "</ol>"
            if dropped
            else "<p>Nothing.</p>"
        )


def _timeline(timeline: Sequence[Span]) -> Iterator[str]:
    kinds = list(dict.fromkeys(span.kind for span in timeline))
    yield "<h2>Timeline of the warmup</h2>"
    yield _key([(_colour(at), kind) for at, kind in enumerate(kinds)])
    drawn = [
        Stretch(
            row=span.row,
            start=span.start,
            length=span.seconds,
            label=span.name,
            told=f"{span.name}: {span.seconds:.3g} s from {span.start:.3g} s on",
            style=_colour(kinds.index(span.kind)),
        )
        for span in timeline
    ]
    phases = [span for span in timeline if span.kind == "phase"]
    yield f"<p>{escape(', '.join(f'{p.name} {p.seconds:.3g} s' for p in phases))}</p>"
    yield rows(drawn, title="What ran when", across="seconds after the warmup began")


def _graphs(keys: Sequence[CaptureKey]) -> Iterator[str]:
    yield f"<details><summary>{plural(len(keys), 'graph')}, in the order of capture</summary>"
    cells = [
        (
            key.phase.value,
            key.mode.value,
            str(key.k),
            str(key.bucket),
            str(key.tokens),
            str(key.lora),
        )
        for key in keys
    ]
    yield _table(("phase", "mode", "k", "bucket", "tokens", "adapters"), cells)
    yield "</details>"


def _table(head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    titles = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in cells
    )
    return f'<div class="scroll"><table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table></div>'


def _key(entries: Sequence[tuple[str, str]]) -> str:
    marks = (f'<span class="{style}"></span>{escape(text)}' for style, text in entries)
    return f'<p class="key">{"".join(marks)}</p>'


def _colour(at: int) -> str:
    return f"c{at % _COLOURS}"
