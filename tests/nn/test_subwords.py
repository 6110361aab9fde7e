"""Character n-grams by tensor operations, against a loop over strings."""

from __future__ import annotations

import torch

from bertsmith.nn.subwords import ngram_rows, word_hashes
from bertsmith.tokenizers.spelling import spell

WORDS = ["a", "smith", "배가", "naïve", "x" * 200, "😀ok", "smith"]


def listed(words: list[str], **sizes: int) -> list[list[int]]:
    rows, counts = ngram_rows(torch.from_numpy(spell(words)), buckets=1 << 40, **sizes)
    return [part.tolist() for part in rows.split(counts.tolist())]


def strings(word: str, smallest: int, largest: int) -> list[str]:
    marked = f"<{word}>"
    sizes = range(smallest, min(largest, len(marked)) + 1)
    return [marked[start : start + size] for size in sizes for start in range(len(marked) - size + 1)]


def test_ngrams_are_those_of_a_loop_over_characters() -> None:
    found = listed(WORDS, smallest=3, largest=6)
    spelled: dict[int, str] = {}
    for word, rows in zip(WORDS, found, strict=True):
        expected = strings(word, 3, 6)
        assert len(rows) == len(expected), word
        for row, text in zip(rows, expected, strict=True):
            assert spelled.setdefault(row, text) == text, "equal hashes are equal n-grams"
    assert len(set(spelled.values())) == len(spelled), "equal n-grams have equal hashes"


def test_the_rows_of_a_word_do_not_depend_on_the_other_words() -> None:
    together = listed(WORDS, smallest=2, largest=4)
    assert together == [listed([word], smallest=2, largest=4)[0] for word in WORDS]


def test_hashes_of_words_differ_unless_the_words_are_equal() -> None:
    hashes = word_hashes(torch.from_numpy(spell([*WORDS, "x" * 199, "x" * 201]))).tolist()
    assert hashes[1] == hashes[6] == int(word_hashes(torch.from_numpy(spell(["smith"])))[0])
    assert len(set(hashes)) == len(hashes) - 1
