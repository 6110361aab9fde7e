"""Word vectors: an embedding table; the vector of a word does not depend on the words around it.

Mikolov et al. 2013 (word2vec); any table of vectors that is read from a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from bertsmith.encoders.encoder import Direction, Encoder, select_tokens
from bertsmith.errors import ConfigError
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.types import Batch, Encoding


@dataclass(frozen=True, kw_only=True)
class Config:
    """One vector per word."""

    vocab_size: int = 30_000  # rows of the table; pre-training takes its tokenizer's, rounded up
    width: int = 200  # of a vector
    padding_id: int = 0  # the token that fills rows

    max_positions: ClassVar[int] = 1 << 16  # vectors do not depend on positions; rows of shards are no longer
    segment_types: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if self.width < 1 or self.vocab_size < 1:
            raise ConfigError(f"width={self.width} and vocab_size={self.vocab_size} must be at least 1")

    def build(self) -> WordVectors:
        return WordVectors(self)


class WordVectors(Encoder):
    """Looks up the vector of each token."""

    layers, segment_types, has_pooler, starts_texts = 0, 0, False, False
    direction: Direction = "none"

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.width, self.max_positions = config, config.width, config.max_positions
        self.layer_config = LayerConfig()
        self.embeddings = nn.ModuleDict({"tokens": nn.Embedding(config.vocab_size, config.width)})
        nn.init.uniform_(self.token_embeddings, -0.5 / config.width, 0.5 / config.width)  # word2vec.c

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
        """See `Encoder.forward`; the only layer is the embeddings."""
        self.check(batch)
        selection = select_tokens(batch, None if return_layers else indices, pool=False)
        ids_R = batch.input_ids.flatten()
        if selection.indices is not None:
            ids_R = ids_R[selection.indices]
        vectors_RD: Tensor = self.embeddings["tokens"](ids_R)
        layers = (vectors_RD,) if return_layers else ()
        return Encoding(last_hidden=vectors_RD, selections=selection.by_objective, layers=layers)

    def embed(self, batch: Batch) -> Tensor:
        vectors_TD: Tensor = self.embeddings["tokens"](batch.input_ids.flatten())
        return vectors_TD

    def layer_groups(self) -> list[nn.Module]:
        """The table."""
        return [self.embeddings]

    @property
    def token_embeddings(self) -> Tensor:
        """The table [V, D]."""
        weight: Tensor = self.embeddings["tokens"].weight
        return weight
