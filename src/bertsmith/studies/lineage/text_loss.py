"""Nats per byte of the same held-out texts for every model, where its objective gives a probability of text.

Likelihood: every token is predicted from those before it (GPT-1, ULMFiT), or by each direction of a bidirectional
language model, of which the mean is taken (ELMo). A word outside of a vocabulary costs its unknown token plus ln 256
for each of its bytes, so that the sum is the length of a code for the text. Masked: 15 % of the tokens are predicted
from both sides, as in pre-training: not a likelihood, and comparable with other masked models only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.data.collate import collate
from bertsmith.inference.predictor import Predictor
from bertsmith.objectives.objective import at_least_float32
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Batch, Encoded, Row

Kind = Literal["likelihood", "likelihood of both directions", "masked"]
CAUSAL, BOTH, MASKED = "causal_lm", "bidirectional_lm", "masked_lm"
BYTE = math.log(256)  # nats of one byte of an unknown word
MASK_RATE, MASK_SHARE, KEEP_SHARE = 0.15, 0.8, 0.1
WINDOW = 128  # tokens of a row
ROWS = 16  # of a batch


@dataclass(frozen=True)
class TextLoss:
    """The loss of a model on the held-out texts."""

    kind: Kind
    nats_per_byte: float
    tokens: int  # that were predicted
    unknown_bytes: float  # share of the bytes in words outside of the vocabulary


def text_loss(predictor: Predictor, texts: Sequence[str]) -> dict[str, object] | None:
    """The loss of a pre-trained model; None if none of its objectives predicts tokens of text."""
    heads = predictor.model.objectives
    if CAUSAL in heads:
        return asdict(_causal(predictor, texts))
    if BOTH in heads:
        return asdict(_both_directions(predictor, texts))
    if MASKED in heads:
        return asdict(_masked(predictor, texts))
    return None


@torch.no_grad()
def token_logits(predictor: Predictor, batch: Batch, head: str) -> Tensor:
    """The logits of a head at its indices, or at every token, in float32; on a GPU computed in bfloat16."""
    batch = batch.to(predictor.device)
    with torch.autocast(torch.device(predictor.device).type, torch.bfloat16, enabled=predictor.device == "cuda"):
        logits = predictor.model.predict(batch, head)
    return at_least_float32(logits)


class _Sum:
    """Nats and bytes of predicted tokens; an unknown word costs its spelling too."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.nats, self.bytes, self.unknown_bytes, self.tokens = tokenizer, 0.0, 0, 0, 0

    def add(self, ids: NDArray[np.int64], sizes: NDArray[np.int64], nats: NDArray[np.float64]) -> None:
        """Tokens with their bytes and nats."""
        out_of_vocabulary = int(sizes[self.tokenizer.is_unknown(ids)].sum())
        self.nats += float(nats.sum()) + BYTE * out_of_vocabulary
        self.bytes, self.tokens = self.bytes + int(sizes.sum()), self.tokens + len(ids)
        self.unknown_bytes += out_of_vocabulary

    def loss(self, kind: Kind) -> TextLoss:
        size = max(self.bytes, 1)
        return TextLoss(kind, self.nats / size, self.tokens, self.unknown_bytes / size)


def token_bytes(text: str, encoded: Encoded) -> NDArray[np.int64]:
    """The bytes of each token in UTF-8 [L], without white space."""
    pieces = (text[start:end] for start, end in encoded.offsets.tolist())
    return np.array([len("".join(piece.split()).encode("utf-8", "replace")) for piece in pieces], np.int64)


def _causal(predictor: Predictor, texts: Sequence[str]) -> TextLoss:
    total = _Sum(predictor.tokenizer)
    for text, scored in zip(texts, predictor.score(list(texts)), strict=True):
        encoded = predictor.tokenizer.encode(text)
        nats = np.array([np.nan if one["surprisal"] is None else one["surprisal"] for one in scored["tokens"]])
        known = ~np.isnan(nats)
        total.add(encoded.ids[known].astype(np.int64), token_bytes(text, encoded)[known], nats[known])
    return total.loss("likelihood")


def _both_directions(predictor: Predictor, texts: Sequence[str]) -> TextLoss:
    """Tokens inside of a window are predicted twice: from those before them and from those after them."""
    total, padding_id = _Sum(predictor.tokenizer), predictor.tokenizer.padding_id
    for rows, sizes in _batches(predictor, texts):
        batch = collate(rows, length=WINDOW, padding_id=padding_id)
        inside = np.concatenate([index * WINDOW + np.arange(1, len(row) - 1) for index, row in enumerate(rows)])
        labels = batch.input_ids.flatten()[torch.from_numpy(inside)]
        size_T = np.concatenate([np.pad(size, (0, WINDOW - len(size))) for size in sizes])
        forward_TV, backward_TV = token_logits(predictor, batch, BOTH).chunk(2)
        for logits_TV, before in ((forward_TV, inside - 1), (backward_TV, inside + 1)):
            total.add(labels.numpy(), size_T[inside], _nats(logits_TV[torch.from_numpy(before)], labels))
    return total.loss("likelihood of both directions")


def _nats(logits: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """The cross entropy of each label."""
    losses: NDArray[np.float64] = (
        F.cross_entropy(logits, labels.to(logits.device), reduction="none").double().cpu().numpy()
    )
    return losses


def _masked(predictor: Predictor, texts: Sequence[str]) -> TextLoss:
    tokenizer, total = predictor.tokenizer, _Sum(predictor.tokenizer)
    generator, ordinary = np.random.default_rng(0), ordinary_ids(tokenizer)
    for rows, sizes in _batches(predictor, texts):
        masked = [mask_tokens(row, tokenizer, generator, ordinary=ordinary) for row in rows]
        kept = [(*one, size) for one, size in zip(masked, sizes, strict=True) if len(one[1])]
        if not kept:
            continue
        inputs, positions, labels, size = zip(*kept, strict=True)
        shape = (len(kept), len(kept), sum(map(len, positions)))
        read: dict[str, Any] = {"indices": {MASKED: positions}, "shape": shape}
        batch = collate(inputs, length=WINDOW, padding_id=tokenizer.padding_id, **read)
        label_R = np.concatenate(labels)
        size_R = np.concatenate([one[at] for one, at in zip(size, positions, strict=True)])
        total.add(label_R, size_R, _nats(token_logits(predictor, batch, MASKED), torch.from_numpy(label_R)))
    return total.loss("masked")


def _batches(predictor: Predictor, texts: Sequence[str]) -> Iterator[tuple[list[Row], list[NDArray[np.int64]]]]:
    """Windows of the texts with their special tokens, and the bytes of each token; those of special tokens are 0."""
    rows, sizes = list[Row](), list[NDArray[np.int64]]()
    tokenizer = predictor.tokenizer
    specials = sum(isinstance(part, int) for part in tokenizer.frame_ids.single)
    room = WINDOW - specials
    for text in texts:
        encoded = tokenizer.encode(text)
        size = token_bytes(text, encoded)
        for start in range(0, len(encoded), room):
            row = tokenizer.frame(encoded.part(start, start + room), max_length=WINDOW)
            of_row = np.zeros(len(row), np.int64)
            of_row[row.sequence_ids == 0] = size[start : start + room]
            if len(row) > specials + 2:
                rows.append(row)
                sizes.append(of_row)
            if len(rows) == ROWS:
                yield rows, sizes
                rows, sizes = [], []
    if rows:
        yield rows, sizes


def ordinary_ids(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Token ids from which random replacements are drawn."""
    return np.setdiff1d(np.arange(tokenizer.vocab_size), list(tokenizer.special_ids))


def mask_tokens(
    row: Row, tokenizer: Tokenizer, generator: np.random.Generator, *, ordinary: NDArray[np.int64]
) -> tuple[Row, NDArray[np.int64], NDArray[np.int64]]:
    """The row with 15 % of its tokens masked, unchanged or replaced (80/10/10), their positions and their labels."""
    candidates = (row.sequence_ids == 0) & ~tokenizer.is_unknown(row.ids)
    positions = np.flatnonzero(candidates & (generator.random(len(row)) < MASK_RATE))
    labels, draws = row.ids[positions].astype(np.int64), generator.random(len(positions))
    other = ordinary[generator.integers(len(ordinary), size=len(positions))]
    ids = row.ids.copy()
    ids[positions] = np.where(
        draws < MASK_SHARE, tokenizer.mask_id, np.where(draws < MASK_SHARE + KEEP_SHARE, labels, other)
    )
    return replace(row, ids=ids), positions, labels
