"""Word tables: exact, bounded, independent of the number of workers; and the trainers that read them."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, trainers

from bertsmith.errors import ConfigError
from bertsmith.tokenizers import training
from bertsmith.tokenizers.wordpiece import Config, Splitter


def splitter(**rules: bool) -> Splitter:
    return Splitter(**{"lowercase": True, "strip_accents": False, "chinese_spacing": True} | rules)


def noise(seed: int, size: int = 4000) -> str:
    """Text of words that follow Zipf's law, with signs and Korean among them."""
    draw = random.Random(seed)
    known = ["".join(draw.choices("abcdefghijklmnop가나다라마", k=draw.randrange(1, 9))) for _ in range(600)]
    chosen = draw.choices(known, weights=[1 / rank for rank in range(1, 601)], k=size)
    return "".join(word + draw.choice([" ", " ", " ", ", ", ".\n", " (", ") "]) for word in chosen)


@settings(deadline=None)
@given(st.text())
def test_counts_are_those_of_berts_own_rules(text: str) -> None:
    text = text.encode(errors="replace").decode()
    normal = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    words = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normal.normalize_str(text))
    assert training.count_text(text, splitter()) == Counter(word for word, _ in words)


def test_irregular_lines_are_counted_whole() -> None:
    text = "plain words\nodd\x1cly glued words\nplain again"
    assert training.count_text(text, splitter()) == {"plain": 2, "words": 2, "oddly": 1, "glued": 1, "again": 1}


def test_lone_surrogates_and_very_long_words_are_handled() -> None:
    assert training.count_text("a\ud800b " + "x" * 5000, splitter()) == {"ab": 1}


def test_work_units_have_similar_sizes() -> None:
    texts = ["ab" * 5] * 7
    assert list(training.work_units(texts, 25)) == ["\n".join(texts[:3]), "\n".join(texts[:3]), texts[0]]
    assert list(training.work_units([])) == []


def test_tables_are_merged_in_order_and_within_the_limit() -> None:
    tables = [{"a": 3, "b": 1}, {"a": 1, "c": 2}]
    assert training.merge_counts(tables) == {"a": 4, "b": 1, "c": 2}
    assert training.merge_counts(tables, limit=2) == {"a": 4}
    assert training.merge_counts([*tables, {"b": 5}], limit=2) == {"a": 4, "b": 5}
    assert training.merge_counts([]) == {}
    many = [training.count_text(noise(seed), splitter()) for seed in range(5)]
    assert len(training.merge_counts(many)) > 1000
    pruned = training.merge_counts(many, limit=400)
    assert 0 < len(pruned) <= 400
    frequent = {word for word, _ in Counter(training.merge_counts(many)).most_common(20)}
    assert frequent <= pruned.keys()
    with pytest.raises(ConfigError, match="max-words=0"):
        training.merge_counts([], limit=0)


def test_the_number_of_workers_changes_nothing() -> None:
    texts = noise(1, 20000).splitlines()
    tables = [
        training.count_words(texts, Config().word_splitter(), workers=workers, limit=500, unit_size=20_000)
        for workers in (1, 2)
    ]
    assert list(tables[0].items()) == list(tables[1].items())
    files = [Config().train(table, vocab_size=300).files() for table in tables]
    assert files[0] == files[1]


def test_every_word_is_fed_as_often_as_it_was_counted() -> None:
    counts = {"a": 3, "long": 70_000, "쇠": 1, "b": 40_000}
    fed = Counter("".join(training._texts(dict(counts), 1)).split("\n"))
    assert fed == {**counts, "": 1}
    assert max(map(len, training._texts(dict(counts), 1))) < 2 * training.TEXT_SIZE


def test_huge_counts_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = Counter("".join(training._texts({"a": 1000, "b": 14, "c": 5, "d": 4}, 10)).split())
    assert fed == {"a": 100, "b": 1, "c": 1}
    monkeypatch.setattr(training, "MAX_OCCURRENCES", 100)
    counts = {"ab": 900, "cd": 95, "x": 5}
    trainer = trainers.BpeTrainer(min_frequency=60, show_progress=False)
    learned = training.train_backend(models.BPE(), trainer, counts)
    assert "ab" in learned.get_vocab()
    assert "cd" not in learned.get_vocab()
    assert counts == {}


def test_of_too_many_words_the_frequent_ones_are_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "MAX_TRAINER_WORDS", 12)
    counts = {letter * 2: 9 for letter in "abcdefgh"} | {letter * 2: 3 for letter in "ijklmnopqr"}
    learned = []
    for words in (counts, dict(reversed(counts.items()))):
        trainer = trainers.BpeTrainer(vocab_size=100, show_progress=False)
        learned.append(
            {word for word in training.train_backend(models.BPE(), trainer, dict(words)).get_vocab() if len(word) == 2}
        )
    assert learned[0] == learned[1]
    assert len(learned[0]) == 12
    assert learned[0] > {letter * 2 for letter in "abcdefgh"}
    assert sorted(learned[0])[8:] != ["ii", "jj", "kk", "ll"]
