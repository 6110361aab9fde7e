"""ModernBERT in transformers folders, with global attention in every layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from bertsmith.encoders import modern
from bertsmith.encoders.transformer_encoder import TransformerConfig
from bertsmith.errors import ConfigError
from bertsmith.model_io.huggingface import family
from bertsmith.model_io.untrusted_files import ConfigReader, shown

PREFIX = "model."
TABLE = "embeddings.tok_embeddings"
BLOCK, LAYER = "encoder.blocks.{}", "layers.{}"
BIASES = ("attention_bias", "mlp_bias", "norm_bias")
FULL, LOCAL = "full_attention", "sliding_attention"  # kinds of layers
PADDING, GLOBAL_BASE, LOCAL_BASE = 50_283, 160_000.0, 10_000.0  # defaults


class Modern(family.Family):
    """ModernBERT's weight names."""

    def has_class(self, config: TransformerConfig) -> bool:
        """transformers has ModernBERT's pre-norm, gated, rotary layers, with or without biases."""
        assert isinstance(config, modern.Config)
        chosen = config.norm == "before" and config.gated and config.positions == "rotary"
        return chosen and not (config.segment_types or config.pooler or config.causal)

    def stored_heads(self, names: Iterable[str], *, causal: bool) -> set[str]:
        """Every head in transformers starts with the layers of the MLM head; only that one has a decoder."""
        stored = tuple(names)
        absent = {"masked_lm"} if "decoder.bias" not in stored else set()
        return super().stored_heads(stored, causal=causal) - absent

    def settings(self, reader: ConfigReader, sizes: Mapping[str, int]) -> dict[str, Any]:
        """The config's values as settings of our encoder."""
        positions = reader.count("max_position_embeddings", 8192)
        return {
            **{family.SETTINGS[key]: size for key, size in sizes.items()},
            "max_positions": positions,
            "dropout": reader.share("embedding_dropout", 0.0),
            "attention_dropout": reader.share("attention_dropout", 0.0),
            "activation": family.read_activation(reader, "hidden_activation", "gelu"),
            "layer_norm_eps": reader.share("norm_eps", 1e-5),
            "initializer_range": reader.share("initializer_range", 0.02),
            "padding_id": family.read_padding(reader, PADDING),
            "rotary_base": read_rope_theta(reader, layers=sizes["num_hidden_layers"], positions=positions),
            "biases": _same(reader, BIASES),
            "depth_scaled": reader.flag("depth_scaled"),
        }

    def read_head(self, name: str, reader: ConfigReader) -> dict[str, Any]:
        """No settings: only one kind of MLM head is supported."""
        if name == "masked_lm":
            reader.require("classifier_activation", "gelu")
            reader.require("decoder_bias", True)
            _same(reader, (*BIASES, "classifier_bias"))
        return {}

    def config_values(self, config: TransformerConfig) -> dict[str, Any]:
        """The encoder's settings for transformers 4.57 and 5."""
        assert isinstance(config, modern.Config)
        values = {
            "vocab_size": config.vocab_size,
            "hidden_size": config.width,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "intermediate_size": config.inner,
            "hidden_activation": config.activation,
            "embedding_dropout": config.dropout,
            "mlp_dropout": config.dropout,
            "attention_dropout": config.attention_dropout,
            "max_position_embeddings": config.max_positions,
            "initializer_range": config.initializer_range,
            "norm_eps": config.layer_norm_eps,
            **dict.fromkeys((*BIASES, "classifier_bias"), config.biases),
            "decoder_bias": True,
            "global_attn_every_n_layers": 1,
            "global_rope_theta": config.rotary_base,
            "local_rope_theta": config.rotary_base,
            "pad_token_id": config.padding_id,
            # otherwise those of the published models
            **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
            "tie_word_embeddings": True,
        }
        return values | ({"depth_scaled": True} if config.depth_scaled else {})


def read_rope_theta(reader: ConfigReader, *, layers: int, positions: int) -> float:
    """The rotary base of all layers; local attention is accepted where its window covers the maximum length."""
    reader.require("rope_scaling", None)
    base, kinds = _base(reader, FULL, "global_rope_theta", GLOBAL_BASE), reader.get("layer_types")
    if kinds is None:
        every = reader.count("global_attn_every_n_layers", 3)
        kinds = [LOCAL if layer % every else FULL for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in (FULL, LOCAL) for kind in kinds):
        raise ConfigError(f"{reader.path}: layer_types must be {FULL} or {LOCAL} for each of {layers} layers")
    window = reader.count("local_attention", 128)
    if LOCAL in kinds and (window // 2 < positions - 1 or _base(reader, LOCAL, "local_rope_theta", LOCAL_BASE) != base):
        raise ConfigError(
            f"{reader.path}: {kinds.count(LOCAL)} of {layers} layers have local attention (local_attention={window}); "
            "bertsmith reads models with global attention in every layer (global_attn_every_n_layers=1)"
        )
    return base


def _base(reader: ConfigReader, kind: str, key: str, usual: float) -> float:
    """The base for one kind of layers: from the table of transformers 5, or from the older key."""
    table = reader.get("rope_parameters") or {}
    rope = (table.get(kind) or {}) if isinstance(table, dict) else None
    if not isinstance(rope, dict) or rope.get("rope_type", "default") != "default":
        raise ConfigError(
            f"{reader.path}: rope_parameters={shown(reader.get('rope_parameters'))}; bertsmith reads default"
        )
    value = rope.get("rope_theta", reader.get(key, usual))
    if type(value) not in (int, float) or not 1 < value < math.inf:
        raise ConfigError(f"{reader.path}: {key}={shown(value)} must be a number above 1")
    return float(value)


def _same(reader: ConfigReader, keys: tuple[str, ...]) -> bool:
    """The common value of these flags."""
    flags = {key: reader.flag(key) for key in keys}
    if len({*flags.values()}) > 1:
        claims = ", ".join(f"{key}={str(value).lower()}" for key, value in flags.items())
        raise ConfigError(f"{reader.path}: {claims}; bertsmith reads models where all are equal")
    return flags[keys[0]]


FAMILY = Modern(
    name="modern",
    model_type="modernbert",
    title="ModernBERT",
    classes="ModernBert",
    prefix=PREFIX,
    encoder=modern.Config,
    architectures={"ModernBertModel": (), "ModernBertForMaskedLM": ("masked_lm",)},
    heads={"masked_lm": ("head.", "decoder.")},
    head_modules=family.lm_modules("decoder", "head.dense", "head.norm", objectives=["masked_lm"]),
    copies=(("decoder.weight", f"{PREFIX}{TABLE}.weight"),),
    bare=("embeddings.", "layers.", "final_norm.", "pooler."),
    modules={
        "encoder.embeddings.tokens": TABLE,
        "encoder.embeddings.norm": "embeddings.norm",
        f"{BLOCK}.attention_norm": f"{LAYER}.attn_norm",
        f"{BLOCK}.attention.qkv": f"{LAYER}.attn.Wqkv",
        f"{BLOCK}.attention.output": f"{LAYER}.attn.Wo",
        f"{BLOCK}.feed_forward_norm": f"{LAYER}.mlp_norm",
        f"{BLOCK}.feed_forward.expand": f"{LAYER}.mlp.Wi",
        f"{BLOCK}.feed_forward.contract": f"{LAYER}.mlp.Wo",
        f"{BLOCK}.output_norm": "final_norm",  # of the last block alone
    },
    layer=LAYER,
    buffers=(),
    size_tensors={
        "vocab_size": (f"{TABLE}.weight", 0),
        "hidden_size": (f"{TABLE}.weight", 1),
        "intermediate_size": ("layers.0.mlp.Wo.weight", 1),
    },
    defaults={},
    tensors_per_layer=6,
)
