"""Texts as their tokens, to be shown; and ids that came from elsewhere, to be read. Knows no model. L tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertsmith.errors import BertsmithError
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Encoded, Row


@dataclass(frozen=True)
class Tokenized:
    """The tokens of one text."""

    ids: tuple[int, ...]  # [L]
    tokens: tuple[str, ...]  # [L]
    offsets: tuple[tuple[int, int], ...]  # [L] begin and end in the characters of the text; (0, 0) for special tokens
    special: tuple[bool, ...]  # [L]


def tokenized(tokenizer: Tokenizer, found: Encoded, *, specials: bool) -> Tokenized:
    """A text as its tokens, in its frame or without it; never cut."""
    ids, offsets, special = found.ids, found.offsets, np.zeros(len(found), np.bool_)
    if specials:
        row = tokenizer.frame(found, max_length=len(found) + len(tokenizer.frame_ids.single))
        ids, offsets, special = row.ids, row.offsets, row.sequence_ids < 0
    numbers = ids.tolist()
    return Tokenized(
        ids=tuple(numbers),
        tokens=tuple(map(tokenizer.id_to_token, numbers)),
        offsets=tuple((begin, end) for begin, end in offsets.tolist()),
        special=tuple(special.tolist()),
    )


def frame_ids(tokenizer: Tokenizer, ids: Sequence[int], *, length: int) -> Row:
    """Ids without special tokens in their frame; nothing is known of where they stood in a text."""
    for number in ids:
        if not 0 <= number < tokenizer.vocab_size:
            raise BertsmithError(f"id {number} is outside this vocabulary of {tokenizer.vocab_size} tokens")
    count = len(ids)
    found = Encoded(np.array(ids, np.int32), np.zeros((count, 2), np.int32), np.arange(count, dtype=np.int32))
    return tokenizer.frame(found, max_length=length)
