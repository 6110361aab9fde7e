"""A model with its tokenizer, applied to texts. L tokens, D width."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, Unpack, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.errors import BertsmithError
from bertsmith.inference.encoder_outputs import (
    POOLINGS,
    Attention,
    AttentionQuery,
    Combine,
    EmbeddingOptions,
    EmbeddingQuery,
    Embeddings,
    Pooling,
    TokenEmbeddingQuery,
    TokenEmbeddings,
    check_embedding_options,
    normalized,
    stacked,
)
from bertsmith.inference.fill_mask import FillMaskPipeline
from bertsmith.inference.forward import Backend, ClosedBackend, LocalBackend, ModelInput
from bertsmith.inference.neighbours import NeighbourPipeline
from bertsmith.inference.pipelines import TEXT_PIPELINES, TextOrWords, TextPipelines, string_list, texts_or_ids
from bertsmith.inference.precision import Precision, convert_precision
from bertsmith.inference.predictions import Predictions, Ranked
from bertsmith.inference.stateful import StatefulEncoder
from bertsmith.inference.translation import SequencePipelines
from bertsmith.inference.word_contexts import WordContextPipeline
from bertsmith.inference.word_labels import WordLabelPipelines
from bertsmith.model_io.loading import parameter_count
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import FolderFacts, open_model, save_model
from bertsmith.model_io.run_folder import find_model_folder
from bertsmith.model_io.sentence_transformers import (
    MODULES,
    DenseLayer,
    SentenceSettings,
    read_sentence_settings,
    sentence_files,
)
from bertsmith.reports.run import Run
from bertsmith.system.devices import choose_device
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Encoded, Row

MAX_LABELS = 6  # of a head in `repr`


@dataclass(frozen=True)
class Tokenized:
    """The tokens of one text."""

    ids: tuple[int, ...]  # [L]
    tokens: tuple[str, ...]  # [L]
    offsets: tuple[tuple[int, int], ...]  # [L] start and end in characters of the text; (0, 0) for special tokens
    special: tuple[bool, ...]  # [L]


class Predictor(
    TextPipelines, WordLabelPipelines, FillMaskPipeline, SequencePipelines, NeighbourPipeline, WordContextPipeline
):
    """The result of `bertsmith.load`. Threads may share it; only `to` and `close` change it.

    It owns the model, which it moves and converts. `backend` runs forward passes, by default in the caller's thread.

    >>> with bertsmith.load("my-model") as model:
    ...     model.predict(["A fine film.", "A waste of time."])
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        *,
        facts: FolderFacts | None = None,
        device: str = "cpu",
        precision: Precision = "float32",
        backend: Backend | None = None,
        sentence_settings: SentenceSettings = SentenceSettings(),
        run: Run | None = None,
    ) -> None:
        """`run`: the training run that the model is from."""
        self.parameters = parameter_count(model)
        autocast = convert_precision(model, precision, device)
        self.model = model.eval().to(device)
        self.tokenizer = tokenizer
        self.facts = facts
        self._run = run
        self.device = device
        self.precision = precision
        self.max_length = model.encoder.max_positions
        self.sentence_settings = sentence_settings  # how embeddings are computed by default
        self.max_embedding_length = min(sentence_settings.max_length or self.max_length, self.max_length)
        local = LocalBackend(self.model, padding_id=tokenizer.padding_id, device=device, autocast=autocast)
        self.backend: Backend = backend or local
        self._opening: dict[str, Any] = {}

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        device: str = "auto",
        precision: Precision = "float32",
        run: Run | None = None,
        **opening: Any,
    ) -> Self:
        """Loads a model folder of bertsmith or transformers, or of a run; `opening`: keywords of `open_model`."""
        chosen, folder = choose_device(device), find_model_folder(folder)
        model, tokenizer, facts = open_model(folder, **opening)
        settings = read_sentence_settings(folder, model.encoder)
        about: dict[str, Any] = {"facts": facts, "sentence_settings": settings, "run": run}
        predictor = cls(model, tokenizer, device=chosen, precision=precision, **about)
        predictor._opening = opening
        return predictor

    @property
    def run(self) -> Run:
        """The run that trained the model; only for the result of `bertsmith.finetune`."""
        if self._run is None:
            raise BertsmithError("the model was loaded from a folder: bertsmith.open_run(FOLDER) opens its run")
        return self._run

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Writes a model folder with the tokenizer, the heads and the settings of embeddings.

        `bertsmith.load` of the folder gives the same outputs. `overwrite` replaces a model folder, but no other folder
        or file. A predictor in bfloat16 or int8 copies the float32 weights of the folder that it was loaded from.
        """
        target = Path(folder)
        if not overwrite and (target.is_file() or (target.is_dir() and any(target.iterdir()))):
            raise BertsmithError(f"{target} exists: choose another folder, or pass overwrite=True to replace a model")
        settings = self.sentence_settings
        if settings.unread:
            raise BertsmithError(f"{settings.unread}; to save the model without them, load a folder without {MODULES}")
        model = self._float32_model()
        files = sentence_files(settings, model.encoder) if settings != SentenceSettings() else None
        save_model(model, self.tokenizer, target, extra_files=files, replace=overwrite)
        return target

    def _float32_model(self) -> Model:
        if isinstance(self.backend, ClosedBackend):
            self.backend.run()
        if self.precision == "float32":
            return self.model
        if self.facts is None:
            raise BertsmithError(
                f"a predictor in {self.precision} is saved with the weights of its folder, and this one was not loaded "
                "from a folder: save it with precision float32"
            )
        model, _, _ = open_model(self.facts.folder, **self._opening)
        converted = self.model.state_dict()
        for name, value in model.state_dict().items():
            if converted[name].dtype == value.dtype and not torch.equal(converted[name].cpu(), value):
                raise BertsmithError(f"{self.facts.folder} has changed since it was loaded: load it again to save it")
        return model

    def to(self, device: str) -> Self:
        """Moves the model to `cpu`, `cuda`, `mps` or `auto`, and returns this predictor, as torch modules do."""
        if not isinstance(self.backend, LocalBackend):
            raise BertsmithError(
                "only a predictor that runs the model itself can be moved: call to() before with_backend"
            )
        self.device = choose_device(device)
        self.model.to(self.device)
        padding, autocast = self.tokenizer.padding_id, self.backend.autocast
        self.backend = LocalBackend(self.model, padding_id=padding, device=self.device, autocast=autocast)
        return self

    def close(self) -> None:
        """Frees the memory of the model and closes the backend. The predictor cannot be used after that."""
        if close := getattr(self.backend, "close", None):
            close()
        self.model.to("meta")
        self.backend = ClosedBackend()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        kind = type(self.model.encoder).__module__.rpartition(".")[2]
        heads = [f"{name} ({_listed(labels)})" if labels else name for name, labels in self._head_labels().items()]
        folder = f", folder {str(self.facts.folder)!r}" if self.facts else ""
        closed = "closed" if isinstance(self.backend, ClosedBackend) else f"{self.precision} on {self.device}"
        about = f"{kind}, {self.parameters:,} parameters, heads: {', '.join(heads) or 'none'}, {closed}"
        return f"{type(self).__name__}({about}{folder})"

    def _head_labels(self) -> dict[str, tuple[str, ...]]:
        heads: Any = self.model.objectives
        return {name: getattr(getattr(head, "config", None), "labels", ()) for name, head in heads.items()}

    def with_backend(self, backend: Backend) -> Self:
        """The same model with another backend, such as an `Engine` that many threads share."""
        other = copy.copy(self)
        other.backend = backend
        return other

    def rank(
        self,
        query: str,
        documents: Iterable[str],
        *,
        positive: str = "",
        prompt: str | None = None,
        document_prompt: str | None = None,
    ) -> Predictions[Ranked]:
        """The documents, best first: `{"index", "score", "text"}`.

        A classification or regression model scores pairs of query and document, by its value or by the probability of
        the label `positive` (default: the second of two labels), in windows as in `predict`. Other models score by the
        cosine similarity of embeddings; `truncated` then marks texts over the maximum length. `prompt` and
        `document_prompt` name prompts for embeddings; the defaults are those of sentence-transformers' `encode_query`
        and `encode_document`: `query` and `document` if the model folder has them.
        """
        documents = string_list(documents)
        if self.model.head_for(*TEXT_PIPELINES):
            scored = self.score_pairs(query, documents, positive=positive)
        else:
            query_embedding = self.embed([query], normalize=True, prompt=self._prompt_for("query", prompt))
            embeddings = self.embed(documents, normalize=True, prompt=self._prompt_for("document", document_prompt))
            truncated = set(range(len(documents)) if query_embedding.truncated else embeddings.truncated)
            scored = [
                {"score": score, **({"truncated": True} if index in truncated else {})}
                for index, score in enumerate((embeddings.vectors @ query_embedding.vectors[0]).tolist())
            ]
        results: list[Any] = [{"index": index, **one, "text": documents[index]} for index, one in enumerate(scored)]
        return Predictions(sorted(results, key=lambda one: -one["score"]))

    def _prompt_for(self, role: str, given: str | None = None) -> str:
        return given if given is not None else role if role in self.sentence_settings.prompts else ""

    def ranked_texts(self, query: str, documents: Sequence[str]) -> list[str]:
        """The query and the documents as `rank` embeds them, after their prompts."""
        parts = {"query": [query], "document": documents}
        return [text for role, part in parts.items() for text in self.with_prompt(part, self._prompt_for(role))]

    def attention(self, text: str, second: str | None = None) -> Attention:
        """Attention weights of every layer and head over a text or a pair."""
        self.check_texts(text, *([] if second is None else [second]))
        if self.model.head_for("translation"):
            row = self.source_row(text, second)
        else:
            encoded = [self.tokenizer.encode(one) for one in (text, second) if one is not None]
            row = self.tokenizer.frame(*encoded, max_length=self.max_length)
        (weights,) = self.backend.run(AttentionQuery(), [ModelInput((row,))])
        return Attention(self._tokens(row.ids), row.offsets, row.sequence_ids, weights, any(row.truncated))

    @overload
    def similarity(  # type: ignore[overload-overlap]
        self, first: str, second: str, **options: Unpack[EmbeddingOptions]
    ) -> float: ...
    @overload
    def similarity(
        self, first: Iterable[str], second: Iterable[str], **options: Unpack[EmbeddingOptions]
    ) -> NDArray[np.float32]: ...

    def similarity(
        self, first: str | Iterable[str], second: str | Iterable[str], **options: Unpack[EmbeddingOptions]
    ) -> Any:
        """The cosine similarity of two texts, or of all pairs of two lists [first, second]; options as in `embed`.

        Texts over the maximum length are truncated; `embed` reports which.
        """
        left, right = (
            self.embed(string_list(side), **options | {"normalize": True}).vectors for side in (first, second)
        )
        cosines = left @ right.T
        return float(cosines[0, 0]) if isinstance(first, str) and isinstance(second, str) else cosines

    def encode(self, texts: str | Iterable[TextOrWords], **options: Unpack[EmbeddingOptions]) -> NDArray[np.float32]:
        """One vector for each text [texts, D], or one [D] for a single string; options as in `embed`."""
        vectors = self.embed([texts] if isinstance(texts, str) else texts, **options).vectors
        return vectors[0] if isinstance(texts, str) else vectors

    def embed(
        self,
        texts: Iterable[TextOrWords] | Iterable[Sequence[int]],
        *,
        pooling: Pooling | None = None,
        layers: Sequence[int] = (-1,),
        combine: Combine = "mean",
        normalize: bool | None = None,
        prompt: str | None = None,
    ) -> Embeddings:
        """One vector for each text; a list of words is a text that is tokenized already, as in `embed_all`.

        `pooling`: the mean over all tokens, the first token, the maximum, the sum divided by the root of the length, or
        the pooler's output. `layers`: 0 is the embedding layer, -1 the last; several are averaged or concatenated.
        `normalize`: divide by the L2 norm. `prompt`: the name of a prompt of a sentence-transformers folder, "" for
        none. The defaults, the maximum length and dense layers are those of a sentence-transformers folder, otherwise
        the mean without normalization; a given pooling or layer leaves out dense layers.
        """
        settings = self.sentence_settings
        if pooling is None and settings.unread:
            raise BertsmithError(f"{settings.unread}; choose the pooling: {', '.join(POOLINGS)}")
        dense = self._dense(pooling, layers)
        pooling = pooling or cast(Pooling, settings.pooling)
        normalize = settings.normalize if normalize is None else normalize
        checked = check_embedding_options(self.model.encoder, pooling=pooling, layers=layers, combine=combine)
        query, inputs = EmbeddingQuery(pooling, checked, combine), self.with_prompt(texts_or_ids(texts), prompt)
        rows, results = self.run_texts(query, inputs, max_length=self.max_embedding_length)
        vectors = stacked(results, width=self.model.encoder.width)
        for layer in dense:
            vectors = layer(vectors)
        return Embeddings(normalized(vectors) if normalize else vectors, _truncated(rows))

    def with_prompt(self, texts: Sequence[Any], prompt: str | None = None) -> Sequence[Any]:
        """Texts as `embed` tokenizes them: after the prompt, in lower case where the folder asks for it."""
        settings = self.sentence_settings
        text = settings.prompt_text(prompt)
        if not all(isinstance(one, str) for one in texts):
            if text:
                raise BertsmithError(
                    f"the prompt {text!r} precedes texts: pass texts instead of token ids, or no prompt"
                )
            return texts
        # by character, as the tokenizers library does: str.lower() has a rule for the final sigma
        return ["".join(map(str.lower, text + one)) if settings.lowercase else text + one for one in texts]

    def embedding_width(
        self, *, pooling: Pooling | None = None, layers: Sequence[int] = (-1,), combine: Combine = "mean"
    ) -> int:
        """The width of the vectors of `embed` with these options."""
        if dense := self._dense(pooling, layers):
            return len(dense[-1].weight)
        joined = combine == "concat" and (pooling or self.sentence_settings.pooling) != "pooled"
        return self.model.encoder.width * (len(layers) if joined else 1)

    def _dense(self, pooling: Pooling | None, layers: Sequence[int]) -> tuple[DenseLayer, ...]:
        return self.sentence_settings.dense if pooling is None and tuple(layers) == (-1,) else ()

    def embed_ids(self, ids: Sequence[Sequence[int]], **options: Unpack[EmbeddingOptions]) -> Embeddings:
        """As `embed`, for texts given as token ids without special tokens."""
        return self.embed(ids, **options)

    def embed_all(self, texts: Iterable[TextOrWords], *, layer: int = -1) -> TokenEmbeddings:
        """The output of one layer for every token of each text, special tokens included.

        A text may be a list of words, which are joined by spaces: with a tokenizer that splits at white space only,
        such as that of published ELMo models, each is one token.
        """
        check_embedding_options(self.model.encoder, pooling="mean", layers=[layer])
        rows, vectors = self.run_texts(TokenEmbeddingQuery(layer), texts_or_ids(texts), max_length=self.max_length)
        return TokenEmbeddings(vectors, [self._tokens(row.ids) for row in rows], _truncated(rows))

    def stateful(self) -> StatefulEncoder:
        """An encoder of consecutive texts that carries the state of a recurrent model from call to call."""
        autocast = isinstance(self.backend, LocalBackend) and self.backend.autocast
        return StatefulEncoder(self, device=self.device, autocast=autocast)

    def tokenize(self, texts: Iterable[str], *, special_tokens: bool = True) -> list[Tokenized]:
        """The tokens of each text, without truncation."""
        encoded = self.encode_each(string_list(texts))
        return [self._tokenized(one, special_tokens=special_tokens) for one in encoded]

    def count_tokens(self, texts: Iterable[str]) -> list[int]:
        """The number of tokens of each text, special tokens included; texts over `max_length` would be truncated."""
        specials = sum(isinstance(part, int) for part in self.tokenizer.frame_ids.single)
        counts: list[int] = []
        for some in self.groups(string_list(texts)):
            counts += (self.tokenizer.encode_ids(some)[1] + specials).tolist()
        return counts

    def _tokenized(self, encoded: Encoded, *, special_tokens: bool) -> Tokenized:
        ids, offsets, special = encoded.ids, encoded.offsets, np.zeros(len(encoded), np.bool_)
        if special_tokens:
            row = self.tokenizer.frame(encoded, max_length=len(encoded) + len(self.tokenizer.frame_ids.single))
            ids, offsets, special = row.ids, row.offsets, row.sequence_ids < 0
        pairs = tuple((start, end) for start, end in offsets.tolist())
        return Tokenized(tuple(ids.tolist()), self._tokens(ids), pairs, tuple(special.tolist()))

    def _tokens(self, ids: NDArray[np.int32]) -> tuple[str, ...]:
        return tuple(map(self.tokenizer.id_to_token, ids.tolist()))


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels) if len(labels) <= MAX_LABELS else f"{len(labels)} labels"


def _truncated(rows: Sequence[Row]) -> tuple[int, ...]:
    return tuple(index for index, row in enumerate(rows) if any(row.truncated))
