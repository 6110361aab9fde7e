"""ELMo in NumPy, written from the description of its code (bilm: training.py, model.py, data.py), and files of weights.

It shares nothing with the package: words are read character by character, and every sentence step by step.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
Weights = dict[str, Array]
# Tokens of newspaper text as in the Penn Treebank, some with punctuation inside.
TEXT = """The U.S. officials said Ms. Haag , who plays Elianti in `` The Don 't , '' did n't pay $ 3.5% -- Corp. 's
share rose 1,000.50 ( state-of-the-art ) ... München 's café No. 5-a/b A.G.'s 10:30 p.m. ; ? -LRB- & e-mail @ 7.5%-8%"""
TOKENS = TEXT.split()


def options(*, skip: bool = True, activation: str = "relu", highway: int = 2) -> dict[str, Any]:
    """A small model."""
    return {
        "lstm": {
            "use_skip_connections": skip,
            "projection_dim": 6,
            "cell_clip": 0.7,
            "proj_clip": 0.4,
            "dim": 10,
            "n_layers": 2,
        },
        "char_cnn": {
            "activation": activation,
            "filters": [[1, 3], [2, 4], [3, 5]],
            "n_highway": highway,
            "embedding": {"dim": 4},
            "n_characters": 262,
            "max_characters_per_token": 50,
        },
    }


def random_weights(settings: dict[str, Any], seed: int = 0) -> Weights:
    """Weights so large that cells and projections are clipped."""
    random = np.random.default_rng(seed)
    lstm, cnn = settings["lstm"], settings["char_cnn"]
    width, cells, size = lstm["projection_dim"], lstm["dim"], sum(count for _, count in cnn["filters"])
    shapes: dict[str, tuple[int, ...]] = {"char_embed": (261, cnn["embedding"]["dim"])}
    for number, (reach, count) in enumerate(cnn["filters"]):
        shapes[f"CNN/W_cnn_{number}"] = (1, reach, cnn["embedding"]["dim"], count)
        shapes[f"CNN/b_cnn_{number}"] = (count,)
    for number in range(cnn["n_highway"]):
        for part in ("carry", "transform"):
            shapes[f"CNN_high_{number}/W_{part}"] = (size, size)
            shapes[f"CNN_high_{number}/b_{part}"] = (size,)
    shapes |= {"CNN_proj/W_proj": (size, width), "CNN_proj/b_proj": (width,)}
    for direction in range(2):
        for layer in range(lstm["n_layers"]):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/"
            shapes |= {
                f"{cell}W_0": (2 * width, 4 * cells),
                f"{cell}B": (4 * cells,),
                f"{cell}W_P_0": (cells, width),
            }
    return {name: random.normal(0, 0.6, shape).astype(np.float32) for name, shape in shapes.items()}


def write_folder(folder: Path, settings: dict[str, Any], weights: Weights) -> Path:
    """options.json and weights.hdf5."""
    import h5py

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tiny_options.json").write_text(json.dumps(settings))
    with h5py.File(folder / "tiny_weights.hdf5", "w") as file:
        for name, value in weights.items():
            file.create_dataset(name, data=value)
    return folder


def write_fixture(folder: Path, settings: dict[str, Any], weights: Weights, batches: int = 10) -> Path:
    """A folder laid out as that of the original's tests: model, sentences, expected outputs and files of other models.

    `sentences.json` has a list of sentences for each row of a batch, `lm_embeddings_{row}.hdf5` the top layer
    [directions, tokens, P] of each of them, computed in batches of three rows with carried state.
    """
    import h5py

    folder.mkdir(parents=True)
    random, reference = np.random.default_rng(1), Reference(settings, weights)
    columns = [
        [[str(one) for one in random.choice(TOKENS, random.integers(3, 16))] for _ in range(batches)] for _ in range(3)
    ]
    (folder / "options.json").write_text(json.dumps(settings))
    (folder / "sentences.json").write_text(json.dumps([[" ".join(one) for one in column] for column in columns]))
    (folder / "vocab_test.txt").write_text(
        "\n".join(["<S>", "</S>", "<UNK>", *dict.fromkeys(TOKENS)]), encoding="utf-8"
    )
    expected = [reference.batch(list(batch)) for batch in zip(*columns, strict=True)]
    files: dict[str, Weights] = {
        "lm_weights": weights,
        "elmo_token_embeddings": {"embedding": np.ones((4, settings["lstm"]["projection_dim"]), np.float32)},
        "elmo_softmax_weights": {"softmax/W": np.ones((4, 6), np.float32), "softmax/b": np.ones(4, np.float32)},
    }
    for row in range(3):
        tops = {str(number): batch[row][-1, 1:-1] for number, batch in enumerate(expected)}
        files[f"lm_embeddings_{row}"] = {
            name: np.stack(np.split(top, 2, axis=-1)).astype(np.float32) for name, top in tops.items()
        }
    for name, arrays in files.items():
        with h5py.File(folder / f"{name}.hdf5", "w") as file:
            for path, value in arrays.items():
                file.create_dataset(path, data=value)
    return folder


class Reference:
    """The published computation, with the state of each direction and layer carried from batch to batch."""

    def __init__(self, settings: dict[str, Any], weights: Weights, dtype: Any = np.float64) -> None:
        self.lstm, self.cnn = settings["lstm"], settings["char_cnn"]
        self.weights = {name: value.astype(dtype) for name, value in weights.items()}
        self.dtype = dtype
        self.state: dict[tuple[int, int, int], tuple[Array, Array]] = {}  # by row, direction, layer

    def characters(self, word: str) -> list[int]:
        """The ids of a word: its first 48 bytes between marks, and padding; <S> and </S> have ids of their own."""
        inner = {"<S>": [256], "</S>": [257]}.get(word) or list(word.encode("utf-8"))[:48]
        ids = [258, *inner, 259]
        return ids + [260] * (50 - len(ids))

    def word(self, word: str) -> Array:
        """The vector of a word."""
        x = self.weights["char_embed"][self.characters(word)]
        found = []
        for number, (reach, _) in enumerate(self.cnn["filters"]):
            kernel = self.weights[f"CNN/W_cnn_{number}"][0]
            over_time = [np.einsum("ke,kef->f", x[at : at + reach], kernel) for at in range(50 - reach + 1)]
            largest = np.max(over_time, axis=0) + self.weights[f"CNN/b_cnn_{number}"]
            found.append(np.maximum(largest, 0) if self.cnn["activation"] == "relu" else np.tanh(largest))
        y = np.concatenate(found)
        for number in range(self.cnn["n_highway"]):
            high = {
                part: y @ self.weights[f"CNN_high_{number}/W_{part}"] + self.weights[f"CNN_high_{number}/b_{part}"]
                for part in ("carry", "transform")
            }
            carry = sigmoid(high["carry"])
            y = carry * np.maximum(high["transform"], 0) + (1 - carry) * y
        return y @ self.weights["CNN_proj/W_proj"] + self.weights["CNN_proj/b_proj"]

    def batch(self, sentences: list[list[str]]) -> list[Array]:
        """The outputs of all layers [layers + 1, tokens + 2, 2 P] of each sentence; the state is updated."""
        results = []
        for row, sentence in enumerate(sentences):
            x = np.stack([self.word(word) for word in ["<S>", *sentence, "</S>"]])
            forward = self.direction(row, 0, x)
            backward = [layer[::-1] for layer in self.direction(row, 1, x[::-1])]
            pairs = [(x, x), *zip(forward, backward, strict=True)]
            results.append(np.stack([np.concatenate(pair, -1) for pair in pairs]))
        return results

    def direction(self, row: int, direction: int, x: Array) -> list[Array]:
        """The output of each layer of one direction, in the order of reading."""
        outputs = []
        for layer in range(self.lstm["n_layers"]):
            name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/"
            start = np.zeros(self.lstm["dim"], self.dtype), np.zeros(self.lstm["projection_dim"], self.dtype)
            cell, hidden = self.state.get((row, direction, layer), start)
            read = []
            for token in x:
                sums = np.concatenate([token, hidden]) @ self.weights[name + "W_0"] + self.weights[name + "B"]
                i, j, f, o = np.split(sums, 4)
                cell = sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(j)
                cell = np.clip(cell, -self.lstm["cell_clip"], self.lstm["cell_clip"])
                hidden = (sigmoid(o) * np.tanh(cell)) @ self.weights[name + "W_P_0"]
                hidden = np.clip(hidden, -self.lstm["proj_clip"], self.lstm["proj_clip"])
                read.append(hidden)
            self.state[row, direction, layer] = cell, hidden
            output = np.stack(read)
            x = output + x if layer and self.lstm["use_skip_connections"] else output
            outputs.append(x)
        return outputs


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x)."""
    return 1 / (1 + np.exp(-x))
