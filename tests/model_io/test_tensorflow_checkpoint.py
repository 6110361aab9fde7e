"""Google's checkpoints: every number of one that TensorFlow wrote, and a named error for every byte that is changed."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from model_io.folder_fixtures import one_line
from model_io.google_values import FOLDER, SETTINGS, WORDS, shapes, value

from bertsmith.errors import BertsmithError, DataError
from bertsmith.model_io.importers import import_folder
from bertsmith.model_io.model_folder import open_model
from bertsmith.model_io.tensorflow_checkpoint import LANES, MAGIC, TensorFlowCheckpoint, crc32c, mask_crc, read_table
from bertsmith.model_io.untrusted_files import UntrustedFile

PREFIX = "bert_model.ckpt"
INDEX, DATA = f"{PREFIX}.index", f"{PREFIX}.data-00000-of-00001"
OURS = {  # written by hand: our name -> Google's, and whether it is transposed; {} is the number of a layer
    "encoder.embeddings.tokens.weight": ("bert/embeddings/word_embeddings", False),
    "encoder.embeddings.positions.weight": ("bert/embeddings/position_embeddings", False),
    "encoder.embeddings.segments.weight": ("bert/embeddings/token_type_embeddings", False),
    "encoder.embeddings.norm.weight": ("bert/embeddings/LayerNorm/gamma", False),
    "encoder.embeddings.norm.bias": ("bert/embeddings/LayerNorm/beta", False),
    "encoder.blocks.{}.attention.output.weight": ("bert/encoder/layer_{}/attention/output/dense/kernel", True),
    "encoder.blocks.{}.attention.output.bias": ("bert/encoder/layer_{}/attention/output/dense/bias", False),
    "encoder.blocks.{}.attention_norm.weight": ("bert/encoder/layer_{}/attention/output/LayerNorm/gamma", False),
    "encoder.blocks.{}.attention_norm.bias": ("bert/encoder/layer_{}/attention/output/LayerNorm/beta", False),
    "encoder.blocks.{}.feed_forward.expand.weight": ("bert/encoder/layer_{}/intermediate/dense/kernel", True),
    "encoder.blocks.{}.feed_forward.expand.bias": ("bert/encoder/layer_{}/intermediate/dense/bias", False),
    "encoder.blocks.{}.feed_forward.contract.weight": ("bert/encoder/layer_{}/output/dense/kernel", True),
    "encoder.blocks.{}.feed_forward.contract.bias": ("bert/encoder/layer_{}/output/dense/bias", False),
    "encoder.blocks.{}.feed_forward_norm.weight": ("bert/encoder/layer_{}/output/LayerNorm/gamma", False),
    "encoder.blocks.{}.feed_forward_norm.bias": ("bert/encoder/layer_{}/output/LayerNorm/beta", False),
    "encoder.pooler.weight": ("bert/pooler/dense/kernel", True),
    "encoder.pooler.bias": ("bert/pooler/dense/bias", False),
    "objectives.masked_lm.transform.weight": ("cls/predictions/transform/dense/kernel", True),
    "objectives.masked_lm.transform.bias": ("cls/predictions/transform/dense/bias", False),
    "objectives.masked_lm.norm.weight": ("cls/predictions/transform/LayerNorm/gamma", False),
    "objectives.masked_lm.norm.bias": ("cls/predictions/transform/LayerNorm/beta", False),
    "objectives.masked_lm.bias": ("cls/predictions/output_bias", False),
    "objectives.next_sentence.classify.weight": ("cls/seq_relationship/output_weights", False),
    "objectives.next_sentence.classify.bias": ("cls/seq_relationship/output_bias", False),
}


def google(name: str, *, turned: bool) -> torch.Tensor:
    """What the checkpoint holds under Google's name."""
    found = torch.from_numpy(value(name, shapes()[name]))
    return found.T if turned else found


def test_every_weight_is_imported(tmp_path: Path) -> None:
    facts = import_folder(FOLDER, tmp_path / "m")
    assert facts.verified
    assert facts.architectures == ("BertForPreTraining",)
    assert facts.notes == ("lowercase=true, as the vocabulary has no capital letters",)
    model, words, _ = open_model(tmp_path / "m")
    state = model.state_dict()
    for ours, (theirs, turned) in OURS.items():
        for layer in "01" if "{}" in ours else [""]:
            assert torch.equal(state.pop(ours.format(layer)), google(theirs.format(layer), turned=turned)), ours
    for layer in "01":
        for kind, name in (("weight", "kernel"), ("bias", "bias")):
            parts = [f"bert/encoder/layer_{layer}/attention/self/{part}/{name}" for part in ("query", "key", "value")]
            expected = torch.cat([google(part, turned=name == "kernel") for part in parts])
            assert torch.equal(state.pop(f"encoder.blocks.{layer}.attention.qkv.{kind}"), expected)
    assert not state
    assert words.tokens() == WORDS
    assert words.max_length == SETTINGS["max_position_embeddings"]
    assert words.encode("The cats").ids.tolist() == [WORDS.index(word) for word in ("the", "cat", "##s")]


def test_lower_casing_follows_the_vocabulary(tmp_path: Path) -> None:
    source = tmp_path / "cased"
    shutil.copytree(FOLDER, source)
    (source / "vocab.txt").write_text("".join(f"{word}\n" for word in [*WORDS[:-1], "Ä"]))
    facts = import_folder(source, tmp_path / "m")
    assert facts.notes == ("lowercase=false, as the vocabulary has capital letters",)
    words = open_model(tmp_path / "m")[1]
    assert words.encode("Ä the The").ids.tolist() == [len(WORDS) - 1, WORDS.index("the"), words.unknown_id]
    assert import_folder(FOLDER, tmp_path / "n", lowercase=False).notes == ("lowercase=false, as requested",)


def test_every_flipped_bit_is_detected(tmp_path: Path) -> None:
    """One bit in the bytes of the index, densely at its end, and in those of the weights; Adam's are not read."""
    source = tmp_path / "damaged"
    shutil.copytree(FOLDER, source)
    with TensorFlowCheckpoint(FOLDER, PREFIX) as weights:
        used = [variable for _, variable in weights.variables.values()]
    size = (FOLDER / INDEX).stat().st_size
    places = {INDEX: [*range(0, size - 200, 11), *range(size - 200, size)]}
    places[DATA] = [place for one in used for place in range(one.begin, one.begin + one.size, 97)]
    silent = []
    for name, offsets in places.items():
        original = (FOLDER / name).read_bytes()
        for place in offsets:
            changed = bytearray(original)
            changed[place] ^= 1 << (place % 8)
            (source / name).write_bytes(changed)
            if str(source) not in _complaint(source):
                silent.append((name, place))
        (source / name).write_bytes(original)
    assert sum(map(len, places.values())) > 650
    assert silent == []
    assert _complaint(source) == ""


def _complaint(source: Path) -> str:
    try:
        with TensorFlowCheckpoint(source, PREFIX) as weights:
            for name, entry in weights.entries.items():
                weights.fill(name, torch.empty(entry.shape))
    except DataError as error:
        return str(error)
    return ""


def test_truncated_files(tmp_path: Path) -> None:
    for name, size in ((INDEX, 30), (INDEX, 3000), (DATA, 100)):
        source = tmp_path / f"{name}-{size}"
        shutil.copytree(FOLDER, source)
        (source / name).write_bytes((FOLDER / name).read_bytes()[:size])
        with pytest.raises(DataError) as found:
            import_folder(source, tmp_path / "m")
        one_line(found, str(source / name), "truncated")
        (source / name).unlink()
        with pytest.raises(BertsmithError):
            import_folder(source, tmp_path / "m")
    assert not (tmp_path / "m").exists()


# --- the sorted table ------------------------------------------------------------------------------------------------


def number(value: int) -> bytes:
    """A varint."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def block(pairs: list[tuple[bytes, bytes]], *, kind: int = 0) -> bytes:
    """A block in LevelDB's format, without shared prefixes, with its checksum."""
    body = b"".join(number(0) + number(len(key)) + number(len(value)) + key + value for key, value in pairs)
    body += (0).to_bytes(4, "little") + (1).to_bytes(4, "little") + bytes([kind])
    return body + mask_crc(crc32c([body])).to_bytes(4, "little")


def table(blocks: list[list[tuple[bytes, bytes]]], *, kind: int = 0) -> bytes:
    """A file of such blocks."""
    data, handles = b"", []
    for pairs in blocks:
        made = block(pairs, kind=kind)
        handles.append((pairs[-1][0], number(len(data)) + number(len(made) - 5)))
        data += made
    meta, index = block([]), block(handles)
    footer = number(len(data)) + number(len(meta) - 5) + number(len(data + meta)) + number(len(index) - 5)
    return data + meta + index + footer.ljust(40, b"\0") + MAGIC


def read(tmp_path: Path, data: bytes) -> dict[bytes, bytes]:
    (tmp_path / "x.index").write_bytes(data)
    with UntrustedFile(tmp_path, "x.index") as file:
        return read_table(file)


def test_a_table_of_several_blocks(tmp_path: Path) -> None:
    pairs = [(b"%04d" % key, b"v" * (key % 300)) for key in range(3000)]
    assert read(tmp_path, table([pairs[begin : begin + 700] for begin in range(0, 3000, 700)])) == dict(pairs)


def test_malformed_indices(tmp_path: Path) -> None:
    one = [(b"a", b"1"), (b"b", b"2")]
    cases = {
        "out of order": table([one, one]),
        "compressed": table([one], kind=1),
        "more than 20,000 keys": table([[(b"%06d" % key, b"") for key in range(20_001)]]),
        "a key of": table([[(b"k" * 600, b"")]]),
        "is outside the file": table([[(b"a", b"")]])[:-48] + number(1 << 60) + number(9) + b"\0" * 30 + MAGIC,
        "an unterminated integer": b"\xff" * 40 + MAGIC,
    }
    for words, data in cases.items():
        with pytest.raises(DataError) as found:
            read(tmp_path, data)
        one_line(found, str(tmp_path / "x.index"), words)


def test_crc32c() -> None:
    """The published check value; many lanes and byte by byte give the same."""
    assert crc32c([b"123456789"]) == 0xE3069283
    data = np.random.default_rng(0).integers(0, 256, 9 * LANES + 77, np.uint8).tobytes()
    assert crc32c([data]) == crc32c([data[place : place + 1000] for place in range(0, len(data), 1000)])
    assert crc32c([data]) == crc32c([memoryview(data)]) != zlib.crc32(data)


def message(*parts: tuple[int, int | bytes]) -> bytes:
    """A protocol buffer: numbers as varints, bytes with their length."""
    found = b""
    for field, content in parts:
        if isinstance(content, int):
            found += number(field << 3) + number(content)
        else:
            found += number(field << 3 | 2) + number(len(content)) + content
    return found


def variable(*, kind: int = 1, sizes: tuple[int, ...] = (2,), shard: int = 0, place: int = 0, size: int = 8) -> bytes:
    """An entry of the index, without a checksum."""
    shape = message(*((2, message((1, one))) for one in sizes))
    return message((1, kind), (2, shape), (3, shard), (4, place), (5, size))


def test_unsupported_checkpoints(tmp_path: Path) -> None:
    header = message((1, 1))
    cases = {
        "is a TensorFlow 2 checkpoint": {b"": header, b"_CHECKPOINTABLE_OBJECT_GRAPH": b""},
        "0 data files": {b"": b""},
        "1048576 data files": {b"": message((1, 1 << 20))},
        "not little-endian": {b"": message((1, 1), (2, 1))},
        "in slices": {b"": header, b"a": variable() + message((7, b""))},
        "has type 7": {b"": header, b"a": variable(kind=7)},
        "and 9 dimensions": {b"": header, b"a": variable(sizes=(1,) * 9)},
        "has 9 bytes": {b"": header, b"a": variable(size=9)},
        "in data file 3 of 1": {b"": header, b"a": variable(shard=3)},
        "overlaps": {b"": header, b"a": variable(), b"b": variable(place=4)},
        "truncated: 20 bytes": {b"": header, b"a": variable(place=1 << 62)},
        "have the same weight name": {b"": header, b"a/gamma": variable(), b"a/kernel": variable(place=8)},
        "does not match its checksum": {b"": header, b"a": variable()},
    }
    (tmp_path / "x.data-00000-of-00001").write_bytes(bytes(20))
    for words, entries in cases.items():
        (tmp_path / "x.index").write_bytes(table([sorted(entries.items())]))
        with pytest.raises(DataError) as found, TensorFlowCheckpoint(tmp_path, "x") as weights:
            weights.fill("a", torch.empty(2))
        one_line(found, str(tmp_path), words)
