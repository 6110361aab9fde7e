"""Small causal language models and translation models with random weights: GPT with its BPE, and others."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from inference.predictor_fixtures import tokenizer as wordpiece

from bertsmith.encoders import gpt, seq2seq, seq2seq_lstm
from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.model import Model
from bertsmith.objectives import causal_lm, translation
from bertsmith.tokenizers import bpe, byte_bpe
from bertsmith.tokenizers.tokenizer import Tokenizer

TEXT = "the smith heats iron and strikes an anvil while fire burns 쇠를 두드린다 the smith sings"
POSITIONS = 32
TRANSLATOR_POSITIONS = 96


@cache
def gpt_tokenizer() -> Tokenizer:
    return bpe.Config(min_count=1).train(dict.fromkeys(TEXT.split(), 3), vocab_size=260)


@cache
def byte_tokenizer() -> Tokenizer:
    return byte_bpe.Config().train(dict.fromkeys(("Ġthe", "Ġsmith"), 3), vocab_size=270)


def random_lm(
    encoder: Any = gpt, tokenizer: Tokenizer | None = None, *, ends: bool = False, **settings: Any
) -> Predictor:
    """A model whose logits differ enough that the most likely token is never a tie; it `ends` its texts, or never."""
    tokenizer = tokenizer or gpt_tokenizer()
    shape: dict[str, Any] = {"layers": 2, "width": 32, "heads": 2, "max_positions": POSITIONS}
    size = tokenizer.vocab_size + 3
    config = encoder.Config(**shape | {"vocab_size": size, "causal": True, "pooler": False} | settings)
    model = Model.build(config, [causal_lm.Config()])
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in model.parameters():
            if value.dim() > 1:
                value.normal_(0, 0.3, generator=draw)
        model.encoder.token_embeddings[tokenizer.end_id] *= 3.0 if ends else 0.0
    return Predictor(model, tokenizer)


def random_translator(*, ends: bool = True, **settings: Any) -> Predictor:
    """A model whose logits differ so much that the most likely token is never a tie; it `ends` its texts, or never."""
    words = byte_tokenizer()
    shape: dict[str, Any] = {"layers": 2, "width": 32, "heads": 2, "max_positions": TRANSLATOR_POSITIONS, **settings}
    model = Model.build(seq2seq.Config(vocab_size=words.vocab_size + 3, **shape), [translation.Config()])
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in model.parameters():
            if value.dim() > 1:
                value.normal_(0, 0.3, generator=draw)
        model.encoder.token_embeddings[words.end_id] *= 2.0 if ends else 0.0
    return Predictor(model, words)


def random_lstm_translator() -> Predictor:
    """CoVe's translation model."""
    words = byte_tokenizer()
    config = seq2seq_lstm.Config(vocab_size=words.vocab_size + 3, width=32, embedding_width=16)
    model = Model.build(config, [translation.Config(tie_output=False)])
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in model.parameters():
            if value.dim() > 1:
                value.normal_(0, 0.5, generator=draw)
    return Predictor(model, words)


__all__ = [
    "POSITIONS",
    "TEXT",
    "TRANSLATOR_POSITIONS",
    "byte_tokenizer",
    "gpt_tokenizer",
    "random_lm",
    "random_lstm_translator",
    "random_translator",
    "wordpiece",
]
