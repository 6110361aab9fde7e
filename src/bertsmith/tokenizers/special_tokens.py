"""Special tokens by role, and the frame that they form around one or two texts (`[CLS] a [SEP] b [SEP]`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import tokenizers
from tokenizers import processors

from bertsmith.errors import BertsmithError, DataError
from bertsmith.tokenizers.spelling import PADDING, TEXT_BEGIN, TEXT_END, mark
from bertsmith.types import Encoded, Frame, Row, Slot

# Role -> key of tokenizer_config.json, for encoders with [CLS] and for language models with <bos>.
SHARED_KEYS = {"padding": "pad_token", "unknown": "unk_token"}
CLS_KEYS = SHARED_KEYS | {"start": "cls_token", "separator": "sep_token", "end": "sep_token", "mask": "mask_token"}
BOS_KEYS = SHARED_KEYS | {"start": "bos_token", "separator": "sep_token", "end": "eos_token"}
AddedTokens = Iterable[tuple[int | None, tokenizers.AddedToken]]  # with their ids; None: any id
EMPTY = Encoded(np.zeros(0, np.int32), np.zeros((0, 2), np.int32), np.zeros(0, np.int32))


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens by role; one token may have two roles (BERT's separator is also its end)."""

    padding: str
    unknown: str | None = None  # none where every text has tokens
    start: str | None = None
    separator: str | None = None
    end: str | None = None
    mask: str | None = None

    def roles(self) -> dict[str, str]:
        """Role -> token, without absent roles, in a fixed order."""
        every = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {role: token for role, token in every.items() if token is not None}

    def tokens(self) -> list[str]:
        """Each token once, in the order of the roles."""
        return list(dict.fromkeys(self.roles().values()))


class FrameTemplate(NamedTuple):
    """A frame by role, such as `("start", "a", "end")`; `pair_segments` has the segment of each item of `pair`."""

    single: tuple[str, ...] = ("start", "a", "end")
    pair: tuple[str, ...] = ("start", "a", "separator", "b", "end")
    pair_segments: tuple[int, ...] = ()

    def build(self, ids: Mapping[str, int]) -> Frame:
        """The frame with token ids in place of roles."""
        slots: dict[str, Slot] = {"a": "a", "b": "b"}
        single, pair = (tuple(slots.get(name) or ids[name] for name in names) for names in (self.single, self.pair))
        return Frame(single, pair, self.pair_segments)

    def post_processor(
        self, special_tokens: SpecialTokens, backend: tokenizers.Tokenizer
    ) -> processors.TemplateProcessing:
        """The frame as a post-processor of the tokenizers library, for tokenizer.json."""
        names = special_tokens.roles() | {"a": "$A", "b": "$B"}
        used = dict.fromkeys(names[role] for role in self.pair if role not in ("a", "b"))
        segments = [f":{segment}" for segment in self.pair_segments] or [""] * len(self.pair)
        return processors.TemplateProcessing(
            single=" ".join(names[role] + (":0" if self.pair_segments else "") for role in self.single),
            pair=" ".join(names[role] + segment for role, segment in zip(self.pair, segments, strict=True)),
            special_tokens=[(token, backend.token_to_id(token)) for token in used],
        )


def truncate_pair(first: int, second: int, *, budget: int) -> tuple[int, int]:
    """How many tokens of two texts are kept so that both fit into `budget` tokens.

    Closed form of Google's `_truncate_seq_pair` (bert: run_classifier.py): while the pair is too long, the longer text
    loses its last token, the second text on a tie.
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
    """The texts in their frame, truncated to at most `max_length` tokens in all."""
    slots = layout.single if b is None else layout.pair
    specials = sum(isinstance(slot, int) for slot in slots)
    if max_length < specials:
        raise BertsmithError(f"max_length={max_length} is too short for {specials} special tokens: increase it")
    second = EMPTY if b is None else b
    keep = truncate_pair(len(a), len(second), budget=max_length - specials)
    size = specials + sum(keep[: 1 if b is None else 2])
    texts = (a, second)
    widths = [text.characters.shape[1] for text in texts if text.characters is not None]
    row = Row(
        ids=np.empty(size, np.int32),
        segment_ids=np.zeros(size, np.uint8),
        sequence_ids=np.full(size, -1, np.int8),
        offsets=np.zeros((size, 2), np.int32),
        words=np.full(size, -1, np.int32),
        truncated=(len(a) - keep[0], len(second) - keep[1]),
        characters=np.full((size, max([3, *widths])), PADDING, np.int16) if a.characters is not None else None,
    )
    segments = layout.pair_segments if b is not None and layout.pair_segments else (0,) * len(slots)
    end = 0
    for slot, segment in zip(slots, segments, strict=True):
        begin = end
        if isinstance(slot, int):
            end += 1
            row.ids[begin] = slot
        else:
            sequence = "ab".index(slot)
            text, count = texts[sequence], keep[sequence]
            end += count
            row.ids[begin:end], row.sequence_ids[begin:end] = text.ids[:count], sequence
            row.offsets[begin:end], row.words[begin:end] = text.offsets[:count], text.words[:count]
        if row.characters is not None:
            spelled = mark(TEXT_END if end > 1 else TEXT_BEGIN)[None] if isinstance(slot, int) else text.characters
            if spelled is not None:
                row.characters[begin:end, : spelled.shape[1]] = spelled[: end - begin]
        if segment:
            row.segment_ids[begin:end] = segment
    return row


def end_token(frame: Frame) -> int | None:
    """The special token at the end of a single text, or None if the frame has none."""
    last = frame.single[-1]
    return last if isinstance(last, int) else None


def stream_frame(frame: Frame, *, backward: bool) -> Frame:
    """Texts as in a stream of documents with the end token between them, the start token of a frame in none of them.

    The end token is before each text in the order in which it is read. A frame without one stays as it is.
    """
    end = end_token(frame)
    if end is None:
        return frame
    return Frame(("a", end), ("a", end, "b", end)) if backward else Frame((end, "a"), (end, "a", end, "b"))


def source_frame(frame: Frame) -> Frame:
    """A source text and the end token of a tokenizer's frame."""
    return Frame(("a", _end(frame)), ("a", "b", _end(frame)))


def target_frame(frame: Frame) -> Frame:
    """The start token of a tokenizer's frame, or else its end token, and a target text without its end."""
    first = frame.single[0]
    start = first if isinstance(first, int) else _end(frame)
    return Frame((start, "a"), (start, "a", "b"))


def _end(frame: Frame) -> int:
    end = end_token(frame)
    if end is None:
        raise DataError(
            "translation needs a tokenizer with an end token: train another one, such as bertsmith tokenizer train "
            "--kind byte_bpe, and prepare the shards again"
        )
    return end


def register_special_tokens(
    backend: tokenizers.Tokenizer, special_tokens: SpecialTokens, added: AddedTokens = ()
) -> None:
    """Registers special tokens and the `added` tokens of a folder with the backend."""
    known = set()
    for number, token in added:
        (backend.add_special_tokens if token.special else backend.add_tokens)([token])
        known.add(token.content)
        if number is not None and backend.token_to_id(token.content) != number:
            raise DataError(
                f"added token {token.content!r} has id {number}, which is not the next id of the vocabulary"
            )
    missing = [token for token in special_tokens.tokens() if backend.token_to_id(token) is None]
    if missing:
        raise DataError(
            f"the vocabulary of {backend.get_vocab_size()} tokens lacks the special tokens {', '.join(missing)}"
        )
    others = [token for token in special_tokens.tokens() if token not in known]
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in others])
