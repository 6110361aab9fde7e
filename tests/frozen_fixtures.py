"""Fixtures for features of frozen encoders: folders of word vectors, of language models and of a small BERT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_fixtures import randomize_weights

from bertsmith.encoders import awd_lstm, bert, word_vectors
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import save_model
from bertsmith.tokenizers import training, wordpiece
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.tokenizers.words import Rules, Words

RULES = Rules()
WORDS = Words([*RULES.reserved(), "anna", "lives", "in", "paris", "the", "play", "."], word_rules=RULES)
TEXT = "Anna lives in Paris"
SENTENCES = [TEXT, "the play of Dora began .", "Dora Smith lives in Oslo .", "the Rome of Anna"]


def pieces() -> Tokenizer:
    """A vocabulary in which most words have several pieces."""
    settings = wordpiece.Config(min_count=1)
    return settings.train(training.count_words(SENTENCES, settings.word_splitter()), vocab_size=130)


def saved(folder: Path, config: Any, tokenizer: Tokenizer) -> Path:
    save_model(randomize_weights(Model.build(config, [])), tokenizer, folder)
    return folder


def word_folder(folder: Path, **settings: Any) -> Path:
    """Word vectors of width 6."""
    config = word_vectors.Config(vocab_size=WORDS.vocab_size, width=6, **settings)
    return saved(folder, config, WORDS)


def lm_folder(folder: Path, *, backward: bool = False) -> Path:
    """An AWD-LSTM over pieces, of width 8."""
    tokenizer = pieces()
    sizes = {"layers": 2, "width": 8, "hidden": 8, "vocab_size": tokenizer.vocab_size}
    return saved(folder, awd_lstm.Config(**sizes, backward=backward), tokenizer)


def bert_folder(folder: Path, **settings: Any) -> Path:
    """A BERT over pieces, of width 8."""
    tokenizer = pieces()
    sizes = {"layers": 2, "width": 8, "heads": 2, "feed_forward": 16, "vocab_size": tokenizer.vocab_size}
    return saved(folder, bert.Config(**{**sizes, "max_positions": 64, "pooler": False, **settings}), tokenizer)


def conll_file(path: Path, repeats: int = 8) -> Path:
    """Sentences with a part of speech and an entity tag for each word; names are capitalised."""
    places = {"Paris", "Oslo", "Rome"}
    lines = []
    for sentence in SENTENCES * repeats:
        for word in sentence.split():
            tag = "B-LOC" if word in places else "B-PER" if word[0].isupper() else "O"
            lines.append(f"{word} {'NNP' if word[0].isupper() else 'NN'} {tag}\n")
        lines.append("\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path
