"""Sentence pairs: the second segment follows the first or is random (P-BERT §3.1, A.2; create_pretraining_data.py)."""

# differs from the paper: no duplicates on disk and no truncation. Tokens that Google's code truncates start the next
# sample, so that every token is in one sample per epoch; the split and the second segment are drawn anew each epoch. A
# sample of one sentence is a single text without a label, where Google's code adds a random second segment, so that
# 58 % instead of half are random. A random segment is drawn uniformly from all sentences, not from all documents.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.packing.counter_random import Bits, bernoulli, mix_counters, to_range
from bertsmith.data.packing.document_stream import DocumentIndex, cut_evenly, cut_spans, split_spans
from bertsmith.data.packing.packing import Numbers, check_fraction, row_layout
from bertsmith.data.packing.sentence_pairs import SentencePairPacking, SplitSamples
from bertsmith.data.shards import Shards
from bertsmith.errors import DataError
from bertsmith.types import Frame

DRAWS, RUN = 8, 4  # random positions tried per segment, and consecutive sentences tried at each
REDRAWS = 2  # of a segment that must not end with a sentence but does


@dataclass(frozen=True, kw_only=True)
class Config:
    """Rows of sentence pairs."""

    labels: ClassVar[Mapping[str, str]] = {"next_sentence": "random"}  # by objective, the meaning of label 1
    min_documents: ClassVar[int] = 2

    random_next: float = 0.5  # fraction of pairs whose second segment comes from another document
    short_sequences: float = 0.1  # fraction of documents that are cut into shorter samples
    single_sentences: bool = False  # each segment is one sentence instead of as many as fit (P-RoBERTa §4.2)

    def __post_init__(self) -> None:
        check_fraction("random_next", self.random_next)
        check_fraction("short_sequences", self.short_sequences)

    def build(self, shards: Shards, *, frame: Frame, padding_id: int, seed: int, max_length: int) -> Pairs:
        layout = row_layout(shards, frame, max_length=max_length, padding_id=padding_id)
        index = DocumentIndex(shards)
        if self.random_next and len(index.documents) < 3:
            raise DataError(
                f"the {shards.split} split of {shards.folder} has only one document, so no second segment is from "
                "another: prepare more text (is there a blank line between documents?), or set packing.random_next=0"
            )
        return Pairs(self, shards, index, layout, seed=seed)


class Pairs(SentencePairPacking):
    """Second segments that follow the first, or come from another document."""

    objective, kind = "next_sentence", "pairs"

    def _cut(self, length: int) -> Numbers:
        """Sentences until the target length is reached; a sentence that exceeds `length` is cut."""
        index, bounds = self._index, self._index.document_tokens
        if self._config.single_sentences:
            first = np.repeat(index.documents[:-1], np.diff(index.documents))
            odd = (np.arange(len(first)) - first) % 2 == 1
            bounds = index.sentences[np.append(~odd, True)].astype(np.int64)
            return np.append(cut_evenly(bounds[:-1], bounds[1:], length), self._shards.tokens)
        short, lengths = self._short_documents(length)
        long_starts = cut_evenly(bounds[:-1][~short], bounds[1:][~short], length)
        starts, ends, document = split_spans(
            bounds[:-1][short], bounds[1:][short], length=length, sentences=index.sentences
        )
        targets = lengths[short][document]

        def next_end(position: Numbers, span: Numbers) -> Numbers:
            reached = np.minimum(position + targets[span], ends[span])
            sentence_end = index.sentences[index.sentence_at(reached, "left")].astype(np.int64)
            return np.minimum(sentence_end, position + length)

        short_starts, _ = cut_spans(starts, ends, next_end)
        return np.append(np.sort(np.concatenate([long_starts, short_starts])), self._shards.tokens)

    def _change_pairs(self, samples: SplitSamples) -> NDArray[np.bool_]:
        """Replaces the second segments of some pairs by random ones."""
        random = samples.is_pair & bernoulli(self._random_bits("next", samples.sample_id), self._config.random_next)
        samples.starts[random, 1], samples.lengths[random, 1] = _random_segments(
            self._index,
            exclude=self._index.document_of(samples.first[random] - 1),
            lengths=samples.lengths[random, 1],
            complete=samples.ends_complete[random],
            bits=self._random_bits("b", samples.sample_id[random]),
        )
        return random


def _random_segments(
    index: DocumentIndex, *, exclude: Numbers, lengths: Numbers, complete: NDArray[np.bool_], bits: Bits
) -> tuple[Numbers, Numbers]:
    """Start and length, for each text, of a segment of another document than `exclude` that ends like the true one.

    It starts with a sentence and, where `complete`, ends with one, else within one: if only true second segments ended
    with a sentence, the last token would reveal the label. It has `lengths` tokens, or the most that follow one of the
    sentences tried. (If each of these is longer than that, a complete one is cut.)
    """
    own = index.documents[exclude].astype(np.int64)
    own_count = index.documents[exclude + 1].astype(np.int64) - own
    others = len(index.sentences) - 1 - own_count
    first = to_range(mix_counters(bits[:, None], np.arange(DRAWS)), others[:, None])
    first += np.where(first >= own[:, None], own_count[:, None], 0)  # skips the own document
    last = index.documents[index.document_of(first) + 1].astype(np.int64) - 1
    result = np.empty_like(lengths), np.empty_like(lengths)
    # complete segments try more sentences: sums of sentence lengths rarely match
    for chosen, run, ends_complete in ((complete, RUN, True), (~complete, 1, False)):
        tried = np.minimum(first[chosen, :, None] + np.arange(run), last[chosen, :, None]).reshape(-1, DRAWS * run)
        ends = index.sentences[last[chosen].repeat(run, axis=1) + 1].astype(np.int64)
        result[0][chosen], result[1][chosen] = _longest(index, tried, ends, lengths[chosen], complete=ends_complete)
    return result


def _longest(
    index: DocumentIndex, sentences: Numbers, ends: Numbers, lengths: Numbers, *, complete: bool
) -> tuple[Numbers, Numbers]:
    """Start and length of the longest span up to `lengths` [P], from one of these sentences to `ends` [P, tries]."""
    starts = index.sentences[sentences].astype(np.int64)
    ends = np.minimum(starts + lengths[:, None], ends)
    stops = index.sentence_end(ends) if complete else ends.copy()
    every = np.arange(len(lengths))
    best = every, np.argmax(stops - starts, axis=1)
    for _ in range(0 if complete else REDRAWS):
        stops[best] -= index.sentence_end(stops[best]) == stops[best]
        best = every, np.argmax(stops - starts, axis=1)
    start, stop = starts[best], stops[best]
    return start, np.where(stop > start, stop, ends[best]) - start
