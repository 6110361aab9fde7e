"""RoBERTa in transformers' folders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertsmith.encoders import roberta
from bertsmith.encoders.transformer_encoder import TransformerConfig
from bertsmith.errors import ConfigError
from bertsmith.model_io.huggingface import family
from bertsmith.model_io.untrusted_files import ConfigReader


class Roberta(family.ClassifierFamily):
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
    prefix="roberta.",
    encoder=roberta.Config,
    architectures={
        "RobertaModel": (),
        "RobertaForMaskedLM": ("masked_lm",),
        "RobertaForCausalLM": ("causal_lm",),
        **family.task_architectures("Roberta"),
    },
    heads={**dict.fromkeys(family.LM_HEADS, "lm_head."), **family.TASK_HEADS},
    head_modules={
        **family.lm_modules("lm_head", "lm_head.dense", "lm_head.layer_norm"),
        **family.task_modules("classifier.out_proj"),
    },
    copies=family.tied_decoder("lm_head", "roberta."),
)
