"""Routes that show what a model does with a text: /tokenize, /attention."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from bertsmith.inference.predictor import Predictor
from bertsmith.server import schemas
from bertsmith.server.errors import RequestError
from bertsmith.server.routes_embed import as_list
from bertsmith.server.routing import ERRORS, GuardedRoute
from bertsmith.server.service import service_of
from bertsmith.server.writing import Reply, plain, rounded

router = APIRouter(route_class=GuardedRoute, responses=ERRORS, tags=["views"])


@router.post("/tokenize", response_model=list[list[schemas.Token]], summary="Texts as tokens")
async def tokenize(body: schemas.Tokenize, request: Request) -> Response:
    """The tokens of each text, none left out: id, text, special, and where it stands, in characters of the input."""
    service = service_of(request)
    texts = as_list(body.inputs)
    service.check_count(len(texts))

    def ask(predictor: Predictor) -> Reply:
        found = predictor.tokenize(texts, special_tokens=body.add_special_tokens)
        service.check_numbers(4 * sum(len(one.ids) for one in found), "the tokens hold")
        return plain([_tokens(one) for one in found])

    return (await service.answer(request, "tokenize", ask, model=body.model)).response()


def _tokens(found: Any) -> list[dict[str, Any]]:
    return [
        {"id": number, "text": token, "special": special, "start": int(begin), "stop": int(end)}
        for number, token, (begin, end), special in zip(
            found.ids, found.tokens, found.offsets, found.special, strict=True
        )
    ]


@router.post("/attention", response_model=schemas.Weights, summary="Which token attends to which")
async def attention(body: schemas.AttentionOf, request: Request) -> Response:
    """Attention of every layer and head, or of those chosen: [layers][heads][from][to], to five places."""
    service = service_of(request)

    def ask(predictor: Predictor) -> Reply:
        encoder: Any = predictor.model.encoder
        layers = _chosen("layer", body.layer, encoder.layers)
        heads = _chosen("head", body.head, encoder.config.heads)
        texts = [text for text in (body.inputs, body.second) if text is not None]
        places = min(sum(predictor.count_tokens(texts)), predictor.max_length)
        count = (layers.stop - layers.start) * (heads.stop - heads.start) * places**2
        service.check_numbers(count, f"the attention of {places} tokens holds")
        found = predictor.attention(body.inputs, body.second)
        facts = {
            "tokens": list(found.tokens),
            "offsets": found.offsets.tolist(),
            "sequence_ids": found.sequence_ids.tolist(),
            "truncated": found.truncated,
        }
        weights = rounded(found.weights[layers, heads])
        return Reply(f'{json.dumps(facts, ensure_ascii=False)[:-1]},"attention":{weights}}}'.encode())

    return (await service.answer(request, "attention", ask, model=body.model)).response()


def _chosen(name: str, number: int | None, count: int) -> slice:
    if number is None:
        return slice(0, count)
    if number > count:
        raise RequestError(422, "validation", f"{name} {number} is not there: 1 to {count}")
    return slice(number - 1, number)
