"""Files of word vectors: word2vec (text and binary), GloVe and fastText's .vec, read in pieces and written.

A text file has a line per word, `word x1 ... xD`; word2vec and fastText put `words D` before them, GloVe nothing. A
binary file has that line too, then for each word its bytes, a space and D little-endian float32.
"""

from __future__ import annotations

import gzip
import math
import os
import warnings
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.encoders import word_vectors
from bertsmith.errors import DataError
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import FolderFacts, check_target, open_model, save_model
from bertsmith.model_io.untrusted_files import shown
from bertsmith.system.durable import Disk
from bertsmith.tokenizers.words import SPECIALS, Rules, Words

MAX_LINE_BYTES = 1 << 20  # of one line or word
MAX_WIDTH = 1 << 16
GROUP = 512  # words that are parsed at once
BINARY = ".bin"
FASTTEXT = (793712314).to_bytes(4, "little")  # fastText: fasttext.cc, FASTTEXT_FILEFORMAT_MAGIC_INT32
Vectors = NDArray[np.float32]


@dataclass
class VectorFile:
    """Words and their vectors, in the order of the file."""

    words: list[str] = field(default_factory=list)
    parts: list[Vectors] = field(default_factory=list)  # [n, D]
    duplicates: int = 0
    undecodable: int = 0  # words that are not UTF-8, or contain white space
    wanted: Container[str] | None = None  # the words that are kept; None: all
    limit: int = 0  # words that are kept at most; 0: all
    others: int = 0  # words that are not wanted

    def add(self, words: Sequence[bytes], vectors: Vectors) -> None:
        """Adds the words that are not there yet."""
        kept: list[int] = []
        for index, raw in enumerate(words):
            try:
                word = raw.decode()
            except UnicodeDecodeError:
                word = ""
            if not word or word.split() != [word]:
                self.undecodable += 1
            elif (self.wanted is not None and word not in self.wanted) or 0 < self.limit <= len(self.words):
                self.others += 1
            elif word in self._seen:
                self.duplicates += 1
            else:
                self._seen.add(word)
                self.words.append(word)
                kept.append(index)
        self.parts.append(vectors[kept])

    _seen: set[str] = field(default_factory=set)

    @property
    def notes(self) -> list[str]:
        """What was left out."""
        notes = [f"{self.duplicates:,} repeated words were left out: the first vector of each counts"]
        other = f"{self.undecodable:,} words that are not UTF-8 or contain white space were left out"
        return notes[: self.duplicates] + [other][: self.undecodable]


def import_vectors(
    source: Path, output: str | Path, *, lowercase: bool | None = None, replace: bool = False, disk: Disk | None = None
) -> FolderFacts:
    """Writes a file of vectors as a model folder with a tokenizer of words, and returns the summary of opening it.

    `lowercase`: whether texts are lower-cased; None: if no word of the file has a capital letter.
    """
    check_target(Path(os.path.abspath(output)), replace=replace)
    file = read_vectors(source)
    vectors = np.concatenate(file.parts)
    lowercase = lowercase if lowercase is not None else all(word == word.lower() for word in file.words)
    rules = Rules(lowercase=lowercase)
    reserved = rules.reserved()
    ordinary = np.array([word not in reserved for word in file.words], np.bool_)
    words = [word for word, kept in zip(file.words, ordinary, strict=True) if kept]
    table = np.zeros((len(reserved) + len(words), vectors.shape[1]), np.float32)
    table[len(reserved) :] = vectors[ordinary]
    table[reserved.index(str(SPECIALS.unknown))] = vectors.mean(0)  # replaced below if the file has one
    for index in np.flatnonzero(~ordinary):
        table[reserved.index(file.words[index])] = vectors[index]
    tokenizer = Words([*reserved, *words], word_rules=rules)
    config = word_vectors.Config(vocab_size=len(table), width=table.shape[1], padding_id=tokenizer.padding_id)
    model = Model.build(config, [])
    with torch.no_grad():
        model.encoder.token_embeddings.copy_(torch.from_numpy(table))  # type: ignore[union-attr]
    save_model(model, tokenizer, output, facts={"imported from": source.name}, replace=replace, disk=disk)
    _, _, facts = open_model(output)
    return replace_fields(facts, notes=(*file.notes, *_unreachable(words, rules), *facts.notes))


def _unreachable(words: Sequence[str], rules: Rules) -> list[str]:
    """A note where texts can never contain some words, because the tokenizer splits or lower-cases them."""
    lost = [word for word in words if list(rules(word)) != [word]]
    if not lost:
        return []
    share = f"{len(lost):,} of {len(words):,} words"
    return [
        f"{share} are never found in a text, because the tokenizer splits or lower-cases them, e.g. {shown(lost[0])}"
    ]


def read_vectors(path: Path, *, wanted: Container[str] | None = None, limit: int = 0) -> VectorFile:
    """The words and vectors of a file of any of the formats, gzipped or not.

    `wanted`: of these words only. `limit`: of so many words at most, the first ones; 0: all.
    """
    result = VectorFile(wanted=wanted, limit=limit)
    with _opened(path) as file:
        if file.peek(4)[:4] == FASTTEXT:  # type: ignore[attr-defined]
            raise DataError(
                f"{path} is fastText's binary model, which cannot be read: pass the .vec file that fastText writes "
                "beside it"
            )
        first = _line(file, path, 1)
        header = _header(first)
        if header is not None and _is_binary(path, file):
            _read_binary(result, path, file, *header)
        else:
            lines = _lines(file, path, first=None if header else first)
            _read_text(result, path, lines, width=header[1] if header else len(first.split()) - 1)
            found = len(result.words) + result.duplicates + result.undecodable + result.others
            if header and found != header[0]:
                raise DataError(f"{path} has {found:,} words, its first line says {header[0]:,}: is it complete?")
    if not (result.words or result.others):
        raise DataError(f"{path} has no word vectors: expected lines of a word and its numbers")
    return result


def _opened(path: Path) -> IO[bytes]:
    with open(path, "rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if zipped else open(path, "rb")  # type: ignore[return-value]


def _line(file: IO[bytes], path: Path, number: int) -> bytes:
    line = file.readline(MAX_LINE_BYTES)
    if len(line) == MAX_LINE_BYTES:
        raise DataError(f"{path}:{number}: a line of more than {MAX_LINE_BYTES:,} bytes: is it a file of vectors?")
    return line


def _header(line: bytes) -> tuple[int, int] | None:
    """Words and width; a GloVe file has no such line, and no vectors of width 1."""
    parts = line.split()
    if len(parts) != 2 or not all(part.isdigit() and len(part) < 12 for part in parts):
        return None
    words, width = map(int, parts)
    return (words, width) if 0 < width <= MAX_WIDTH else None


def _is_binary(path: Path, file: Any) -> bool:
    """Whether what follows the header is not a line of text."""
    piece = file.peek(512)[:512]
    text = piece.partition(b"\n")[0]
    return path.name.removesuffix(".gz").endswith(BINARY) or any(byte < 9 for byte in text)


def _lines(file: IO[bytes], path: Path, first: bytes | None) -> Iterator[tuple[int, bytes]]:
    """The lines of words, with their numbers."""
    if first is not None:
        yield 1, first
    number = 2
    while line := _line(file, path, number):
        if line.strip():
            yield number, line
        number += 1


def _read_text(result: VectorFile, path: Path, lines: Iterator[tuple[int, bytes]], width: int) -> None:
    if not 0 < width <= MAX_WIDTH:
        raise DataError(f"{path}:1: expected a word and its numbers, or the numbers of words and of dimensions")
    group: list[tuple[int, bytes, bytes]] = []
    for number, line in lines:
        parts = line.rstrip().rsplit(None, width)
        if len(parts) != width + 1:
            found = f"{len(line.split()) - 1} numbers after the word, expected {width}"
            raise DataError(f"{path}:{number}: {found}")
        group.append((number, parts[0], b" ".join(parts[1:])))
        if len(group) == GROUP:
            result.add([word for _, word, _ in group], _parse(path, group, width))
            group = []
    if group:
        result.add([word for _, word, _ in group], _parse(path, group, width))


def _parse(path: Path, group: Sequence[tuple[int, bytes, bytes]], width: int) -> Vectors:
    """The numbers of some lines at once; line by line where one of them is wrong."""
    with warnings.catch_warnings(), suppress(ValueError, DeprecationWarning):
        warnings.simplefilter("error", DeprecationWarning)
        values = np.fromstring(b" ".join(numbers for _, _, numbers in group), np.float32, sep=" ")
        if len(values) == len(group) * width and np.isfinite(values).all():
            return values.reshape(-1, width)
    for number, _, numbers in group:
        for text in numbers.split():
            try:
                value = np.float32(float(text))
            except ValueError:
                value = np.float32(math.nan)
            if not np.isfinite(value):
                raise DataError(f"{path}:{number}: {shown(text.decode(errors='replace'))} is not a finite number")
    return np.array([numbers.split() for _, _, numbers in group]).astype(np.float32)


def _read_binary(result: VectorFile, path: Path, file: IO[bytes], words: int, width: int) -> None:
    group: list[bytes] = []
    values: list[bytes] = []
    for number in range(1, words + 1):
        group.append(_binary_word(file, path, number))
        values.append(file.read(4 * width))
        if len(values[-1]) != 4 * width:
            raise DataError(f"{path} ends in word {number:,} of {words:,}: download it again")
        if len(group) == GROUP or number == words:
            vectors = np.frombuffer(b"".join(values), "<f4").reshape(-1, width).astype(np.float32)
            wrong = np.flatnonzero(~np.isfinite(vectors).all(1))
            if len(wrong):
                raise DataError(f"{path}: word {number - len(group) + 1 + wrong[0]:,} has a number that is not finite")
            result.add(group, vectors)
            group, values = [], []


def _binary_word(file: IO[bytes], path: Path, number: int) -> bytes:
    word = bytearray()
    while (byte := file.read(1)) not in (b" ", b""):
        if byte != b"\n":  # after the vector of the word before it, in some files
            word += byte
        if len(word) > MAX_LINE_BYTES:
            raise DataError(f"{path}: word {number:,} has more than {MAX_LINE_BYTES:,} bytes: is it a binary file?")
    return bytes(word)


def vector_chunks(words: Sequence[str], vectors: Vectors, form: str) -> Iterator[bytes]:
    """The contents of a file: `form` is word2vec, word2vec-binary or glove. Text holds every float32 exactly."""
    if form != "glove":
        yield f"{len(words)} {vectors.shape[1]}\n".encode()
    for first in range(0, len(words), GROUP):
        lines = []
        for word, vector in zip(words[first : first + GROUP], vectors[first : first + GROUP], strict=True):
            if form == "word2vec-binary":
                lines.append(word.encode() + b" " + vector.astype("<f4").tobytes() + b"\n")
            else:
                numbers = " ".join(["%.9g" % value for value in vector.tolist()])  # noqa: UP031 twice as fast
                lines.append(f"{word} {numbers}\n".encode())
        yield b"".join(lines)
