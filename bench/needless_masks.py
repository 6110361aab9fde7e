"""A fix for transformers 5.17, so that it is measured at its best: compiled, it creates attention masks without need.

Its check whether a mask can be skipped returns False under tracing, even where no mask is passed. Attention then uses
slower kernels and more memory: BERT-base at length 512 trains slower compiled than eager. Later versions may differ.
"""

from __future__ import annotations

from typing import Any

CHECK = "_ignore_bidirectional_mask_sdpa"


def skip_needless_masks() -> None:
    """In this process, transformers creates no mask where none is passed and none is needed."""
    from transformers import masking_utils

    original: Any = getattr(masking_utils, CHECK, None)
    if original is None or getattr(original, "patched", False):
        return

    def can_be_skipped(padding_mask: Any, kv_length: int, local_attention_size: int | None = None) -> bool:
        is_global = local_attention_size is None or kv_length < local_attention_size
        if padding_mask is None and is_global:
            return True
        return bool(original(padding_mask, kv_length, local_attention_size))

    can_be_skipped.patched = True  # type: ignore[attr-defined]
    setattr(masking_utils, CHECK, can_be_skipped)
