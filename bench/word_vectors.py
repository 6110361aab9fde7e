"""Words per second of skip-gram training, beside gensim's Word2Vec on the same words and vocabulary, interleaved.

    python bench/word_vectors.py SHARDS [--widths 100 200] [--subsamples 1e-3 1e-4] [--words 1000000] [--rounds 3]

The shards must be of a words tokenizer. Window 5, 5 negatives; every round trains both on as many words, bertsmith with
its own loader, trainer and optimizer. `wall` is words per second, `CPU` words per second of CPU time, which counts on a
machine that others use too; a ratio is the median and the range of those of the rounds. Without gensim only bertsmith
is measured.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from bertsmith import recipes
from bertsmith.training.distributed import World
from bertsmith.training.pretrain import make_trainer
from bertsmith.training.pretrain_data import PretrainData, PretrainLoader
from bertsmith.training.signals import StopSignal

SENTENCE = 1000  # words of a sentence for gensim, which cuts at 10,000
Train = Callable[[], int]  # trains, and returns the number of words


def bertsmith_case(data: PretrainData, words: int, **settings: Any) -> Train:
    recipe = recipes.find("word_vectors/tiny")
    skip_gram = replace(recipe.objectives["skip_gram"], subsample=settings["subsample"])
    recipe = data.with_vocabulary(replace(recipe, objectives={"skip_gram": skip_gram}))
    recipe = replace(recipe, encoder=replace(recipe.encoder, width=settings["width"]), steps=10**6)
    world = World()
    loader = PretrainLoader(recipe, data.packing(recipe), world)
    trainer = make_trainer(recipe, data, loader, world, StopSignal())
    steps = max(1, words // (recipe.batch_size * recipe.max_length))
    for _ in range(2):
        next(trainer)  # the first steps allocate memory

    def train() -> int:
        trainer.state()
        before = trainer.tokens
        for _ in range(steps):
            next(trainer)
        trainer.state()
        return trainer.tokens - before

    return train


def gensim_case(data: PretrainData, words: int, threads: int, **settings: Any) -> Train | None:
    try:
        from gensim.models import Word2Vec
    except ImportError:
        return None
    names = data.tokenizer.tokens()

    def sentences(count: int) -> list[list[str]]:
        ids = data.shards.read(0, count).tolist()
        return [[names[one] for one in ids[first : first + SENTENCE]] for first in range(0, count, SENTENCE)]

    model = Word2Vec(
        vector_size=settings["width"], sample=settings["subsample"], window=5, negative=5, sg=1, min_count=1,
        workers=threads,
    )  # fmt: skip
    model.build_vocab(sentences(data.shards.tokens))
    some = sentences(min(words, data.shards.tokens))
    total = sum(map(len, some))

    def train() -> int:
        model.train(some, total_examples=len(some), epochs=1)
        return total

    return train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards")
    parser.add_argument("--widths", type=int, nargs="+", default=[100, 200])
    parser.add_argument("--subsamples", type=float, nargs="+", default=[1e-3, 1e-4])
    parser.add_argument("--words", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    data = PretrainData.open(arguments.shards)
    print(f"{'width':>5} {'subsample':>9} {'':<10} {'wall':>9} {'CPU':>9}  words/s, median of {arguments.rounds}")
    for width in arguments.widths:
        for subsample in arguments.subsamples:
            settings: dict[str, Any] = {"width": width, "subsample": subsample}
            cases = {
                "gensim": gensim_case(data, arguments.words, arguments.threads, **settings),
                "bertsmith": bertsmith_case(data, arguments.words, **settings),
            }
            measured = measure({name: case for name, case in cases.items() if case}, arguments.rounds)
            for name, speeds in measured.items():
                wall, processor = (median(speed) for speed in zip(*speeds, strict=True))
                print(f"{width:>5} {subsample:>9g} {name:<10} {wall:>9,.0f} {processor:>9,.0f}")
            if len(measured) == 2:
                print(f"{'':<15} {'ratio':<10} {ratios(measured, 0)} {ratios(measured, 1)}", flush=True)


def ratios(measured: dict[str, list[tuple[float, float]]], kind: int) -> str:
    """The median and the range of the ratios of the rounds."""
    found = sorted(ours[kind] / theirs[kind] for theirs, ours in zip(*measured.values(), strict=True))
    return f"{median(found):>9.2f} ({found[0]:.2f}-{found[-1]:.2f})"


def measure(cases: dict[str, Train], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Words per second of wall and of CPU time in each round, by case."""
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, train in cases.items():
            wall, processor = time.perf_counter(), time.process_time()
            words = train()
            speeds[name].append((words / (time.perf_counter() - wall), words / (time.process_time() - processor)))
    return speeds


if __name__ == "__main__":
    main()
