"""AWD-LSTM: LSTM layers with dropout on weights, word types and hidden states (Merity et al. 2018), as in ULMFiT.

N texts, M tokens of the longest, T flat tokens, E width of the embeddings and of the last layer, W of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bertsmith.encoders.encoder import Encoder, select_tokens
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.nn.dropout import drop_variational
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.pooling import TextTokens
from bertsmith.nn.recurrent import WeightDropLSTM
from bertsmith.types import Batch, Encoding

EMBEDDING_RANGE = 0.1  # of new embeddings, which are uniform within it (awd: model.py)
State = tuple[Tensor, ...]  # hidden and cell state [N, W] of each layer, bottom first


@dataclass(frozen=True, kw_only=True)
class Config:
    """ULMFiT's language model by default (fastai: text/models/awdlstm.py)."""

    layers: int = 3  # LSTM layers
    width: int = 400  # of the embeddings and of the last layer
    hidden: int = 1152  # width of the other layers
    vocab_size: int = 60_000  # rows of the token table; pre-training takes its tokenizer's, rounded up
    backward: bool = False  # read texts from their last token to their first
    input_dropout: float = 0.25  # on the embeddings, the same elements at all tokens of a text
    hidden_dropout: float = 0.15  # on the output of every layer but the last, likewise
    embedding_dropout: float = 0.02  # of word types: all occurrences of a dropped word are 0
    weight_dropout: float = 0.2  # on the hidden-to-hidden matrices
    dropout_scale: float = 1.0  # multiplies the four
    bptt: int = 0  # tokens of a text through which gradients flow back; 0: all
    max_positions: int = 16_384  # maximum length of a text in tokens
    padding_id: int = 0  # the token whose embedding is not trained

    # P-ULMFiT §3.3 and §4.1, fastai: text/learner.py
    # differs from fastai: frozen layers have no dropout
    finetuning: ClassVar[Mapping[str, Any]] = {
        "group_by_length": True,
        "learning_rate": 0.01,
        "layer_decay": 1 / 2.6,
        "schedule": {"kind": "slanted_triangle"},
        "batch_size": 64,
        "epochs": 5.0,
        "max_length": 1400,  # 20 windows of 70; batches are only as wide as their longest text
        "unfreeze": [
            {"after": 0.0, "groups": 1},
            {"after": 0.2, "groups": 2},
            {"after": 0.4, "groups": 3},
            {"after": 0.6, "groups": 5},
        ],
        "optimizer": {"kind": "adamw", "betas": [0.8, 0.99], "weight_decay": 1e-6},
        "compute": {"max_grad_norm": 25.0},
        "encoder": {
            "input_dropout": 0.4,
            "hidden_dropout": 0.3,
            "embedding_dropout": 0.05,
            "weight_dropout": 0.5,
            "dropout_scale": 0.5,
            "bptt": 70,
        },
    }
    text_head: ClassVar[Mapping[str, Any]] = {"pooling": "concat", "dropout": 0.4, "hidden": 50, "hidden_dropout": 0.1}
    causal: ClassVar[bool] = True
    segment_types: ClassVar[int] = 0

    def __post_init__(self) -> None:
        for name in ("layers", "width", "hidden", "vocab_size", "max_positions"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        if self.bptt < 0 or self.dropout_scale < 0:
            raise ConfigError(f"bptt={self.bptt} and dropout_scale={self.dropout_scale:g} must be at least 0")
        for name in (item.name for item in fields(self) if item.name.endswith("_dropout")):
            if not 0 <= self.scaled(name) < 1 or getattr(self, name) < 0:
                scaled = f" times dropout_scale={self.dropout_scale:g}" if self.dropout_scale != 1 else ""
                raise ConfigError(f"{name}={getattr(self, name):g}{scaled} must be at least 0 and less than 1")
        if not 0 <= self.padding_id < self.vocab_size:
            raise ConfigError(f"padding_id={self.padding_id} is outside a vocabulary of {self.vocab_size} tokens")

    def scaled(self, dropout: str) -> float:
        """One of the dropout probabilities, times `dropout_scale`."""
        return float(getattr(self, dropout)) * self.dropout_scale

    @property
    def head_layer_config(self) -> LayerConfig:
        """The softmax is the token table with a bias."""
        return LayerConfig(lm_head_transform=False, truncated_init=False)

    def build(self) -> AWDLSTM:
        return AWDLSTM(self)


class AWDLSTM(Encoder):
    """Embeddings and LSTM layers. Rows that continue those of the previous batch start from its state."""

    layer_config: LayerConfig
    segment_types, has_pooler, stateful, compiles, starts_texts = 0, False, True, False, False
    reads_stream = True

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.width, self.layers, self.max_positions = config.width, config.layers, config.max_positions
        self.direction = "backward" if config.backward else "forward"
        self.layer_config = config.head_layer_config
        self.embeddings = nn.Embedding(config.vocab_size, config.width, padding_idx=config.padding_id)
        dropout = config.scaled("weight_dropout")
        self.lstms = nn.ModuleList(
            WeightDropLSTM(width, hidden, weight_dropout=dropout) for width, hidden in pairwise(self.layer_widths)
        )
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Uniform embeddings; the layers as `nn.LSTM`."""
        nn.init.uniform_(self.embeddings.weight, -EMBEDDING_RANGE, EMBEDDING_RANGE)
        self.embeddings.weight[self.config.padding_id].zero_()
        for lstm in self._each():
            lstm.init_weights()

    def forward(
        self,
        batch: Batch,
        state: State | None = None,
        *,
        indices: Mapping[str, Tensor] | None = None,
        pool: bool = True,
        return_layers: bool = False,
        return_attentions: bool = False,
    ) -> Encoding:
        """See `Encoder.forward`. The state is that after the last token read, if texts have no padding."""
        self.check(batch)
        selection = select_tokens(batch, indices, pool=False)
        texts = None if batch.dense else TextTokens.of(batch)
        ids_NM = batch.input_ids if texts is None else batch.input_ids.flatten()[texts.indices]
        order_NM1 = self._reading_order(ids_NM, texts)
        outputs, after = self._run(
            _gathered(ids_NM[:, :, None], order_NM1)[:, :, 0], self._state(batch, state, len(ids_NM))
        )

        def flat(output_NMW: Tensor) -> Tensor:
            output_NMW = _gathered(output_NMW, order_NM1)  # the reversal is its own inverse
            return output_NMW.flatten(0, 1) if texts is None else texts.flatten(output_NMW, batch.input_ids.numel())

        layers = [self.embed(batch), *map(flat, outputs)] if return_layers else [flat(outputs[-1])]
        top_TE = layers[-1]
        return Encoding(
            last_hidden=top_TE if selection.indices is None else top_TE[selection.indices],
            selections=selection.by_objective,
            layers=tuple(layers) if return_layers else (),
            state=after,
        )

    def embed(self, batch: Batch) -> Tensor:
        """The embeddings [T, E] without dropout."""
        table_TE: Tensor = self.embeddings(batch.input_ids.flatten())
        return table_TE

    def layer_groups(self) -> list[nn.Module]:
        """Embeddings, then the layers."""
        return [self.embeddings, *self.lstms]

    @property
    def layer_widths(self) -> tuple[int, ...]:
        """The embeddings and the last layer are narrower than the others."""
        return self.width, *[self.config.hidden] * (self.layers - 1), self.width

    @property
    def token_embeddings(self) -> Tensor:
        """The token table [V, E]."""
        return self.embeddings.weight

    def _each(self) -> list[WeightDropLSTM]:
        return [lstm for lstm in self.lstms if isinstance(lstm, WeightDropLSTM)]

    def _embed(self, ids_NM: Tensor) -> Tensor:
        """The embeddings [N, M, E]; in training with dropout, also of word types, at all their occurrences."""
        x_NME: Tensor = self.embeddings(ids_NM)
        dropout, training = self.config.scaled("embedding_dropout"), self.embeddings.training
        if training and dropout:
            kept_V = x_NME.new_empty(self.config.vocab_size).bernoulli_(1 - dropout).div_(1 - dropout)
            x_NME = x_NME * kept_V[ids_NM][:, :, None]
        return drop_variational(x_NME, self.config.scaled("input_dropout"), training=training)

    def _reading_order(self, ids_NM: Tensor, texts: TextTokens | None) -> Tensor | None:
        """[N, M, 1] which token is read at each step, or None for the order of the text."""
        if self.direction == "forward":
            return None
        n, m = ids_NM.shape
        index_M = torch.arange(m, device=ids_NM.device)
        lengths_N1 = index_M.new_full((n, 1), m) if texts is None else texts.lengths()[:, None]
        return torch.where(index_M < lengths_N1, lengths_N1 - 1 - index_M, index_M)[:, :, None]

    def _state(self, batch: Batch, state: State | None, texts: int) -> State:
        """The state before the first token of each text; zeros where a text starts."""
        if state is None:
            widths = [width for width in self.layer_widths[1:] for _ in range(2)]
            return tuple(self.token_embeddings.new_zeros(texts, width) for width in widths)
        if not batch.dense:
            raise BertsmithError(
                "rows continue the state of the previous batch only where each is one text without padding"
            )
        continues_N1 = (batch.position_ids[:, :1] > 0).to(self.token_embeddings.dtype)
        return tuple(each * continues_N1 for each in state)

    def _run(self, ids_NM: Tensor, state: State) -> tuple[list[Tensor], State]:
        """The output [N, M, W] of each layer, and the state after the last token. Each window has its own masks."""
        window = self.config.bptt
        if not (window and self.training and ids_NM.shape[1] > window):
            return self._layers(ids_NM, state)
        parts: list[Sequence[Tensor]] = []
        for part in torch.split(ids_NM, window, dim=1):
            outputs, state = self._layers(part, state)
            parts.append(outputs)
            state = tuple(each.detach() for each in state)
        return [torch.cat(layer, dim=1) for layer in zip(*parts, strict=True)], state

    def _layers(self, ids_NM: Tensor, state: State) -> tuple[list[Tensor], State]:
        x_NME, outputs = self._embed(ids_NM), list[Tensor]()
        after: list[Tensor] = []
        lstms = self._each()
        for number, lstm in enumerate(lstms):
            if number:  # as everywhere, no dropout on the outputs of frozen layers
                below = lstms[number - 1].training
                x_NME = drop_variational(outputs[-1], self.config.scaled("hidden_dropout"), training=below)
            output, (hidden, cell) = lstm(x_NME, (state[2 * number], state[2 * number + 1]))
            outputs.append(output)
            after += [hidden, cell]
        return outputs, tuple(after)


def _gathered(x_NMD: Tensor, order_NM1: Tensor | None) -> Tensor:
    return x_NMD if order_NM1 is None else x_NMD.gather(1, order_NM1.expand_as(x_NMD))
