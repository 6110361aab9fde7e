"""One or two encoded texts between special tokens: truncation, segments, offsets. Knows roles and ids, no spellings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import tokenizers

from bertsmith.errors import BertsmithError, DataError
from bertsmith.types import Encoded, Frame, Row, Slot


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens by role; one token may have two roles (BERT's separator is also its end)."""

    padding: str
    unknown: str
    start: str | None = None
    separator: str | None = None
    end: str | None = None
    mask: str | None = None

    def roles(self) -> dict[str, str]:
        """Role -> token, of those present, in a fixed order."""
        every = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {role: token for role, token in every.items() if token is not None}

    def tokens(self) -> list[str]:
        """Each token once, in the order of the roles."""
        return list(dict.fromkeys(self.roles().values()))


NOTHING = Encoded(np.zeros(0, np.int32), np.zeros((0, 2), np.int32), np.zeros(0, np.int32))


class FrameTemplate(NamedTuple):
    """A frame by role: `("start", "a", "end")`, with the segment of each part of a pair."""

    single: tuple[str, ...] = ("start", "a", "end")
    pair: tuple[str, ...] = ("start", "a", "separator", "b", "end")
    pair_segments: tuple[int, ...] = ()

    def build(self, ids: Mapping[str, int]) -> Frame:
        """The same frame in ids."""
        slots: dict[str, Slot] = {"a": "a", "b": "b"}
        single, pair = (tuple(slots.get(name) or ids[name] for name in names) for names in (self.single, self.pair))
        return Frame(single, pair, self.pair_segments)


def truncate_pair(first: int, second: int, *, budget: int) -> tuple[int, int]:
    """How many tokens of two texts stay where both together must fit into `budget`.

    Google's `_truncate_seq_pair` (bert: run_classifier.py) in closed form: while they do not fit, the longer text loses
    its last token, the second one where both are as long.
    """
    if first + second <= budget:
        return first, second
    half = budget // 2
    if second <= half:
        return budget - second, second
    if first <= budget - half:
        return first, budget - first
    return budget - half, half


def frame_texts(layout: Frame, a: Encoded, b: Encoded | None, *, max_length: int) -> Row:
    """The texts in their frame, cut so that the row has at most `max_length` tokens."""
    parts = layout.single if b is None else layout.pair
    specials = sum(isinstance(part, int) for part in parts)
    if max_length < specials:
        raise BertsmithError(
            f"a row of length {max_length} has no room for its {specials} special tokens: make it longer"
        )
    both = (a, NOTHING if b is None else b)
    keep = truncate_pair(len(a), len(both[1]), budget=max_length - specials)
    texts = [_cut(text, count) for text, count in zip(both, keep, strict=True)]
    pieces = [_special(part) if isinstance(part, int) else texts["ab".index(part)] for part in parts]
    sides = [-1 if isinstance(part, int) else "ab".index(part) for part in parts]
    sizes = [len(piece) for piece in pieces]
    segments = layout.pair_segments if b is not None and layout.pair_segments else (0,) * len(parts)
    return Row(
        ids=np.concatenate([piece.ids for piece in pieces]),
        segment_ids=np.repeat(np.array(segments, np.uint8), sizes),
        sequence_ids=np.repeat(np.array(sides, np.int8), sizes),
        offsets=np.concatenate([piece.offsets for piece in pieces]),
        words=np.concatenate([piece.words for piece in pieces]),
        truncated=(len(a) - keep[0], len(both[1]) - keep[1]),
    )


def _cut(text: Encoded, count: int) -> Encoded:
    return Encoded(text.ids[:count], text.offsets[:count], text.words[:count])


def _special(token: int) -> Encoded:
    return Encoded(np.array([token], np.int32), np.zeros((1, 2), np.int32), np.array([-1], np.int32))


def register_special_tokens(
    backend: tokenizers.Tokenizer,
    special_tokens: SpecialTokens,
    added: Iterable[tuple[int, tokenizers.AddedToken]] = (),
) -> dict[str, int]:
    """Tells the backend which tokens are special, adds those that others have added; gives the special tokens' ids."""
    known = set()
    for number, token in added:
        (backend.add_special_tokens if token.special else backend.add_tokens)([token])
        known.add(token.content)
        if backend.token_to_id(token.content) != number:
            raise DataError(f"added token {token.content!r} has id {number}, which is not next in the vocabulary")
    ids = {token: backend.token_to_id(token) for token in special_tokens.tokens()}
    missing = [token for token, number in ids.items() if number is None]
    if missing:
        size = backend.get_vocab_size()
        raise DataError(f"the vocabulary of {size} tokens lacks special tokens: {', '.join(missing)}")
    others = [token for token in ids if token not in known]
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in others])
    return {token: number for token, number in ids.items() if number is not None}
