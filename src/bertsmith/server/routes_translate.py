"""The route /translate: translations of texts, with scores and on request the attention to the source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from bertsmith.inference.beam_search import MAX_BEAM_SIZE, Hypothesis, SearchSettings
from bertsmith.inference.predictor import Predictor
from bertsmith.server.errors import RequestError
from bertsmith.server.schemas import ERROR_RESPONSES, Inputs, ModelName, Truncate, format_array, strict
from bertsmith.server.service import Service, ServiceDependency, json_response
from bertsmith.types import Row

router = APIRouter(responses=ERROR_RESPONSES, tags=["generation"])
MAX_EXTRA_TOKENS = 1024
DEFAULTS = SearchSettings()


class TranslateRequest(BaseModel):
    model_config = strict(inputs=["Zwei Hunde spielen im Schnee.", "Ein Mann liest."], beam_size=4)
    inputs: Inputs
    beam_size: Annotated[
        int, Field(ge=1, le=MAX_BEAM_SIZE, description="Hypotheses of beam search; 1: the most likely token each time.")
    ] = DEFAULTS.beam_size
    length_penalty: Annotated[
        float, Field(ge=0, le=10, description="Exponent of the length penalty; 0 favours short translations.")
    ] = DEFAULTS.length_penalty
    n_best: Annotated[
        int, Field(ge=1, le=MAX_BEAM_SIZE, description="Translations of each text, at most beam_size.")
    ] = DEFAULTS.n_best
    max_extra_tokens: Annotated[
        int, Field(ge=0, le=MAX_EXTRA_TOKENS, description="Maximum tokens of a translation, over those of its source.")
    ] = DEFAULTS.max_extra_tokens
    attention: Annotated[
        Literal["none", "mean", "heads"],
        Field(description="Also attention weights: the mean [target][source], or [layers][heads][target][source]."),
    ] = "none"
    truncate: Truncate = False
    model: ModelName = None

    def settings(self) -> SearchSettings:
        """The options of `Predictor.translate`."""
        names = ("beam_size", "length_penalty", "n_best", "max_extra_tokens")
        return SearchSettings(**{name: getattr(self, name) for name in names})


class Translation(BaseModel):
    """A translation. The score is its log probability divided by the length penalty."""

    text: str
    score: float
    logprob: float
    finish_reason: Literal["end", "length"]
    truncated: bool | None = None
    source_tokens: list[str] | None = None
    target_tokens: list[str] | None = None
    attention: list[list[float]] | list[list[list[list[float]]]] | None = None


@router.post(
    "/translate",
    response_model=Translation | list[Translation] | list[list[Translation]],
    response_model_exclude_none=True,
    summary="Translation",
)
async def translate(body: TranslateRequest, request: Request, service: ServiceDependency) -> Response:
    """The translation of each text: text, score, logprob, finish_reason. One text gives one result, a list gives lists.

    With n_best over 1, each result is a list, best first. A text that is too long is an error, or truncated with
    `truncate`; X-Truncated then has its index. With `attention`, the rows of the weights are the tokens of the
    translation, and its columns those of the text, end tokens included.
    """
    texts = service.text_list(body.inputs)
    service.check_count(len(texts) * body.n_best, "translations")

    def run(predictor: Predictor) -> Response:
        settings, rows = body.settings(), predictor.source_rows(texts)
        truncated = [index for index, row in enumerate(rows) if any(row.truncated)]
        if truncated and not body.truncate:
            row = rows[truncated[0]]
            reason = f"{len(row) + row.truncated[0]:,} tokens; this model takes at most {len(row):,}"
            message = f'input {truncated[0]} has {reason}: shorten it or set "truncate": true'
            raise RequestError(413, "too_large", message)
        found = predictor.search_translations(rows, settings)
        _check_attention(service, predictor, rows, found, body.attention)
        results = [
            [_result_json(predictor, row, one, body.attention) for one in some]
            for row, some in zip(rows, found, strict=True)
        ]
        parts = [some[0] if body.n_best == 1 else f"[{','.join(some)}]" for some in results]
        content = parts[0] if isinstance(body.inputs, str) else f"[{','.join(parts)}]"
        return json_response(content, **service.truncated_header(truncated))

    return await service.run(request, body.model, run)


def _check_attention(
    service: Service, predictor: Predictor, rows: Sequence[Row], found: Sequence[Sequence[Hypothesis]], attention: str
) -> None:
    """An error if the response would have too many weights."""
    encoder: Any = predictor.model.encoder
    heads = getattr(encoder.config, "heads", 1) * getattr(encoder.config, "target_layers", 1)
    pairs = sum(len(row) * (len(one.tokens) + 1) for row, some in zip(rows, found, strict=True) for one in some)
    if attention != "none":
        service.check_numbers(pairs * (heads if attention == "heads" else 1), "the attention weights have")


def _result_json(predictor: Predictor, row: Row, translation: Hypothesis, attention: str) -> str:
    result = json.dumps(predictor.translated(translation, row), ensure_ascii=False, allow_nan=False)
    if attention == "none":
        return result
    found = predictor.cross_attention(row, translation)
    weights = found.select() if attention == "mean" else found.weights
    tokens = {"source_tokens": list(found.source_tokens), "target_tokens": list(found.target_tokens)}
    shown = format_array(np.round(weights.astype(np.float64), 5), "%.5g")
    return f'{result[:-1]},{json.dumps(tokens, ensure_ascii=False)[1:-1]},"attention":{shown}}}'
