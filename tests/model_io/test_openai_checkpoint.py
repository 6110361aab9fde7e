"""Import of GPT-1's released files: small ones, made here in their layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_io.folder_fixtures import one_line

from bertsmith.errors import DataError
from bertsmith.model_io.importers import import_folder
from bertsmith.model_io.model_folder import open_model
from bertsmith.tokenizers.bpe import LAST

WIDTH, POSITIONS, LAYERS, FILES = 64, 12, 2, 10
TOKENS = ["<unk>", *(letter + end for end in ("", "</w>") for letter in "abcdefgh"), "ab</w>"]


def layer_shapes() -> list[list[int]]:
    matrices = ([1, 64, 192], [1, 64, 64], [64], [1, 64, 256], [1, 256, 64], [64])
    return [shape for matrix in matrices for shape in (matrix, matrix[-1:])]


@pytest.fixture
def released(tmp_path: Path) -> tuple[Path, list[Any]]:
    """A folder with the released files, and the weights in their order."""
    source = tmp_path / "model"
    source.mkdir()
    shapes = [[POSITIONS, WIDTH], [len(TOKENS), WIDTH], *LAYERS * layer_shapes()]
    random = np.random.default_rng(0)
    weights = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    flat = np.concatenate([weight.ravel() for weight in weights])
    for number, part in enumerate(np.array_split(flat, FILES)):
        np.save(source / f"params_{number}.npy", part)
    (source / "params_shapes.json").write_text(json.dumps(shapes))
    (source / "encoder_bpe_40000.json").write_text(json.dumps({token: number for number, token in enumerate(TOKENS)}))
    (source / "vocab_40000.bpe").write_text("#version: 0.2\na b</w>\n")
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "OpenAIGPTTokenizer", "splitter": "pattern"}')
    return source, weights


def test_the_released_files_become_a_transformers_folder(released: tuple[Path, list[Any]], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    source, weights = released
    facts = import_folder(source, tmp_path / "m")
    assert facts.architectures == ("OpenAIGPTLMHeadModel",)
    assert any(", ".join(LAST) in note for note in facts.notes), "the rows of special tokens are new"
    reference = transformers.OpenAIGPTLMHeadModel.from_pretrained(tmp_path / "m").eval()
    block = reference.transformer.h[1]
    for actual, expected in (
        (reference.transformer.positions_embed.weight, weights[0]),
        (reference.transformer.tokens_embed.weight[: len(TOKENS)], weights[1]),
        (block.attn.c_attn.weight, weights[14][0]),
        (block.ln_1.weight, weights[18]),
        (block.mlp.c_proj.weight, weights[22][0]),
        (block.ln_2.bias, weights[25]),
    ):
        assert torch.equal(actual, torch.from_numpy(expected))
    model, tokenizer, _ = open_model(tmp_path / "m")
    assert model.encoder.config.heads == 1
    assert tokenizer.encode("ab cab").ids.tolist() == [TOKENS.index(token) for token in ("ab</w>", "c", "ab</w>")]
    assert tokenizer.vocab_size == len(TOKENS) + len(LAST)


def without(name: str) -> Any:
    return lambda source: (source / name).unlink()


def reshaped(change: Any) -> Any:
    def write(source: Path) -> None:
        shapes = json.loads((source / "params_shapes.json").read_text())
        (source / "params_shapes.json").write_text(json.dumps(change(shapes)))

    return write


def damaged(source: Path) -> None:
    path = source / "params_3.npy"
    path.write_bytes(path.read_bytes()[:50])


WRONG = {
    "a missing file": (without("params_3.npy"), "has no params_3.npy"),
    "the last file is missing": (
        without("params_9.npy"),
        "9 files params_\\*.npy hold .* but params_shapes.json requires",
    ),
    "no shapes": (without("params_shapes.json"), "params_shapes.json"),
    "no vocabulary": (without("encoder_bpe_40000.json"), "encoder_bpe_40000.json"),
    "no merges": (without("vocab_40000.bpe"), "vocab_40000.bpe"),
    "a truncated file": (damaged, "params_3.npy is damaged or not a NumPy file"),
    "float64": (
        lambda source: np.save(source / "params_0.npy", np.zeros(5)),
        "params_0.npy holds float64 of shape \\[5\\]: expected a vector of float32",
    ),
    "not shapes": (reshaped(lambda shapes: {"a": 1}), "must be a list of shapes"),
    "too few shapes": (reshaped(lambda shapes: shapes[:-1]), "has 25 shapes"),
    "another order": (
        reshaped(lambda shapes: [*shapes[:2], shapes[3], shapes[2], *shapes[4:]]),
        "shape 2 is \\[192\\]",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files_are_one_clear_line(case: str, released: tuple[Path, list[Any]], tmp_path: Path) -> None:
    source, _ = released
    change, message = WRONG[case]
    change(source)
    with pytest.raises(DataError, match=message) as error:
        import_folder(source, tmp_path / "m")
    one_line(error, str(source))
    assert not (tmp_path / "m").exists()
