"""The learned weights of the layers of an encoder in a task (P-ELMo Figure 2): from the log of a run, and as figures.

A run logs each weight as `mix/PLACE/LAYER`, and the scale of the sum as `mix/PLACE/scale`.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from bertsmith.reports import html
from bertsmith.reports.run_history import RunHistory

PREFIX, SCALE = "mix/", "scale"
WIDTH, ROW, LEFT, RIGHT = 360, 22, 92, 56  # pixels of a figure, of a bar's row, and of its margins

Weights = Mapping[str, Mapping[str, float]]  # by place: of each layer, and the scale


def weights_of(run: RunHistory) -> dict[str, dict[str, float]]:
    """The weights of the best model of a run; empty where it has no mix."""
    found: dict[str, dict[str, float]] = {}
    for name, value in run.best_held_out.items():
        if name.startswith(PREFIX):
            place, _, layer = name.removeprefix(PREFIX).rpartition("/")
            found.setdefault(place, {})[layer] = value
    return found


def weight_figures(weights: Weights, *, title: str = "") -> list[str]:
    """One figure per place, with a bar for each layer."""
    return [_figure(place, some, title) for place, some in weights.items()]


def _figure(place: str, weights: Mapping[str, float], title: str) -> str:
    layers = {name: value for name, value in weights.items() if name != SCALE}
    scale = f"scale {weights[SCALE]:.2f}" if SCALE in weights else ""
    heading = f"{title}: {place}" if title else place
    most, height = max([*layers.values(), 1e-9]), ROW * len(layers)
    parts = []
    for row, (name, value) in enumerate(layers.items()):
        y, width = ROW * row, (WIDTH - LEFT - RIGHT) * max(value, 0.0) / most
        label = "embeddings" if name == "0" else f"layer {name}"
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(label)}</text>'
            f'<rect x="{LEFT}" y="{y + 2}" width="{width:.1f}" height="{ROW - 6}" fill="var(--c0)"/>'
            f'<text x="{LEFT + width + 6:.1f}" y="{y + 14}">{value:.3f}</text>'
        )
    values = ", ".join(f"{name} {value:.3f}" for name, value in layers.items())
    return html.figure(heading, scale, "".join(parts), size=(WIDTH, height), values=values)
