"""A model with its tokenizer, ready for text: fill in, judge, tag, answer, rank, embed. Knows no files but the folder.

D width, V vocabulary, L places.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.errors import BertsmithError
from bertsmith.inference import pipelines, reading
from bertsmith.inference.asking import LogitsQuery, check_top_k, require_head
from bertsmith.inference.attending import Attention, AttentionQuery
from bertsmith.inference.encoder_outputs import (
    Combine,
    EmbeddingQuery,
    Embeddings,
    Pooling,
    TokenEmbeddingQuery,
    TokenEmbeddings,
    check_embedding_options,
    normalized,
)
from bertsmith.inference.fill_mask import Filling, fill_run, mask_runs, score_targets
from bertsmith.inference.forward import Backend, LocalBackend, ModelInput
from bertsmith.inference.framing import Tokenized, frame_ids, tokenized
from bertsmith.inference.precision import Precision, convert_precision
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import FolderFacts, open_model
from bertsmith.model_io.sentence_folder import SentenceSettings, read_sentence_settings
from bertsmith.system.devices import choose_device
from bertsmith.tasks.tagged_text import Unit
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Row


class Predictor:
    """What `bertsmith.load` gives. Threads may share one: nothing in it changes.

    Takes the model over: it goes to the device, and its matrices into the precision. `backend` computes instead of
    the caller's thread; see `through`.
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
        sentence: SentenceSettings = SentenceSettings(),
    ) -> None:
        half = convert_precision(model, precision, device)
        self.model = model.eval().to(device)
        self.tokenizer = tokenizer
        self.facts = facts
        self.device = device
        self.precision = precision
        self.max_length = model.encoder.max_positions  # the longest row
        self.sentence_settings = sentence  # how vectors of texts are made where nobody says it
        direct = LocalBackend(self.model, padding_id=tokenizer.padding_id, device=device, autocast=half)
        self.backend: Backend = backend or direct

    @classmethod
    def open(cls, folder: str | Path, *, device: str = "auto", precision: Precision = "float32") -> Self:
        """The model in a folder, ours or transformers'."""
        chosen = choose_device(device)
        model, tokenizer, facts = open_model(folder)
        sentence = read_sentence_settings(folder, model.encoder)
        return cls(model, tokenizer, facts=facts, device=chosen, precision=precision, sentence=sentence)

    def with_backend(self, backend: Backend) -> Self:
        """The same model, computed by someone else, such as an `Engine` that serves many threads."""
        other = copy.copy(self)
        other.backend = backend
        return other

    # Words in gaps.

    def fill_mask(self, text: str, *, top_k: int = 5, targets: Sequence[str] | None = None) -> list[Any]:
        """The likeliest fillings of each mask in a text, best first: `{"score", "token", "token_str", "sequence"}`.

        Masks that stand side by side are filled together, as one word or phrase; `token` is then a list. With
        `targets`, whole words are scored instead, however many pieces they have. A text with one run of masks gives one
        list, a text with several a list for each, the other masks staying masked.
        """
        require_head(self.model, "masked_lm")
        check_top_k(top_k)
        runs = mask_runs(self.tokenizer, text)
        found: list[list[Filling]] = []
        for run in runs:
            if targets:
                found.append(score_targets(self, text, run, targets)[:top_k])
            else:
                found.append(fill_run(self, text, run, top_k=top_k))
        shown = [[filling.to_json() for filling in fillings] for fillings in found]
        return shown[0] if len(shown) == 1 else shown

    def word_log_probabilities(self, rows: Sequence[Row], places: Sequence[int]) -> Tensor:
        """log p of every token [rows, V] at one place of each row, special tokens left out."""
        items = [ModelInput((row,), np.array([place])) for row, place in zip(rows, places, strict=True)]
        logits = torch.from_numpy(np.stack(self.backend.run(LogitsQuery("masked_lm"), items)))
        logits[:, list(self.tokenizer.special_ids)] = -torch.inf
        logits[:, self.tokenizer.vocab_size :] = -torch.inf  # rows that pad the table
        return logits.log_softmax(-1)

    # Pairs.

    def next_sentence(self, first: str, second: str) -> dict[str, Any]:
        """How likely the second text is to follow the first: `{"is_next", "random", "cut"}`."""
        require_head(self.model, "next_sentence")
        row = self.tokenizer.frame(
            self.tokenizer.encode(first), self.tokenizer.encode(second), max_length=self.max_length
        )
        (logits,) = self.backend.run(LogitsQuery("next_sentence"), [ModelInput((row,))])
        follows, random = torch.from_numpy(logits).softmax(-1).tolist()
        return {"is_next": follows, "random": random, "cut": any(row.truncated)}

    # Whole texts and pairs.

    def predict(self, texts: Any, *, top_k: int = 1) -> Any:
        """The label of each text, `{"label", "score"}`, or its number, `{"score"}`, if the model was made for numbers.

        A string or a tuple of two, a pair, gives one result; a list of them a list. With `top_k` over 1 each result is
        a list of labels, the likeliest first. What is too long for a row is read in windows that overlap, and the
        answer read from the mean of their logits; the result then has `windows`, their number.
        """
        return pipelines.predict(self, texts, top_k=top_k)

    def predict_proba(self, texts: Any) -> pipelines.Probabilities:
        """How likely each label is for each text or pair; long ones are read as in `predict`."""
        return pipelines.probabilities(self, texts)

    def choose(self, question: str, choices: Sequence[str]) -> dict[str, Any]:
        """The right one of several choices: `{"choice", "index", "score", "probabilities"}`, and `cut` if it is so."""
        return reading.choice(self, question, choices)

    def rank(self, query: str, documents: Sequence[str], *, positive: str = "") -> list[dict[str, Any]]:
        """The documents, best first: `{"index", "score", "text"}`.

        A model for pairs scores each document beside the query, by its number or by the probability of the label
        `positive` (of two labels the second); long ones are read as in `predict`. Any other model is asked for vectors,
        whose cosine is the score; `cut` then marks what was longer than the model takes.
        """
        if any(head in self.model.objectives for head in pipelines.HEADS):
            found = pipelines.pair_scores(self, query, documents, positive=positive)
        else:
            embedded = self.embed([query, *documents], normalize=True)
            cut = [{"cut": True} if {0, place + 1} & set(embedded.truncated) else {} for place in range(len(documents))]
            scores = (embedded.vectors[1:] @ embedded.vectors[0]).tolist()
            found = [{"score": score, **mark} for score, mark in zip(scores, cut, strict=True)]
        listed = [{"index": place, **one, "text": documents[place]} for place, one in enumerate(found)]
        return sorted(listed, key=lambda one: -one["score"])

    # Parts of texts.

    def ner(self, text: str | Sequence[str], *, unit: Unit = "word") -> list[Any]:
        """The entities of a text, `{"entity_group", "score", "word", "start", "end"}`; of several texts a list each.

        Places are characters of the text as it was given. Texts of any length are read in windows. `unit` is what the
        model was taught to tag: words, parts of words at all punctuation, or characters.
        """
        found = reading.entities(self, [text] if isinstance(text, str) else text, unit=unit)
        return found[0] if isinstance(text, str) else found

    def answer(self, question: str, context: str, *, top_k: int = 1, no_answer: float | None = None) -> Any:
        """The stretch of the context that answers, `{"answer", "score", "start", "end"}`; a list if `top_k` is over 1.

        The score is the probability among the best answers. A context of any length is read in windows; `cut` marks a
        question that was too long. With `no_answer`, "" is the answer where no answer scores more than that above the
        best one: 0 for an even match. Where it is not given, a model that learned to say nothing takes the threshold
        that was best then; any other always answers.
        """
        return reading.answers(self, question, context, top_k=top_k, no_answer=no_answer)

    def attention(self, text: str, second: str | None = None) -> Attention:
        """Which token of a text, or of a pair, attends to which, in every layer and head."""
        encoded = [self.tokenizer.encode(one) for one in (text, second) if one is not None]
        row = self.tokenizer.frame(*encoded, max_length=self.max_length)
        (weights,) = self.backend.run(AttentionQuery(), [ModelInput((row,))])
        tokens = tuple(self.tokenizer.id_to_token(number) for number in row.ids.tolist())
        return Attention(tokens, row.offsets, row.sequence_ids, weights, any(row.truncated))

    # Vectors.

    def similarity(self, first: str | Sequence[str], second: str | Sequence[str], **options: Any) -> Any:
        """The cosine of two texts, or of each of several with each of others [first, second]; options as in `embed`.

        What is longer than the model takes is cut, as in `embed`, which says of which texts.
        """
        sides = [[side] if isinstance(side, str) else list(side) for side in (first, second)]
        ours, theirs = (self.embed(side, **options | {"normalize": True}).vectors for side in sides)
        found = ours @ theirs.T
        return float(found[0, 0]) if isinstance(first, str) and isinstance(second, str) else found

    def encode(self, texts: str | Sequence[str], **options: Any) -> NDArray[np.float32]:
        """One vector for each text [texts, D], or one [D] for a single string; options as for `embed`."""
        found = self.embed([texts] if isinstance(texts, str) else texts, **options).vectors
        return found[0] if isinstance(texts, str) else found

    def embed(
        self,
        texts: Sequence[str],
        *,
        pooling: Pooling | None = None,
        layers: Sequence[int] = (-1,),
        combine: Combine = "mean",
        normalize: bool | None = None,
    ) -> Embeddings:
        """Vectors of texts, those of like length computed together.

        `pooling`: mean over all tokens of a text, its first token, or the pooler's output. `layers` counts from 0, the
        embeddings, or from the end; several are averaged or concatenated. `normalize` gives vectors of length 1. Where
        nobody says it, the mean is taken as it comes, or what a folder of sentence-transformers says.
        """
        return self._embed(self._rows(texts), pooling=pooling, layers=layers, combine=combine, normalize=normalize)

    def embed_ids(self, texts: Sequence[Sequence[int]], **options: Any) -> Embeddings:
        """As `embed`, of texts that are ids already, without special tokens."""
        return self._embed([frame_ids(self.tokenizer, ids, length=self.max_length) for ids in texts], **options)

    def embed_all(self, texts: Sequence[str], *, layer: int = -1) -> TokenEmbeddings:
        """A vector for every token of each text, special tokens among them, as one layer has it."""
        check_embedding_options(self.model.encoder, pooling="mean", layers=[layer], combine="mean")
        rows = self._rows(texts)
        found = self.backend.run(TokenEmbeddingQuery(layer), [ModelInput((row,)) for row in rows])
        tokens = [tuple(map(self.tokenizer.id_to_token, row.ids.tolist())) for row in rows]
        return TokenEmbeddings(found, tokens, _cut(rows))

    def _embed(
        self,
        rows: Sequence[Row],
        *,
        pooling: Pooling | None = None,
        layers: Sequence[int] = (-1,),
        combine: Combine = "mean",
        normalize: bool | None = None,
    ) -> Embeddings:
        if pooling is None and self.sentence_settings.unread:
            raise BertsmithError(f"{self.sentence_settings.unread}; name the pooling: mean, first or pooled")
        pooling = pooling or cast(Pooling, self.sentence_settings.pooling)
        normalize = self.sentence_settings.normalize if normalize is None else normalize
        chosen = check_embedding_options(self.model.encoder, pooling=pooling, layers=layers, combine=combine)
        found = self.backend.run(EmbeddingQuery(pooling, chosen, combine), [ModelInput((row,)) for row in rows])
        vectors = np.stack(found) if found else np.empty((0, self.model.encoder.width), np.float32)
        return Embeddings(normalized(vectors) if normalize else vectors, _cut(rows))

    # Tokens.

    def tokenize(self, texts: Sequence[str], *, specials: bool = True) -> list[Tokenized]:
        """The tokens of each text, with the special tokens round it or without; nothing is cut."""
        return [tokenized(self.tokenizer, found, specials=specials) for found in self.tokenizer.encode_batch(texts)]

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each text has, special ones among them; more than `length` are cut where texts are read."""
        specials = sum(isinstance(part, int) for part in self.tokenizer.frame_ids.single)
        return [len(found) + specials for found in self.tokenizer.encode_batch(texts)]

    def _rows(self, texts: Sequence[str]) -> list[Row]:
        return [self.tokenizer.frame(found, max_length=self.max_length) for found in self.tokenizer.encode_batch(texts)]


def _cut(rows: Sequence[Row]) -> tuple[int, ...]:
    return tuple(place for place, row in enumerate(rows) if any(row.truncated))
