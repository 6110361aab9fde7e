"""Words for gaps: runs of masks found in a text, filled by beam search, whole words scored piece by piece."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.errors import BertsmithError
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Encoded, Row

BEAM = 16  # partial fillings kept while a run of several masks is filled


class Guesser(Protocol):
    """What filling needs of a predictor."""

    tokenizer: Tokenizer
    max_length: int

    def word_log_probabilities(self, rows: Sequence[Row], places: Sequence[int]) -> Tensor:
        """log p of every token [rows, V] at one place of each row."""


@dataclass(frozen=True)
class Run:
    """Masks side by side: tokens `first` to `last` (exclusive), characters `begin` to `end` of the text."""

    first: int
    last: int
    begin: int
    end: int


@dataclass(frozen=True)
class Filling:
    """One way to fill a run."""

    score: float  # probability of all its pieces, each given those before it
    ids: tuple[int, ...]
    word: str
    sequence: str
    truncated: bool = False  # the text was too long and was read only round the gap

    def to_json(self) -> dict[str, Any]:
        """As the fill-mask pipelines show it; `token` is a list where there are several."""
        token = self.ids[0] if len(self.ids) == 1 else list(self.ids)
        found = {"score": self.score, "token": token, "token_str": self.word, "sequence": self.sequence}
        return found | ({"cut": True} if self.truncated else {})


def mask_runs(tokenizer: Tokenizer, text: str) -> list[Run]:
    """The runs of masks in a text; a text without any is an error."""
    encoded = tokenizer.encode(text, parse_special_tokens=True)
    places = np.flatnonzero(encoded.ids == tokenizer.mask_id)
    if not len(places):
        mask = tokenizer.id_to_token(tokenizer.mask_id)
        raise BertsmithError(f"the text has no {mask}: put {mask} where a word is to be found")
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    return [_run(encoded, int(run[0]), int(run[-1]) + 1) for run in runs]


def _run(encoded: Encoded, first: int, last: int) -> Run:
    return Run(first, last, int(encoded.offsets[first, 0]), int(encoded.offsets[last - 1, 1]))


def fill_run(guesser: Guesser, text: str, run: Run, *, top_k: int) -> list[Filling]:
    """The best fillings of one run, from left to right by beam search."""
    tokenizer = guesser.tokenizer
    row, shift = _framed(guesser, tokenizer.encode(text, parse_special_tokens=True), run)
    beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for place in range(run.first, run.last):
        rows = [_with(row, run.first + shift, ids) for _, ids in beams]
        log_probabilities = guesser.word_log_probabilities(rows, [place + shift] * len(rows))
        best, tokens = log_probabilities.topk(min(max(BEAM, top_k), log_probabilities.shape[-1]))
        grown = [
            (score + gain, (*ids, token))
            for (score, ids), gains, choices in zip(beams, best.tolist(), tokens.tolist(), strict=True)
            for gain, token in zip(gains, choices, strict=True)
            if gain > -np.inf  # special tokens and rows that pad the table are no words
        ]
        beams = sorted(grown, key=lambda beam: (-beam[0], beam[1]))[: max(BEAM, top_k)]
    return [_filling(tokenizer, text, run, score, ids, cut=any(row.truncated)) for score, ids in beams[:top_k]]


def score_targets(guesser: Guesser, text: str, run: Run, targets: Sequence[str]) -> list[Filling]:
    """Whole words in the place of a run, best first: each piece scored given those before it, the rest masked."""
    found = []
    for target in targets:
        filled = f"{text[: run.begin]}{target}{text[run.end :]}"
        encoded, place = _find_target(guesser.tokenizer, filled, run.begin, target)
        row, shift = _framed(guesser, encoded, place)
        pieces = [int(number) for number in encoded.ids[place.first : place.last]]
        masked = _with(row, place.first + shift, [guesser.tokenizer.mask_id] * len(pieces))
        rows = [_with(masked, place.first + shift, pieces[:count]) for count in range(len(pieces))]
        places = [place.first + shift + count for count in range(len(pieces))]
        log_probabilities = guesser.word_log_probabilities(rows, places)
        score = sum(float(line[piece]) for line, piece in zip(log_probabilities, pieces, strict=True))
        found.append(Filling(float(np.exp(score)), tuple(pieces), target, filled, truncated=any(row.truncated)))
    return sorted(found, key=lambda filling: -filling.score)


def _find_target(tokenizer: Tokenizer, text: str, begin: int, target: str) -> tuple[Encoded, Run]:
    """The text encoded, other masks in it read as such, and the tokens that spell the target standing at `begin`."""
    encoded = tokenizer.encode(text, parse_special_tokens=True)
    starts, ends = encoded.offsets[:, 0], encoded.offsets[:, 1]
    inside = np.flatnonzero((starts >= begin) & (ends <= begin + len(target)) & (ends > starts))
    if not len(inside):
        raise BertsmithError(f"the target {target!r} is no word of this tokenizer: it comes to nothing")
    ids = encoded.ids[inside]
    if np.any(ids == tokenizer.unknown_id) or np.any(ids == tokenizer.mask_id):
        raise BertsmithError(f"the target {target!r} cannot be spelled with this vocabulary")
    return encoded, _run(encoded, int(inside[0]), int(inside[-1]) + 1)


def _framed(guesser: Guesser, encoded: Encoded, run: Run) -> tuple[Row, int]:
    """A row with the run in it, and what must be added to a token's number to find it in the row.

    A text that is too long is read only round the run, and the row says so.
    """
    specials = sum(isinstance(part, int) for part in guesser.tokenizer.frame_ids.single)
    room = guesser.max_length - specials
    start = min(max(0, (run.first + run.last - room) // 2), max(0, len(encoded) - room))
    window = Encoded(*(part[start : start + room] for part in (encoded.ids, encoded.offsets, encoded.words)))
    row = guesser.tokenizer.frame(window, max_length=guesser.max_length)
    row = dataclasses.replace(row, truncated=(len(encoded) - len(window), 0))
    return row, int(np.flatnonzero(row.sequence_ids == 0)[0]) - start


def _with(row: Row, place: int, ids: Sequence[int]) -> Row:
    changed: NDArray[np.int32] = row.ids.copy()
    changed[place : place + len(ids)] = ids
    return dataclasses.replace(row, ids=changed)


def _filling(tokenizer: Tokenizer, text: str, run: Run, score: float, ids: tuple[int, ...], *, cut: bool) -> Filling:
    word = tokenizer.decode(ids).strip()
    sequence = f"{text[: run.begin]}{word}{text[run.end :]}"
    return Filling(float(np.exp(score)), ids, word, sequence, cut)
