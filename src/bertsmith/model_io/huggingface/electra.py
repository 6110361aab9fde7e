"""ELECTRA in transformers folders: the discriminator, or the generator as a masked language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertsmith.encoders import electra
from bertsmith.encoders.transformer_encoder import TransformerConfig
from bertsmith.model_io.huggingface.family import (
    TASK_HEADS,
    SummaryFamily,
    lm_modules,
    stored_positions,
    task_modules,
    transformer_modules,
    transformer_size_tensors,
)
from bertsmith.model_io.untrusted_files import ConfigReader

PREFIX = "electra."
OF_ABLATIONS = ("replaced_lm.generator", "replaced_lm.copy_gate")


class Electra(SummaryFamily):
    """BERT's weight names except for the heads; embeddings may be narrower than the blocks."""

    def settings(self, reader: ConfigReader, sizes: Mapping[str, int]) -> dict[str, Any]:
        """BERT's, with the width of the embeddings."""
        return super().settings(reader, sizes) | {"embedding_width": sizes["embedding_size"]}

    def read_head(self, name: str, reader: ConfigReader) -> dict[str, Any]:
        """A folder holds the discriminator without its generator."""
        return super().read_head(name, reader) | ({"generator_width": 0.0} if name == "replaced_token" else {})

    def config_values(self, config: TransformerConfig) -> dict[str, Any]:
        """BERT's, with the width of the embeddings."""
        more = {"embedding_size": config.embedding_width, "summary_activation": "gelu"}
        return super().config_values(config) | more


FAMILY = Electra(
    name="electra",
    title="ELECTRA",
    classes="Electra",
    prefix=PREFIX,
    encoder=electra.Config,
    architectures={
        "ElectraModel": (),
        "ElectraForPreTraining": ("replaced_token",),
        "ElectraForMaskedLM": ("masked_lm",),
        "ElectraForCausalLM": ("causal_lm",),
        "ElectraForSequenceClassification": ("classify",),  # or regress: problem_type tells
        "ElectraForTokenClassification": ("tag",),
        "ElectraForQuestionAnswering": ("span",),
        "ElectraForMultipleChoice": ("choose",),
    },
    heads={
        "masked_lm": "generator_",
        "causal_lm": "generator_",
        "replaced_token": "discriminator_predictions.",
        **TASK_HEADS,
    },
    modules={
        **transformer_modules(PREFIX),
        "encoder.embeddings.project": "electra.embeddings_project",
        **lm_modules("generator_lm_head", "generator_predictions.dense", "generator_predictions.LayerNorm"),
        "objectives.replaced_lm": "generator_lm_head",
        "objectives.replaced_lm.transform": "generator_predictions.dense",
        "objectives.replaced_lm.norm": "generator_predictions.LayerNorm",
        "objectives.replaced_token.transform": "discriminator_predictions.dense",
        "objectives.replaced_token.classifier": "discriminator_predictions.dense_prediction",
        **task_modules("classifier.out_proj"),
    },
    omitted=tuple(f"objectives.{part}." for part in ("replaced_token.generator", *OF_ABLATIONS)),
    buffers=stored_positions(PREFIX),
    copies=(("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"),),
    bare=("embeddings.", "embeddings_project.", "encoder."),
    size_tensors=transformer_size_tensors(PREFIX)
    | {
        "embedding_size": ("electra.embeddings.word_embeddings.weight", 1),
        "hidden_size": ("electra.encoder.layer.0.intermediate.dense.weight", 1),
    },
    defaults={
        "embedding_size": 128,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "intermediate_size": 1024,
    },
)
