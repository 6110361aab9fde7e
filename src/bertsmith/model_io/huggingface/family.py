"""What a family of models is in transformers' folders: the names of its weights, its classes, its settings.

BERT's way where a family does not say otherwise. Names of ours are those of `Model.state_dict()`. Every number of a
config is checked against the weights that are there before anything of that size is built. Knows no tensors but those
that are counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from bertsmith.encoders.transformer_encoder import TransformerConfig
from bertsmith.errors import ConfigError, DataError
from bertsmith.model_io.untrusted_files import ConfigReader
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.objectives.objective import objective_class

POOLER = "encoder.pooler"
TEXT_HEADS = ("classify", "regress")
SUMMARY = {"summary_type": "first", "summary_use_proj": True}  # of multiple choice
WORDS = ("masked_lm", "causal_lm")  # two questions to one head
NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}  # other names of ours

Shapes = Mapping[str, tuple[int, ...]]  # of the weights, by transformers' names of today


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family. A file of this folder holds it as `FAMILY`; what is not BERT's way there is a method of its own."""

    name: str  # of its file here and of its encoder
    model_type: str = ""  # transformers' name of it; the same where absent
    title: str  # as the paper spells it
    classes: str  # how the names of transformers' classes begin
    prefix: str  # before the encoder's weights wherever there is a head
    encoder: type[TransformerConfig]
    architectures: Mapping[str, tuple[str, ...]]  # transformers' class -> the objectives whose heads it has
    heads: Mapping[str, str | tuple[str, ...]]  # objective -> how the weights of its head begin
    modules: Mapping[str, str | tuple[str, ...]]  # ours -> theirs, or those that are stacked; {} for each number
    omitted: tuple[str, ...] = ()  # beginnings of names of ours that have no place in a folder
    buffers: frozenset[str] = frozenset()  # tensors of old folders that are counted, not learned
    copies: tuple[tuple[str, str], ...] = ()  # the same tensor once more: (copy, original)
    interleaved: tuple[str, ...] = ()  # modules where numbers that here are in two halves of a head stand in turn
    bare: tuple[str, ...] = ("embeddings.", "encoder.", "pooler.")  # the encoder's, in a folder without a head
    size_tensors: Mapping[str, tuple[str, int]]  # setting -> tensor and dimension that show what it must be
    defaults: Mapping[str, int] = field(default_factory=dict)  # of sizes that a config may leave out
    tensors_per_layer: int = 16

    def __post_init__(self) -> None:
        object.__setattr__(self, "model_type", self.model_type or self.name)

    def head_prefixes(self, heads: Iterable[str]) -> tuple[str, ...]:
        """How the weights of these heads begin."""
        found = [self.heads[head] for head in heads]
        return tuple(begin for some in found for begin in ((some,) if isinstance(some, str) else some))

    @property
    def table(self) -> str:
        """transformers' name of the token table."""
        (name,) = self.transformers_names("encoder.embeddings.tokens.weight")
        return name

    def transformers_names(self, ours: str, *, heads: Collection[str] = ()) -> tuple[str, ...]:
        """transformers' names of one weight of ours, in the order in which they are stacked.

        `heads`: the objectives of the model. Empty where transformers folders do not hold the weight.
        """
        if self.omitted and ours.startswith(self.omitted):
            return ()
        module, _, kind = ours.rpartition(".")
        general = NUMBER.sub("{}", module)
        theirs = self.pooler(heads) if general == POOLER else self.modules[general]
        parts = (theirs,) if isinstance(theirs, str) else theirs
        return tuple(f"{part}.{kind}".format(*NUMBER.findall(module)) for part in parts)

    def to_pairs(self, name: str, value: Tensor, heads: int) -> Tensor:
        """A weight in transformers' rotary layout: where it is interleaved, rotated pairs are neighbours in a head."""
        if not name.rpartition(".")[0].endswith(self.interleaved):
            return value
        return value.view(heads, 2, -1, *value.shape[1:]).transpose(1, 2).reshape_as(value)

    def to_halves(self, name: str, value: Tensor, heads: int) -> Tensor:
        """A weight in our rotary layout, which rotates the first half of a head with its second half."""
        if not name.rpartition(".")[0].endswith(self.interleaved):
            return value
        return value.view(heads, -1, 2, *value.shape[1:]).transpose(1, 2).reshape_as(value)

    def pooler(self, heads: Collection[str]) -> str:
        """transformers' name of the encoder's pooler in a model with these heads."""
        return f"{self.prefix}pooler.dense"

    def current_name(self, name: str) -> str:
        """A name as transformers writes it today in a model with heads: prefix in front, weight and bias of norms."""
        name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        return f"{self.prefix}{name}" if name.startswith(self.bare) else name

    def current_names(self, found: Iterable[str], where: object) -> dict[str, str]:
        """Today's name -> the name found; two that come to the same are a DataError."""
        names: dict[str, str] = {}
        for name in found:
            new = self.current_name(name)
            if new in names:
                raise DataError(f"{where}: {names[new]!r} and {name!r} are two names of one weight")
            names[new] = name
        return names

    def stored_heads(self, names: Iterable[str], *, causal: bool) -> set[str]:
        """The objectives whose weights are among these names and can be nobody else's."""
        known = {head: begin for head, begin in self.heads.items() if head not in WORDS or head == WORDS[causal]}
        owners = Counter(known.values())
        found = tuple(names)
        return {
            head
            for head, begin in known.items()
            if owners[begin] == 1 and any(name.startswith(begin) for name in found)
        }

    def architecture_of(self, objectives: Collection[str]) -> str:
        """transformers' class for an encoder with these heads; empty where there is none."""
        wanted = {objective_class(name).transformers_head or name for name in objectives}
        stored = {module.split(".")[1] for module in self.modules if module.startswith("objectives.")}
        if len(wanted) < len(objectives) or not {*objectives} <= stored:
            return ""
        return next((name for name, heads in self.architectures.items() if set(heads) == wanted), "")

    def has_class(self, config: TransformerConfig) -> bool:
        """Whether transformers has a class for such an encoder."""
        return True

    def stored_constants(self, config: TransformerConfig) -> dict[str, Tensor]:
        """What transformers wants to find though nobody learns it."""
        return {}

    def read_encoder(self, reader: ConfigReader, shapes: Shapes) -> TransformerConfig:
        """The settings of the encoder, each size equal to what the weights have."""
        keys = (*self.size_tensors, "num_hidden_layers", "num_attention_heads")
        sizes = {key: reader.count(key, self.defaults.get(key)) for key in keys}
        self.check_sizes(sizes, shapes, reader.path)
        try:
            return self.encoder(**self.settings(reader, sizes))
        except ConfigError as error:
            raise (
                error if str(error).startswith(str(reader.path)) else ConfigError(f"{reader.path}: {error}")
            ) from error

    def settings(self, reader: ConfigReader, sizes: Mapping[str, int]) -> dict[str, Any]:
        """What a config says, as settings of ours."""
        reader.require("position_embedding_type", "absolute")
        padding, activation = reader.get("pad_token_id"), reader.text("hidden_act", "gelu")
        return {
            "layers": sizes["num_hidden_layers"],
            "width": sizes["hidden_size"],
            "heads": sizes["num_attention_heads"],
            "feed_forward": sizes["intermediate_size"],
            "vocab_size": sizes["vocab_size"],
            "max_positions": sizes["max_position_embeddings"],
            "segment_types": sizes["type_vocab_size"],
            "dropout": reader.share("hidden_dropout_prob", 0.1),
            "attention_dropout": reader.share("attention_probs_dropout_prob", 0.1),
            "activation": ACTIVATIONS.get(activation, activation),
            "layer_norm_eps": reader.share("layer_norm_eps", 1e-12),
            "initializer_range": reader.share("initializer_range", 0.02),
            "causal": reader.flag("is_decoder"),
            "pooler": True,
            "padding_id": 0 if padding is None else reader.count("pad_token_id", least=0),
        }

    def check_sizes(self, sizes: Mapping[str, int], shapes: Shapes, path: Path) -> None:
        """Every size that a config claims against what the weights have."""
        for key, (name, dimension) in self.size_tensors.items():
            shape = shapes.get(name)
            if shape is None or len(shape) != 2:
                raise DataError(f"{path.parent}: the weights lack {name}, or it is no table")
            if sizes[key] != shape[dimension]:
                raise ConfigError(f"{path}: {key}={sizes[key]}, but the weights have {shape[dimension]} ({name})")
        layers = self.stored_layers(shapes)
        if layers * self.tensors_per_layer > len(shapes):  # before thousands of layers are built for nothing
            raise DataError(f"{path.parent}: the weights of its {layers:,} layers are not all there")
        self.check_layers(sizes, layers, path)

    def check_layers(self, sizes: Mapping[str, int], layers: int, path: Path) -> None:
        """The number of layers that a config claims against those that have weights."""
        reader = sizes["num_hidden_layers"]
        if reader != layers:
            raise ConfigError(f"{path}: num_hidden_layers={reader}, but the weights have {layers} layers")

    def stored_layers(self, names: Iterable[str]) -> int:
        """How many layers have weights."""
        pattern = re.compile(rf"{re.escape(self.prefix)}encoder\.layer\.(\d+)\.")
        return len({found[1] for name in names if (found := pattern.match(name))})

    def with_pooler(self, config: TransformerConfig, *, readers: Collection[str], stored: bool) -> TransformerConfig:
        """The settings with the pooler that these objectives read; `there`: the weights have one that may stay."""
        return replace(config, pooler=bool(readers) or stored)

    def read_head(self, name: str, reader: ConfigReader) -> dict[str, Any]:
        """Settings of a head that only this family's configs say."""
        return {}

    def head_layer_config(self, name: str, config: TransformerConfig) -> LayerConfig:
        """How a head of this family's is made."""
        return config.head_layer_config

    def dropout_key(self, name: str) -> str:
        """What a config calls the dropout of a head."""
        return "classifier_dropout"

    def config_values(self, config: TransformerConfig) -> dict[str, Any]:
        """The encoder's settings as transformers 4.57 and 5 read them."""
        return {
            "vocab_size": config.vocab_size,
            "hidden_size": config.width,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "intermediate_size": config.inner,
            "hidden_act": config.activation,
            "hidden_dropout_prob": config.dropout,
            "attention_probs_dropout_prob": config.attention_dropout,
            "max_position_embeddings": config.max_positions,
            "type_vocab_size": config.segment_types,
            "initializer_range": config.initializer_range,
            "layer_norm_eps": config.layer_norm_eps,
            "pad_token_id": config.padding_id,
            "position_embedding_type": "absolute",
            "classifier_dropout": None,
            "is_decoder": config.causal,
            "tie_word_embeddings": True,
            "use_cache": True,
        }


class ClassifierFamily(Family):
    """Families whose head for text classification has two linear layers: the first one is the encoder's pooler here."""

    def pooler(self, heads: Collection[str]) -> str:
        """The first matrix of that head, where there is one."""
        return "classifier.dense" if any(head in TEXT_HEADS for head in heads) else super().pooler(heads)

    def with_pooler(self, config: TransformerConfig, *, readers: Collection[str], stored: bool) -> TransformerConfig:
        """With dropout before it where it is part of that head."""
        found = super().with_pooler(config, readers=readers, stored=stored)
        dropout = config.dropout if any(name in TEXT_HEADS for name in readers) else 0.0
        return cast(TransformerConfig, replace(cast(Any, found), pooler_dropout=dropout))


class SummaryFamily(ClassifierFamily):
    """Families whose head for multiple choice has a second linear layer too."""

    def pooler(self, heads: Collection[str]) -> str:
        """The first matrix of the head that reads one vector for each text."""
        return super().pooler(heads) if any(head in TEXT_HEADS for head in heads) else "sequence_summary.summary"

    def summary_activation(self, reader: ConfigReader) -> str:
        """What stands behind that matrix where choices are read."""
        return "gelu"

    def read_head(self, name: str, reader: ConfigReader) -> dict[str, Any]:
        """Nothing: choices are read one way only."""
        if name == "choose":
            for key, usual in (*SUMMARY.items(), ("summary_activation", self.summary_activation(reader))):
                reader.require(key, usual)
        return {}

    def dropout_key(self, name: str) -> str:
        """Choices have a key of their own."""
        return "summary_last_dropout" if name == "choose" else "classifier_dropout"

    def config_values(self, config: TransformerConfig) -> dict[str, Any]:
        """BERT's, and how choices are read."""
        return super().config_values(config) | SUMMARY


def transformer_modules(prefix: str) -> dict[str, str | tuple[str, ...]]:
    """The names of an encoder that is BERT's but for the prefix."""
    block, layer = "encoder.blocks.{}", f"{prefix}encoder.layer.{{}}"
    return {
        "encoder.embeddings.tokens": f"{prefix}embeddings.word_embeddings",
        "encoder.embeddings.positions": f"{prefix}embeddings.position_embeddings",
        "encoder.embeddings.segments": f"{prefix}embeddings.token_type_embeddings",
        "encoder.embeddings.norm": f"{prefix}embeddings.LayerNorm",
        f"{block}.attention.qkv": tuple(f"{layer}.attention.self.{part}" for part in ("query", "key", "value")),
        f"{block}.attention.output": f"{layer}.attention.output.dense",
        f"{block}.attention_norm": f"{layer}.attention.output.LayerNorm",
        f"{block}.feed_forward.expand": f"{layer}.intermediate.dense",
        f"{block}.feed_forward.contract": f"{layer}.output.dense",
        f"{block}.feed_forward_norm": f"{layer}.output.LayerNorm",
    }


# how the weights of heads for tasks begin
TASK_HEADS = {**dict.fromkeys(("classify", "regress", "tag", "choose"), "classifier."), "span": "qa_outputs."}


def task_modules(of_texts: str = "classifier") -> dict[str, str]:
    """The names of heads for tasks; `of_texts`: of the matrix that gives a text's labels or its number."""
    return {
        "objectives.classify.head": of_texts,
        "objectives.regress.head": of_texts,
        "objectives.tag.head": "classifier",
        "objectives.choose.head": "classifier",
        "objectives.span.head": "qa_outputs",
    }


def word_modules(head: str, transform: str, norm: str) -> dict[str, str]:
    """The names of the head for words, whichever question it answers: its bias, its matrix and its norm."""
    parts = {"": head, ".transform": transform, ".norm": norm}
    return {f"objectives.{name}{part}": theirs for name in WORDS for part, theirs in parts.items()}


def transformer_size_tensors(prefix: str) -> dict[str, tuple[str, int]]:
    """Where the weights of an encoder that is BERT's but for the prefix show its sizes."""
    return {
        "vocab_size": (f"{prefix}embeddings.word_embeddings.weight", 0),
        "hidden_size": (f"{prefix}embeddings.word_embeddings.weight", 1),
        "max_position_embeddings": (f"{prefix}embeddings.position_embeddings.weight", 0),
        "type_vocab_size": (f"{prefix}embeddings.token_type_embeddings.weight", 0),
        "intermediate_size": (f"{prefix}encoder.layer.0.intermediate.dense.weight", 0),
    }


def stored_positions(prefix: str) -> frozenset[str]:
    """What transformers stored before version 4.31 though it is only counted."""
    return frozenset({f"{prefix}embeddings.position_ids", f"{prefix}embeddings.token_type_ids"})
