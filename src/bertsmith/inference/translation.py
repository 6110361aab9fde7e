"""Translation with an encoder–decoder: `Predictor.translate`. N texts, M hypotheses, V tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack, cast, overload

import numpy as np
import torch
from torch import Tensor

from bertsmith.data.collate import collate
from bertsmith.data.text_files import one_line
from bertsmith.encoders.encoder import EncoderDecoder
from bertsmith.errors import BertsmithError
from bertsmith.inference.beam_search import Hypothesis, SearchSettings, beam_search
from bertsmith.inference.deadline import current_deadline
from bertsmith.inference.forward import ModelInput, Query, TextModel, ids_only
from bertsmith.inference.generation import CACHE_TOKENS, DEFAULT_CACHE_TOKENS, GenerationPipeline
from bertsmith.inference.pipelines import string_list
from bertsmith.inference.predictions import Predictions, Translated
from bertsmith.inference.scoring import ScoringPipeline
from bertsmith.model_io.model import Model
from bertsmith.objectives.lm_head import LanguageModelHead
from bertsmith.objectives.objective import at_least_float32
from bertsmith.tokenizers.special_tokens import frame_texts, source_frame, target_frame
from bertsmith.types import Row


class TranslationOptions(TypedDict, total=False):
    """Keywords of `translate`: see `SearchSettings`."""

    beam_size: int
    length_penalty: float
    n_best: int
    max_extra_tokens: int


@dataclass(frozen=True)
class TranslationQuery(Query):
    """The best hypotheses of each source text."""

    name = "translate"
    collates = False
    settings: SearchSettings
    start_id: int
    end_id: int
    padding_id: int
    banned: tuple[int, ...]  # ids that are never chosen

    def run(self, model: Model, inputs: Sequence[ModelInput], device: str) -> list[list[Hypothesis]]:
        results: list[list[Hypothesis]] = [[] for _ in inputs]
        for batch in self._batches([len(one.rows[0]) for one in inputs], device):
            found = self._search(model, [inputs[index].rows[0] for index in batch], device)
            for index, hypotheses in zip(batch, found, strict=True):
                results[index] = hypotheses
        return results

    def _batches(self, lengths: Sequence[int], device: str) -> list[list[int]]:
        """Indices of texts of similar length, whose caches fit into memory together."""
        most, batches = CACHE_TOKENS.get(device, DEFAULT_CACHE_TOKENS), list[list[int]]()
        for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
            tokens = self.settings.beam_size * (lengths[index] + self.settings.max_extra_tokens)
            if not batches or (len(batches[-1]) + 1) * tokens > most:
                batches.append([])
            batches[-1].append(index)
        return batches

    def _search(self, model: Model, rows: Sequence[Row], device: str) -> list[list[Hypothesis]]:
        encoder, head = cast(EncoderDecoder, model.encoder), cast(LanguageModelHead, model.objectives["translation"])
        table, lengths = encoder.target_embeddings, [len(row) - 1 for row in rows]  # without the end token
        limits = [min(length + self.settings.max_extra_tokens, encoder.max_positions) for length in lengths]
        batch = collate(rows, length=max(map(len, rows)), padding_id=self.padding_id).to(device)
        bf16 = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if bf16 else next(encoder.parameters()).dtype
        beams = self.settings.beam_size
        state = encoder.start(batch, hypotheses=beams, length=max(limits), dtype=dtype)
        banned = torch.tensor(self.banned, dtype=torch.int64, device=device)

        def log_probs(ids_M: Tensor, state: Any) -> Tensor:
            logits_MV = head.logits(encoder.step(ids_M, state), table)
            return at_least_float32(logits_MV).log_softmax(-1).index_fill_(1, banned, -torch.inf)

        return beam_search(
            log_probs,
            state,
            start_id=self.start_id,
            end_id=self.end_id,
            limits=limits,
            settings=self.settings,
            device=device,
            captures=encoder.captures,
        )


class TranslationPipeline(TextModel):
    """Translation with a model of the objective `translation`, such as a Transformer."""

    @overload
    def translate(self, texts: str, **options: Unpack[TranslationOptions]) -> Any: ...
    @overload
    def translate(self, texts: Iterable[str], **options: Unpack[TranslationOptions]) -> Predictions[Any]: ...

    def translate(self, texts: str | Iterable[str], **options: Unpack[TranslationOptions]) -> Any:
        """The translation of each text: `{"text", "score", "logprob", "finish_reason"}`.

        `score` is the log probability divided by the length penalty. `finish_reason` is `end` (the model has generated
        its end token) or `length` (the translation was cut off). Only the beginning of a source text over the model's
        positions is read: its result has `truncated`. An empty text has an empty translation. A string gives one
        result and a list a list of results; with `n_best` over 1, each is a list.

        `beam_size`: hypotheses that are followed; 1 takes the most likely token at each step. `length_penalty`: the
        exponent of ((5 + length) / 6), by which log probabilities are divided; 0 favours short translations. `n_best`:
        results for each text. `max_extra_tokens`: a translation has at most so many tokens more than its source.

        >>> model.translate("the smith heats iron")["text"]
        """
        check_translates(self.model)
        settings, single = SearchSettings(**options), isinstance(texts, str)
        listed = [one_line(text) for text in string_list([texts] if isinstance(texts, str) else texts)]
        self.check_texts(*listed)
        rows = [self._source_row(one.ids) for one in self.encode_each(listed)]
        filled = [index for index, row in enumerate(rows) if len(row) > 1]
        query = self._query(settings)
        current_deadline().check(sum(settings.beam_size * len(row) for row in rows))
        found = self.backend.run(query, [ModelInput((rows[index],)) for index in filled]) if filled else []
        empty = [Hypothesis((), 0.0, 0.0, True)]
        by_text = dict(zip(filled, found, strict=True))
        results = [[self._translated(one, row) for one in by_text.get(index, empty)] for index, row in enumerate(rows)]
        if settings.n_best == 1:
            return results[0][0] if single else Predictions(one for (one,) in results)
        lists = [Predictions(some) for some in results]
        return lists[0] if single else Predictions(lists, group="text")

    def _source_row(self, ids: Any) -> Row:
        return frame_texts(source_frame(self.tokenizer.frame_ids), ids_only(ids), None, max_length=self.max_length)

    def _query(self, settings: SearchSettings) -> TranslationQuery:
        tokenizer, size = self.tokenizer, len(cast(Tensor, self.model.encoder.target_embeddings))
        (start, _), (_, end) = target_frame(tokenizer.frame_ids).single, source_frame(tokenizer.frame_ids).single
        banned = {*tokenizer.special_ids, *range(tokenizer.vocab_size, size)} - {end}
        return TranslationQuery(
            settings, cast(int, start), cast(int, end), padding_id=tokenizer.padding_id, banned=tuple(sorted(banned))
        )

    def _translated(self, one: Hypothesis, row: Row) -> Translated:
        result: Translated = {
            "text": self.tokenizer.decode(np.array(one.tokens, np.int64)).strip(),
            "score": one.score,
            "logprob": one.logprob,
            "finish_reason": "end" if one.finished else "length",
        }
        if any(row.truncated):
            result["truncated"] = True
        return result


class SequencePipelines(GenerationPipeline, ScoringPipeline, TranslationPipeline):
    """The pipelines of models that predict a text token by token."""


def check_translates(model: Model) -> None:
    """An error if a model does not translate."""
    if "translation" not in model.objectives or not isinstance(model.encoder, EncoderDecoder):
        heads = ", ".join(model.objectives) or "none"
        raise BertsmithError(
            f"this model does not translate (heads: {heads}): use one that was trained on parallel text, such as with "
            "the recipe transformer/quick"
        )
