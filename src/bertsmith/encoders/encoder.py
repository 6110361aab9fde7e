"""What every encoder is: batch in, encoding out, parts from bottom to top. Knows no encoder by name, no objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from bertsmith.errors import BertsmithError
from bertsmith.nn.style import Style
from bertsmith.types import Batch, Encoding

FOLDER = "bertsmith.encoders"


class Encoder(nn.Module):
    """A batch becomes an encoding. D width, V rows of the table, E its width, R places that are read."""

    width: int
    layers: int  # of an encoding that keeps them, embeddings not counted
    max_positions: int  # the longest text that it takes
    segment_types: int  # kinds of text that it tells apart; fewer than 2: it does not look at them
    causal: bool  # a place sees only what stands before it
    has_pooler: bool  # it can make one vector of each text
    style: Style

    def forward(
        self,
        batch: Batch,
        *,
        places: Mapping[str, Tensor] | None = None,
        pool: bool = True,
        keep_layers: bool = False,
        keep_attentions: bool = False,
    ) -> Encoding:
        """The encoding of a batch.

        `places`: by objective, flat places [R]; where they are given, the last layer is computed only there. `pool`:
        one vector for each text, if the encoder can make one. `keep_layers`, `keep_attentions`: the outputs and the
        attention probabilities of all layers stay in the encoding.
        """
        raise NotImplementedError

    def embed(self, batch: Batch) -> Tensor:
        """The vectors [T, E] of all places below the first block, as wide as the token table."""
        raise NotImplementedError

    def layer_groups(self) -> list[nn.Module]:
        """Its parts from bottom to top; every parameter is in exactly one."""
        raise NotImplementedError

    def execution_order(self) -> list[nn.Module]:
        """Its parts in the order in which a token goes through them: those that layers share as often as they do."""
        return self.layer_groups()

    @property
    def token_embeddings(self) -> Tensor:
        """The token table [V, E], which objectives that guess words multiply with; E may be less than the width."""
        raise NotImplementedError

    def check(self, batch: Batch) -> None:
        """Raises where the batch is not for this encoder. Looks at ids only on the CPU: elsewhere it would wait."""
        if batch.max_seqlen > self.max_positions:
            raise BertsmithError(
                f"texts of up to {batch.max_seqlen} tokens do not fit the encoder's {self.max_positions} positions"
            )
        if torch.compiler.is_compiling() or batch.input_ids.device.type != "cpu":
            return
        known = {
            "token": (batch.input_ids, len(self.token_embeddings)),
            "segment": (batch.segment_ids, self.segment_types),
        }
        for what, (numbers, limit) in known.items():
            if what == "segment" and limit < 2:
                continue
            least, most = (int(bound) for bound in numbers.aminmax())
            if least < 0 or most >= limit:
                wrong = least if least < 0 else most
                raise BertsmithError(f"{what} {wrong} is outside this encoder's table of {limit} {what}s")


class EncoderConfig(Protocol):
    """An encoder's `Config`."""

    def build(self) -> Encoder:
        """The encoder with new weights."""


@dataclass(frozen=True)
class Reading:
    """Which places the last layer must compute, and where each reader finds its own among them."""

    places: Tensor | None  # [R] flat; None: all
    reads: dict[str, slice | Tensor]
    firsts: slice | Tensor | None  # where each text's first token is found; None where nobody pools


def plan_reading(batch: Batch, places: Mapping[str, Tensor] | None, *, pool: bool) -> Reading:
    """The reading of `places` and, to pool, of each text's first token; of everything where `places` is None."""
    firsts = batch.cls_positions.clamp(
        min=0
    )  # where there is no text any place will do: its label says that nobody asks
    if places is None:
        return Reading(None, dict(batch.indices), firsts if pool else None)
    reads: dict[str, slice | Tensor] = {}
    end = 0
    for name, asked in places.items():
        reads[name] = slice(end, end + asked.shape[0])
        end += asked.shape[0]
    parts = [*places.values(), *([firsts] if pool else [])]
    return Reading(torch.cat(parts), reads, slice(end, end + firsts.shape[0]) if pool else None)
