"""Routes on texts: /predict, /fill-mask, /ner, /tag-words, /qa, /choose, /next-sentence, /tokenize, /attention …"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from bertsmith.inference.encoder_outputs import NO_ATTENTION
from bertsmith.inference.fill_mask import find_masks
from bertsmith.inference.predictor import Predictor
from bertsmith.server import schemas
from bertsmith.server.errors import RequestError
from bertsmith.server.schemas import ERROR_RESPONSES, format_array
from bertsmith.server.service import ServiceDependency, json_response

router = APIRouter(responses=ERROR_RESPONSES, tags=["text"])
MAX_MASKS = 32  # in one text: each needs its own forward pass


@router.post(
    "/predict", response_model=list[schemas.Label] | list[list[schemas.Label]], summary="Classification or regression"
)
async def predict(body: schemas.PredictRequest, request: Request, service: ServiceDependency) -> Response:
    """The labels of each text or pair, most likely first, or its value. One text gives one list, a list gives lists."""
    single = isinstance(body.inputs, str)
    texts = [body.inputs] if isinstance(body.inputs, str) else [_text_or_pair(one) for one in body.inputs]
    service.check_count(len(texts))

    def run(predictor: Predictor) -> Response:
        results = [one if isinstance(one, list) else [one] for one in predictor.predict(texts, top_k=body.top_k)]
        return json_response(results[0] if single else results)

    return await service.run(request, body.model, run)


def _text_or_pair(one: str | list[str]) -> Any:
    if isinstance(one, list) and len(one) not in (1, 2):
        raise RequestError(422, "validation", f"inputs: a pair has two texts, but this one has {len(one)}")
    return tuple(one) if isinstance(one, list) else one


@router.post("/fill-mask", response_model=list[Any], summary="Most likely tokens for masks")
async def fill_mask(body: schemas.FillMaskRequest, request: Request, service: ServiceDependency) -> Response:
    """The most likely tokens for each mask: score, token, token_str, sequence. A list of texts gives lists."""
    texts = service.text_list(body.inputs)

    def run(predictor: Predictor) -> Response:
        predictor.check_texts(*texts)
        best, characters = min(body.top_k, len(body.targets or ()) or body.top_k), 0
        for index, text in enumerate(texts):
            runs = find_masks(predictor.tokenizer, text)
            masks = sum(one.last - one.first for one in runs)
            characters += len(text) * len(runs) * best
            service.check_numbers(characters, "the sequences have", "characters")
            if masks > MAX_MASKS:
                message = f"input {index} has {masks} masks, at most {MAX_MASKS}: send fewer at a time"
                raise RequestError(413, "too_large", message)
        options: dict[str, Any] = {"targets": body.targets, "full_vocabulary": body.full_vocabulary}
        results = [predictor.fill_mask(text, top_k=body.top_k, **options) for text in texts]
        return json_response(results[0] if isinstance(body.inputs, str) else results)

    return await service.run(request, body.model, run)


@router.post("/ner", response_model=list[Any], summary="Named entities")
async def ner(body: schemas.NERRequest, request: Request, service: ServiceDependency) -> Response:
    """Entities with character offsets: entity_group, score, word, start, end. A list of texts gives lists."""
    service.text_list(body.inputs)
    return await service.run(
        request, body.model, lambda predictor: json_response(predictor.ner(body.inputs, unit=body.unit))
    )


@router.post("/tag-words", response_model=list[Any], summary="The label of each word")
async def tag_words(body: schemas.NERRequest, request: Request, service: ServiceDependency) -> Response:
    """Words with character offsets: word, label, score, start, end. A list of texts gives lists."""
    service.text_list(body.inputs)
    return await service.run(
        request, body.model, lambda predictor: json_response(predictor.tag_words(body.inputs, unit=body.unit))
    )


@router.post("/qa", response_model=dict[str, Any] | list[dict[str, Any]], summary="Extractive question answering")
async def qa(body: schemas.QARequest, request: Request, service: ServiceDependency) -> Response:
    """The span of the context that answers: answer, score, start, end; a list if `top_k` is over 1."""
    top_level = (body.question, body.context)
    question, context = top_level if body.inputs is None else (body.inputs.question, body.inputs.context)
    if question is None or context is None or (body.inputs is not None and top_level != (None, None)):
        raise RequestError(422, "validation", "send question and context, either in inputs or at the top level")

    options: dict[str, Any] = {"top_k": body.top_k, "no_answer": body.no_answer}
    return await service.run(
        request, body.model, lambda predictor: json_response(predictor.answer(question, context, **options))
    )


@router.post("/choose", response_model=dict[str, Any], summary="Multiple choice")
async def choose(body: schemas.ChooseRequest, request: Request, service: ServiceDependency) -> Response:
    """The most likely choice: choice, index, score, probabilities."""
    service.check_count(len(body.choices), "choices")
    return await service.run(
        request, body.model, lambda predictor: json_response(predictor.choose(body.question, body.choices))
    )


@router.post("/next-sentence", response_model=dict[str, Any], summary="Next-sentence or sentence-order prediction")
async def next_sentence(body: schemas.NextSentenceRequest, request: Request, service: ServiceDependency) -> Response:
    """The head that answers, `objective`, and its probabilities.

    next_sentence: is_next and not_next. sentence_order: in_order and swapped.
    """
    return await service.run(
        request, body.model, lambda predictor: json_response(predictor.next_sentence(body.first, body.second))
    )


@router.post("/tokenize", response_model=list[list[schemas.Token]], summary="Tokenization")
async def tokenize(body: schemas.TokenizeRequest, request: Request, service: ServiceDependency) -> Response:
    """The tokens of each text, without truncation: id, text, special, and start and stop in characters of the input."""
    texts = service.text_list(body.inputs)

    def run(predictor: Predictor) -> Response:
        predictor.check_texts(*texts)
        service.check_numbers(4 * sum(predictor.count_tokens(texts)), "the tokens have")
        with service.large_response():
            parts = [_tokens_json(predictor, text, special_tokens=body.add_special_tokens) for text in texts]
        return json_response(f"[{','.join(parts)}]")

    return await service.run(request, body.model, run)


def _tokens_json(predictor: Predictor, text: str, *, special_tokens: bool) -> str:
    (one,) = predictor.tokenize([text], special_tokens=special_tokens)
    tokens = [
        {"id": number, "text": token, "special": special, "start": start, "stop": stop}
        for number, token, (start, stop), special in zip(one.ids, one.tokens, one.offsets, one.special, strict=True)
    ]
    return json.dumps(tokens, ensure_ascii=False)


@router.post("/word-contexts", response_model=schemas.WordContexts, summary="One word in several sentences")
async def word_contexts(body: schemas.WordContextsRequest, request: Request, service: ServiceDependency) -> Response:
    """Cosine similarities of the vectors of a word in sentences, such as `the *play* began`."""
    texts = service.text_list(body.inputs)

    def run(predictor: Predictor) -> Response:
        return json_response(predictor.word_contexts(texts, layer=body.layer).to_json())

    return await service.run(request, body.model, run)


@router.post("/attention", response_model=schemas.AttentionWeights, summary="Attention weights")
async def attention(body: schemas.AttentionRequest, request: Request, service: ServiceDependency) -> Response:
    """Attention weights of all layers and heads, or of one: [layers][heads][query][key], rounded to 5 decimals."""

    def run(predictor: Predictor) -> Response:
        encoder: Any = predictor.model.encoder
        if not hasattr(encoder.config, "heads"):
            raise RequestError(422, "validation", NO_ATTENTION)
        layers = _select("layer", body.layer, encoder.layers)
        heads = _select("head", body.head, encoder.config.heads)
        texts = [text for text in (body.inputs, body.second) if text is not None]
        tokens = min(sum(predictor.count_tokens(texts)), predictor.max_length)
        count = (layers.stop - layers.start) * (heads.stop - heads.start) * tokens**2
        service.check_numbers(count, f"the attention weights of {tokens} tokens have")
        result = predictor.attention(body.inputs, body.second)
        fields = {
            "tokens": list(result.tokens),
            "offsets": result.offsets.tolist(),
            "sequence_ids": result.sequence_ids.tolist(),
            "truncated": result.truncated,
        }
        weights = format_array(np.round(result.weights[layers, heads].astype(np.float64), 5), "%.5g")
        return json_response(f'{json.dumps(fields, ensure_ascii=False)[:-1]},"attention":{weights}}}')

    return await service.run(request, body.model, run)


def _select(name: str, number: int | None, count: int) -> slice:
    if number is None:
        return slice(0, count)
    if number > count:
        raise RequestError(422, "validation", f"{name} {number} does not exist: choose 1 to {count}")
    return slice(number - 1, number)
