"""RoBERTa in transformers' folders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertsmith.encoders import roberta
from bertsmith.encoders.transformer_encoder import TransformerConfig
from bertsmith.errors import ConfigError
from bertsmith.model_io.huggingface.family import (
    TASK_HEADS,
    ClassifierFamily,
    lm_modules,
    stored_positions,
    task_modules,
    transformer_modules,
    transformer_size_tensors,
)
from bertsmith.model_io.untrusted_files import ConfigReader

PREFIX = "roberta."


class Roberta(ClassifierFamily):
    """BERT's weight names except for the heads; the position table has rows for padding."""

    def settings(self, reader: ConfigReader, sizes: Mapping[str, int]) -> dict[str, Any]:
        """BERT's; the position table has rows for the padding and for the ids before it."""
        padding = reader.count("pad_token_id", 1, least=0)
        rows = sizes["max_position_embeddings"]
        if rows <= padding + 1:
            raise ConfigError(
                f"{reader.path}: max_position_embeddings={rows} leaves no positions after padding id {padding}"
            )
        return super().settings(reader, sizes) | {"padding_id": padding, "max_positions": rows - padding - 1}

    def config_values(self, config: TransformerConfig) -> dict[str, Any]:
        """BERT's, with all rows of the position table."""
        rows = config.first_position + config.max_positions
        return super().config_values(config) | {"max_position_embeddings": rows}


FAMILY = Roberta(
    name="roberta",
    title="RoBERTa",
    classes="Roberta",
    prefix=PREFIX,
    encoder=roberta.Config,
    architectures={
        "RobertaModel": (),
        "RobertaForMaskedLM": ("masked_lm",),
        "RobertaForCausalLM": ("causal_lm",),
        "RobertaForSequenceClassification": ("classify",),  # or regress: problem_type tells
        "RobertaForTokenClassification": ("tag",),
        "RobertaForQuestionAnswering": ("span",),
        "RobertaForMultipleChoice": ("choose",),
    },
    heads={
        "masked_lm": "lm_head.",
        "causal_lm": "lm_head.",
        **TASK_HEADS,
    },
    modules={
        **transformer_modules(PREFIX),
        **lm_modules("lm_head", "lm_head.dense", "lm_head.layer_norm"),
        **task_modules("classifier.out_proj"),
    },
    buffers=stored_positions(PREFIX),
    copies=(
        ("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
        ("lm_head.decoder.bias", "lm_head.bias"),
    ),
    size_tensors=transformer_size_tensors(PREFIX),
    defaults={"max_position_embeddings": 512, "type_vocab_size": 2, "intermediate_size": 3072},
)
