"""Translation with an encoder–decoder: `Predictor.translate`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypedDict, Unpack, cast, overload

import numpy as np
from torch import Tensor

from bertsmith.data.text_files import one_line
from bertsmith.encoders.encoder import EncoderDecoder
from bertsmith.errors import BertsmithError
from bertsmith.inference.beam_search import Hypothesis, SearchSettings
from bertsmith.inference.cross_attention import CrossAttention, CrossAttentionQuery
from bertsmith.inference.forward import ModelInput, TextModel, ids_only
from bertsmith.inference.generation import GenerationPipeline
from bertsmith.inference.pipelines import string_list
from bertsmith.inference.predictions import Predictions, Translated
from bertsmith.inference.scoring import ScoringPipeline
from bertsmith.inference.translation_search import TokenIds, search_all
from bertsmith.model_io.model import Model
from bertsmith.tokenizers.special_tokens import frame_texts, source_frame, target_frame
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Row


class TranslationOptions(TypedDict, total=False):
    """Keywords of `translate`: see `SearchSettings`."""

    beam_size: int
    length_penalty: float
    n_best: int
    max_extra_tokens: int


class TranslationPipeline(TextModel):
    """Translation with a model of the objective `translation`, such as a Transformer."""

    device: str

    @overload
    def translate(self, texts: str, *, attention: bool = ..., **options: Unpack[TranslationOptions]) -> Any: ...
    @overload
    def translate(
        self, texts: Iterable[str], *, attention: bool = ..., **options: Unpack[TranslationOptions]
    ) -> Predictions[Any]: ...

    def translate(
        self, texts: str | Iterable[str], *, attention: bool = False, **options: Unpack[TranslationOptions]
    ) -> Any:
        """The translation of each text: `{"text", "score", "logprob", "finish_reason"}`.

        `score` is the log probability divided by the length penalty. `finish_reason` is `end` (the model has generated
        its end token) or `length` (the translation was cut off). Only the beginning of a source text over the model's
        positions is read: its result has `truncated`. An empty text has an empty translation. A string gives one
        result and a list a list of results; with `n_best` over 1, each is a list.

        `beam_size`: hypotheses kept at each step; 1 is greedy decoding. `length_penalty`: the
        exponent of ((5 + length) / 6), by which log probabilities are divided; 0 favours short translations. `n_best`:
        results for each text. `max_extra_tokens`: a translation has at most so many tokens more than its source.
        `attention`: results also have `attention`, a `CrossAttention`: which source tokens each token was read from.

        >>> model.translate("the smith heats iron")["text"]
        """
        settings, single = SearchSettings(**options), isinstance(texts, str)
        rows = self.source_rows([texts] if isinstance(texts, str) else texts)
        found = self.search_translations(rows, settings)
        results = [[self.translated(one, row) for one in some] for some, row in zip(found, rows, strict=True)]
        if attention:
            for row, some, hypotheses in zip(rows, results, found, strict=True):
                for result, one in zip(some, hypotheses, strict=True):
                    result["attention"] = self.cross_attention(row, one)
        if settings.n_best == 1:
            return results[0][0] if single else Predictions(one for (one,) in results)
        lists = [Predictions(some) for some in results]
        return lists[0] if single else Predictions(lists, group="text")

    def source_rows(self, texts: Iterable[str]) -> list[Row]:
        """The texts as the encoder reads them, with an end token; an error if the model does not translate."""
        check_translates(self.model)
        listed = [one_line(text) for text in string_list(texts)]
        self.check_texts(*listed)
        frame = source_frame(self.tokenizer.frame_ids)
        encoded = self.encode_each(listed)
        return [frame_texts(frame, ids_only(one.ids), None, max_length=self.max_length) for one in encoded]

    def source_row(self, text: str, second: str | None = None) -> Row:
        """A text as the encoder reads it, with offsets; an error for a second text, which a source does not have."""
        if second is not None:
            raise BertsmithError("a translation model reads one source text at a time: leave out the second text")
        encoded = self.tokenizer.encode(one_line(text))
        offsets = encoded.offsets + len(text) - len(text.lstrip())
        frame = source_frame(self.tokenizer.frame_ids)
        return frame_texts(frame, replace(encoded, offsets=offsets), None, max_length=self.max_length)

    def search_translations(self, rows: Sequence[Row], settings: SearchSettings) -> list[list[Hypothesis]]:
        """The best hypotheses of each source; an empty one has an empty hypothesis."""
        filled = [index for index, row in enumerate(rows) if len(row) > 1]
        sources, ids = [rows[index] for index in filled], self._token_ids()
        found = search_all(self.model, sources, settings, ids, backend=self.backend, device=self.device)
        by_text = dict(zip(filled, found, strict=True))
        return [by_text.get(index, [Hypothesis((), 0.0, 0.0, True)]) for index in range(len(rows))]

    def cross_attention(self, source: Row, translation: Hypothesis) -> CrossAttention:
        """The attention weights with which the tokens of a hypothesis were predicted."""
        tokens, ids = translation.tokens, self._token_ids()
        read = np.array(tokens if translation.finished else tokens[:-1], np.int32)  # the last token predicts nothing
        frame = target_frame(self.tokenizer.frame_ids)
        target = frame_texts(frame, ids_only(read), None, max_length=len(read) + 1)
        query = CrossAttentionQuery(padding_id=ids.padding_id)
        (weights,) = self.backend.run(query, [ModelInput((source, target))])
        ends = (ids.end_id,) if translation.finished else ()
        sides = (self.tokenizer, source.ids.tolist()), (self._target_tokenizer, [*tokens, *ends])
        names = [tuple(_token_text(words, number) for number in some) for words, some in sides]
        return CrossAttention(names[0], names[1], weights)

    @property
    def _target_tokenizer(self) -> Tokenizer:
        return self.tokenizer.target or self.tokenizer

    def _token_ids(self) -> TokenIds:
        tokenizer, size = self._target_tokenizer, len(cast(Tensor, self.model.encoder.target_embeddings))
        (start, _), (_, end) = target_frame(tokenizer.frame_ids).single, source_frame(tokenizer.frame_ids).single
        banned = {*tokenizer.special_ids, *range(tokenizer.vocab_size, size)} - {end}
        return TokenIds(cast(int, start), cast(int, end), tokenizer.padding_id, tuple(sorted(banned)))

    def translated(self, one: Hypothesis, row: Row) -> Translated:
        """A hypothesis as a result of `translate`."""
        result: Translated = {
            "text": self._target_tokenizer.decode(np.array(one.tokens, np.int64)).strip(),
            "score": one.score,
            "logprob": one.logprob,
            "finish_reason": "end" if one.finished else "length",
        }
        if any(row.truncated):
            result["truncated"] = True
        return result


class SequencePipelines(GenerationPipeline, ScoringPipeline, TranslationPipeline):
    """The pipelines of models that predict a text token by token."""


def _token_text(tokenizer: Tokenizer, number: int) -> str:
    """A token as text; as in the vocabulary where it is a special token or not a whole character."""
    text = "" if number in tokenizer.special_ids else tokenizer.decode([number]).strip()
    return tokenizer.id_to_token(number) if not text or "\ufffd" in text else text


def check_translates(model: Model) -> None:
    """An error if a model does not translate."""
    if "translation" not in model.objectives or not isinstance(model.encoder, EncoderDecoder):
        heads = ", ".join(model.objectives) or "none"
        raise BertsmithError(
            f"this model does not translate (heads: {heads}): use one that was trained on parallel text, such as with "
            "the recipe transformer/quick"
        )
