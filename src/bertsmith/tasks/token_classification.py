"""Base class of token classification: tags and entities from logits, entity scores like conlleval, error cases."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import ConfigError, DataError, DataWarning
from bertsmith.metrics import sequence_labelling
from bertsmith.metrics.classification import accuracy, f1_from_counts, macro_f1, ratio
from bertsmith.metrics.confidence import ConfidenceInterval, bootstrap
from bertsmith.metrics.sequence_labelling import (
    Scheme,
    convert_tags,
    entities_to_tags,
    entity_labels,
    score_entities,
    tags_to_entities,
)
from bertsmith.tasks import tagged_text
from bertsmith.tasks.entity_cases import NOTHING, OTHER_BOUNDS, EntityCases
from bertsmith.tasks.tables import join_names
from bertsmith.tasks.tagged_text import OUTSIDE, Sentence, Spans, TaggingConfig, Unit, word_spans
from bertsmith.tasks.task import Case, Dataset, Example, Features, LabelTask, Prediction, gold_values
from bertsmith.tasks.text_tasks import note_similar_labels, sort_labels
from bertsmith.tasks.word_predictions import (
    WordPrediction,
    continued,
    mean_words,
    predict_words,
    with_unread_words,
)
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import IGNORE_INDEX, SequenceDecoder

Tags = list[list[str]]


class TokenClassificationTask(LabelTask):
    """Each word gets a tag. The labels are O, and B and I of each entity type: those of train if none are given.

    With `label_scheme` they are the tags of another scheme. Gold and predicted tags are IOB2 in any case.
    Of `plain` labels, such as parts of speech, words are scored and not entities, and the main metric is `accuracy`.
    `dataset.read` returns sentences with tags in the scheme of the file.
    `strict`: entities as in seqeval's strict mode, and the main metric is `macro_f1` over the types, as in KLUE-NER.
    Otherwise entities as in conlleval and the main metric is `f1`.
    """

    objective = "tag"
    pseudo_labels = (OTHER_BOUNDS, NOTHING)
    label_noun = "tags"

    def __init__(
        self,
        name: str,
        dataset: Dataset | None = None,
        *,
        config: TaggingConfig,
        labels: Sequence[str] = (),
        unit: Unit = "word",
        strict: bool = False,
    ) -> None:
        plain = config.scheme == "plain" or tagged_text.is_plain(labels)
        super().__init__(name, dataset)
        self.config = config
        self.unit: Unit = unit
        self.scheme: Scheme | None = "IOB2" if strict else None
        self.label_scheme: Scheme = "IOB2" if config.label_scheme == "file" else config.label_scheme
        if labels and not plain:
            found = tagged_text.scheme_of_labels(labels)
            self.label_scheme = "IOB1" if (found, self.label_scheme) == ("IOB2", "IOB1") else found
        self.main_metric = "macro_f1" if strict else "f1"
        self.max_length = 512 if config.context == "document" else 128
        self.length_unit = "characters" if unit == "character" else "words"
        self._labels = tuple(labels)
        self.plain = False
        self._decoder: SequenceDecoder | None = None
        self._unseen: tuple[str, ...] = ()  # plain labels that only dev or test have
        if plain:
            self._use_plain_labels()

    def _use_plain_labels(self) -> None:
        self.plain = True
        if self.config.label_scheme not in ("IOB2", "file"):
            raise ConfigError(f"task.label_scheme={self.config.label_scheme} is for entity tags, not for plain labels")
        if not self.chosen_metric:
            self.main_metric = "accuracy"

    def read(self, path: Path, split: str) -> Sequence[Example]:
        if split != "train" and not self._labels and self.has_split("train"):
            self.examples("train")  # whether labels are plain is detected there
        sentences = cast(Sequence[Sentence], super().read(path, split))
        if split != "test":
            gold_values(sentences, f"no tags, but every sentence of {split} needs them")
        if self.config.context == "document" and not any(sentence.document for sentence in sentences):
            raise DataError(f"{path} marks no documents: set task.context=sentence")
        if not self._labels and self.config.scheme == "detect" and tagged_text.is_plain(_gold_tags(sentences)):
            self._use_plain_labels()
            if OUTSIDE in _gold_tags(sentences):
                note = "no tag has B- or I- and a type, so words are scored and not entities (task.scheme=plain)"
                warnings.warn(f"{path}: {note}", DataWarning, stacklevel=2)
        if self.plain:
            self.detected[f"{split}: scheme"] = "plain"
            return [replace(sentence, scheme="plain") for sentence in sentences]
        sentences, scheme = tagged_text.in_iob2(sentences, self.config.scheme)
        if scheme:
            self.detected[f"{split}: scheme"] = scheme
        return sentences

    def check(self, split: str, examples: Sequence[Example]) -> None:
        if split == "train" and not self._labels:
            self._labels = self._labels_of_train(examples)
            note_similar_labels(self._labels)
        if any(example.gold is not None for example in examples):
            known = self.labels if self.keeps_tags else tagged_text.labels_of_types(tagged_text.types_of(self.labels))
            counts = Counter(_gold_tags(examples))
            unseen = sorted({*counts} - {*known})
            if not (self.plain and split != "train") or sum(counts[tag] for tag in unseen) > counts.total() / 10:
                tagged_text.check_tags(examples, known)
            elif unseen:
                self._unseen = tuple(sorted({*self._unseen, *unseen}))
                where = examples[0].source.rpartition(":")[0]
                problem = "which train does not have, so every such word is an error"
                text = f"{where}: the model cannot predict {join_names(unseen)}, {problem}"
                warnings.warn(text, DataWarning, stacklevel=2)

    def _labels_of_train(self, examples: Sequence[Example]) -> tuple[str, ...]:
        if self.plain:
            return sort_labels(_gold_tags(examples))
        if self.config.label_scheme == "file":
            self.label_scheme = cast(Scheme, cast(Sentence, examples[0]).scheme)
        return tagged_text.labels_of_train(examples, self.label_scheme)

    @property
    def keeps_tags(self) -> bool:
        """Whether the model's labels are the tags of the examples: plain labels, or IOB2."""
        return self.plain or self.label_scheme == "IOB2"

    def head_config(self) -> dict[str, Any]:
        """A head takes labels with only B and I for IOB2, so IOB1 must be named."""
        scheme = {"crf_scheme": "IOB1"} if self.labels and not self.plain and self.label_scheme == "IOB1" else {}
        return super().head_config() | scheme

    def use_head(self, head: Any) -> None:
        self._decoder = head.sequence_decoder

    def gold_labels(self, examples: Sequence[Example]) -> Iterator[str]:
        return (label for example in examples for label in self._gold_labels(example.gold or ()))

    def _gold_labels(self, tags: Sequence[str]) -> Sequence[str]:
        """The model's labels for the tags of a sentence."""
        return tags if self.keeps_tags else convert_tags(tags, to=self.label_scheme)

    def _predicted_tags(self, classes: Sequence[int]) -> list[str]:
        """The tags of a sentence from the model's labels, whose entities are those that the command ner gives."""
        labels = [self.labels[number] for number in classes]
        if self.keeps_tags:
            return labels
        tags = None if self.label_scheme == "IOB1" else entity_labels(self.labels)
        entities = tags_to_entities(labels) if tags is None else tags.entities(classes)
        return entities_to_tags(entities, words=len(labels), scheme="IOB2")

    def rows(
        self, examples: Sequence[Example], tokenizer: Tokenizer, *, max_length: int, training: bool = False
    ) -> list[Features]:
        """Windows over sentences, or over documents: then a row has words of several examples."""
        number = {label: index for index, label in enumerate(self.labels)} | dict.fromkeys(self._unseen, IGNORE_INDEX)
        features = tagged_text.word_features(
            examples,
            [word_spans(example, self.unit) for example in examples],
            [None if one.gold is None else [number[tag] for tag in self._gold_labels(one.gold)] for one in examples],
            tokenizer,
            max_length=max_length,
            overlap=self.config.overlap,
            by_document=self.config.context == "document",
            characters=self.unit == "character",
        )
        return [one for one in features if one.target is not None or not training]

    def outputs(
        self, examples: Sequence[Example], features: Sequence[Features], logits: Sequence[NDArray[np.float32]]
    ) -> list[list[WordPrediction]]:
        spans = [word_spans(example, self.unit) for example in examples]
        return predict_words(spans, features, logits, self._decoder)

    def mean_output(self, outputs: Sequence[list[WordPrediction]]) -> list[WordPrediction]:
        """See `mean_words`: probabilities are by word, so that tokenizers may differ."""
        return mean_words(outputs, () if self.plain else self.labels)

    def reordered(self, output: list[WordPrediction], classes: Sequence[int]) -> list[WordPrediction]:
        return [WordPrediction.of(one.word, one.probabilities[list(classes)], shared=one.shared) for one in output]

    def predictions(self, examples: Sequence[Example], outputs: Sequence[list[WordPrediction]]) -> list[Prediction]:
        """IOB2 tags; `detail` has the entities, and as `unread` the indices of words without a token.

        Of plain labels, `detail` has the probability of each word's label. A word without a token gets the first label.
        """
        spans = [word_spans(example, self.unit) for example in examples]
        predictions = []
        for example, words, some in zip(examples, spans, outputs, strict=True):
            predicted: list[str | None] = [None] * len(words)
            scores, tag = np.zeros(len(words)), OUTSIDE
            tags = iter(self._predicted_tags([one.number for one in some if not one.shared]))
            for one in some:
                tag = next(tags) if not one.shared else tag if self.plain else continued(tag)
                predicted[one.word], scores[one.word] = tag, one.score
            prediction = _prediction(example, words, predicted, scores, fill=self.labels[0] if self.plain else "")
            predictions.append(prediction)
        return predictions

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """F1, precision and recall of entities, overall and by type, and the accuracy of tags.

        Of plain labels the accuracy of words and the mean F1 of the labels that occur.
        """
        gold, predicted = self._scored_tags(examples, predictions)
        if self.plain:
            sides = [list(chain.from_iterable(side)) for side in (gold, predicted)]
            return {"accuracy": accuracy(*sides), "macro_f1": macro_f1(*sides)}
        result = score_entities(gold, predicted, scheme=self.scheme)
        metrics = ("f1", "precision", "recall")
        scores = {metric: getattr(result.overall, metric) for metric in metrics}
        scores |= {"accuracy": result.accuracy, "macro_f1": result.macro_f1}
        if self.unit == "character":
            scores["character_macro_f1"] = macro_f1(*(list(chain.from_iterable(side)) for side in (gold, predicted)))
        for kind, counts in result.by_type.items():
            scores |= {f"{metric} {kind}": getattr(counts, metric) for metric in metrics}
        return scores

    def interval(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> ConfidenceInterval:
        """By resampling sentences."""
        gold, predicted = self._scored_tags(examples, predictions)
        if self.plain:
            correct = [[sum(map(str.__eq__, a, b)), len(a)] for a, b in zip(gold, predicted, strict=True)]
            return bootstrap(correct, lambda sums: ratio(sums[..., 0], sums[..., 1]))
        if self.scheme is None:
            counts = sequence_labelling.entity_counts(gold, predicted)
            return bootstrap(counts, lambda sums: f1_from_counts(sums[..., :3]))
        types = list(score_entities(gold, predicted, scheme=self.scheme).by_type) or [""]  # no entities: the score is 0
        by_type = [_type_counts(a, b, types, self.scheme) for a, b in zip(gold, predicted, strict=True)]

        def mean_f1(sums: NDArray[np.float64]) -> NDArray[np.float64]:
            mean: NDArray[np.float64] = f1_from_counts(sums[..., :-1].reshape(-1, len(types), 3)).mean(axis=-1)
            return mean

        return bootstrap(np.array(by_type).reshape(len(by_type), -1), mean_f1)

    def submission(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, bytes]:
        """Column files with the prediction as an additional column in the file's scheme: the input of conlleval."""
        pairs = zip(examples, predictions, strict=True)
        blocks = [_column_lines(example, prediction) for example, prediction in pairs if isinstance(example, Sentence)]
        if len(blocks) < len(examples) or not all(blocks):
            return {}
        name = f"{self.name.replace('/', '-')}-predictions.txt"
        return {name: "".join(f"{line}\n" for lines in blocks for line in lines).encode()}

    def cases(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> list[Case]:
        cases: list[Case] = []
        if self.plain:
            pairs = zip(examples, predictions, strict=True)
            return [case for index, pair in enumerate(pairs) for case in self._word_cases(index, *pair)]
        tags = self._scored_tags(examples, predictions)
        for index, (example, prediction) in enumerate(zip(examples, predictions, strict=True)):
            gold, predicted = (tags_to_entities(side[index], scheme=self.scheme) for side in tags)
            spans = word_spans(example, self.unit)
            cases += EntityCases(index, example, prediction, self._scored_words(example), spans).cases(gold, predicted)
        return cases

    def _word_cases(self, index: int, example: Example, prediction: Prediction) -> Iterator[Case]:
        """One case per word of plain labels."""
        scores = prediction.detail.get("scores") or [prediction.score] * len(prediction.value)
        spans = word_spans(example, self.unit)
        for word in self._scored_words(example):
            cell = example.gold[word], prediction.value[word]
            here = replace(example, source=tagged_text.word_source(example, word))
            gold, predicted = (f"{label}: {example.texts[0][slice(*spans[word])]}" for label in cell)
            yield Case.of(index, here, gold, predicted, scores[word], cell=cell)

    def confusion_labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if self.plain:
            return (*self.labels, *self._unseen), (*self.labels, *self._unseen)
        types = tuple(dict.fromkeys(label[2:] for label in self.labels if label != OUTSIDE))
        labels = (*types, *self.pseudo_labels)
        return labels, labels

    def baseline(self, examples: Sequence[Example]) -> tuple[str, list[Prediction]]:
        if self.plain:
            most = Counter(self.gold_labels(examples)).most_common(1)[0][0]
            return f"always {most}", [Prediction((most,) * len(example.gold)) for example in examples]
        return "never an entity", [Prediction((OUTSIDE,) * len(example.gold)) for example in examples]

    def reachable(self, examples: Sequence[Example], tokenizer: Tokenizer, *, max_length: int) -> float:
        """The upper bound of `main_metric` with this tokenizer: below 1 if an entity begins or ends inside a token."""
        features = self.rows(examples, tokenizer, max_length=max_length)
        # so certain that no transition of a CRF matters
        perfect = [1e6 * np.eye(len(self.labels), dtype=np.float32)[one.target] for one in features]
        return self.score(examples, self.decode(examples, features, perfect))[self.main_metric]

    def _scored_words(self, example: Example) -> list[int]:
        """Indices of the words that are scored; of characters, white space is not, as in KLUE's script."""
        spans = word_spans(example, self.unit)
        if self.unit != "character":
            return list(range(len(spans)))
        return [word for word, span in enumerate(spans) if not example.texts[0][slice(*span)].isspace()]

    def _scored_tags(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> tuple[Tags, Tags]:
        """Gold and predicted tags of the scored words."""
        golds = gold_values(examples, "no tags, so the split cannot be scored: score another split")
        words = [self._scored_words(example) for example in examples]
        sides = (golds, [prediction.value for prediction in predictions])
        gold, predicted = ([[tags[n] for n in some] for tags, some in zip(side, words, strict=True)] for side in sides)
        return gold, predicted


def _gold_tags(examples: Iterable[Example]) -> Iterator[str]:
    return (tag for example in examples for tag in example.gold or ())


def _prediction(
    example: Example, spans: Spans, predicted: list[str | None], scores: NDArray[np.float64], *, fill: str
) -> Prediction:
    """`fill`: of plain labels, that of words without a token."""
    read = np.array([tag is not None for tag in predicted], bool)
    text, mean = example.texts[0], float(scores[read].mean()) if read.any() else 0.0
    unread = [word for word in np.flatnonzero(~read).tolist() if not text[slice(*spans[word])].isspace()]
    if fill:
        return Prediction(tuple(tag or fill for tag in predicted), mean, {"scores": scores.tolist(), "unread": unread})
    value = with_unread_words(predicted)
    entities: list[Mapping[str, Any]] = []
    for kind, begin, end in tags_to_entities(value):
        start, stop = spans[begin][0], spans[end - 1][1]
        score = float(scores[begin:end][read[begin:end]].mean())
        entities.append({"kind": kind, "start": start, "end": stop, "text": text[start:stop], "score": score})
    return Prediction(tuple(value), mean, {"entities": entities, "unread": unread})


def _type_counts(gold: list[str], predicted: list[str], types: Sequence[str], scheme: Scheme | None) -> list[list[int]]:
    """Correct, predicted and gold entities of one sentence by type [K, 3]."""
    a, b = set(tags_to_entities(gold, scheme=scheme)), set(tags_to_entities(predicted, scheme=scheme))
    return [[sum(entity.type == kind for entity in side) for side in (a & b, b, a)] for kind in types]


def _column_lines(sentence: Sentence, prediction: Prediction) -> list[str]:
    """The lines of a sentence in its file, each with the predicted tag, and an empty line."""
    if not sentence.cells:
        return []
    separator = "\t" if "\t" in sentence.cells[0] else " "
    predicted = prediction.value
    if sentence.scheme != "plain":
        predicted = sequence_labelling.convert_tags(predicted, to=sentence.scheme)
    opening = [f"{sentence.opening.rstrip()}{separator}{OUTSIDE}", ""] if sentence.opening else []
    return [*opening, *(f"{line}{separator}{tag}" for line, tag in zip(sentence.cells, predicted, strict=True)), ""]
