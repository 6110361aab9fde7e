"""The judge of all contestants: the same held-out text, the same hidden places, one loss for each word piece and byte.

A row is a stretch of one document in the tokenizer's frame of single texts. Of its word pieces 15 % are asked for:
80 % of these are masked, 10 % stay, 10 % are other ones. Unknown pieces are never asked for, since nobody knows how
many bytes they stand for. Or 15 % of the words are, all of their pieces masked: then nothing of a word is seen beside
the piece that is asked for, however a vocabulary cuts it. B rows, L places, R places that are asked for, V vocabulary.
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
from bertsmith.system.devices import choose_device
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.training.pretrain_data import PretrainData
from bertsmith.types import Batch, Row

RATE, MASKED, KEPT = 0.15, 0.8, 0.1
SHORTEST = 8  # word pieces of a row: fewer tell too little
AT_ONCE = 64  # rows
OBJECTIVE = "masked_lm"
HELD_OUT = "held-out"
CONTINUATION, SPACES = "##", ("▁", "Ġ")  # how vocabularies mark what is no text of a piece

Answer = Callable[[Batch], Tensor]  # a batch with places to the logits there [R, V]


@dataclass(frozen=True)
class Verdict:
    """What a model knows of held-out text."""

    nats_per_piece: float
    nats_per_byte: float
    accuracy: float


@dataclass(frozen=True)
class Judge:
    """Held-out rows with their questions."""

    batches: tuple[Batch, ...]
    bytes: int  # of the text of all pieces that are asked for
    pieces: int
    fingerprint: str  # of rows and questions: equal ones can be compared piece by piece

    @classmethod
    def of(
        cls, data: PretrainData, *, length: int, rows: int, seed: int, words: bool = False, split: str = HELD_OUT
    ) -> Judge:
        """Rows from all over the held-out documents; `words`: whole ones are hidden. Or from those of training."""
        tokenizer, draw = data.tokenizer, np.random.default_rng(seed)
        ask = (
            partial(_ask_words, continues=_continues(tokenizer))
            if words
            else partial(_ask, ordinary=_ordinary(tokenizer))
        )
        asked = [ask(row, tokenizer, draw) for row in _rows(data, split, length=length, count=rows)]
        asked = [one for one in asked if len(one[1])]
        if not asked:
            raise DataError(f"{data.folder} holds too little text out to be judged by: prepare it with a larger share")
        sizes, found = piece_bytes(tokenizer), hashlib.sha256()
        for row, places, answers in asked:
            for array in (row.ids, places, answers):
                found.update(array.astype(np.int64).tobytes())
        answers = np.concatenate([one[2] for one in asked])
        batches = [_batch(asked[first : first + AT_ONCE], length, tokenizer) for first in range(0, len(asked), AT_ONCE)]
        return cls(tuple(batches), int(sizes[answers].sum()), len(answers), found.hexdigest()[:16])

    @torch.no_grad()
    def hear(self, answer: Answer, device: torch.device) -> Verdict:
        """The verdict on whoever answers."""
        nats, right = torch.zeros(2, dtype=torch.float64)
        for batch in self.batches:
            there = batch.to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                logits_RV = answer(there)
            labels_R = there.labels[OBJECTIVE]
            nats += F.cross_entropy(logits_RV.float(), labels_R, reduction="sum").double().cpu()
            right += (logits_RV.argmax(-1) == labels_R).sum().cpu()
        return Verdict(float(nats) / self.pieces, float(nats) / self.bytes, float(right) / self.pieces)

    def hear_model(self, model: Model, device: torch.device) -> Verdict | None:
        """The verdict on a model of ours; none where it was not taught to guess words from both sides."""
        if OBJECTIVE not in model.objectives:
            return None
        was_training = model.training
        model.eval()
        found = self.hear(lambda batch: model.predict(batch, OBJECTIVE), device)
        model.train(was_training)
        return found


def document_bounds(shards: Shards) -> NDArray[np.int64]:
    """Where documents begin among the tokens of a split, and where the last one ends [documents + 1]."""
    parts = [part.token_base + part.sentence_starts.astype(np.int64)[part.document_starts] for part in shards.parts]
    return np.concatenate([*(bounds[:-1] for bounds in parts), [shards.tokens]])


def piece_bytes(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """The bytes of text that each token stands for, spaces not counted [V]."""
    found = []
    for token in tokenizer.tokens():
        text = token.removeprefix(CONTINUATION) if len(token) > len(CONTINUATION) else token
        for space in SPACES:
            text = text.replace(space, "")
        # a character of a byte-level vocabulary is one byte, whatever it looks like
        found.append(len(text) if tokenizer.kind == "byte_bpe" else len(text.encode()))
    return np.array(found, np.int64)


def _rows(data: PretrainData, split: str, *, length: int, count: int) -> list[Row]:
    """Stretches of documents, as many as are asked for, at even distances."""
    shards, single = Shards.open(data.folder, split), data.tokenizer.frame_ids.single
    room = length - (len(single) - 1)
    bounds = document_bounds(shards)
    starts = [np.arange(begin, end, room) for begin, end in pairwise(bounds)]
    ends = [np.append(some[1:], end) for some, end in zip(starts, bounds[1:], strict=True)]
    stretches = np.stack([np.concatenate([[], *starts]), np.concatenate([[], *ends])], axis=1).astype(np.int64)
    stretches = stretches[stretches[:, 1] - stretches[:, 0] >= SHORTEST]
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


def _ordinary(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """The tokens that another word is drawn from."""
    return np.setdiff1d(np.arange(tokenizer.vocab_size), list(tokenizer.special_ids))


def _ask(
    row: Row, tokenizer: Tokenizer, draw: np.random.Generator, *, ordinary: NDArray[np.int64]
) -> tuple[Row, NDArray[np.int64], NDArray[np.int64]]:
    """The row with some pieces hidden, where they are and what they were."""
    candidates = (row.sequence_ids == 0) & (row.ids != tokenizer.unknown_id)
    places = np.flatnonzero(candidates & (draw.random(len(row)) < RATE))
    answers, fates = row.ids[places].astype(np.int64), draw.random(len(places))
    other = ordinary[draw.integers(len(ordinary), size=len(places))]
    ids = row.ids.copy()
    ids[places] = np.where(fates < MASKED, tokenizer.mask_id, np.where(fates < MASKED + KEPT, answers, other))
    return replace(row, ids=ids), places, answers


def _continues(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Which tokens go on with a word [V]."""
    found = tokenizer.is_continuation()
    if found is None:
        raise ConfigError(f"a {tokenizer.kind} tokenizer does not say which tokens go on with a word")
    return found


def _ask_words(
    row: Row, tokenizer: Tokenizer, draw: np.random.Generator, *, continues: NDArray[np.bool_]
) -> tuple[Row, NDArray[np.int64], NDArray[np.int64]]:
    """The row with some words masked; one that the stretch before has begun is not asked for."""
    word = np.cumsum(~continues[row.ids])
    words = int(word[-1]) + 1
    unknown = np.bincount(word[(row.sequence_ids != 0) | (row.ids == tokenizer.unknown_id)], minlength=words) > 0
    chosen = (draw.random(words) < RATE) & ~unknown
    places = np.flatnonzero(chosen[word])
    ids = row.ids.copy()
    ids[places] = tokenizer.mask_id
    return replace(row, ids=ids), places, row.ids[places].astype(np.int64)


def judge_models(
    models: Sequence[Candidate], data: Path, *, device: str, length: int, rows: int, split: str = HELD_OUT
) -> str:
    """A table of verdicts on models that read by the tokenizer of these shards, on their held-out text.

    Or on what they have read: how much better they know it is what they know by heart.
    """
    opened, there = PretrainData.open(data), torch.device(choose_device(device))
    asked_for = {"length": length, "rows": rows, "seed": 0, "split": split}
    judges = [Judge.of(opened, **asked_for, words=words) for words in (False, True)]
    told = ["| | pieces hidden: nats/piece | nats/byte | right | words hidden: nats/piece | nats/byte | right |"]
    told.append("|---" * 7 + "|")
    for one in models:
        if one.fresh or one.bilstm:
            raise ConfigError(f"{one.name}: a model is judged as it lies in its folder")
        model, tokenizer, _ = open_model(one.folder)
        if tokenizer.fingerprint != opened.tokenizer.fingerprint:
            raise ConfigError(f"{one.name} reads by another tokenizer than {data} was prepared by")
        cells = [one.name]
        for judge in judges:
            verdict = judge.hear_model(model.to(there), there)
            if verdict is None:
                raise ConfigError(f"{one.name} was not taught to guess hidden words")
            cells += [f"{verdict.nats_per_piece:.3f}", f"{verdict.nats_per_byte:.3f}", f"{verdict.accuracy:.1%}"]
        told.append(f"| {' | '.join(cells)} |")
    asked = " and ".join(f"{judge.pieces:,} ({judge.fingerprint})" for judge in judges)
    return "\n".join([*told, f"word pieces that are asked for: {asked}"])


def _batch(asked: list[tuple[Row, Any, Any]], length: int, tokenizer: Tokenizer) -> Batch:
    rows, places, answers = zip(*asked, strict=True)
    slots = sum(map(len, places))
    return collate(
        rows,
        length=length,
        padding_id=tokenizer.padding_id,
        shape=(len(rows), len(rows), slots),
        labels={OBJECTIVE: answers},
        indices={OBJECTIVE: places},
    )
