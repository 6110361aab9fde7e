"""Sentence splitting: agreement with gold sets, no lost characters, speed on real text."""

import lzma
import os
import time
from pathlib import Path

import pytest
from data import gold_sentences
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.data.sentences import split_long_text, split_sentences

DATA = Path(os.environ.get("BERTSMITH_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
WIKI = {"english": DATA / "corpora" / "en-wiki-1.txt.xz", "korean": DATA / "corpora" / "ko-wiki.txt.xz"}


@pytest.mark.parametrize(("language", "least"), [("english", 120), ("korean", 80)])
def test_gold_sets_are_large_enough(language: str, least: int) -> None:
    assert gold_sentences.decisions(language) >= least


@pytest.mark.parametrize(("language", "invented_at_most", "missed_at_most"), [("english", 0, 2), ("korean", 1, 0)])
def test_agreement_with_the_gold_set(language: str, invented_at_most: int, missed_at_most: int) -> None:
    result, invented, missed = gold_sentences.agreement(language, split_sentences)
    assert result > 100
    assert invented <= invented_at_most
    assert missed <= missed_at_most


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n\t ", []),
        ("no end", ["no end"]),
        ("A heading\nA line. Another.\n", ["A heading", "A line.", "Another."]),
        ("end.\nlower case after a newline", ["end.", "lower case after a newline"]),
        (
            "晴れだ。明日は雨か？「そうだ。」と言った。",
            ["晴れだ。", "明日は雨か？", "「そうだ。」と言った。"],
        ),
        ("他说：“你好。”我走了！", ["他说：“你好。”", "我走了！"]),
        ("यह एक वाक्य है। यह दूसरा है।", ["यह एक वाक्य है।", "यह दूसरा है।"]),
        ("هل أنت بخير؟ نعم.", ["هل أنت بخير؟", "نعم."]),
        ("Это раз. Это два. и т. д.", ["Это раз.", "Это два. и т. д."]),
        ("Wait..... What?", ["Wait.....", "What?"]),
        ("life . . . The end.", ["life . . .", "The end."]),
        ("판사는 말하고 ... 다시 앉았다. 끝.", ["판사는 말하고 ... 다시 앉았다.", "끝."]),
        ("... And so it was. Yes.", ["... And so it was.", "Yes."]),
    ],
)
def test_difficult_sentence_ends(text: str, expected: list[str]) -> None:
    assert split_sentences(text) == expected


SPACES = [" ", "\n", "\t", "\u00a0", "\u3000"]
SIGNS = [".", "...", "…", "!", "?", "。", "？", "'", '"', "”", "’", ")", "(", "[4]", "「", "」"]
WORDS = [" J", "Dr", "e.g", "The", "a", "12", "다", "요", "가", "と"]
MARKS = st.sampled_from(SPACES + SIGNS + WORDS)


@given(st.lists(MARKS, max_size=60).map("".join) | st.text(), st.integers(1, 50))
def test_every_character_stays_in_its_order(text: str, longest: int) -> None:
    sentences = split_sentences(text, max_characters=longest)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(0 < len(sentence) <= longest and sentence == sentence.strip() for sentence in sentences)


def test_long_sentences_are_cut_at_spaces_if_possible() -> None:
    words = " ".join(["word"] * 2000)
    cut = split_sentences(words)
    assert " ".join(cut) == words
    assert max(map(len, cut)) <= 4096 < len(words)
    assert [len(piece) for piece in split_sentences("x" * 9000)] == [4096, 4096, 808]
    assert list(split_long_text("aa bb  cc", 5)) == [(0, "aa"), (3, "bb"), (7, "cc")]


@pytest.mark.parametrize("language", WIKI)
def test_speed_on_real_text(language: str) -> None:
    """The target is 40 MB/s on an idle core; half of it here, because test machines are busy."""
    if not WIKI[language].exists():
        pytest.skip(f"{WIKI[language]} is not here")
    with lzma.open(WIKI[language], "rt", encoding="utf-8") as file:
        text = file.read(4_000_000)
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        sentences = split_sentences(text)
        best = min(best, time.process_time() - began)
    assert len(sentences) > 20_000
    assert len(text.encode()) / best > 20e6
