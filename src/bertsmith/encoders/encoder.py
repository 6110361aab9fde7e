"""The contract of encoders: an encoder maps a `Batch` to an `Encoding`. Knows no encoder by name and no objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from bertsmith.errors import BertsmithError
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.types import Batch, Direction, Encoding

FOLDER = "bertsmith.encoders"
Input = Literal["ids", "characters"]


class Encoder(nn.Module):
    """Maps a batch to an encoding. T flat tokens, R selected tokens, D width, V rows and E width of the token table."""

    width: int
    layers: int  # in an encoding with layers, without the embeddings
    max_positions: int  # the maximum length of a text
    segment_types: int  # below 2: segment ids are not read
    has_pooler: bool  # an encoding can have a pooled vector per text
    layer_config: LayerConfig  # for the heads of objectives
    direction: Direction = "both"
    rope_theta: float | None = None  # the base of its rotary position embeddings, where it has them
    has_decoder: ClassVar[bool] = False  # an encoder–decoder: it also encodes `Batch.target`, see `EncoderDecoder`
    stateful: ClassVar[bool] = False  # continues from the state after the previous batch
    compiles: bool = True  # by torch.compile, as one graph; false: it is neither compiled nor captured
    starts_texts: ClassVar[bool] = True  # pre-training texts begin with the start token of the tokenizer
    # texts are framed as documents in a stream: the end token before them in reading order, no start token
    reads_stream: ClassVar[bool] = False
    reads: frozenset[Input] = frozenset({"ids"})
    reads_case: ClassVar[bool] = False  # characters are as written, although the vocabulary is lower-cased
    spellings: Tensor | None  # [V, C] int16, where it reads characters: of each token of the vocabulary

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("spellings", None, persistent=False)  # the tokenizer has them

    def forward(
        self,
        batch: Batch,
        state: Any = None,
        *,
        indices: Mapping[str, Tensor] | None = None,
        pool: bool = True,
        return_layers: bool = False,
        return_attentions: bool = False,
    ) -> Encoding:
        """The encoding of a batch.

        `state`: for stateful encoders, `Encoding.state` of the previous batch; without it, and in rows whose first
        position is 0, the state is new. In generation, a `KVCache`. `indices`: by objective, flat token indices [R];
        where given, the last layer is computed only there. `pool`: also one vector per text, where the encoder has a
        pooler. `return_layers`, `return_attentions`: also the outputs of all layers and their attention probabilities.
        """
        raise NotImplementedError

    def embed(self, batch: Batch) -> Tensor:
        """The embeddings [T, E] of all tokens, before any projection to the width."""
        raise NotImplementedError

    def set_spellings(self, tokens: Sequence[str]) -> None:
        """Takes the spelling of each token of the vocabulary, where `spellings` is a buffer."""
        raise NotImplementedError

    def set_vocabulary_characters(self, characters: Tensor) -> None:
        """Takes the characters of each token of the vocabulary [V, C] int16, where it reads characters alone."""
        raise NotImplementedError

    def frozen_encoders(self) -> Mapping[str, Any]:
        """Its `FrozenEncoder`s, by the names of the folders of their tokenizers in its model folder."""
        return {}

    def layer_groups(self) -> list[nn.Module]:
        """Its modules from bottom to top; every parameter is in exactly one."""
        raise NotImplementedError

    def execution_order(self) -> list[nn.Module]:
        """Its modules in the order in which a token passes through them; shared modules appear repeatedly."""
        return self.layer_groups()

    def init_weights(self) -> None:
        """Gives all its weights new values."""
        self.layer_config.init_weights(self)

    @property
    def layer_widths(self) -> tuple[int, ...]:
        """The width of the embeddings and of each layer, in an encoding with layers."""
        return (self.width,) * (self.layers + 1)

    @property
    def token_embeddings(self) -> Tensor | None:
        """The token table [V, E], to which objectives tie their output layer; None where an encoder has none."""
        return None

    @property
    def target_embeddings(self) -> Tensor | None:
        """The token table [V, E] of `Batch.target`, to which objectives that read it tie their output layer."""
        return self.token_embeddings

    def check(self, batch: Batch, *, target: bool = False) -> None:
        """Raises for texts that are too long and, on the CPU, for ids out of range; a GPU would have to synchronise.

        `target`: the batch is the target of another, whose ids are those of `target_embeddings`.
        """
        if batch.max_seqlen > self.max_positions:
            raise BertsmithError(
                f"texts of up to {batch.max_seqlen} tokens do not fit the encoder's {self.max_positions} positions"
            )
        if torch.compiler.is_compiling() or batch.input_ids.device.type != "cpu":
            return
        tables = {"segment": (batch.segment_ids, self.segment_types)} if self.segment_types >= 2 else {}
        tokens = self.target_embeddings if target else self.token_embeddings
        if tokens is not None:
            tables = {"token": (batch.input_ids, len(tokens)), **tables}
        for name, (ids, size) in tables.items():
            smallest, largest = (int(bound) for bound in ids.aminmax())
            if smallest < 0 or largest >= size:
                wrong = smallest if smallest < 0 else largest
                raise BertsmithError(f"{name} id {wrong} is outside the encoder's table of {size} {name}s")


class DecoderState(Protocol):
    """What a decoder keeps between two tokens, of N source texts with K hypotheses each, text by text."""

    def select(self, hypotheses: Tensor, texts: Tensor | None = None) -> DecoderState:
        """The state of other hypotheses [N' * K], by their numbers; `texts` [N']: theirs, where some are left out."""


class CapturedState(DecoderState, Protocol):
    """The state of a decoder whose steps a GPU replays as a CUDA graph."""

    def reorder(self, hypotheses: Tensor) -> None:
        """Becomes the state of other hypotheses [N * K] of the same texts, in place."""


class EncoderDecoder(Encoder):
    """An encoder whose `forward` also encodes `Batch.target`, into `Encoding.target`.

    A token of the target reads the whole source and the target up to itself. Without a target, it encodes the source.
    N source texts, K hypotheses of each, M = N * K.
    """

    has_decoder = True
    starts_texts = False
    # its states are `CapturedState`: `step` changes them in place, without synchronising
    captures: ClassVar[bool] = False

    def start(self, batch: Batch, *, hypotheses: int, length: int, dtype: torch.dtype) -> DecoderState:
        """Encodes one source text per row [N, L], for hypotheses of up to `length` tokens."""
        raise NotImplementedError

    def step(self, ids_M: Tensor, state: Any) -> Tensor:
        """The last layer [M, D] at the next token of each hypothesis, which is added to the state."""
        raise NotImplementedError


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
    cls_N = batch.cls_positions.clamp(min=0)  # any token will do for a missing text: its label is ignored
    if indices is None:
        return TokenSelection(None, dict(batch.indices), cls_N if pool else None)
    by_objective: dict[str, slice | Tensor] = {}
    end = 0
    for name, index_R in indices.items():
        by_objective[name] = slice(end, end + index_R.shape[0])
        end += index_R.shape[0]
    selected = torch.cat([*indices.values(), *([cls_N] if pool else [])])
    return TokenSelection(selected, by_objective, slice(end, end + cls_N.shape[0]) if pool else None)
