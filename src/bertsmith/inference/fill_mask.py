"""Fill-mask: runs of mask tokens in a text, filled by beam search, or target words scored token by token."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.errors import BertsmithError
from bertsmith.inference.forward import LogitsQuery, ModelInput, TextModel, check_top_k, require_pipeline
from bertsmith.inference.predictions import Predictions
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Encoded, Row

BEAM = 16  # beam width for runs of several masks


@dataclass(frozen=True)
class MaskRun:
    """Adjacent masks: tokens `first` to `last` (exclusive), characters `start` to `end` of the text."""

    first: int
    last: int
    start: int
    end: int


class FillMaskPipeline(TextModel):
    """The fill-mask pipeline of `Predictor`."""

    def fill_mask(
        self, text: str, *, top_k: int = 5, targets: Sequence[str] | None = None, full_vocabulary: bool = False
    ) -> Predictions[Any]:
        """The most likely tokens for each mask of a text, best first: `{"score", "token", "token_str", "sequence"}`.

        Adjacent masks are filled together, as one word or phrase; `token` is then a list. With `targets`, these words
        are scored instead, whatever their number of tokens. A text with one run of masks gives one list; a text with
        several gives a list for each, with the other runs left masked.

        Special tokens are left out, and scores are probabilities over the remaining tokens. With `full_vocabulary` they
        are probabilities over the full vocabulary, special tokens included, as in transformers' pipeline.
        """
        require_pipeline(self.model, "fill-mask")
        check_top_k(top_k)
        if not isinstance(text, str):
            raise BertsmithError(f"fill_mask takes one text, not {type(text).__name__}: call it once for each text")
        self.check_texts(text.replace(self.tokenizer.id_to_token(self.tokenizer.mask_id), " "))
        results = [
            Predictions(
                _score_targets(self, text, run, targets, full_vocabulary=full_vocabulary)[:top_k]
                if targets
                else _beam_search(self, text, run, top_k=top_k, full_vocabulary=full_vocabulary)
            )
            for run in find_masks(self.tokenizer, text)
        ]
        return results[0] if len(results) == 1 else Predictions(results, group="mask")


def find_masks(tokenizer: Tokenizer, text: str) -> list[MaskRun]:
    """The runs of masks in a text; an error if it has none."""
    encoded = tokenizer.encode(text, parse_special_tokens=True)
    positions = np.flatnonzero(encoded.ids == tokenizer.mask_id)
    if not len(positions):
        mask = tokenizer.id_to_token(tokenizer.mask_id)
        raise BertsmithError(f"the text has no {mask}: write {mask} in place of the word to predict")
    runs = np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
    return [_run(encoded, int(run[0]), int(run[-1]) + 1) for run in runs]


def _run(encoded: Encoded, first: int, last: int) -> MaskRun:
    return MaskRun(first, last, int(encoded.offsets[first, 0]), int(encoded.offsets[last - 1, 1]))


def _beam_search(
    model: TextModel, text: str, run: MaskRun, *, top_k: int, full_vocabulary: bool
) -> list[dict[str, Any]]:
    """The best fillings of one run, filled from left to right."""
    tokenizer = model.tokenizer
    row, shift = _frame_around(model, tokenizer.encode(text, parse_special_tokens=True), run)
    beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for position in range(run.first, run.last):
        rows = [_with_ids(row, run.first + shift, ids) for _, ids in beams]
        log_probs = mask_log_probs(model, rows, [position + shift] * len(rows), full_vocabulary=full_vocabulary)
        best, tokens = log_probs.topk(min(max(BEAM, top_k), log_probs.shape[-1]))
        candidates = [
            (score + gain, (*ids, token))
            for (score, ids), gains, choices in zip(beams, best.tolist(), tokens.tolist(), strict=True)
            for gain, token in zip(gains, choices, strict=True)
            if gain > -np.inf  # special tokens and padding of the vocabulary
        ]
        beams = sorted(candidates, key=lambda beam: (-beam[0], beam[1]))[: max(BEAM, top_k)]
    return [_result(text, run, score, ids, _decode(tokenizer, ids), row) for score, ids in beams[:top_k]]


def _decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Tokens as text; padding of the vocabulary has none."""
    known = [number for number in ids if number < tokenizer.vocab_size]
    return tokenizer.decode(known, skip_special_tokens=False).strip()


def _score_targets(
    model: TextModel, text: str, run: MaskRun, targets: Sequence[str], *, full_vocabulary: bool
) -> list[dict[str, Any]]:
    """Target words in place of a run, best first: each token is scored given those before it, the rest masked."""
    scored = []
    for target in targets:
        encoded, span = _encode_target(model.tokenizer, text, run, target)
        row, shift = _frame_around(model, encoded, span)
        ids = [int(number) for number in encoded.ids[span.first : span.last]]
        masked = _with_ids(row, span.first + shift, [model.tokenizer.mask_id] * len(ids))
        rows = [_with_ids(masked, span.first + shift, ids[:count]) for count in range(len(ids))]
        positions = [span.first + shift + count for count in range(len(ids))]
        log_probs = mask_log_probs(model, rows, positions, full_vocabulary=full_vocabulary)
        score = sum(float(row_V[token]) for row_V, token in zip(log_probs, ids, strict=True))
        scored.append(_result(text, run, score, tuple(ids), target, row))
    return sorted(scored, key=lambda one: -one["score"])


def _encode_target(tokenizer: Tokenizer, text: str, run: MaskRun, target: str) -> tuple[Encoded, MaskRun]:
    """The text with the target in place of the run, and the tokens of the target."""
    encoded = tokenizer.encode(f"{text[: run.start]}{target}{text[run.end :]}", parse_special_tokens=True)
    starts, ends = encoded.offsets[:, 0], encoded.offsets[:, 1]
    inside = np.flatnonzero((starts >= run.start) & (ends <= run.start + len(target)) & (ends > starts))
    if not len(inside):
        raise BertsmithError(f"the target {target!r} has no tokens in this tokenizer: choose another word")
    ids = encoded.ids[inside]
    unknown = tokenizer.token_to_id(tokenizer.special_tokens.unknown or "")
    if np.any(ids == unknown) or np.any(ids == tokenizer.mask_id):
        raise BertsmithError(f"the target {target!r} cannot be encoded with this vocabulary: choose another word")
    return encoded, _run(encoded, int(inside[0]), int(inside[-1]) + 1)


def mask_log_probs(
    model: TextModel, rows: Sequence[Row], positions: Sequence[int], *, full_vocabulary: bool = False
) -> Tensor:
    """Log probabilities [rows, V] at one position of each row, of all tokens or of all but the special ones."""
    inputs = [ModelInput((row,), np.array([position])) for row, position in zip(rows, positions, strict=True)]
    query = LogitsQuery(require_pipeline(model.model, "fill-mask"))
    logits = torch.from_numpy(np.stack(model.backend.run(query, inputs)))
    if not full_vocabulary:
        logits[:, list(model.tokenizer.special_ids)] = -torch.inf
        logits[:, model.tokenizer.vocab_size :] = -torch.inf  # padding of the vocabulary
    return logits.log_softmax(-1)


def _frame_around(model: TextModel, encoded: Encoded, run: MaskRun) -> tuple[Row, int]:
    """A row that contains the run, and the offset from token indices of the text to positions in the row.

    Of a text that is too long the row has a window around the run, and counts the other tokens as truncated.
    """
    specials = sum(isinstance(part, int) for part in model.tokenizer.frame_ids.single)
    size = model.max_length - specials
    start = min(max(0, (run.first + run.last - size) // 2), max(0, len(encoded) - size))
    window = encoded.part(start, start + size)
    row = model.tokenizer.frame(window, max_length=model.max_length)
    row = dataclasses.replace(row, truncated=(len(encoded) - len(window), 0))
    return row, int(np.flatnonzero(row.sequence_ids == 0)[0]) - start


def _with_ids(row: Row, position: int, ids: Sequence[int]) -> Row:
    changed: NDArray[np.int32] = row.ids.copy()
    changed[position : position + len(ids)] = ids
    return dataclasses.replace(row, ids=changed)


def _result(text: str, run: MaskRun, log_prob: float, ids: tuple[int, ...], word: str, row: Row) -> dict[str, Any]:
    """The shape of transformers' fill-mask pipeline; `token` is a list for several tokens."""
    return {
        "score": float(np.exp(log_prob)),
        "token": ids[0] if len(ids) == 1 else list(ids),
        "token_str": word,
        "sequence": f"{text[: run.start]}{word}{text[run.end :]}",
        **({"truncated": True} if any(row.truncated) else {}),
    }
