"""`bench/word_senses.py`: senses of a word by nearest sentences."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from bench import word_senses
from bertsmith.inference.word_contexts import WordContexts

FILE = "he sat on the *bank*\nthe *bank* of the river\n\nthe *bank* lends\na *bank* in Paris\nhis *bank* failed\n"


@pytest.fixture
def senses(tmp_path: Path) -> list[list[str]]:
    path = tmp_path / "bank.txt"
    path.write_text(FILE)
    return word_senses.read_senses(path)


def test_an_empty_line_separates_senses(senses: list[list[str]]) -> None:
    assert [len(some) for some in senses] == [2, 3]
    assert senses[1][2] == "his *bank* failed"


def test_chance_is_the_mean_over_random_neighbours() -> None:
    sense = np.array([0, 0, 1, 1, 1])
    draw = np.random.default_rng(0)
    neighbour = draw.integers(1, 5, (20_000, 5)) + np.arange(5)  # never the sentence itself
    right = (sense[neighbour % 5] == sense).sum(1).mean()
    assert word_senses.by_chance([2, 3]) == pytest.approx(right, abs=0.03)


def test_every_layer_is_judged_by_the_nearest_sentence(senses: list[list[str]]) -> None:
    # layer 0 has the same vector everywhere; in layer 1 the last sentence is among those of the other sense
    angles = [[0.0] * 5, [0.0, 0.1, 2.0, 2.1, 0.05]]

    def word_contexts(sentences: Any, *, layer: int) -> WordContexts:
        assert len(sentences) == 5
        unit = np.array([[np.cos(angle), np.sin(angle)] for angle in angles[layer]], np.float32)
        return WordContexts((), layer, unit @ unit.T)

    model = SimpleNamespace(word_contexts=word_contexts, model=SimpleNamespace(encoder=SimpleNamespace(layers=1)))
    first, second = word_senses.layers(cast(Any, model), senses)
    assert (first.same, first.different) == (pytest.approx(1), pytest.approx(1))
    assert second.right == 2  # the third and the fourth; the first two are nearest to the last one
    assert second.same == pytest.approx(np.cos([0.1, 0.1, 1.95, 2.05]).mean(), abs=1e-6)


def test_a_file_of_one_sense_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.txt").write_text("the *bank*\na *bank*\n")
    assert word_senses.main([str(tmp_path / "one.txt"), str(tmp_path)]) != 0
    assert "two senses of two sentences" in capsys.readouterr().err


def test_a_missing_or_binary_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.bin").write_bytes(b"he\xff")
    for name, message in (("none.txt", "No such file or directory"), ("model.bin", "not UTF-8 text, see byte 2")):
        assert word_senses.main([str(tmp_path / name), str(tmp_path)]) == 65
        shown = capsys.readouterr().err
        assert shown.startswith(f"error: {tmp_path / name} ")
        assert message in shown
        assert shown.count("\n") == 1
