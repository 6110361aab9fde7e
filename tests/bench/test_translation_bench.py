"""`bench/translation_gpu.py` and `bench/multi30k.py` at a tiny size, on the CPU."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from threads import threads

pytestmark = pytest.mark.slow
BENCH = Path(__file__).resolve().parents[2] / "bench"
SMALL = ["--set", "steps=4", "--set", "warmup=0.5", "--set", "batch_size=2", "--set", "max_length=32", "--set"]


@pytest.fixture(scope="module", autouse=True)
def bench_on_the_path() -> Iterator[None]:
    sys.path.insert(0, str(BENCH))
    with threads(1):
        yield
    sys.path.remove(str(BENCH))


def test_one_speed_per_candidate_and_checks(capsys: pytest.CaptureFixture[str]) -> None:
    import translation_gpu

    few = ["--pairs", "4", "--sentences", "2", "--rounds", "1", "--steps", "1", "--device", "cpu"]
    speeds = translation_gpu.main([*few, "--variants", "full", "packed", "--peers", "eager"])
    assert list(speeds) == ["beam", "beam marian", "train full", "train packed", "train marian eager"]
    assert min(speeds.values()) > 0
    lines = capsys.readouterr().out.splitlines()
    checks = [line for line in lines if line.startswith("check")]
    assert checks[0].startswith("check: captured decoding finds 2 of 2")
    assert [line.endswith(": ok") for line in checks[-3:]] == [True] * 3
    assert [line.split("|")[1].strip() for line in lines[-5:]] == list(speeds)
    late = translation_gpu.main([*few, "--only", "train", "--variants", "full", "--peers", "--stop-after", "0"])
    assert late == {}


def test_variants_of_a_recipe_are_trained_and_scored(tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu")
    import multi30k

    for split in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            with gzip.open(tmp_path / f"{split}.{language}.gz", "wt", encoding="utf-8") as file:
                file.write("".join(f"{language} {number} {number * 7 % 13}\n" for number in range(60)))
    (tmp_path / "some.toml").write_text(
        '[defaults]\nrecipe = "transformer/tiny"\nkind = "byte_bpe"\nvocabulary = 300\nsettings = ["save_every=2"]\n'
        '[variants.one]\n[variants.two]\nsettings = ["encoder.layers=1"]\n'
    )
    words = [str(tmp_path), str(tmp_path / "work"), "--file", str(tmp_path / "some.toml"), "--device", "cpu", "--test"]
    found = multi30k.main([*words, *SMALL, "encoder.width=32", "--jobs", "2", "--limit", "2"])
    assert sorted(one["variant"] for one in found) == ["one", "two"]
    assert all(len(one["all_val"]) == 2 * len(multi30k.GRID) and "test_2016_flickr" in one for one in found)
