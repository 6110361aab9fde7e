"""ELMo's published folders: options.json and weights.hdf5 (bilm: model.py; allennlp: elmo.py). HDF5 is read by h5py.

Both files are chosen by their contents, because folders have other JSON and HDF5 files beside them, such as vectors.
The matrices of TensorFlow's LSTMCell multiply the input and the state side by side, from the left.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bertsmith.encoders import elmo
from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.model_io.model import Model
from bertsmith.model_io.untrusted_files import UntrustedFile, memory_size, read_json, shown
from bertsmith.nn.character_cnn import TABLE
from bertsmith.nn.meta_device import on_meta_device
from bertsmith.tokenizers.words import Rules, Words

WEIGHTS = ".hdf5"  # end of file names
TABLES = ("lstm", "char_cnn")  # of options.json
GROUPS = frozenset({"char_embed", "CNN", "CNN_proj", "RNN_0", "RNN_1"})  # of the weights, at the root
SIGNATURE = b"\x89HDF\r\n\x1a\n"
MAX_LAYERS = 64  # of each kind
MAX_NAMES = 10_000
MAX_SHOWN = 5  # files in an error


def is_elmo(folder: Path) -> bool:
    """Whether a folder has HDF5 files and a file of ELMo's options, or one that is named like it."""
    names = os.listdir(folder)
    if not any(name.endswith(WEIGHTS) for name in names):
        return False
    return any(name.endswith("options.json") for name in names) or bool(_options(folder)[0])


def read_elmo(folder: Path) -> tuple[Model, list[str]]:
    """The encoder of such a folder, without heads, and notes."""
    name = _only(folder, ".json", _options(folder), "the tables lstm and char_cnn")
    config = read_options(read_json(folder, name), folder / name)
    with on_meta_device():
        encoder = config.build()
    expected = sum(value.numel() for value in encoder.state_dict().values())
    weights = _only(folder, WEIGHTS, _weights(folder), "the weights of a biLM (char_embed, RNN_0, …)")
    with HDF5File(folder, weights) as file:
        if expected * 4 > memory_size():
            raise DataError(f"{folder / name}: a model of {expected:,} weights does not fit into memory")
        state = {**_word_weights(config, file), **_layer_weights(config, file)}
        unread = sorted(file.names() - file.read)
    encoder.load_state_dict(state, assign=True)
    more = f" and {len(unread) - 3} more" if len(unread) > 3 else ""
    return Model(encoder.eval(), []), [f"unused weights: {', '.join(map(shown, unread[:3]))}{more}"] if unread else []


def words_tokenizer() -> Words:
    """A tokenizer without a vocabulary, for texts whose tokens are separated by white space.

    The encoder reads the spelling of every word.
    """
    rules = Rules(lowercase=False, split="whitespace")
    return Words(rules.reserved(), word_rules=rules)


def read_options(options: Mapping[str, Any], path: Path) -> elmo.Config:
    """The settings of an encoder from options.json."""
    lstm, cnn = (_table(options, name, path) for name in ("lstm", "char_cnn"))
    characters = _number(cnn, "n_characters", path, default=TABLE)
    if characters not in (TABLE, TABLE + 1):  # one more with the id of padding words, which the weights do not have
        raise DataError(f"{path}: char_cnn.n_characters={characters} must be {TABLE} or {TABLE + 1}")
    filters = cnn.get("filters")
    if not isinstance(filters, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in filters):
        raise DataError(f"{path}: char_cnn.filters={shown(filters)} must be a list of pairs of numbers")
    pairs = [dict(enumerate(pair)) for pair in filters[:MAX_LAYERS]]
    try:
        return elmo.Config(
            layers=_number(lstm, "n_layers", path, default=1, maximum=MAX_LAYERS),
            width=_number(lstm, "projection_dim", path),
            hidden=_number(lstm, "dim", path),
            filters=tuple((_number(pair, 0, path), _number(pair, 1, path)) for pair in pairs),
            character_width=_number(_table(cnn, "embedding", path), "dim", path),
            max_characters=_number(cnn, "max_characters_per_token", path),
            highway=_number(cnn, "n_highway", path, default=0, maximum=MAX_LAYERS),
            activation=str(cnn.get("activation", "relu")),
            skip_connections=lstm.get("use_skip_connections") is True,
            cell_clip=_number(lstm, "cell_clip", path, default=0, kinds=(int, float)),
            projection_clip=_number(lstm, "proj_clip", path, default=0, kinds=(int, float)),
        )
    except ConfigError as error:
        raise DataError(f"{path}: {error}") from error


def _word_weights(config: elmo.Config, file: HDF5File) -> dict[str, Tensor]:
    """The weights of the character CNN; those of filters are stored as [1, characters, width, filters]."""
    width, size = config.character_width, sum(count for _, count in config.filters)
    state = {"words.embeddings.weight": file.array("char_embed", TABLE, width)}
    for number, (kernel_size, count) in enumerate(config.filters):
        filters = file.array(f"CNN/W_cnn_{number}", 1, kernel_size, width, count)
        state[f"words.filters.{number}.weight"] = filters[0].permute(2, 1, 0).flatten(1)
        state[f"words.filters.{number}.bias"] = file.array(f"CNN/b_cnn_{number}", count)
    for number in range(config.highway):
        names = [f"CNN_high_{number}/{{}}_{part}" for part in ("carry", "transform")]
        gates = [file.array(name.format("W"), size, size) for name in names]
        state[f"words.highway.{number}.gates.weight"] = torch.cat(gates, 1).T.contiguous()
        state[f"words.highway.{number}.gates.bias"] = torch.cat([file.array(name.format("b"), size) for name in names])
    state["words.project.weight"] = file.array("CNN_proj/W_proj", size, config.width).T.contiguous()
    state["words.project.bias"] = file.array("CNN_proj/b_proj", config.width)
    return state


def _layer_weights(config: elmo.Config, file: HDF5File) -> dict[str, Tensor]:
    width, cells = config.width, config.hidden
    state: dict[str, Tensor] = {}
    for number in range(config.layers):
        cell = f"RNN_{{}}/RNN/MultiRNNCell/Cell{number}/LSTMCell/{{}}"
        matrices, biases, projections = (
            torch.stack([file.array(cell.format(direction, name), *shape) for direction in range(2)])
            for name, shape in (("W_0", (2 * width, 4 * cells)), ("B", (4 * cells,)), ("W_P_0", (cells, width)))
        )
        inputs, recurrent = matrices[:, :width], matrices[:, width:]
        parts = {"weight_ih": inputs, "weight_hh": recurrent, "bias": biases, "projection": projections}
        state |= {f"lstms.{number}.{name}": value.contiguous() for name, value in parts.items()}
    return state


class HDF5File:
    """The arrays of an untrusted file by name."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path, self.read = folder / name, set[str]()
        try:
            import h5py
        except ImportError as error:
            raise BertsmithError(f"{self.path} is read with h5py: pip install 'bertsmith[elmo]'") from error
        with UntrustedFile(folder, name) as file:
            if file.read(0, min(len(SIGNATURE), file.size)) != SIGNATURE:
                raise DataError(f"{self.path} is not an HDF5 file: download it again")
        try:
            self._file = h5py.File(self.path, "r")
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {shown(str(error), 100)}; download it again") from error
        self._dataset, self._hard_link = h5py.Dataset, h5py.HardLink

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def names(self) -> set[str]:
        """The arrays of the file, without those behind links to other files."""
        found: set[str] = set()

        def visit(name: str, item: Any) -> bool | None:
            found.update([name] if isinstance(item, self._dataset) else [])
            return True if len(found) >= MAX_NAMES else None

        self._file.visititems(visit)
        return found

    def groups(self) -> set[str]:
        """The names at the root, of arrays, groups and links."""
        return set(self._file.keys())

    def array(self, name: str, *shape: int) -> Tensor:
        """An array of this shape in float32."""
        array = self._find(name)
        if array.shape != shape or array.dtype.kind != "f":
            found = f"{array.dtype} {list(array.shape)}"
            raise DataError(f"{self.path}: {name} is {found}, but its options require floats {list(shape)}")
        self.read.add(name)
        try:
            values = np.asarray(array[...], np.float32)
        except OSError as error:
            raise DataError(f"{self.path}: {name} cannot be read: {shown(str(error), 100)}") from error
        if not np.isfinite(values).all():
            raise DataError(f"{self.path}: {name} has a number that is not finite")
        return torch.from_numpy(values)

    def _find(self, name: str) -> Any:
        """An array whose values are in this file."""
        current = self._file
        for key in name.split("/"):
            link = current.get(key, getlink=True) if hasattr(current, "keys") else None
            if not isinstance(link, self._hard_link):
                raise DataError(
                    f"{self.path} has no array {name}, which its options require: is it from another model?"
                )
            current = current[key]
        if not isinstance(current, self._dataset) or current.is_virtual or current.external:
            raise DataError(f"{self.path}: {name} is not an array of this file")
        return current


Found = tuple[list[str], list[DataError]]  # files by name, and why other files could not be read


def _options(folder: Path) -> Found:
    """The JSON files with ELMo's options; without characters, they have only one of the tables."""
    tables, errors = dict[str, set[str]](), list[DataError]()
    for name in _names(folder, ".json"):
        try:
            tables[name] = set(TABLES).intersection(read_json(folder, name))
        except DataError as error:
            errors.append(error)
    complete = [name for name, found in tables.items() if len(found) == len(TABLES)]
    return complete or [name for name, found in tables.items() if "lstm" in found], errors


def _weights(folder: Path) -> Found:
    """The HDF5 files with groups of ELMo's weights; others have its softmax, or vectors."""
    found, errors = list[str](), list[DataError]()
    for name in _names(folder, WEIGHTS):
        try:
            with HDF5File(folder, name) as file:
                found += [name] if GROUPS & file.groups() else []
        except DataError as error:
            errors.append(error)
    return found, errors


def _names(folder: Path, end: str) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(end))


def _only(folder: Path, end: str, candidates: Found, contents: str) -> str:
    """The only candidate; an error names several, or says why there is none."""
    found, errors = candidates
    if len(found) == 1:
        return found[0]
    if found:
        listed = " and ".join(map(shown, found[:MAX_SHOWN]))
        raise DataError(f"{folder} has {contents} in {listed}: expected one model, so move one to another folder")
    names = _names(folder, end)
    if errors and len(names) == 1:
        raise errors[0]
    reason = f"; {errors[0]}" if errors else ""
    listed = ", ".join(map(shown, names[:MAX_SHOWN])) or "no such file"
    raise DataError(f"{folder} has no file *{end} with {contents}, found {listed}{reason}")


def _table(values: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    table = values.get(name)
    if not isinstance(table, dict):
        hint = ": a model of word ids has no character CNN" if name == "char_cnn" else ""
        raise DataError(f"{path}: {name}={shown(table)} must be a table of settings{hint}")
    return table


def _number(
    values: Mapping[Any, Any],
    name: str | int,
    path: Path,
    *,
    default: int | None = None,
    maximum: int = 1 << 20,
    kinds: tuple[type[int | float], ...] = (int,),
) -> Any:
    value = values.get(name, default)
    value = default if value is None else value
    if not isinstance(value, kinds) or isinstance(value, bool) or not 0 <= value <= maximum:
        raise DataError(f"{path}: {name}={shown(value)} must be a number from 0 to {maximum:,}")
    return value
