"""Training of unigram pieces: every part compared with its definition, the result with tokenizers' trainer."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from bertsmith.errors import ConfigError, DataError
from bertsmith.tokenizers.unigram import lattice as lattices_module
from bertsmith.tokenizers.unigram import training
from bertsmith.tokenizers.unigram.lattice import MAX_WORD_LENGTH, SCALE, build_cells
from bertsmith.tokenizers.unigram.training import find_seeds, piece_lattice, train_unigram, word_lattices

COUNTS = {"▁the": 40, "▁then": 9, "▁other": 7, "▁to": 12, "▁tether": 2, "hen": 3, "한국": 5, "한국어": 4, "é": 1}


def words_like_english(number: int = 3000, seed: int = 5) -> dict[str, int]:
    """Words of stems and endings, as frequent as Zipf has it."""
    draw = random.Random(seed)
    stems = ["".join(draw.choices("aeiou", k=1) + draw.choices("bcdfghklmnprst", k=2)) for _ in range(60)]
    endings = ["", "", "s", "ed", "ing", "er", "ly", "ness"]
    counts: Counter[str] = Counter()
    for rank in range(1, number + 1):
        word = "▁" + "".join(draw.choices(stems, k=draw.choice([1, 2, 2, 3]))) + draw.choice(endings)
        counts[word] += 1 + 20_000 // rank
    return dict(counts)


def ways(word: str, pieces: Mapping[str, float]) -> Iterator[list[str]]:
    """Every segmentation of a word into pieces."""
    if not word:
        yield []
    for end in range(1, len(word) + 1):
        if word[:end] in pieces:
            for rest in ways(word[end:], pieces):
                yield [word[:end], *rest]


def pieces_and_lattices(counts: dict[str, int], longest: int = 6, most: int = 100):  # type: ignore[no-untyped-def]
    """The seeds' spellings, and the two kinds of lattice over them."""
    cells = build_cells(dict(counts))
    seeds = find_seeds(cells, longest=longest, most=most)
    firsts = np.empty(len(seeds.lengths), np.int32)
    for begins, pieces in seeds.occurrences:
        firsts[pieces] = begins
    spelled = [cells.text(int(first), int(length)) for first, length in zip(firsts, seeds.lengths, strict=True)]
    of_pieces = piece_lattice(cells, seeds, firsts)
    return cells, seeds, spelled, of_pieces, word_lattices(cells, seeds)


def test_seeds_are_the_substrings_with_the_greatest_count_times_length() -> None:
    occurrences: Counter[str] = Counter()
    for word, count in COUNTS.items():
        for begin in range(len(word)):
            for end in range(begin + 1, min(len(word), begin + 6) + 1):
                occurrences[word[begin:end]] += count
    always = {
        text
        for text, count in occurrences.items()
        if 1 < len(text) < 6 and any(occurrences[text + next_] == count for next_ in set("".join(COUNTS)))
    }
    candidates = [text for text, count in occurrences.items() if len(text) > 1 and count > 1 and text not in always]
    best = sorted(candidates, key=lambda text: (-occurrences[text] * len(text), len(text), text))
    for most in (1, 5, 1000):
        _, seeds, spelled, _, _ = pieces_and_lattices(COUNTS, most=most)
        assert sorted(spelled) == sorted([*best[:most], *set("".join(COUNTS))])
        assert spelled == sorted(spelled, key=lambda text: (len(text), text))
        assert seeds.counts.tolist() == [occurrences[text] for text in spelled]


def test_expected_counts_are_those_of_all_segmentations() -> None:
    cells, _, spelled, _, lattices = pieces_and_lattices(COUNTS)
    draw = np.random.default_rng(3)
    probabilities = dict(zip(spelled, draw.dirichlet(np.ones(len(spelled))).tolist(), strict=True))
    expected: Counter[str] = Counter()
    for word, count in COUNTS.items():
        weights = [(way, math.prod(probabilities[piece] for piece in way)) for way in ways(word, probabilities)]
        total = sum(weight for _, weight in weights)
        for way, weight in weights:
            for piece in way:
                expected[piece] += count * weight / total
    scaled = np.array([probabilities[piece] * SCALE ** len(piece) for piece in spelled])
    found = sum(lattice.expected(scaled, block.weights) for lattice, block in zip(lattices, cells.blocks, strict=True))
    np.testing.assert_allclose(found, [expected[piece] for piece in spelled], rtol=1e-12, atol=1e-12)


def test_other_spellings_of_a_piece_are_the_best_without_it() -> None:
    _, _, spelled, lattice, _ = pieces_and_lattices(COUNTS)
    draw = np.random.default_rng(4)
    scores = dict(zip(spelled, np.log(draw.dirichlet(np.ones(len(spelled)))).tolist(), strict=True))
    found = lattice.best(np.array(list(scores.values())))[::-1]
    for piece, score in zip(spelled, found.tolist(), strict=True):
        others = [sum(scores[part] for part in way) for way in ways(piece, scores) if len(way) > 1]
        assert score == pytest.approx(max(others, default=-math.inf)), piece


def test_digamma() -> None:
    known = {0.5: -1.9635100260214235, 1.0: -0.5772156649015329, 2.5: 0.7031566406452432, 10.0: 2.251752589066721}
    found = training._digamma(np.array(list(known)))
    np.testing.assert_allclose(found, list(known.values()), rtol=1e-9)


def test_the_order_of_counts_changes_nothing_and_neither_do_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = words_like_english()
    first = train_unigram(dict(counts), vocab_size=300)
    items = list(counts.items())
    for seed in range(2):
        random.Random(seed).shuffle(items)
        assert train_unigram(dict(items), vocab_size=300) == first
    monkeypatch.setattr(lattices_module, "BLOCK_SIZE", 500)
    in_blocks = dict(train_unigram(dict(items), vocab_size=300))
    assert in_blocks == pytest.approx(dict(first), abs=1e-5)


def test_size_characters_and_probabilities() -> None:
    counts = words_like_english(800)
    pieces = train_unigram(dict(counts), vocab_size=200, required=["<", "é", "a"])
    spelled = [piece for piece, _ in pieces]
    assert len(spelled) == len(set(spelled)) == 200
    assert set(spelled) >= set("".join(counts)) | {"<", "é"}
    assert pieces == sorted(pieces, key=lambda piece: (-piece[1], piece[0]))
    assert sum(math.exp(score) for _, score in pieces) == pytest.approx(1, abs=0.02)
    assert max(map(len, spelled)) > 4


def test_fewer_pieces_where_there_are_no_more() -> None:
    pieces = train_unigram({"ab": 5, "cab": 4, "b": 1}, vocab_size=100)
    assert {piece for piece, _ in pieces} == {"a", "b", "c", "ab", "cab"}


def test_frequent_words_become_pieces() -> None:
    """A frequent word becomes one piece; a rare one is segmented into parts."""
    rare = {f"▁{left}{right}": 1 for left in ("wind", "rain", "snow", "sun") for right in ("fall", "storm", "y")}
    spelled = {piece for piece, _ in train_unigram({**rare, "▁hammer": 1000}, vocab_size=40)}
    assert "▁hammer" in spelled
    assert {"▁wind", "▁rain", "▁snow", "▁sun", "storm", "fall"} <= spelled
    assert "▁windfall" not in spelled


def log_likelihood(pieces: list[tuple[str, float]], counts: dict[str, int]) -> float:
    """Of the words' best spellings, with probabilities that sum to 1."""
    total = math.log(sum(math.exp(score) for _, score in pieces))
    scores = [-100.0, *(score - total for _, score in pieces)]
    vocabulary = list(zip(["<unk>", *(piece for piece, _ in pieces)], scores, strict=True))
    backend = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=0))
    encoded = backend.encode_batch(list(counts))
    both = zip(counts.values(), encoded, strict=True)
    return sum(count * sum(scores[number] for number in found.ids) for count, found in both)


def test_likelihood_is_at_least_that_of_tokenizers_own_trainer() -> None:
    counts = words_like_english(3000)
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.CharDelimiterSplit("\n")
    trainer = trainers.UnigramTrainer(vocab_size=301, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    backend.train_from_iterator(((word + "\n") * count for word, count in counts.items()), trainer)
    theirs = [(piece, score) for piece, score in json.loads(backend.to_str())["model"]["vocab"] if piece != "<unk>"]
    ours = train_unigram(dict(counts), vocab_size=300)
    assert len(ours) == len(theirs) == 300
    assert log_likelihood(ours, counts) > log_likelihood(theirs, counts)


@pytest.mark.parametrize("count", [1, 10**13])
def test_long_words_of_rare_characters_stay_within_float64(count: int) -> None:
    rare = {chr(0x4E00 + place) * 3: 1 for place in range(300)}
    long = {"".join(map(chr, range(0x4E00, 0x4E00 + 300))): 1, "長" * 1000: 2}
    pieces = train_unigram({**rare, **long, "the": count}, vocab_size=400, longest=MAX_WORD_LENGTH)
    assert all(math.isfinite(score) and score <= 0 for _, score in pieces)
    assert len(pieces) == 400


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text("abcde한é", min_size=0, max_size=50), st.integers(1, 10**6), min_size=1, max_size=30),
    st.integers(7, 60),
)
def test_any_words_can_be_spelled(counts: dict[str, int], size: int) -> None:
    if not any(counts):
        return
    pieces = dict(train_unigram(dict(counts), vocab_size=size))
    assert len(pieces) <= size
    assert set(pieces) >= set("".join(counts))
    assert all(math.isfinite(score) for score in pieces.values())
    assert all(any(piece in word for word in counts) for piece in pieces)


@pytest.mark.parametrize("setting", [{"shrink": 1.0}, {"shrink": 0}, {"sub_iterations": 0}, {"longest": 0}])
def test_settings_out_of_range(setting: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        train_unigram({"a": 1}, vocab_size=10, **setting)  # type: ignore[arg-type]


def test_too_small_for_the_characters() -> None:
    with pytest.raises(ConfigError, match="4 characters"):
        train_unigram({"abc": 1}, vocab_size=3, required=["d"])


@pytest.mark.parametrize("counts", [{}, {"": 3}])
def test_no_words(counts: dict[str, int]) -> None:
    with pytest.raises(DataError, match="no words"):
        train_unigram(counts, vocab_size=10)
