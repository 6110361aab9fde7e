"""The beam search of source texts, a few steps at a time, so that an engine runs other queries in between.

N texts, M hypotheses, V tokens.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from bertsmith.data.collate import collate
from bertsmith.encoders.encoder import EncoderDecoder
from bertsmith.inference.beam_search import Hypothesis, SearchSettings, search_steps
from bertsmith.inference.deadline import current_deadline
from bertsmith.inference.decoding import DecodeInput
from bertsmith.inference.engine import Engine
from bertsmith.inference.forward import Backend, ModelInput, Query
from bertsmith.inference.generation import CACHE_TOKENS, DEFAULT_CACHE_TOKENS
from bertsmith.model_io.model import Model
from bertsmith.objectives.lm_head import LanguageModelHead
from bertsmith.objectives.objective import at_least_float32
from bertsmith.types import Row


@dataclass(frozen=True)
class TokenIds:
    """The ids that a search needs."""

    start_id: int
    end_id: int
    padding_id: int
    banned: tuple[int, ...]  # that are never chosen


class TranslationSearch:
    """The search of texts whose caches fit into memory together. `run` computes the next steps; one thread at a time.

    `results` has the hypotheses of each text once all are done.
    """

    def __init__(self, model: Model, rows: Sequence[Row], settings: SearchSettings, ids: TokenIds) -> None:
        self.model, self.rows, self.settings, self.ids = model, rows, settings, ids
        self.limits = [target_limit(model, row, settings) for row in rows]
        self.results: list[list[Hypothesis]] | None = None
        self.hypotheses = settings.beam_size * len(rows)  # alive
        self._steps: Generator[int, None, list[list[Hypothesis]]] | None = None

    @property
    def tokens(self) -> int:
        """The tokens of the next call of `run`."""
        return self.hypotheses + (0 if self._steps else sum(map(len, self.rows)))

    def run(self, device: str) -> None:
        """The next few steps; the first call also encodes the sources."""
        self._steps = self._steps or self._start(device)
        try:
            self.hypotheses = next(self._steps)
        except StopIteration as done:
            self.results = done.value

    def _start(self, device: str) -> Generator[int, None, list[list[Hypothesis]]]:
        encoder, objectives = cast(EncoderDecoder, self.model.encoder), self.model.objectives
        head, table = cast(LanguageModelHead, objectives["translation"]), encoder.target_embeddings
        batch = collate(self.rows, length=max(map(len, self.rows)), padding_id=self.ids.padding_id).to(device)
        bf16 = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if bf16 else next(encoder.parameters()).dtype
        state = encoder.start(batch, hypotheses=self.settings.beam_size, length=max(self.limits), dtype=dtype)
        banned = torch.tensor(self.ids.banned, dtype=torch.int64, device=device)

        def log_probs(ids_M: Tensor, state: Any) -> Tensor:
            logits_MV = head.logits(encoder.step(ids_M, state), table)
            return at_least_float32(logits_MV).log_softmax(-1).index_fill_(1, banned, -torch.inf)

        how: dict[str, Any] = {"limits": self.limits, "settings": self.settings, "device": device}
        how["captures"] = encoder.captures
        return search_steps(log_probs, state, start_id=self.ids.start_id, end_id=self.ids.end_id, **how)


@dataclass(frozen=True)
class TranslationQuery(Query):
    """The next steps of one search."""

    name = "translate"
    one_per_batch = True
    collates = False
    search: TranslationSearch

    def run(self, model: Model, inputs: Sequence[ModelInput], device: str) -> list[Any]:
        self.search.run(device)
        return [None for _ in inputs]


def target_limit(model: Model, row: Row, settings: SearchSettings) -> int:
    """The maximum length of a translation, the end token included."""
    return min(len(row) - 1 + settings.max_extra_tokens, model.encoder.max_positions)


def search_tokens(model: Model, row: Row, settings: SearchSettings) -> int:
    """The tokens that a text can take: its own, and those of all its hypotheses."""
    return len(row) + settings.beam_size * target_limit(model, row, settings)


def search_all(
    model: Model, rows: Sequence[Row], settings: SearchSettings, ids: TokenIds, *, backend: Backend, device: str
) -> list[list[Hypothesis]]:
    """The hypotheses of each text; stops with an error at the deadline of the request."""
    results: list[list[Hypothesis]] = [[] for _ in rows]
    engine = backend if isinstance(backend, Engine) else None
    current_deadline().check(sum(search_tokens(model, row, settings) for row in rows))
    for batch in _batches(model, rows, settings, most=CACHE_TOKENS.get(device, DEFAULT_CACHE_TOKENS)):
        search = TranslationSearch(model, [rows[index] for index in batch], settings, ids)
        tokens = sum(search_tokens(model, row, settings) for row in search.rows)
        with engine.reserve(tokens) if engine else nullcontext():
            while search.results is None:
                current_deadline().check()
                backend.run(TranslationQuery(search), [DecodeInput((), tokens=search.tokens)])
        for index, hypotheses in zip(batch, search.results, strict=True):
            results[index] = hypotheses
    return results


def _batches(model: Model, rows: Sequence[Row], settings: SearchSettings, *, most: int) -> Iterator[list[int]]:
    """Indices of texts of similar length, whose caches have at most `most` tokens together."""
    batch: list[int] = []
    for index in sorted(range(len(rows)), key=lambda index: len(rows[index])):
        tokens = search_tokens(model, rows[index], settings)  # at least those of the texts before it
        if batch and (len(batch) + 1) * tokens > most:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
