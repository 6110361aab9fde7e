"""One word in several sentences: the similarities of its vectors. Word vectors do not depend on the sentence.

P-ELMo Table 4 compares the nearest neighbours of a word's vector. N sentences, D width.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import BertsmithError
from bertsmith.inference.encoder_outputs import TokenEmbeddingQuery, check_embedding_options, normalized
from bertsmith.inference.forward import ModelInput, TextModel
from bertsmith.types import Direction, Row

MARK = re.compile(r"\*([^*\s](?:[^*]*[^*\s])?)\*")
EXPECTED = "mark one word with asterisks, as in: the *play* began"
MAX_SENTENCES = 200


@dataclass(frozen=True)
class MarkedText:
    """A text without the marks, and the characters of the marked word."""

    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """The marked characters."""
        return self.text[self.start : self.end]


def is_marked(text: str) -> bool:
    """Whether a text has a word between asterisks."""
    return MARK.search(text) is not None


def parse_marked(text: str) -> MarkedText:
    """The text and its marked word; an error unless there is exactly one."""
    found = list(MARK.finditer(text))
    if len(found) != 1:
        raise BertsmithError(f"{text[:60]!r} has {len(found)} marked words: {EXPECTED}")
    (match,) = found
    plain = text[: match.start()] + match[1] + text[match.end() :]
    return MarkedText(plain, match.start(), match.start() + len(match[1]))


@dataclass(frozen=True)
class WordContexts:
    """The marked words of sentences and the cosine similarities of their vectors."""

    sentences: tuple[MarkedText, ...]
    layer: int
    similarity: NDArray[np.float32]  # [N, N]

    def neighbours(self, number: int) -> list[tuple[int, float]]:
        """The other sentences and their similarities, the nearest first."""
        row = self.similarity[number]
        order = np.argsort(-row, kind="stable").tolist()
        return [(other, float(row[other])) for other in order if other != number]

    def to_json(self) -> dict[str, Any]:
        """Plain values, similarities with four decimals."""
        return {
            "layer": self.layer,
            "sentences": [
                {"text": one.text, "word": one.word, "start": one.start, "end": one.end} for one in self.sentences
            ],
            "similarity": np.round(self.similarity.astype(np.float64), 4).tolist(),
        }


class WordContextPipeline(TextModel):
    """The method of a predictor for words in sentences."""

    def word_contexts(self, sentences: Sequence[str], *, layer: int = -1) -> WordContexts:
        """Compares the vectors of a word in sentences, such as `the *play* began`.

        The vector is the output of a layer at the tokens of the word: their mean, or that of the token which has read
        the whole word where the encoder reads in one direction.
        """
        if not 2 <= len(sentences) <= MAX_SENTENCES:
            found = "a single sentence" if len(sentences) == 1 else f"{len(sentences)} sentences"
            raise BertsmithError(f"{found}: give 2 to {MAX_SENTENCES}, each with a word such as *play*")
        encoder = self.model.encoder
        check_embedding_options(encoder, pooling="mean", layers=[layer])
        marked = [parse_marked(one) for one in sentences]
        self.check_texts(*(one.text for one in marked))
        encoded = self.tokenizer.encode_batch([one.text for one in marked])
        rows = [self.tokenizer.frame(one, max_length=self.max_length) for one in encoded]
        tokens = [self._tokens_of(row, one) for row, one in zip(rows, marked, strict=True)]
        outputs = self.backend.run(TokenEmbeddingQuery(layer), [ModelInput((row,)) for row in rows])
        vectors = [_vector(values[some], encoder.direction) for values, some in zip(outputs, tokens, strict=True)]
        unit_ND = normalized(np.stack(vectors).astype(np.float32))
        number = layer if layer >= 0 else encoder.layers + 1 + layer
        return WordContexts(tuple(marked), number, unit_ND @ unit_ND.T)

    def _tokens_of(self, row: Row, marked: MarkedText) -> NDArray[np.int64]:
        """The indices of the tokens that overlap the marked word."""
        inside = (row.sequence_ids == 0) & (row.offsets[:, 0] < marked.end) & (row.offsets[:, 1] > marked.start)
        if not inside.any():
            limit = (
                f"the maximum length of {self.max_length} tokens" if any(row.truncated) else "the tokens of its text"
            )
            raise BertsmithError(f"{marked.word!r} is not within {limit}: choose another word or sentence")
        return np.flatnonzero(inside)


def _vector(tokens: NDArray[np.float32], direction: Direction) -> NDArray[np.float32]:
    """The vector [D] of a word from those of its tokens."""
    if direction in ("forward", "backward"):
        tokens = tokens[-1:] if direction == "forward" else tokens[:1]
    if direction == "forward_and_backward":
        half = tokens.shape[1] // 2
        tokens = np.concatenate([tokens[-1:, :half], tokens[:1, half:]], axis=1)
    mean: NDArray[np.float32] = tokens.mean(0)
    return mean
