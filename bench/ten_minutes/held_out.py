"""Held-out evaluation of all contestants: the same text, the same masked positions, loss per word piece and per byte.

A row is a span of one document in the tokenizer's single-text template. 15 % of its word pieces are predicted: 80 % of
these are masked, 10 % unchanged, 10 % replaced by a random token. Unknown pieces are never predicted, since the number
of bytes they stand for is not known. With whole-word masking, 15 % of the words are predicted and all of their pieces
are masked, so that no piece of a predicted word is visible whatever the vocabulary. Causal language models predict
every piece of the same rows from the pieces before it. B rows, L positions, R predicted positions, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.data.collate import collate
from bertsmith.data.shards import Shards
from bertsmith.errors import ConfigError, DataError
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_model
from bertsmith.studies.ablations import Candidate
from bertsmith.studies.lineage.text_loss import MASK_RATE, mask_tokens, ordinary_ids
from bertsmith.system.devices import choose_device
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.training.pretrain_data import PretrainData
from bertsmith.types import Batch, Row

MIN_PIECES = 8  # of a row; shorter ones carry too little signal
BATCH_SIZE = 64  # rows
OBJECTIVE, CAUSAL = "masked_lm", "causal_lm"
HELD_OUT = "held-out"
CONTINUATION, SPACES = "##", ("▁", "Ġ", "</w>")  # markers of a vocabulary that are not text

LogitsFn = Callable[[Batch], Tensor]  # batch to logits at its label positions [R, V]
# the row as the model reads it, the positions of its logits and their labels
MaskRow = Callable[[Row, Tokenizer, np.random.Generator], tuple[Row, NDArray[np.int64], NDArray[np.int64]]]


@dataclass(frozen=True)
class HeldOutScores:
    """Loss and accuracy on held-out text."""

    nats_per_piece: float
    nats_per_byte: float
    accuracy: float


@dataclass(frozen=True)
class HeldOutEvaluator:
    """Held-out rows with masked positions and labels."""

    batches: tuple[Batch, ...]
    bytes: int  # of text in all predicted pieces
    pieces: int
    fingerprint: str  # of rows and masks: results with equal fingerprints are comparable
    objective: str = OBJECTIVE

    @classmethod
    def of(
        cls,
        data: PretrainData,
        *,
        length: int,
        rows: int,
        seed: int,
        words: bool = False,
        split: str = HELD_OUT,
        objective: str = OBJECTIVE,
    ) -> HeldOutEvaluator:
        """Rows spread evenly over the documents of `split`; `words`: whole-word masking."""
        tokenizer, generator = data.tokenizer, np.random.default_rng(seed)
        mask_row: MaskRow
        if objective == CAUSAL:
            mask_row = _next_pieces
        elif words:
            mask_row = partial(_mask_words, continues=_continues(tokenizer))
        else:
            mask_row = partial(mask_tokens, ordinary=ordinary_ids(tokenizer))
        examples = [mask_row(row, tokenizer, generator) for row in _rows(data, split, length=length, count=rows)]
        examples = [example for example in examples if len(example[1])]
        if not examples:
            raise DataError(
                f"{data.folder} has too little held-out text to evaluate on: prepare it with a larger --held-out"
            )
        byte_counts, digest = piece_bytes(tokenizer), hashlib.sha256()
        for row, positions, labels in examples:
            for array in (row.ids, positions, labels):
                digest.update(array.astype(np.int64).tobytes())
        labels = np.concatenate([example[2] for example in examples])
        batches = [
            _batch(examples[first : first + BATCH_SIZE], length, tokenizer, objective)
            for first in range(0, len(examples), BATCH_SIZE)
        ]
        return cls(tuple(batches), int(byte_counts[labels].sum()), len(labels), digest.hexdigest()[:16], objective)

    @torch.no_grad()
    def score_logits(self, logits_fn: LogitsFn, device: torch.device) -> HeldOutScores:
        """Scores of a function that computes logits."""
        nats, right = torch.zeros(2, dtype=torch.float64)
        for batch in self.batches:
            device_batch = batch.to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                logits_RV = logits_fn(device_batch)
            labels_R = device_batch.labels[self.objective]
            nats += F.cross_entropy(logits_RV.float(), labels_R, reduction="sum").double().cpu()
            right += (logits_RV.argmax(-1) == labels_R).sum().cpu()
        return HeldOutScores(float(nats) / self.pieces, float(nats) / self.bytes, float(right) / self.pieces)

    def evaluate_model(self, model: Model, device: torch.device) -> HeldOutScores | None:
        """Scores of a bertsmith model; None without a head for this objective."""
        if self.objective not in model.objectives:
            return None
        was_training = model.training
        model.eval()
        result = self.score_logits(lambda batch: model.predict(batch, self.objective), device)
        model.train(was_training)
        return result


def document_bounds(shards: Shards) -> NDArray[np.int64]:
    """Token offsets at which the documents of a split begin, and the end of the last one [documents + 1]."""
    parts = [part.token_base + part.sentence_starts.astype(np.int64)[part.document_starts] for part in shards.parts]
    return np.concatenate([*(bounds[:-1] for bounds in parts), [shards.tokens]])


def piece_bytes(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Bytes of text per token, without spaces [V]."""
    result = []
    for token in tokenizer.tokens():
        text = token.removeprefix(CONTINUATION) if len(token) > len(CONTINUATION) else token
        for space in SPACES:
            text = text.replace(space, "")
        # one character of a byte-level vocabulary is one byte
        result.append(len(text) if tokenizer.kind == "byte_bpe" else len(text.encode()))
    return np.array(result, np.int64)


def _rows(data: PretrainData, split: str, *, length: int, count: int) -> list[Row]:
    """`count` document spans, evenly spaced."""
    shards, single = Shards.open(data.folder, split), data.tokenizer.frame_ids.single
    room = length - (len(single) - 1)
    bounds = document_bounds(shards)
    starts = [np.arange(begin, end, room) for begin, end in pairwise(bounds)]
    ends = [np.append(some[1:], end) for some, end in zip(starts, bounds[1:], strict=True)]
    stretches = np.stack([np.concatenate([[], *starts]), np.concatenate([[], *ends])], axis=1).astype(np.int64)
    stretches = stretches[stretches[:, 1] - stretches[:, 0] >= MIN_PIECES]
    chosen = np.linspace(0, len(stretches) - 1, min(count, len(stretches))).round().astype(np.int64)
    return [_framed(shards.read(begin, end - begin), single) for begin, end in stretches[chosen]]


def _framed(tokens: NDArray[Any], single: tuple[Any, ...]) -> Row:
    parts = [tokens.astype(np.int32) if part == "a" else np.array([part], np.int32) for part in single]
    texts = [np.full(len(ids), 0 if part == "a" else -1, np.int8) for part, ids in zip(single, parts, strict=True)]
    size = sum(map(len, parts))
    return Row(
        ids=np.concatenate(parts),
        segment_ids=np.zeros(size, np.uint8),
        sequence_ids=np.concatenate(texts),
        offsets=np.zeros((size, 2), np.int32),
        words=np.zeros(size, np.int32),
    )


def _next_pieces(
    row: Row, tokenizer: Tokenizer, generator: np.random.Generator
) -> tuple[Row, NDArray[np.int64], NDArray[np.int64]]:
    """The row, the positions before its pieces and the pieces; the first has none before it without a start token."""
    predicted = (row.sequence_ids == 0) & (row.ids != tokenizer.unknown_id)
    positions = np.flatnonzero(predicted[1:])
    return row, positions, row.ids[positions + 1].astype(np.int64)


def _continues(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Whether each token continues a word [V]."""
    result = tokenizer.is_continuation()
    if result is None:
        raise ConfigError(f"a {tokenizer.kind} tokenizer does not mark tokens that continue a word")
    return result


def _mask_words(
    row: Row, tokenizer: Tokenizer, generator: np.random.Generator, *, continues: NDArray[np.bool_]
) -> tuple[Row, NDArray[np.int64], NDArray[np.int64]]:
    """The row with masked words; a word begun in the previous span is not masked."""
    word = np.cumsum(~continues[row.ids])
    words = int(word[-1]) + 1
    unknown = np.bincount(word[(row.sequence_ids != 0) | (row.ids == tokenizer.unknown_id)], minlength=words) > 0
    chosen = (generator.random(words) < MASK_RATE) & ~unknown
    positions = np.flatnonzero(chosen[word])
    ids = row.ids.copy()
    ids[positions] = tokenizer.mask_id
    return replace(row, ids=ids), positions, row.ids[positions].astype(np.int64)


def evaluate_models(
    models: Sequence[Candidate], data: Path, *, device: str, length: int, rows: int, split: str = HELD_OUT
) -> str:
    """Table of held-out scores of models that share the tokenizer of these shards.

    With `split="train"`, scores on training text: the difference from held-out text measures memorisation.
    """
    opened, target = PretrainData.open(data), torch.device(choose_device(device))
    settings = {"length": length, "rows": rows, "seed": 0, "split": split}
    evaluators = [HeldOutEvaluator.of(opened, **settings, words=words) for words in (False, True)]
    lines = ["| | pieces masked: nats/piece | nats/byte | accuracy | words masked: nats/piece | nats/byte | accuracy |"]
    lines.append("|---" * 7 + "|")
    for candidate in models:
        if candidate.fresh or candidate.bilstm:
            raise ConfigError(f"{candidate.name}: only saved models can be evaluated")
        model, tokenizer, _ = open_model(candidate.folder)
        if tokenizer.fingerprint != opened.tokenizer.fingerprint:
            raise ConfigError(f"{candidate.name} has another tokenizer than {data}")
        cells = [candidate.name]
        for evaluator in evaluators:
            scores = evaluator.evaluate_model(model.to(target), target)
            if scores is None:
                raise ConfigError(f"{candidate.name} has no masked language modelling head")
            cells += [f"{scores.nats_per_piece:.3f}", f"{scores.nats_per_byte:.3f}", f"{scores.accuracy:.1%}"]
        lines.append(f"| {' | '.join(cells)} |")
    counts = " and ".join(f"{evaluator.pieces:,} ({evaluator.fingerprint})" for evaluator in evaluators)
    return "\n".join([*lines, f"predicted word pieces: {counts}"])


def _batch(examples: list[tuple[Row, Any, Any]], length: int, tokenizer: Tokenizer, objective: str) -> Batch:
    rows, positions, labels = zip(*examples, strict=True)
    slots = sum(map(len, positions))
    return collate(
        rows,
        length=length,
        padding_id=tokenizer.padding_id,
        shape=(len(rows), len(rows), slots),
        labels={objective: labels},
        indices={objective: positions},
    )
