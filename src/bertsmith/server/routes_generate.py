"""The route /v1/completions: generated texts in OpenAI's format, whole or as server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from bertsmith.errors import BertsmithError
from bertsmith.inference.predictions import Generated
from bertsmith.inference.predictor import Predictor
from bertsmith.inference.sampling import MAX_SAMPLES, MAX_STOPS, MAX_TOP_LOGPROBS, GenerationSettings
from bertsmith.server.monitoring import context_of
from bertsmith.server.schemas import OPENAI_ERROR_RESPONSES, ModelName, strict
from bertsmith.server.service import ServiceDependency, json_response

router = APIRouter(responses=OPENAI_ERROR_RESPONSES, tags=["generation"])
FIELDS = {"max_new_tokens": "max_tokens", "samples": "n"}  # options of `generate` -> fields of a request
REASONS = {"end": "stop"}  # finish reasons -> OpenAI's
EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
EVENTS = {"description": "The texts, or with `stream` events", "content": {"text/event-stream": {"schema": EVENT}}}


class CompletionRequest(BaseModel):
    model_config = strict(prompt="The smith heats the", max_tokens=20, temperature=0.8, seed=1)
    prompt: Annotated[str | list[str], Field(description="One text, or a list of texts, to be continued.")]
    model: ModelName = None
    max_tokens: Annotated[
        int | None, Field(ge=1, description="Maximum number of new tokens; default: up to 64, as many as fit.")
    ] = None
    temperature: Annotated[float, Field(ge=0, le=100, description="0: always the most likely token.")] = 1.0
    top_p: Annotated[
        float, Field(gt=0, le=1, description="Sample from the most likely tokens with this probability together.")
    ] = 1.0
    top_k: Annotated[int | None, Field(ge=1, description="Sample from so many of the most likely tokens.")] = None
    repetition_penalty: Annotated[
        float, Field(gt=0, le=100, description="Above 1, tokens of the text so far are less likely.")
    ] = 1.0
    n: Annotated[int, Field(ge=1, le=MAX_SAMPLES, description="Texts for each prompt.")] = 1
    stop: Annotated[str | list[str] | None, Field(max_length=MAX_STOPS, description="Strings that end a text.")] = None
    seed: Annotated[int | None, Field(description="Of sampling; default: another one for each request.")] = None
    stream: Annotated[bool, Field(description="Send parts of the texts as server-sent events.")] = False
    echo: Annotated[bool, Field(description="Begin each text with its prompt.")] = False
    logprobs: Annotated[
        int | None,
        Field(ge=0, le=MAX_TOP_LOGPROBS, description="Also log probabilities and so many most likely tokens."),
    ] = None
    user: str | None = None

    def settings(self) -> GenerationSettings:
        """The options of `Predictor.generate`."""
        return GenerationSettings(
            max_new_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            repetition_penalty=self.repetition_penalty,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            samples=self.n,
            seed=self.seed,
            top_logprobs=0 if self.logprobs is None else max(self.logprobs, 1),
        )


class Logprobs(BaseModel):
    """Log probabilities of the tokens of a text, in the spelling of the vocabulary."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class Choice(BaseModel):
    """A generated text."""

    text: str
    index: int
    logprobs: Logprobs | None
    finish_reason: Literal["length", "stop"] | None


class CompletionUsage(BaseModel):
    """Number of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(BaseModel):
    """Generated texts in OpenAI's format."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: CompletionUsage


@router.post(
    "/v1/completions",
    response_model=Completion,
    responses={200: EVENTS},
    summary="Generated texts in OpenAI's format",
)
async def completions(body: CompletionRequest, request: Request, service: ServiceDependency) -> Response:
    """Continues prompts with a causal language model, for OpenAI's clients; `top_k` and `repetition_penalty` are ours.

    With `stream`, events `data: {...}` have parts of the texts, and the last one is `data: [DONE]`. An error after the
    first part is an event with `error`. `logprobs` come with the last part of a text.
    """
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    service.check_count(len(prompts), "prompts")
    service.check_count(len(prompts) * body.n, "texts to generate")
    context, served = context_of(request), service.select(request, body.model)
    about = {"id": f"cmpl-{context.id}", "object": "text_completion", "created": int(time.time()), "model": served.name}

    def choice(prompt: int, sample: int, text: str, result: Generated | None) -> dict[str, Any]:
        return {
            "text": text,
            "index": prompt * body.n + sample,
            "logprobs": _logprobs(result, body, prompts[prompt]) if result and body.logprobs is not None else None,
            "finish_reason": REASONS.get(result["finish_reason"], result["finish_reason"]) if result else None,
        }

    def events(predictor: Predictor) -> Iterator[str]:
        with _request_fields():
            pieces = predictor.generate_pieces(prompts, body.settings())
        if body.echo:
            for prompt, text in enumerate(prompts):
                for sample in range(body.n):
                    yield _event(about | {"choices": [choice(prompt, sample, text, None)]})
        for piece in pieces:
            yield _event(about | {"choices": [choice(piece.prompt, piece.sample, piece.text, piece.result)]})
        yield _event("[DONE]")

    def run(predictor: Predictor) -> Response:
        with _request_fields():
            pieces = predictor.generate_pieces(prompts, body.settings())
        results = [(one.prompt, one.sample, one.result) for one in pieces if one.result is not None]
        results.sort(key=lambda one: one[:2])
        echoed = prompts if body.echo else [""] * len(prompts)
        choices = [
            choice(prompt, sample, echoed[prompt] + result["text"], result) for prompt, sample, result in results
        ]
        prompted = sum(map(len, predictor.tokenizer.encode_batch(prompts)))
        generated = sum(len(result["tokens"]) for *_, result in results)
        usage = {
            "prompt_tokens": prompted,
            "completion_tokens": generated,
            "total_tokens": prompted + generated,
        }
        return json_response(about | {"choices": choices, "usage": usage})

    if body.stream:
        return await service.stream(context, served, events)
    return await service.run_model(context, served, run)


def _event(value: Any) -> str:
    return f"data: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}\n\n"


@contextmanager
def _request_fields() -> Iterator[None]:
    """Errors name the fields of a request instead of the options of `generate`."""
    try:
        yield
    except BertsmithError as error:
        if type(error) is not BertsmithError:
            raise
        message = str(error)
        for ours, theirs in FIELDS.items():
            message = message.replace(f"{ours}=", f"{theirs}=")
        raise BertsmithError(message) from None


def _logprobs(result: Generated, body: CompletionRequest, prompt: str) -> dict[str, Any]:
    """In OpenAI's format: lists by token. Offsets are those of the text, after the prompt if it is echoed."""
    tokens: Sequence[Mapping[str, Any]] = result.get("logprobs", [])
    first = len(prompt) if body.echo else 0
    return {
        "tokens": [one["token_str"] for one in tokens],
        "token_logprobs": [one["logprob"] for one in tokens],
        "top_logprobs": [
            {other["token_str"]: other["logprob"] for other in one["top"][: body.logprobs]} for one in tokens
        ],
        "text_offset": [first + one["start"] for one in tokens],
    }
