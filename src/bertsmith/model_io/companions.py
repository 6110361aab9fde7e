"""Models that training leaves besides the one that is trained: ELECTRA's generator, which fills in words."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from bertsmith.encoders import electra
from bertsmith.model_io.model import Model
from bertsmith.nn.meta_device import on_meta_device
from bertsmith.objectives.generator import Generator

GENERATOR = "generator"


def companions(model: Model) -> dict[str, Model]:
    """By name; their weights are the model's own, in the same memory."""
    found = {}
    for objective in model.objectives.values():
        generator = getattr(objective, GENERATOR, None)
        made = _alone(model, generator) if isinstance(generator, Generator) else None
        if made is not None:
            found[GENERATOR] = made
    return found


def _alone(model: Model, generator: Generator) -> Model | None:
    """The generator as an encoder over the same tables with a head for words.

    None where it stands on an encoder whose tables are always as wide as its blocks: no folder could hold it.
    """
    settings = getattr(model.encoder, "config", None)
    if not isinstance(settings, electra.Config):
        return None
    width, heads, inner = generator.width, generator.heads, generator.inner
    with on_meta_device():
        encoder = replace(settings, width=width, heads=heads, feed_forward=inner, pooler=False).build()
    weights: dict[str, Tensor] = {
        name: value
        for name, value in model.encoder.state_dict().items()
        if name.startswith("embeddings.") and ".project." not in name
    }
    weights |= {f"embeddings.project.{name}": value for name, value in generator.project.state_dict().items()}
    weights |= {f"blocks.{name}": value for name, value in generator.blocks.state_dict().items()}
    encoder.load_state_dict(weights, assign=True)
    return Model(encoder, [generator.masked_lm]).train(model.training)
