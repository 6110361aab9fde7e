"""Does the vector of a word tell its senses apart? The nearest of several sentences, by every layer of models.

    PYTHONPATH=src python bench/word_senses.py bench/word_senses/play.txt MODEL...

A line of the file is a sentence with one marked word, such as `the *play* began`; an empty line separates the senses.
For every layer, the table has the number of sentences whose nearest neighbour uses the word in the same sense, and the
mean cosine similarity within a sense and between senses. Layer 0 of a model without positions is the vector of
the word alone, the same in all sentences. "By chance" is the expectation with a random neighbour.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import bertsmith as bs
from bertsmith.errors import BertsmithError, DataError
from bertsmith.inference.predictor import Predictor

EXAMPLE = "bench/word_senses/play.txt"


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="model folder or run")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(words)
    try:
        senses = read_senses(options.file)
        chance = by_chance([len(some) for some in senses])
        print(f"{options.file.name}: {sum(map(len, senses))} sentences, {chance:.1f} by chance\n")
        print("| model | layer | nearest in the same sense | similarity, same sense | different senses |")
        print("|---|---:|---:|---:|---:|")
        for folder in options.models:
            model = bs.load(folder, device=options.device)
            for layer, found in enumerate(layers(model, senses)):
                values = f"{found.right} | {found.same:.3f} | {found.different:.3f}"
                print(f"| {Path(folder).name} | {layer} | {values} |", flush=True)
    except BertsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def read_senses(path: Path) -> list[list[str]]:
    """The sentences of each sense."""
    try:
        blocks = path.read_text(encoding="utf-8").strip("\n").split("\n\n")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}: pass a file such as {EXAMPLE}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text, see byte {error.start:,}: pass a file such as {EXAMPLE}") from error
    senses = [[line for line in block.split("\n") if line] for block in blocks]
    if len(senses) < 2 or min(map(len, senses)) < 2:
        raise DataError(f"{path} needs two senses of two sentences each, separated by an empty line")
    return senses


def by_chance(sizes: Sequence[int]) -> float:
    """Expected number of sentences whose neighbour has the same sense."""
    return sum(size * (size - 1) for size in sizes) / (sum(sizes) - 1)


@dataclass(frozen=True)
class Layer:
    right: int  # sentences whose nearest other one has the same sense
    same: float  # mean similarity
    different: float


def layers(model: Predictor, senses: Sequence[Sequence[str]]) -> list[Layer]:
    """The result of every layer, from the embeddings on."""
    sentences = [one for some in senses for one in some]
    sense = np.repeat(range(len(senses)), [*map(len, senses)])
    same, other = sense[:, None] == sense, ~np.eye(len(sense), dtype=bool)
    results = []
    for layer in range(model.model.encoder.layers + 1):
        found = model.word_contexts(sentences, layer=layer)
        nearest = np.array([found.neighbours(number)[0][0] for number in range(len(sentences))])
        means = found.similarity[same & other].mean(), found.similarity[~same].mean()
        results.append(Layer(int((sense[nearest] == sense).sum()), *map(float, means)))
    return results


if __name__ == "__main__":
    sys.exit(main())
