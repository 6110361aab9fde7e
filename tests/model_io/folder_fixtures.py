"""What tests of model folders share: a small tokenizer with Hangul, small models, folders, hand-made safetensors."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from model_fixtures import randomize_weights, small_bert_config
from safetensors.torch import load_file, save_file

from bertsmith.errors import BertsmithError
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import save_model
from bertsmith.objectives import causal_lm, choose, classify, masked_lm, next_sentence, regress, span, tag
from bertsmith.tokenizers.wordpiece import SPECIALS, WordPiece

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "##s",
    "##ing",
    "서울",
    "##은",
    "한국",
    "##의",
    "수도",
    "##이다",
    ",",
    ".",
    "!",
    "café",
]
TEXTS = ["The cats sat on a mat.", "서울은 한국의 수도이다!", "the unknown, café 서울", ""]
TABLE = "bert.embeddings.word_embeddings.weight"
Tensors = dict[str, torch.Tensor]
OBJECTIVES: dict[str, Any] = {
    "masked_lm": masked_lm.Config,
    "next_sentence": next_sentence.Config,
    "causal_lm": causal_lm.Config,
    "classify": classify.Config,
    "regress": regress.Config,
    "tag": tag.Config,
    "span": span.Config,
    "choose": choose.Config,
}


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """A folder for thousands of small files, in the place that conftest.py chooses."""
    with tempfile.TemporaryDirectory(prefix="bertsmith-folders-") as name:
        yield Path(name)


def tokenizer() -> WordPiece:
    """Lower-cased, accents kept, Hangul whole."""
    return WordPiece.build([*SPECIALS.tokens(), *WORDS], strip_accents=False)


def model(*objectives: Any, seed: int = 0, **changes: Any) -> Model:
    """A small BERT with large weights and these heads, by name or with settings."""
    small = {"layers": 2, "vocab_size": tokenizer().vocab_size} | changes
    heads = [OBJECTIVES[head]() if isinstance(head, str) else head for head in objectives]
    return randomize_weights(Model.build(small_bert_config(**small), heads), seed).eval()


def folder(path: Path, *objectives: Any, **changes: Any) -> Path:
    """A model folder of ours."""
    save_model(model(*(objectives or ("masked_lm", "next_sentence")), **changes), tokenizer(), path)
    return path


def foreign(path: Path, *objectives: Any, **changes: Any) -> Path:
    """The same without checksums, to be changed by tests as a folder of another library."""
    folder(path, *objectives, **changes)
    (path / "checksums.json").unlink()
    return path


def change_config(path: Path, **changes: Any) -> None:
    """Sets settings in config.json; those set to `...` are removed."""
    settings = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps({key: value for key, value in settings.items() if value is not ...}))


def change_weights(path: Path, change: Callable[[Tensors], Any]) -> None:
    """Applies `change` to the tensors of model.safetensors."""
    tensors = load_file(path / "model.safetensors")
    changed = change(tensors)
    save_file(changed if isinstance(changed, dict) else tensors, path / "model.safetensors", metadata={"format": "pt"})


def raw(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A hand-made safetensors file; `header` is JSON, or raw bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def same_weights(first: torch.nn.Module, second: torch.nn.Module) -> None:
    """Fails unless both hold the same numbers under the same names."""
    ours, theirs = first.state_dict(), second.state_dict()
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


def one_line(found: pytest.ExceptionInfo[BertsmithError], *words: Iterable[str]) -> str:
    """The message of an error, which must be one readable line that contains these words."""
    text = str(found.value)
    assert text.isprintable(), text
    assert len(text) < 600, text
    for word in words:
        assert word in text, text
    return text
