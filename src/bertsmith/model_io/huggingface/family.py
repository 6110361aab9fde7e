"""A model family of transformers: weight names, classes and settings. The defaults are BERT's.

Our names are those of `Model.state_dict()`. Every size in a config is checked against the weights before anything of
that size is built.
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
from bertsmith.model_io.untrusted_files import ConfigReader, shown
from bertsmith.nn import activations
from bertsmith.objectives.objective import objective_class

POOLER = "encoder.pooler"
TEXT_HEADS = ("classify", "regress", "multi_label")
SUMMARY = {"summary_type": "first", "summary_use_proj": True}  # of multiple choice
LM_HEADS = ("masked_lm", "causal_lm")  # two objectives with the same head
PROJECTION = re.compile(r"embedding_hidden_mapping_in|embeddings_project")  # widens factorised embeddings
NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}  # aliases of transformers

Names = str | tuple[str, ...]
Shapes = Mapping[str, tuple[int, ...]]  # of the weights, by today's names in transformers

TASK_HEADS = {**dict.fromkeys((*TEXT_HEADS, "tag", "choose"), "classifier."), "span": "qa_outputs."}
BLOCK, LAYER = "encoder.blocks.{}", "encoder.layer.{}"
BERT_MODULES: dict[str, Names] = {
    "encoder.embeddings.tokens": "embeddings.word_embeddings",
    "encoder.embeddings.positions": "embeddings.position_embeddings",
    "encoder.embeddings.segments": "embeddings.token_type_embeddings",
    "encoder.embeddings.norm": "embeddings.LayerNorm",
    f"{BLOCK}.attention.qkv": tuple(f"{LAYER}.attention.self.{part}" for part in ("query", "key", "value")),
    f"{BLOCK}.attention.output": f"{LAYER}.attention.output.dense",
    f"{BLOCK}.attention_norm": f"{LAYER}.attention.output.LayerNorm",
    f"{BLOCK}.feed_forward.expand": f"{LAYER}.intermediate.dense",
    f"{BLOCK}.feed_forward.contract": f"{LAYER}.output.dense",
    f"{BLOCK}.feed_forward_norm": f"{LAYER}.output.LayerNorm",
}
BERT_SIZE_TENSORS = {
    "vocab_size": ("embeddings.word_embeddings.weight", 0),
    "hidden_size": ("embeddings.word_embeddings.weight", 1),
    "max_position_embeddings": ("embeddings.position_embeddings.weight", 0),
    "type_vocab_size": ("embeddings.token_type_embeddings.weight", 0),
    "intermediate_size": ("encoder.layer.0.intermediate.dense.weight", 0),
}
BERT_DEFAULTS = {"max_position_embeddings": 512, "type_vocab_size": 2, "intermediate_size": 3072}
SETTINGS = {  # sizes in a config -> settings of our encoders
    "num_hidden_layers": "layers",
    "hidden_size": "width",
    "num_attention_heads": "heads",
    "intermediate_size": "feed_forward",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_positions",
    "type_vocab_size": "segment_types",
    "embedding_size": "embedding_width",
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family; its file holds it as `FAMILY` and overrides what differs from BERT."""

    name: str  # of its file and of its encoder
    model_type: str = ""  # in transformers; empty: `name`
    title: str  # in the paper's spelling
    classes: str  # prefix of its transformers classes
    prefix: str  # of the encoder's weights in a model with heads
    encoder: type[TransformerConfig]
    architectures: Mapping[str, tuple[str, ...]]  # transformers' class -> the objectives whose heads it has
    heads: Mapping[str, Names]  # objective -> prefix of the weights of its head
    head_modules: Mapping[str, str]  # our name -> transformers' name
    copies: tuple[tuple[str, str], ...]  # tied weights that may be stored twice: (copy, original)
    omitted: tuple[str, ...] = ()  # prefixes of our weights that folders do not hold
    interleaved: tuple[str, ...] = ()  # modules with interleaved rotary dimensions
    transposed: tuple[str, ...] = ()  # modules whose matrices are stored transposed
    keys: Mapping[str, str] = field(default_factory=dict)  # BERT's keys of config.json -> the family's
    model_input_names: tuple[str, ...] = ()  # that tokenizers must return; empty: the tokenizer's own
    adds_special_tokens: bool = False  # folders may lack the embeddings of special tokens: they are initialised
    pooling: str = "pooler"  # how heads for texts read them; see `nn.pooling.TextPooler`
    bare: tuple[str, ...] = ("embeddings.", "encoder.", "pooler.")  # the encoder's weights in a folder without heads
    # names of the encoder, without the prefix
    modules: Mapping[str, Names] = field(default_factory=BERT_MODULES.copy)  # a tuple is stacked here; {} is an index
    layer: str = LAYER  # empty: layers may share weights
    buffers: Collection[str] = ("embeddings.position_ids", "embeddings.token_type_ids")  # stored before 4.31
    size_tensors: Mapping[str, tuple[str, int]] = field(default_factory=BERT_SIZE_TENSORS.copy)  # tensor, dimension
    defaults: Mapping[str, int] = field(default_factory=BERT_DEFAULTS.copy)  # of sizes that are not in the config
    tensors_per_layer: int = 16

    def __post_init__(self) -> None:
        object.__setattr__(self, "model_type", self.model_type or self.name)

    def head_prefixes(self, heads: Iterable[str]) -> tuple[str, ...]:
        """The prefixes of the weights of these heads."""
        return tuple(prefix for head in heads for prefix in _tuple(self.heads[head]))

    def transformers_names(self, ours: str, *, heads: Collection[str] = ()) -> tuple[str, ...]:
        """transformers' names of one weight of ours, in the order in which they are stacked.

        `heads`: the objectives of the model. Empty where transformers folders do not hold the weight.
        """
        if ours.startswith(self.omitted):
            return ()
        module, _, kind = ours.rpartition(".")
        general = NUMBER.sub("{}", module)
        if general == POOLER or general in self.head_modules:
            parts: Iterable[str] = [self.pooler(heads) if general == POOLER else self.head_modules[general]]
        else:
            parts = [f"{self.prefix}{part}" for part in _tuple(self.modules[general])]
        return tuple(f"{part}.{kind}".format(*NUMBER.findall(module)) for part in parts)

    def key(self, name: str) -> str:
        """The family's key in config.json for one of BERT's."""
        return self.keys.get(name, name)

    def is_transposed(self, name: str) -> bool:
        """Whether a weight is stored transposed, as those of transformers' `Conv1D` are."""
        module, _, kind = name.rpartition(".")
        return kind == "weight" and module.endswith(self.transposed)

    def convert(self, name: str, value: Tensor, heads: int, *, to_file: bool) -> Tensor:
        """A weight in the other layout, where they differ: transposed, or rotary pairs instead of halves of a head."""
        if self.is_transposed(name):
            return value.T.contiguous()
        if not name.rpartition(".")[0].endswith(self.interleaved):
            return value
        sizes = (2, -1) if to_file else (-1, 2)
        return value.view(heads, *sizes, *value.shape[1:]).transpose(1, 2).reshape_as(value)

    def pooler(self, heads: Collection[str]) -> str:
        """transformers' name of the encoder's pooler in a model with these heads."""
        return f"{self.prefix}pooler.dense"

    def current_names(self, stored: Iterable[str], folder: object) -> dict[str, str]:
        """Today's name in a model with heads -> the stored name, without constants; no weight may have two names."""
        names: dict[str, str] = {}
        for name in stored:
            new = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
            new = f"{self.prefix}{new}" if new.startswith(self.bare) else new
            if new in names:
                raise DataError(f"{folder}: {names[new]!r} and {name!r} are two names of one weight")
            names[new] = name
        constants = {f"{self.prefix}{name}" for name in self.buffers}
        return {new: name for new, name in names.items() if new not in constants}

    def stored_heads(self, names: Iterable[str], *, causal: bool) -> set[str]:
        """The objectives whose weights are among these names, if no other objective has the same prefix."""
        known = {head: begin for head, begin in self.heads.items() if head not in LM_HEADS or head == LM_HEADS[causal]}
        owners = Counter(known.values())
        stored = tuple(names)
        unique = {head: begin for head, begin in known.items() if owners[begin] == 1}
        return {head for head, begin in unique.items() if any(name.startswith(begin) for name in stored)}

    def architecture_of(self, objectives: Collection[str]) -> str:
        """transformers' class for an encoder with these heads; empty where there is none."""
        wanted = {objective_class(name).transformers_head or name for name in objectives}
        stored = {module.split(".")[1] for module in self.head_modules}
        if len(wanted) < len(objectives) or not {*objectives} <= stored:
            return ""
        return next((name for name, heads in self.architectures.items() if set(heads) == wanted), "")

    def has_class(self, config: TransformerConfig) -> bool:
        """Whether transformers has a class for such an encoder; most have learned positions only."""
        return config.positions == "learned"

    def stored_constants(self, config: TransformerConfig) -> dict[str, Tensor]:
        """Constants that transformers expects in a folder."""
        return {}

    def read_encoder(self, reader: ConfigReader, shapes: Shapes) -> TransformerConfig:
        """The encoder's settings, every size checked against the weights."""
        keys = (*self.size_tensors, self.key("num_hidden_layers"), self.key("num_attention_heads"))
        sizes = {key: reader.count(key, self.defaults.get(key)) for key in keys}
        self.check_sizes(sizes, shapes, reader.path)
        settings = self.settings(reader, sizes)
        try:
            return self.encoder(**settings)
        except ConfigError as error:
            text = str(error)
            for key, ours in {**SETTINGS, "pad_token_id": "padding_id", "num_hidden_groups": "groups"}.items():
                text = re.sub(rf"\b{ours}=", f"{self.key(key)}=", text)
            raise ConfigError(f"{reader.path}: {text}") from error

    def settings(self, reader: ConfigReader, sizes: Mapping[str, int]) -> dict[str, Any]:
        """The config's values as settings of our encoder."""
        reader.require("position_embedding_type", "absolute")
        return {
            **{SETTINGS[key]: size for key, size in sizes.items()},
            "dropout": reader.share("hidden_dropout_prob", 0.1),
            "attention_dropout": reader.share("attention_probs_dropout_prob", 0.1),
            "activation": read_activation(reader, "hidden_act", "gelu"),
            "layer_norm_eps": reader.share("layer_norm_eps", 1e-12),
            "initializer_range": reader.share("initializer_range", 0.02),
            "causal": reader.flag("is_decoder"),
            "pooler": True,
            "padding_id": read_padding(reader, 0),
        }

    def check_sizes(self, sizes: Mapping[str, int], shapes: Shapes, path: Path) -> None:
        """Compares the sizes of a config with the weights."""
        for key, (tensor, dimension) in self.size_tensors.items():
            name = f"{self.prefix}{tensor}"
            shape = shapes.get(name)
            if shape is None or len(shape) != 2:
                raise DataError(f"{path.parent}: the weights lack {name}, or it is not a table")
            if key == "hidden_size" and "embedding_size" not in self.size_tensors:
                self.check_embedding_width(sizes[key], shape[dimension], shapes, path)
            if sizes[key] != shape[dimension]:
                raise ConfigError(f"{path}: {key}={sizes[key]}, but the weights have {shape[dimension]} ({name})")
        if self.layer:
            pattern = re.compile(re.escape(f"{self.prefix}{self.layer}.").replace(r"\{\}", r"(\d+)"))
            layers = len({match[1] for name in shapes if (match := pattern.match(name))})
            key = self.key("num_hidden_layers")
            if layers * self.tensors_per_layer > len(shapes):  # before thousands of layers are built
                raise DataError(f"{path.parent}: weights of its {layers:,} layers are missing")
            if sizes[key] != layers:
                raise ConfigError(f"{path}: {key}={sizes[key]}, but the weights have {layers} layers")

    def check_embedding_width(self, width: int, stored: int, shapes: Shapes, path: Path) -> None:
        """Refuses embeddings that a linear layer widens; only ALBERT's and ELECTRA's settings have their width."""
        if layer := next(filter(PROJECTION.search, shapes), None):
            found = f"token embeddings of width {stored} and {layer}, but hidden_size={width}"
            raise ConfigError(
                f"{path}: the weights have {found}: factorised embeddings as in albert and electra, which bertsmith "
                f"does not read as {self.title}; set model_type if the folder is of one of these"
            )

    def with_pooler(self, config: TransformerConfig, *, readers: Collection[str], stored: bool) -> TransformerConfig:
        """The settings with a pooler if objectives read it; `stored`: or if the weights have one."""
        return replace(config, pooler=bool(readers) or stored)

    def read_head(self, name: str, reader: ConfigReader) -> dict[str, Any]:
        """Settings of a head that only this family's configs have."""
        return {}

    def dropout_key(self, name: str) -> str:
        """The key of a head's dropout in config.json."""
        return "classifier_dropout"

    def config_values(self, config: TransformerConfig) -> dict[str, Any]:
        """The encoder's settings for transformers 4.57 and 5."""
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
    """Families whose head for text classification has two linear layers, of which the first is the pooler here."""

    def pooler(self, heads: Collection[str]) -> str:
        """The first layer of that head, where the model has it."""
        return "classifier.dense" if any(head in TEXT_HEADS for head in heads) else super().pooler(heads)

    def with_pooler(self, config: TransformerConfig, *, readers: Collection[str], stored: bool) -> TransformerConfig:
        """With dropout before it where it is part of that head."""
        pooled = super().with_pooler(config, readers=readers, stored=stored)
        dropout = config.dropout if any(name in TEXT_HEADS for name in readers) else 0.0
        return cast(TransformerConfig, replace(cast(Any, pooled), pooler_dropout=dropout))


class SummaryFamily(ClassifierFamily):
    """Families whose head for multiple choice has a second linear layer too."""

    def pooler(self, heads: Collection[str]) -> str:
        """The first layer of the head that reads the pooled vector."""
        return super().pooler(heads) if any(head in TEXT_HEADS for head in heads) else "sequence_summary.summary"

    def summary_activation(self, reader: ConfigReader) -> str:
        """The activation after that layer for multiple choice."""
        return "gelu"

    def read_head(self, name: str, reader: ConfigReader) -> dict[str, Any]:
        """No settings: only one kind of summary is supported."""
        if name == "choose":
            for key, usual in (*SUMMARY.items(), ("summary_activation", self.summary_activation(reader))):
                reader.require(key, usual)
        return {}

    def dropout_key(self, name: str) -> str:
        """Multiple choice has its own key."""
        return "summary_last_dropout" if name == "choose" else "classifier_dropout"

    def config_values(self, config: TransformerConfig) -> dict[str, Any]:
        """BERT's, and the summary of multiple choice."""
        return super().config_values(config) | SUMMARY


def _tuple(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def read_activation(reader: ConfigReader, key: str, default: str) -> str:
    """Our name of an activation."""
    name = reader.text(key, default)
    if (ours := ACTIVATIONS.get(name, name)) not in activations.ACTIVATIONS:
        known = ", ".join(sorted({*activations.ACTIVATIONS, *ACTIVATIONS}))
        raise ConfigError(f"{reader.path}: {key}={shown(name)} is not supported; bertsmith reads {known}")
    return ours


def read_padding(reader: ConfigReader, default: int) -> int:
    """The id of padding; 0 where the config says null."""
    return 0 if reader.get("pad_token_id", default) is None else reader.count("pad_token_id", default, least=0)


def task_architectures(classes: str) -> dict[str, tuple[str, ...]]:
    """transformers' classes with the heads of fine-tuning."""
    return {
        f"{classes}ForSequenceClassification": ("classify",),  # or regress or multi_label, by problem_type
        f"{classes}ForTokenClassification": ("tag",),
        f"{classes}ForQuestionAnswering": ("span",),
        f"{classes}ForMultipleChoice": ("choose",),
    }


def task_modules(classifier: str = "classifier") -> dict[str, str]:
    """The weight names of fine-tuning heads; `classifier`: of the output layer for text classification."""
    theirs = {**dict.fromkeys(TEXT_HEADS, classifier), "tag": "classifier", "choose": "classifier"}
    return {f"objectives.{name}.head": head for name, head in (theirs | {"span": "qa_outputs"}).items()}


def lm_modules(head: str, transform: str, norm: str, *, objectives: Iterable[str] = LM_HEADS) -> dict[str, str]:
    """The weight names of language-model heads: bias, linear layer and layer norm."""
    parts = {"": head, ".transform": transform, ".norm": norm}
    return {f"objectives.{name}{part}": theirs for name in objectives for part, theirs in parts.items()}


def tied_decoder(head: str, prefix: str) -> tuple[tuple[str, str], ...]:
    """The copies of the token table and of the bias in a language-model head."""
    table = f"{prefix}embeddings.word_embeddings.weight"
    return ((f"{head}.decoder.weight", table), (f"{head}.decoder.bias", f"{head}.bias"))
