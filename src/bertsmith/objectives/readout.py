"""How vectors are read from an encoding: of which layers, and one for each place or one for each text.

T flat places, R places that are read, N texts, D width, W width of what is read.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from bertsmith.errors import ConfigError
from bertsmith.objectives.between import Between, BetweenSettings, read_between
from bertsmith.objectives.texts import Texts
from bertsmith.types import Batch, Encoding

Layers = Literal["top", "second_to_last", "embeddings", "last_four_sum", "last_four_concat", "all_sum", "mix"]
Readout = Literal["first", "raw_first", "last", "mean", "concat_pool"]
# The rows of P-BERT Table 7, and ELMo's mix: which layers are read, embeddings first.
SLICES: dict[Layers, slice] = {
    "top": slice(-1, None),
    "second_to_last": slice(-2, -1),
    "embeddings": slice(0, 1),
    "last_four_sum": slice(-4, None),
    "last_four_concat": slice(-4, None),
    "all_sum": slice(1, None),
    "mix": slice(0, None),
}
SUMS = ("last_four_sum", "all_sum", "mix")
READOUTS = ("first", "raw_first", "last", "mean", "concat_pool")


def check(readout: Readout, layers: Layers, between: Between = "none") -> None:
    """Raises a ConfigError where there is no such reading."""
    for what, asked, known in (("readout", readout, READOUTS), ("layers", layers, tuple(SLICES))):
        if asked not in known:
            raise ConfigError(f"{what}={asked} must be one of {', '.join(known)}")
    if readout == "first" and layers != "top":
        raise ConfigError(f"readout=first is the encoder's pooler, over the top layer: with layers={layers}, raw_first")
    if readout == "first" and between != "none":
        raise ConfigError(f"readout=first is the encoder's pooler: behind between={between}, raw_first, last or mean")


class LayerMix(nn.Module):
    """One vector for each place out of some layers: one of them, several side by side, or their weighted sum.

    The sum is scale * (softmax(w) . layers), every layer of equal weight at first (P-ELMo eq. 1).
    """

    def __init__(self, layers: Layers, *, width: int, count: int) -> None:
        super().__init__()
        self.chosen = SLICES[layers]
        found = len(range(count + 1)[self.chosen])
        if layers.startswith("last_four") and count < 4:
            raise ConfigError(f"layers={layers}: the encoder has only {count} layers")
        if layers == "second_to_last" and count < 2:
            raise ConfigError(f"layers={layers}: the encoder has only {count} layer")
        self.deep = layers != "top"
        self.width = width * found if layers == "last_four_concat" else width
        if layers in SUMS:
            self.weights = nn.Parameter(torch.zeros(found))
            self.scale = nn.Parameter(torch.ones(1))
        self.sums = layers in SUMS

    def forward(self, encoding: Encoding) -> Tensor:
        """[T, W] of an encoding with layers, or else its top [R, D] as it is."""
        if not self.deep:
            return encoding.last_hidden
        chosen = encoding.layers[self.chosen]
        if not self.sums:
            return torch.cat(chosen, -1)
        shares = self.weights.softmax(0)
        mixed_TD = shares[0] * chosen[0]
        for share, layer_TD in zip(shares[1:], chosen[1:], strict=True):
            mixed_TD = mixed_TD + share * layer_TD
        return self.scale * mixed_TD


class TextReadout(nn.Module):
    """One vector for each text.

    first: the encoder's pooler over the first token. raw_first, last: the vector of that token as it is. mean: of all
    its tokens. concat_pool: last, largest and mean side by side (P-ULMFiT §3.3). Where a network stands `between`, all
    but the first of these read what it says.
    """

    def __init__(
        self,
        readout: Readout,
        layers: Layers,
        *,
        width: int,
        count: int,
        between: BetweenSettings,
    ) -> None:
        super().__init__()
        check(readout, layers, between.between)
        self.readout = readout
        self.layers = LayerMix(layers, width=width, count=count)
        self.between = between.build_between(self.layers.width)
        width = self.layers.width if self.between is None else self.between.width
        self.width = width * (3 if readout == "concat_pool" else 1)
        self.pools = readout == "first"
        self.deep = self.layers.deep
        self.whole = self.deep or self.between is not None or readout in ("mean", "concat_pool")

    def places(self, batch: Batch) -> Tensor:
        """The flat place of the token that is read of each text [N]."""
        return Texts.of(batch).last() if self.readout == "last" else batch.cls_positions.clamp(min=0)

    def forward(self, encoding: Encoding, batch: Batch, name: str) -> Tensor:
        """[N, W]; `name` is the objective's that reads."""
        if self.pools:
            assert encoding.pooled is not None, "the model asks the encoder to pool where an objective reads it"
            return encoding.pooled
        if not self.whole:
            return encoding.at(name)
        x_TW = self.layers(encoding)
        if self.between is not None:
            x_TW = read_between(self.between, x_TW, batch)
        if self.readout in ("raw_first", "last"):
            found_NW: Tensor = x_TW[self.places(batch)]
            return found_NW
        texts = Texts.of(batch)
        if self.readout == "mean":
            return texts.mean(x_TW)
        return torch.cat((x_TW[texts.last()], texts.most(x_TW), texts.mean(x_TW)), -1)
