"""The data types that pass between packages; imports torch for type checking only."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

# What the vector of a token depends on: all tokens of its text; it and those before it; it and those after it; two
# halves, one of each of these kinds; or it alone
Direction = Literal["both", "forward", "backward", "forward_and_backward", "none"]
IGNORE_INDEX = -100  # the label of a token or text that has no label
# The logits [words, K] of each of some sequences -> the class of each word [words], and all probabilities [words, K].
SequenceDecoder = Callable[[Sequence[NDArray[np.float32]]], list[tuple[NDArray[np.int64], NDArray[np.float64]]]]


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus."""

    text: str
    source: str = ""  # file:line
    title: str = ""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text as token ids, without special tokens. T = number of tokens."""

    ids: NDArray[np.int32]  # [T]
    offsets: NDArray[np.int32]  # [T, 2] start and end of each token in the characters of the original text
    words: NDArray[np.int32]  # [T] index of each token's word
    characters: NDArray[np.int16] | None = None  # [T, C] spelling of each token, of tokenizers that spell

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, begin: int, end: int) -> Encoded:
        """The tokens from `begin` to `end`."""
        characters = None if self.characters is None else self.characters[begin:end]
        return Encoded(self.ids[begin:end], self.offsets[begin:end], self.words[begin:end], characters)


@dataclass(frozen=True, slots=True)
class Row:
    """One or two texts with special tokens and without padding. L = number of tokens."""

    ids: NDArray[np.int32]  # [L]
    segment_ids: NDArray[np.uint8]  # [L] 0 for the first text and its special tokens, 1 for the second
    sequence_ids: NDArray[np.int8]  # [L] 0 first text, 1 second text, -1 special token
    offsets: NDArray[np.int32]  # [L, 2] into the text given by `sequence_ids`; (0, 0) for special tokens
    words: NDArray[np.int32]  # [L] word index within its text; -1 for special tokens
    truncated: tuple[int, int] = (0, 0)  # tokens of the first and the second text that did not fit
    characters: NDArray[np.int16] | None = None  # [L, C] spelling of each token, of tokenizers that spell

    def __len__(self) -> int:
        return len(self.ids)


Slot = Literal["a", "b"]


@dataclass(frozen=True, slots=True)
class Frame:
    """The special tokens around one or two texts, e.g. `([CLS], "a", [SEP], "b", [SEP])`, as ids and text slots."""

    single: tuple[int | Slot, ...]
    pair: tuple[int | Slot, ...]
    pair_segments: tuple[int, ...] = field(default=())  # segment of each part of `pair`; all 0 if empty


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The properties of a tokenizer that masking needs. V = number of tokens."""

    size: int  # number of tokens; a model's embedding table may be larger
    mask_id: int | None = None
    end_id: int | None = None  # the token after a text
    special_ids: tuple[int, ...] = ()
    is_continuation: NDArray[np.bool_] | None = None  # [V] True for tokens that continue a word (`##ing`)
    counts: NDArray[np.int64] | None = None  # [V] occurrences in the training text; only for objectives that read them


# Tensor shapes: B rows, L tokens in a row, C characters of a word, N texts, S sequences, R selected tokens, D width,
# H heads.


@dataclass(frozen=True)
class Batch:
    """Rows of constant shape. A row holds padding and one text, or several that do not attend to each other.

    A text is one `Row`: its tokens are contiguous and share one number in `sample_ids`. They share one number in
    `document_ids` too, unless the text holds several documents that do not attend to each other.
    """

    input_ids: Tensor  # [B, L] int64
    position_ids: Tensor  # [B, L] int64 counted from 0 within each text
    segment_ids: Tensor  # [B, L] int64
    document_ids: Tensor  # [B, L] int32: tokens of a row attend to each other exactly where equal; 0 = padding
    special_mask: Tensor  # [B, L] bool: special tokens and padding, which are never corrupted
    sample_ids: Tensor  # [B, L] int64 number of the text in the corpus: with `epoch`, the key of its random numbers
    epoch: Tensor  # [] int64
    cu_seqlens: Tensor  # [S+1] int32 flat index of the start of each sequence, runs of padding included; then B*L
    cls_positions: Tensor  # [N] int64 flat index of each text's first token; -1 for an unused slot
    max_seqlen: int  # upper bound of the length of a text; constant within a run if shapes are
    dense: bool = False  # every row is one text without padding; constant within a run
    # If the batch is one row without padding: (texts, length) of each run of equally long texts, which need no mask.
    equal_length_runs: tuple[tuple[int, int], ...] = ()
    labels: dict[str, Tensor] = field(default_factory=dict)  # by objective; IGNORE_INDEX or NaN for no label
    indices: dict[str, Tensor] = field(default_factory=dict)  # by objective: flat token indices [R] that it reads
    copies: dict[str, Tensor] = field(default_factory=dict)  # by objective: corrupted ids [B, L] that it alone reads
    characters: Tensor | None = None  # [B, L, C] int16, see tokenizers.spelling; None: only ids are known
    # From shards with spelling: the characters of the distinct words of the batch [W, C] int16, and the word at each
    # token [B, L].
    spellings: Tensor | None = None
    spelling_ids: Tensor | None = None
    next_ids: Tensor | None = None  # [B] int64: the token that is read after each row, where rows continue each other
    # The second texts, which a decoder reads: its tokens attend to the tokens of this batch with their row and document
    # id. Rows may have another length. Its labels and indices are empty: those of this batch are read.
    target: Batch | None = None

    @property
    def size(self) -> int:
        """The number of tokens, padding and those of `target` included."""
        return self.input_ids.numel() + (0 if self.target is None else self.target.size)

    def count_tokens(self) -> Tensor:
        """The number of tokens [] that are not padding, those of `target` included."""
        count = (self.document_ids != 0).sum()
        return count if self.target is None else count + self.target.count_tokens()

    def replace(self, **changes: Any) -> Self:
        """The batch with some fields replaced."""
        return dataclasses.replace(self, **changes)

    def to(self, device: Any, *, non_blocking: bool = False) -> Self:
        """The batch on a device."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def tensors(self) -> Iterator[Tensor]:
        """All its tensors, in the order of `map`."""
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Batch):
                yield from value.tensors()
                continue
            yield from (
                part for part in (value.values() if isinstance(value, dict) else [value]) if hasattr(part, "to")
            )

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The batch with each of its tensors changed."""

        def changed(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: changed(item) for name, item in value.items()}
            if isinstance(value, Batch):
                return value.map(change)
            return change(value) if hasattr(value, "to") else value

        return type(self)(**{item.name: changed(getattr(self, item.name)) for item in dataclasses.fields(self)})


@dataclass(frozen=True)
class Encoding:
    """The output of an encoder."""

    last_hidden: Tensor  # [R, D] the last layer at the selected tokens, or [B*L, D] at all
    selections: dict[str, Any]  # by objective: slice or index into `last_hidden`
    pooled: Tensor | None = None  # [N, D] one vector per text
    layers: tuple[Tensor, ...] = ()  # on request: [B*L, D], the embeddings first, the last layer last
    attentions: tuple[Tensor, ...] = ()  # on request: [B, H, L, L] per layer
    state: tuple[Tensor, ...] | None = None  # of a stateful encoder, for the next batch: tensors [B, ...] by row
    target: Encoding | None = None  # of `Batch.target`, by the decoder of an encoder–decoder, at all its tokens

    def at(self, name: str) -> Tensor:
        """The last layer at the tokens of that objective [R, D]."""
        selection = self.selections[name]
        whole = isinstance(selection, slice) and selection == slice(0, self.last_hidden.shape[0])
        hidden: Tensor = self.last_hidden if whole else self.last_hidden[selection]  # the backward of a slice copies
        return hidden


@dataclass(frozen=True)
class Loss:
    """Sums and counts per loss term, which add up over micro-batches; the trainer divides once, by global counts."""

    sums: dict[str, Tensor]  # [] sum of the losses of all labels
    counts: dict[str, Tensor]  # [] number of labels, or the sum of their class weights
    correct: dict[str, Tensor]  # [] number of correct predictions; absent for terms without an accuracy
    weights: dict[str, float]  # of the mean of each term in the total
    state: tuple[Tensor, ...] = ()  # of a stateful encoder after this batch, without gradients

    def total(self, counts: Mapping[str, Tensor]) -> Tensor:
        """The total [], with the sum of each term divided by these counts."""
        divisors = {name: count + (count == 0) for name, count in counts.items()}
        terms = [self.weights[name] * value / divisors[name] for name, value in self.sums.items()]
        total: Tensor = sum(terms[1:], start=terms[0])
        return total

    def mean(self) -> Tensor:
        """The total [] by its own counts."""
        return self.total(self.counts)

    def __add__(self, other: Loss) -> Loss:
        return Loss(
            sums=_add(self.sums, other.sums),
            counts=_add(self.counts, other.counts),
            correct=_add(self.correct, other.correct),
            weights=self.weights | other.weights,
        )


def _add(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {**first, **{name: first[name] + value if name in first else value for name, value in second.items()}}
