"""Tokenizers whose rules are written in Python: texts are cut word by word, with no backend asked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import tokenizers
from tokenizers import models

from bertsmith import types
from bertsmith.tokenizers import folder
from bertsmith.tokenizers.folder import Specials
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.tokenizers.units import without_surrogates


class Token(NamedTuple):
    """A token of a text: its id, where it stands, and the number of its word."""

    id: int
    begin: int
    end: int
    word: int


class PlainTokenizer(Tokenizer):
    """A vocabulary and a rule. Its backend holds the vocabulary but cannot say the rule: no tokenizer.json here."""

    def __init__(self, tokens: Sequence[str], *, specials: Specials, length: int) -> None:
        ids = {token: number for number, token in enumerate(tokens)}
        backend = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=specials.unknown))
        folder.register(backend, specials)
        super().__init__(backend, specials=specials, length=length)

    def cut(self, text: str) -> Iterable[Token]:
        """The tokens of a text without lone surrogates, words counted from 0."""
        raise NotImplementedError

    def encode(self, text: str, *, specials_in_text: bool = False) -> types.Encoded:
        text = without_surrogates(text)
        if not specials_in_text:
            return _encoded(self.cut(text))
        found: list[Token] = []
        at = 0
        for place, part in enumerate(self._specials_pattern.split(text)):  # every second part is a special token
            tokens = [Token(self._ids[part], 0, len(part), 0)] if place % 2 else self.cut(part)
            word = found[-1].word + 1 if found else 0
            found += [Token(number, at + begin, at + end, word + own) for number, begin, end, own in tokens]
            at += len(part)
        return _encoded(found)

    def encode_batch(self, texts: Sequence[str]) -> list[types.Encoded]:
        return [self.encode(text) for text in texts]

    def files(self) -> dict[str, bytes]:
        return {name: content for name, content in super().files().items() if name != folder.DEFINITION}

    @cached_property
    def _specials_pattern(self) -> re.Pattern[str]:
        tokens = sorted(self.specials.tokens(), key=lambda token: (-len(token), token))
        return re.compile(f"({'|'.join(map(re.escape, tokens))})")

    def _slow_ids(self, texts: list[str]) -> list[list[int]]:
        return [[token.id for token in self.cut(text)] for text in texts]


def _encoded(tokens: Iterable[Token]) -> types.Encoded:
    table = np.array(list(tokens), np.int32).reshape(-1, 4)
    return types.Encoded(table[:, 0].copy(), table[:, 1:3].copy(), table[:, 3].copy())
