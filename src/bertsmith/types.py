"""The nouns that travel between rooms. Imports no room of ours and, at run time, no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # a type only: torch is no room of ours and must not be loaded for text work
    from torch import Tensor

IGNORE_INDEX = -100  # the label of a place or text of which nothing is asked


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus: its text, where it came from (`file:line`), and its title if it has one."""

    text: str
    source: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text as ids, without special tokens. T = number of tokens."""

    ids: NDArray[np.int32]  # [T]
    offsets: NDArray[np.int32]  # [T, 2] begin and end of each token in the characters of the original text
    words: NDArray[np.int32]  # [T] number of the word that each token is a part of, counted from 0

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Row:
    """One framed input: special tokens, one or two texts. L = number of tokens; no padding."""

    ids: NDArray[np.int32]  # [L]
    segment_ids: NDArray[np.uint8]  # [L] 0 for the first text and its frame, 1 for the second
    sequence_ids: NDArray[np.int8]  # [L] 0 first text, 1 second text, -1 special token
    offsets: NDArray[np.int32]  # [L, 2] into the text that `texts` names; (0, 0) for special tokens
    words: NDArray[np.int32]  # [L] word number within its text; -1 for special tokens
    truncated: tuple[int, int] = (0, 0)  # how many tokens of the first and the second text did not fit

    def __len__(self) -> int:
        return len(self.ids)


Slot = Literal["a", "b"]


@dataclass(frozen=True, slots=True)
class Frame:
    """How special tokens stand round texts, e.g. `([CLS], "a", [SEP], "b", [SEP])`, as ids and slots."""

    single: tuple[int | Slot, ...]
    pair: tuple[int | Slot, ...]
    pair_segments: tuple[int, ...] = field(default=())  # segment of each part of `pair`; all 0 where absent


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What hiding words needs to know of a tokenizer. V = number of tokens."""

    size: int  # tokens that exist; a model's table may be longer
    mask_id: int | None = None
    special_ids: tuple[int, ...] = ()
    is_continuation: NDArray[np.bool_] | None = None  # [V] True where a token goes on with the word before it (`##ing`)


# Tensors: B rows, L places in a row, N texts, S sequences, R places that are read, D width, H heads.


@dataclass(frozen=True)
class Batch:
    """Rows of constant shape. A row holds one text, or several that do not see each other, and padding.

    A text is what one `Row` is: its places stand together and share one number in `samples`; in `document` too, unless
    it holds several documents that are kept apart.
    """

    input_ids: Tensor  # [B, L] int64
    position_ids: Tensor  # [B, L] int64 counted from 0 within each text
    segment_ids: Tensor  # [B, L] int64
    document_ids: (
        Tensor  # [B, L] int32: places of a row see each other exactly where their numbers are equal; 0 = padding
    )
    special_mask: Tensor  # [B, L] bool: special tokens and padding, which are never hidden
    sample_ids: (
        Tensor  # [B, L] int64 number of the text in the whole corpus: with `epoch`, the key of its random numbers
    )
    epoch: Tensor  # [] int64
    cu_seqlens: Tensor  # [S+1] int32 begin of each sequence in the flat B*L places, runs of padding too; B*L to the end
    cls_positions: Tensor  # [N] int64 flat place of each text's first token; -1 where there is no text
    max_seqlen: int  # no text is longer; a constant of the run where shapes are
    dense: bool = False  # every row is one text without padding; a constant of the run
    # Of one row without padding: (texts, length) of each run of texts of equal length, which need no mask.
    equal_length_runs: tuple[tuple[int, int], ...] = ()
    labels: dict[str, Tensor] = field(default_factory=dict)  # by objective; IGNORE_INDEX, or NaN, where nothing is
    indices: dict[str, Tensor] = field(default_factory=dict)  # by objective: flat places [R] that it reads

    def replace(self, **changes: Any) -> Self:
        """The batch with some fields exchanged."""
        return dataclasses.replace(self, **changes)

    def to(self, device: Any, *, non_blocking: bool = False) -> Self:
        """The batch on a device."""

        def moved(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: moved(item) for name, item in value.items()}
            return value.to(device, non_blocking=non_blocking) if hasattr(value, "to") else value

        return type(self)(**{item.name: moved(getattr(self, item.name)) for item in dataclasses.fields(self)})


@dataclass(frozen=True)
class Encoding:
    """What an encoder makes of a batch."""

    last_hidden: Tensor  # [R, D] the last layer at the places that are read, or [B*L, D] where all are
    selections: dict[str, Any]  # by objective: slice or index into `top`
    pooled: Tensor | None = None  # [N, D] one vector for each text
    layers: tuple[Tensor, ...] = ()  # where asked for: [B*L, D] embeddings first, the top layer last
    attentions: tuple[Tensor, ...] = ()  # where asked for: [B, H, L, L] for each layer

    def at(self, name: str) -> Tensor:
        """The top layer where that objective reads it [R, D]."""
        found: Tensor = self.last_hidden[self.selections[name]]
        return found


@dataclass(frozen=True)
class Loss:
    """Sums and counts by part, so that parts of a batch add up; whoever trains divides once, by the global counts."""

    sums: dict[str, Tensor]  # [] sum of the losses of everything asked
    counts: dict[str, Tensor]  # [] how many things were asked
    correct: dict[str, Tensor]  # [] how many of them were answered right; not of parts that know no right or wrong
    weights: dict[str, float]  # what the mean of a part counts for in the total

    def total(self, counts: Mapping[str, Tensor]) -> Tensor:
        """The total [], with the sum of each part divided by these counts."""
        terms = [self.weights[name] * part / counts[name].clamp(min=1) for name, part in self.sums.items()]
        total: Tensor = sum(terms[1:], start=terms[0])
        return total

    def mean(self) -> Tensor:
        """The total [] of this loss alone."""
        return self.total(self.counts)

    def __add__(self, other: Loss) -> Loss:
        return Loss(
            sums=_added(self.sums, other.sums),
            counts=_added(self.counts, other.counts),
            correct=_added(self.correct, other.correct),
            weights=self.weights | other.weights,
        )


def _added(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {**ours, **{name: ours[name] + part if name in ours else part for name, part in theirs.items()}}
