"""ModernBERT in transformers' folders: those whose attention is global in every layer.

What transformers has no class for (norms after the sums, a feed-forward that is not gated, learned positions, segments,
a pooler, reading left to right, heads other than that for words) is written in our own words, beside ModernBERT's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from bertsmith.encoders import modern
from bertsmith.encoders.transformer_encoder import TransformerConfig
from bertsmith.errors import ConfigError
from bertsmith.model_io.huggingface.family import ACTIVATIONS, OWN_PREFIX, Family, Shapes
from bertsmith.model_io.untrusted_files import ConfigReader, shown

PREFIX = "model."
BLOCK, LAYER = "encoder.blocks.{}", f"{PREFIX}layers.{{}}"
TABLE, POSITIONS, SEGMENTS = (
    f"{PREFIX}embeddings.{name}" for name in ("tok_embeddings", "position_embeddings", "token_type_embeddings")
)
OWN_HEADS = ("next_sentence", "sentence_order", "causal_lm", "classify", "regress", "tag", "choose", "span")
BIASES = ("attention_bias", "mlp_bias", "norm_bias")
FULL, LOCAL = "full_attention", "sliding_attention"  # kinds of layers
PADDING, GLOBAL_BASE, LOCAL_BASE = 50_283, 160_000.0, 10_000.0  # where a config does not say them


class Modern(Family):
    """ModernBERT's names; what only we have is named in its manner."""

    def has_class(self, config: TransformerConfig, heads: Collection[str]) -> bool:
        """transformers has ModernBERT's choices, with or without biases, under the head for words."""
        assert isinstance(config, modern.Config)
        if not {*heads} <= {*self.heads}:
            return True  # no folder of ours has such heads either: `architecture_of` says so
        theirs = config.norm == "before" and config.gated and config.rotary
        return theirs and not (config.segment_types or config.pooler or config.causal or {*OWN_HEADS} & {*heads})

    def heads_there(self, names: Iterable[str], *, causal: bool) -> set[str]:
        """Every head of transformers' begins with the one for words; only that one ends with a decoder."""
        found = tuple(names)
        words = {"masked_lm"} if "decoder.bias" not in found else set()
        return super().heads_there(found, causal=causal) - words

    def read_encoder(self, said: ConfigReader, shapes: Shapes) -> TransformerConfig:
        """See `Family.read_encoder`; tables that ModernBERT has not are as long as they are said to be."""
        for key, table in (("max_position_embeddings", POSITIONS), ("type_vocab_size", SEGMENTS)):
            rows = (shapes.get(f"{table}.weight") or (None,))[0]
            if rows is not None and said.count(key) != rows:
                raise ConfigError(f"{said.path}: {key}={said.count(key)}, but the weights have {rows} ({table}.weight)")
        return super().read_encoder(said, shapes)

    def settings(self, said: ConfigReader, sizes: Mapping[str, int]) -> dict[str, Any]:
        """What a config says, as settings of ours; what only our own folders say too."""
        own, positions = said.get("model_type") != self.model_type, said.count("max_position_embeddings", 8192)
        activation, padding = said.text("hidden_activation", "gelu"), said.get("pad_token_id", PADDING)
        found = {
            "layers": sizes["num_hidden_layers"],
            "width": sizes["hidden_size"],
            "heads": sizes["num_attention_heads"],
            "feed_forward": sizes["intermediate_size"],
            "vocab_size": sizes["vocab_size"],
            "max_positions": positions,
            "dropout": said.share("embedding_dropout", 0.0),
            "attention_dropout": said.share("attention_dropout", 0.0),
            "activation": ACTIVATIONS.get(activation, activation),
            "layer_norm_eps": said.share("norm_eps", 1e-5),
            "initializer_range": said.share("initializer_range", 0.02),
            "padding_id": 0 if padding is None else said.count("pad_token_id", PADDING, least=0),
            "rotary_base": read_base(said, layers=sizes["num_hidden_layers"], positions=positions),
            "biases": _same(said, BIASES),
            "depth_scaled": said.flag("depth_scaled"),
        }
        ours = {
            "norm": said.text("norm", "before"),
            "gated": said.flag("gated", True),
            "rotary": said.flag("rotary", True),
            "segment_types": said.count("type_vocab_size", 0, least=0),
            "causal": said.flag("is_decoder"),
        }
        return found | (ours if own else {})

    def layers_of(self, names: Iterable[str]) -> int:
        """See `Family.layers_of`."""
        pattern = re.compile(rf"{re.escape(PREFIX)}layers\.(\d+)\.")
        return len({found[1] for name in names if (found := pattern.match(name))})

    def read_head(self, name: str, said: ConfigReader) -> dict[str, Any]:
        """Nothing: the head for words is read one way only."""
        if name == "masked_lm":
            said.usual("classifier_activation", "gelu")
            said.usual("decoder_bias", True)
            _same(said, (*BIASES, "classifier_bias"))
        return {}

    def contents(self, config: TransformerConfig) -> dict[str, Any]:
        """The encoder's settings as transformers 4.57 and 5 read them, and ours where they are not ModernBERT's."""
        assert isinstance(config, modern.Config)
        found = {
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
            # of the published models, where they are not said to be others
            **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
            "tie_word_embeddings": True,
        }
        ours = {
            "norm": config.norm,
            "gated": config.gated,
            "rotary": config.rotary,
            "type_vocab_size": config.segment_types,
            "is_decoder": config.causal,
            "depth_scaled": config.depth_scaled,
        }
        usual = {"norm": "before", "gated": True, "rotary": True, "type_vocab_size": 0}
        return found | {key: value for key, value in ours.items() if value != usual.get(key, False)}


def read_base(said: ConfigReader, *, layers: int, positions: int) -> float:
    """The base of the turns, which is one for all layers here: local ones are read where nobody could tell them."""
    said.usual("rope_scaling", None)
    base, kinds = _base(said, FULL, "global_rope_theta", GLOBAL_BASE), said.get("layer_types")
    if kinds is None:
        every = said.count("global_attn_every_n_layers", 3)
        kinds = [LOCAL if layer % every else FULL for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in (FULL, LOCAL) for kind in kinds):
        raise ConfigError(f"{said.path}: layer_types must say {FULL} or {LOCAL} for each of {layers} layers")
    window = said.count("local_attention", 128)
    if LOCAL in kinds and (window // 2 < positions - 1 or _base(said, LOCAL, "local_rope_theta", LOCAL_BASE) != base):
        raise ConfigError(
            f"{said.path}: {kinds.count(LOCAL)} of {layers} layers have local attention (local_attention={window}); "
            "bertsmith reads models in which every layer sees the whole text (global_attn_every_n_layers=1)"
        )
    return base


def _base(said: ConfigReader, kind: str, key: str, usual: float) -> float:
    """The base for one kind of layers: of the table of transformers 5, or by the name that it had before."""
    table = said.get("rope_parameters") or {}
    turns = (table.get(kind) or {}) if isinstance(table, dict) else None
    if not isinstance(turns, dict) or turns.get("rope_type", "default") != "default":
        raise ConfigError(f"{said.path}: rope_parameters={shown(said.get('rope_parameters'))}; bertsmith reads default")
    value = turns.get("rope_theta", said.get(key, usual))
    if type(value) not in (int, float) or not 1 < value < math.inf:
        raise ConfigError(f"{said.path}: {key}={shown(value)} must be a number over 1")
    return float(value)


def _same(said: ConfigReader, keys: tuple[str, ...]) -> bool:
    """What all of these flags say."""
    found = {key: said.flag(key) for key in keys}
    if len({*found.values()}) > 1:
        claims = ", ".join(f"{key}={str(value).lower()}" for key, value in found.items())
        raise ConfigError(f"{said.path}: {claims}; bertsmith reads models in which all of them are the same")
    return found[keys[0]]


FAMILY = Modern(
    name="modern",
    model_type="modernbert",
    title="ModernBERT",
    classes="ModernBert",
    prefix=PREFIX,
    encoder=modern.Config,
    architectures={"ModernBertModel": (), "ModernBertForMaskedLM": ("masked_lm",)},
    heads={"masked_lm": ("head.", "decoder."), **{head: f"{OWN_PREFIX}{head}." for head in OWN_HEADS}},
    modules={
        "encoder.embeddings.tokens": TABLE,
        "encoder.embeddings.positions": POSITIONS,
        "encoder.embeddings.segments": SEGMENTS,
        "encoder.embeddings.norm": f"{PREFIX}embeddings.norm",
        f"{BLOCK}.attention_norm": f"{LAYER}.attn_norm",
        f"{BLOCK}.attention.qkv": f"{LAYER}.attn.Wqkv",
        f"{BLOCK}.attention.output": f"{LAYER}.attn.Wo",
        f"{BLOCK}.feed_forward_norm": f"{LAYER}.mlp_norm",
        f"{BLOCK}.feed_forward.expand": f"{LAYER}.mlp.Wi",
        f"{BLOCK}.feed_forward.contract": f"{LAYER}.mlp.Wo",
        f"{BLOCK}.output_norm": f"{PREFIX}final_norm",  # of the last block alone
        "objectives.masked_lm": "decoder",
        "objectives.masked_lm.transform": "head.dense",
        "objectives.masked_lm.norm": "head.norm",
    },
    copies=(("decoder.weight", f"{TABLE}.weight"),),
    bare=("embeddings.", "layers.", "final_norm.", "pooler."),
    witnesses={
        "vocab_size": (f"{TABLE}.weight", 0),
        "hidden_size": (f"{TABLE}.weight", 1),
        "intermediate_size": (f"{LAYER.format(0)}.mlp.Wo.weight", 1),
    },
    tensors_per_layer=6,
)
