"""A recurrent encoder–decoder with attention, whose encoder gives CoVe's context vectors (McCann et al. 2017, §3).

N texts, M tokens of the longest, S of the longest source, T flat tokens, E width of the word vectors, W of the layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from bertsmith.encoders.encoder import EncoderDecoder, select_tokens
from bertsmith.encoders.frozen_features import freeze
from bertsmith.errors import ConfigError
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.pooling import TextTokens
from bertsmith.nn.recurrent_decoder import DecoderLSTMState, InputFeedDecoder, SourceMemory
from bertsmith.types import Batch, Encoding


@dataclass(frozen=True, kw_only=True)
class Config:
    """The model of the paper by default."""

    layers: int = 2  # LSTM layers of the encoder, and of the decoder
    width: int = 600  # of the layers; each direction of the encoder has half of it
    embedding_width: int = 300  # of the word vectors of source and target
    vocab_size: int = 30_000  # rows of each token table; pre-training takes its tokenizer's, rounded up
    target_vocab_size: int = 0  # rows of the target's table, where these are others than the source's; 0: vocab_size
    fixed_embeddings: bool = False  # the word vectors of the source are not trained: a recipe loads them with `vectors`
    max_positions: int = 1024  # maximum length of a text in tokens
    dropout: float = 0.2  # on the input and the output of every layer
    initializer_range: float = 0.1  # of new weights, which are uniform within it

    # the paper's frozen encoder, Adam at 1e-3 and a dropout from 0.1 to 0.3; batch size, epochs and clipping are ours
    finetuning: ClassVar[Mapping[str, Any]] = {
        "unfreeze": [{"after": 0.0, "groups": 1}],
        "learning_rate": 1e-3,
        "batch_size": 64,
        "epochs": 10.0,
        "optimizer": {"kind": "adamw", "weight_decay": 0.0},
        "compute": {"max_grad_norm": 5.0},
    }
    text_head: ClassVar[Mapping[str, Any]] = {"layers": "embeddings_and_top", "pooling": "biattention", "dropout": 0.2}
    segment_types: ClassVar[int] = 0

    def __post_init__(self) -> None:
        for name in ("layers", "width", "embedding_width", "vocab_size", "max_positions"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        if self.target_vocab_size < 0:
            raise ConfigError(f"target_vocab_size={self.target_vocab_size} must be at least 0")
        if self.width % 2:
            raise ConfigError(f"width={self.width} must be even: each direction of the encoder has half of it")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout={self.dropout} must be at least 0 and less than 1")
        if self.initializer_range < 0:
            raise ConfigError(f"initializer_range={self.initializer_range} must be at least 0")

    @property
    def target_rows(self) -> int:
        """The rows of the target's table."""
        return self.target_vocab_size or self.vocab_size

    @property
    def head_layer_config(self) -> LayerConfig:
        """The softmax is a linear layer."""
        deviation = self.initializer_range / 3**0.5  # of a uniform distribution
        return LayerConfig(lm_head_transform=False, initializer_range=deviation, truncated_init=False)

    def build(self) -> Seq2SeqLSTM:
        return Seq2SeqLSTM(self)


@dataclass
class Seq2SeqLSTMState:
    """The source texts, and the hypotheses so far; see `DecoderState`."""

    memory: SourceMemory
    decoder: DecoderLSTMState  # replaced by each step

    def select(self, hypotheses: Tensor, texts: Tensor | None = None) -> Seq2SeqLSTMState:
        """See `DecoderState.select`."""
        memory = self.memory if texts is None else self.memory.select(texts)
        return Seq2SeqLSTMState(memory, self.decoder.select(hypotheses))


@dataclass(frozen=True)
class _Encoded:
    """The encoder's output."""

    layers: list[Tensor]  # [N, S, E], then [N, S, W] of each layer
    hidden: tuple[Tensor, ...]  # [N, W] of each layer: the last state of the two directions, concatenated
    cell: tuple[Tensor, ...]  # likewise


class Seq2SeqLSTM(EncoderDecoder):
    """Word vectors, bidirectional LSTM layers, and a decoder that starts from their last states."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.width, self.layers, self.max_positions = config.width, config.layers, config.max_positions
        self.segment_types, self.has_pooler, self.compiles = config.segment_types, False, False
        self.layer_config = config.head_layer_config
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_width)
        if config.fixed_embeddings:
            freeze(self.embeddings)
        widths = self.layer_widths[:-1]
        how: dict[str, Any] = {"batch_first": True, "bidirectional": True}
        self.lstms = nn.ModuleList(nn.LSTM(width, config.width // 2, **how) for width in widths)
        self.target = nn.Embedding(config.target_rows, config.embedding_width)
        sizes = {"width": config.embedding_width, "hidden": config.width, "layers": config.layers}
        self.decoder = InputFeedDecoder(**sizes, dropout=config.dropout)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """All uniform within the same range (OpenNMT: train.py, param_init)."""
        limit = self.config.initializer_range
        for weight in (self.embeddings.weight, *self.parameters()):
            nn.init.uniform_(weight, -limit, limit)

    def embed(self, batch: Batch) -> Tensor:
        embedded_TE: Tensor = self.embeddings(batch.input_ids.flatten())
        return embedded_TE

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
        """See `Encoder.forward`. `Encoding.attentions` of a target are those of the decoder [B, 1, L, S]."""
        self.check(batch)
        texts = TextTokens.compact(batch)
        words = _without_start(texts, batch)
        encoded, size = self._encode(batch, words), batch.input_ids.numel()
        selection = select_tokens(batch, None if return_layers else indices or None, pool=False)
        top = encoded.layers[1:] if return_layers else encoded.layers[-1:]
        layers = [_with_start(words.flatten(layer, size), texts, words) for layer in top]
        top_TW, target = layers[-1], None
        if batch.target is not None:
            self.check(batch.target, target=True)
            target = self._decode(batch, batch.target, words, encoded, return_attentions)
        return Encoding(
            last_hidden=top_TW if selection.indices is None else top_TW.index_select(0, selection.indices),
            selections=selection.by_objective,
            layers=(self.embed(batch), *layers) if return_layers else (),
            target=target,
        )

    def _encode(self, batch: Batch, texts: TextTokens) -> _Encoded:
        x_NSE: Tensor = self.embeddings(batch.input_ids.flatten()[texts.indices])
        how: dict[str, Any] = {"batch_first": True, "enforce_sorted": False}
        # no dropout on the outputs of frozen layers
        dropped_NSE = F.dropout(x_NSE, self.config.dropout, self.embeddings.training)
        packed = pack_padded_sequence(dropped_NSE, texts.lengths().cpu(), **how)
        layers, hidden, cell = [x_NSE], list[Tensor](), list[Tensor]()
        for lstm in self.lstms:
            packed, (hidden_2NW, cell_2NW) = lstm(packed)
            packed = _with_data(packed, F.dropout(packed.data, self.config.dropout, lstm.training))
            layers.append(pad_packed_sequence(packed, batch_first=True)[0])
            hidden.append(torch.cat(tuple(hidden_2NW), -1))
            cell.append(torch.cat(tuple(cell_2NW), -1))
        return _Encoded(layers, tuple(hidden), tuple(cell))

    def _decode(
        self, batch: Batch, target: Batch, sources: TextTokens, encoded: _Encoded, return_attentions: bool
    ) -> Encoding:
        """The adjusted states at all tokens of the target."""
        texts = TextTokens.compact(target)
        memory = self.decoder.attention.read(encoded.layers[-1], sources.mask)
        x_NME = self.target(target.input_ids.flatten()[texts.indices])
        state = DecoderLSTMState.initial(encoded.hidden, encoded.cell)
        out_NMW, found_NMS = self.decoder(x_NME, state, memory, return_probabilities=return_attentions)
        attentions = () if found_NMS is None else (_by_row(found_NMS, texts, target, sources, batch),)
        last_hidden = texts.flatten(out_NMW, target.input_ids.numel())
        return Encoding(last_hidden, dict(target.indices), attentions=attentions)

    def start(self, batch: Batch, *, hypotheses: int, length: int, dtype: torch.dtype) -> Seq2SeqLSTMState:
        """See `EncoderDecoder.start`."""
        self.check(batch)
        texts = _without_start(TextTokens.compact(batch), batch)
        encoded = self._encode(batch, texts)
        memory = self.decoder.attention.read(encoded.layers[-1].to(dtype), texts.mask)
        repeat = torch.arange(len(batch.input_ids), device=batch.input_ids.device).repeat_interleave(hypotheses)
        return Seq2SeqLSTMState(memory, DecoderLSTMState.initial(encoded.hidden, encoded.cell).select(repeat))

    def step(self, ids_M: Tensor, state: Seq2SeqLSTMState) -> Tensor:
        """See `EncoderDecoder.step`."""
        state.decoder, _ = self.decoder.step(self.decoder.dropout(self.target(ids_M)), state.decoder, state.memory)
        return state.decoder.feed

    @torch.no_grad()
    def add_words(self, vectors_XE: Tensor, *, after: int) -> None:
        """Adds fixed vectors of words that only source texts have, in place of the rows after the first ones."""
        table_VE = self.embeddings.weight
        self.embeddings.weight = torch.cat((table_VE[:after], vectors_XE.to(table_VE)))
        target_VE = self.target.weight[:after].clone()  # fewer, if words were added before
        self.target = nn.Embedding(len(target_VE), self.config.embedding_width, _weight=target_VE)
        self.embeddings.num_embeddings = rows = len(self.embeddings.weight)
        self.config = replace(self.config, vocab_size=rows, target_vocab_size=len(target_VE))

    def layer_groups(self) -> list[nn.Module]:
        """Word vectors of the source, layers of the encoder, the decoder with its embeddings."""
        return [self.embeddings, *self.lstms, nn.ModuleList([self.target, self.decoder])]

    @property
    def layer_widths(self) -> tuple[int, ...]:
        """The word vectors have a width of their own."""
        return self.config.embedding_width, *[self.config.width] * self.layers

    @property
    def token_embeddings(self) -> Tensor:
        """The word vectors [V, E] of the source."""
        return self.embeddings.weight

    @property
    def target_embeddings(self) -> Tensor:
        """The word vectors [V, E] of the target."""
        return self.target.weight


def _without_start(texts: TextTokens, batch: Batch) -> TextTokens:
    """The texts without a special token before the first word, which the source of a translation does not have."""
    first_N1, lengths_N = texts.indices[:, :1], texts.lengths()
    skipped_N = batch.special_mask.flatten()[first_N1[:, 0]] & (lengths_N > 1)
    lengths_N = lengths_N - skipped_N.long()
    offset_M = torch.arange(int(lengths_N.max()), device=first_N1.device)
    mask_NM = offset_M < lengths_N[:, None]
    return TextTokens(torch.where(mask_NM, first_N1 + skipped_N[:, None] + offset_M, first_N1), mask_NM)


def _with_start(x_TW: Tensor, texts: TextTokens, words: TextTokens) -> Tensor:
    """The first special token of a text, which was not read, gets the vector of the first word."""
    return x_TW.index_copy(0, texts.indices[:, 0], x_TW[words.indices[:, 0]])


def _with_data(packed: PackedSequence, data: Tensor) -> PackedSequence:
    return PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)


def _by_row(found_NMS: Tensor, texts: TextTokens, target: Batch, sources: TextTokens, source: Batch) -> Tensor:
    """Probabilities of texts [N, M, S] as those of the rows of a batch [B, 1, L, S]; zeros outside texts."""
    rows, length = target.input_ids.shape
    width = source.input_ids.shape[1]
    valid_NMS = texts.mask[:, :, None] & sources.mask[:, None]
    token_NMS = texts.indices[:, :, None].expand_as(valid_NMS)
    column_NMS = (sources.indices % width)[:, None].expand_as(valid_NMS)
    found_TS = found_NMS.new_zeros(rows * length, width)
    found_TS[token_NMS[valid_NMS], column_NMS[valid_NMS]] = found_NMS[valid_NMS]
    return found_TS.view(rows, 1, length, width)
