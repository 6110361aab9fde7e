"""The base of tokenizers whose rule is written in Python, such as words and characters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import tokenizers
from tokenizers import models

from bertsmith import types
from bertsmith.tokenizers import folder
from bertsmith.tokenizers.pretokenization import Token
from bertsmith.tokenizers.special_tokens import BOS_KEYS, SpecialTokens, register_special_tokens
from bertsmith.tokenizers.tokenizer import Tokenizer


class PythonTokenizer(Tokenizer):
    """A vocabulary and a rule written in Python. The backend holds only the vocabulary, not a tokenizer.json."""

    special_token_keys: ClassVar[Mapping[str, str]] = BOS_KEYS

    def __init__(self, tokens: Sequence[str], *, special_tokens: SpecialTokens, max_length: int) -> None:
        ids = {token: number for number, token in enumerate(tokens)}
        backend = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=special_tokens.unknown))
        register_special_tokens(backend, special_tokens)
        super().__init__(backend, special_tokens=special_tokens, max_length=max_length)

    def tokenize(self, text: str) -> Iterable[Token]:
        """The tokens of a text without lone surrogates; words are counted from 0."""
        raise NotImplementedError

    def encode(self, text: str, *, parse_special_tokens: bool = False) -> types.Encoded:
        return self.spelled(text, self.encode_in_python(self.tokenize, text, parse_special_tokens=parse_special_tokens))

    def encode_batch(self, texts: Sequence[str]) -> list[types.Encoded]:
        return [self.encode(text) for text in texts]

    def files(self) -> dict[str, bytes]:
        return {name: content for name, content in super().files().items() if name != folder.DEFINITION}

    def _encode_uncached(self, texts: list[str]) -> list[list[int]]:
        return [[token.id for token in self.tokenize(text)] for text in texts]
