"""Routes that give vectors, or what vectors tell: /embed, /embed_all, /similarity, /rerank, /v1/embeddings."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from bertsmith.inference.predictor import Predictor
from bertsmith.server import schemas
from bertsmith.server.errors import RequestError
from bertsmith.server.routing import ERRORS, OPEN_AI_ERRORS, GuardedRoute
from bertsmith.server.service import Service, service_of
from bertsmith.server.writing import Reply, numbers, plain

router = APIRouter(route_class=GuardedRoute, responses=ERRORS, tags=["vectors"])


def as_list(inputs: str | list[str]) -> list[str]:
    """Texts, however they were sent."""
    return [inputs] if isinstance(inputs, str) else inputs


def check_fit(predictor: Predictor, texts: Sequence[str], places: Sequence[int]) -> None:
    """Raises at the first of these texts that the model cannot read whole."""
    for place in places:
        (tokens,) = predictor.count_tokens([texts[place]])
        if tokens > predictor.max_length:
            raise RequestError(
                413,
                "too_large",
                f"input {place} has {tokens:,} tokens; this model takes at most {predictor.max_length:,}: "
                'shorten it or set "truncate": true',
            )


def suspects(predictor: Predictor, texts: Sequence[str]) -> list[int]:
    """Texts so long that it pays to count their tokens before anything is computed."""
    return [place for place, text in enumerate(texts) if len(text) > predictor.max_length - 3]


def cut_header(service: Service, cut: Sequence[int]) -> dict[str, str]:
    """Says which texts were cut."""
    if cut:
        service.metrics.truncations.inc(len(cut))
    return {"X-Truncated": ",".join(map(str, cut))} if cut else {}


@router.post("/embed", response_model=list[list[float]], summary="One vector for each text")
async def embed(body: schemas.Embed, request: Request) -> Response:
    """Vectors of texts. A text that is too long is refused, or cut with `truncate`; X-Truncated then names it."""
    service = service_of(request)
    texts = as_list(body.inputs)
    service.check_count(len(texts))

    def ask(predictor: Predictor) -> Reply:
        several = len(body.layers) if body.combine == "concat" and body.pooling != "pooled" else 1
        service.check_numbers(len(texts) * several * predictor.model.encoder.width, "the vectors hold")
        if not body.truncate:
            check_fit(predictor, texts, suspects(predictor, texts))
        found = predictor.embed(
            texts, pooling=body.pooling, layers=body.layers, combine=body.combine, normalize=body.normalize
        )
        if not body.truncate:
            check_fit(predictor, texts, found.truncated)
        return Reply(numbers(found.vectors).encode(), cut_header(service, found.truncated))

    return (await service.answer(request, "embed", ask, model=body.model)).response()


@router.post("/embed_all", response_model=list[list[list[float]]], summary="A vector for every token")
async def embed_all(body: schemas.EmbedAll, request: Request) -> Response:
    """Vectors of all tokens of each text, special tokens included."""
    service = service_of(request)
    texts = as_list(body.inputs)
    service.check_count(len(texts))

    def ask(predictor: Predictor) -> Reply:
        counts = predictor.count_tokens(texts)
        if not body.truncate:
            check_fit(predictor, texts, [place for place, count in enumerate(counts) if count > predictor.max_length])
        places = sum(min(count, predictor.max_length) for count in counts)
        service.check_numbers(places * predictor.model.encoder.width, "the vectors of all tokens hold")
        found = predictor.embed_all(texts, layer=body.layer)
        content = f"[{','.join(map(numbers, found.vectors))}]"
        return Reply(content.encode(), cut_header(service, found.truncated))

    return (await service.answer(request, "embed_all", ask, model=body.model)).response()


@router.post("/similarity", response_model=list[float], summary="How alike sentences are")
async def similarity(body: schemas.Similarity, request: Request) -> Response:
    """The cosine of each sentence with the source sentence."""
    service = service_of(request)
    texts = [body.inputs.source_sentence, *body.inputs.sentences]
    service.check_count(len(body.inputs.sentences), "sentences")

    def ask(predictor: Predictor) -> Reply:
        if not body.truncate:
            check_fit(predictor, texts, suspects(predictor, texts))
        found = predictor.embed(texts, normalize=True)
        if not body.truncate:
            check_fit(predictor, texts, found.truncated)
        cosines = found.vectors[1:] @ found.vectors[0]
        return Reply(numbers(cosines).encode(), cut_header(service, found.truncated))

    return (await service.answer(request, "similarity", ask, model=body.model)).response()


@router.post("/rerank", response_model=list[schemas.Ranked], summary="Texts in order of their match with a query")
async def rerank(body: schemas.Rerank, request: Request) -> Response:
    """The texts, best first: scored beside the query by a model of pairs, otherwise by the cosine of vectors."""
    service = service_of(request)
    service.check_count(len(body.texts))

    def ask(predictor: Predictor) -> Reply:
        found = predictor.rank(body.query, body.texts, positive=body.positive)
        cut = sorted(one["index"] for one in found if one.get("truncated"))
        if cut and not body.truncate:
            check_fit(predictor, [body.query, *body.texts], range(len(body.texts) + 1))
        kept = [one if body.return_text else {k: v for k, v in one.items() if k != "text"} for one in found]
        return plain(kept, **cut_header(service, cut))

    return (await service.answer(request, "rerank", ask, model=body.model)).response()


@router.post(
    "/v1/embeddings",
    response_model=schemas.VectorList,
    responses=OPEN_AI_ERRORS,
    summary="Vectors in OpenAI's form",
)
async def embeddings(body: schemas.Embeddings, request: Request) -> Response:
    """Vectors of length 1, for clients that speak to OpenAI."""
    service = service_of(request)
    texts, ids = _texts_or_ids(body.input)
    service.check_count(len(texts) or len(ids), "inputs")
    name = service.chosen(request, "embed", body.model).name

    def ask(predictor: Predictor) -> Reply:
        width = predictor.model.encoder.width
        if body.dimensions is not None and body.dimensions > width:
            raise RequestError(422, "validation", f"dimensions is more than the {width} that this model has")
        if texts:
            check_fit(predictor, texts, suspects(predictor, texts))
        found = predictor.embed(texts, normalize=True) if texts else predictor.embed_ids(ids, normalize=True)
        if found.truncated:
            check_fit(predictor, texts, found.truncated)
            raise RequestError(
                413, "too_large", f"input {found.truncated[0]} has more tokens than the model takes: send less"
            )
        tokens = sum(predictor.count_tokens(texts)) if texts else sum(map(len, ids))
        return Reply(_open_ai(_shortened(found.vectors, body.dimensions), body.encoding_format, name, tokens))

    return (await service.answer(request, "embed", ask, model=body.model)).response()


def _texts_or_ids(given: Any) -> tuple[list[str], list[list[int]]]:
    if isinstance(given, str):
        return [given], []
    if not given or isinstance(given[0], str):
        return given, []
    return [], given if isinstance(given[0], list) else [given]


def _shortened(vectors: NDArray[np.float32], dimensions: int | None) -> NDArray[np.float32]:
    if dimensions is None:
        return vectors
    kept: NDArray[np.float32] = vectors[:, :dimensions]
    shortened: NDArray[np.float32] = kept / np.maximum(np.linalg.norm(kept, axis=1, keepdims=True), 1e-12)
    return shortened


def _open_ai(vectors: NDArray[np.float32], form: str, model: str, tokens: int) -> bytes:
    coded = [
        numbers(vector) if form == "float" else json.dumps(base64.b64encode(vector.astype("<f4").tobytes()).decode())
        for vector in vectors
    ]
    data = ",".join(
        f'{{"object":"embedding","index":{number},"embedding":{vector}}}' for number, vector in enumerate(coded)
    )
    usage = json.dumps({"prompt_tokens": tokens, "total_tokens": tokens})
    return f'{{"object":"list","data":[{data}],"model":{json.dumps(model)},"usage":{usage}}}'.encode()
