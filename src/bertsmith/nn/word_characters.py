"""The vector of each word by its characters: a CNN or a recurrent network over its bytes. T words, C bytes, D width."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from bertsmith.nn.character_cnn import PADDING, TABLE, fit_words, warn_of_equal_words
from bertsmith.nn.recurrent import BiGRU

CharacterKind = Literal["gru", "cnn", "none"]
MAX_CHARACTERS = 50  # bytes of a word that are read, its marks included, as in ELMo


class WordCharacters(nn.Module):
    """gru: the last state of each direction (P-TagLM §2.2); cnn: the maximum over a convolution (Ma and Hovy 2016)."""

    def __init__(self, kind: CharacterKind, *, width: int, hidden: int, window: int) -> None:
        super().__init__()
        self.kind, self.window = kind, window
        self.width = {"none": 0, "cnn": hidden, "gru": 2 * hidden}[kind]
        if kind == "none":
            return
        self.embeddings = nn.Embedding(TABLE, width, padding_idx=PADDING)
        if kind == "gru":
            self.network: nn.Module = BiGRU(width, hidden, layers=1)
        else:
            self.network = nn.Conv1d(width, hidden, window, padding=window - 1)
        self.init_weights()

    def init_weights(self) -> None:
        """New weights; embeddings as in Ma and Hovy 2016, §4.2.1."""
        if self.kind == "none":
            return
        for module in self.network.modules():
            if isinstance(module, nn.Conv1d | nn.RNNBase):
                module.reset_parameters()
        limit = math.sqrt(3 / self.embeddings.embedding_dim)
        nn.init.uniform_(self.embeddings.weight, -limit, limit)

    def forward(self, characters_TC: Tensor) -> Tensor:
        """[T, C] -> [T, D]; each distinct word is computed once."""
        cut_TC = fit_words(characters_TC, min(MAX_CHARACTERS, characters_TC.shape[1]))
        distinct_NC, word_T = torch.unique(cut_TC, dim=0, return_inverse=True)
        warn_of_equal_words(characters_TC, len(distinct_NC), max_characters=MAX_CHARACTERS)
        return self._vectors(distinct_NC.long())[word_T]

    def _vectors(self, characters_NC: Tensor) -> Tensor:
        lengths_N = (characters_NC != PADDING).sum(1).clamp(min=1)
        x_NCD = self.embeddings(characters_NC) * (characters_NC != PADDING)[:, :, None]
        if self.kind == "gru":
            out_NCD = self.network(x_NCD, lengths_N)
            forward_NCD, backward_NCD = out_NCD.chunk(2, dim=-1)
            last_N11 = (lengths_N - 1)[:, None, None].expand(-1, 1, forward_NCD.shape[-1])
            return torch.cat((forward_NCD.gather(1, last_N11)[:, 0], backward_NCD[:, 0]), -1)
        out_NDP: Tensor = self.network(x_NCD.transpose(1, 2))
        # windows that contain a byte of the word: padding after it changes nothing
        end_N1 = lengths_N[:, None] + self.window - 1
        outside_NP = torch.arange(out_NDP.shape[2], device=out_NDP.device) >= end_N1
        return out_NDP.masked_fill(outside_NP[:, None], -torch.inf).amax(2)
