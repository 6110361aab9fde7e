"""Two consecutive segments of one document, in order or swapped (P-ALBERT §3.1)."""

# differs from the paper: no duplicates on disk and no truncation. A sample is as many complete sentences as fit, and
# the next sample continues with the following one: every token is in one sample per epoch. A segment that is cut within
# a sentence would reveal the order by its start or end; Google's code instead truncates both segments at random after
# swapping them. A sample of one sentence, or a piece of a sentence that is longer than a row, is a single text without
# a label, where Google's code adds a random second segment.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.packing.counter_random import bernoulli
from bertsmith.data.packing.document_stream import DocumentIndex, Starts, boundary_before, cut_spans, split_spans
from bertsmith.data.packing.packing import Numbers, check_fraction, row_layout
from bertsmith.data.packing.sentence_pairs import SentencePairPacking, SplitSamples
from bertsmith.data.shards import Shards
from bertsmith.types import Frame


@dataclass(frozen=True, kw_only=True)
class Config:
    """Rows of two segments of one document."""

    labels: ClassVar[Mapping[str, str]] = {"sentence_order": "swapped"}  # by objective, the meaning of label 1

    swapped: float = 0.5  # fraction of pairs whose segments are swapped
    short_sequences: float = 0.1  # fraction of documents that are cut into shorter samples

    def __post_init__(self) -> None:
        check_fraction("swapped", self.swapped)
        check_fraction("short_sequences", self.short_sequences)

    def build(self, shards: Shards, *, frame: Frame, padding_id: int, seed: int, max_length: int) -> OrderedPairs:
        layout = row_layout(shards, frame, max_length=max_length, padding_id=padding_id)
        return OrderedPairs(self, shards, DocumentIndex(shards), layout, seed=seed)


class OrderedPairs(SentencePairPacking):
    """Complete sentences, split into two segments that may be swapped."""

    objective, kind = "sentence_order", "ordered_pairs"

    def _cut(self, length: int) -> Numbers:
        """Complete sentences until the target length is reached, in half of the documents from the end backwards.

        A sentence that does not fit starts the next sample: with all documents cut forwards, first segments would be
        longer than second ones.
        """
        sentences, bounds = self._index.sentences, self._index.document_tokens
        short, lengths = self._short_documents(length)
        targets = np.where(short, lengths, length)
        backward = bernoulli(self._random_bits("back", np.arange(len(targets))), 0.5)
        forward = bounds[:-1][~backward], bounds[1:][~backward], targets[~backward]
        starts, _ = _cut_sentences(sentences, *forward, length=length)
        total = self._shards.tokens
        mirrored = (total - sentences[::-1].astype(np.int64)).astype(sentences.dtype)
        reverse = total - bounds[1:][backward][::-1], total - bounds[:-1][backward][::-1], targets[backward][::-1]
        _, mirrored_ends = _cut_sentences(mirrored, *reverse, length=length)
        return np.append(np.sort(np.concatenate([starts, total - mirrored_ends])), total)

    def _change_pairs(self, samples: SplitSamples) -> NDArray[np.bool_]:
        """Swaps the segments of some pairs."""
        swapped = samples.is_pair & bernoulli(self._random_bits("order", samples.sample_id), self._config.swapped)
        for values in (samples.starts, samples.lengths):
            values[swapped] = values[swapped, ::-1]
        return swapped


def _cut_sentences(
    sentences: Starts, starts: Numbers, ends: Numbers, targets: Numbers, *, length: int
) -> tuple[Numbers, Numbers]:
    """Starts and ends of the samples of documents; pieces of a sentence longer than `length` are samples of their own.

    `sentences`: the start of each sentence, and the end of the last.
    """

    def boundary_after(position: Numbers, side: Literal["left", "right"]) -> Numbers:
        """The first sentence boundary at or after each position; with `right`, strictly after it."""
        return sentences[np.searchsorted(sentences, position.astype(sentences.dtype), side)].astype(np.int64)

    starts, ends, document = split_spans(starts, ends, length=length, sentences=sentences)
    targets = targets[document]

    def next_end(position: Numbers, span: Numbers) -> Numbers:
        reached = np.minimum(position + targets[span], ends[span])
        fitting = boundary_before(sentences, np.minimum(position + length, ends[span]))
        complete = np.minimum(boundary_after(reached, "left"), fitting)
        # the rest of a sentence that started in the sample before
        within = boundary_before(sentences, position) < position
        piece = np.minimum(boundary_after(position, "right"), position + length)
        return np.where(within | (complete <= position), piece, complete)

    return cut_spans(starts, ends, next_end)
