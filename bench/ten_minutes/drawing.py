"""Line plots as standalone SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 860, 480
LEFT, RIGHT, TOP, BOTTOM = 64, 200, 20, 52
COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a", "#bf3989", "#0a7a83")
TICKS = 6

Lines = Mapping[str, Sequence[tuple[float, float]]]


def draw(lines: Lines, *, across: str, up: str, log_across: bool = False, log_up: bool = False) -> str:
    """One line per name, with its points; on request with logarithmic axes, to the bases 2 and 10."""
    points = [point for line in lines.values() for point in line] or [(1.0, 1.0) if log_across else (0.0, 0.0)]
    left, right = min(x for x, _ in points) if log_across else 0.0, max(x for x, _ in points) or 1.0
    low, high = min(y for _, y in points), max(y for _, y in points)
    scale = _Scale(_Axis(left, right, base=2 if log_across else 0), _Axis(low, high, base=10 if log_up else 0))
    parts = [*_axes(scale, across, up)]
    for number, (name, line) in enumerate(lines.items()):
        parts += _curve(scale, name, line, number)
    frame = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    style = 'font-family="sans-serif" font-size="12"'
    background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {frame} {style}>', background, *parts, "</svg>\n"])


class _Axis:
    """Maps values between two bounds to shares of the axis; logarithmic to a base, or linear if that is 0."""

    def __init__(self, low: float, high: float, *, base: int) -> None:
        self.base = base
        low, high = self._position(low), self._position(high)
        self.low, self.high = (low, high) if high > low else (low - 0.5, low + 0.5)

    def _position(self, value: float) -> float:
        return math.log(value, self.base) if self.base else value

    def share(self, value: float) -> float:
        return (self._position(value) - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if not self.base:
            return _ticks(self.low, self.high)
        return [
            float(self.base**power) for power in range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1)
        ]


class _Scale(NamedTuple):
    """Maps values to pixel coordinates."""

    across: _Axis
    up: _Axis

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * self.across.share(value)

    def y(self, value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - self.up.share(value))


def _curve(scale: _Scale, name: str, line: Sequence[tuple[float, float]], number: int) -> list[str]:
    colour = COLOURS[number % len(COLOURS)]
    pixels = [(scale.x(x), scale.y(y)) for x, y in line]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in pixels]
    beside = WIDTH - RIGHT + 16
    height = TOP + 14 + 18 * number
    label = f'<text x="{beside + 22}" y="{height + 4}">{escape(name)}</text>'
    sample = f'<line x1="{beside}" x2="{beside + 16}" y1="{height}" y2="{height}" stroke="{colour}" stroke-width="2"/>'
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>', *dots, sample, label]


def _axes(scale: _Scale, across: str, up: str) -> list[str]:
    elements = []
    for value in scale.across.ticks():
        x = scale.x(value)
        elements.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#e4e4e4"/>')
        elements.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{value:g}</text>')
    for value in scale.up.ticks():
        y = scale.y(value)
        elements.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e4e4"/>')
        elements.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    middle, centre = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    elements.append(f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">{escape(across)}</text>')
    rotation = f'transform="rotate(-90 16 {centre})"'
    elements.append(f'<text x="16" y="{centre}" text-anchor="middle" {rotation}>{escape(up)}</text>')
    return elements


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between two bounds."""
    if high <= low:
        return [low]
    rough = (high - low) / TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]
