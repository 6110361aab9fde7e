"""Question-answering features per core-second, compared with the usual code around a fast tokenizer.

PYTHONPATH=src python bench/qa_features.py SQUAD.json VOCAB.txt [rounds]

The baseline passes question and passage to the tokenizer of transformers, which returns overlapping windows with
offsets, and finds the first and last token of each answer in a loop over tokens, as in the question-answering examples
of that library. It does not pad. Its stride is an overlap, chosen to give steps of 128 tokens after a question of
average length, so that the number of windows is the same. CPU time of all threads, rounds interleaved, medians.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import BertTokenizerFast

from bertsmith.tasks import squad
from bertsmith.tasks.task import Example
from bertsmith.tokenizers.wordpiece import WordPiece

LENGTH, OVERLAP, AT_ONCE = 384, 240, 1000


def baseline(examples: list[Example], tokenizer: Any) -> list[dict[str, Any]]:
    """Features as dictionaries: ids, segments, attention mask, first and last token of the answer."""
    results = []
    for begin in range(0, len(examples), AT_ONCE):
        part = examples[begin : begin + AT_ONCE]
        encoded = tokenizer(
            [example.texts[0] for example in part],
            [example.texts[1] for example in part],
            truncation="only_second",
            max_length=LENGTH,
            stride=OVERLAP,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        for number, owner in enumerate(encoded["overflow_to_sample_mapping"]):
            feature = {key: encoded[key][number] for key in ("input_ids", "token_type_ids", "attention_mask")}
            first, last = baseline_positions(encoded, number, part[owner])
            results.append({**feature, "start_positions": first, "end_positions": last})
    return results


def baseline_positions(encoded: Any, number: int, example: Example) -> tuple[int, int]:
    """Token indices of the answer in one window, searched from both ends of the passage; (0, 0) if it is outside."""
    if not example.spans:
        return 0, 0
    begin, end = example.spans[0]
    sides, offsets = encoded.sequence_ids(number), encoded["offset_mapping"][number]
    first, last = 0, len(sides) - 1
    while sides[first] != 1:
        first += 1
    while sides[last] != 1:
        last -= 1
    if offsets[first][0] > begin or offsets[last][1] < end:
        return 0, 0
    while first < len(offsets) and offsets[first][0] <= begin:
        first += 1
    while offsets[last][1] >= end:
        last -= 1
    return first - 1, last + 1


def core_seconds(work: Callable[[], list[Any]]) -> tuple[float, float, int]:
    """Processor time, wall time and how many features."""
    wall, cpu = time.perf_counter(), time.process_time()
    count = len(work())
    return time.process_time() - cpu, time.perf_counter() - wall, count


def main(data: str, vocabulary: str, rounds: str = "5") -> None:
    task = squad.Config(name="2.0").build(files={"dev": Path(data)})
    examples = task.examples("dev")
    bertsmith, reference = WordPiece.from_vocabulary(vocabulary), BertTokenizerFast(vocab=vocabulary)
    programs: dict[str, Callable[[], list[Any]]] = {
        "bertsmith": lambda: task.rows(examples, bertsmith, max_length=LENGTH),
        "baseline": lambda: baseline(examples, reference),
    }
    assert bertsmith.encode("unaffable").ids.tolist() == reference("unaffable", add_special_tokens=False)["input_ids"]
    taken: dict[str, list[tuple[float, float, int]]] = {name: [] for name in programs}
    for _ in range(int(rounds)):
        for name, work in programs.items():
            taken[name].append(core_seconds(work))
    rates = {name: [count / cpu for cpu, _, count in runs] for name, runs in taken.items()}
    for name, runs in taken.items():
        wall = statistics.median(run[1] for run in runs)
        print(
            f"{name:10} {runs[0][2]:7} features {statistics.median(rates[name]):9.0f} a core-second {wall:7.2f} s wall"
        )
    ratios = [bertsmith / reference for bertsmith, reference in zip(rates["bertsmith"], rates["baseline"], strict=True)]
    print(f"ratio {statistics.median(ratios):.1f} (from {min(ratios):.1f} to {max(ratios):.1f})")


if __name__ == "__main__":
    main(*sys.argv[1:])
