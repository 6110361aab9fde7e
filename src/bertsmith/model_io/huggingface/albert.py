"""ALBERT in transformers' folders."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from bertsmith.encoders import albert
from bertsmith.encoders.transformer_encoder import TransformerConfig
from bertsmith.errors import ConfigError
from bertsmith.model_io.huggingface import family
from bertsmith.model_io.untrusted_files import ConfigReader

PREFIX = "albert."
BLOCK, LAYER = "encoder.blocks.{}.{}", "encoder.albert_layer_groups.{}.albert_layers.{}"
STORED = re.compile(re.escape(PREFIX) + r"encoder\.albert_layer_groups\.(\d+)\.albert_layers\.(\d+)\.")
MAP = "encoder.embedding_hidden_mapping_in"
INNER = ".ffn.weight"  # ends the names of the matrices that show the inner width
MAX_LAYERS = 1024  # layers may share one block, so the weights do not show their number


class Albert(family.Family):
    """Groups of layers that share their blocks."""

    def pooler(self, heads: Collection[str]) -> str:
        """A linear layer without a submodule."""
        return f"{PREFIX}pooler"

    def has_class(self, config: TransformerConfig) -> bool:
        """transformers shares complete blocks or none, and has neither causal attention nor rotary positions."""
        assert isinstance(config, albert.Config)
        return super().has_class(config) and config.sharing in ("all", "none") and not config.causal

    def read_encoder(self, reader: ConfigReader, shapes: family.Shapes) -> TransformerConfig:
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
        return super().settings(reader, sizes) | {
            "dropout": reader.share("hidden_dropout_prob", 0.0),
            "attention_dropout": reader.share("attention_probs_dropout_prob", 0.0),
            "activation": family.read_activation(reader, "hidden_act", "gelu_new"),
            "groups": reader.count("num_hidden_groups", 1),
            "inner_layers": reader.count("inner_group_num", 1),
            "causal": False,  # transformers ignores is_decoder
        }

    def check_sizes(self, sizes: Mapping[str, int], shapes: family.Shapes, path: Path) -> None:
        """See `Family.check_sizes`; a group without a feed-forward layer has no inner width."""
        inner = next((shape for name, shape in shapes.items() if name.endswith(INNER)), ())
        super().check_sizes(sizes, {f"{PREFIX}{LAYER.format(0, 0)}{INNER}": inner, **shapes}, path)

    def dropout_key(self, name: str) -> str:
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
        **family.task_architectures("Albert"),
    },
    heads={"masked_lm": "predictions.", "sentence_order": "sop_classifier.", **family.TASK_HEADS},
    head_modules={
        **family.lm_modules("predictions", "predictions.dense", "predictions.LayerNorm", objectives=["masked_lm"]),
        "objectives.sentence_order.classify": "sop_classifier.classifier",
        **family.task_modules(),
    },
    copies=family.tied_decoder("predictions", PREFIX),
    modules={
        **{ours: theirs for ours, theirs in family.BERT_MODULES.items() if ".blocks." not in ours},
        "encoder.embeddings.project": MAP,
        f"{BLOCK}.attention.qkv": tuple(f"{LAYER}.attention.{part}" for part in ("query", "key", "value")),
        f"{BLOCK}.attention.output": f"{LAYER}.attention.dense",
        f"{BLOCK}.attention_norm": f"{LAYER}.attention.LayerNorm",
        f"{BLOCK}.feed_forward.expand": f"{LAYER}.ffn",
        f"{BLOCK}.feed_forward.contract": f"{LAYER}.ffn_output",
        f"{BLOCK}.feed_forward_norm": f"{LAYER}.full_layer_layer_norm",
    },
    layer="",
    size_tensors=family.BERT_SIZE_TENSORS
    | {
        "embedding_size": ("embeddings.word_embeddings.weight", 1),
        "hidden_size": (f"{MAP}.weight", 0),
        "intermediate_size": (f"{LAYER.format(0, 0)}{INNER}", 0),
    },
    defaults={"max_position_embeddings": 512, "type_vocab_size": 2, "embedding_size": 128},
)
