"""Fixtures of fine-tuning: a model folder with random weights, and learnable examples."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch

from bertsmith.data import prepare
from bertsmith.encoders import bert, gpt
from bertsmith.model_io.folder_tokenizer import vocabulary_of
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import save_model
from bertsmith.objectives import causal_lm, masked_lm
from bertsmith.tokenizers import bpe
from bertsmith.tokenizers.tokenizer import load
from bertsmith.tokenizers.wordpiece import Config
from bertsmith.training.recipe import FinetuneConfig, make_finetune_config

COLOURS, METALS = ("red", "green", "blue", "white"), ("iron", "copper", "silver", "gold")
QUICK = ["epochs=6", "batch_size=16", "learning_rate=3e-3", "save_every=7", "max_length=32"]


def tiny_model(base: Path) -> Path:
    """A model folder with random weights and a tokenizer for the words of the examples."""
    words = " ".join([*COLOURS, *METALS, "the smith has a thing of which is it and in 쇠 불 who where"])
    (base / "text.txt").write_text("\n\n".join([words] * 40), encoding="utf-8")
    prepare.train_tokenizer([base / "text.txt"], base / "t", settings=Config(), vocab_size=250, workers=1, quiet=True)
    tokenizer = load(base / "t")
    torch.manual_seed(1)
    encoder = bert.Config(
        layers=2,
        width=32,
        heads=2,
        vocab_size=256,
        max_positions=64,
        initializer_range=0.1,
        dropout=0,
        attention_dropout=0,
    )
    save_model(Model.build(encoder, [masked_lm.Config()], vocabulary=vocabulary_of(tokenizer)), tokenizer, base / "m")
    return base / "m"


def tiny_gpt(base: Path) -> Path:
    """A GPT with random weights for the same words."""
    words = " ".join([*COLOURS, *METALS, "the smith has a thing of which is it and in 불 who where"])
    counts = dict.fromkeys(words.split(), 40)
    tokenizer = bpe.Config().train(counts, vocab_size=220)
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"layers": 2, "width": 32, "heads": 2, "vocab_size": 224, "max_positions": 64}
    encoder = gpt.Config(**sizes, initializer_range=0.1, dropout=0.0, attention_dropout=0.0)
    save_model(Model.build(encoder, [causal_lm.Config()]), tokenizer, base / "gpt")
    return base / "gpt"


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def made_up(kind: str, count: int, seed: int) -> list[dict[str, object]]:
    """Examples whose labels occur in their texts."""
    draw = random.Random(seed)
    result: list[dict[str, object]] = []
    for _ in range(count):
        colour, metal = draw.choice(COLOURS), draw.choice(METALS)
        text = f"the smith has {colour} {metal} {'불 ' * draw.randrange(4)}and a thing"
        if kind == "classification":
            result.append({"text": text, "label": metal})
        elif kind == "pairs":
            other = draw.choice(METALS) if draw.random() < 0.5 else metal
            result.append({"sentence1": text, "sentence2": f"it is {other}", "label": str(other == metal)})
        elif kind == "multi_label":
            has = [name for name in (colour, metal) if name in ("red", "blue", "iron", "gold")]
            result.append({"text": text, "labels": has})
        elif kind == "regression":
            result.append({"text": text, "score": float(METALS.index(metal))})
        elif kind == "choice":
            choices = draw.sample(METALS, 3)
            choices = [metal, *[one for one in choices if one != metal][:2]]
            draw.shuffle(choices)
            result.append({"question": text, "choices": choices, "label": choices.index(metal)})
        elif kind == "qa":
            result.append({"question": "which metal", "context": text, "answer": metal})
        else:
            words = text.split()
            tags = ["B-METAL" if word in METALS else "B-COLOUR" if word in COLOURS else "O" for word in words]
            result.append({"tokens": words, "tags": tags})
    return result


def tuning_of(kind: str, model: Path, folder: Path, *changes: str, count: int = 64) -> FinetuneConfig:
    files = {
        "train": write(folder / "train.jsonl", made_up(kind, count, 0)),
        "dev": write(folder / "dev.jsonl", made_up(kind, 40, 1)),
    }
    return make_finetune_config(kind, model, files, [*QUICK, *changes])
