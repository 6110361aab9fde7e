"""Hostile model folders (F7): each case modifies a valid folder.

A case gets the folder and a path outside it that must not change; most contain code that would write a file there.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from model_io.folder_fixtures import TABLE, change_config, change_weights, raw
from model_io.google_values import FOLDER as GOOGLE
from model_io.malformed_headers import WRONG

from bertsmith.model_io.tensorflow_checkpoint import MAGIC
from bertsmith.system.durable import checksummed_json

Case = Callable[[Path, Path], Any]
CASES: dict[str, Case] = {}
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
JSON_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


class Runs:
    """When unpickled, writes a file outside the folder."""

    def __init__(self, outside: Path) -> None:
        self.outside = outside

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.outside}/canary",)


def write(name: str, make: Callable[[Path], bytes]) -> Case:
    """A case with other bytes in one file."""

    def case(folder: Path, outside: Path) -> None:
        (folder / name).write_bytes(make(outside))

    return case


def pickled(outside: Path) -> bytes:
    return pickle.dumps(Runs(outside))


def torch_saved(outside: Path) -> bytes:
    file = io.BytesIO()
    torch.save({TABLE: torch.ones(2), "evil": Runs(outside)}, file)
    return file.getvalue()


def zip_bomb(outside: Path) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("archive/data.pkl", bytes(50 << 20))
    return file.getvalue()


for name in (WEIGHTS, *JSON_FILES, "checksums.json"):
    CASES[f"pickle as {name}"] = write(name, pickled)
CASES["torch file as weights"] = write(WEIGHTS, torch_saved)
CASES["zip bomb as weights"] = write(WEIGHTS, zip_bomb)
CASES["pickle as header"] = write(WEIGHTS, lambda outside: raw(pickled(outside)))
for case, (data, _) in WRONG.items():
    CASES[f"header: {case}"] = write(WEIGHTS, lambda _, data=data: data)


def header(change: Callable[[dict[str, Any]], Any], *, more: bytes = b"") -> Case:
    """A case with a changed header of the real weights."""

    def case(folder: Path, outside: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        length = int.from_bytes(data[:8], "little")
        found = json.loads(data[8 : 8 + length])
        change(found)
        (folder / WEIGHTS).write_bytes(raw(found, more + data[8 + length :]))

    return case


def entry(found: dict[str, Any], name: str) -> dict[str, Any]:
    one: dict[str, Any] = found[name]
    return one


QUERY = "bert.encoder.layer.0.attention.self.query.weight"
KEY = "bert.encoder.layer.0.attention.self.key.weight"


def _moved(found: dict[str, Any], by: int) -> None:
    for name, one in found.items():
        if name != "__metadata__":
            one["data_offsets"] = [outside + by for outside in one["data_offsets"]]


CASES["two weights in one place"] = header(
    lambda found: entry(found, QUERY).update(data_offsets=entry(found, KEY)["data_offsets"])
)
CASES["a gap before all"] = header(lambda found: _moved(found, 64), more=bytes(64))
CASES["all before the begin"] = header(lambda found: _moved(found, -64))
CASES["other type of the same size"] = header(lambda found: entry(found, QUERY).update(dtype="I32"))
CASES["other shape of the same size"] = header(lambda found: entry(found, QUERY).update(shape=[1024]))
CASES["empty table"] = header(lambda found: entry(found, TABLE).update(shape=[0, 1 << 40], data_offsets=[0, 0]))
CASES["two spellings"] = header(lambda found: found.update({KEY.removeprefix("bert."): entry(found, QUERY)}))


def many_tensors(count: int) -> Case:
    """A case with `count` tensors."""
    one = '"%07d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    return write(WEIGHTS, lambda _: raw(("{" + ",".join(one % number for number in range(count)) + "}").encode()))


CASES["a million tensors"] = many_tensors(1_000_000)
CASES["200,000 tensors"] = many_tensors(200_000)
CASES["30,000 tensors"] = many_tensors(30_000)


def huge_layer_numbers(folder: Path, outside: Path) -> None:
    """A few tensors with large layer numbers, so that a builder that trusts names creates thousands of layers."""
    change_weights(
        folder, lambda tensors: tensors.update({f"bert.encoder.layer.{n}.odd": torch.ones(1) for n in range(2, 9000)})
    )
    change_config(folder, num_hidden_layers=9000)


def larger_than_memory(folder: Path, outside: Path) -> None:
    """A sparse file of 4 TiB for an embedding table of the size in config.json."""
    change_config(folder, vocab_size=1 << 30, hidden_size=1024)
    size = (1 << 30) * 1024 * 4
    text = raw({TABLE: {"dtype": "F32", "shape": [1 << 30, 1024], "data_offsets": [0, size]}})
    with open(folder / WEIGHTS, "wb") as file:
        file.write(text)
        file.truncate(len(text) + size)


CASES["layers of nothing"] = huge_layer_numbers
CASES["larger than memory"] = larger_than_memory


SIZES = ("hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size", "max_position_embeddings")
for key in (*SIZES, "num_attention_heads", "type_vocab_size"):
    CASES[f"{key} of 10**9"] = lambda folder, _, key=key: change_config(folder, **{key: 10**9})
for key, value in {
    "hidden_size": -32,
    "num_hidden_layers": 2.5,
    "vocab_size": "9" * 5000,
    "num_attention_heads": True,
}.items():
    CASES[f"strange {key}"] = lambda folder, _, key=key, value=value: change_config(folder, **{key: value})
CASES["10**4000"] = lambda folder, _: change_config(folder, hidden_size=10**4000)
CASES["infinite dropout"] = write("config.json", lambda _: b'{"model_type": "bert", "hidden_dropout_prob": Infinity}')


def own_code(folder: Path, outside: Path) -> None:
    """A model with its own Python code."""
    (folder / "modeling_evil.py").write_text(f"open({str(outside / 'canary')!r}, 'w')\nclass Evil: pass\n")
    change_config(folder, model_type="evil", auto_map={"AutoModel": "modeling_evil.Evil"}, architectures=["Evil"])


CASES["own code"] = own_code
TEXTS: dict[str, bytes] = {
    "empty": b"",
    "a list": b"[]",
    "a number": b"1e999",
    "null": b"null",
    "deep": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "deep list": b"[" * 1_000_000,
    "a key twice": b'{"model_type": "bert", "model_type": "bert"}',
    "NaN": b'{"hidden_size": NaN}',
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "bytes of zero": bytes(1000),
    "large": b'{"a": "' + b"x" * (65 << 20) + b'"}',
    "wide": b'{"a": [' + b"{}," * 4_100_000 + b"{}]}",
}
for file in ("config.json", "tokenizer.json"):
    for case, data in TEXTS.items():
        CASES[f"{file}: {case}"] = write(file, lambda _, data=data: data)


def exchanged(name: str, make: Callable[[Path, Path], Any]) -> Case:
    """A case in which a file is replaced by something else."""

    def case(folder: Path, outside: Path) -> None:
        shutil.copyfile(folder / name, outside / name) if (folder / name).exists() else None
        (folder / name).unlink(missing_ok=True)
        make(folder / name, outside / name)

    return case


for name in ("config.json", WEIGHTS, "tokenizer.json", "vocab.txt", "checksums.json"):
    CASES[f"folder as {name}"] = exchanged(name, lambda path, _: path.mkdir())
    CASES[f"pipe as {name}"] = exchanged(name, lambda path, _: os.mkfifo(path))
    CASES[f"link from {name} to nowhere"] = exchanged(name, lambda path, _: path.symlink_to("nowhere"))
    CASES[f"link from {name} to itself"] = exchanged(name, lambda path, _: path.symlink_to(path.name))
    CASES[f"link from {name} to a device"] = exchanged(name, lambda path, _: path.symlink_to("/dev/zero"))
for name in ("config.json", WEIGHTS, "tokenizer.json", "vocab.txt"):
    CASES[f"link from {name} out of the folder"] = exchanged(name, lambda path, there: path.symlink_to(there))


def index(weight_map: Any) -> Case:
    """A case with this index, whose weights are outside the folder."""

    def case(folder: Path, outside: Path) -> None:
        shutil.move(folder / WEIGHTS, outside / WEIGHTS)
        (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))

    return case


for target in (
    "../outside/model.safetensors",
    "/etc/passwd.safetensors",
    "sub/x.safetensors",
    "..",
    "",
    "x\0.safetensors",
    "x\n.safetensors",
):
    CASES[f"index to {target!r}"] = index({TABLE: target})
CASES["index to a pickle"] = index({TABLE: "pytorch_model.bin"})
CASES["index to nothing"] = index({})
CASES["index that is a list"] = index([TABLE])
CASES["index to 5,000 files"] = index({str(number): f"{number}.safetensors" for number in range(5000)})
CASES["index to itself"] = index({TABLE: INDEX})


def vocabulary(ids: Any) -> Case:
    """A case with a tokenizer.json with these ids."""

    def case(folder: Path, outside: Path) -> None:
        found = json.loads((folder / "tokenizer.json").read_text())
        found["model"]["vocab"] = ids
        (folder / "tokenizer.json").write_text(json.dumps(found))

    return case


CASES["ids with gaps"] = vocabulary({"[PAD]": 0, "[UNK]": 10**12})
CASES["negative ids"] = vocabulary({"[PAD]": -1, "[UNK]": 0})
CASES["ids that are words"] = vocabulary({"[PAD]": "0"})
CASES["vocabulary that is a list"] = vocabulary(["[PAD]"])
CASES["vocabulary without special tokens"] = vocabulary({"a": 0, "b": 1})
# special_tokens_map.json takes precedence over tokenizer_config.json, as in transformers
MAP = "special_tokens_map.json"
CASES["a mask token that is not in the vocabulary"] = write(MAP, lambda _: b'{"mask_token": "[NOWHERE]"}')
CASES["special tokens that are lists"] = write(MAP, lambda _: b'{"mask_token": ["[MASK]"]}')


def vocabulary_only(make: Callable[[Path], bytes]) -> Case:
    """A case with a tokenizer that is only a vocab.txt."""

    def case(folder: Path, outside: Path) -> None:
        for name in JSON_FILES[1:]:
            (folder / name).unlink()
        (folder / "vocab.txt").write_bytes(make(outside))

    return case


CASES["vocab.txt: pickle"] = vocabulary_only(pickled)
CASES["vocab.txt: empty"] = vocabulary_only(lambda _: b"")
CASES["vocab.txt: not UTF-8"] = vocabulary_only(lambda _: b"[PAD]\n\xff\n")
CASES["vocab.txt: a token twice"] = vocabulary_only(lambda _: b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\na\n")
CASES["vocab.txt: a million tokens"] = vocabulary_only(
    lambda _: b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n" + b"".join(b"%d\n" % number for number in range(1_000_000))
)
CASES["vocab.txt: 65 MiB"] = vocabulary_only(lambda _: b"x" * (65 << 20))


def checksums(files: Any) -> Case:
    """A case with valid checksums of wrong contents."""
    return write("checksums.json", lambda _: checksummed_json({"format": 1, "files": files}))


CLAIM = {"bytes": 1 << 62, "sha256": "0" * 64}
CASES["checksums of a file outside"] = checksums({"../outside/x": CLAIM})
CASES["checksums of a huge file"] = checksums({WEIGHTS: CLAIM})
CASES["checksums of nothing"] = checksums({"absent": CLAIM})
CASES["checksums without numbers"] = checksums({WEIGHTS: {"bytes": []}})
CASES["checksums of another time"] = write("checksums.json", lambda _: checksummed_json({"format": 2}))


def google(change: Callable[[Path], Any]) -> Case:
    """A case with one of Google's checkpoints, opened by `import_folder`."""

    def case(folder: Path, outside: Path) -> None:
        shutil.rmtree(folder)
        shutil.copytree(GOOGLE, folder)
        change(folder)

    return case


def _index(data: bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / "bert_model.ckpt.index").write_bytes(data)


CASES["import: index of nothing but its mark"] = google(_index(bytes(40) + MAGIC))
CASES["import: index of numbers without end"] = google(_index(b"\xff" * 40 + MAGIC))
CASES["import: index of 17 MiB"] = google(_index(bytes(17 << 20) + MAGIC))
CASES["import: index that is a pickle"] = google(lambda folder: _index(pickled(folder))(folder))
CASES["import: data cut short"] = google(
    lambda folder: (folder / "bert_model.ckpt.data-00000-of-00001").write_bytes(struct.pack("<d", 1.0))
)
CASES["import: data is a link"] = google(
    lambda folder: (
        (folder / "bert_model.ckpt.data-00000-of-00001").unlink(),
        (folder / "bert_model.ckpt.data-00000-of-00001").symlink_to(GOOGLE / "bert_model.ckpt.data-00000-of-00001"),
    )
)
CASES["import: two checkpoints"] = google(lambda folder: (folder / "other.index").write_bytes(b""))
CASES["import: width of 10**9"] = google(
    lambda folder: (folder / "bert_config.json").write_text(
        '{"hidden_size": 1000000000, "vocab_size": 14, "num_hidden_layers": 2, "num_attention_heads": 2}'
    )
)
