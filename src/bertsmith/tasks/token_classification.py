"""Logits -> a tag for each word -> entities with their place in the text.

What every tagging task shares: words as rows, tags and entities as predictions, scores as conlleval gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import DataError
from bertsmith.metrics.classification import f1_from_counts, macro_f1
from bertsmith.metrics.confidence import ConfidenceInterval, bootstrap
from bertsmith.metrics.sequence_labelling import Scheme, convert_tags, entity_counts, score_entities, tags_to_entities
from bertsmith.tasks.tagged_text import (
    OUTSIDE,
    Sentence,
    Spans,
    TaggingConfig,
    Unit,
    WordFeatures,
    check_model_labels,
    check_tags,
    in_iob2,
    labels_of_train,
    word_features,
    words,
)
from bertsmith.tasks.task import Example, Features, Prediction, Task, missing_split
from bertsmith.tasks.text_tasks import softmax
from bertsmith.tokenizers.tokenizer import Tokenizer


def _predictions(
    examples: Sequence[Example],
    words: Sequence[Spans],
    asked: Sequence[Features],
    answers: Sequence[NDArray[np.float32]],
    labels: Sequence[str],
) -> list[Prediction]:
    """A prediction for each example: tags as its value, entities and unread words in its detail."""
    ends = np.cumsum([len(spans) for spans in words], dtype=np.int64)
    begins = ends - np.array([len(spans) for spans in words], np.int64)
    said: list[str | None] = [None] * int(ends[-1] if len(ends) else 0)
    sure = np.zeros(len(said))
    for question, answer in zip(asked, answers, strict=True):
        assert isinstance(question, WordFeatures), "rows of another task"
        assert np.shape(answer) == (len(question.indices if question.indices is not None else ()), len(labels))
        likely = softmax(np.asarray(answer, np.float64))
        best = likely.argmax(axis=1)
        before = -1
        for word, read in zip(
            (begins[question.example_index] + question.words).tolist(), question.logit_rows, strict=True
        ):
            assert said[word] is None, "a word was asked twice"
            said[word] = labels[best[read]] if read != before else _goes_on(labels[best[read]])
            sure[word] = likely[read, best[read]]
            before = read
    return [
        _prediction_of(example, spans, said[begin:end], sure[begin:end])
        for example, spans, begin, end in zip(examples, words, begins.tolist(), ends.tolist(), strict=True)
    ]


def _prediction_of(example: Example, spans: Spans, said: list[str | None], sure: NDArray[np.float64]) -> Prediction:
    read = np.array([tag is not None for tag in said], bool)
    text, value = example.texts[0], _bridged(said)
    found: list[Mapping[str, Any]] = []
    for kind, begin, end in tags_to_entities(value):
        start, stop = spans[begin][0], spans[end - 1][1]
        score = float(sure[begin:end][read[begin:end]].mean())
        found.append({"kind": kind, "start": start, "end": stop, "text": text[start:stop], "score": score})
    unread = [word for word in np.flatnonzero(~read).tolist() if not text[slice(*spans[word])].isspace()]
    return Prediction(
        tuple(value), float(sure[read].mean()) if read.any() else 0.0, {"entities": found, "unread": unread}
    )


def _bridged(said: Sequence[str | None]) -> list[str]:
    """Words that came to no token are outside, unless the entity before them goes on behind them."""
    found: list[str] = []
    behind: list[str] = [OUTSIDE] * len(said)
    following = OUTSIDE
    for word in range(len(said) - 1, -1, -1):
        behind[word] = following = said[word] or following
    for word, tag in enumerate(said):
        if tag is None:
            before = found[-1] if found else OUTSIDE
            tag = behind[word] if behind[word] == _goes_on(before) else OUTSIDE
        found.append(tag)
    return found


def _goes_on(tag: str) -> str:
    """The tag with which an entity goes on behind this one."""
    return f"I{tag[1:]}" if tag[0] == "B" else tag


Load = Callable[[Path, str], list[Sentence]]  # file, split; tags as they are in the file
Tags = list[list[str]]


class TokenClassificationTask(Task):
    """Every word gets a tag. Without `labels` they are those of train.

    `strict`: entities count as seqeval's strict mode finds them, and `macro_f1`, the mean over types, decides; as in
    KLUE-NER. Otherwise they count as conlleval finds them and `f1` decides.
    """

    objective = "tag"

    def __init__(
        self,
        name: str,
        *,
        files: Mapping[str, Sequence[Path]],
        load: Load,
        config: TaggingConfig,
        labels: Sequence[str] = (),
        unit: Unit = "word",
        strict: bool = False,
        found: dict[str, str] | None = None,
    ) -> None:
        check_model_labels(labels or (OUTSIDE,))
        self.name = name
        self.files = files
        self.config = config
        self.unit: Unit = unit
        self.strict = strict
        self.main_metric = "macro_f1" if strict else "f1"
        self.max_length = 512 if config.context == "document" else 128
        self.detected: dict[str, str] = {} if found is None else found
        self._load = load
        self._labels = tuple(labels)
        self._known: dict[str, list[Sentence]] = {}

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes: O, and B and I of each type."""
        if not self._labels:
            if not self.has_split("train"):
                raise DataError(f"{self.name}: tags come from a train file or a trained model: pass --train FILE")
            self.examples("train")
        return self._labels

    def head_config(self) -> dict[str, Any]:
        return {"kind": self.objective, "labels": list(self.labels)}

    def has_split(self, split: str) -> bool:
        return split in self.files

    def examples(self, split: str) -> list[Example]:
        if split not in self._known:
            if split not in self.files:
                raise missing_split(self.name, split, {known: paths[0] for known, paths in self.files.items()})
            found = [sentence for path in self.files[split] for sentence in self._read(path, split)]
            if split == "train" and not self._labels:
                self._labels = labels_of_train(found)
            if any(sentence.gold is not None for sentence in found):
                check_tags(found, self.labels)
            self._known[split] = found
        return list(self._known[split])

    def _read(self, path: Path, split: str) -> list[Sentence]:
        found = self._load(path, split)
        for sentence in found:
            if sentence.gold is None and split != "test":
                raise DataError(f"{sentence.source}: no tags, which every sentence of {split} needs")
        if self.config.context == "document" and not any(sentence.document for sentence in found):
            raise DataError(f"{path}: no documents are marked in it, so that there is no context: say context=sentence")
        found, scheme = in_iob2(found, self.config.scheme)
        if scheme:
            self.detected[f"{split}: scheme"] = scheme
        return found

    def rows(
        self, examples: Sequence[Example], tokenizer: Tokenizer, *, max_length: int, training: bool = False
    ) -> list[Features]:
        """Windows over sentences, or over documents: then one row asks for words of several examples."""
        number = {label: place for place, label in enumerate(self.labels)}
        found = word_features(
            examples,
            [words(example, self.unit) for example in examples],
            [None if example.gold is None else [number[tag] for tag in example.gold] for example in examples],
            tokenizer,
            max_length=max_length,
            overlap=self.config.overlap,
            together=self.config.context == "document",
            characters=self.unit == "character",
        )
        return [one for one in found if one.target is not None or not training]

    def decode(
        self, examples: Sequence[Example], asked: Sequence[Features], answers: Sequence[NDArray[np.float32]]
    ) -> list[Prediction]:
        """Tags in IOB2; `detail` has the entities, and as `unread` the numbers of words that came to no token."""
        spans = [words(example, self.unit) for example in examples]
        return _predictions(examples, spans, asked, answers, self.labels)

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """F1, precision and recall of entities, of all and of each type, and the share of words with the right tag."""
        gold, said = self._both(examples, predictions)
        found = score_entities(gold, said, scheme="IOB2" if self.strict else None)
        scores = {"f1": found.overall.f1, "precision": found.overall.precision, "recall": found.overall.recall}
        scores |= {"accuracy": found.accuracy, "macro_f1": found.macro_f1}
        if self.unit == "character":
            flat_gold, flat_said = ([tag for sentence in side for tag in sentence] for side in (gold, said))
            scores["character_macro_f1"] = macro_f1(flat_gold, flat_said)
        for kind, counts in found.by_type.items():
            scores |= {f"{measure} {kind}": getattr(counts, measure) for measure in ("f1", "precision", "recall")}
        return scores

    def interval(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> ConfidenceInterval:
        """By resampling sentences."""
        gold, said = self._both(examples, predictions)
        scheme: Scheme | None = "IOB2" if self.strict else None
        if not self.strict:
            return bootstrap(entity_counts(gold, said, scheme=scheme), lambda sums: f1_from_counts(sums[..., :3]))
        kinds = list(score_entities(gold, said, scheme=scheme).by_type) or [""]  # none at all: the score is 0
        parts = [_counts(ours, theirs, kinds, scheme) for ours, theirs in zip(gold, said, strict=True)]

        def mean(sums: NDArray[np.float64]) -> NDArray[np.float64]:
            by_kind = f1_from_counts(sums[..., :-1].reshape(*sums.shape[:-1], len(kinds), 3))
            found: NDArray[np.float64] = by_kind.mean(axis=-1)
            return found

        return bootstrap(np.array(parts).reshape(len(parts), -1), mean)

    def submission(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, bytes]:
        """Column files with the prediction as one more column, in the scheme of the file: what conlleval reads."""
        pairs = zip(examples, predictions, strict=True)
        found = [_lines(example, prediction) for example, prediction in pairs if isinstance(example, Sentence)]
        if len(found) < len(examples) or not all(found):
            return {}
        name = f"{self.name.replace('/', '-')}-predictions.txt"
        return {name: "".join(f"{line}\n" for lines in found for line in lines).encode()}

    def reachable(self, examples: Sequence[Example], tokenizer: Tokenizer, *, max_length: int) -> float:
        """The best that `main` can be with this tokenizer: below 1 where an entity begins or ends within a token."""
        asked = self.rows(examples, tokenizer, max_length=max_length)
        perfect = [np.eye(len(self.labels), dtype=np.float32)[one.target] for one in asked]
        return self.score(examples, self.decode(examples, asked, perfect))[self.main_metric]

    def _both(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> tuple[Tags, Tags]:
        """Gold and predicted tags. Of characters, white space does not count, as in KLUE's own score."""
        gold, said = [], []
        for example, prediction in zip(examples, predictions, strict=True):
            if example.gold is None:
                raise DataError(f"{example.source}: no tags, so that nothing can be scored: score another split")
            kept = list(range(len(example.gold)))
            if self.unit == "character":
                text, spans = example.texts[0], words(example, self.unit)
                kept = [word for word in kept if not text[slice(*spans[word])].isspace()]
            gold.append([example.gold[word] for word in kept])
            said.append([prediction.value[word] for word in kept])
        return gold, said


def _counts(gold: list[str], said: list[str], kinds: Sequence[str], scheme: Scheme | None) -> list[list[int]]:
    """Correct, found and gold entities of one sentence by type [K, 3]."""
    ours, theirs = (
        set(tags_to_entities(gold, scheme=scheme)),
        set(tags_to_entities(said, scheme=scheme)),
    )
    sides = (ours & theirs, theirs, ours)
    return [[sum(entity.type == kind for entity in side) for side in sides] for kind in kinds]


def _lines(sentence: Sentence, prediction: Prediction) -> list[str]:
    """The lines of a sentence as they stand in its file, each with one more column, and an empty line."""
    if not sentence.cells:
        return []
    between = "\t" if "\t" in sentence.cells[0] else " "
    scheme: Any = sentence.scheme
    said = convert_tags(prediction.value, to=scheme)
    opening = [f"{sentence.opening.rstrip()}{between}{OUTSIDE}", ""] if sentence.opening else []
    return [*opening, *(f"{line}{between}{tag}" for line, tag in zip(sentence.cells, said, strict=True)), ""]
