"""Contiguous text for left-to-right models: full rows without a frame, an end token after each document.

GPT-1 was trained on such rows (P-GPT1 §4.1, "contiguous sequences of 512 tokens").
# differs from the paper: documents of one row do not attend to each other
"""

from __future__ import annotations

from dataclasses import dataclass

from bertsmith.data.packing.document_stream import DocumentIndex, DocumentStream, WindowPacking
from bertsmith.data.packing.packing import NO_FRAME, row_layout
from bertsmith.data.shards import Shards
from bertsmith.tokenizers.special_tokens import end_token
from bertsmith.types import Frame


@dataclass(frozen=True, kw_only=True)
class Config:
    """Rows of consecutive tokens."""

    def build(self, shards: Shards, *, frame: Frame, padding_id: int, seed: int, max_length: int) -> WindowPacking:
        """See `PackingConfig`; only the end token of the frame is used."""
        layout = row_layout(shards, NO_FRAME, max_length=max_length, padding_id=padding_id)
        documents = DocumentStream(shards, DocumentIndex(shards), end_token(frame))
        return WindowPacking(documents, layout, seed=seed, isolate=len(documents.end_positions) > 0)
