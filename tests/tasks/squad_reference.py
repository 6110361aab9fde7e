"""The rules of Google's run_squad.py with plain loops: the reference for windows and answers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class Window(NamedTuple):
    start: int
    length: int


def windows(tokens: int, room: int, stride: int) -> list[Window]:
    result, start = [], 0
    while start < tokens:
        length = min(tokens - start, room)
        result.append(Window(start, length))
        if start + length == tokens:
            break
        start += min(length, stride)
    return result


def words_of(passage: str) -> tuple[list[str], list[int]]:
    """Words between white space, and the number of the word that each character is of."""
    words: list[str] = []
    numbers = []
    after_space = True
    for character in passage:
        if character in " \t\r\n\u202f":
            after_space = True
        else:
            if after_space:
                words.append(character)
            else:
                words[-1] += character
            after_space = False
        numbers.append(len(words) - 1)
    return words, numbers


def target(passage: str, answer: str, start: int, tokenize: Any) -> tuple[int, int]:
    """First and last piece of the answer in the whole passage."""
    words, numbers = words_of(passage)
    first_word, last_word = numbers[start], numbers[start + len(answer) - 1]
    pieces: list[int] = []
    first_piece = []
    for word in words:
        first_piece.append(len(pieces))
        pieces += tokenize(word)
    begin = first_piece[first_word]
    end = first_piece[last_word + 1] - 1 if last_word + 1 < len(words) else len(pieces) - 1
    expected = tokenize(answer)
    for first in range(begin, end + 1):
        for last in range(end, first - 1, -1):
            if pieces[first : last + 1] == expected:
                return first, last
    return begin, end


def has_most_context(spans: list[Window], number: int, token: int) -> bool:
    best, winner = -math.inf, -1
    for other, span in enumerate(spans):
        left, right = token - span.start, span.start + span.length - 1 - token
        if left < 0 or right < 0:
            continue
        score = min(left, right) + 0.01 * span.length
        if score > best:
            best, winner = score, other
    return winner == number


def predict(
    passage: str,
    offsets: list[list[int]],  # of the tokens of the passage
    spans: list[Window],
    firsts: list[int],  # position at which the passage begins in each window
    logits: list[list[list[float]]],
    *,
    n_best: int,
    longest: int,
    null: bool,
) -> tuple[list[tuple[str, float]], float]:
    """The n-best texts with their probabilities, and the null odds."""
    candidates: list[tuple[float, float, int, int, int]] = []
    least, least_logits = math.inf, (0.0, 0.0)
    for number, (span, first, values) in enumerate(zip(spans, firsts, logits, strict=True)):
        starts = sorted(range(len(values)), key=lambda position: -values[position][0])[:n_best]
        ends = sorted(range(len(values)), key=lambda position: -values[position][1])[:n_best]
        if values[0][0] + values[0][1] < least:
            least, least_logits = values[0][0] + values[0][1], (values[0][0], values[0][1])
        for start in starts:
            for end in ends:
                inside = all(first <= position < first + span.length for position in (start, end))
                if not inside or end < start or end - start + 1 > longest:
                    continue
                token = start - first + span.start
                if has_most_context(spans, number, token):
                    candidates.append((values[start][0], values[end][1], token, end - first + span.start, 1))
    if null:
        candidates.append((*least_logits, 0, 0, 0))
    candidates.sort(key=lambda one: one[0] + one[1], reverse=True)
    kept: list[tuple[str, float]] = []
    for start_logit, end_logit, first_token, last_token, real in candidates:
        if len(kept) >= n_best:
            break
        text = passage[offsets[first_token][0] : offsets[last_token][1]].strip() if real else ""
        if text not in [other for other, _ in kept]:
            kept.append((text, start_logit + end_logit))
    if null and "" not in [text for text, _ in kept]:
        kept.append(("", least))
    total = sum(math.exp(score - kept[0][1]) for _, score in kept)
    odds = least - next((score for text, score in kept if text), 0.0)
    return [(text, math.exp(score - kept[0][1]) / total) for text, score in kept], odds
