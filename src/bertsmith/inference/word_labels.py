"""The methods of a predictor with a token-classification head: the label of each word, and named entities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

from bertsmith.errors import BertsmithError
from bertsmith.inference.forward import TextModel, require_pipeline
from bertsmith.inference.pipelines import TextOrWords, as_list, is_word_list, text_list
from bertsmith.inference.predictions import Entity, Predictions, WordLabel
from bertsmith.metrics.sequence_labelling import EntityLabels, entity_labels
from bertsmith.model_io.model import Model
from bertsmith.tasks.tables import join_names
from bertsmith.tasks.tagged_text import Spans, TaggingConfig, Unit, split_text, word_features
from bertsmith.tasks.task import Example
from bertsmith.tasks.word_predictions import WordPrediction, predict_words
from bertsmith.tokenizers.pretokenization import split_at_white_space

UNITS = ("word", "part", "character")


class WordLabelPipelines(TextModel):
    """The token-classification pipelines of `Predictor`. Offsets are characters of the text as given.

    Texts of any length are read in windows. `unit` is the unit of the labels in the training data: words, words split
    at punctuation as in transformers' pipeline, or characters. The first token of a unit gives its label. A text may be
    a list of words; then these are the units. With a tokenizer that splits at white space only, so does the unit word.
    """

    @overload
    def tag_words(self, text: str, *, unit: Unit = "word") -> Predictions[WordLabel]: ...  # type: ignore[overload-overlap]
    @overload
    def tag_words(self, text: Iterable[TextOrWords], *, unit: Unit = "word") -> Predictions[Predictions[WordLabel]]: ...

    def tag_words(self, text: str | Iterable[TextOrWords], *, unit: Unit = "word") -> Any:
        """The label of each word, `{"word", "label", "score", "start", "end"}`; a list of texts gives lists.

        Works with any label set, such as parts of speech. White space and words without a token have no result.
        """
        labels = _labels(self.model)
        results = Predictions(
            Predictions(
                _result(one, spans[word.word]) | {"label": labels[word.number], "score": word.score} for word in words
            )
            for one, spans, words in self._predict_words(text, unit)
        )
        return results[0] if isinstance(text, str) else results

    @overload
    def ner(self, text: str, *, unit: Unit = "word") -> Predictions[Entity]: ...  # type: ignore[overload-overlap]
    @overload
    def ner(self, text: Iterable[TextOrWords], *, unit: Unit = "word") -> Predictions[Predictions[Entity]]: ...

    def ner(self, text: str | Iterable[TextOrWords], *, unit: Unit = "word") -> Any:
        """The entities of a text, `{"entity_group", "score", "word", "start", "end"}`; a list of texts gives lists.

        The labels are tags of a scheme: IOB1, IOB2, IOBES (BIOES), BILOU, BMES, or bare types beside O.
        """
        labels = _labels(self.model)
        scheme = entity_labels(labels)
        if scheme is None:
            raise BertsmithError(
                f"this model's labels ({join_names(labels)}) are not entity tags such as B-PER: use tag-words, which "
                "returns the label of each word"
            )
        every = self._predict_words(text, unit)
        results = Predictions(Predictions(_entities(one, spans, words, scheme)) for one, spans, words in every)
        return results[0] if isinstance(text, str) else results

    def _predict_words(
        self, text: str | Iterable[TextOrWords], unit: Unit
    ) -> list[tuple[str, Spans, list[WordPrediction]]]:
        """Each text with its words and their predictions."""
        if unit not in UNITS:
            raise BertsmithError(f'unit "{unit}" does not exist: choose {", ".join(UNITS)}')
        given = [text] if isinstance(text, str) else as_list(text)
        texts = text_list(given)
        self.check_texts(*texts)
        spaced = unit == "word" and self.tokenizer.splits_at_white_space
        spans = [
            _white_space_spans(one) if spaced or is_word_list(words) else split_text(one, unit)
            for one, words in zip(texts, given, strict=True)
        ]
        features = word_features(
            [Example(id=str(index), texts=(one,)) for index, one in enumerate(texts)],
            spans,
            [None] * len(texts),
            self.tokenizer,
            max_length=self.max_length,
            overlap=TaggingConfig().overlap,
            by_document=False,
            characters=unit == "character",
        )
        head: Any = self.model.objectives[require_pipeline(self.model, "token-classification")]
        words = predict_words(spans, features, self.logits(features, head.name), head.sequence_decoder)
        return list(zip(texts, spans, words, strict=True))


def _white_space_spans(text: str) -> Spans:
    """The spans of the words of a tokenized text."""
    return tuple((word.begin, word.end) for word in split_at_white_space(text))


def tags_entities(model: Model) -> bool:
    """Whether the model has a token-classification head whose labels are entity tags."""
    return bool(model.head_for("token-classification")) and entity_labels(_labels(model)) is not None


def _labels(model: Model) -> tuple[str, ...]:
    head: Any = model.objectives[require_pipeline(model, "token-classification")]
    labels: tuple[str, ...] = head.config.labels
    return labels


def _entities(text: str, spans: Spans, words: Sequence[WordPrediction], scheme: EntityLabels) -> list[dict[str, Any]]:
    """The entities of one text. Words that share a token have one tag; words without a token are skipped."""
    groups: list[list[WordPrediction]] = []
    for word in words:
        if word.shared:
            groups[-1].append(word)
        else:
            groups.append([word])
    results = []
    for kind, begin, end in scheme.entities(group[0].number for group in groups):
        inside = [word for group in groups[begin:end] for word in group]
        span = spans[inside[0].word][0], spans[inside[-1].word][1]
        score = sum(word.score for word in inside) / len(inside)
        results.append({"entity_group": kind, "score": score, **_result(text, span)})
    return results


def _result(text: str, span: tuple[int, int]) -> dict[str, Any]:
    return {"word": text[slice(*span)], "start": span[0], "end": span[1]}
