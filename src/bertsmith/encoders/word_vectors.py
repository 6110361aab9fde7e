"""Word vectors: an embedding table; the vector of a word does not depend on the words around it.

Mikolov et al. 2013 (word2vec), Bojanowski et al. 2017 (fastText: the mean of a word's row and of the rows of its
character n-grams), and any table that is read from a file. R words, C characters, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast, get_args

import torch
from torch import Tensor, nn

from bertsmith.encoders.encoder import Encoder, select_tokens
from bertsmith.errors import ConfigError
from bertsmith.nn import counter_random
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.sparse_rows import look_up
from bertsmith.nn.subwords import ngram_rows, word_hashes
from bertsmith.tokenizers.spelling import PADDING, spell
from bertsmith.types import Batch, Direction, Encoding

UnknownWords = Literal["vector", "hashed", "characters"]
HASHED_LIMIT = 0.25  # of the components of random vectors (Kim 2014, §3.1.1)
SPELLED = 50  # characters of a word of the vocabulary that n-grams are made of, as in ELMo


@dataclass(frozen=True, kw_only=True)
class Config:
    """One vector per word; with `ngram_buckets`, subword vectors."""

    vocab_size: int = 30_000  # rows of the table; pre-training takes its tokenizer's, rounded up
    width: int = 200  # of a vector
    padding_id: int = 0  # the token that fills rows
    # of a word outside of the vocabulary: the row of its unknown token; a fixed random vector by a hash of its
    # spelling; or the mean of its character n-grams
    unknown: UnknownWords = "vector"
    unknown_ids: tuple[int, ...] = (1,)  # the tokens of such words: one, or one for each word shape
    ngram_buckets: int = 0  # rows of the table of character n-grams; fastText: 2,000,000; 0: no n-grams
    min_ngram: int = 3  # characters of the shortest n-grams
    max_ngram: int = 6  # characters of the longest n-grams

    max_positions: ClassVar[int] = 1 << 16  # vectors do not depend on positions; rows of shards are no longer
    segment_types: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if min(self.width, self.vocab_size) < 1 or self.ngram_buckets < 0:
            sizes = f"width={self.width} and vocab_size={self.vocab_size} must be at least 1"
            raise ConfigError(f"{sizes}, ngram_buckets={self.ngram_buckets} at least 0")
        if not 1 <= self.min_ngram <= self.max_ngram <= SPELLED:
            found = f"min_ngram={self.min_ngram} and max_ngram={self.max_ngram}"
            raise ConfigError(f"{found} must be at least 1, in ascending order and at most {SPELLED}")
        if self.unknown not in get_args(UnknownWords):
            raise ConfigError(f"unknown={self.unknown} must be one of {', '.join(get_args(UnknownWords))}")
        if self.unknown == "characters" and not self.ngram_buckets:
            raise ConfigError("unknown=characters needs character n-grams: set ngram_buckets=100000")

    def build(self) -> WordVectors:
        return WordVectors(self)


class WordVectors(Encoder):
    """Looks up the vector of each word."""

    layers, segment_types, has_pooler, starts_texts = 0, 0, False, False
    direction: Direction = "none"

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.width, self.max_positions = config, config.width, config.max_positions
        self.layer_config = LayerConfig()
        self.embeddings = nn.ModuleDict({"tokens": nn.Embedding(config.vocab_size, config.width)})
        if config.ngram_buckets:
            self.embeddings["ngrams"] = nn.EmbeddingBag(config.ngram_buckets, config.width, mode="sum")
            self.spellings = torch.full((config.vocab_size, SPELLED), PADDING, dtype=torch.int16)
        for table in self.embeddings.values():
            nn.init.uniform_(cast(Tensor, table.weight), -0.5 / config.width, 0.5 / config.width)  # word2vec.c
        if config.unknown != "vector":
            self.reads = frozenset({"ids", "characters"})
        self.compiles = not config.ngram_buckets and config.unknown == "vector"
        self._ngrams: tuple[Tensor, Tensor] | None = None  # of all words of the vocabulary, see `_known_ngrams`

    def set_spellings(self, tokens: Sequence[str]) -> None:
        """Takes the spelling of each token of the vocabulary, for n-grams; "" for special tokens, which have none."""
        spelled = torch.from_numpy(spell(tokens, max_characters=SPELLED))
        self.spellings = torch.full((self.config.vocab_size, SPELLED), PADDING, dtype=torch.int16)
        self.spellings[: len(tokens), : spelled.shape[1]] = spelled
        self.spellings = self.spellings.to(self.token_embeddings.device)
        self._ngrams = None

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
        vectors_RD = self._vectors(batch, selection.indices)
        layers = (vectors_RD,) if return_layers else ()
        return Encoding(last_hidden=vectors_RD, selections=selection.by_objective, layers=layers)

    def embed(self, batch: Batch) -> Tensor:
        return self._vectors(batch, None)

    def word_table(self, words: int) -> Tensor:
        """The vectors of the first words of the vocabulary [V, D]."""
        with torch.inference_mode():
            return self._known(torch.arange(words, device=self.token_embeddings.device))

    def spelled_vectors(self, characters_RC: Tensor) -> Tensor:
        """The vectors [R, D] of words outside of the vocabulary, by their spelling."""
        if self.config.unknown == "characters":
            rows_X, counts_R = self._ngram_rows(characters_RC)
            return self._ngram_sums(rows_X, counts_R) / counts_R.clamp(min=1)[:, None]
        numbers_D = torch.arange(self.width, device=characters_RC.device)
        bits_RD = counter_random.random_bits(0, word_hashes(characters_RC)[:, None], numbers_D)
        return (bits_RD.to(self.token_embeddings.dtype) / counter_random.RANGE - 0.5) * 2 * HASHED_LIMIT

    def _vectors(self, batch: Batch, indices: Tensor | None) -> Tensor:
        ids_R = batch.input_ids.flatten()
        ids_R = ids_R if indices is None else ids_R[indices]
        vectors_RD = self._known(ids_R)
        if batch.characters is None or "characters" not in self.reads:
            return vectors_RD
        characters_RC = batch.characters.flatten(0, 1)
        characters_RC = characters_RC if indices is None else characters_RC[indices]
        unknown = torch.isin(ids_R, ids_R.new_tensor(self.config.unknown_ids)).nonzero()[:, 0]
        spelled = self.spelled_vectors(characters_RC[unknown]).to(vectors_RD.dtype)
        return vectors_RD.index_copy(0, unknown, spelled)

    def _known(self, ids_R: Tensor) -> Tensor:
        """Rows of the table, or their means with the rows of n-grams."""
        vectors_RD = look_up(cast(nn.Embedding, self.embeddings["tokens"]), ids_R)
        if self.spellings is None:
            return vectors_RD
        rows_X, counts_V = self._known_ngrams()
        counts_R, ends_V = counts_V[ids_R], counts_V.cumsum(0)
        first_R = ends_V[ids_R] - counts_R
        within = torch.arange(int(counts_R.sum()), device=ids_R.device)
        within -= (counts_R.cumsum(0) - counts_R).repeat_interleave(counts_R)
        sums_RD = self._ngram_sums(rows_X[first_R.repeat_interleave(counts_R) + within], counts_R)
        return (vectors_RD + sums_RD) / (1 + counts_R)[:, None]

    def _ngram_sums(self, rows_X: Tensor, counts_R: Tensor) -> Tensor:
        sums_RD: Tensor = self.embeddings["ngrams"](rows_X, counts_R.cumsum(0) - counts_R)
        return sums_RD

    def _known_ngrams(self) -> tuple[Tensor, Tensor]:
        """The rows of the n-grams of all words of the vocabulary [X], and how many each has [V]; special tokens: 0."""
        assert self.spellings is not None
        if self._ngrams is None or self._ngrams[0].device != self.spellings.device:
            self._ngrams = self._ngram_rows(self.spellings)
        return self._ngrams

    def _ngram_rows(self, characters_RC: Tensor) -> tuple[Tensor, Tensor]:
        sizes = {"smallest": self.config.min_ngram, "largest": self.config.max_ngram}
        return ngram_rows(characters_RC, **sizes, buckets=self.config.ngram_buckets)

    def layer_groups(self) -> list[nn.Module]:
        """The tables."""
        return [self.embeddings]

    @property
    def token_embeddings(self) -> Tensor:
        """The table [V, D], without n-grams."""
        return cast(Tensor, self.embeddings["tokens"].weight)
