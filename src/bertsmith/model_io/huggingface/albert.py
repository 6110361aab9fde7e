"""ALBERT in transformers' folders."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from bertsmith.encoders import albert
from bertsmith.encoders.transformer_encoder import TransformerConfig
from bertsmith.errors import ConfigError
from bertsmith.model_io.huggingface.family import (
    ACTIVATIONS,
    TASK_HEADS,
    Family,
    Shapes,
    stored_positions,
    task_modules,
    transformer_modules,
)
from bertsmith.model_io.untrusted_files import ConfigReader

PREFIX = "albert."
BLOCK, THEIRS = "encoder.blocks.{}.{}", f"{PREFIX}encoder.albert_layer_groups.{{}}.albert_layers.{{}}"
STORED = re.compile(re.escape(PREFIX) + r"encoder\.albert_layer_groups\.(\d+)\.albert_layers\.(\d+)\.")
TABLE, MAP = f"{PREFIX}embeddings.word_embeddings", f"{PREFIX}encoder.embedding_hidden_mapping_in"
INNER = ".ffn.weight"  # ends the names of the matrices that show the inner width
MAX_LAYERS = 1024  # layers may share one block, so the weights do not show their number


class Albert(Family):
    """Groups of layers that share their blocks."""

    def pooler(self, heads: Collection[str]) -> str:
        """A linear layer without a submodule."""
        return f"{PREFIX}pooler"

    def has_class(self, config: TransformerConfig) -> bool:
        """transformers shares complete blocks or none, and has no causal attention."""
        assert isinstance(config, albert.Config)
        return config.sharing in ("all", "none") and not config.causal

    def read_encoder(self, reader: ConfigReader, shapes: Shapes) -> TransformerConfig:
        """See `Family.read_encoder`; groups and inner layers are checked against the weights."""
        layers, groups = reader.count("num_hidden_layers"), reader.count("num_hidden_groups", 1)
        inner = reader.count("inner_group_num", 1)
        if layers > MAX_LAYERS:
            raise ConfigError(f"{reader.path}: num_hidden_layers={layers} is more than {MAX_LAYERS:,}")
        wanted = groups * inner
        stored = len({match.groups() for name in shapes if (match := STORED.match(name))})
        if wanted != stored:
            claimed = f"num_hidden_groups={groups} and inner_group_num={inner}"
            raise ConfigError(f"{reader.path}: {claimed}, but the weights have {stored} blocks instead of {wanted}")
        return super().read_encoder(reader, shapes)

    def settings(self, reader: ConfigReader, sizes: Mapping[str, int]) -> dict[str, Any]:
        """BERT's, with ALBERT's defaults, groups and inner layers."""
        activation = reader.text("hidden_act", "gelu_new")
        return super().settings(reader, sizes) | {
            "embedding_width": sizes["embedding_size"],
            "dropout": reader.share("hidden_dropout_prob", 0.0),
            "attention_dropout": reader.share("attention_probs_dropout_prob", 0.0),
            "activation": ACTIVATIONS.get(activation, activation),
            "groups": reader.count("num_hidden_groups", 1),
            "inner_layers": reader.count("inner_group_num", 1),
            "causal": False,  # transformers ignores is_decoder
        }

    def check_sizes(self, sizes: Mapping[str, int], shapes: Shapes, path: Path) -> None:
        """See `Family.check_sizes`; a group that is a half of a block has no inner width."""
        inner = next((shape for name, shape in shapes.items() if name.endswith(INNER)), ())
        super().check_sizes(sizes, {THEIRS.format(0, 0) + INNER: inner, **shapes}, path)

    def check_layers(self, sizes: Mapping[str, int], layers: int, path: Path) -> None:
        """Nothing: `read_encoder` has checked the groups."""

    def dropout_key(self, name: str) -> str:
        """See `Family.dropout_key`."""
        return "classifier_dropout_prob"

    def config_values(self, config: TransformerConfig) -> dict[str, Any]:
        """BERT's with groups and inner layers; layers that share nothing are groups of one layer."""
        assert isinstance(config, albert.Config)
        values = super().config_values(config)
        for key in ("position_embedding_type", "classifier_dropout", "is_decoder", "use_cache"):
            del values[key]
        alone = config.sharing == "none"
        return values | {
            "embedding_size": config.embedding_width,
            "num_hidden_groups": config.layers if alone else config.groups,
            "inner_group_num": config.inner_layers,
            "classifier_dropout_prob": 0.1,
        }


FAMILY = Albert(
    name="albert",
    title="ALBERT",
    classes="Albert",
    prefix=PREFIX,
    encoder=albert.Config,
    architectures={
        "AlbertModel": (),
        "AlbertForPreTraining": ("masked_lm", "sentence_order"),
        "AlbertForMaskedLM": ("masked_lm",),
        "AlbertForSequenceClassification": ("classify",),  # or regress: problem_type tells
        "AlbertForTokenClassification": ("tag",),
        "AlbertForQuestionAnswering": ("span",),
        "AlbertForMultipleChoice": ("choose",),
    },
    heads={
        "masked_lm": "predictions.",
        "sentence_order": "sop_classifier.",
        **TASK_HEADS,
    },
    modules={
        **{ours: theirs for ours, theirs in transformer_modules(PREFIX).items() if ".blocks." not in ours},
        "encoder.embeddings.project": MAP,
        f"{BLOCK}.attention.qkv": tuple(f"{THEIRS}.attention.{part}" for part in ("query", "key", "value")),
        f"{BLOCK}.attention.output": f"{THEIRS}.attention.dense",
        f"{BLOCK}.attention_norm": f"{THEIRS}.attention.LayerNorm",
        f"{BLOCK}.feed_forward.expand": f"{THEIRS}.ffn",
        f"{BLOCK}.feed_forward.contract": f"{THEIRS}.ffn_output",
        f"{BLOCK}.feed_forward_norm": f"{THEIRS}.full_layer_layer_norm",
        "objectives.masked_lm": "predictions",
        "objectives.masked_lm.transform": "predictions.dense",
        "objectives.masked_lm.norm": "predictions.LayerNorm",
        "objectives.sentence_order.classify": "sop_classifier.classifier",
        **task_modules(),
    },
    buffers=stored_positions(PREFIX),
    copies=(("predictions.decoder.weight", f"{TABLE}.weight"), ("predictions.decoder.bias", "predictions.bias")),
    size_tensors={
        "vocab_size": (f"{TABLE}.weight", 0),
        "embedding_size": (f"{TABLE}.weight", 1),
        "max_position_embeddings": (f"{PREFIX}embeddings.position_embeddings.weight", 0),
        "type_vocab_size": (f"{PREFIX}embeddings.token_type_embeddings.weight", 0),
        "hidden_size": (f"{MAP}.weight", 0),
        "intermediate_size": (THEIRS.format(0, 0) + INNER, 0),
    },
    defaults={"max_position_embeddings": 512, "type_vocab_size": 2, "embedding_size": 128},
)
