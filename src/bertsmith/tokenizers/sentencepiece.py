"""SentencePiece models (spiece.model, sentencepiece.bpe.model): a reader of their protobuf message.

Field numbers: sentencepiece_model.proto. Files are untrusted: whatever they hold, the result is a model or a DataError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bertsmith.errors import DataError
from bertsmith.tokenizers.folder import TokenizerFolder
from bertsmith.tokenizers.special_tokens import AddedTokens

ALBERT_MODEL, XLM_ROBERTA_MODEL = "spiece.model", "sentencepiece.bpe.model"
MAX_BYTES, MAX_PIECES, MAX_TRIE_BYTES = 1 << 26, 1 << 20, 1 << 22
TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
CONTROL, USER_DEFINED = 3, 4
SPACE = "▁"
XLM_ROBERTA = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}  # ids 0 to 3

Field = int | bytes


@dataclass
class SentencePieceModel:
    """The pieces of a model with their scores and types, by id, and its normalisation."""

    pieces: list[tuple[str, float]] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    kind: str = "unigram"
    characters_map: bytes = b""
    add_dummy_prefix: bool = True
    byte_fallback: bool = False

    def added(self) -> AddedTokens:
        """Control symbols, which are special tokens, and symbols that are matched before the rules."""
        for number, ((piece, _), kind) in enumerate(zip(self.pieces, self.types, strict=True)):
            if kind in (CONTROL, USER_DEFINED):
                yield number, tokenizers.AddedToken(piece, normalized=False, special=kind == CONTROL)


def read_model(path: Path) -> SentencePieceModel:
    """A unigram model; others are refused."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"{path} has {path.stat().st_size:,} bytes, expected at most {MAX_BYTES:,}")
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    try:
        model = _model(data)
        if model.characters_map:
            check_characters_map(model.characters_map)
    except (ValueError, UnicodeDecodeError, struct.error) as error:
        raise DataError(f"{path} is not a SentencePiece model: {error}") from error
    if model.kind != "unigram" or model.byte_fallback:
        found = f"a {model.kind} model" + " with byte_fallback" * model.byte_fallback
        raise DataError(
            f"{path} is {found}: only unigram models without byte_fallback can be read without tokenizer.json"
        )
    if not model.pieces:
        raise DataError(f"{path} is not a SentencePiece model: it has no pieces")
    return model


def check_characters_map(data: bytes) -> None:
    """A ValueError if a lookup in SentencePiece's compiled normalisation could leave its bounds.

    It is the size of a trie, the trie as a double array of 32-bit units (darts-clone), and the texts that replace its
    keys. The tokenizers library does not check what it looks up.
    """
    size = int.from_bytes(data[:4], "little")
    if size % 4 or not 0 < size <= min(len(data) - 4, MAX_TRIE_BYTES):
        raise ValueError(f"its characters map of {len(data):,} bytes has a trie of {size:,}")
    units = np.frombuffer(data, "<u4", size // 4, offset=4).astype(np.int64)
    texts = np.frombuffer(data, np.uint8, offset=4 + size)
    labels, found, waiting = np.arange(1, 256), np.zeros(len(units), bool), [0]
    found[0] = True
    while waiting:
        nodes, waiting = np.array(waiting[-1024:]), waiting[:-1024]
        unit = units[nodes]
        base = nodes ^ (unit >> 10 << ((unit & 512) >> 6))
        if (base | 255).max() >= len(units):
            raise ValueError("its characters map has a key outside of the trie")
        values = units[base[(unit & 256 > 0) & (nodes > 0)]] & 0x7FFFFFFF
        if len(values) and (values.max() >= len(texts) or (texts[values] & 0xC0 == 0x80).any()):
            raise ValueError("its characters map has a key without a text")
        children = base[:, None] ^ labels
        new = np.unique(children[units[children] & 0x800000FF == labels])
        waiting += new[~found[new]].tolist()
        found[new] = True


def note_rules(contents: TokenizerFolder, name: str, model: SentencePieceModel) -> None:
    """Notes where transformers splits texts otherwise than SentencePiece."""
    symbols = [piece for (piece, _), kind in zip(model.pieces, model.types, strict=True) if kind == USER_DEFINED]
    commas = [piece for piece, _ in model.pieces if piece[-1:] == "," and piece[-2:-1].isdigit()]
    unlike = {"user-defined symbols": symbols, "pieces of a digit and a comma": commas}
    unlike["texts without a first space"] = [] if model.add_dummy_prefix else ["add_dummy_prefix=false"]
    for what, found in unlike.items():
        if found:
            shown = ", ".join(found[:3])
            contents.notes.append(
                f"{name}: {what} ({shown}) are treated as by transformers 5, otherwise than by SentencePiece"
            )


def xlm_roberta(contents: TokenizerFolder) -> tokenizers.Tokenizer:
    """XLM-R's tokenizer: the first three pieces are replaced by fairseq's four special tokens, <mask> is the last."""
    model = read_model(contents.path / XLM_ROBERTA_MODEL)
    note_rules(contents, XLM_ROBERTA_MODEL, model)
    first = [contents.named_token(key) or token for key, token in XLM_ROBERTA.items()]
    mask = contents.named_token("mask_token") or "<mask>"
    vocabulary = [*((token, 0.0) for token in first), *model.pieces[3:], (mask, 0.0)]
    backend = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=3, byte_fallback=False))
    if model.characters_map:
        backend.normalizer = normalizers.Precompiled(model.characters_map)
    steps = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")]
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.Metaspace(SPACE, prepend_scheme="always")
    start, _, end, _ = first
    backend.post_processor = processors.TemplateProcessing(
        single=[start, "$A", end],
        pair=[start, "$A", end, end, "$B", end],
        special_tokens=[(start, 0), (end, 2)],
    )
    for _, token in model.added():
        (backend.add_special_tokens if token.special else backend.add_tokens)([token])
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in (*first, mask)])
    return backend


def _model(data: bytes) -> SentencePieceModel:
    model = SentencePieceModel()
    for number, value in _fields(data):
        if number == 1:  # a piece: text, score, type
            if len(model.pieces) == MAX_PIECES:
                raise ValueError(f"it has more than {MAX_PIECES:,} pieces")
            values = dict(_fields(_message(value)))
            (score,) = struct.unpack("<f", _message(values.get(2, bytes(4))))
            kind = values.get(3, 1)
            model.pieces.append((_message(values.get(1, b"")).decode("utf-8"), score))
            model.types.append(kind if isinstance(kind, int) else 1)
        elif number == 2:  # how it was trained
            values = dict(_fields(_message(value)))
            model.kind = TYPES.get(_integer(values.get(3, 1)), "non-standard")
            model.byte_fallback = bool(values.get(35))
        elif number == 3:  # normalisation
            values = dict(_fields(_message(value)))
            model.characters_map = _message(values.get(2, b""))
            model.add_dummy_prefix = bool(values.get(3, 1))
    return model


def _message(value: Field) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where bytes were expected")
    return value


def _integer(value: Field) -> int:
    if not isinstance(value, int):
        raise ValueError("bytes where a number was expected")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, Field]]:
    """The fields of a protobuf message: numbers, or bytes of any other type."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        wire, size = key & 7, 0
        if wire == 0:
            number, position = _varint(data, position)
            yield key >> 3, number
            continue
        if wire == 2:
            size, position = _varint(data, position)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"a field of type {wire} at byte {position}")
        if position + size > len(data):
            raise ValueError(f"it ends within a field of {size:,} bytes at byte {position}")
        yield key >> 3, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index in range(10):
        if position >= len(data):
            raise ValueError("it ends within a number")
        byte = data[position]
        position += 1
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, position
    raise ValueError(f"a number of more than 10 bytes at byte {position}")
