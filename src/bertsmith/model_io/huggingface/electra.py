"""ELECTRA in transformers folders: the discriminator, and the generator as a model of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertsmith.encoders import electra
from bertsmith.encoders.transformer_encoder import TransformerConfig
from bertsmith.model_io.huggingface import family
from bertsmith.model_io.model import Model
from bertsmith.model_io.untrusted_files import ConfigReader
from bertsmith.nn.meta_device import on_meta_device
from bertsmith.objectives.generator import Generator

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


def generator_model(model: Model) -> Model | None:
    """The generator of an ELECTRA model as a masked language model that shares its weights.

    None without a generator, or where the encoder's embeddings cannot have another width than its blocks.
    """
    generators = [getattr(head, "generator", None) for head in model.objectives.values()]
    generator = next((one for one in generators if isinstance(one, Generator)), None)
    config = getattr(model.encoder, "config", None)
    if generator is None or not isinstance(config, electra.Config):
        return None
    width, heads, inner = generator.width, generator.heads, generator.inner
    with on_meta_device():
        encoder = replace(config, width=width, heads=heads, feed_forward=inner, pooler=False).build()
    stored = model.encoder.state_dict()
    weights = {name: stored[name] for name in stored if name.startswith("embeddings.") and ".project." not in name}
    weights |= {f"embeddings.project.{name}": value for name, value in generator.project.state_dict().items()}
    weights |= {f"blocks.{name}": value for name, value in generator.blocks.state_dict().items()}
    encoder.load_state_dict(weights, assign=True)
    return Model(encoder, [generator.masked_lm]).train(model.training)
