"""GPT-1 as OpenAI released it: one flat vector of weights in params_*.npy, and its shapes in params_shapes.json.

The order is: position embeddings, token embeddings, then for each layer attention, norm, feed-forward and norm, each
weight before its bias (gpt1: train.py).
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.errors import DataError
from bertsmith.model_io.safetensors_files import Entry
from bertsmith.model_io.untrusted_files import MEBIBYTE, Closing, ConfigReader, UntrustedFile, parse_object, shown

SHAPES, PARAMETERS = "params_shapes.json", re.compile(r"params_(\d+)\.npy")
VOCABULARY, MERGES = "encoder_bpe_40000.json", "vocab_40000.bpe"
EMBEDDINGS = ("positions_embed.weight", "tokens_embed.weight")
LAYER = ("attn.c_attn", "attn.c_proj", "ln_1", "mlp.c_fc", "mlp.c_proj", "ln_2")
HEAD_WIDTH = 64  # the files do not show the number of heads
BYTES = 4  # of a float32


class OpenAICheckpoint(Closing):
    """The weights under transformers' names, whose matrices have the same layout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shapes = _read_shapes(folder)
        sizes = [math.prod(shape) for shape in shapes]
        self.pieces = list(_read_parameters(folder))
        wanted, found = sum(sizes), sum(map(len, self.pieces))
        if wanted != found:
            files = f"the {len(self.pieces)} files params_*.npy hold {found:,} numbers"
            raise DataError(f"{folder}: {files}, but {SHAPES} requires {wanted:,}: download the missing files again")
        begins = np.cumsum([0, *sizes]).tolist()
        names = [*EMBEDDINGS, *_layer_names((len(shapes) - len(EMBEDDINGS)) // (2 * len(LAYER)))]
        self.entries = {
            f"transformer.{name}": Entry("F32", _without_ones(shape), BYTES * begin, BYTES * end)
            for name, shape, begin, end in zip(names, shapes, begins[:-1], begins[1:], strict=True)
        }

    def config(self) -> ConfigReader:
        """The config.json that transformers would write."""
        (positions, width), (vocab_size, _) = (self.entries[f"transformer.{name}"].shape for name in EMBEDDINGS)
        if width % HEAD_WIDTH:
            raise DataError(f"{self.folder / SHAPES}: the width {width} is not a multiple of {HEAD_WIDTH}")
        values: dict[str, Any] = {
            "architectures": ["OpenAIGPTLMHeadModel"],
            "model_type": "openai-gpt",
            "vocab_size": vocab_size,
            "n_positions": positions,
            "n_embd": width,
            "n_head": width // HEAD_WIDTH,
            "n_layer": (len(self.entries) - len(EMBEDDINGS)) // (2 * len(LAYER)),
        }
        return ConfigReader(values, self.folder / SHAPES)

    def path(self, name: str) -> Path:
        """The file that describes a weight."""
        return self.folder / SHAPES

    def fill(self, name: str, target: torch.Tensor) -> None:
        """Reads a weight, which may be in several files, into a tensor of its shape."""
        entry = self.entries[name]
        begin, end = entry.begin // BYTES, entry.end // BYTES
        start, parts = 0, []
        for piece in self.pieces:
            parts.append(piece[max(0, begin - start) : max(0, end - start)])
            start += len(piece)
        target.copy_(torch.from_numpy(np.concatenate(parts)).view(entry.shape))

    def equal(self, first: str, second: str) -> bool:
        """No weight is stored twice."""
        return False

    def close(self) -> None:
        self.pieces.clear()


def is_openai_checkpoint(folder: Path) -> bool:
    """Whether the folder has one of the files."""
    names = os.listdir(folder)
    return SHAPES in names or any(map(PARAMETERS.fullmatch, names))


def _read_shapes(folder: Path) -> list[tuple[int, ...]]:
    path = folder / SHAPES
    with UntrustedFile(folder, SHAPES, max_bytes=MEBIBYTE) as file:
        data = file.read(0, file.size)
    shapes = parse_object(b'{"shapes":' + data + b"}", path)["shapes"]
    if not isinstance(shapes, list) or not all(map(_is_shape, shapes)):
        raise DataError(f"{path} must be a list of shapes such as [[512, 768], [40478, 768]], not {shown(shapes)}")
    layers, rest = divmod(len(shapes) - len(EMBEDDINGS), 2 * len(LAYER))
    if layers < 1 or rest or len(shapes[0]) != 2:
        expected = f"{len(EMBEDDINGS)} embeddings and {2 * len(LAYER)} weights of each layer"
        raise DataError(f"{path} has {len(shapes)} shapes: expected those of {expected}")
    (_, width), vocab_size = shapes[0], shapes[1][0]
    outputs = (3 * width, width, width, 4 * width, width, width)
    inputs = (width, width, None, width, 4 * width, None)
    layer = [
        shape
        for rows, columns in zip(inputs, outputs, strict=True)
        for shape in ((columns,) if rows is None else (rows, columns), (columns,))
    ]
    wanted = [(shapes[0][0], width), (vocab_size, width), *layers * layer]
    for number, (shape, expected_shape) in enumerate(zip(shapes, wanted, strict=True)):
        if _without_ones(shape) != expected_shape:
            raise DataError(f"{path}: shape {number} is {shape}, expected {list(expected_shape)} in a GPT-1 checkpoint")
    return [tuple(shape) for shape in shapes]


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, list) and len(shape) > 0 and all(type(size) is int and 0 < size < 1 << 31 for size in shape)
    )


def _without_ones(shape: Any) -> tuple[int, ...]:
    """OpenAI's matrices are convolutions of width 1."""
    return tuple(shape[1:]) if len(shape) == 3 and shape[0] == 1 else tuple(shape)


def _layer_names(layers: int) -> Iterator[str]:
    for layer in range(layers):
        for module in LAYER:
            yield from (f"h.{layer}.{module}.weight", f"h.{layer}.{module}.bias")


def _read_parameters(folder: Path) -> Iterator[NDArray[np.float32]]:
    """The vectors of params_0.npy, params_1.npy, ..., without a gap, mapped into memory."""
    numbers = sorted(int(match[1]) for name in os.listdir(folder) if (match := PARAMETERS.fullmatch(name)))
    if numbers != list(range(len(numbers))) or not numbers:
        missing = next(number for number in range(len(numbers) + 1) if number not in numbers)
        raise DataError(f"{folder} has no params_{missing}.npy: expected params_0.npy to params_9.npy")
    for number in numbers:
        path = folder / f"params_{number}.npy"
        UntrustedFile(folder, path.name).close()
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise DataError(f"{path} is damaged or not a NumPy file: {shown(str(error), 150)}") from error
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype != np.float32:
            found = f"{array.dtype} of shape {list(array.shape)}" if isinstance(array, np.ndarray) else "an archive"
            raise DataError(f"{path} holds {found}: expected a vector of float32")
        yield array


def tokenizer_files(folder: Path) -> dict[str, bytes]:
    """The released tokenizer under the names of transformers; a tokenizer_config.json in the folder stays in force."""
    files = {"tokenizer_config.json": json.dumps({"tokenizer_class": "OpenAIGPTTokenizer"}).encode()}
    for name, source in (("vocab.json", VOCABULARY), ("merges.txt", MERGES), ("tokenizer_config.json", None)):
        if source is None and not (folder / name).is_file():
            continue
        with UntrustedFile(folder, source or name, max_bytes=64 * MEBIBYTE) as file:
            files[name] = file.read(0, file.size)
    return files
