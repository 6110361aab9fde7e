"""Small models with random weights, and one that recognises metals and colours."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import torch

import bertsmith
from bertsmith.encoders import bert
from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import save_model
from bertsmith.objectives import span, tag
from bertsmith.tokenizers.wordpiece import SPECIALS, WordPiece

COLOURS, METALS = ("red", "blue"), ("iron", "gold", "cafe", "쇠")
WORDS = [*COLOURS, *METALS, *"the smith has a thing of which is it in".split(), "##s", "##에서", ".", ",", "-"]  # noqa: SIM905
LENGTH = 32  # maximum length of these models
KINDS = ("no", "yes")
TEXTS = ["the smith has red iron", "it is a thing", "쇠 is blue", ""]
LONG = "the smith has a red thing of gold " * 12
TAGS = ("O", "B-COLOUR", "I-COLOUR", "B-METAL", "I-METAL")


def tokenizer() -> WordPiece:
    """Strips accents, and so decomposes Hangul: composed and decomposed texts have equal tokens."""
    return WordPiece.build([*SPECIALS.tokens(), *(unicodedata.normalize("NFD", word) for word in WORDS)])


def random_model(*heads: Any) -> Model:
    """Weights so large that the outputs of every head differ between texts."""
    shape = bert.Config(layers=3, width=32, heads=4, vocab_size=tokenizer().vocab_size, max_positions=LENGTH)
    model = Model.build(shape, heads)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in model.parameters():
            if value.dim() > 1:
                value.normal_(0, 0.3, generator=draw)
    return model.eval()


def saved_predictor(folder: Path, *heads: Any) -> Predictor:
    """A model with random weights, saved and loaded."""
    save_model(random_model(*heads), tokenizer(), folder)
    found: Predictor = bertsmith.load(folder, device="cpu")
    return found


def reader() -> Predictor:
    """Tags every metal and colour, and answers every question with a metal."""
    known = tokenizer()
    shape = bert.Config(layers=1, width=128, heads=2, vocab_size=known.vocab_size, max_positions=LENGTH)
    model = Model.build(shape, [tag.Config(labels=TAGS), span.Config()], seed=0)
    draw = torch.Generator().manual_seed(0)
    tables, tagger, finder = model.encoder.embeddings, model.objectives["tag"].head, model.objectives["span"].head
    with torch.no_grad():
        for value in model.parameters():
            if value.dim() > 1:
                value.zero_()  # no attention: a token depends on itself only
        tables.tokens.weight.normal_(0, 1, generator=draw)
        for name, words in (("B-COLOUR", COLOURS), ("B-METAL", METALS)):
            seen = sum(tables.tokens.weight[known.token_to_id(unicodedata.normalize("NFD", word))] for word in words)
            tagger.weight[TAGS.index(name)] = seen
        finder.weight[:] = seen
        finder.weight[1] += (
            2 * tables.tokens.weight[known.token_to_id(unicodedata.normalize("NFD", "##에서"))]
        )  # ends there
        tagger.bias[:] = torch.tensor([64.0, 0.0, 0.0, 0.0, 0.0])
    return Predictor(model, known)
