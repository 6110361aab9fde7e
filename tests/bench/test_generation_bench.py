"""`bench/generation_gpu.py` at a tiny size, on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from threads import threads

pytestmark = pytest.mark.slow
BENCH = Path(__file__).resolve().parents[2] / "bench"
SHAPE = ["layers=2", "width=32", "heads=2", "max_positions=32", "vocab_size=2000"]
ARGUMENTS = ["--prompts", "4", "--prompt-tokens", "6", "--new-tokens", "12", "--rounds", "2", "--device", "cpu"]


@pytest.fixture(scope="module", autouse=True)
def bench_on_the_path() -> Iterator[None]:
    sys.path.insert(0, str(BENCH))
    with threads(1):
        yield
    sys.path.remove(str(BENCH))


def test_one_line_per_candidate_and_equal_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    import generation_gpu

    seconds = generation_gpu.main([*ARGUMENTS, "--precision", "float32", "--set", *SHAPE])
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]
    assert [row[0] for row in rows] == list(seconds) == ["bertsmith", "gpt", "gpt2", "gpt2-static"]
    for name, shown, speed, ratio, _ in rows:
        assert float(shown) == pytest.approx(seconds[name], abs=6e-4)
        assert float(speed.replace(",", "")) == pytest.approx(4 * 12 / seconds[name], abs=1)
        assert float(ratio) == pytest.approx(seconds[name] / seconds["bertsmith"], abs=6e-3)
    assert rows[1][-1] == "100.00%"
    assert lines[-1] == "4 prompts in float32: 100.00% of the tokens are equal"


def test_tokens_that_differ_are_counted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import generation_gpu

    original = generation_gpu.bertsmith_tokens

    def wrong_at_the_end(*arguments: object) -> generation_gpu.Tokens:
        tokens = original(*arguments)
        assert len(np.unique(tokens)) > len(tokens), "the model does not repeat one token"
        tokens[:, 6:] += 1
        return tokens

    monkeypatch.setattr(generation_gpu, "bertsmith_tokens", wrong_at_the_end)
    generation_gpu.main([*ARGUMENTS, "--precision", "bfloat16", "--peers", "gpt", "--set", *SHAPE])
    assert capsys.readouterr().out.splitlines()[-1] == "4 prompts in float32: 50.00% of the tokens are equal"
