"""Routes on embeddings: /embed, /embed_all, /similarity, /rerank, /v1/embeddings."""

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

from bertsmith.inference.encoder_outputs import Embeddings, normalized
from bertsmith.inference.predictor import Predictor
from bertsmith.server import schemas
from bertsmith.server.errors import RequestError
from bertsmith.server.schemas import ERROR_RESPONSES, OPENAI_ERROR_RESPONSES, format_array
from bertsmith.server.service import ServiceDependency, json_response

router = APIRouter(responses=ERROR_RESPONSES, tags=["embeddings"])


def _check_length(predictor: Predictor, texts: Sequence[str], indices: Sequence[int], most: int) -> None:
    """An error for the first of these texts that has more than `most` tokens."""
    for index in indices:
        (tokens,) = predictor.count_tokens([texts[index]])
        if tokens > most:
            reason = f"input {index} has {tokens:,} tokens; this model takes at most {most:,}"
            raise RequestError(413, "too_large", f'{reason}: shorten it or set "truncate": true')


def _embed(
    predictor: Predictor, texts: Sequence[str], *, truncate: bool, prompt: str | None, **options: Any
) -> Embeddings:
    """Embeddings of texts; an error if one is too long, unless `truncate`."""
    whole, most = predictor.with_prompt(texts, prompt), predictor.max_embedding_length
    if not truncate:  # tokens of long texts are counted before anything is computed
        _check_length(predictor, whole, [i for i, text in enumerate(whole) if len(text) > most - 3], most)
    embeddings = predictor.embed(texts, prompt=prompt, **options)
    if not truncate:
        _check_length(predictor, whole, embeddings.truncated, most)
    return embeddings


@router.post("/embed", response_model=list[list[float]], summary="One vector per text")
async def embed(body: schemas.EmbedRequest, request: Request, service: ServiceDependency) -> Response:
    """Embeddings. A text that is too long is an error, or truncated with `truncate`; X-Truncated then has its index."""
    texts = service.text_list(body.inputs)

    def run(predictor: Predictor) -> Response:
        options: dict[str, Any] = {"pooling": body.pooling, "layers": body.layers, "combine": body.combine}
        service.check_numbers(len(texts) * predictor.embedding_width(**options), "the vectors have")
        options |= {"normalize": body.normalize, "prompt": body.prompt_name}
        embeddings = _embed(predictor, texts, truncate=body.truncate, **options)
        return json_response(format_array(embeddings.vectors), **service.truncated_header(embeddings.truncated))

    return await service.run(request, body.model, run)


@router.post("/embed_all", response_model=list[list[list[float]]], summary="One vector per token")
async def embed_all(body: schemas.EmbedAllRequest, request: Request, service: ServiceDependency) -> Response:
    """The outputs of one layer for all tokens of each text, special tokens included."""
    texts = service.text_list(body.inputs)

    def run(predictor: Predictor) -> Response:
        counts = predictor.count_tokens(texts)
        most = predictor.max_length
        if not body.truncate:
            _check_length(predictor, texts, [i for i, count in enumerate(counts) if count > most], most)
        tokens = sum(min(count, most) for count in counts)
        service.check_numbers(tokens * predictor.model.encoder.width, "the vectors of all tokens have")
        embeddings = predictor.embed_all(texts, layer=body.layer)
        content = f"[{','.join(map(format_array, embeddings.vectors))}]"
        return json_response(content, **service.truncated_header(embeddings.truncated))

    return await service.run(request, body.model, run)


@router.post("/similarity", response_model=list[float], summary="Cosine similarity of sentences")
async def similarity(body: schemas.SimilarityRequest, request: Request, service: ServiceDependency) -> Response:
    """The cosine similarity of each sentence with the source sentence."""
    texts = [body.inputs.source_sentence, *body.inputs.sentences]
    service.check_count(len(body.inputs.sentences), "sentences")

    def run(predictor: Predictor) -> Response:
        embeddings = _embed(predictor, texts, truncate=body.truncate, normalize=True, prompt=body.prompt_name)
        cosines = embeddings.vectors[1:] @ embeddings.vectors[0]
        return json_response(format_array(cosines), **service.truncated_header(embeddings.truncated))

    return await service.run(request, body.model, run)


@router.post("/rerank", response_model=list[schemas.Ranked], summary="Texts ranked by a query")
async def rerank(body: schemas.RerankRequest, request: Request, service: ServiceDependency) -> Response:
    """The texts, best first: scored as pairs with the query by a classifier, otherwise by cosine similarity."""
    service.check_count(len(body.texts))

    def run(predictor: Predictor) -> Response:
        results = predictor.rank(body.query, body.texts, positive=body.positive)
        truncated = sorted(one["index"] for one in results if one.get("truncated"))
        if truncated and not body.truncate:
            texts = predictor.ranked_texts(body.query, body.texts)
            _check_length(predictor, texts, range(len(texts)), predictor.max_embedding_length)
        dropped = () if body.return_text else ("text",)
        kept = [{name: value for name, value in one.items() if name not in dropped} for one in results]
        return json_response(kept, **service.truncated_header(truncated))

    return await service.run(request, body.model, run)


@router.post(
    "/v1/embeddings",
    response_model=schemas.EmbeddingList,
    responses=OPENAI_ERROR_RESPONSES,
    summary="Embeddings in OpenAI's format",
)
async def embeddings(body: schemas.EmbeddingsRequest, request: Request, service: ServiceDependency) -> Response:
    """Normalized embeddings, for OpenAI's clients."""
    texts, ids = _texts_or_ids(body.input)
    service.check_count(len(texts) or len(ids), "inputs")
    name = service.select(request, body.model).name

    def run(predictor: Predictor) -> Response:
        width = predictor.embedding_width()
        if body.dimensions is not None and body.dimensions > width:
            raise RequestError(422, "validation", f"dimensions is greater than the width {width} of this model")
        if texts:
            result = _embed(predictor, texts, truncate=False, normalize=True, prompt=body.prompt_name)
            tokens = sum(predictor.count_tokens(predictor.with_prompt(texts, body.prompt_name)))
        else:
            _check_ids(predictor, ids)
            result = predictor.embed_ids(ids, normalize=True, prompt=body.prompt_name)
            tokens = sum(map(len, ids))
        vectors = result.vectors if body.dimensions is None else normalized(result.vectors[:, : body.dimensions])
        return json_response(_openai_json(vectors, body.encoding_format, name, tokens))

    return await service.run(request, body.model, run)


def _check_ids(predictor: Predictor, ids: Sequence[Sequence[int]]) -> None:
    specials = sum(isinstance(part, int) for part in predictor.tokenizer.frame_ids.single)
    most = predictor.max_embedding_length - specials
    for index, one in enumerate(ids):
        if len(one) > most:
            message = f"input {index} has {len(one):,} token ids; this model takes at most {most:,}: shorten it"
            raise RequestError(413, "too_large", message)


def _texts_or_ids(inputs: Any) -> tuple[list[str], list[list[int]]]:
    if isinstance(inputs, str):
        return [inputs], []
    if not inputs or isinstance(inputs[0], str):
        return inputs, []
    return [], inputs if isinstance(inputs[0], list) else [inputs]


def _openai_json(vectors: NDArray[np.float32], encoding: str, model: str, tokens: int) -> str:
    encoded = [
        format_array(one) if encoding == "float" else json.dumps(base64.b64encode(one.astype("<f4").tobytes()).decode())
        for one in vectors
    ]
    data = ",".join(
        f'{{"object":"embedding","index":{index},"embedding":{vector}}}' for index, vector in enumerate(encoded)
    )
    usage = json.dumps({"prompt_tokens": tokens, "total_tokens": tokens})
    return f'{{"object":"list","data":[{data}],"model":{json.dumps(model)},"usage":{usage}}}'
