"""Data of a fine-tuning run: examples, features, weights of labels, and predictions."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith import config
from bertsmith.config import did_you_mean
from bertsmith.data.packing.counter_random import mix_counters, stream_key
from bertsmith.errors import ConfigError, DataError
from bertsmith.model_io.model import Model
from bertsmith.nn.recurrent import BiLSTM
from bertsmith.objectives.objective import SelectedRows, objective_class, objectives_with
from bertsmith.tasks.tables import join_names
from bertsmith.tasks.task import Example, Features, LabelTask, Prediction, Task, truncated_examples
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.tokenizers.unknown_words import check_unknown_words
from bertsmith.training.finetune_loader import batches_by_length
from bertsmith.training.recipe import FinetuneConfig

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
    # training examples by label (tagging: words), the most frequent first; empty without labels
    classes: dict[str, int]
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
    if len(task.heads) > 1 and (unknown := set(settings.head) - {name.partition("-")[2] for name in task.heads}):
        known = ", ".join(name.partition("-")[2] for name in task.heads)
        raise ConfigError(f"head.{min(unknown)}: with several tasks ({known}) write head.TASK.SETTING")
    for name, part in task.heads.items():
        kind = settings.head_settings(name).get("kind", part.objective)
        found, pipeline = objective_class(kind).pipeline, objective_class(part.objective).pipeline
        if found != pipeline:
            raise ConfigError(
                f"head.kind={kind} predicts for {found or 'no pipeline'}; {part.name} needs an objective "
                f"for {pipeline}: {', '.join(objectives_with(pipeline))}"
            )
        part.objective = kind
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

    `limit` keeps some of the training examples that are left; dev and the labels do not depend on it.
    """
    train, fraction = task.examples("train"), settings.dev_fraction
    if task.has_split("dev"):
        if fraction:
            raise ConfigError(f"{settings.name} has dev examples: leave out dev_fraction={fraction:g}")
        return limited(settings, task, train), task.examples("dev")
    if not fraction:
        return limited(settings, task, train), []
    dev = [example for example in train if is_dev(example, fraction)]
    kept = [example for example in train if not is_dev(example, fraction)]
    if not (kept and dev):
        raise ConfigError(
            f"dev_fraction={fraction:g} splits {len(train):,} examples into {len(kept):,} for training and "
            f"{len(dev):,} for dev: both need some"
        )
    return limited(settings, task, kept), dev


def limited(settings: FinetuneConfig, task: Task, examples: Sequence[Example]) -> list[Example]:
    """`limit` examples of each task: the first ones, or a stratified subset."""
    by_head: dict[str, list[Example]] = {}
    for example in examples:
        by_head.setdefault(example.head, []).append(example)
    chosen: list[Example] = []
    for head, own in by_head.items():
        if settings.limit and settings.subset == "stratified":
            labelled = isinstance(task.heads.get(head, task), LabelTask)
            order = stratified_order([example.gold if labelled else None for example in own], settings.seed)
            own = [own[index] for index in sorted(order[: settings.limit].tolist())]
        chosen += own[: settings.limit or None]
    return chosen


def stratified_order(classes: Sequence[Any], seed: int) -> NDArray[np.int64]:
    """A random order of examples in which every prefix has the class proportions of all, to within one example a class.

    The examples of a class, in random order, are spread evenly over the whole. A pure function of classes and seed.
    """
    members: dict[Any, list[int]] = {}
    for index, one in enumerate(classes):
        members.setdefault(one, []).append(index)
    random = mix_counters(stream_key(seed, "subset"), np.arange(len(classes)))
    offsets = mix_counters(stream_key(seed, "classes of a subset"), np.arange(len(members))) / float(HASH_RANGE)
    places = np.empty(len(classes))
    for offset, own in zip(offsets, members.values(), strict=True):
        indices = np.array(own)
        places[indices[np.argsort(random[indices], kind="stable")]] = (np.arange(len(own)) + offset) / len(own)
    return np.argsort(places, kind="stable")


def label_weights(settings: FinetuneConfig, task: Task, head: Mapping[str, Any]) -> dict[str, Any]:
    """The weights of `class_weights` or `positive_weights` of a head in the order of the labels."""
    weights: dict[str, Any] = {}
    for key, given in head.items():
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
    if len(heads := list(data.task.heads)) > 1:
        return np.array([heads.index(one.head) for one in data.train], np.int64)
    if objective_class(data.task.objective).pipeline != "text-classification":
        raise ConfigError(
            f"sampling=balanced needs one label for each example, which {settings.name} does not have: leave it out"
        )
    return np.array([one.target for one in data.train], np.int64)


def loss_weights(settings: FinetuneConfig, data: TaskData) -> dict[str, float]:
    """The weight of each head's mean loss of a step: the task's own, times its share of the examples of an epoch.

    So each example counts alike, as if every step were drawn from one task in proportion to its size.
    """
    heads = list(data.task.heads)
    counts = Counter(one.head for one in data.train)
    even = settings.sampling == "balanced"
    shares = {head: 1 / len(heads) if even else counts[head] / len(data.train) for head in heads}
    return {head: settings.task.weights.get(head.partition("-")[2], 1.0) * shares[head] for head in heads}


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


def predict(
    model: Model, task: Task, examples: Sequence[Example], tokenizer: Tokenizer, *, length: int, bf16: bool = False
) -> list[Prediction]:
    """A prediction for each example, on the model's device."""
    for name, part in task.heads.items():
        part.use_head(model.objectives[name])
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
    sizes: dict[str, int] = {"length": length, "padding_id": padding_id, "max_tokens": most}
    for head in dict.fromkeys(one.head or objective for one in features):
        own = [number for number, one in enumerate(features) if (one.head or objective) == head]
        for numbers, batch in batches_by_length([features[number] for number in own], head, **sizes):
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                logits = model.predict(batch.to(device), head)
            some = [own[number] for number in numbers]
            results |= zip(some, split_logits(logits, [features[number] for number in some], head), strict=True)
    model.train(was_training)
    return [results[number] for number in range(len(features))]


def split_logits(logits: Tensor, rows: Sequence[SelectedRows], objective: str) -> list[NDArray[np.float32]]:
    """The logits of a batch, example by example."""
    return objective_class(objective).split_logits(logits.float().cpu().numpy(), rows)
