"""Results of the pipelines of a predictor: plain dicts in lists, which notebooks show as tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NotRequired, TypedDict, TypeVar

from bertsmith.errors import BertsmithError
from bertsmith.reports import html

Result = TypeVar("Result")
MAX_ROWS = 60  # of a table in a notebook


class Label(TypedDict):
    """A label of a text."""

    label: str
    score: float  # its probability
    windows: NotRequired[int]  # of a text that is too long for one
    predicted: NotRequired[bool]  # multi-label models: above the threshold of the label


class WordLabel(TypedDict):
    """The label of a word."""

    word: str
    label: str
    score: float
    start: int  # characters of the text
    end: int


class Entity(TypedDict):
    """A named entity."""

    entity_group: str
    score: float
    word: str
    start: int  # characters of the text
    end: int


class Generated(TypedDict):
    """A generated text."""

    text: str  # after the prompt
    finish_reason: str  # length, stop or end
    tokens: list[int]
    logprobs: NotRequired[list[dict[str, Any]]]  # of each token, and of the most likely ones at its position


class Translated(TypedDict):
    """A translation of a text."""

    text: str
    score: float  # the log probability divided by the length penalty
    logprob: float
    finish_reason: str  # length or end
    truncated: NotRequired[bool]  # only the beginning of the source text was read
    attention: NotRequired[Any]  # a `CrossAttention`


class Scored(TypedDict):
    """The surprisal of a text, in nats."""

    surprisal: float
    perplexity: float | None  # None: no token has a context
    nats_per_byte: float | None
    tokens: list[dict[str, Any]]
    windows: NotRequired[int]  # of a text that is too long for one


class Answer(TypedDict):
    """A span of the context that answers a question."""

    answer: str
    score: float
    start: int  # characters of the context
    end: int
    truncated: NotRequired[bool]


class Choice(TypedDict):
    """The most likely of several choices."""

    choice: str
    index: int
    score: float
    probabilities: list[float]
    truncated: NotRequired[bool]


class Ranked(TypedDict):
    """A document with its score for a query."""

    index: int
    score: float
    text: str
    windows: NotRequired[int]
    truncated: NotRequired[bool]


class Predictions(list[Result]):
    """A list of results, or of one list of results for each text or mask; notebooks show it as a table."""

    group = "text"  # what an inner list belongs to

    def __init__(self, results: Iterable[Result] = (), *, group: str = "text") -> None:
        super().__init__(results)
        if group != self.group:
            self.group = group

    def to_pandas(self) -> Any:
        """A DataFrame with a row for each result; the rows of inner lists have the index of their list."""
        try:
            import pandas
        except ImportError as error:
            raise BertsmithError("to_pandas needs pandas: pip install pandas") from error
        return pandas.DataFrame(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for index, one in enumerate(self):
            rows += [{self.group: index, **inner} for inner in one] if isinstance(one, list) else [one]  # type: ignore[list-item]
        return rows

    def _repr_html_(self) -> str:
        rows = self._rows()
        columns = list(dict.fromkeys(name for row in rows for name in row))
        shown = ([_cell(row[name]) if name in row else "" for name in columns] for row in rows[:MAX_ROWS])
        rest = f"<p>{MAX_ROWS} of {len(rows):,} results</p>" if len(rows) > MAX_ROWS else ""
        return html.notebook(html.table(columns, shown) + rest if rows else "<p>no results</p>")


def _cell(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
