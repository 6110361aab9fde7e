"""Request and response bodies, as the OpenAPI description lists them, strict JSON, and the JSON encoding of arrays.

Strict JSON has no duplicate keys, NaN or lone surrogates, and a bounded depth, size and number of values.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from bertsmith.inference.deadline import current_deadline
from bertsmith.inference.encoder_outputs import Pooling
from bertsmith.server.errors import ErrorType, RequestError, over_limit
from bertsmith.server.settings import Limits

MAX_DEPTH = 16  # of a body
MAX_VALUES = 65_536  # in one body: 32 texts of 512 token ids have 16,384
MAX_DIGITS = 20  # of an integer

Inputs = Annotated[str | list[str], Field(description="One text, or a list of texts.")]
TopK = Annotated[int, Field(ge=1, le=1000, description="Number of results, best first.")]
Truncate = Annotated[
    bool, Field(description="Truncate texts that are too long and list them in X-Truncated, instead of rejecting them.")
]
ModelName = Annotated[str | None, Field(description="Name of the model; default: the first that supports the route.")]

PromptName = Annotated[
    str | None, Field(description="Prompt of a sentence-transformers folder; empty for none; default: the folder's.")
]


def strict(**example: Any) -> ConfigDict:
    """Exact types, no unknown fields, and an example."""
    return ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [example]})


class EmbedRequest(BaseModel):
    model_config = strict(inputs=["The smith works.", "The forge is hot."], normalize=True)
    inputs: Inputs
    normalize: Annotated[bool, Field(description="Divide vectors by their L2 norm.")] = True
    truncate: Truncate = False
    pooling: Annotated[
        Pooling | None,
        Field(description="Pooling of the tokens, or the pooler output; default: that of the model folder."),
    ] = None
    layers: Annotated[
        list[int], Field(min_length=1, max_length=64, description="0 is the embedding layer, -1 the last layer.")
    ] = [-1]
    combine: Annotated[Literal["mean", "concat"], Field(description="How several layers are combined.")] = "mean"
    prompt_name: PromptName = None
    model: ModelName = None


class EmbedAllRequest(BaseModel):
    model_config = strict(inputs="The smith works.")
    inputs: Inputs
    truncate: Truncate = False
    layer: Annotated[int, Field(ge=-1000, le=1000, description="0 is the embedding layer, -1 the last layer.")] = -1
    model: ModelName = None


class EmbeddingsRequest(BaseModel):
    model_config = strict(input=["The smith works."], model="bert")
    input: Annotated[
        str | list[str] | list[int] | list[list[int]],
        Field(description="One text, several texts, or token ids without special tokens."),
    ]
    model: ModelName = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int | None, Field(ge=1, description="Keep the first dimensions, renormalized.")] = None
    user: str | None = None
    prompt_name: PromptName = None


class PredictRequest(BaseModel):
    model_config = strict(inputs=["A fine film.", "A dull one."], top_k=2)
    inputs: Annotated[
        str | list[str | list[str]], Field(description="One text, several texts, or pairs: [[first, second], ...].")
    ]
    top_k: TopK = 1000
    model: ModelName = None


class RerankRequest(BaseModel):
    model_config = strict(query="What is an anvil?", texts=["A block of iron.", "A kind of tea."])
    query: str
    texts: list[str]
    return_text: bool = False
    positive: Annotated[str, Field(description="The label whose probability is the score.")] = ""
    truncate: Truncate = False
    model: ModelName = None


class Sentences(BaseModel):
    """A sentence, and the sentences to compare with it."""

    model_config = ConfigDict(extra="forbid", strict=True)
    source_sentence: str
    sentences: list[str]


class SimilarityRequest(BaseModel):
    model_config = strict(inputs={"source_sentence": "The smith works.", "sentences": ["The forge is hot."]})
    inputs: Sentences
    truncate: Truncate = False
    prompt_name: PromptName = None
    model: ModelName = None


class TokenizeRequest(BaseModel):
    model_config = strict(inputs="The smith works.")
    inputs: Inputs
    add_special_tokens: bool = True
    model: ModelName = None


class FillMaskRequest(BaseModel):
    model_config = strict(inputs="The smith [MASK] iron.", top_k=3)
    inputs: Inputs
    top_k: TopK = 5
    targets: Annotated[list[str] | None, Field(max_length=100, description="Score these words instead.")] = None
    full_vocabulary: Annotated[
        bool, Field(description="Scores are probabilities over the full vocabulary, special tokens included.")
    ] = False
    model: ModelName = None


class NERRequest(BaseModel):
    model_config = strict(inputs="Ada Lovelace lived in London.")
    inputs: Inputs
    unit: Annotated[Literal["word", "part", "character"], Field(description="Unit of the training labels.")] = "word"
    model: ModelName = None


class Passage(BaseModel):
    """A question, and a text that may contain the answer."""

    model_config = ConfigDict(extra="forbid", strict=True)
    question: str
    context: str


class QARequest(BaseModel):
    """Request of /qa; question and context either in `inputs` or at the top level."""

    model_config = strict(question="Who works?", context="The smith works in the forge.", top_k=1)
    question: str | None = None
    context: str | None = None
    inputs: Passage | None = None
    top_k: TopK = 1
    no_answer: Annotated[
        float | None,
        Field(description="Threshold: no answer if the no-answer score exceeds the best span's by more than this."),
    ] = None
    model: ModelName = None


class ChooseRequest(BaseModel):
    model_config = strict(question="The smith took", choices=["the hammer.", "the sea."])
    question: str
    choices: list[str]
    model: ModelName = None


class NextSentenceRequest(BaseModel):
    model_config = strict(first="The smith works.", second="The iron glows.")
    first: str
    second: str
    model: ModelName = None


class WordContextsRequest(BaseModel):
    model_config = strict(inputs=["the *play* began", "children *play* outside"])
    inputs: Annotated[list[str], Field(min_length=2, max_length=200, description="One word of each between asterisks.")]
    layer: Annotated[int, Field(description="0: the embeddings; -1: the last layer.")] = -1
    model: ModelName = None


class AttentionRequest(BaseModel):
    model_config = strict(inputs="The smith works.", layer=1)
    inputs: str
    second: str | None = None
    layer: Annotated[int | None, Field(ge=1, description="Counted from 1; default: all.")] = None
    head: Annotated[int | None, Field(ge=1, description="Counted from 1; default: all.")] = None
    model: ModelName = None


class Error(BaseModel):
    """An error response."""

    error: str
    error_type: ErrorType


class OpenAIErrorDetail(BaseModel):
    """The error object of OpenAI's format."""

    message: str
    type: str
    param: None
    code: str


class OpenAIError(BaseModel):
    """An error response in OpenAI's format."""

    error: OpenAIErrorDetail
    error_type: str


class Label(BaseModel):
    """A label with its probability, or a regression value."""

    label: str | None = None
    score: float
    windows: Annotated[int | None, Field(description="Number of windows of a long text.")] = None
    predicted: Annotated[bool | None, Field(description="Multi-label models: above the label's threshold.")] = None


class Ranked(BaseModel):
    """A ranked text."""

    index: int
    score: float
    text: str | None = None
    windows: Annotated[int | None, Field(description="Number of windows of a long pair.")] = None
    truncated: Annotated[bool | None, Field(description="Whether a text exceeds the maximum length.")] = None


class Token(BaseModel):
    """A token and its character offsets in the text."""

    id: int
    text: str
    special: bool
    start: int
    stop: int


class EmbeddingItem(BaseModel):
    """A vector in OpenAI's format; base64 is little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Number of tokens."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    """Embeddings in OpenAI's format."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: Usage


class WordContexts(BaseModel):
    """The marked words of sentences and the cosine similarities of their vectors."""

    layer: int
    sentences: list[dict[str, Any]]
    similarity: list[list[float]]


class AttentionWeights(BaseModel):
    """Attention weights by layer, head, query token and key token."""

    tokens: list[str]
    offsets: list[list[int]]
    sequence_ids: list[int]
    truncated: bool
    attention: list[list[list[list[float]]]]


Responses = dict[int | str, dict[str, Any]]
ERROR_RESPONSES: Responses = {
    status: {"model": Error, "description": description}
    for status, description in {
        400: "The body is not JSON.",
        401: "An API key is required.",
        403: "The name in the Host header is not allowed.",
        404: "The path or the model does not exist.",
        405: "The path does not support this method.",
        408: "The request arrived too slowly.",
        413: "A limit is exceeded.",
        415: "The content type is not JSON.",
        422: "The body does not match the schema, or no model supports the route.",
        429: "The server is overloaded: try again later.",
        503: "The server is stopping or failing, or the deadline has passed.",
    }.items()
}
OPENAI_ERROR_RESPONSES: Responses = {status: one | {"model": OpenAIError} for status, one in ERROR_RESPONSES.items()}


def format_array(values: NDArray[Any], form: str = "%.9g") -> str:
    """An array as nested JSON lists, row by row, so that other threads run in between; 9 digits restore a float32."""
    if not np.isfinite(values).all():
        raise RequestError(503, "unhealthy", "the model computes numbers that are not finite: its weights are damaged")
    return _format_rows(values, ",".join([form] * values.shape[-1]))


def _format_rows(values: NDArray[Any], form: str) -> str:
    if values.ndim == 1:
        return f"[{form % tuple(values.tolist())}]"
    current_deadline().check()  # megabytes of numbers take seconds
    return f"[{','.join(_format_rows(part, form) for part in values)}]"


def parse_json(body: bytes, limits: Limits) -> Any:
    """The value of a body. Errors never repeat its contents."""
    try:
        value = json.loads(
            body.decode("utf-8"),
            parse_constant=_reject_constant,
            parse_float=_parse_float,
            parse_int=_parse_int,
            object_pairs_hook=_parse_object,
        )
    except UnicodeDecodeError as error:
        raise _invalid(f"the body is not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise _invalid(f"the body is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _invalid(f"the body is nested deeper than {MAX_DEPTH} levels") from None
    _check_values(value, limits)
    return value


def _invalid(message: str, status: int = 400) -> RequestError:
    return RequestError(status, "validation", message)


def _reject_constant(name: str) -> Any:
    raise _invalid(f"the body has {name}, which is not JSON")


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _invalid("the body has a number that is too large")
    return value


def _parse_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise _invalid(f"the body has an integer of more than {MAX_DIGITS} digits")
    return int(text)


def _parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise _invalid("the body has an object with a duplicate key")
    return value


def _check_values(body: Any, limits: Limits) -> None:
    """Visits every value once, without recursion."""
    stack: list[tuple[Any, int]] = [(body, 0)]
    count = 0
    while stack:
        value, depth = stack.pop()
        count += 1
        if count > MAX_VALUES:
            raise RequestError(413, "too_large", f"the body has more than {MAX_VALUES:,} values: send fewer at a time")
        if depth > MAX_DEPTH:
            raise _invalid(f"the body is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, str):
            _check_text(value, limits)
        elif isinstance(value, dict):
            for key in value:
                _check_text(key, limits)
            stack += [(child, depth + 1) for child in value.values()]
        elif isinstance(value, list):
            stack += [(child, depth + 1) for child in value[: MAX_VALUES + 1]]


def _check_text(text: str, limits: Limits) -> None:
    try:
        size = len(text) if text.isascii() else len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise _invalid("a text has a lone surrogate, which is not a character: send valid Unicode", 422) from None
    if size > limits.max_bytes_per_text:
        raise over_limit(f"a text of {size:,} bytes", "max_bytes_per_text", limits.max_bytes_per_text)
