"""Small plots as SVG for pages that load nothing: bars over a scale, and rows of spans over time.

Colours are classes of the page's style sheet, so that one plot is right in light and in dark. Texts may hold any character.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape

import attrs

WIDTH, _LEFT, _RIGHT, _TOP = 960, 64, 12, 12
_HEIGHT, _FOOT = 240, 44
_ROW, _CHARACTER = 26, 7.0
_MOST_LABELS, _MOST_STEPS = 12, 6


@attrs.frozen(kw_only=True)
class Bar:
    """One bar. `label` stands below it where there is room, `told` is shown when it is pointed at.

    `value` is None where there is none to show: then a pale bar of full height stands there. `error` is a stated error
    of the value, in its unit.
    """

    label: str
    told: str
    value: float | None
    style: str
    error: float | None = None


@attrs.frozen(kw_only=True)
class Stretch:
    """A part of a row, from `start` for `length` in the unit of the axis."""

    row: str
    start: float
    length: float
    label: str
    told: str
    style: str


def bars(drawn: Sequence[Bar], *, title: str, across: str, up: str) -> str:
    """A bar chart. `across` and `up` say what the axes are."""
    highest = max(
        (bar.value + (bar.error or 0) for bar in drawn if bar.value is not None), default=0
    )
    steps = scale(highest)
    top = steps[-1]
    width = (WIDTH - _LEFT - _RIGHT) / max(1, len(drawn))
    gap = 1.0 if width > 4 else 0.0

    def height(value: float) -> float:
        return _HEIGHT * min(value, top) / top

    parts = [*_grid(steps, up)]
    every = math.ceil(len(drawn) / _MOST_LABELS)
    for at, bar in enumerate(drawn):
        x = _LEFT + at * width
        tall = _HEIGHT if bar.value is None else height(bar.value)
        style = "none" if bar.value is None else bar.style
        parts.append(
            f'<rect class="{escape(style)}" x="{x + gap / 2:.2f}" y="{_TOP + _HEIGHT - tall:.2f}" '
            f'width="{max(0.5, width - gap):.2f}" height="{tall:.2f}"><title>{escape(bar.told)}</title></rect>'
        )
        if bar.value is not None and bar.error:
            low, high = height(max(0.0, bar.value - bar.error)), height(bar.value + bar.error)
            middle = x + width / 2
            parts.append(
                f'<line class="error" x1="{middle:.2f}" x2="{middle:.2f}" y1="{_TOP + _HEIGHT - high:.2f}" '
                f'y2="{_TOP + _HEIGHT - low:.2f}"/>'
            )
        if at % every == 0:
            parts.append(_text(x + width / 2, _TOP + _HEIGHT + 16, bar.label, "middle"))
    parts.append(_text(_LEFT + (WIDTH - _LEFT - _RIGHT) / 2, _TOP + _HEIGHT + 36, across, "middle"))
    return _svg(parts, _TOP + _HEIGHT + _FOOT, title)


def rows(drawn: Sequence[Stretch], *, title: str, across: str) -> str:
    """Stretches in rows, one row for each name, in the order in which names first occur."""
    names = list(dict.fromkeys(stretch.row for stretch in drawn))
    left = _LEFT + 36
    steps = scale(max((s.start + s.length for s in drawn), default=0))
    across_width = WIDTH - left - _RIGHT
    foot = _TOP + _ROW * len(names)
    parts = []
    for value in steps:
        x = left + across_width * value / steps[-1]
        parts.append(f'<line class="grid" x1="{x:.2f}" x2="{x:.2f}" y1="{_TOP}" y2="{foot}"/>')
        parts.append(_text(x, foot + 16, f"{value:g}", "middle"))
    for at, name in enumerate(names):
        parts.append(_text(left - 8, _TOP + at * _ROW + 17, name, "end"))
    for stretch in drawn:
        x = left + across_width * stretch.start / steps[-1]
        width = max(0.5, across_width * stretch.length / steps[-1])
        y = _TOP + names.index(stretch.row) * _ROW + 2
        parts.append(
            f'<rect class="{escape(stretch.style)} part" x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW - 4}">'
            f"<title>{escape(stretch.told)}</title></rect>"
        )
        if width > _CHARACTER * len(stretch.label) + 8:
            parts.append(_text(x + 4, y + 15, stretch.label, "start", style="on"))
    parts.append(_text(left + across_width / 2, foot + 36, across, "middle"))
    return _svg(parts, foot + _FOOT, title)


def scale(highest: float) -> Sequence[float]:
    """Round numbers from 0 to at least `highest`, at most seven.

    >>> scale(4.6)
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / _MOST_STEPS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= rough * (1 - 1e-9))
    count = math.ceil(highest / step - 1e-9)
    return [float(f"{at * step:.10g}") for at in range(count + 1)]


def _grid(steps: Sequence[float], up: str) -> Iterator[str]:
    for value in steps:
        y = _TOP + _HEIGHT * (1 - value / steps[-1])
        yield f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.2f}" y2="{y:.2f}"/>'
        yield _text(_LEFT - 6, y + 4, f"{value:g}", "end")
    middle = _TOP + _HEIGHT / 2
    yield (
        f'<text x="14" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 14 {middle:.0f})">'
        f"{escape(up)}</text>"
    )


def _text(x: float, y: float, text: str, anchor: str, style: str = "") -> str:
    named = f' class="{style}"' if style else ""
    return f'<text{named} x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(parts: Sequence[str], height: float, title: str) -> str:
    name = escape(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{name}">'
        f"<title>{name}</title>{''.join(parts)}</svg>"
    )
