"""Vectors of texts: texts a second and the time that one text takes, against the transformers library.

PYTHONPATH=src python bench/predictor.py --texts FILE --vocabulary vocab.txt [--size base] [--device cuda] [--count 256]

FILE has one text a line, in an order that is not sorted by length; vocab.txt is a WordPiece vocabulary. Both sides have
the same weights, drawn at random. The rival tokenizes with its own fast tokenizer and computes 32 texts at a time,
padded to the longest of them, by scaled_dot_product_attention. Ours is given all texts, or 32 at a time as the rival.
Both give the mean over tokens; the first token's vector is compared too. On CUDA both compute in bfloat16 by autocast.
Rounds are interleaved; medians. `--forms` compares ways to lay out texts in a forward, `--precisions` fewer bits.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import BertModel, BertTokenizerFast

from bertsmith.data.collate import collate, collate_unpadded
from bertsmith.encoders import bert
from bertsmith.inference.engine import Engine
from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import save_model
from bertsmith.tokenizers.wordpiece import WordPiece
from bertsmith.types import Row

Vectors = NDArray[np.float32]
AT_ONCE, THREADS = 32, 32


class Rival:
    """The usual way with transformers."""

    def __init__(self, folder: Path, *, device: str) -> None:
        self.model = BertModel.from_pretrained(folder, attn_implementation="sdpa").eval().to(device)
        self.tokenizer = BertTokenizerFast.from_pretrained(folder)
        self.device = device

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], pooling: str = "mean") -> Vectors:
        found = []
        for begin in range(0, len(texts), AT_ONCE):
            given = self.tokenizer(
                list(texts[begin : begin + AT_ONCE]), padding=True, truncation=True, max_length=512, return_tensors="pt"
            ).to(self.device)
            half = torch.autocast("cuda", torch.bfloat16) if self.device == "cuda" else nullcontext()
            with half:
                top = self.model(**given).last_hidden_state.float()
            if pooling == "first":
                found.append(top[:, 0].cpu())
                continue
            real = given["attention_mask"][:, :, None].float()
            found.append(((top * real).sum(1) / real.sum(1)).cpu())
        return torch.cat(found).numpy()


def load() -> str:
    return f"load {os.getloadavg()[0]:.1f}"


def by_32(predictor: Predictor, texts: Sequence[str]) -> Vectors:
    return np.concatenate([predictor.encode(texts[begin : begin + AT_ONCE]) for begin in range(0, len(texts), AT_ONCE)])


def by_threads(predictor: Predictor, texts: Sequence[str], pool: ThreadPoolExecutor) -> Vectors:
    return np.stack(list(pool.map(predictor.encode, texts)))


def medians(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[float, float]]:
    """Seconds, and seconds of all cores, of each way; rounds interleaved."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            wall, cores = time.perf_counter(), time.process_time()
            way()
            taken[name].append((time.perf_counter() - wall, time.process_time() - cores))
    return {name: tuple(map(statistics.median, zip(*some, strict=True))) for name, some in taken.items()}  # type: ignore[misc]


def tell(found: dict[str, tuple[float, float]], texts: int, *, against: str) -> None:
    for name, (wall, cores) in found.items():
        ratio, core_ratio = found[against][0] / wall, found[against][1] / cores
        print(
            f"  {name:34s} {texts / wall:9.2f} texts/s   x{ratio:5.2f}   core seconds {cores:7.2f}  x{core_ratio:5.2f}"
        )


def latency(predictor: Predictor, rival: Rival, texts: Sequence[str], rounds: int) -> None:
    """One text at a time, texts of all lengths."""
    taken: dict[str, list[float]] = {"ours": [], "theirs": []}
    for text in list(texts)[:10] * rounds:
        for name, encode in (("ours", predictor.encode), ("theirs", lambda one: rival.encode([one]))):
            began = time.perf_counter()
            encode(text)
            taken[name].append(time.perf_counter() - began)
    ours, theirs = (1000 * statistics.median(some) for some in taken.values())
    print(f"one text, median: ours {ours:.2f} ms, theirs {theirs:.2f} ms, x{theirs / ours:.2f}")


def forms(predictor: Predictor, texts: Sequence[str], rounds: int) -> None:
    """Ways to lay out the same texts, by the same encoder; `tokens` is what a forward holds."""
    rows = sorted(predictor._rows(texts), key=len)
    encoder = predictor.model.encoder

    def forward(batch: Any) -> None:
        with torch.inference_mode():
            encoder(batch.to(predictor.device), pool=False)

    def groups(tokens: int, *, padded: bool) -> Iterator[list[Row]]:
        group: list[Row] = []
        for row in reversed(rows):
            cost = (len(group) + 1) * len(group[0]) if padded and group else sum(map(len, group)) + len(row)
            if group and cost > tokens:
                yield group
                group = []
            group.append(row)
        yield group

    def lines(some: list[Row], **how: Any) -> Any:
        return collate(some, length=max(map(len, some)), **how)

    ways: dict[str, Callable[[], Any]] = {
        "equal lengths": lambda: [forward(lines(list(some))) for _, some in groupby(rows, key=len)]
    }
    for tokens in (1024, 4096):
        ways[f"padded, {tokens}"] = lambda n=tokens: [forward(lines(some)) for some in groups(n, padded=True)]  # type: ignore[misc]
        ways[f"packed lines, {tokens}"] = lambda n=tokens: [
            forward(lines(some, pack=True)) for some in groups(n, padded=False)
        ]  # type: ignore[misc]
    for tokens in (512, 1024, 2048, 4096, 8192, 16_384):
        ways[f"one line, {tokens}"] = lambda n=tokens: [
            forward(collate_unpadded(some)) for some in groups(n, padded=False)
        ]  # type: ignore[misc]
    print(f"forms: {sum(map(len, rows))} tokens, {len({len(row) for row in rows})} lengths")
    tell(medians(ways, rounds), len(texts), against="padded, 4096")


def precisions(folder: Path, texts: Sequence[str], device: str, rounds: int) -> None:
    """What fewer bits do to vectors of length 1, and to speed."""
    names: tuple[Any, ...] = ("float32", "bfloat16", "int8")
    opened = {name: Predictor.open(folder, device=device, precision=name) for name in names}
    exact = opened["float32"].encode(texts, normalize=True)
    for name, one in opened.items():
        found = one.encode(texts, normalize=True)
        apart, cosine = np.abs(found - exact).max(), (found * exact).sum(1).min()
        print(f"{name}: furthest from float32 {apart:.1e}, least cosine {cosine:.5f}")
    ways: dict[str, Callable[[], Any]] = {name: lambda one=one: one.encode(texts) for name, one in opened.items()}  # type: ignore[misc]
    tell(medians(ways, rounds), len(texts), against="float32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument("--size", default="base", choices=sorted(bert.Config.sizes))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--count", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--forms", action="store_true")
    parser.add_argument("--precisions", action="store_true")
    asked = parser.parse_args()
    texts = asked.texts.read_text(encoding="utf-8").splitlines()[: asked.count]
    words = [line for line in asked.vocabulary.read_text(encoding="utf-8").split("\n") if line]
    tokenizer = WordPiece.build(words)
    print(f"{asked.size} on {asked.device}, {len(texts)} texts, {torch.get_num_threads()} threads, {load()}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        torch.manual_seed(0)
        save_model(Model.build(bert.Config.size(asked.size, vocab_size=len(words)), []), tokenizer, folder)
        if asked.precisions:
            return precisions(folder, texts, asked.device, asked.rounds)
        precision: Any = "bfloat16" if asked.device == "cuda" else "float32"
        predictor = Predictor.open(folder, device=asked.device, precision=precision)
        if asked.forms:
            return forms(predictor, texts, asked.rounds)
        compare(predictor, Rival(folder, device=asked.device), texts, asked.rounds)


def compare(predictor: Predictor, rival: Rival, texts: Sequence[str], rounds: int) -> None:
    lengths = [min(count, 512) for count in predictor.count_tokens(texts)]
    padded = sum(max(part) * len(part) for part in (lengths[at : at + AT_ONCE] for at in range(0, len(texts), AT_ONCE)))
    print(f"{sum(lengths)} tokens; {padded / sum(lengths):.2f} places for each in padded batches of {AT_ONCE}")
    for pooling in ("mean", "first"):
        ours, theirs = predictor.encode(texts[:64], pooling=pooling), rival.encode(texts[:64], pooling)
        print(f"furthest apart, {pooling}: {np.abs(ours - theirs).max():.1e}")
    with Engine(predictor.backend) as engine, ThreadPoolExecutor(THREADS) as pool:
        through = predictor.with_backend(engine)
        ways: dict[str, Callable[[], Any]] = {
            "theirs, 32 at a time": lambda: rival.encode(texts),
            "ours, 32 at a time": lambda: by_32(predictor, texts),
            "ours, all at once": lambda: predictor.encode(texts),
            f"engine, {THREADS} threads, one text each": lambda: by_threads(through, texts, pool),
        }
        found = medians(ways, rounds)
        tell(found, len(texts), against="theirs, 32 at a time")
        print(f"engine: {found['ours, all at once'][0] / found[list(ways)[-1]][0]:.2f} of all at once")
    latency(predictor, rival, texts, rounds)
    print(load())


if __name__ == "__main__":
    main()
