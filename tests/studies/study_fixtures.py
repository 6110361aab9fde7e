"""Fixtures of studies: model folders with random weights, and tags that follow from the words."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch

from bertsmith.data import prepare
from bertsmith.encoders import bert
from bertsmith.model_io.folder_tokenizer import vocabulary_of
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import save_model
from bertsmith.objectives import causal_lm, masked_lm
from bertsmith.tokenizers.tokenizer import Tokenizer, load
from bertsmith.tokenizers.wordpiece import Config

COLOURS, METALS = ("red", "green", "blue", "white"), ("iron", "copper", "silver", "gold")
WORDS = " ".join([*COLOURS, *METALS, "the smith has a thing of which is it and in who where yes no same other"])


def tokenizer_of(folder: Path) -> Tokenizer:
    """Knows all words of these tests."""
    (folder / "text.txt").write_text("\n\n".join([WORDS] * 40), encoding="utf-8")
    learned = {"settings": Config(), "vocab_size": 160, "workers": 1, "quiet": True}
    prepare.train_tokenizer([folder / "text.txt"], folder / "t", **learned)
    return load(folder / "t")


def model_folder(folder: Path, tokenizer: Tokenizer, *, seed: int = 1, **changes: Any) -> Path:
    """A BERT of 4 layers without dropout."""
    torch.manual_seed(seed)
    shape = {"layers": 4, "width": 32, "heads": 2, "vocab_size": 192, "max_positions": 64, "initializer_range": 0.1}
    settings = bert.Config(**{**shape, "dropout": 0, "attention_dropout": 0, **changes})
    objective = causal_lm.Config() if settings.causal else masked_lm.Config()
    save_model(Model.build(settings, [objective], vocabulary=vocabulary_of(tokenizer)), tokenizer, folder)
    return folder


def tagged(path: Path, count: int, seed: int) -> Path:
    """Sentences whose colours and metals are entities."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        words = f"the smith has {draw.choice(COLOURS)} {draw.choice(METALS)} {'of ' * draw.randrange(4)}it".split()
        tags = ["B-METAL" if word in METALS else "B-COLOUR" if word in COLOURS else "O" for word in words]
        rows.append({"tokens": words, "tags": tags})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def tag_files(folder: Path) -> dict[str, Path]:
    """Train, dev and test."""
    sizes = {"train": 64, "dev": 24, "test": 20}
    return {split: tagged(folder / f"{split}.jsonl", size, seed) for seed, (split, size) in enumerate(sizes.items())}


def mrpc(folder: Path, count: int = 96) -> Path:
    """Files in MRPC's format whose label is the last word of the second sentence."""
    draw = random.Random(3)
    for name, size in (("train", count), ("dev", 40)):
        lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        for number in range(size):
            label = draw.randrange(2)
            lines.append(
                f"{label}\t{number}\t{number}\tthe smith has {draw.choice(METALS)}\tit is {('no', 'yes')[label]}"
            )
        (folder / "MRPC").mkdir(parents=True, exist_ok=True)
        (folder / "MRPC" / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder
