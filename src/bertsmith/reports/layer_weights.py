"""The learned weights of the layers of an encoder in a task (P-ELMo Figure 2): from the log of a run, and as figures.

A run logs each weight as `mix/NAME/LAYER`, and the scale of the sum as `mix/NAME/scale`.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from bertsmith.reports import html
from bertsmith.reports.run_history import RunHistory

PREFIX, SCALE = "mix/", "scale"
WIDTH, ROW, LEFT, RIGHT = 360, 22, 92, 56  # pixels of a figure, of a bar's row, and of its margins

Weights = Mapping[str, Mapping[str, float]]  # by mix: the weight of each layer, and the scale


def weights_of(run: RunHistory) -> dict[str, dict[str, float]]:
    """The weights of the best model of a run; empty where it has no mix."""
    found: dict[str, dict[str, float]] = {}
    for name, value in run.best_held_out.items():
        if name.startswith(PREFIX):
            mix, _, layer = name.removeprefix(PREFIX).rpartition("/")
            found.setdefault(mix, {})[layer] = value
    return found


def weight_figures(weights: Weights, *, title: str = "") -> list[str]:
    """One figure per mix, with a bar for each layer."""
    return [_figure(mix, some, title) for mix, some in weights.items()]


def _figure(mix: str, weights: Mapping[str, float], title: str) -> str:
    layers = {name: value for name, value in weights.items() if name != SCALE}
    scale = f"scale {weights[SCALE]:.2f}" if SCALE in weights else ""
    heading = f"{title}: {mix}" if title else mix
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
