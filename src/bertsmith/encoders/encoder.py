"""What every encoder is: batch in, encoding out, parts from bottom to top. Knows no encoder by name, no objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from bertsmith.errors import BertsmithError
from bertsmith.nn.layer_config import LayerConfig
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
    layer_config: LayerConfig

    def forward(
        self,
        batch: Batch,
        *,
        indices: Mapping[str, Tensor] | None = None,
        pool: bool = True,
        return_layers: bool = False,
        return_attentions: bool = False,
    ) -> Encoding:
        """The encoding of a batch.

        `places`: by objective, flat places [R]; where they are given, the last layer is computed only there. `pool`:
        one vector for each text, if the encoder can make one. `return_layers`, `return_attentions`: the outputs and the
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
    def token_embeddings(self) -> Tensor | None:
        """The token table [V, E], which language-model heads share; E may be less than the width. None: no table."""
        return None

    def check(self, batch: Batch) -> None:
        """Raises where the batch is not for this encoder. Looks at ids only on the CPU: elsewhere it would wait."""
        if batch.max_seqlen > self.max_positions:
            raise BertsmithError(
                f"texts of up to {batch.max_seqlen} tokens do not fit the encoder's {self.max_positions} positions"
            )
        if torch.compiler.is_compiling() or batch.input_ids.device.type != "cpu":
            return
        table = self.token_embeddings
        known = {
            "token": (batch.input_ids, 1 << 31 if table is None else len(table)),
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
class TokenSelection:
    """Which tokens the last layer must compute, and which of them each objective reads."""

    indices: Tensor | None  # [R] flat token indices; None: all tokens
    by_objective: dict[str, slice | Tensor]  # into the last layer's output
    cls: slice | Tensor | None  # first token of each text, into the last layer's output; None: no pooling


def select_tokens(batch: Batch, indices: Mapping[str, Tensor] | None, *, pool: bool) -> TokenSelection:
    """Selects `indices` and, to pool, the first token of each text; all tokens where `indices` is None."""
    cls_N = batch.cls_positions.clamp(min=0)  # where there is no text any token will do: its label is ignored
    if indices is None:
        return TokenSelection(None, dict(batch.indices), cls_N if pool else None)
    by_objective: dict[str, slice | Tensor] = {}
    end = 0
    for name, index_R in indices.items():
        by_objective[name] = slice(end, end + index_R.shape[0])
        end += index_R.shape[0]
    selected = torch.cat([*indices.values(), *([cls_N] if pool else [])])
    return TokenSelection(selected, by_objective, slice(end, end + cls_N.shape[0]) if pool else None)
