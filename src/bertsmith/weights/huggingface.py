"""config.json of a BERT folder, in and out: transformers' settings as our encoder's, architectures as objectives.

Every number is checked against the weights that are there before anything of that size is built.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from bertsmith.encoders import bert
from bertsmith.errors import ConfigError, DataError
from bertsmith.weights.bert_names import TABLE, TENSORS_PER_LAYER, layers_of
from bertsmith.weights.foreign_files import shown

CONFIG = "config.json"
ARCHITECTURES: Mapping[str, tuple[str, ...]] = {  # transformers' class -> the objectives whose heads it has
    "BertModel": (),
    "BertForPreTraining": ("masked_lm", "next_sentence"),
    "BertForMaskedLM": ("masked_lm",),
    "BertForNextSentencePrediction": ("next_sentence",),
    "BertLMHeadModel": ("causal_lm",),
    "BertForSequenceClassification": ("classify",),  # or regress: problem_type tells
    "BertForTokenClassification": ("tag",),
    "BertForQuestionAnswering": ("span",),
    "BertForMultipleChoice": ("choose",),
}
OWN, OWN_ARCHITECTURE = "bertsmith", "Bertsmith"  # of folders whose heads transformers has not
ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}  # other names of ours
MOST = 1 << 31  # no size of a model is larger
# Where the weights show what a setting must be: (tensor, dimension).
WITNESSES = {
    "vocab_size": (TABLE, 0),
    "hidden_size": (TABLE, 1),
    "max_position_embeddings": ("bert.embeddings.position_embeddings.weight", 0),
    "type_vocab_size": ("bert.embeddings.token_type_embeddings.weight", 0),
    "intermediate_size": ("bert.encoder.layer.0.intermediate.dense.weight", 0),
}


def architecture_of(objectives: Collection[str]) -> str:
    """transformers' class for an encoder with these heads."""
    wanted = {"classify" if objective == "regress" else objective for objective in objectives}
    for name, heads in ARCHITECTURES.items():
        if set(heads) == wanted and len(wanted) == len(objectives):
            return name
    known = "; ".join(" + ".join(heads) for heads in ARCHITECTURES.values() if heads)
    raise ConfigError(f"no model folder has the heads {' + '.join(objectives)} together; those that have one: {known}")


def check_family(config: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """The architectures that a config.json names; a DataError where it is another family's."""
    kind, named = config.get("model_type", "bert"), config.get("architectures") or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise ConfigError(f"{path}: architectures={shown(named)} must be a list of names")
    if kind not in ("bert", OWN) or any(not name.startswith("Bert") for name in named):
        also = f" ({', '.join(map(shown, named[:3]))})" if named else ""
        supported = ", ".join(ARCHITECTURES)
        raise DataError(f"{path} is of a {shown(kind)} model{also}; bertsmith reads bert: {supported}")
    for key, usual in (("position_embedding_type", "absolute"), ("add_cross_attention", False), ("pruned_heads", {})):
        if config.get(key, usual) not in (usual, None):
            raise ConfigError(f"{path}: {key}={shown(config[key])}; bertsmith reads {shown(usual)} only")
    if config.get("quantization_config"):
        raise ConfigError(f"{path}: quantization_config: quantised weights are not read")
    return tuple(named)


def encoder_config(
    config: Mapping[str, Any], path: Path, *, shapes: Mapping[str, tuple[int, ...]], pooler: bool
) -> bert.Config:
    """The settings of the encoder, each size equal to what the weights (by today's names) have."""
    sizes = {key: _count(config, path, key) for key in (*WITNESSES, "num_hidden_layers", "num_attention_heads")}
    _check_sizes(sizes, shapes, path)
    activation = _text(config, path, "hidden_act", "gelu")
    padding = config.get("pad_token_id")
    try:
        return bert.Config(
            layers=sizes["num_hidden_layers"],
            width=sizes["hidden_size"],
            heads=sizes["num_attention_heads"],
            feed_forward=sizes["intermediate_size"],
            vocabulary_size=sizes["vocab_size"],
            positions=sizes["max_position_embeddings"],
            segments=sizes["type_vocab_size"],
            dropout=share_of(config, path, "hidden_dropout_prob", 0.1),
            attention_dropout=share_of(config, path, "attention_probs_dropout_prob", 0.1),
            activation=ACTIVATIONS.get(activation, activation),
            epsilon=share_of(config, path, "layer_norm_eps", 1e-12),
            initial_range=share_of(config, path, "initializer_range", 0.02),
            causal=_is(config, path, "is_decoder"),
            pooler=pooler,
            padding_id=0 if padding is None else _count(config, path, "pad_token_id", least=0),
        )
    except ConfigError as error:
        raise error if str(error).startswith(str(path)) else ConfigError(f"{path}: {error}") from error


def _check_sizes(sizes: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """Every size that a config claims against what the weights have."""
    for key, (name, dimension) in WITNESSES.items():
        shape = shapes.get(name)
        if shape is None or len(shape) != 2:
            raise DataError(f"{path.parent}: the weights lack {name}, or it is no table")
        if sizes[key] != shape[dimension]:
            raise ConfigError(f"{path}: {key}={sizes[key]}, but the weights have {shape[dimension]} ({name})")
    layers = layers_of(shapes)
    if layers * TENSORS_PER_LAYER > len(shapes):  # before thousands of layers are built for nothing
        raise DataError(f"{path.parent}: the weights of its {layers:,} layers are not all there")
    if sizes["num_hidden_layers"] != layers:
        raise ConfigError(
            f"{path}: num_hidden_layers={sizes['num_hidden_layers']}, but the weights have {layers} layers"
        )


def config_contents(config: bert.Config, *, architecture: str, stored: str) -> dict[str, Any]:
    """config.json as transformers 4.57 and 5 read it; `stored` is the type of the weights, such as float32."""
    return {
        "architectures": [architecture],
        "model_type": "bert",
        "dtype": stored,  # 4.55 and older called it torch_dtype and do without it
        "vocab_size": config.vocabulary_size,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.inner,
        "hidden_act": config.activation,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "max_position_embeddings": config.positions,
        "type_vocab_size": config.segments,
        "initializer_range": config.initial_range,
        "layer_norm_eps": config.epsilon,
        "pad_token_id": config.padding_id,
        "position_embedding_type": "absolute",
        "classifier_dropout": None,
        "is_decoder": config.causal,
        "tie_word_embeddings": True,
        "use_cache": True,
    }


# --- one setting ---------------------------------------------------------------------------------------------------

DEFAULTS = {"max_position_embeddings": 512, "type_vocab_size": 2, "intermediate_size": 3072}


def _count(config: Mapping[str, Any], path: Path, key: str, *, least: int = 1) -> int:
    value = config.get(key, DEFAULTS.get(key))
    if value is None:
        raise ConfigError(f"{path} does not say {key}: it is no config of a BERT model")
    if type(value) is not int or not least <= value < MOST:
        raise ConfigError(f"{path}: {key}={shown(value)} must be a whole number, {least} or more")
    return value


def share_of(config: Mapping[str, Any], path: Path, key: str, default: float) -> float:
    """A setting that is a share."""
    value = config.get(key, default)
    if type(value) not in (int, float) or not 0 <= value < 1:
        raise ConfigError(f"{path}: {key}={shown(value)} must be a number, at least 0 and less than 1")
    return float(value)


def _text(config: Mapping[str, Any], path: Path, key: str, default: str) -> str:
    value = config.get(key, default)
    if not isinstance(value, str):
        raise ConfigError(f"{path}: {key}={shown(value)} must be a name")
    return value


def _is(config: Mapping[str, Any], path: Path, key: str) -> bool:
    value = config.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{path}: {key}={shown(value)} must be true or false")
    return value
