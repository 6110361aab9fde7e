"""The settings that every task over passages has."""

from __future__ import annotations

from dataclasses import dataclass

from bertsmith.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How questions are put to passages and how answers are read (bert: run_squad.py, whose values these are)."""

    length: int = 384  # places of a window, question and special tokens among them
    stride: int = 128  # tokens of the passage from the begin of one window to the begin of the next
    query: int = 64  # tokens of a question at most; the rest is cut
    longest_answer: int = 30  # tokens
    n_best: int = 20  # starts, ends and answers that are looked at
    no_answer: float = 0.0  # null odds above which it is said that there is no answer; only where there may be none

    def __post_init__(self) -> None:
        for name in ("length", "stride", "query", "longest_answer", "n_best"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        if self.no_answer != self.no_answer:
            raise ConfigError("no_answer=nan must be a number")
