"""Running text for models that read from left to right: full rows, no frame, a closing token behind each document.

As GPT-1 was trained (P-GPT1 §4.1, "contiguous sequences of 512 tokens") and the recurrent models before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from bertsmith.data.packing.document_stream import Outline, Tape, Windows
from bertsmith.data.packing.packing import NO_FRAME, check_length, check_split, closing_id
from bertsmith.data.shards import Shards
from bertsmith.types import Frame


@dataclass(frozen=True, kw_only=True)
class Config:
    """Rows of `length` tokens."""

    def build(self, shards: Shards, *, frame: Frame, padding_id: int, seed: int, max_length: int) -> Windows:
        """See `packing.Settings`; of the frame only the closing token is used."""
        check_length(max_length)
        check_split(shards)
        tape = Tape(shards, Outline(shards), closing_id(frame))
        return Windows(tape, NO_FRAME, length=max_length, padding_id=padding_id, seed=seed)
