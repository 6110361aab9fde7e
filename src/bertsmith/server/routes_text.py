"""Routes that answer: /predict, /fill-mask, /ner, /qa, /choose, /next-sentence."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from bertsmith.inference.fill_mask import find_masks
from bertsmith.inference.predictor import Predictor
from bertsmith.server import schemas
from bertsmith.server.errors import RequestError
from bertsmith.server.routes_embed import as_list
from bertsmith.server.routing import ERRORS, GuardedRoute
from bertsmith.server.service import service_of
from bertsmith.server.writing import Reply, plain

router = APIRouter(route_class=GuardedRoute, responses=ERRORS, tags=["answers"])
MASKS = 32  # in one text: each is filled by a forward of its own


@router.post(
    "/predict", response_model=list[schemas.Label] | list[list[schemas.Label]], summary="Labels or numbers for texts"
)
async def predict(body: schemas.Predict, request: Request) -> Response:
    """The labels of each text or pair, likeliest first, or its number. One text gives one list, several a list each."""
    service = service_of(request)
    alone = isinstance(body.inputs, str)
    texts = [body.inputs] if isinstance(body.inputs, str) else [_pair(one) for one in body.inputs]
    service.check_count(len(texts))

    def ask(predictor: Predictor) -> Reply:
        found = [one if isinstance(one, list) else [one] for one in predictor.predict(texts, top_k=body.top_k)]
        return plain(found[0] if alone else found)

    return (await service.answer(request, "predict", ask, model=body.model)).response()


def _pair(one: str | list[str]) -> Any:
    if isinstance(one, list) and len(one) not in (1, 2):
        raise RequestError(422, "validation", f"inputs: a pair has two texts, and this one {len(one)}")
    return tuple(one) if isinstance(one, list) else one


@router.post("/fill-mask", response_model=list[Any], summary="Words for gaps")
async def fill_mask(body: schemas.FillMask, request: Request) -> Response:
    """The likeliest words for each gap: score, token, token_str, sequence. Several texts give a list each."""
    service = service_of(request)
    texts = as_list(body.inputs)
    service.check_count(len(texts))

    def ask(predictor: Predictor) -> Reply:
        for number, text in enumerate(texts):
            masks = sum(run.last - run.first for run in find_masks(predictor.tokenizer, text))
            if masks > MASKS:
                raise RequestError(
                    413, "too_large", f"text {number} has {masks} gaps, at most {MASKS}: send fewer at a time"
                )
        found = [predictor.fill_mask(text, top_k=body.top_k, targets=body.targets) for text in texts]
        return plain(found[0] if isinstance(body.inputs, str) else found)

    return (await service.answer(request, "fill-mask", ask, model=body.model)).response()


@router.post("/ner", response_model=list[Any], summary="Entities of texts")
async def ner(body: schemas.Ner, request: Request) -> Response:
    """Entities with their places: entity_group, score, word, start, end. Several texts give a list each."""
    service = service_of(request)
    service.check_count(len(as_list(body.inputs)))
    return (
        await service.answer(
            request, "ner", lambda predictor: plain(predictor.ner(body.inputs, unit=body.unit)), model=body.model
        )
    ).response()


@router.post("/qa", response_model=dict[str, Any] | list[dict[str, Any]], summary="Answers from a text")
async def qa(body: schemas.Qa, request: Request) -> Response:
    """The stretch of the context that answers: answer, score, start, end; a list where `top_k` is over 1."""
    given = (body.question, body.context)
    asked = given if body.inputs is None else (body.inputs.question, body.inputs.context)
    question, context = asked
    if question is None or context is None or (body.inputs is not None and given != (None, None)):
        raise RequestError(422, "validation", "send question and context, either in inputs or beside the other fields")

    def ask(predictor: Predictor) -> Reply:
        return plain(predictor.answer(question, context, top_k=body.top_k, no_answer=body.no_answer))

    return (await service_of(request).answer(request, "qa", ask, model=body.model)).response()


@router.post("/choose", response_model=dict[str, Any], summary="The right one of several choices")
async def choose(body: schemas.Choose, request: Request) -> Response:
    """Which choice is right: choice, index, score, probabilities."""
    service = service_of(request)
    service.check_count(len(body.choices), "choices")
    return (
        await service.answer(
            request, "choose", lambda predictor: plain(predictor.choose(body.question, body.choices)), model=body.model
        )
    ).response()


@router.post("/next-sentence", response_model=dict[str, Any], summary="Does the second text follow the first?")
async def next_sentence(body: schemas.NextSentence, request: Request) -> Response:
    """How likely the second text is to follow the first: is_next, not_next, truncated."""
    return (
        await service_of(request).answer(
            request,
            "next-sentence",
            lambda predictor: plain(predictor.next_sentence(body.first, body.second)),
            model=body.model,
        )
    ).response()
