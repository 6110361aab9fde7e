"""The nearest neighbours of words: the words of the vocabulary with the most similar vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from bertsmith.errors import BertsmithError
from bertsmith.inference.forward import TextModel, check_top_k
from bertsmith.inference.word_contexts import EXPECTED
from bertsmith.model_io.model import Model
from bertsmith.tokenizers.spelling import spell
from bertsmith.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Neighbour:
    word: str
    similarity: float  # cosine


class WordIndex:
    """The normalised vectors of all words of a vocabulary."""

    def __init__(self, model: Model, tokenizer: Tokenizer) -> None:
        self.encoder = cast(Any, model.encoder)
        self.tokenizer = tokenizer
        if self.encoder.direction != "none":
            raise BertsmithError(f"this model has no vectors of words alone, only in sentences: {EXPECTED}")
        table = self.encoder.word_table(tokenizer.vocab_size).float()
        self._table_VD = torch.nn.functional.normalize(table, dim=1)
        self._special = sorted(tokenizer.special_ids)

    def vector(self, word: str) -> Tensor:
        """The normalised vector of a word [D], by its spelling where it is unknown and the encoder reads characters."""
        ids = self.tokenizer.encode(word).ids.tolist()
        if len(ids) == 1 and ids[0] not in self.tokenizer.special_ids:
            return self._table_VD[ids[0]]
        if len(ids) > 1 or "characters" not in self.encoder.reads:
            what = f"is {len(ids)} tokens of" if len(ids) > 1 else "is not in"
            raise BertsmithError(f"{word or repr(word)} {what} the vocabulary of this model: choose another word")
        characters = self.tokenizer.encode(word).characters
        characters = spell([word]) if characters is None else characters
        with torch.inference_mode():
            vector_1D = self.encoder.spelled_vectors(torch.from_numpy(characters).to(self._table_VD.device))
        return torch.nn.functional.normalize(vector_1D.float(), dim=1)[0]

    def neighbours(self, words: Sequence[str], *, minus: Sequence[str] = (), top_k: int = 10) -> list[Neighbour]:
        """The words most similar to the sum of these words minus the words in `minus`, without the words themselves.

        An analogy, king - man + woman, is `neighbours(["king", "woman"], minus=["man"])`.
        """
        check_top_k(top_k)
        if not words:
            raise BertsmithError("no word was given: name at least one")
        total_D = torch.stack([*map(self.vector, words)]).sum(0)
        for word in minus:
            total_D = total_D - self.vector(word)
        similarity_V = self._table_VD @ torch.nn.functional.normalize(total_D, dim=0)
        own = [number for word in (*words, *minus) for number in self.tokenizer.encode(word).ids.tolist()]
        similarity_V[[*self._special, *own]] = -torch.inf
        best = similarity_V.topk(min(top_k, int(similarity_V.isfinite().sum())))
        found = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [Neighbour(self.tokenizer.id_to_token(number), value) for number, value in found]


class NeighbourPipeline(TextModel):
    """The method of a predictor for word vectors."""

    def neighbours(self, words: str | Sequence[str], *, minus: Sequence[str] = (), top_k: int = 10) -> list[Neighbour]:
        """The words nearest to a word, or to a sum of words minus those in `minus`; see `WordIndex.neighbours`."""
        words = [words] if isinstance(words, str) else words
        return WordIndex(self.model, self.tokenizer).neighbours(words, minus=minus, top_k=top_k)
