"""Forward passes of a predictor: queries and model inputs in, one result per input out.

A pipeline turns texts into `ModelInput`s and names the result it needs with a `Query`. A `Backend` runs the query: in
the caller's thread (`LocalBackend`), or batched with the inputs of other callers (`engine.Engine`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.data.collate import collate_unpadded
from bertsmith.errors import BertsmithError
from bertsmith.inference.cuda_graphs import CudaGraphs
from bertsmith.inference.deadline import current_deadline
from bertsmith.model_io.model import Model
from bertsmith.objectives.objective import Pipeline, objective_class, objectives_with
from bertsmith.tasks.task import Features
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.tokenizers.unknown_words import LIMIT, MAX_CHARACTERS, check_unknown_words
from bertsmith.types import Batch, Encoded, Row

MAX_TOKENS_PER_CHARACTER = 4  # bytes of a character in UTF-8
ENCODED_CHARACTERS = 16_384  # that are encoded at once, between two checks of the deadline
CHECKED_TEXTS = 64  # of one call, for unknown words
BATCH_TOKENS = {"cuda": 65_536}  # tokens of one forward pass, by device
TASKS = {"classify": "classification", "tag": "tagging", "span": "qa", "choose": "choice"}  # whose heads these are
DEFAULT_BATCH_TOKENS = 1024  # on a CPU as fast as 4096, and queued requests wait less


@dataclass(frozen=True, slots=True)
class ModelInput:
    """The input of one result. All its rows are in the same forward pass."""

    rows: tuple[Row, ...]  # one, or one for each choice
    indices: NDArray[np.int64] | None = None  # token indices in the row that the objective reads [R]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.rows))


@dataclass(frozen=True)
class Query:
    """A result to compute for model inputs. Inputs of equal queries may share a forward pass."""

    name: ClassVar[str]  # for metrics
    one_per_batch: ClassVar[bool] = False  # results are so large that every input needs its own forward pass
    collates: ClassVar[bool] = True  # False: `run` computes the results from inputs of its own
    objective: str = field(default="", kw_only=True)  # that reads `ModelInput.indices`; "": a query on the encoder

    def forward(self, model: Model, batch: Batch) -> Tensor:
        """The values of a batch, on its device; texts and tokens that fill it up come last."""
        raise NotImplementedError

    def run(self, model: Model, inputs: Sequence[ModelInput], device: str) -> list[Any]:
        """The result of each input, of a query that does not collate."""
        raise NotImplementedError

    def split(self, values: NDArray[np.float32], inputs: Sequence[ModelInput]) -> list[Any]:
        """The result of each input, from the values of its batch."""
        return list(values[: len(inputs)])


class Backend(Protocol):
    """Runs queries."""

    def run(self, query: Query, inputs: Sequence[ModelInput]) -> list[Any]:
        """One result for each input, in order."""


class Preparation(Protocol):
    """Makes model inputs of texts. Texts with equal preparations may be prepared together."""

    def __call__(self, texts: Sequence[str]) -> list[ModelInput]:
        """One input for each text, in order."""

    def __hash__(self) -> int: ...


class TextBackend(Backend, Protocol):
    """A backend that also tokenizes, the texts of many callers at once."""

    def run_texts(
        self, query: Query, texts: Sequence[str], preparation: Preparation
    ) -> tuple[Sequence[ModelInput], list[Any]]:
        """The input and the result of each text, in order."""


class LocalBackend:
    """Runs queries in the caller's thread. Stateless, so threads may share it.

    A forward pass concatenates its texts without padding, texts of equal length next to each other: matrix products
    see only real tokens, and attention is one product per length, without a mask. LOG.md compares it with padding.
    """

    def __init__(
        self, model: Model, *, padding_id: int, device: str, autocast: bool = False, batch_tokens: int | None = None
    ) -> None:
        self.model = model
        self.padding_id = padding_id
        self.device = device
        self.autocast = autocast  # to bfloat16
        self.batch_tokens = batch_tokens or BATCH_TOKENS.get(device, DEFAULT_BATCH_TOKENS)
        graphs = model.encoder.compiles and "characters" not in model.encoder.reads
        self.graphs = CudaGraphs(model) if device == "cuda" and autocast and graphs else None

    def run(self, query: Query, inputs: Sequence[ModelInput]) -> list[Any]:
        if not query.collates:
            with self._context():
                return query.run(self.model, inputs, self.device)
        results: list[Any] = [None] * len(inputs)
        for batch in self._batches(query, inputs):
            for index, result in zip(batch, self._forward(query, [inputs[index] for index in batch]), strict=True):
                results[index] = result
        return results

    def _batches(self, query: Query, inputs: Sequence[ModelInput]) -> list[list[int]]:
        """Indices of the inputs that share a forward pass, sorted by length."""
        lengths = [max(map(len, one.rows)) for one in inputs]
        batches: list[list[int]] = []
        tokens = 0
        for index in sorted(range(len(inputs)), key=lengths.__getitem__):
            tokens += inputs[index].tokens
            if not batches or query.one_per_batch or tokens > self.batch_tokens:
                batches.append([])
                tokens = inputs[index].tokens
            batches[-1].append(index)
        return batches

    def _forward(self, query: Query, inputs: Sequence[ModelInput]) -> list[Any]:
        rows = [row for one in inputs for row in one.rows]
        indices = [one.indices for one in inputs] if inputs[0].indices is not None else None
        options: dict[str, Any] = {"padding_id": self.padding_id, "indices": indices and {query.objective: indices}}
        values = self.graphs.run(query, rows, **options) if self.graphs and not query.one_per_batch else None
        if values is None:
            with self._context():
                batch = collate_unpadded(rows, **options).to(self.device)
                values = query.forward(self.model, batch).float().cpu().numpy()
        return query.split(values, inputs)

    @contextmanager
    def _context(self) -> Iterator[None]:
        with torch.inference_mode(), torch.autocast(self.device, torch.bfloat16, enabled=self.autocast):
            yield


class ClosedBackend:
    """The backend of a closed predictor."""

    def run(self, query: Query | None = None, inputs: Sequence[ModelInput] = ()) -> list[Any]:
        raise BertsmithError("this predictor is closed: load the model again")


@dataclass(frozen=True)
class LogitsQuery(Query):
    """The logits of one objective, in the shapes that `Task.decode` takes."""

    name = "logits"
    objective: str

    def forward(self, model: Model, batch: Batch) -> Tensor:
        return model.predict(batch, self.objective)

    def split(self, values: NDArray[np.float32], inputs: Sequence[ModelInput]) -> list[Any]:
        return list(objective_class(self.objective).split_logits(values, inputs))


class TextModel:
    """The parts of a predictor that its pipelines use."""

    model: Model
    tokenizer: Tokenizer
    backend: Backend
    max_length: int  # tokens, special tokens included
    unknown_words_reported = False

    def check_texts(self, *texts: str) -> None:
        """Before texts are encoded: an error if they have more tokens than the request may have; then `check_words`."""
        own = current_deadline()
        limit = own.max_tokens
        if limit is not None and MAX_TOKENS_PER_CHARACTER * sum(map(len, texts)) > limit:
            tokens = 0
            for text in texts:
                tokens += len(self.tokenizer.encode_ids([text])[0])
                own.check(tokens, at_least=True)
        self.check_words(*texts)

    def groups(self, texts: Sequence[str]) -> Iterator[Sequence[str]]:
        """A few texts at a time; stops with an error at the deadline."""
        start, characters = 0, 0
        for stop, text in enumerate(texts, 1):
            characters += len(text)
            if characters >= ENCODED_CHARACTERS or stop == len(texts):
                current_deadline().check()
                yield texts[start:stop]
                start, characters = stop, 0

    def encode_each(self, texts: Sequence[str]) -> Iterator[Encoded]:
        """The texts encoded, a few at a time; stops with an error at the deadline."""
        for some in self.groups(texts):
            yield from self.tokenizer.encode_batch(some)

    def frame_ids(self, texts: Sequence[str], *, max_length: int) -> list[Row]:
        """One row for each text, truncated, with what encoders read; offsets may be 0. Stops at the deadline."""
        rows: list[Row] = []
        for some in self.groups(texts):
            if self.tokenizer.spells:
                encoded = self.tokenizer.encode_batch(some)
                rows += [self.tokenizer.frame(one, max_length=max_length) for one in encoded]
                continue
            ids, counts = self.tokenizer.encode_ids(some)
            self._check_ids(ids, some)
            for part in np.split(ids.astype(np.int32), np.cumsum(counts)[:-1]):
                rows.append(self.tokenizer.frame(ids_only(part), max_length=max_length))
        return rows

    def run_texts(self, query: Query, texts: Sequence[Any], *, max_length: int) -> tuple[list[Row], list[Any]]:
        """The row of each text, as in `frame_ids`, or of each list of token ids, and its result."""
        inputs: Sequence[ModelInput]
        preparation = FrameTexts(self, max_length)
        if not texts or isinstance(texts[0], str):
            if hasattr(self.backend, "run_texts"):  # isinstance of a protocol takes longer than all else here
                inputs, results = cast(TextBackend, self.backend).run_texts(query, texts, preparation)
                return [one.rows[0] for one in inputs], results
            inputs = preparation(texts)
        else:
            inputs = [ModelInput((self._frame(one, max_length=max_length),)) for one in texts]
        return [one.rows[0] for one in inputs], self.backend.run(query, inputs)

    def _frame(self, ids: Sequence[int], *, max_length: int) -> Row:
        size = self.tokenizer.vocab_size
        for number in ids:
            if not 0 <= number < size:
                raise BertsmithError(f"token id {number} is outside the vocabulary of {size} tokens")
        return self.tokenizer.frame(ids_only(np.array(ids, np.int32)), max_length=max_length)

    def check_words(self, *texts: str) -> None:
        """Warns of unknown words, once per predictor; of many texts the first ones are checked."""
        if not self.unknown_words_reported and self.tokenizer.unknown_ids:
            sample = [text[:MAX_CHARACTERS] for text in texts[:CHECKED_TEXTS]]
            self._check_ids(self.tokenizer.encode_ids(sample)[0], sample)

    def _check_ids(self, ids: NDArray[Any], texts: Sequence[str]) -> None:
        if not self.unknown_words_reported and self.tokenizer.is_unknown(ids).any():  # almost always not
            sample = [text[:MAX_CHARACTERS] for text in texts[:CHECKED_TEXTS]]
            self.unknown_words_reported = check_unknown_words(self.tokenizer, sample) > LIMIT

    def logits(self, features: Sequence[Features], objective: str) -> list[NDArray[np.float32]]:
        """The logits of one head for each of the features."""
        return self.backend.run(LogitsQuery(objective), [ModelInput(one.rows, one.indices) for one in features])


@dataclass(frozen=True)
class FrameTexts:
    """Model inputs of texts, of one truncated row each, without offsets."""

    model: TextModel
    max_length: int

    def __call__(self, texts: Sequence[str]) -> list[ModelInput]:
        return [ModelInput((row,)) for row in self.model.frame_ids(texts, max_length=self.max_length)]


def ids_only(ids: NDArray[np.int32]) -> Encoded:
    """A text of which only the ids are known: its offsets are 0, and each token is a word."""
    return Encoded(ids, np.zeros((len(ids), 2), np.int32), np.arange(len(ids), dtype=np.int32))


def require_head(model: Model, *names: str) -> str:
    """The first of these heads that the model has; an error if it has none of them."""
    for name in names:
        if name in model.objectives:
            return name
    heads = ", ".join(model.objectives) or "none"
    task = next((TASKS[name] for name in names if name in TASKS), "")
    advice = f"fine-tune it with `bertsmith finetune MODEL --task {task}`" if task else "use a model pre-trained for it"
    raise BertsmithError(f"this model has no {' or '.join(names)} head (heads: {heads}): {advice}")


def require_pipeline(model: Model, *pipelines: Pipeline) -> str:
    """The model's first head for one of these pipelines; an error if it has none."""
    return model.only_head_for(*pipelines) or require_head(model, *objectives_with(*pipelines))


def check_top_k(top_k: int) -> None:
    """An error if top_k is less than 1."""
    if top_k < 1:
        raise BertsmithError(f"top_k={top_k}: it must be at least 1")
