"""A model with its tokenizer, ready for text: fill in, judge, tag, answer, rank, embed. Knows no files but the folder.

D width, V vocabulary, L places.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.batching import collate
from bertsmith.devices import choose_device
from bertsmith.model import Model
from bertsmith.serve import judging, reading
from bertsmith.serve.asking import check_top_k, expect_head
from bertsmith.serve.attending import Attention
from bertsmith.serve.embedding import Combine, Embedded, Pooling, checked, similar_lengths, vectors
from bertsmith.serve.filling import Filling, fill_run, mask_runs, score_targets
from bertsmith.tasks.tagged.sentences import Unit
from bertsmith.text.tokenizer import Tokenizer
from bertsmith.types import Batch, Row
from bertsmith.weights.model_folder import FolderFacts, open_model


class Predictor:
    """What `bertsmith.load` gives. Threads may share one: nothing in it changes."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer, *, facts: FolderFacts | None = None, device: str = "cpu"
    ) -> None:
        self.model = model.eval().to(device)
        self.tokenizer = tokenizer
        self.facts = facts
        self.device = device
        self.length = model.encoder.positions  # the longest row

    @classmethod
    def open(cls, folder: str | Path, *, device: str = "auto") -> Self:
        """The model in a folder, ours or transformers'."""
        chosen = choose_device(device)
        model, tokenizer, facts = open_model(folder)
        return cls(model, tokenizer, facts=facts, device=chosen)

    # Words in gaps.

    def fill_mask(self, text: str, *, top_k: int = 5, targets: Sequence[str] | None = None) -> list[Any]:
        """The likeliest fillings of each mask in a text, best first: `{"score", "token", "token_str", "sequence"}`.

        Masks that stand side by side are filled together, as one word or phrase; `token` is then a list. With
        `targets`, whole words are scored instead, however many pieces they have. A text with one run of masks gives one
        list, a text with several a list for each, the other masks staying masked.
        """
        expect_head(self.model, "masked_lm")
        check_top_k(top_k)
        runs = mask_runs(self.tokenizer, text)
        found: list[list[Filling]] = []
        with torch.inference_mode():
            for run in runs:
                if targets:
                    found.append(score_targets(self, text, run, targets)[:top_k])
                else:
                    found.append(fill_run(self, text, run, top_k=top_k))
        shown = [[filling.shown() for filling in fillings] for fillings in found]
        return shown[0] if len(shown) == 1 else shown

    def word_log_probabilities(self, rows: Sequence[Row], places: Sequence[int]) -> Tensor:
        """log p of every token [rows, V] at one place of each row, special tokens left out."""
        batch = self._batch(rows)
        flat = torch.arange(len(rows), device=self.device) * batch.ids.shape[1] + torch.tensor(
            places, device=self.device
        )
        logits = self.model.answer(batch.replace(places={"masked_lm": flat}), "masked_lm").float()
        logits[:, list(self.tokenizer.special_ids)] = -torch.inf
        logits[:, self.tokenizer.vocabulary_size :] = -torch.inf  # rows that pad the table
        return logits.log_softmax(-1)

    # Pairs.

    def next_sentence(self, first: str, second: str) -> dict[str, Any]:
        """How likely the second text is to follow the first: `{"is_next", "random", "cut"}`."""
        expect_head(self.model, "next_sentence")
        row = self.tokenizer.frame(self.tokenizer.encode(first), self.tokenizer.encode(second), length=self.length)
        with torch.inference_mode():
            follows, random = self.model.answer(self._batch([row]), "next_sentence").float().softmax(-1)[0].tolist()
        return {"is_next": follows, "random": random, "cut": any(row.cut)}

    # Whole texts and pairs.

    def predict(self, texts: Any, *, top_k: int = 1) -> Any:
        """The label of each text, `{"label", "score"}`, or its number, `{"score"}`, if the model was made for numbers.

        A string or a tuple of two, a pair, gives one result; a list of them a list. With `top_k` over 1 each result is
        a list of labels, the likeliest first. What is too long for a row is read in windows that overlap, and the
        answer read from the mean of their logits; the result then has `windows`, their number.
        """
        return judging.predict(self, texts, top_k=top_k)

    def predict_proba(self, texts: Any) -> judging.Probabilities:
        """How likely each label is for each text or pair; long ones are read as in `predict`."""
        return judging.probabilities(self, texts)

    def choose(self, question: str, choices: Sequence[str]) -> dict[str, Any]:
        """The right one of several choices: `{"choice", "index", "score", "probabilities"}`, and `cut` if it is so."""
        return reading.choice(self, question, choices)

    def rank(self, query: str, documents: Sequence[str], *, positive: str = "") -> list[dict[str, Any]]:
        """The documents, best first: `{"index", "score", "text"}`.

        A model for pairs scores each document beside the query, by its number or by the probability of the label
        `positive` (of two labels the second); long ones are read as in `predict`. Any other model is asked for vectors,
        whose cosine is the score; `cut` then marks what was longer than the model takes.
        """
        if any(head in self.model.objectives for head in judging.HEADS):
            found = judging.pair_scores(self, query, documents, positive=positive)
        else:
            embedded = self.embed([query, *documents], normalize=True)
            cut = [{"cut": True} if {0, place + 1} & set(embedded.cut) else {} for place in range(len(documents))]
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
        best one: 0 for an even match, or the threshold that was found best.
        """
        return reading.answers(self, question, context, top_k=top_k, no_answer=no_answer)

    def attention(self, text: str, second: str | None = None) -> Attention:
        """Which token of a text, or of a pair, attends to which, in every layer and head."""
        encoded = [self.tokenizer.encode(one) for one in (text, second) if one is not None]
        row = self.tokenizer.frame(*encoded, length=self.length)
        with torch.inference_mode():
            encoding = self.model.encoder(self._batch([row]), pool=False, keep_attentions=True)
            weights = torch.cat(encoding.attentions).float().cpu().numpy()
        tokens = tuple(self.tokenizer.token(number) for number in row.ids.tolist())
        return Attention(tokens, row.offsets, row.texts, weights, any(row.cut))

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
        pooling: Pooling = "mean",
        layers: Sequence[int] = (-1,),
        combine: Combine = "mean",
        normalize: bool = False,
    ) -> Embedded:
        """Vectors of texts, computed in batches of similar length.

        `pooling`: mean over all tokens of a text, its first token, or the pooler's output. `layers` counts from 0, the
        embeddings, or from the end; several are averaged or concatenated. `normalize` gives vectors of length 1.
        """
        layers = checked(self.model.encoder, pooling=pooling, layers=layers, combine=combine)
        rows = [self.tokenizer.frame(found, length=self.length) for found in self.tokenizer.encode_batch(texts)]
        every: NDArray[np.float32] | None = None
        for group in similar_lengths([len(row) for row in rows]):
            batch = self._batch([rows[place] for place in group])
            with torch.inference_mode():
                found = vectors(self.model.encoder, batch, pooling=pooling, layers=layers, combine=combine)
            if normalize:
                found = torch.nn.functional.normalize(found, dim=-1)
            if every is None:
                every = np.empty((len(rows), found.shape[-1]), np.float32)
            every[group] = found.cpu().numpy()
        cut = tuple(place for place, row in enumerate(rows) if any(row.cut))
        return Embedded(np.empty((0, self.model.encoder.width), np.float32) if every is None else every, cut)

    def _batch(self, rows: Sequence[Row]) -> Batch:
        length = max(map(len, rows))
        return collate(rows, length=length, padding_id=self.tokenizer.padding_id).to(self.device)
