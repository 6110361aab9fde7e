"""The nouns that travel between rooms. Imports no room of ours and, at run time, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray


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
    segments: NDArray[np.uint8]  # [L] 0 for the first text and its frame, 1 for the second
    texts: NDArray[np.int8]  # [L] 0 first text, 1 second text, -1 special token
    offsets: NDArray[np.int32]  # [L, 2] into the text that `texts` names; (0, 0) for special tokens
    words: NDArray[np.int32]  # [L] word number within its text; -1 for special tokens
    cut: tuple[int, int] = (0, 0)  # how many tokens of the first and the second text did not fit

    def __len__(self) -> int:
        return len(self.ids)


Slot = Literal["a", "b"]


@dataclass(frozen=True, slots=True)
class Frame:
    """How special tokens stand round texts, e.g. `([CLS], "a", [SEP], "b", [SEP])`, as ids and slots."""

    single: tuple[int | Slot, ...]
    pair: tuple[int | Slot, ...]
    pair_segments: tuple[int, ...] = field(default=())  # segment of each part of `pair`; all 0 where absent
