"""Curves as text: line charts in braille dots, spark lines, smoothing and thinning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Points = tuple[ArrayLike, ArrayLike]  # x and y of one series, of equal length
BLOCKS = "▁▂▃▄▅▆▇█"
BRAILLE = 0x2800
DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])  # bits of a character by row and column
NO_SERIES = -1  # owner of axes and labels


@dataclass(frozen=True)
class Chart:
    """Lines of text, and for each character the index of its series, or NO_SERIES."""

    lines: list[str]
    owners: list[list[int]]


def chart(series: Mapping[str, Points], **options: Any) -> list[str]:
    """Several series by name, each (x, y), as lines of text; options as in `draw`.

    `print("\\n".join(chart({"loss": (steps, losses)}, x_label="steps")))`. Values that are not finite are gaps.
    """
    return draw(series, **options).lines


def draw(
    series: Mapping[str, Points], *, width: int = 72, height: int = 14, title: str = "", x_label: str = ""
) -> Chart:
    """A chart of `width` × `height` characters including title, axes with round ticks, and legend."""
    curves = [_cleaned(x, y) for x, y in series.values()]
    legend = len(series) > 1
    rows = max(height - 2 - bool(title) - legend, 2)
    low, high = _range([y[np.isfinite(y)] for _, y in curves], margin=True)
    ticks = axis_ticks(low, high, max(rows // 2, 2))
    labels = {_row(value, low, high, rows): number(value) for value in ticks}
    margin = max(map(len, labels.values()), default=0)
    columns = max(width - margin - 2, 4)
    left, right = _range([x for x, _ in curves])
    dots = np.zeros((rows, columns), dtype=np.int64)
    owners = np.full((rows, columns), NO_SERIES)
    for index, (x, y) in enumerate(curves):
        lit = _lit((x - left) / (right - left), (y - low) / (high - low), columns * 2, rows * 4)
        cells = (lit.reshape(rows, 4, columns, 2) * DOTS[None, :, None, :]).sum(axis=(1, 3))
        owners[cells > 0] = index
        dots |= cells
    lines = [title[:width]] if title else []
    line_owners = [[NO_SERIES] * len(line) for line in lines]
    for row in range(rows):
        bar = "┤" if row in labels else "│"
        inside = "".join(chr(BRAILLE + dot) if dot else " " for dot in dots[row].tolist())
        lines.append(f"{labels.get(row, ''):>{margin}} {bar}{inside}".rstrip())
        line_owners.append([NO_SERIES] * (margin + 2) + owners[row].tolist())
    for line in _x_axis(left, right, columns, margin + 1, x_label):
        lines.append(line)
        line_owners.append([NO_SERIES] * len(line))
    if legend:
        line, legend_owners = _legend(list(series), width)
        lines.append(line)
        line_owners.append(legend_owners)
    return Chart(lines, line_owners)


def spark(values: ArrayLike, *, width: int = 24) -> str:
    """One line of blocks: the mean of each interval of `values`, a blank where no value is finite."""
    numbers = np.asarray(values, dtype=np.float64).ravel()
    if not len(numbers):
        return ""
    cuts = np.linspace(0, len(numbers), min(width, len(numbers)) + 1).astype(int)[:-1]
    finite = np.isfinite(numbers)
    counts = np.add.reduceat(finite.astype(np.int64), cuts)
    means = np.add.reduceat(np.where(finite, numbers, 0.0), cuts) / np.maximum(counts, 1)
    present = means[counts > 0]
    if not len(present):
        return " " * len(cuts)
    low, high = present.min(), present.max()
    share = (means - low) / (high - low) if high > low else np.full(len(means), 0.4)  # a flat line is in the middle
    heights = np.rint(share * (len(BLOCKS) - 1)).astype(int)
    return "".join(BLOCKS[height] if count else " " for height, count in zip(heights, counts, strict=True))


def smooth(values: ArrayLike, weight: float = 0.9) -> Floats:
    """The bias-corrected exponential moving average, with `weight` for the past.

    Values that are not finite are ignored; the result is nan before the first finite value.
    """
    if not 0 <= weight < 1:
        raise ValueError(f"weight={weight} must be at least 0 and less than 1")
    numbers = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(numbers)
    sums = np.stack([np.where(finite, numbers, 0.0), finite])  # weighted sums of values, and of weights
    if weight > 0:
        length = max(int(30 / -math.log(weight)), 1)  # keeps the powers within e^30
        before = np.zeros((2, 1))
        for start in range(0, len(numbers), length):
            chunk = sums[:, start : start + length]
            powers = weight ** -np.arange(chunk.shape[1], dtype=np.float64)
            chunk[:] = (before * weight + np.cumsum(chunk * powers * (1 - weight), axis=1)) / powers
            before = chunk[:, -1:].copy()
    result: Floats = np.divide(sums[0], sums[1], out=np.full(len(numbers), np.nan), where=sums[1] > 0)
    return result


def smoothing(points: int) -> float:
    """The weight that averages over about a fiftieth of a curve, or over up to ten points of a short one."""
    return 1 - 1 / max(points / 50, min(points / 6, 10), 1)


def thin(y: ArrayLike, points: int) -> NDArray[np.int64]:
    """Indices of at most `points` values, sorted: first, last, and the minimum and maximum of equal intervals.

    An interval without a finite value keeps its first value, so that the gap stays visible.
    """
    numbers = np.asarray(y, dtype=np.float64)
    if len(numbers) <= points:
        return np.arange(len(numbers))
    cuts = np.linspace(0, len(numbers), max((points - 2) // 2, 1) + 1).astype(int)
    size = int(np.diff(cuts).max())
    indices = np.minimum(cuts[:-1, None] + np.arange(size), cuts[1:, None] - 1)  # short intervals repeat their last
    intervals = numbers[indices]
    finite = np.isfinite(intervals)
    rows = np.arange(len(indices))
    minima = indices[rows, np.argmin(np.where(finite, intervals, np.inf), axis=1)]
    maxima = indices[rows, np.argmax(np.where(finite, intervals, -np.inf), axis=1)]
    return np.unique(np.concatenate([[0], minima, maxima, [len(numbers) - 1]]))


def number(value: float) -> str:
    """A number for an axis: 0.001, 2.5, 300, 20k, 1.5M, 1e-5."""
    if value == 0:
        return "0"
    size = abs(value)
    for unit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= unit * 0.99999999 and (suffix != "k" or size >= 9999):
            return f"{value / unit:.4g}{suffix}"
    one_digit = math.isclose(float(f"{value:.0e}"), value, rel_tol=1e-9)
    return f"{value:.0e}".replace("e-0", "e-") if size < 0.999e-3 and one_digit else f"{value:.4g}"


def _cleaned(x: ArrayLike, y: ArrayLike) -> tuple[Floats, Floats]:
    """One series sorted by x; y is nan at gaps."""
    xs, ys = np.asarray(x, dtype=np.float64).ravel(), np.asarray(y, dtype=np.float64).ravel()
    if len(xs) != len(ys):
        raise ValueError(f"a series has {len(xs):,} values of x and {len(ys):,} of y")
    kept = np.isfinite(xs)
    xs, ys = xs[kept], np.where(np.isfinite(ys), ys, np.nan)[kept]
    order = np.argsort(xs, kind="stable")
    return xs[order], ys[order]


def _range(values: Sequence[Floats], *, margin: bool = False) -> tuple[float, float]:
    """Minimum and maximum of all values, never equal."""
    present = [part for part in values if len(part)]
    if not present:
        return 0.0, 1.0
    low, high = float(min(part.min() for part in present)), float(max(part.max() for part in present))
    if high - low <= max(abs(low), abs(high), 1e-300) * 1e-12:
        spread = abs(low) * 0.1 or 1.0
        return low - spread, high + spread * 0.9  # centres the line on a dot
    return (low - (high - low) * 0.02, high + (high - low) * 0.02) if margin else (low, high)


def _lit(across: Floats, up: Floats, columns: int, rows: int) -> NDArray[np.bool_]:
    """Dots [rows, columns] of one curve; each column is lit from its minimum to its maximum."""
    lit = np.zeros((rows, columns), dtype=bool)
    present = np.flatnonzero(np.isfinite(up))
    if not len(present):
        return lit
    column = np.clip((across[present] * (columns - 1) + 0.5).astype(int), 0, columns - 1)
    row = np.clip(((1 - up[present]) * (rows - 1) + 0.5).astype(int), 0, rows - 1)
    firsts = np.flatnonzero(np.diff(column, prepend=-1))
    lasts = np.append(firsts[1:], len(column)) - 1
    tops, bottoms = np.minimum.reduceat(row, firsts), np.maximum.reduceat(row, firsts)
    for position, top, bottom in zip(column[firsts].tolist(), tops.tolist(), bottoms.tolist(), strict=True):
        lit[top : bottom + 1, position] = True
    for before, after in zip(lasts[:-1].tolist(), firsts[1:].tolist(), strict=True):
        if present[after] - present[before] == 1:  # otherwise there is a gap between them
            steps = max(column[after] - column[before], abs(row[after] - row[before]))
            fractions = np.linspace(0, 1, int(steps) + 1)
            line_columns = np.rint(column[before] + fractions * (column[after] - column[before])).astype(int)
            lit[np.rint(row[before] + fractions * (row[after] - row[before])).astype(int), line_columns] = True
    return lit


def axis_ticks(low: float, high: float, most: int) -> list[float]:
    """Round ticks between two ends."""
    raw = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def _row(value: float, low: float, high: float, rows: int) -> int:
    """The character row of a value."""
    return int(np.clip(int((1 - (value - low) / (high - low)) * (rows * 4 - 1) + 0.5) // 4, 0, rows - 1))


def _x_axis(left: float, right: float, columns: int, margin: int, label: str) -> list[str]:
    """The axis line with its ticks, and their numbers with the label at the end."""
    available = max(columns - len(label) - 2, 1) if label else columns
    line, numbers = ["─"] * columns, [" "] * (columns + 8)
    free = 0
    for value in axis_ticks(left, right, max(columns // 10, 1)):
        text = number(value)
        column = round((value - left) / (right - left) * (columns - 1))
        start = max(column - len(text) // 2, 0)
        if start >= free and start + len(text) <= available:
            numbers[start : start + len(text)] = text
            line[column] = "┬"
            free = start + len(text) + 1
    if label:
        numbers[max(columns - len(label), free + 1) :] = label
    return [" " * margin + "└" + "".join(line), (" " * (margin + 1) + "".join(numbers)).rstrip()]


def _legend(names: Sequence[str], width: int) -> tuple[str, list[int]]:
    line, owners = "", list[int]()
    for index, name in enumerate(names):
        entry = f"{'  ' if line else ''}⣿ {name}"
        if len(line) + len(entry) > width:
            return line + " …", [*owners, NO_SERIES, NO_SERIES]
        line += entry
        owners += [index] * len(entry)
    return line, owners
