"""Peers are measured at their best: transformers 5.17 makes a mask of nothing when it is compiled, and attends by it.

Its check whether a mask can be left out gives up while it is traced, even where nobody passed one. Attention then takes
slower kernels and more memory: BERT-base at 512 learns slower compiled than not. Later versions look again.
"""

from __future__ import annotations

from typing import Any

CHECK = "_ignore_bidirectional_mask_sdpa"


def leave_out() -> None:
    """From here on in this process, transformers makes no mask where none is passed and none is needed."""
    from transformers import masking_utils

    usual: Any = getattr(masking_utils, CHECK, None)
    if usual is None or getattr(usual, "kinder", False):
        return

    def can_be_left_out(padding_mask: Any, kv_length: int, local_attention_size: int | None = None) -> bool:
        everywhere = local_attention_size is None or kv_length < local_attention_size
        if padding_mask is None and everywhere:
            return True
        return bool(usual(padding_mask, kv_length, local_attention_size))

    can_be_left_out.kinder = True  # type: ignore[attr-defined]
    setattr(masking_utils, CHECK, can_be_left_out)
