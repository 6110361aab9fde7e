"""Data of a fine-tuning run: features, batches in a seeded order (short texts share rows), and predictions."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith import config
from bertsmith.config import did_you_mean
from bertsmith.data.collate import collate, rows_needed
from bertsmith.errors import ConfigError, DataError
from bertsmith.model_io.model import Model
from bertsmith.nn.recurrent import BiLSTM
from bertsmith.objectives.objective import SelectedRows, objective_class, objectives_with
from bertsmith.tasks.tables import join_names
from bertsmith.tasks.task import Example, Features, LabelTask, Prediction, Task, truncated_examples
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.tokenizers.unknown_words import check_unknown_words
from bertsmith.training.distributed import World
from bertsmith.training.plan import micro_batch_advice
from bertsmith.training.prefetch import Prefetcher
from bertsmith.training.recipe import FinetuneConfig
from bertsmith.types import Batch

OBJECTIVES = "bertsmith.objectives"
WEIGHTS = ("class_weights", "positive_weights")  # settings of heads, by label
HASH_RANGE = 2**64
CUDA_TOKENS, TOKENS = 65_536, 4096  # of one forward of `predict`


@dataclass(frozen=True)
class TaskData:
    """A task's examples and their features for one tokenizer, shared by all runs of a sweep."""

    task: Task
    max_length: int
    train: list[Features]
    examples: int  # of train
    dev: list[Example]
    classes: dict[
        str, int
    ]  # training examples by label (tagging: words), the most frequent first; empty without labels
    truncated: int  # training examples that were truncated
    full_length: int  # tokens of the longest training row before truncation
    positions: int  # the longest row that the model takes
    unknown_word_rate: float  # share of the words of a sample of the training texts

    def facts(self) -> dict[str, Any]:
        """Sizes of the data and what was detected in its files, as plain JSON."""
        return {
            "examples": self.examples,
            "dev_examples": len(self.dev),
            "columns": dict(self.task.detected),
            "classes": self.classes,
            "max_length": self.max_length,
            "truncated": self.truncated,
            "unknown_word_rate": self.unknown_word_rate,
        }

    def truncation_note(self) -> list[str]:
        """How many training examples were truncated, and the setting to change; empty if none was."""
        if not self.truncated:
            return []
        many = f"{self.truncated:,} of {self.examples:,} training examples were truncated at {self.max_length} tokens"
        if self.max_length >= self.positions:
            return [f"{many}: the model has no more positions"]
        return [f"{many}: set max_length={min(self.positions, 1 << (self.full_length - 1).bit_length())}"]

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits of all training features."""
        digest = hashlib.sha256()
        for features in self.train:
            for row in features.rows:
                digest.update(row.ids.tobytes())
            digest.update(repr(features.target).encode())
        return digest.hexdigest()[:16]


def build_task(settings: FinetuneConfig, labels: Sequence[str] = ()) -> Task:
    files = {split: Path(path) for split, path in settings.files.items()}
    task: Task = settings.task.build(files=files, labels=labels)
    kind = settings.head.get("kind", task.objective)
    found, pipeline = objective_class(kind).pipeline, objective_class(task.objective).pipeline
    if found != pipeline:
        raise ConfigError(
            f"head.kind={kind} predicts for {found or 'no pipeline'}; {settings.name} needs an objective "
            f"for {pipeline}: {', '.join(objectives_with(pipeline))}"
        )
    task.objective = kind
    task.use_metrics(settings.metrics, settings.main_metric)
    return task


def prepare(settings: FinetuneConfig, task: Task, tokenizer: Tokenizer, *, positions: int) -> TaskData:
    """Reads the files and makes the features."""
    length = settings.max_length or min(task.max_length, positions)
    if length > positions:
        raise ConfigError(
            f"max_length={length} exceeds the {positions} positions of {settings.model}: write max_length={positions}"
        )
    examples, dev = train_and_dev(settings, task)
    if dev and (settings.metrics or settings.main_metric):
        task.scores(dev, task.baseline(dev)[1])  # raises before the training if a metric is wrong
    features = task.rows(examples, tokenizer, max_length=length, training=True)
    if not features:
        raise DataError(f"{settings.name}: none of its {len(examples):,} training examples has a label")
    return TaskData(
        task=task,
        max_length=length,
        train=features,
        examples=len(examples),
        dev=dev,
        classes=count_classes(task, examples),
        truncated=len(truncated_examples(features)),
        full_length=max(len(row) + sum(row.truncated) for one in features for row in one.rows),
        positions=positions,
        unknown_word_rate=check_examples(tokenizer, examples),
    )


def count_classes(task: Task, examples: Sequence[Example]) -> dict[str, int]:
    """How often each label occurs, the most frequent first; empty for tasks without labels."""
    labelled = [example for example in examples if example.gold is not None]
    counts = Counter(task.gold_labels(labelled) if isinstance(task, LabelTask) else ())
    return {str(label): count for label, count in sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))}


def check_examples(tokenizer: Tokenizer, examples: Sequence[Example]) -> float:
    """The share of unknown words of a sample of the examples; warns if there are many."""
    return check_unknown_words(tokenizer, (text for example in examples for text in example.texts))


def train_and_dev(settings: FinetuneConfig, task: Task) -> tuple[list[Example], list[Example]]:
    """The task's own splits; without dev examples, `dev_fraction` of the training examples becomes dev.

    `limit` keeps the first of the training examples that are left; dev and the labels do not depend on it.
    """
    train, fraction, limit = task.examples("train"), settings.dev_fraction, settings.limit or None
    if task.has_split("dev"):
        if fraction:
            raise ConfigError(f"{settings.name} has dev examples: leave out dev_fraction={fraction:g}")
        return train[:limit], task.examples("dev")
    if not fraction:
        return train[:limit], []
    dev = [example for example in train if is_dev(example, fraction)]
    kept = [example for example in train if not is_dev(example, fraction)]
    if not (kept and dev):
        raise ConfigError(
            f"dev_fraction={fraction:g} splits {len(train):,} examples into {len(kept):,} for training and "
            f"{len(dev):,} for dev: both need some"
        )
    return kept[:limit], dev


def label_weights(settings: FinetuneConfig, task: Task) -> dict[str, Any]:
    """The weights of `head.class_weights` or `head.positive_weights` in the order of the labels."""
    weights: dict[str, Any] = {}
    for key, given in settings.head.items():
        if key not in WEIGHTS or not isinstance(task, LabelTask):
            continue
        known = config.find_kind(OBJECTIVES, task.objective).Config.__dataclass_fields__
        other = next((name for name in WEIGHTS if name in known), "")
        if key not in known and other:
            raise ConfigError(f"head.{key}: the head of {settings.name} has head.{other} instead")
        if given == "balanced":
            weights[key] = task.balanced_weights(train_and_dev(settings, task)[0])
        elif isinstance(given, Mapping):
            for label in given:
                if label not in task.labels:
                    near = did_you_mean(label, task.labels)
                    raise ConfigError(f"head.{key}: {label!r} is not a label ({join_names(task.labels)}){near}")
            weights[key] = [given.get(label, 1.0) for label in task.labels]
        elif not isinstance(given, Sequence) or isinstance(given, str):
            raise ConfigError(f"head.{key}={given} must be balanced, or a table such as {{{task.labels[0]}=2.0}}")
    return weights


def sampled_classes(settings: FinetuneConfig, data: TaskData) -> NDArray[np.int64] | None:
    """The class of each of the training features for balanced sampling; None without it."""
    if settings.sampling == "all":
        return None
    if objective_class(data.task.objective).pipeline != "text-classification":
        raise ConfigError(
            f"sampling=balanced needs one label for each example, which {settings.name} does not have: leave it out"
        )
    return np.array([one.target for one in data.train], np.int64)


def dev_examples(settings: FinetuneConfig, task: Task) -> list[Example]:
    """The dev examples alone; train is read only where they come from it."""
    return task.examples("dev") if task.has_split("dev") else train_and_dev(settings, task)[1]


def is_dev(example: Example, fraction: float) -> bool:
    """Whether an example belongs to that fraction: by the hash of its longest text.

    So questions on one passage stay together, and neither order nor seed nor other examples matter.
    """
    longest = max(example.texts, key=lambda text: (len(text), text))
    digest = hashlib.blake2b(longest.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") < fraction * HASH_RANGE


def make_batch(
    features: Sequence[Features],
    objective: str,
    *,
    length: int,
    padding_id: int,
    shape: tuple[int, int, int] | None = None,
    samples: Sequence[int] | None = None,
) -> Batch:
    """One batch of features with their labels, where known; text n is row n of all rows in order."""
    rows = [row for one in features for row in one.rows]
    numbers = samples or range(len(features))
    sample_ids = [number for number, one in zip(numbers, features, strict=True) for _ in one.rows]
    shared: dict[str, Any] = {"length": length, "padding_id": padding_id, "pack": True}
    labels, indices = objective_class(objective).collate_labels(features)
    if indices is None:
        shared["shape"] = shape and shape[:2]
    else:
        shared |= {"shape": shape, "indices": {objective: indices}}
    return collate(rows, labels={objective: labels}, sample_ids=sample_ids, **shared)


@dataclass(frozen=True, eq=False)
class SampleOrder:
    """The endless order of training samples: each epoch is a permutation of its own.

    With `classes`, the class of each sample, an epoch of the same size has all classes equally often.
    """

    count: int
    seed: int
    classes: NDArray[np.int64] | None = None

    def take(self, first: int, count: int) -> list[tuple[int, int]]:
        """(unique id, sample) of `count` positions of the order, from `first` on."""
        taken = []
        for position in range(first, first + count):
            epoch, index = divmod(position, self.count)
            sample = int(_samples_of(self, epoch)[index])
            taken.append((position if self.classes is not None else epoch * self.count + sample, sample))
        return taken

    def draw(self, epoch: int) -> NDArray[np.int64]:
        """The samples of an epoch."""
        generator = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
        if self.classes is None:
            permutation: NDArray[np.int64] = generator.permutation(self.count)
            return permutation
        members = [np.flatnonzero(self.classes == one) for one in generator.permutation(np.unique(self.classes))]
        sizes = [len(part) for part in np.array_split(np.arange(self.count), len(members))]
        drawn = []
        for some, size in zip(members, sizes, strict=True):  # all samples of a class before one is repeated
            repeated = [generator.permutation(some) for _ in range(-(-size // len(some)))]
            drawn.append(np.concatenate([*repeated, some[:0]])[:size])
        return generator.permutation(np.concatenate(drawn))


@lru_cache(maxsize=4)
def _samples_of(order: SampleOrder, epoch: int) -> NDArray[np.int64]:
    return order.draw(epoch)


class FinetuneLoader(Prefetcher):
    """`loader(step)`, counted from 0: this rank's micro-batches, a function of the seed and the step."""

    def __init__(
        self,
        features: Sequence[Features],
        objective: str,
        *,
        length: int,
        padding_id: int,
        batch_size: int,
        micro_batch_size: int,
        steps: int,
        seed: int,
        world: World,
        classes: NDArray[np.int64] | None = None,
        static_shape: bool = True,
    ) -> None:
        """`static_shape`: on a GPU all batches have one shape, so that one compiled or captured graph serves them.

        `classes`: of the features, for balanced sampling.
        """
        super().__init__(self._make, source="the task")
        self.features, self.objective, self.length, self.padding_id = features, objective, length, padding_id
        self.batch_size, self.world = batch_size, world
        self.micro_batch_size = micro_batch_size or max(batch_size // world.size, 1)
        self.order, self.steps = SampleOrder(len(features), seed, classes), steps
        if batch_size % (self.micro_batch_size * world.size):
            sizes = f"micro-batches of {self.micro_batch_size} on {world.size} ranks"
            advice = micro_batch_advice(batch_size, self.micro_batch_size, world.size)
            raise ConfigError(f"{sizes} do not divide steps of {batch_size} evenly{advice}")
        self.shape = self._static_shape(steps) if static_shape and world.device.type == "cuda" else None

    def _make(self, step: int) -> list[Batch]:
        share = self.batch_size // self.world.size
        begin = step * self.batch_size + self.world.rank * share
        return [
            self.batch(first, self.micro_batch_size) for first in range(begin, begin + share, self.micro_batch_size)
        ]

    def batch(self, first: int, count: int) -> Batch:
        """A batch of `count` examples from the `first` on, in the order of the run."""
        taken = self.order.take(first, count)
        features = [self.features[number] for _, number in taken]
        samples = [sample_id for sample_id, _ in taken]
        sizes: dict[str, Any] = {"length": self.length, "padding_id": self.padding_id, "shape": self.shape}
        batch = make_batch(features, self.objective, samples=samples, **sizes)
        if self.shape:
            return batch.replace(dense=False).map(Tensor.pin_memory)  # for asynchronous copies
        return batch.replace(max_seqlen=max(len(row) for one in features for row in one.rows))

    def _static_shape(self, steps: int) -> tuple[int, int, int]:
        """Rows, texts and label slots that are enough for every micro-batch of the run."""
        rows = texts = slots = 1
        for first in range(0, steps * self.batch_size, self.micro_batch_size):  # of all ranks: they must agree
            some = [self.features[number] for _, number in self.order.take(first, self.micro_batch_size)]
            sizes = [len(row) for one in some for row in one.rows]
            rows, texts = max(rows, rows_needed(sizes, self.length)), max(texts, len(sizes))
            slots = max(slots, sum(0 if one.indices is None else len(one.indices) for one in some))
        return rows, texts, slots


def batches_by_length(
    features: Sequence[Features], objective: str, *, length: int, padding_id: int, max_tokens: int
) -> Iterator[tuple[list[int], Batch]]:
    """All features in batches of about `max_tokens` tokens, texts of similar length together, with their indices."""
    sizes = [sum(len(row) for row in one.rows) for one in features]
    order = sorted(range(len(features)), key=sizes.__getitem__)
    totals = list(accumulate(sizes[number] for number in order))
    cuts = [0]
    for position, total in enumerate(totals):
        if total - (totals[cuts[-1] - 1] if cuts[-1] else 0) > max_tokens and position > cuts[-1]:
            cuts.append(position)
    for begin, end in pairwise([*cuts, len(order)]):
        some = order[begin:end]
        width = max(length and min(length, max(len(row) for number in some for row in features[number].rows)), 1)
        yield some, make_batch([features[number] for number in some], objective, length=width, padding_id=padding_id)


def predict(
    model: Model, task: Task, examples: Sequence[Example], tokenizer: Tokenizer, *, length: int, bf16: bool = False
) -> list[Prediction]:
    """A prediction for each example, on the model's device."""
    features = task.rows(examples, tokenizer, max_length=length)
    logits = predict_logits(model, features, task.objective, padding_id=tokenizer.padding_id, length=length, bf16=bf16)
    return task.decode(examples, features, logits)


@torch.no_grad()
def predict_logits(
    model: Model, features: Sequence[Features], objective: str, *, padding_id: int, length: int, bf16: bool = False
) -> list[NDArray[np.float32]]:
    """The logits of each of the features, in the shapes that `Task.decode` takes."""
    device, was_training = next(model.parameters()).device, model.training
    model.eval()
    recurrent = any(isinstance(module, BiLSTM) for module in model.modules())  # 768 wide, some 70 kB a token
    most = CUDA_TOKENS if device.type == "cuda" and not recurrent else TOKENS
    results: dict[int, NDArray[np.float32]] = {}
    for numbers, batch in batches_by_length(features, objective, length=length, padding_id=padding_id, max_tokens=most):
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            logits = model.predict(batch.to(device), objective)
        some = [features[number] for number in numbers]
        results |= zip(numbers, split_logits(logits, some, objective), strict=True)
    model.train(was_training)
    return [results[number] for number in range(len(features))]


def split_logits(logits: Tensor, rows: Sequence[SelectedRows], objective: str) -> list[NDArray[np.float32]]:
    """The logits of a batch, example by example."""
    return objective_class(objective).split_logits(logits.float().cpu().numpy(), rows)
