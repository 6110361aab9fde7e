"""GPT-1 in transformers folders, whose linear layers are stored transposed (`Conv1D`)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from bertsmith.encoders import gpt
from bertsmith.encoders.transformer_encoder import TransformerConfig
from bertsmith.errors import ConfigError
from bertsmith.model_io.huggingface import family
from bertsmith.model_io.untrusted_files import ConfigReader, shown

PREFIX = "transformer."
TABLE, LM_HEAD = f"{PREFIX}tokens_embed.weight", "lm_head.weight"
BLOCK, LAYER = "encoder.blocks.{}", "h.{}"
MASK = re.compile(rf"{re.escape(PREFIX)}h\.\d+\.attn\.bias|{re.escape(PREFIX)}position_ids")  # stored before 4.31
ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}  # transformers' -> ours
SUMMARY = {  # of multiple choice
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "summary_proj_to_labels": True,
    "summary_activation": None,
}


class Gpt(family.Family):
    """GPT-1's weight names; the head of the language model is the token table."""

    def has_class(self, config: TransformerConfig) -> bool:
        """transformers' feed-forward is four times as wide as the model, and its GELU is approximated."""
        shape = config.inner == 4 * config.width and config.activation in ACTIVATIONS.values()
        return super().has_class(config) and shape and config.causal and not (config.segment_types or config.pooler)

    def architecture_of(self, objectives: Collection[str]) -> str:
        """Multiple choice has a class with a language model only, whose head has no weights of its own."""
        return super().architecture_of({*objectives, "causal_lm"} if "choose" in objectives else objectives)

    def current_names(self, stored: Iterable[str], folder: object) -> dict[str, str]:
        """Without the causal masks of old folders; transformers may store the token table as that of the head."""
        names = super().current_names(stored, folder)
        names = {new: name for new, name in names.items() if not MASK.fullmatch(new)}
        return names if LM_HEAD not in names else {TABLE: names[LM_HEAD], **names}

    def stored_heads(self, names: Iterable[str], *, causal: bool) -> set[str]:
        return super().stored_heads(names, causal=True)

    def settings(self, reader: ConfigReader, sizes: Mapping[str, int]) -> dict[str, Any]:
        """The config's values as settings of our encoder; dropout is the same everywhere but on probabilities."""
        activation = reader.text("afn", "gelu")
        if activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise ConfigError(f"{reader.path}: afn={shown(activation)} is not supported; bertsmith reads {known}")
        ours = {self.key(theirs): setting for theirs, setting in family.SETTINGS.items()}
        return {
            **{ours[key]: size for key, size in sizes.items()},
            "feed_forward": 4 * sizes["n_embd"],
            "dropout": reader.share("resid_pdrop", 0.1),
            "attention_dropout": reader.share("attn_pdrop", 0.1),
            "activation": ACTIVATIONS[activation],
            "layer_norm_eps": reader.share("layer_norm_epsilon", 1e-5),
            "initializer_range": reader.share("initializer_range", 0.02),
            "padding_id": family.read_padding(reader, 0),
        }

    def read_head(self, name: str, reader: ConfigReader) -> dict[str, Any]:
        """No settings: only one kind of multiple choice is supported."""
        if name == "choose":
            for key, usual in SUMMARY.items():
                reader.require(key, usual)
        return {}

    def dropout_key(self, name: str) -> str:
        """transformers' classification has no dropout."""
        return "summary_first_dropout" if name == "choose" else "classifier_dropout"

    def config_values(self, config: TransformerConfig) -> dict[str, Any]:
        return {
            "vocab_size": config.vocab_size,
            "n_positions": config.max_positions,
            "n_embd": config.width,
            "n_layer": config.layers,
            "n_head": config.heads,
            "afn": next(theirs for theirs, ours in ACTIVATIONS.items() if ours == config.activation),
            "resid_pdrop": config.dropout,
            "embd_pdrop": config.dropout,
            "attn_pdrop": config.attention_dropout,
            "layer_norm_epsilon": config.layer_norm_eps,
            "initializer_range": config.initializer_range,
            **SUMMARY,
            "pad_token_id": config.padding_id,
            "tie_word_embeddings": True,
        }


FAMILY = Gpt(
    name="gpt",
    model_type="openai-gpt",
    title="GPT-1",
    classes="OpenAIGPT",
    prefix=PREFIX,
    encoder=gpt.Config,
    architectures={
        "OpenAIGPTModel": (),
        "OpenAIGPTLMHeadModel": ("causal_lm",),
        "OpenAIGPTDoubleHeadsModel": ("causal_lm", "choose"),
        "OpenAIGPTForSequenceClassification": ("classify",),
    },
    heads={
        "causal_lm": "lm_head.",
        **dict.fromkeys(family.TEXT_HEADS, "score."),
        "choose": "multiple_choice_head.",
    },
    head_modules={
        "objectives.causal_lm": "lm_head",  # without weights of its own
        **{f"objectives.{name}.head": "score" for name in family.TEXT_HEADS},
        "objectives.choose.head": "multiple_choice_head.summary",
    },
    copies=((LM_HEAD, TABLE),),
    transposed=("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
    pooling="last",
    # transformers adds the token embeddings of segment ids, which tokenizers of other models return
    model_input_names=("input_ids", "attention_mask"),
    adds_special_tokens=True,
    keys={
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "hidden_dropout_prob": "resid_pdrop",
    },
    bare=("tokens_embed.", "positions_embed.", "h.", "position_ids"),
    modules={
        "encoder.embeddings.tokens": "tokens_embed",
        "encoder.embeddings.positions": "positions_embed",
        f"{BLOCK}.attention.qkv": f"{LAYER}.attn.c_attn",
        f"{BLOCK}.attention.output": f"{LAYER}.attn.c_proj",
        f"{BLOCK}.attention_norm": f"{LAYER}.ln_1",
        f"{BLOCK}.feed_forward.expand": f"{LAYER}.mlp.c_fc",
        f"{BLOCK}.feed_forward.contract": f"{LAYER}.mlp.c_proj",
        f"{BLOCK}.feed_forward_norm": f"{LAYER}.ln_2",
    },
    layer=LAYER,
    buffers=(),
    size_tensors={
        "vocab_size": ("tokens_embed.weight", 0),
        "n_embd": ("tokens_embed.weight", 1),
        "n_positions": ("positions_embed.weight", 0),
    },
    defaults={"vocab_size": 40_478, "n_positions": 512, "n_embd": 768, "n_layer": 12, "n_head": 12},
    tensors_per_layer=12,
)
