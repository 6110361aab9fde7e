"""Decompression and decoding of files, and one-line errors for damaged ones."""

import bz2
import errno
import gzip
import lzma
import os
from pathlib import Path

import pyarrow
import pytest
from data.corpus_fixtures import TEXTS, THREE, refusal, texts, written

from bertsmith.data.corpus import Corpus
from bertsmith.data.text_files import check_source, check_text, looks_like_path, read_error
from bertsmith.errors import DataError, StorageError


def zstd(data: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


TEXTS_NOT_PATHS = [
    *(
        "",
        "fine",
        "and/or",
        "24/7",
        "km/h",
        "he/she/they",
        "서울",
        "영화/드라마",
        "영화가정말재미있어요.",
        "www.example.com",
        "TCP/IP",
    ),
    *(
        "https://example.com/new.txt",
        "www.example.com/index.html",
        "Read new.txt first.",
        "two\nlines.txt",
        "U.S.A.",
        "...",
    ),
    *("3.14", "Node.js", "/s", "/r/python", "e.g.", "a" * 300 + ".txt", "[MASK].", "nul\0.txt", "it's.", ".txt"),
]
PATHS = [
    "new.txt",
    "NEW.CSV",
    "리뷰.tsv",
    "data/new.jsonl",
    "../new",
    "./new",
    "~/new",
    "a.jsonl.gz",
    "page.html",
    "n.md",
]


@pytest.mark.parametrize("text", TEXTS_NOT_PATHS)
def test_texts_do_not_look_like_paths(text: str) -> None:
    assert not looks_like_path(text)


@pytest.mark.parametrize("text", PATHS)
def test_mistyped_paths_look_like_paths(text: str) -> None:
    assert looks_like_path(text)


def test_arguments_that_may_be_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in (
        "the smith",
        "smith",
        "and/or",
        "24/7",
        "https://a.org/b.en",
        "www.a.org",
        "a.m.",
        "3.14",
        "쇠.물",
        "-",
    ):
        assert check_text(text) == text
    for text in ("the smith.en", "test.en ", "smith", "쇠가", "https://a.org/b.en"):
        assert check_source(text) == text
    for text in ("the smith.en", "我喜欢音乐。", "smith "):
        assert check_source(text, output=tmp_path / "out") == text
    for text in ("test.en", "a.b.src"):
        with pytest.raises(DataError, match=r"does not exist.*add a space"):
            check_text(text)
    with pytest.raises(DataError, match=r"corpus/test does not exist: the folder corpus is missing.*add a space"):
        check_source("corpus/test")
    with pytest.raises(DataError, match="smith does not exist"):
        check_source("smith", output=tmp_path / "out")


def test_what_exists_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["corpus/new", "corpus", "my reviews"]
    assert not any(map(looks_like_path, names))
    (tmp_path / "corpus").mkdir()
    (tmp_path / "my reviews").write_text("text", encoding="utf-8")
    assert all(map(looks_like_path, [*names, str(tmp_path / "nosuch")]))


PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}


@pytest.mark.parametrize("suffix", PACKED)
def test_compressed_files_are_the_same_text(tmp_path: Path, suffix: str) -> None:
    pack = PACKED[suffix]
    path = written(tmp_path, f"a.txt{suffix}", pack(THREE.encode()) + pack(b"\n\nOf a second stream."))
    corpus = Corpus([path])
    assert [document.text for document in corpus] == [*TEXTS, "Of a second stream."]
    assert corpus.bytes_read == corpus.bytes_total == path.stat().st_size
    assert texts(written(tmp_path, "no-suffix", pack(THREE.encode()))) == TEXTS
    assert texts(written(tmp_path, f"b.jsonl{suffix}", pack(b'{"text": "inside"}'))) == ["inside"]


@pytest.mark.parametrize("suffix", PACKED)
def test_damaged_compressed_files_are_named(tmp_path: Path, suffix: str) -> None:
    whole = PACKED[suffix](b"".join(b"line %d\n" % number for number in range(100_000)))
    kind = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}[suffix]
    path = written(tmp_path, f"a.txt{suffix}", whole[: len(whole) // 2])
    assert refusal(path).startswith(f"{path}: the {kind} data is truncated after ")
    damaged = bytearray(whole)
    damaged[20:60] = bytes(40)
    assert f"the {kind} data is damaged" in refusal(written(tmp_path, f"b.txt{suffix}", bytes(damaged)))
    path = written(tmp_path, f"c.txt{suffix}", "plain text")
    assert refusal(path).startswith(f"{path} has suffix {suffix} but uncompressed or unknown data: ")


def test_a_wrong_suffix_is_an_error(tmp_path: Path) -> None:
    assert "has suffix .gz but xz data" in refusal(written(tmp_path, "a.txt.gz", lzma.compress(b"text")))


@pytest.mark.parametrize(("name", "position", "magic"), [("a.zip", 0, b"PK\x03\x04"), ("a.tar", 257, b"ustar")])
def test_archives_are_refused(tmp_path: Path, name: str, position: int, magic: bytes) -> None:
    data = bytearray(1024)
    data[position : position + len(magic)] = magic
    path = written(tmp_path, name, bytes(data))
    assert refusal(path) == f"{path} is a {name[2:]} archive, not text: unpack it and pass the folder"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp949", "utf-16", "utf-16-le"])
def test_encodings_and_byte_order_marks(tmp_path: Path, encoding: str) -> None:
    path = written(tmp_path, "a.txt", THREE.encode(encoding))
    assert texts(path, encoding=encoding) == TEXTS
    assert texts(written(tmp_path, "b.txt", "\ufeff" + THREE)) == TEXTS


@pytest.mark.parametrize("block", [1, 3, 2**20])
def test_bytes_of_another_encoding_are_reported_with_their_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr("bertsmith.data.text_files.BLOCK", block)
    path = written(tmp_path, "a.txt", "good\n한글\n".encode() + "나쁜".encode("cp949"))
    assert refusal(path) == (
        f"{path}:3: byte 12 (0xb3) is not utf-8: pass its --encoding (such as cp949 or latin-1), or --errors replace"
    )
    assert texts(path, errors="ignore") == ["good\n한글"]
    assert texts(path, errors="replace")[0].startswith("good\n한글\n\ufffd")


def test_utf16_is_suggested(tmp_path: Path) -> None:
    assert refusal(written(tmp_path, "a.txt", "text".encode("utf-16"))).endswith("try --encoding utf-16")


def test_an_error_inside_a_multibyte_encoding(tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt", "가나\n".encode("cp949") + b"\xff\xff")
    assert f"{path}:2: byte 5 (0xff) is not cp949" in refusal(path, encoding="cp949")


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt", "text")
    corpus = Corpus([path])
    path.unlink()
    with pytest.raises(DataError, match=r"a\.txt cannot be read: No such file"):
        list(corpus)


def test_an_io_error_is_a_storage_error() -> None:
    assert isinstance(read_error("a.txt", OSError(errno.EIO, "Input/output error")), StorageError)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_forbidden_files_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt", "text")
    path.chmod(0)
    assert refusal(path) == f"{path} cannot be read: Permission denied"
