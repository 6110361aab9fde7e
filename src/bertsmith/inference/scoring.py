"""Scoring with a causal language model: the surprisal of each token of a text. T flat tokens, V vocabulary, D width."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, overload

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.inference.forward import ModelInput, Query, TextModel, ids_only
from bertsmith.inference.generation import check_causal, tokens_before
from bertsmith.inference.pipelines import string_list
from bertsmith.inference.predictions import Predictions, Scored
from bertsmith.model_io.model import Model
from bertsmith.objectives.objective import Objective, at_least_float32
from bertsmith.tokenizers.special_tokens import frame_texts
from bertsmith.types import Batch, Encoding, Frame

MAX_LOGITS = 1 << 24  # at once: 64 MiB in float32


@dataclass(frozen=True)
class SurprisalQuery(Query):
    """The surprisal of the token after each token, in nats; that of the last token has no meaning."""

    name = "surprisal"

    def forward(self, model: Model, batch: Batch) -> Tensor:
        encoder, head = model.encoder, cast(Objective, model.objectives["causal_lm"])
        x_TD = encoder(batch, pool=False).last_hidden
        next_T = batch.input_ids.flatten().roll(-1)
        rows = max(1, MAX_LOGITS // max(1, head.classes))
        parts = []
        for part_TD, part_T in zip(torch.split(x_TD, rows), torch.split(next_T, rows), strict=True):
            logits_TV = head.predict(Encoding(part_TD, {}), batch, encoder.token_embeddings)
            parts.append(F.cross_entropy(at_least_float32(logits_TV), part_T, reduction="none"))
        return torch.cat(parts)

    def split(self, values: NDArray[np.float32], inputs: Sequence[ModelInput]) -> list[Any]:
        ends = np.cumsum([one.tokens for one in inputs])
        return np.split(values[: ends[-1]], ends[:-1])


class ScoringPipeline(TextModel):
    """Surprisals and perplexity by a causal language model, such as GPT."""

    @overload
    def score(self, texts: str) -> Scored: ...  # type: ignore[overload-overlap]
    @overload
    def score(self, texts: Iterable[str]) -> Predictions[Scored]: ...

    def score(self, texts: str | Iterable[str]) -> Any:
        """How unexpected each text is: `{"surprisal", "perplexity", "nats_per_byte", "tokens"}`.

        The surprisal of a token is -log p(token | tokens before it), in nats; `surprisal` is the sum over the text,
        `perplexity` the exponential of the mean per token, and `nats_per_byte` the sum per byte of UTF-8, which
        compares models with different tokenizers. `tokens` has `token`, `token_str`, `start`, `end` and `surprisal` of
        each token. The first token of a GPT has no context: its surprisal is None, and neither it nor its bytes count.

        A text that is longer than the model's positions is read in windows that overlap by half, and the result has
        `windows`, their number. Each token is scored once, with at least half of the positions before it.
        """
        check_causal(self.model)
        listed = string_list([texts] if isinstance(texts, str) else texts)
        self.check_texts(*listed)
        before = tokens_before(self.tokenizer, self.model.encoder)
        size, layout = self.max_length - len(before), Frame(single=(*before, "a"), pair=())
        encoded = list(self.encode_each(listed))
        windows = [_windows(len(one), size) for one in encoded]
        inputs = [
            ModelInput(
                (frame_texts(layout, ids_only(one.ids[start : start + size]), None, max_length=self.max_length),)
            )
            for one, starts in zip(encoded, windows, strict=True)
            for start in starts
        ]
        found = iter(self.backend.run(SurprisalQuery(), inputs))
        results: list[Scored] = []
        for text, one, starts in zip(listed, encoded, windows, strict=True):
            surprisal = np.full(len(one) + 1, np.nan)  # of the token at each index; the last is not read
            end = 0
            for start in starts:
                # the value at position i of a row is that of the token at position i + 1
                values = np.roll(next(found), 1)[len(before) :]
                values[:1] = values[:1] if before else np.nan
                surprisal[end : start + len(values)] = values[end - start :]
                end = start + len(values)
            results.append(self._scored(text, one, surprisal[:-1], len(starts)))
        return results[0] if isinstance(texts, str) else Predictions(results)

    def _scored(self, text: str, encoded: Any, surprisal: NDArray[np.float64], windows: int) -> Scored:
        known = surprisal[~np.isnan(surprisal)]
        total = float(known.sum())
        tokens = [
            {
                "token": number,
                "token_str": self.tokenizer.id_to_token(number),
                "start": start,
                "end": end,
                "surprisal": None if math.isnan(value) else value,
            }
            for number, (start, end), value in zip(
                encoded.ids.tolist(), encoded.offsets.tolist(), surprisal.tolist(), strict=True
            )
        ]
        result: Scored = {
            "surprisal": total,
            "perplexity": perplexity(total, len(known)),
            "nats_per_byte": total / _scored_bytes(text, tokens) if len(known) else None,
            "tokens": tokens,
        }
        if windows > 1:
            result["windows"] = windows
        return result


def perplexity(surprisal: float, tokens: int) -> float | None:
    """The exponential of the mean surprisal; None without tokens, infinite where it overflows."""
    if not tokens:
        return None
    mean = surprisal / tokens
    return math.exp(mean) if mean < 700 else math.inf


def total_score(texts: Sequence[str], results: Sequence[Scored]) -> dict[str, Any]:
    """Surprisal, perplexity and nats per byte of several texts together."""
    total = sum(one["surprisal"] for one in results)
    tokens = sum(token["surprisal"] is not None for one in results for token in one["tokens"])
    size = sum(_scored_bytes(text, one["tokens"]) for text, one in zip(texts, results, strict=True))
    return {
        "surprisal": total,
        "perplexity": perplexity(total, tokens),
        "nats_per_byte": total / size if tokens else None,
        "scored_tokens": tokens,
    }


def _scored_bytes(text: str, tokens: Sequence[Mapping[str, Any]]) -> int:
    """Bytes in UTF-8, without those of a first token that has no surprisal."""
    start = tokens[0]["end"] if tokens and tokens[0]["surprisal"] is None else 0
    return len(text[start:].encode("utf-8", "replace"))


def _windows(tokens: int, size: int) -> list[int]:
    """Starts of windows of `size` tokens that overlap by at least half."""
    if not tokens:
        return []
    last = max(tokens - size, 0)
    return [*range(0, last, max(1, size // 2)), last]
