"""The attention of every head of a toy translation model: a grammar of English and German sentences, a small model.

The order of words differs: an adverb at the end of the English sentence begins the German one, where the verb follows.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import bertsmith
from bertsmith.inference.encoder_outputs import AttentionQuery
from bertsmith.inference.forward import ModelInput
from bertsmith.inference.heat_map import png_url
from bertsmith.inference.predictor import Predictor

NOUNS = {
    "dog": ("der", "Hund"),
    "cat": ("die", "Katze"),
    "child": ("das", "Kind"),
    "smith": ("der", "Schmied"),
    "woman": ("die", "Frau"),
    "horse": ("das", "Pferd"),
    "man": ("der", "Mann"),
    "bird": ("der", "Vogel"),
}
ADJECTIVES = {"old": "alte", "young": "junge", "small": "kleine", "big": "große", "tired": "müde", "happy": "frohe"}
VERBS = {"sees": "sieht", "finds": "findet", "hears": "hört", "paints": "malt", "calls": "ruft"}
ADVERBS = {"today": "heute", "now": "jetzt", "often": "oft", "here": "hier"}
SENTENCE = "the big dog finds the bird here"
ENCODER = {"layers": 2, "width": 64, "heads": 4, "feed_forward": 128, "dropout": 0.0}
CELL, GAP, LABELS = 14, 14, 64  # pixels


class Heads(NamedTuple):
    """Attention weights [layers, heads, rows, columns]."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    weights: NDArray[np.float32]


def phrase(chance: random.Random, *, subject: bool) -> tuple[str, str]:
    """A noun with its article, and often an adjective; the German masculine has an accusative of its own."""
    noun = chance.choice(list(NOUNS))
    article, german = NOUNS[noun]
    accusative = not subject and article == "der"
    adjective = chance.choice([*ADJECTIVES, *[""] * 3])
    inflected = ADJECTIVES.get(adjective, "") + ("n" if accusative and adjective else "")
    parts = ("the", adjective, noun), ("den" if accusative else article, inflected, german)
    return " ".join(filter(None, parts[0])), " ".join(filter(None, parts[1]))


def pairs(count: int, *, seed: int = 0) -> list[tuple[str, str]]:
    """English sentences and their German translations."""
    chance, found = random.Random(seed), []
    for _ in range(count):
        (subject, ours), (thing, theirs) = phrase(chance, subject=True), phrase(chance, subject=False)
        verb, adverb = chance.choice(list(VERBS)), chance.choice([*ADVERBS, ""])
        english = f"{subject} {verb} {thing} {adverb}".strip()
        german = [ADVERBS[adverb], VERBS[verb], ours] if adverb else [ours, VERBS[verb]]
        found.append((english, " ".join([*german, theirs])))
    return found


def train(folder: Path, *, steps: int, count: int = 4000) -> Predictor:
    """The toy model, trained in a folder."""
    texts = pairs(count)
    tokenizer = bertsmith.train_tokenizer(texts, folder / "tokenizer", kind="byte_bpe", vocab_size=400, parallel=True)
    shards = bertsmith.prepare(texts, folder / "shards", tokenizer=tokenizer, parallel=True, held_out=0.02)
    schedule = {"steps": steps, "warmup": 0.2, "learning_rate": 5e-3}
    size = {"batch_size": 16, "max_length": 64, "device": "cpu"}
    run = bertsmith.pretrain("transformer/tiny", shards, folder / "run", encoder=ENCODER, **schedule, **size)
    return bertsmith.load(run.folder, device="cpu")


def heads_of(model: Predictor, sentence: str) -> list[Heads]:
    """The self-attention of the encoder, and the cross-attention of the decoder to it."""
    (row,), cross = model.source_rows([sentence]), model.translate(sentence, attention=True)["attention"]
    (own,) = model.backend.run(AttentionQuery(), [ModelInput((row,))])
    words = cross.source_tokens
    return [
        Heads("self-attention of the encoder", words, words, own),
        Heads("cross-attention of the decoder", cross.target_tokens, words, cross.weights),
    ]


def drawing(parts: Sequence[Heads]) -> str:
    """A grid of maps for each part, a row for each layer, as standalone SVG; colours follow the square root."""
    elements, y, width = [], 0, 0
    for part in parts:
        layers, heads, rows, columns = part.weights.shape
        elements.append(f'<text x="8" y="{y + 22}" font-weight="bold">{escape(part.title)}</text>')
        y += 34
        for layer in range(layers):
            for head in range(heads):
                x = LABELS + head * (CELL * columns + GAP)
                elements += _map(part, layer, head, x, y, labelled=not head)
            y += LABELS + CELL * rows + GAP
        width = max(width, LABELS + heads * (CELL * columns + GAP))
    frame = f'width="{width}" height="{y}" viewBox="0 0 {width} {y}" font-family="sans-serif" font-size="11"'
    background = f'<rect width="{width}" height="{y}" fill="white"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {frame}>', background, *elements, "</svg>\n"])


def _map(part: Heads, layer: int, head: int, x: int, y: int, *, labelled: bool) -> list[str]:
    rows, columns = part.weights.shape[2:]
    top = y + LABELS
    elements = [
        f'<text x="{x}" y="{y + 8}" fill="#57606a">layer {layer + 1}, head {head + 1}</text>',
        f'<image x="{x}" y="{top}" width="{CELL * columns}" height="{CELL * rows}" preserveAspectRatio="none" '
        f'style="image-rendering: pixelated" href="{png_url(part.weights[layer, head])}"/>',
        f'<rect x="{x}" y="{top}" width="{CELL * columns}" height="{CELL * rows}" fill="none" stroke="#d0d7de"/>',
    ]
    for number, word in enumerate(part.columns):
        place = f"translate({x + CELL * number + CELL / 2 + 4} {top - 4}) rotate(-90)"
        elements.append(f'<text transform="{place}">{escape(word)}</text>')
    for number, word in enumerate(part.rows if labelled else ()):
        place = f'x="{x - 5}" y="{top + CELL * number + CELL / 2 + 4}" text-anchor="end"'
        elements.append(f"<text {place}>{escape(word)}</text>")
    return elements


def add_options(command: argparse.ArgumentParser) -> None:
    """The length of the training."""
    command.add_argument("--steps", type=int, default=300)


def run(options: argparse.Namespace) -> None:
    """Trains the model, prints its accuracy and where each token of a translation attends most, draws all heads."""
    with tempfile.TemporaryDirectory() as folder:
        model = train(Path(folder), steps=options.steps)
    held_out = pairs(200, seed=1)
    found = model.translate([english for english, _ in held_out])
    right = sum(one["text"] == german for one, (_, german) in zip(found, held_out, strict=True))
    print(f"{right} of {len(held_out)} sentences translated as the grammar does")
    parts = heads_of(model, SENTENCE)
    cross = parts[-1]
    print(f"mean cross-attention, each token's largest, of {SENTENCE!r}:")
    for token, row in zip(cross.rows, cross.weights.mean((0, 1)), strict=True):
        print(f"  {token} -> {cross.columns[int(row.argmax())]} {row.max():.2f}")
    if options.output is not None:
        (options.output / "attention_heads.svg").write_text(drawing(parts), encoding="utf-8")
