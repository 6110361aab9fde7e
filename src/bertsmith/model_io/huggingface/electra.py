"""ELECTRA in transformers folders: the discriminator, or the generator as a masked language model."""

from __future__ import annotations

from typing import Any

from bertsmith.encoders import electra
from bertsmith.encoders.transformer_encoder import TransformerConfig
from bertsmith.model_io.huggingface import family
from bertsmith.model_io.untrusted_files import ConfigReader

LM_NAMES = ("generator_lm_head", "generator_predictions.dense", "generator_predictions.LayerNorm")
NOT_STORED = ("replaced_token.generator", "replaced_lm.generator", "replaced_lm.copy_gate")


class Electra(family.SummaryFamily):
    """BERT's weight names except for the heads; embeddings may be narrower than the blocks."""

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
    prefix="electra.",
    encoder=electra.Config,
    architectures={
        "ElectraModel": (),
        "ElectraForPreTraining": ("replaced_token",),
        "ElectraForMaskedLM": ("masked_lm",),
        "ElectraForCausalLM": ("causal_lm",),
        **family.task_architectures("Electra"),
    },
    heads={
        **dict.fromkeys(family.LM_HEADS, "generator_"),
        "replaced_token": "discriminator_predictions.",
        **family.TASK_HEADS,
    },
    head_modules={
        **family.lm_modules(*LM_NAMES, objectives=(*family.LM_HEADS, "replaced_lm")),
        "objectives.replaced_token.transform": "discriminator_predictions.dense",
        "objectives.replaced_token.classifier": "discriminator_predictions.dense_prediction",
        **family.task_modules("classifier.out_proj"),
    },
    omitted=tuple(f"objectives.{part}." for part in NOT_STORED),
    copies=(("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"),),
    bare=("embeddings.", "embeddings_project.", "encoder."),
    modules=family.BERT_MODULES | {"encoder.embeddings.project": "embeddings_project"},
    size_tensors=family.BERT_SIZE_TENSORS
    | {
        "embedding_size": ("embeddings.word_embeddings.weight", 1),
        "hidden_size": ("encoder.layer.0.intermediate.dense.weight", 1),
    },
    defaults=family.BERT_DEFAULTS | {"embedding_size": 128, "intermediate_size": 1024},
)
