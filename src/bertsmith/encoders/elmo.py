"""ELMo: a character CNN and LSTM layers in both directions that do not see each other (Peters et al. 2018).

B rows, T flat tokens, N texts, M tokens of the longest, D = 2 directions, P width of a direction, H cells, L layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.encoders.encoder import Encoder, select_tokens
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.nn.activations import get_activation
from bertsmith.nn.character_cnn import CharacterCNN, distinct_words
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.pooling import TextTokens
from bertsmith.nn.projected_lstm import ProjectedLSTM
from bertsmith.types import Batch, Direction, Encoding

State = tuple[Tensor, ...]  # of each layer, bottom first: outputs [N, D, P] and cells [N, D, H]


@dataclass(frozen=True, kw_only=True)
class Config:
    """The published model of 93.6 million parameters by default (bilm: training.py)."""

    layers: int = 2  # LSTM layers
    width: int = 512  # of the projections of one direction and of the word vectors; the encoder's width is twice that
    hidden: int = 4096  # cells of an LSTM layer in one direction
    # of the character CNN: pairs of a width in characters and a number of filters
    filters: tuple[tuple[int, int], ...] = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    character_width: int = 16  # of the vector of a character
    max_characters: int = 50  # of a word: its bytes and two marks
    highway: int = 2  # highway layers of the character CNN
    activation: str = "relu"  # of the convolutions, after the maximum over time
    skip_connections: bool = True  # the input of each LSTM layer but the first is added to its output
    cell_clip: float = 3.0  # absolute limit of cells; 0: none
    projection_clip: float = 3.0  # of projections; 0: none
    dropout: float = 0.1  # on the input of each LSTM layer
    max_positions: int = 16_384  # maximum length of a text in tokens

    segment_types: ClassVar[int] = 0
    reads_spelling: ClassVar[bool] = True  # in pre-training too: shards must keep the spelling of words
    # the encoder is frozen, and its layers are mixed (P-ELMo §3.2, §3.3)
    finetuning: ClassVar[Mapping[str, Any]] = {
        "learning_rate": 1e-3,
        "unfreeze": [{"after": 0.0, "groups": 1}],
        "epochs": 10.0,
    }
    text_head: ClassVar[Mapping[str, Any]] = {
        **{"layers": "mix", "recurrent": "bilstm", "recurrent_width": 200, "pooling": "concat"},
        **{"dropout": 0.5, "recurrent_dropout": 0.5},
    }

    def __post_init__(self) -> None:
        for name in ("layers", "width", "hidden", "character_width", "max_positions"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        kernel_sizes = [size for size, _ in self.filters]
        if not kernel_sizes or min(min(pair) for pair in self.filters) < 1 or max(kernel_sizes) > self.max_characters:
            limits = f"pairs of characters (at most max_characters={self.max_characters}) and a number of filters"
            raise ConfigError(f"filters={list(map(list, self.filters))} must be {limits}")
        if min(self.highway, self.cell_clip, self.projection_clip) < 0 or not 0 <= self.dropout < 1:
            clips = f"cell_clip={self.cell_clip:g} and projection_clip={self.projection_clip:g}"
            raise ConfigError(
                f"highway={self.highway}, {clips} must be at least 0, dropout={self.dropout:g} also below 1"
            )
        get_activation(self.activation)

    def build(self) -> ELMo:
        return ELMo(self)


class ELMo(Encoder):
    """Layer 0 is the word vectors twice; layer l is the concatenated outputs of both directions."""

    segment_types, has_pooler, stateful, compiles, starts_texts = 0, False, True, False, False
    direction: Direction = "forward_and_backward"
    reads = frozenset({"characters"})
    vocabulary: Tensor | None  # [V, C] int16 characters of each token, for batches that have ids only

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.width, self.layers, self.max_positions = 2 * config.width, config.layers, config.max_positions
        self.layer_config = LayerConfig(lm_head_transform=False)
        self.words = CharacterCNN(
            config.filters,
            config.width,
            width=config.character_width,
            highway=config.highway,
            activation=config.activation,
        )
        clips: dict[str, Any] = {"cell_clip": config.cell_clip, "projection_clip": config.projection_clip}
        sizes = config.width, config.hidden, config.width
        self.lstms = nn.ModuleList(ProjectedLSTM(*sizes, **clips) for _ in range(config.layers))
        self.register_buffer("vocabulary", None, persistent=False)  # the tokenizer has it

    def init_weights(self) -> None:
        self.words.init_weights(self.config.activation)
        for lstm in self._each():
            lstm.init_weights()

    def set_vocabulary_characters(self, characters: Tensor) -> None:
        self.vocabulary = characters.to(self.words.embeddings.weight.device)

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
        """See `Encoder.forward`. The state of a row is that of each direction after the token that it reads last."""
        self.check(batch)
        selection = select_tokens(batch, indices, pool=False)
        texts = None if batch.dense else TextTokens.of(batch)
        word_TP = self._word_vectors(batch)
        x_NMP = word_TP.view(*batch.input_ids.shape, -1) if texts is None else word_TP[texts.indices]
        order_MN1 = _reversal(x_NMP, texts)
        outputs, after = self._run(_both_directions(x_NMP, order_MN1), self._state(batch, state), texts)

        def flat(output_DMNP: Tensor) -> Tensor:
            forward_MNP, backward_MNP = output_DMNP
            backward_MNP = backward_MNP.gather(0, order_MN1.expand_as(backward_MNP))  # its own inverse
            output_NMW = torch.cat((forward_MNP, backward_MNP), -1).transpose(0, 1)
            return output_NMW.flatten(0, 1) if texts is None else texts.flatten(output_NMW, batch.input_ids.numel())

        layers = [_twice(word_TP), *map(flat, outputs)] if return_layers else [flat(outputs[-1])]
        top_TW = layers[-1]
        return Encoding(
            last_hidden=top_TW if selection.indices is None else top_TW[selection.indices],
            selections=selection.by_objective,
            layers=tuple(layers) if return_layers else (),
            state=after,
        )

    def embed(self, batch: Batch) -> Tensor:
        """The vectors of words, twice [T, 2 P]."""
        return _twice(self._word_vectors(batch))

    def layer_groups(self) -> list[nn.Module]:
        """The character CNN, then the layers."""
        return [self.words, *self.lstms]

    def _each(self) -> list[ProjectedLSTM]:
        return [lstm for lstm in self.lstms if isinstance(lstm, ProjectedLSTM)]

    def _word_vectors(self, batch: Batch) -> Tensor:
        """[T, P]; each distinct word of the batch is computed once."""
        limits = {"max_characters": self.config.max_characters, "padding": self.words.padding}
        words_NC, index_T = distinct_words(batch, **limits, vocabulary=self.vocabulary)
        return F.embedding(index_T, self.words(words_NC))  # its backward sums in float32, in a fixed order

    def _state(self, batch: Batch, state: State | None) -> list[tuple[Tensor, Tensor]] | None:
        """The state before the first token by layer: outputs [D, N, P] and cells [D, N, H]."""
        if state is None:
            return None
        if len(batch.cls_positions) != len(batch.input_ids):
            raise BertsmithError("rows continue the state of the previous batch only where each is one text")
        continues_N11 = (batch.position_ids[:, :1, None] > 0).to(state[0].dtype)
        parts = [(each * continues_N11).transpose(0, 1) for each in state]
        return list(zip(parts[::2], parts[1::2], strict=True))

    def _run(
        self, x_DMNP: Tensor, states: list[tuple[Tensor, Tensor]] | None, texts: TextTokens | None
    ) -> tuple[list[Tensor], State]:
        """The output [D, M, N, P] of each layer, and the state after the last token of each text."""
        outputs: list[Tensor] = []
        after: list[Tensor] = []
        lengths_N = None if texts is None else texts.lengths()
        below: nn.Module = self.words
        for number, lstm in enumerate(self._each()):
            x_DMNP = F.dropout(x_DMNP, self.config.dropout, below.training)  # none on the outputs of frozen layers
            output_DMNP, state = lstm(x_DMNP, None if states is None else states[number], lengths_N)
            if number and self.config.skip_connections:
                output_DMNP = output_DMNP + x_DMNP
            outputs.append(output_DMNP)
            after += [each.transpose(0, 1).contiguous() for each in state]
            x_DMNP, below = output_DMNP, lstm
        return outputs, tuple(after)


def _twice(word_TP: Tensor) -> Tensor:
    return torch.cat((word_TP, word_TP), -1)


def _reversal(x_NMP: Tensor, texts: TextTokens | None) -> Tensor:
    """[M, N, 1] which token the backward direction reads at each step; padding stays after the text."""
    n, m = x_NMP.shape[:2]
    index_M1 = torch.arange(m, device=x_NMP.device)[:, None]
    lengths_N = index_M1.new_full((n,), m) if texts is None else texts.lengths()
    return torch.where(index_M1 < lengths_N, lengths_N - 1 - index_M1, index_M1)[:, :, None]


def _both_directions(x_NMP: Tensor, order_MN1: Tensor) -> Tensor:
    """The tokens in the order in which each direction reads them [D, M, N, P]."""
    x_MNP = x_NMP.transpose(0, 1)
    return torch.stack((x_MNP, x_MNP.gather(0, order_MN1.expand_as(x_MNP))))
