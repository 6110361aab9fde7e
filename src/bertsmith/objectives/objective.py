"""The contract of objectives: an objective computes a loss and predictions from an encoding.

Everything particular to an objective is on its class: how labels are collated, how logits are split into examples, how
its head is written for transformers, what an exported graph returns, and which pipeline decodes its predictions. The
defaults fit an objective with one class label per text or per selected token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith import config as registry
from bertsmith.errors import BertsmithError
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.types import IGNORE_INDEX, Batch, Direction, Encoding, Loss, Row, SequenceDecoder, Vocabulary

FOLDER = "bertsmith.objectives"
Embed = Callable[[Batch], Tensor]  # an encoder's `embed`: the embeddings [T, E] of a batch
Pipeline = Literal[
    "",
    "fill-mask",
    "text-generation",
    "translation",
    "next-sentence",
    "text-classification",
    "multi-label-classification",
    "text-regression",
    "token-classification",
    "question-answering",
    "multiple-choice",
]


class SelectedRows(Protocol):
    """The rows of an example and the tokens of the row that are classified [R]."""

    @property
    def rows(self) -> tuple[Row, ...]: ...

    @property
    def indices(self) -> NDArray[np.int64] | None: ...


class LabelledRows(SelectedRows, Protocol):
    """With the label, None where it is unknown: the fields of `tasks.task.Features` that objectives read."""

    @property
    def target(self) -> Any: ...

    @property
    def sentence_starts(self) -> NDArray[np.int64] | None: ...


@dataclass(frozen=True)
class AuxiliaryModel:
    """A model that an objective trains beside its encoder: an encoder that shares the embeddings, and a head."""

    encoder_changes: Mapping[str, Any]  # settings of its encoder that differ from the settings of the shared one
    weights: Mapping[str, Tensor]  # of its encoder, without the shared embeddings
    head: Objective


class Objective(nn.Module):
    """A head over an encoder. Q predictions in a batch, K classes, V rows of the token table, E its width, D width."""

    # The name of its file, or a head's own, such as classify-cola; key of its labels, indices and loss terms.
    name: str
    causal: ClassVar[bool] = False  # needs an encoder whose tokens attend to earlier tokens only
    separate_directions: ClassVar[bool] = False  # needs an encoder of a forward and a backward half
    # What it reads. All False: the last layer at `indices`.
    reads_pooled: bool = False  # the encoder's pooled vector of each text
    reads_all_tokens: bool = False  # the last layer at every token
    reads_all_layers: bool = False  # every layer at every token
    reads_target: ClassVar[bool] = False  # `Encoding.target`: the decoder at every token of `Batch.target`
    reads_encoding: bool = True  # False: its loss is that of `sample_replacements` alone
    per_text: bool = False  # one prediction per text, not per token
    # a corrupted copy of the batch, in a forward of its own: other objectives read the original
    reads_copy: bool = False
    tied: bool = False  # its logits are products with the encoder's token table
    classes: int = 0  # of a softmax whose untrained loss is log(classes); 0: there is none
    class_weights: Tensor | None  # [K] of the losses of each class; None: all 1

    # Inference: which pipeline decodes its logits; the server offers the pipeline's route.
    pipeline: ClassVar[Pipeline] = ""
    # Fine-tuning: the label of an example whose label is unknown.
    ignored_label: ClassVar[Any] = IGNORE_INDEX
    # transformers folders: the objective whose head has the same weights, where it is another one.
    transformers_head: ClassVar[str] = ""
    problem_type: ClassVar[str] = ""  # of config.json, for sequence classification
    default_labels: ClassVar[tuple[str, ...]] = ()  # of config.json, where the settings have no `labels`
    config_keys: ClassVar[Mapping[str, str]] = {}  # setting -> key in config.json
    # ONNX: output names, and the name of the only output beside the outputs of other heads.
    output_names: ClassVar[tuple[str, ...]] = ("logits",)
    combined_output_name: ClassVar[str] = ""
    several_rows: ClassVar[bool] = False  # an example has several rows, one for each choice

    def __init__(self, *, weight: float) -> None:
        super().__init__()
        self.weight = weight
        self.register_buffer("class_weights", None, persistent=False)

    def __init_subclass__(cls) -> None:
        cls.name = cls.__module__.rpartition(".")[2]

    def corrupt(self, batch: Batch) -> Batch:
        """The batch with this objective's inputs: corrupted ids, `indices` and `labels`."""
        return batch

    @property
    def threads_over_rows(self) -> bool:
        """Whether its loss on a CPU is computed by threads over parts of the rows (`nn.row_threads`)."""
        return False

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """The names of the terms of its loss."""
        return (self.name,)

    @property
    def perplexity_terms(self) -> tuple[str, ...]:
        """The loss terms that are a cross entropy per token over the vocabulary."""
        return ()

    def sample_replacements(self, batch: Batch, embed: Embed, table: Tensor | None) -> tuple[Batch, Loss | None]:
        """The corrupted batch with tokens sampled from a generator, and the generator's loss; `table` [V, E]."""
        return batch, None

    def per_token_modules(self) -> list[nn.Module]:
        """Its modules that every token passes through, whether it has a label or not."""
        return []

    def auxiliary_models(self) -> dict[str, AuxiliaryModel]:
        """The models that it trains beside the encoder, by name; they are saved in folders of that name."""
        return {}

    def chance_accuracy(self, counts: Mapping[str, float]) -> float | None:
        """The accuracy of always predicting the same class, where it follows from the counts per token."""
        return None

    def chance_loss(self, accuracy: float) -> float | None:
        """The loss of always predicting the frequencies of the classes, where it follows from the chance accuracy."""
        return None

    def indices(self, batch: Batch) -> Tensor | None:
        """The flat token indices [R] whose hidden states it reads; None where the batch has none."""
        return batch.indices.get(self.name)

    def loss(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Loss:
        """Sums and counts of the loss; `table` [V, E] is the encoder's token table, None where it has none."""
        return self.loss_from_logits(self.predict(encoding, batch, table), batch)

    def loss_from_logits(self, logits: Tensor, batch: Batch) -> Loss:
        """The cross entropy of logits [Q, K], by class weight, as is the number of correct predictions."""
        labels, logits = self.labels(batch), at_least_float32(logits)
        weights = None if self.class_weights is None else self.class_weights.to(logits.dtype)
        total = F.cross_entropy(logits, labels, weights, ignore_index=IGNORE_INDEX, reduction="sum")
        return self.make_loss(batch, total, self.label_weights(batch) * (logits.argmax(-1) == labels))

    def make_loss(self, batch: Batch, total: Tensor, correct: Tensor | None) -> Loss:
        """The loss whose sum is `total` []; `correct` is the weight of each correct label, None if undefined."""
        return Loss(
            sums={self.name: total},
            counts={self.name: self.counts(batch)[self.name]},
            correct={} if correct is None else {self.name: correct.sum()},
            weights={self.name: self.weight},
        )

    def predict(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Tensor:
        """The logits [Q, K]."""
        raise NotImplementedError

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The number of labels [] of a corrupted batch, or the sum of their weights; known before the forward."""
        return {self.name: self.label_weights(batch).sum()}

    def label_weights(self, batch: Batch) -> Tensor:
        """The weight of each label [Q]: 0 for those that do not count, and else that of its class."""
        mask = self.label_mask(batch)
        return mask if self.class_weights is None else self.class_weights[self.labels(batch).where(mask, 0)] * mask

    def label_mask(self, batch: Batch) -> Tensor:
        """Which labels count [Q] bool."""
        return self.labels(batch) != IGNORE_INDEX

    def labels(self, batch: Batch) -> Tensor:
        """The labels [Q] of a corrupted batch."""
        if self.name not in batch.labels:
            known = ", ".join(batch.labels) or "none"
            raise BertsmithError(
                f"the batch has no labels for {self.name} (it has {known}): corrupt it, or add them when collating"
            )
        return batch.labels[self.name]

    @classmethod
    def collate_labels(cls, features: Sequence[LabelledRows]) -> tuple[list[Any], list[Any] | None]:
        """A label for each row and, where certain tokens are classified, their indices in each row.

        The label of an example with several rows is that of its first row.
        """
        labels: list[Any] = []
        for one in features:
            labels += [cls.ignored_label if one.target is None else one.target]
            labels += [cls.ignored_label] * (len(one.rows) - 1)
        return labels, None

    @classmethod
    def collate_indices(cls, name: str, features: Sequence[LabelledRows]) -> dict[str, list[Any]]:
        """Further token indices of each row for `Batch.indices`, by name; `name` is that of the head."""
        return {}

    @classmethod
    def split_logits(cls, logits: NDArray[np.float32], features: Sequence[SelectedRows]) -> list[NDArray[np.float32]]:
        """The logits of each example, in the shape that `Task.decode` takes: those of its first row."""
        rows = [0, *accumulate(len(one.rows) for one in features)]
        return [logits[first] for first in rows[:-1]]

    @property
    def sequence_decoder(self) -> SequenceDecoder | None:
        """How the labels of a sequence follow from its logits; None: each from its own, by softmax."""
        return None

    def has_transformers_head(self, pooling: str) -> bool:
        """Whether the head computes what transformers' head of the same weights computes.

        `pooling`: how heads for texts read them in the model's family.
        """
        return True

    def graph_outputs(self, logits: Tensor, shape: Sequence[int]) -> list[Tensor]:
        """The outputs of an exported graph, named `output_names`; `shape` is that of its input ids."""
        return [logits if self.per_text else logits.view(*shape, -1)]


def at_least_float32(logits: Tensor) -> Tensor:
    """The logits in float32 or wider, for sums of exponentials."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """What an objective needs to know of the encoder and the tokenizer when it is built."""

    width: int  # of the encoder's hidden states
    layers: int = 0  # of the encoder, without the embeddings
    layer_widths: tuple[int, ...] = ()  # of the encoder's embeddings and layers, where they differ
    vocab_size: int  # rows of the token table
    target_vocab_size: int = 0  # of the token table of `Batch.target`; 0: there is none
    embedding_width: int | None = None  # of the encoder's token table; None: the encoder has none
    vocabulary: Vocabulary | None = None  # needed to corrupt batches, not to compute losses or predictions
    layer_config: LayerConfig = field(default_factory=LayerConfig)
    direction: Direction = "both"  # of the encoder
    rope_theta: float | None = None  # the base of the encoder's rotary position embeddings, where it has them
    compiles: bool = True  # by torch.compile, like the encoder
    seed: int = 0  # of the corruption


class ObjectiveConfig(Protocol):
    """An objective's `Config`."""

    def build(self, context: BuildContext) -> Objective:
        """The objective with new weights."""


def kind_of(head: str) -> str:
    """The objective of a head: classify for classify-cola, one of several heads of the same kind."""
    return head.partition("-")[0]


@cache
def objective_class(name: str) -> type[Objective]:
    """The class of an objective by the name of its file, or of a head such as classify-cola."""
    module = registry.find_kind(FOLDER, kind_of(name))
    return next(
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Objective) and value.__module__ == module.__name__
    )


def objectives_with(*pipelines: Pipeline) -> list[str]:
    """The names of the objectives whose predictions these pipelines decode."""
    return [name for name in registry.kinds(FOLDER) if objective_class(name).pipeline in pipelines]


def name_of(config: ObjectiveConfig) -> str:
    """The objective's name."""
    return type(config).__module__.rpartition(".")[2]
