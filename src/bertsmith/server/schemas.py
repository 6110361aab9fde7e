"""What callers send and get, as the API's description lists it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Inputs = Annotated[str | list[str], Field(description="One text, or several.")]
TopK = Annotated[int, Field(ge=1, le=1000, description="How many answers, best first.")]
Truncate = Annotated[
    bool,
    Field(description="Cut what is too long and say so in X-Truncated, instead of refusing it."),
]
ModelName = Annotated[str | None, Field(description="Which model; without it the first that can.")]


def example(**value: Any) -> ConfigDict:
    """Strict about types and names, with an example."""
    return ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [value]})


class Embed(BaseModel):
    """Texts whose vectors are wanted."""

    model_config = example(inputs=["The smith works.", "The forge is hot."], normalize=True)
    inputs: Inputs
    normalize: Annotated[bool, Field(description="Give vectors of length 1.")] = True
    truncate: Truncate = False
    pooling: Annotated[
        Literal["mean", "first", "pooled"] | None,
        Field(description="Mean of all tokens, first token, or pooler; else what the model folder says, or the mean."),
    ] = None
    layers: Annotated[
        list[int], Field(min_length=1, max_length=64, description="0 is the embeddings; -1 the last layer.")
    ] = [-1]
    combine: Annotated[Literal["mean", "concat"], Field(description="How several layers become one vector.")] = "mean"
    model: ModelName = None


class EmbedAll(BaseModel):
    """Texts of whose tokens the vectors are wanted."""

    model_config = example(inputs="The smith works.")
    inputs: Inputs
    truncate: Truncate = False
    layer: Annotated[int, Field(ge=-1000, le=1000, description="0 is the embeddings; -1 the last layer.")] = -1
    model: ModelName = None


class Embeddings(BaseModel):
    """OpenAI's form of a wish for vectors."""

    model_config = example(input=["The smith works."], model="bert")
    input: Annotated[
        str | list[str] | list[int] | list[list[int]],
        Field(description="One text, several, or token ids without special tokens."),
    ]
    model: ModelName = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int | None, Field(ge=1, description="The first so many numbers, brought to length 1.")] = None
    user: str | None = None


class Predict(BaseModel):
    """Texts or pairs to be judged."""

    model_config = example(inputs=["A fine film.", "A dull one."], top_k=2)
    inputs: Annotated[
        str | list[str | list[str]], Field(description="One text, several, or pairs: [[first, second], ...].")
    ]
    top_k: TopK = 1000
    model: ModelName = None


class Rerank(BaseModel):
    """Texts to be put in order."""

    model_config = example(query="What is an anvil?", texts=["A block of iron.", "A kind of tea."])
    query: str
    texts: list[str]
    return_text: bool = False
    positive: Annotated[str, Field(description="The label whose probability is the score.")] = ""
    truncate: Truncate = False
    model: ModelName = None


class Sentences(BaseModel):
    """One sentence, and others to hold against it."""

    model_config = ConfigDict(extra="forbid", strict=True)
    source_sentence: str
    sentences: list[str]


class Similarity(BaseModel):
    """A wish for cosines."""

    model_config = example(inputs={"source_sentence": "The smith works.", "sentences": ["The forge is hot."]})
    inputs: Sentences
    truncate: Truncate = False
    model: ModelName = None


class Tokenize(BaseModel):
    """Texts whose tokens are wanted."""

    model_config = example(inputs="The smith works.")
    inputs: Inputs
    add_special_tokens: bool = True
    model: ModelName = None


class FillMask(BaseModel):
    """Texts with gaps."""

    model_config = example(inputs="The smith [MASK] iron.", top_k=3)
    inputs: Inputs
    top_k: TopK = 5
    targets: Annotated[list[str] | None, Field(max_length=100, description="Score these words only.")] = None
    model: ModelName = None


class Ner(BaseModel):
    """Texts whose entities are wanted."""

    model_config = example(inputs="Ada Lovelace lived in London.")
    inputs: Inputs
    unit: Annotated[Literal["word", "part", "character"], Field(description="What the model tags.")] = "word"
    model: ModelName = None


class Passage(BaseModel):
    """A question, and a text that may answer it."""

    model_config = ConfigDict(extra="forbid", strict=True)
    question: str
    context: str


class Qa(BaseModel):
    """A question about a text; either in `inputs`, or beside it."""

    model_config = example(question="Who works?", context="The smith works in the forge.", top_k=1)
    question: str | None = None
    context: str | None = None
    inputs: Passage | None = None
    top_k: TopK = 1
    no_answer: Annotated[
        float | None, Field(description="Answer nothing where that scores so much more than the best answer.")
    ] = None
    model: ModelName = None


class Choose(BaseModel):
    """A question and choices."""

    model_config = example(question="The smith took", choices=["the hammer.", "the sea."])
    question: str
    choices: list[str]
    model: ModelName = None


class NextSentence(BaseModel):
    """Two texts, of which the second may follow the first."""

    model_config = example(first="The smith works.", second="The iron glows.")
    first: str
    second: str
    model: ModelName = None


class AttentionOf(BaseModel):
    """A text, or a pair, whose attention is wanted."""

    model_config = example(inputs="The smith works.", layer=1)
    inputs: str
    second: str | None = None
    layer: Annotated[int | None, Field(ge=1, description="Counted from 1; all where absent.")] = None
    head: Annotated[int | None, Field(ge=1, description="Counted from 1; all where absent.")] = None
    model: ModelName = None


class Error(BaseModel):
    """What went wrong, in one line."""

    error: str
    error_type: Literal[
        "validation", "too_large", "overloaded", "unhealthy", "unauthorized", "not_found", "deadline", "internal"
    ]


class ErrorFacts(BaseModel):
    """What went wrong, as OpenAI's clients read it."""

    message: str
    type: str
    param: None
    code: str


class OpenAiError(BaseModel):
    """What went wrong, in OpenAI's form."""

    error: ErrorFacts
    error_type: str


class Label(BaseModel):
    """A label and how likely it is, or a number."""

    label: str | None = None
    score: float
    windows: int | None = None


class Ranked(BaseModel):
    """One text in its place."""

    index: int
    score: float
    text: str | None = None


class Token(BaseModel):
    """A token and its place in the text, in characters."""

    id: int
    text: str
    special: bool
    start: int
    stop: int


class Vector(BaseModel):
    """One vector in OpenAI's form; base64 of little-endian float32 where that was asked for."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """How many tokens were read."""

    prompt_tokens: int
    total_tokens: int


class VectorList(BaseModel):
    """Vectors in OpenAI's form."""

    object: Literal["list"]
    data: list[Vector]
    model: str
    usage: Usage


class Weights(BaseModel):
    """Which token attends to which: by layer, head, from, to."""

    tokens: list[str]
    offsets: list[list[int]]
    sequence_ids: list[int]
    truncated: bool
    attention: list[list[list[list[float]]]]
