"""Curves as text: line charts in braille dots, spark lines, smoothing and thinning. Pure functions; colours nothing.

`chart` gives plain lines; `draw` also says which series each character belongs to, for those who colour them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Points = tuple[ArrayLike, ArrayLike]  # x and y of one series, as long as each other
BLOCKS = "▁▂▃▄▅▆▇█"
BRAILLE = 0x2800
DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])  # of a character: row from the top, column
NOBODY = -1  # owner of a character that belongs to no series


@dataclass(frozen=True)
class Picture:
    """Lines of equal meaning for a screen, and by character the number of the series it belongs to, or NOBODY."""

    lines: list[str]
    owners: list[list[int]]


def chart(series: Mapping[str, Points], **how: Any) -> list[str]:
    """Several series by name, each (x, y), as lines of text; `how` as in `draw`.

    `print("\\n".join(chart({"loss": (steps, losses)}, x_label="steps")))`. Points that are not finite are gaps.
    """
    return draw(series, **how).lines


def draw(
    series: Mapping[str, Points],
    *,
    width: int = 72,
    height: int = 14,
    title: str = "",
    x_label: str = "",
    log_x: bool = False,
    log_y: bool = False,
) -> Picture:
    """A chart of `width` × `height` characters, all told: title, dots between axes with round ticks, legend."""
    curves = [_cleaned(x, y, log_x=log_x, log_y=log_y) for x, y in series.values()]
    legend = len(series) > 1
    rows = max(height - 2 - bool(title) - legend, 2)
    low, high = _range([y[np.isfinite(y)] for _, y in curves], margin=True)
    ticks = _ticks(low, high, max(rows // 2, 2), log=log_y)
    labels = {_row(place, low, high, rows): number(value) for place, value in ticks}
    edge = max(map(len, labels.values()), default=0)
    columns = max(width - edge - 2, 4)
    left, right = _range([x for x, _ in curves])
    dots = np.zeros((rows, columns), dtype=np.int64)
    owners = np.full((rows, columns), NOBODY)
    for place, (x, y) in enumerate(curves):
        lit = _lit((x - left) / (right - left), (y - low) / (high - low), columns * 2, rows * 4)
        cells = (lit.reshape(rows, 4, columns, 2) * DOTS[None, :, None, :]).sum(axis=(1, 3))
        owners[cells > 0] = place
        dots |= cells
    lines = [title[:width]] if title else []
    painted = [[NOBODY] * len(line) for line in lines]
    for row in range(rows):
        bar = "┤" if row in labels else "│"
        inside = "".join(chr(BRAILLE + dot) if dot else " " for dot in dots[row].tolist())
        lines.append(f"{labels.get(row, ''):>{edge}} {bar}{inside}".rstrip())
        painted.append([NOBODY] * (edge + 2) + owners[row].tolist())
    for line in _x_axis(left, right, columns, edge + 1, x_label, log=log_x):
        lines.append(line)
        painted.append([NOBODY] * len(line))
    if legend:
        line, whose = _legend(list(series), width)
        lines.append(line)
        painted.append(whose)
    return Picture(lines, painted)


def spark(values: ArrayLike, *, width: int = 24) -> str:
    """One line of blocks: the mean of each stretch of `values`, a blank where nothing is finite."""
    numbers = np.asarray(values, dtype=np.float64).ravel()
    if not len(numbers):
        return ""
    cuts = np.linspace(0, len(numbers), min(width, len(numbers)) + 1).astype(int)[:-1]
    finite = np.isfinite(numbers)
    counts = np.add.reduceat(finite.astype(np.int64), cuts)
    means = np.add.reduceat(np.where(finite, numbers, 0.0), cuts) / np.maximum(counts, 1)
    there = means[counts > 0]
    if not len(there):
        return " " * len(cuts)
    low, high = there.min(), there.max()
    if high == low:
        heights = np.full(len(means), 3)
    else:
        heights = np.rint((means - low) / (high - low) * (len(BLOCKS) - 1)).astype(int)
    return "".join(BLOCKS[place] if count else " " for place, count in zip(heights, counts, strict=True))


def smooth(values: ArrayLike, weight: float = 0.9) -> Floats:
    """The exponential mean of all values so far, each weighing `weight` times the next one; bias-corrected.

    Values that are not finite count for nothing, and nan stands until the first finite one.
    """
    if not 0 <= weight < 1:
        raise ValueError(f"weight={weight} must be at least 0 and under 1")
    numbers = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(numbers)
    parts = np.stack([np.where(finite, numbers, 0.0), finite])  # sums of values, and of what they weigh
    if weight > 0:
        stretch = max(int(30 / -math.log(weight)), 1)  # so that powers stay within e^30
        before = np.zeros((2, 1))
        for begin in range(0, len(numbers), stretch):
            part = parts[:, begin : begin + stretch]
            powers = weight ** -np.arange(part.shape[1], dtype=np.float64)
            part[:] = (before * weight + np.cumsum(part * powers * (1 - weight), axis=1)) / powers
            before = part[:, -1:].copy()
    found: Floats = np.divide(parts[0], parts[1], out=np.full(len(numbers), np.nan), where=parts[1] > 0)
    return found


def thin(y: ArrayLike, points: int) -> NDArray[np.int64]:
    """Places of at most `points` values, in order: first, last, and the least and greatest of equal stretches.

    A stretch without a finite value keeps its first, so that the gap stays.
    """
    numbers = np.asarray(y, dtype=np.float64)
    if len(numbers) <= points:
        return np.arange(len(numbers))
    cuts = np.linspace(0, len(numbers), max((points - 2) // 2, 1) + 1).astype(int)
    size = int(np.diff(cuts).max())
    places = np.minimum(cuts[:-1, None] + np.arange(size), cuts[1:, None] - 1)  # short stretches repeat their last
    rows = numbers[places]
    finite = np.isfinite(rows)
    rise = np.arange(len(places))
    least = places[rise, np.argmin(np.where(finite, rows, np.inf), axis=1)]
    most = places[rise, np.argmax(np.where(finite, rows, -np.inf), axis=1)]
    return np.unique(np.concatenate([[0], least, most, [len(numbers) - 1]]))


def number(value: float) -> str:
    """A number as an axis shows it: 0.001, 2.5, 300, 20k, 1.5M, 1e-5."""
    if value == 0:
        return "0"
    size = abs(value)
    for unit, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= unit * 0.99999999 and (sign != "k" or size >= 9999):
            return f"{value / unit:.4g}{sign}"
    return f"{value:.0e}".replace("e-0", "e-") if size < 0.999e-3 and _one_digit(value) else f"{value:.4g}"


def _one_digit(value: float) -> bool:
    return math.isclose(float(f"{value:.0e}"), value, rel_tol=1e-9)


def _cleaned(x: ArrayLike, y: ArrayLike, *, log_x: bool, log_y: bool) -> tuple[Floats, Floats]:
    """One series by rising x, with logarithms taken where asked; y is nan where there is nothing to draw."""
    xs, ys = np.asarray(x, dtype=np.float64).ravel(), np.asarray(y, dtype=np.float64).ravel()
    if len(xs) != len(ys):
        raise ValueError(f"a series has {len(xs):,} values of x and {len(ys):,} of y")
    with np.errstate(all="ignore"):
        xs = np.log10(xs) if log_x else xs
        ys = np.log10(ys) if log_y else ys
    kept = np.isfinite(xs)
    xs, ys = xs[kept], np.where(np.isfinite(ys), ys, np.nan)[kept]
    if len(xs) > 1 and (np.diff(xs) < 0).any():
        order = np.argsort(xs, kind="stable")
        xs, ys = xs[order], ys[order]
    return xs, ys


def _range(values: Sequence[Floats], *, margin: bool = False) -> tuple[float, float]:
    """The least and the greatest value of all; never equal, so that one can divide by their difference."""
    there = [part for part in values if len(part)]
    if not there:
        return 0.0, 1.0
    low, high = float(min(part.min() for part in there)), float(max(part.max() for part in there))
    if high - low <= max(abs(low), abs(high), 1e-300) * 1e-12:
        spread = abs(low) * 0.1 or 1.0
        return low - spread, high + spread * 0.9  # so that the line lies within a dot, not between two
    return (low - (high - low) * 0.02, high + (high - low) * 0.02) if margin else (low, high)


def _lit(across: Floats, up: Floats, columns: int, rows: int) -> NDArray[np.bool_]:
    """Dots [rows, columns] of one curve. In each column all from the least to the greatest value are lit."""
    lit = np.zeros((rows, columns), dtype=bool)
    there = np.flatnonzero(np.isfinite(up))
    if not len(there):
        return lit
    column = np.clip((across[there] * (columns - 1) + 0.5).astype(int), 0, columns - 1)
    row = np.clip(((1 - up[there]) * (rows - 1) + 0.5).astype(int), 0, rows - 1)
    firsts = np.flatnonzero(np.diff(column, prepend=-1))
    lasts = np.append(firsts[1:], len(column)) - 1
    tops, bottoms = np.minimum.reduceat(row, firsts), np.maximum.reduceat(row, firsts)
    for at, top, bottom in zip(column[firsts].tolist(), tops.tolist(), bottoms.tolist(), strict=True):
        lit[top : bottom + 1, at] = True
    for before, after in zip(lasts[:-1].tolist(), firsts[1:].tolist(), strict=True):
        if there[after] - there[before] == 1:  # else something that is not finite lies between
            steps = max(column[after] - column[before], abs(row[after] - row[before]))
            way = np.linspace(0, 1, int(steps) + 1)
            across_way = np.rint(column[before] + way * (column[after] - column[before])).astype(int)
            lit[np.rint(row[before] + way * (row[after] - row[before])).astype(int), across_way] = True
    return lit


def _ticks(low: float, high: float, most: int, *, log: bool) -> list[tuple[float, float]]:
    """Round ticks between two ends: where they are, and what they say."""
    if log:
        whole = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
        if len(whole) >= 2:
            stride = -(-len(whole) // most)
            return [(float(power), 10.0**power) for power in whole[::stride]]
        found = [(math.log10(value), value) for value in _round_steps(10.0**low, 10.0**high, most) if value > 0]
        return [(place, value) for place, value in found if low <= place <= high]
    return [(value, value) for value in _round_steps(low, high, most)]


def _round_steps(low: float, high: float, most: int) -> list[float]:
    raw = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]


def _row(value: float, low: float, high: float, rows: int) -> int:
    """The row of characters in which a value's dot lies."""
    return int(np.clip(int((1 - (value - low) / (high - low)) * (rows * 4 - 1) + 0.5) // 4, 0, rows - 1))


def _x_axis(left: float, right: float, columns: int, edge: int, label: str, *, log: bool) -> list[str]:
    """The line below the dots with its ticks, and their numbers with the label at the end."""
    room = max(columns - len(label) - 2, 1) if label else columns
    line, numbers = ["─"] * columns, [" "] * (columns + 8)
    free = 0
    for place, value in _ticks(left, right, max(columns // 10, 1), log=log):
        text = number(value)
        at = round((place - left) / (right - left) * (columns - 1))
        begin = max(at - len(text) // 2, 0)
        if begin >= free and begin + len(text) <= room:
            numbers[begin : begin + len(text)] = text
            line[at] = "┬"
            free = begin + len(text) + 1
    if label:
        numbers[max(columns - len(label), free + 1) :] = label
    return [" " * edge + "└" + "".join(line), (" " * (edge + 1) + "".join(numbers)).rstrip()]


def _legend(names: Sequence[str], width: int) -> tuple[str, list[int]]:
    line, owners = "", list[int]()
    for place, name in enumerate(names):
        part = f"{'  ' if line else ''}⣿ {name}"
        if len(line) + len(part) > width:
            return line + " …", [*owners, NOBODY, NOBODY]
        line += part
        owners += [place] * len(part)
    return line, owners
