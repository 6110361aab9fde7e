"""Attention weights as pictures for notebooks: one heat map with its tokens, or a small one for each layer and head.

Q query tokens, K key tokens.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import BertsmithError

CELL = 18  # pixels of a token in a heat map
MAX_TOKENS = 128  # of a heat map
MAX_TOKEN = 12  # characters of a label
SMALL = 110  # pixels of a heat map among others
MARGIN, GAP, LINE, LAYER = 8, 10, 20, 60  # pixels: around a picture, between small heat maps, a line of text, "layer 1"


@dataclass(frozen=True)
class Picture:
    """An SVG picture; notebooks show it."""

    title: str
    svg: str = field(repr=False)

    def _repr_svg_(self) -> str:
        return self.svg


def select_heads(weights: NDArray[np.float32], layer: int | None, head: int | None) -> NDArray[np.float32]:
    """Weights [layers, heads, Q, K] of one layer and head, counted from 1 [Q, K]; None averages over all of them."""
    for axis, (name, number) in enumerate({"layer": layer, "head": head}.items()):
        count = weights.shape[axis]
        if number is not None and not 1 <= number <= count:
            raise BertsmithError(f"{name} {number} does not exist: choose 1 to {count}")
        weights = weights if number is None else weights.take([number - 1], axis=axis)
    mean: NDArray[np.float32] = weights.mean((0, 1))
    return mean


def head_title(weights: NDArray[np.float32], layer: int | None, head: int | None) -> str:
    """What `select_heads` selects, in words."""
    layers, heads = weights.shape[:2]
    names = [f"mean of {layers} layers" if layer is None else f"layer {layer}"]
    names.append(f"mean of {heads} heads" if head is None else f"head {head}")
    return ", ".join(names)


def heat_map(weights: NDArray[np.float32], rows: Sequence[str], columns: Sequence[str], *, title: str) -> Picture:
    """Weights [Q, K] with the tokens of rows and columns; colours follow the square root, as on the server's page."""
    rest = f"; the first {MAX_TOKENS} tokens" if max(weights.shape) > MAX_TOKENS else ""
    weights = weights[:MAX_TOKENS, :MAX_TOKENS]
    rows, columns = rows[:MAX_TOKENS], columns[:MAX_TOKENS]
    edge = 8 * min(max(map(len, (*rows, *columns))), MAX_TOKEN) + MARGIN
    top = edge + LINE
    labels = []
    for index, token in enumerate(rows):
        y = top + (index + 0.5) * CELL + 4
        labels.append(f'<text x="{edge - 5}" y="{y}" text-anchor="end">{_label(token)}</text>')
    for index, token in enumerate(columns):
        x = edge + (index + 0.5) * CELL + 4
        labels.append(f'<text transform="translate({x} {top - 5}) rotate(-90)">{_label(token)}</text>')
    height, width = (CELL * count for count in weights.shape)
    title = f"{title}; highest weight {weights.max():.1%}{rest}"
    parts = [*labels, _image(weights, x=edge, y=top, width=width, height=height)]
    return _picture(title, parts, width=edge + width + MARGIN, height=top + height + MARGIN)


def _label(token: str) -> str:
    return escape(token if len(token) <= MAX_TOKEN else f"{token[: MAX_TOKEN - 1]}…")


def small_heat_maps(weights: NDArray[np.float32], *, title: str) -> Picture:
    """Weights [layers, heads, Q, K]: one row of heat maps for each layer, one column for each head."""
    layers, heads = weights.shape[:2]
    left, top = MARGIN + LAYER, 2 * LINE + MARGIN
    parts = []
    for head in range(heads):
        x = left + head * (SMALL + GAP) + SMALL // 2
        parts.append(f'<text x="{x}" y="{top - 6}" text-anchor="middle">head {head + 1}</text>')
    for layer in range(layers):
        y = top + layer * (SMALL + GAP)
        parts.append(f'<text x="{left - 8}" y="{y + SMALL // 2 + 4}" text-anchor="end">layer {layer + 1}</text>')
        for head in range(heads):
            x = left + head * (SMALL + GAP)
            parts.append(_image(weights[layer, head], x=x, y=y, width=SMALL, height=SMALL))
            parts.append(f'<rect x="{x}" y="{y}" width="{SMALL}" height="{SMALL}" fill="none" stroke="#bbb"/>')
    width, height = left + heads * (SMALL + GAP) + MARGIN, top + layers * (SMALL + GAP) + MARGIN
    return _picture(title, parts, width=width, height=height)


def _picture(title: str, parts: Sequence[str], *, width: int, height: int) -> Picture:
    """A picture with its title above, on white, so that it can be read on any background."""
    width = max(width, 6 * len(title) + 2 * MARGIN)
    size = f'width="{width}" height="{height}"'
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title)}" {size} '
        f'font-family="sans-serif" font-size="11"><rect {size} fill="#fff"/>'
        f'<text x="{MARGIN}" y="{LINE - 4}">{escape(title)}</text>{"".join(parts)}</svg>'
    )
    return Picture(title, svg)


def _image(weights: NDArray[np.float32], *, x: int, y: int, width: int, height: int) -> str:
    attributes = f'x="{x}" y="{y}" width="{width}" height="{height}" preserveAspectRatio="none"'
    return f'<image {attributes} style="image-rendering: pixelated" href="{png_url(weights)}"/>'


def png_url(weights: NDArray[np.float32]) -> str:
    """A data URL of a PNG with one blue pixel for each weight, more opaque for higher ones."""
    height, width = weights.shape
    shades = np.rint(np.sqrt(weights / max(float(weights.max()), 1e-12)) * 255).astype(np.uint8)
    rows = b"".join(b"\0" + row.tobytes() for row in shades)  # no filter
    palette, opacity = bytes((31, 111, 180)) * 256, bytes(range(256))
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)  # 8 bits, with a palette
    parts = {b"IHDR": header, b"PLTE": palette, b"tRNS": opacity, b"IDAT": zlib.compress(rows), b"IEND": b""}
    chunks = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts.items()
    )
    png = b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
