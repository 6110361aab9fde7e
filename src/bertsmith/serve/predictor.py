"""A model with its tokenizer, ready for text: fill in words, judge pairs, embed. Knows no files but the model folder.

B texts in a batch, L places, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.batching import collate
from bertsmith.devices import choose_device
from bertsmith.errors import BertsmithError
from bertsmith.model import Model
from bertsmith.serve.filling import Filling, fill_run, mask_runs, score_targets
from bertsmith.text.tokenizer import Tokenizer
from bertsmith.types import Batch, Row
from bertsmith.weights.model_folder import FolderFacts, open_model

BATCH_TOKENS = 4096  # places in one forward: enough to keep a core busy, little enough for any memory

Pooling = Literal["mean", "first", "pooled"]
Combine = Literal["mean", "concat"]


@dataclass(frozen=True)
class Embedded:
    """One vector for each text."""

    vectors: NDArray[np.float32]  # [texts, D]
    cut: tuple[int, ...]  # numbers of the texts that were longer than the model takes


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
        self._expect_head("masked_lm")
        if top_k < 1:
            raise BertsmithError(f"top_k={top_k}: at least one filling must be asked for")
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
        self._expect_head("next_sentence")
        row = self.tokenizer.frame(self.tokenizer.encode(first), self.tokenizer.encode(second), length=self.length)
        with torch.inference_mode():
            follows, random = self.model.answer(self._batch([row]), "next_sentence").float().softmax(-1)[0].tolist()
        return {"is_next": follows, "random": random, "cut": any(row.cut)}

    # Vectors.

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
        layers = self._checked(pooling, layers, combine)
        rows = [self.tokenizer.frame(found, length=self.length) for found in self.tokenizer.encode_batch(texts)]
        vectors: NDArray[np.float32] | None = None
        for group in similar_lengths([len(row) for row in rows]):
            with torch.inference_mode():
                found = self._vectors([rows[place] for place in group], pooling, layers, combine)
            if normalize:
                found = torch.nn.functional.normalize(found, dim=-1)
            if vectors is None:
                vectors = np.empty((len(rows), found.shape[-1]), np.float32)
            vectors[group] = found.cpu().numpy()
        cut = tuple(place for place, row in enumerate(rows) if any(row.cut))
        return Embedded(np.empty((0, self.model.encoder.width), np.float32) if vectors is None else vectors, cut)

    def _vectors(self, rows: Sequence[Row], pooling: Pooling, layers: Sequence[int], combine: Combine) -> Tensor:
        batch = self._batch(rows)
        encoding = self.model.encoder(batch, pool=pooling == "pooled", keep_layers=True)
        if pooling == "pooled":
            assert encoding.pooled is not None
            pooled: Tensor = encoding.pooled.float()
            return pooled
        chosen = (
            torch.stack([encoding.layers[layer] for layer in layers]).float().view(len(layers), *batch.ids.shape, -1)
        )
        if pooling == "first":
            each = chosen[:, :, 0]
        else:
            real = (batch.document > 0).float()
            each = (chosen * real[None, :, :, None]).sum(2) / real.sum(1)[None, :, None]
        return each.mean(0) if combine == "mean" else torch.cat(list(each), dim=-1)

    def _checked(self, pooling: str, layers: Sequence[int], combine: str) -> list[int]:
        if pooling not in ("mean", "first", "pooled"):
            raise BertsmithError(f"pooling {pooling} is not known: mean, first or pooled")
        if combine not in ("mean", "concat"):
            raise BertsmithError(f"combine {combine} is not known: mean or concat")
        if pooling == "pooled" and not self.model.encoder.pools:
            raise BertsmithError("this model has no pooler: use pooling mean or first")
        count = len(self.model.encoder.depths()) - self.model.encoder.pools
        for layer in layers:
            if not -count <= layer < count:
                raise BertsmithError(f"layer {layer} is not there: 0 (the embeddings) to {count - 1}, or from the end")
        if not layers:
            raise BertsmithError("no layer was chosen: -1 is the last")
        return list(layers)

    def _batch(self, rows: Sequence[Row]) -> Batch:
        length = max(map(len, rows))
        return collate(rows, length=length, padding_id=self.tokenizer.padding_id).to(self.device)

    def _expect_head(self, name: str) -> None:
        if name not in self.model.objectives:
            has = ", ".join(self.model.objectives) or "none"
            raise BertsmithError(f"this model has no {name} head (it has: {has}): open one that was trained for it")


def similar_lengths(lengths: Sequence[int]) -> list[NDArray[np.int64]]:
    """Numbers of texts, longest first, in groups of at most `BATCH_TOKENS` places once padded."""
    order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
    groups, start = [], 0
    while start < len(order):
        count = max(BATCH_TOKENS // lengths[order[start]], 1)
        groups.append(order[start : start + count])
        start += count
    return groups
