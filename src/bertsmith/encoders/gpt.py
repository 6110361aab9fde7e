"""GPT-1: a causal Transformer without segments and without a norm of the embeddings (Radford et al. 2018, §3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from bertsmith.encoders.transformer_encoder import TransformerConfig, TransformerEncoder
from bertsmith.nn.layer_config import LayerConfig


@dataclass(frozen=True, kw_only=True)
class Config(TransformerConfig):
    """The published model by default."""

    # differs from the original code: dropout on the sum of the embeddings of each token, as in transformers, not on the
    # elements of the table, which takes a pass over the whole table and drops the same elements of all equal tokens
    # differs from the original code: positions have their own table and are not among the outputs of the softmax

    vocab_size: int = 40_478  # rows of the token table; pre-training takes its tokenizer's, rounded up
    segment_types: int = 0  # segments of a text; 0: no segment embeddings
    activation: str = "gelu_new"  # of the feed-forward: gelu, gelu_new, relu, silu or tanh
    layer_norm_eps: float = 1e-5  # added to the variance in layer normalisation
    truncated_init: bool = False  # redraw new weights beyond two standard deviations
    causal: bool = True  # tokens attend only to earlier tokens
    pooler: bool = False  # one vector per text from its first token; of no use in a causal model
    padding_id: int = 0  # the token that fills rows

    min_segment_types: ClassVar[int] = 0
    normalizes_embeddings: ClassVar[bool] = False
    # P-GPT1 §4.1, gpt1: train.py
    finetuning: ClassVar[Mapping[str, Any]] = {
        "learning_rate": 6.25e-5,
        "warmup": 0.002,
        "schedule": {"kind": "product"},
        "auxiliary": {"causal_lm": 0.5},
    }
    trains_padding: ClassVar[bool] = True  # the released model pads with its unknown token

    @property
    def head_layer_config(self) -> LayerConfig:
        """The softmax of the language model is the token table; classifiers have no bias (P-GPT1 eq. 2 and 3)."""
        return replace(self.layer_config, lm_head_transform=False, lm_head_bias=False, classifier_bias=False)

    def build(self) -> GPT:
        return GPT(self)


class GPT(TransformerEncoder):
    """Token and position embeddings, causal post-norm blocks."""

    starts_texts = False
