"""Shared by the heads of fine-tuning and of sentence pairs: settings, label names, and heads that read one vector.

N texts, D width.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from bertsmith.errors import ConfigError
from bertsmith.nn.batch_norm_head import BatchNormHead
from bertsmith.nn.biattention import BiattentionPooler, MaxoutHead
from bertsmith.nn.pooling import (
    POOLINGS,
    SUMS,
    LayerChoice,
    LayerConcatenation,
    LayerReader,
    LayerSum,
    Pooling,
    Recurrent,
    TextPooler,
    check_layers,
    layer_numbers,
)
from bertsmith.nn.recurrent import BiLSTM
from bertsmith.objectives.objective import BuildContext, Objective
from bertsmith.types import Batch, Direction, Encoding


def default_names(count: int) -> tuple[str, ...]:
    """The label names of transformers where a model has none."""
    return tuple(f"LABEL_{number}" for number in range(count))


def check_label_names(labels: tuple[str, ...]) -> None:
    """Raises a ConfigError unless there are at least two labels, all different and not empty."""
    if len(labels) < 2:
        raise ConfigError(f"labels={list(labels)}: there must be at least 2 labels")
    if len(set(labels)) < len(labels):
        duplicate = Counter(labels).most_common(1)[0][0]
        raise ConfigError(f"labels has {duplicate!r} more than once: label names must be unique")
    if "" in labels:
        raise ConfigError(f"labels[{labels.index('')}] is empty: every label needs a name")


def check_weights(weights: tuple[float, ...], labels: tuple[str, ...], setting: str) -> None:
    """Raises a ConfigError unless there are none, or one positive number for each label."""
    if weights and len(weights) != len(labels):
        raise ConfigError(f"{setting} has {len(weights)} numbers for {len(labels)} labels: each label needs one")
    for label, weight in zip(labels, weights, strict=False):
        if not 0 < weight < math.inf:
            raise ConfigError(f"{setting}: the weight of {label!r} is {weight:g}: it must be above 0")


def weight_tensor(weights: tuple[float, ...]) -> Tensor | None:
    """The weights [K] as a tensor; None where there are none."""
    return torch.tensor(weights, dtype=torch.float32) if weights else None


def check_dropout(dropout: float, name: str = "dropout") -> None:
    """Raises a ConfigError where it is not a probability below 1."""
    if not 0 <= dropout < 1:
        raise ConfigError(f"{name}={dropout} must be at least 0 and less than 1")


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
    """Settings of a recurrent network between encoder and head (P-BERT §5.1 and §5.3)."""

    recurrent: Recurrent = "none"  # the network between encoder and head
    recurrent_layers: int = 2  # of the BiLSTM
    recurrent_width: int = 768  # in each direction
    recurrent_dropout: float = 0.0  # on the input of each layer

    def __post_init__(self) -> None:
        if self.recurrent not in ("none", "bilstm"):
            raise ConfigError(f"recurrent={self.recurrent} must be one of none, bilstm")
        if self.recurrent_layers < 1 or self.recurrent_width < 1:
            sizes = f"recurrent_layers={self.recurrent_layers} and recurrent_width={self.recurrent_width}"
            raise ConfigError(f"{sizes} must be at least 1")
        check_dropout(self.recurrent_dropout, "recurrent_dropout")

    def build_recurrent(self, width: int) -> BiLSTM | None:
        """The network over vectors of that width."""
        if self.recurrent == "none":
            return None
        return BiLSTM(width, self.recurrent_width, layers=self.recurrent_layers, dropout=self.recurrent_dropout)


@dataclass(frozen=True, kw_only=True)
class LayersConfig(RecurrentConfig):
    """Settings of heads that choose the layers of the encoder which they read."""

    layers: LayerChoice = "top"  # which layers of the encoder are read
    mix_layer_norm: bool = False  # weighted sums of layers: normalise each layer before the sum (P-ELMo §3.2)
    mix_l2: float = 0.0  # of ‖w‖² in the loss, over the weights of the sum before their softmax (P-ELMo §3.2)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_layers(self.layers)
        if not 0 <= self.mix_l2 < math.inf:
            raise ConfigError(f"mix_l2={self.mix_l2:g} must be at least 0")
        if (self.mix_layer_norm or self.mix_l2) and self.layers not in SUMS:
            setting = f"mix_l2={self.mix_l2:g}" if self.mix_l2 else "mix_layer_norm=true"
            found = f"{setting} needs a weighted sum of layers, but layers={self.layers} is not one"
            raise ConfigError(f"{found}: write layers=mix, or leave it out")

    def build_layers(self, context: BuildContext) -> LayerReader:
        """What reads the chosen layers of the encoder."""
        numbers = layer_numbers(self.layers, context.layers)
        every = context.layer_widths or (context.width,) * (context.layers + 1)
        widths = [every[number] for number in numbers]
        if self.layers not in SUMS:
            return LayerConcatenation(numbers, width=sum(widths), last=context.layers)
        if len(set(widths)) > 1:
            raise ConfigError(f"layers={self.layers}: the encoder's layers have different widths: use layers=top")
        return LayerSum(numbers, width=widths[0], layer_norm=self.mix_layer_norm, l2=self.mix_l2)


@dataclass(frozen=True, kw_only=True)
class TextConfig(LayersConfig):
    """Settings of heads that read one vector per text."""

    dropout: float = 0.1  # on the vector of each text
    hidden: int = 0  # width of a hidden layer, with batch normalisation before it and after it (P-ULMFiT §3.3); 0: none
    hidden_dropout: float = 0.1  # on the hidden layer
    # how a text becomes one vector; auto: the token that a causal encoder reads last, else pooler or cls; biattention:
    # the biattentive classification network, with a maxout classifier (McCann et al. 2017, §5)
    pooling: Pooling = "auto"
    biattention_width: int = 300  # biattention: of its LSTMs, in each direction
    both_orders: bool = False  # read each pair of texts in both orders and add the two vectors (P-GPT1 §3.3)
    texts: int | None = None  # of each example, 1 or 2 (a pair); fine-tuning takes it from the data; None: unknown
    weight: float = 1.0  # of its mean loss in the total

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dropout(self.dropout)
        check_dropout(self.hidden_dropout, "hidden_dropout")
        if self.hidden < 0:
            raise ConfigError(f"hidden={self.hidden} must be at least 0")
        if self.texts not in (None, 1, 2):
            raise ConfigError(f"texts={self.texts} must be 1 or 2")
        if self.pooling not in POOLINGS:
            raise ConfigError(f"pooling={self.pooling} must be one of {', '.join(POOLINGS)}")
        self._check_biattention()
        if self.pooling == "pooler" and self.layers != "top":
            raise ConfigError(f"pooling=pooler reads the top layer: with layers={self.layers}, use pooling=cls")
        if self.pooling == "pooler" and self.recurrent != "none":
            raise ConfigError(
                f"pooling=pooler reads the encoder: with recurrent={self.recurrent}, use pooling=cls, last or mean"
            )

    def _check_biattention(self) -> None:
        if self.biattention_width < 1:
            raise ConfigError(f"biattention_width={self.biattention_width} must be at least 1")
        if self.pooling == "biattention" and (self.hidden or self.recurrent != "none"):
            setting = f"hidden={self.hidden}" if self.hidden else f"recurrent={self.recurrent}"
            raise ConfigError(f"pooling=biattention has recurrent and hidden layers of its own: leave out {setting}")

    def with_pooling(self, direction: Direction) -> Self:
        """Resolves `pooling=auto`; the token that a causal encoder reads first depends on itself alone."""
        if self.pooling != "auto":
            return self
        if direction == "none" and self.recurrent == "none":  # the first token depends on itself alone, as every token
            return replace(self, pooling="mean")
        pooled = self.layers == "top" and self.recurrent == "none" and direction == "both"
        return replace(self, pooling="last" if direction == "forward" else "pooler" if pooled else "cls")


@dataclass(frozen=True, kw_only=True)
class LabelConfig(TextConfig):
    """Settings of heads with a logit for each label."""

    labels: tuple[str, ...] = default_names(2)  # class names by class index

    def __post_init__(self) -> None:
        super().__post_init__()
        check_label_names(self.labels)


class TextHead(Objective):
    """The vector of each text through dropout and a linear layer (bert: run_classifier.py)."""

    per_text = True
    config_keys: ClassVar[Mapping[str, str]] = {"texts": "texts_per_example"}  # transformers ignores the key

    def __init__(self, config: TextConfig, context: BuildContext, *, outputs: int) -> None:
        super().__init__(weight=config.weight)
        self.config = config = config.with_pooling(context.direction)
        layers = config.build_layers(context)
        self.pooling: TextPooler | BiattentionPooler
        if config.pooling == "biattention":
            self.pooling = BiattentionPooler(layers, config.biattention_width, dropout=config.dropout)
        else:
            recurrent, backward = config.build_recurrent(layers.width), context.direction == "backward"
            self.pooling = TextPooler(config.pooling, layers, recurrent, backward=backward)
        self.reads_pooled = self.pooling.reads_pooled
        self.reads_all_tokens, self.reads_all_layers = self.pooling.reads_all_tokens, self.pooling.reads_all_layers
        self.dropout = nn.Dropout(config.dropout)
        # transformers' heads for multiple choice always have a bias
        bias = context.layer_config.classifier_bias or self.several_rows
        self.head: nn.Linear | BatchNormHead | MaxoutHead = nn.Linear(self.pooling.width, outputs, bias=bias)
        if config.hidden:
            dropouts = {"dropout": config.dropout, "hidden_dropout": config.hidden_dropout}
            self.head = BatchNormHead(self.pooling.width, config.hidden, outputs, **dropouts)
        if config.pooling == "biattention":
            width = config.biattention_width
            self.head = MaxoutHead(self.pooling.width, width, outputs, dropout=config.dropout)
        context.layer_config.init_weights(self)

    def has_transformers_head(self, pooling: str) -> bool:
        """transformers reads the top layer of one text."""
        config = self.config
        plain = config.layers == "top" and config.recurrent == "none" and not (config.both_orders or config.hidden)
        return plain and config.pooling == pooling

    def indices(self, batch: Batch) -> Tensor:
        """One token for each text [N]."""
        return self.pooling.indices(batch)

    def predict(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Tensor:
        """The logits of each text [N, outputs]; with `both_orders` they are equal for the two orders of a pair."""
        x_NW = self.pooling(encoding, batch, self.name)
        if self.config.both_orders:  # texts 2n and 2n + 1
            number_N = torch.arange(len(x_NW), device=x_NW.device)
            x_NW = x_NW + x_NW[(number_N ^ 1).clamp(max=len(x_NW) - 1)]
        if isinstance(self.head, BatchNormHead | MaxoutHead):
            logits: Tensor = self.head(x_NW, batch.cls_positions >= 0)
        else:
            logits = self.head(self.dropout(x_NW))
        return logits


class PairHead(Objective):
    """Two classes from the encoder's pooled vector (bert: run_pretraining.py; albert: run_pretraining.py)."""

    pipeline = "next-sentence"
    class_names: ClassVar[tuple[str, str]]
    reads_pooled = True
    per_text = True
    classes = 2

    def __init__(self, context: BuildContext, *, weight: float) -> None:
        super().__init__(weight=weight)
        self.classify = nn.Linear(context.width, 2)
        context.layer_config.init_weights(self)

    def chance_accuracy(self, counts: Mapping[str, float]) -> float:
        """Both classes are about equally frequent."""
        return 0.5

    def chance_loss(self, accuracy: float) -> float | None:
        """The entropy of the two classes."""
        return -sum(share * math.log(share) for share in (accuracy, 1 - accuracy)) if 0 < accuracy < 1 else None

    def predict(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Tensor:
        """The logits of both classes for each text [N, 2]."""
        assert encoding.pooled is not None, "the model pools where an objective reads the pooled vector"
        logits_N2: Tensor = self.classify(encoding.pooled)
        return logits_N2
