"""ELMo's characters (bilm: data.py; allennlp: elmo_indexer.py): the UTF-8 bytes of each word. Nothing is trained.

A word is `<bow>` bytes `<eow>`, at most 50 in all. Models read a table of 50 columns, one row per word
(`character_table`); as a tokenizer of texts, the words are concatenated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertsmith.errors import ConfigError, DataError
from bertsmith.tokenizers.folder import MAX_LENGTH, TokenizerFolder
from bertsmith.tokenizers.pretokenization import WHITESPACE_CHUNKER, Token, replace_surrogates, split_words
from bertsmith.tokenizers.python_tokenizer import PythonTokenizer
from bertsmith.tokenizers.special_tokens import SpecialTokens

START, END, WORD_BEGIN, WORD_END, PADDING = range(256, 261)
WIDTH = 50  # of a word: 48 bytes and the two word boundaries
MAX_BYTES = WIDTH - 2
TOKENS = [*(f"<0x{byte:02X}>" for byte in range(256)), "<bos>", "<eos>", "<bow>", "<eow>", "<pad>"]
# No byte is unknown: the role is given to a token that never occurs in a text.
SPECIALS = SpecialTokens("<pad>", "<bos>", start="<bos>", separator="<eos>", end="<eos>")


class Splitter:
    """One chunk -> its words."""

    chunker = WHITESPACE_CHUNKER

    def __call__(self, chunk: str) -> Sequence[str]:
        return [word.text for word in split_words(chunk)]


@dataclass(frozen=True)
class Config:
    """Characters have no settings."""

    def word_splitter(self) -> Splitter:
        """For counting, although nothing is trained on the counts."""
        return Splitter()

    def train(self, counts: dict[str, int], *, vocab_size: int = len(TOKENS)) -> Characters:
        """Always the same 261 tokens."""
        if vocab_size < len(TOKENS):
            raise ConfigError(f"vocab_size={vocab_size} is too small: there are {len(TOKENS)} characters")
        if not counts:
            raise DataError("the corpus is empty: there are no words")
        return Characters()


class Characters(PythonTokenizer):
    """ELMo's character ids."""

    kind = "characters"
    transformers_classes = ("CharactersTokenizer",)
    default_chunker = WHITESPACE_CHUNKER

    def __init__(self, *, max_length: int = MAX_LENGTH) -> None:
        super().__init__(TOKENS, special_tokens=SPECIALS, max_length=max_length)

    def character_table(
        self, text: str | Sequence[str], *, framed: bool = True, shifted: bool = False
    ) -> NDArray[np.int32]:
        """Words as rows of character ids [W, 50]: the words of a text, or the given ones.

        `framed`: with the words `<bos>` and `<eos>` around them. `shifted`: every id is one greater, as in ELMo's
        published weights, where a row of zeros is padding.
        """
        words = [word.text for word in split_words(replace_surrogates(text))] if isinstance(text, str) else text
        inner = [replace_surrogates(word).encode()[:MAX_BYTES] for word in words]
        rows: list[Sequence[int]] = [[START], *inner, [END]] if framed else [*inner]
        table = np.full((len(rows), WIDTH), PADDING, np.int32)
        for row, characters in zip(table, rows, strict=True):
            row[: len(characters) + 2] = [WORD_BEGIN, *characters, WORD_END]
        return table + np.int32(shifted)

    def tokenize(self, text: str) -> Iterable[Token]:
        for number, word in enumerate(split_words(text)):
            yield Token(WORD_BEGIN, word.begin, word.begin, number)
            remaining = MAX_BYTES
            for index, character in enumerate(word.text, word.begin):
                encoded = character.encode()[:remaining]
                remaining -= len(encoded)
                for byte in encoded:
                    yield Token(byte, index, index + 1, number)
            yield Token(WORD_END, word.end, word.end, number)

    def decode(self, ids: ArrayLike, *, skip_special_tokens: bool = True) -> str:
        text = bytearray()
        for number in np.asarray(ids, np.int64).tolist():
            token = self.id_to_token(number)
            if number < START:
                text.append(number)
            elif number == WORD_END:
                text += b" "
            elif number in self.special_ids and not skip_special_tokens:
                text += token.encode() + b" "
        return text.decode(errors="replace").rstrip(" ")

    @classmethod
    def from_folder(cls, contents: TokenizerFolder) -> Characters:
        return cls(max_length=contents.max_length())

    def rules(self) -> dict[str, Any]:
        return {"width": WIDTH}

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Characters, max_length=self.max_length), ()
