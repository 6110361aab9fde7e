"""The charts of the study's page as SVG: bars with deviations, and curves of the loss over seconds of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from bertsmith.reports import html
from bertsmith.reports.text_charts import axis_ticks, number

WIDTH = 360  # pixels, so that the text of a chart is not scaled down on a phone
LABELS, RIGHT = 112, 44  # margins of bars: names on the left, values on the right
BAR, GAP = 16, 8
LEFT, TOP, BOTTOM, HEIGHT = 44, 14, 40, 200  # of curves


@dataclass(frozen=True)
class Bar:
    """A model's value, or None where it has none."""

    name: str
    value: float | None
    deviation: float | None
    color: int
    text: str  # of the value


def bars(title: str, unit: str, some: Sequence[Bar], *, base: float | None = None) -> str:
    """Horizontal bars from 0 with error bars of one standard deviation; `base`: a dashed line."""
    height = len(some) * (BAR + GAP) + 34
    ends = [value for bar in some for value in _ends(bar)] + ([] if base is None else [base])
    low, high = min([0.0, *ends]), max([0.0, *ends])
    scale = (WIDTH - LABELS - RIGHT) / ((high - low) or 1.0)
    parts = []
    for value in axis_ticks(low, high, 4) if high > low else [0.0]:
        x = LABELS + (value - low) * scale
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{height - 26}"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 10}" text-anchor="middle">{number(value)}</text>')
    zero = LABELS - low * scale
    for index, bar in enumerate(some):
        parts.append(_bar(bar, y=6 + index * (BAR + GAP), zero=zero, scale=scale))
    parts.append(f'<line class="axis" x1="{zero:.1f}" x2="{zero:.1f}" y1="4" y2="{height - 26}"/>')
    if base is not None:
        x = LABELS + (base - low) * scale
        parts.append(f'<line class="base" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{height - 26}"/>')
    return html.figure(title, unit, "".join(parts), size=(WIDTH, height))


def _ends(bar: Bar) -> list[float]:
    if bar.value is None:
        return []
    deviation = bar.deviation or 0.0
    return [bar.value - deviation, bar.value + deviation]


def _bar(bar: Bar, *, y: float, zero: float, scale: float) -> str:
    middle = y + BAR / 2
    label = f'<text x="{LABELS - 8}" y="{middle + 4}" text-anchor="end" class="name">{escape(bar.name)}</text>'
    if bar.value is None:
        return f'{label}<text x="{zero + 6:.1f}" y="{middle + 4}">–</text>'
    end = zero + bar.value * scale
    left, width = min(zero, end), abs(end - zero)
    parts = [f'<rect class="c{bar.color} fill" x="{left:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>']
    tip = max(zero, end)
    if bar.deviation:
        low, high = (zero + (bar.value + sign * bar.deviation) * scale for sign in (-1, 1))
        caps = f"M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8"
        parts.append(f'<path class="error" d="M{low:.1f} {middle}H{high:.1f}{caps}"/>')
        tip = max(tip, high)
    value = f'<text x="{tip + 5:.1f}" y="{middle + 4}">{escape(bar.text.partition(" ")[0])}</text>'
    return f"<g><title>{escape(f'{bar.name}: {bar.text}')}</title>{label}{''.join(parts)}{value}</g>"


def curve(title: str, unit: str, points: Sequence[tuple[float, float]], *, color: int) -> str:
    """A loss over seconds of training."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    last, low, high = max(*xs, 1e-9), min(ys), max(ys)
    margin = 0.06 * (high - low) or 0.1
    low, high = low - margin, high + margin
    right, bottom = WIDTH - 14, HEIGHT - BOTTOM

    def place(x: float, y: float) -> str:
        across = LEFT + x / last * (right - LEFT)
        return f"{across:.1f} {TOP + (high - y) / (high - low) * (bottom - TOP):.1f}"

    parts = []
    for value in axis_ticks(low, high, 4):
        y = TOP + (high - value) / (high - low) * (bottom - TOP)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>')
    for value in axis_ticks(0, last, 4):
        x = LEFT + value / last * (right - LEFT)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{number(value)}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    parts.append(f'<text x="{right}" y="{HEIGHT - 6}" text-anchor="end">seconds of training</text>')
    line = "L".join(place(x, y) for x, y in points)
    parts.append(f'<path class="curve c{color}" d="M{line}"/>')
    parts += [_point(place(x, y), color, f"{x:.0f} s: {y:.3f}") for x, y in points]
    return html.figure(title, unit, "".join(parts), size=(WIDTH, HEIGHT))


def _point(place: str, color: int, title: str) -> str:
    x, y = place.split(" ")
    return f'<circle class="c{color} fill" cx="{x}" cy="{y}" r="2.5"><title>{escape(title)}</title></circle>'


def key(names: Mapping[str, int]) -> str:
    """What the colours mean."""
    items = []
    for name, color in names.items():
        box = f'<rect class="c{color} fill" width="12" height="12" rx="2"/>'
        items.append(f'<li><svg width="12" height="12" aria-hidden="true">{box}</svg>{escape(name)}</li>')
    return f'<ul class="key">{"".join(items)}</ul>'
