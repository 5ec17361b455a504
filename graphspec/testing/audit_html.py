"""An audit's report as one HTML page: no scripts, nothing loaded from elsewhere, fit for paper."""

from collections.abc import Iterator, Sequence
from html import escape

from graphspec.testing.audit_report import Finding, Report, Row, Verdict
from graphspec.text import plural

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 90rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
code, td, th, pre { font-family: ui-monospace, monospace; font-size: 13px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; }
caption { text-align: left; padding: .3rem 0; font: 14px/1.4 system-ui, sans-serif; }
th, td { border: 1px solid #8886; padding: .15rem .5rem; text-align: left; vertical-align: top; }
thead th { position: sticky; top: 0; background: Canvas; }
td.cell { text-align: center; white-space: nowrap; }
.sound { background: #2e9e4433; } .needless { background: #d9a40055; } .refused { background: #2e7fd933; }
.unsound, .failed { background: #c4202033; font-weight: bold; outline: 2px solid #c42020; }
.skipped { font-style: italic; }
tr.section th { background: #8882; }
pre { overflow-x: auto; padding: .6rem; background: #8881; }
.bad { color: #c42020; font-weight: bold; } .good { color: #2e9e44; font-weight: bold; }
@media print {
  body { margin: 0; max-width: none; font-size: 10pt; } code, td, th, pre { font-size: 7.5pt; }
  .scroll { overflow: visible; } thead th { position: static; } tr { break-inside: avoid; }
  pre { white-space: pre-wrap; } * { print-color-adjust: exact; }
}
"""


def audit_html(report: Report, title: str) -> str:
    """The whole page. `title` says what was audited; like every text of the report it may hold any character."""
    return "\n".join(_page(report, title)) + "\n"


def _page(report: Report, title: str) -> Iterator[str]:
    name = escape(title)
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>Key audit: {name}</title>\n<style>{_STYLE}</style>\n</head>\n<body>"
    yield f"<h1>Key audit: {name}</h1>"
    yield from _summary(report)
    yield from _findings(report.findings)
    yield from _caught(report)
    yield from _matrix(report)
    yield from _rates(report)
    yield "</body>\n</html>"


def _summary(report: Report) -> Iterator[str]:
    findings = report.findings
    if findings:
        yield f'<p class="bad">{plural(len(findings), "finding")}.</p>'
    else:
        yield '<p class="good">No finding: no field that was changed moves a graph without moving its key.</p>'
    needless, moved = report.misses()
    facts = [
        f"device {report.device}, COMPILE hash {report.spec_hash}",
        f"{plural(len({row.path for row in report.rows}), 'field')}, {plural(len(report.columns), 'unit')}, "
        f"{plural(report.traces, 'trace')} in {report.seconds:.1f} s",
        f"{needless} of {moved} misses needless",
        *report.notes,
    ]
    yield "<ul>" + "".join(f"<li>{escape(fact)}</li>" for fact in facts) + "</ul>"
    yield "<table><caption>Units</caption><thead><tr><th>unit</th><th>key</th><th>graph</th></tr></thead><tbody>"
    for unit in report.units:
        cells = (unit.name, unit.key, unit.fingerprint or "does not trace")
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
    yield "</tbody></table>"


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    if not findings:
        return
    yield "<h2>Findings</h2>"
    for finding in findings:
        head = f"{finding.kind}: {finding.where}"
        yield f'<p><span class="bad">{escape(head)}</span><br>{escape(finding.text)}</p>'
        if finding.diff:
            yield f"<pre>{escape(chr(10).join(finding.diff))}</pre>"


def _caught(report: Report) -> Iterator[str]:
    if report.caught:
        yield "<h2>Refused by the watch</h2><ul>"
        yield "".join(f"<li>{escape(f'{where}: {reason}')}</li>" for where, reason in report.caught)
        yield "</ul>"


def _matrix(report: Report) -> Iterator[str]:
    yield "<h2>Fields and units</h2>"
    counts = report.counts
    yield "<table><caption>What a cell says</caption><thead><tr><th>mark</th><th>verdict</th><th>meaning</th>"
    yield "<th>cells</th></tr></thead><tbody>"
    for verdict in Verdict:
        yield (
            f'<tr><td class="cell {verdict.value}">{verdict.symbol}</td><td>{verdict.value}</td>'
            f"<td>{escape(verdict.meaning)}</td><td>{counts[verdict.value]}</td></tr>"
        )
    yield "</tbody></table>"
    units = "".join(f'<th scope="col">{escape(name)}</th>' for name in report.columns)
    yield '<div class="scroll"><table><caption>Each row is one change: a field and its other value</caption>'
    yield (
        '<thead><tr><th scope="col">field</th><th scope="col">declared</th><th scope="col">change</th>'
        f'<th scope="col">known by</th>{units}</tr></thead><tbody>'
    )
    section = ""
    for row in report.rows:
        if row.path.partition(".")[0] != section:
            section = row.path.partition(".")[0]
            width = 4 + len(report.columns)
            yield f'<tr class="section"><th colspan="{width}" scope="rowgroup">{escape(section)}</th></tr>'
        yield _row(row, report.columns)
    yield "</tbody></table></div>"


def _row(row: Row, columns: Sequence[str]) -> str:
    inside = f" (in an example of {row.inside})" if row.inside else ""
    if row.skipped:
        return (
            f'<tr><th scope="row">{escape(row.path)}</th><td>{row.stage}</td><td>{escape(row.old)}</td>'
            f'<td colspan="{1 + len(columns)}" class="skipped">not changed: {escape(row.skipped + inside)}</td></tr>'
        )
    cells = []
    for name in columns:
        cell = row.cells.get(name)
        if cell is None:
            cells.append("<td></td>")
            continue
        title = f' title="{escape(cell.reason)}"' if cell.reason else ""
        cells.append(f'<td class="cell {cell.verdict.value}"{title}>{cell.verdict.symbol}</td>')
    return (
        f'<tr><th scope="row">{escape(row.path)}</th><td>{row.stage}</td>'
        f"<td>{escape(row.old)} &rarr; {escape(row.new)}{escape(inside)}</td><td>{escape(row.methods)}</td>"
        f"{''.join(cells)}</tr>"
    )


def _rates(report: Report) -> Iterator[str]:
    rates = {path: rate for path, rate in report.needless_rates.items() if rate}
    if not rates:
        return
    yield "<h2>Needless misses</h2>"
    yield "<table><caption>By field: of the units whose key it moves, those whose graph stays</caption>"
    yield "<thead><tr><th>field</th><th>needless</th><th>rate</th></tr></thead><tbody>"
    for path, rate in rates.items():
        needless, moved = report.misses(path)
        yield f"<tr><td>{escape(path)}</td><td>{needless} of {moved}</td><td>{rate:.0%}</td></tr>"
    yield "</tbody></table>"
