"""Files of every layout and compression become the documents that were written, and every fault is named."""

import bz2
import errno
import gzip
import json
import lzma
import os
import random
import tracemalloc
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.corpus import layouts
from bertsmith.corpus.document import Corpus, Reading, find_files, no_documents
from bertsmith.corpus.opening import unreadable
from bertsmith.errors import ConfigError, DataError, StorageError


def zstd(data: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}
THREE = "First document.\nIts second line.\n\n \t\nSecond 문서.\n\n\nThird."
TEXTS = ["First document.\nIts second line.", "Second 문서.", "Third."]


def written(folder: Path, name: str, data: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def texts(*paths: Path, **settings: object) -> list[str]:
    return [document.text for document in Corpus(paths, Reading(**settings))]  # type: ignore[arg-type]


def refusal(*paths: Path, **settings: object) -> str:
    with pytest.raises(DataError) as caught:
        texts(*paths, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- layouts -------------------------------------------------------------------------------------------------------


def test_blank_lines_separate_documents(tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt", THREE)
    documents = list(Corpus([path]))
    assert [document.text for document in documents] == TEXTS
    assert [document.source for document in documents] == [f"{path}:1", f"{path}:5", f"{path}:8"]


@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_every_line_end_is_a_newline(tmp_path: Path, newline: str) -> None:
    assert texts(written(tmp_path, "a.txt", THREE.replace("\n", newline))) == TEXTS


def test_line_ends_that_fall_between_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertsmith.corpus.opening.BLOCK", 1)
    assert texts(written(tmp_path, "a.txt", "\ufeff" + THREE.replace("\n", "\r\n") + "\r")) == TEXTS


def test_a_line_or_a_file_can_be_the_document(tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt", "one\n\n  two \nthree\n")
    assert texts(path, layout="line") == ["one", "two", "three"]
    assert texts(path, layout="file") == ["one\n\n  two \nthree"]


WIKI = """<doc id="5" url="https://ko.example.org/wiki?curid=5" title="산 &amp; 바다">
산 &amp; 바다

산은 &lt;높고&gt; 바다는 깊다.
둘 다 좋다. Q&A와 AT&T는 그대로다.
</doc>
<doc id="6" url="https://ko.example.org/wiki?curid=6" title="빈 넘겨주기">
빈 넘겨주기

</doc>
<doc id="7" url="https://ko.example.org/wiki?curid=7" title="Sea">
The sea is not the title.
</doc>
"""


def test_wiki_extractor_blocks_are_recognised(tmp_path: Path) -> None:
    path = written(tmp_path, "AA/wiki_00", "\n" + WIKI)
    first, second = Corpus([tmp_path])
    assert (first.title, second.title) == ("산 & 바다", "Sea")
    assert first.text == "산은 <높고> 바다는 깊다.\n둘 다 좋다. Q&A와 AT&T는 그대로다."
    assert second.text == "The sea is not the title."
    assert (first.source, second.source) == (f"{path}:5", f"{path}:13")


def test_an_article_that_is_not_closed_ends_at_the_next_or_at_the_end(tmp_path: Path) -> None:
    open_ended = WIKI.replace("그대로다.\n</doc>", "그대로다.").rstrip().removesuffix("</doc>")
    assert texts(written(tmp_path, "wiki_00", open_ended)) == texts(written(tmp_path, "wiki_01", WIKI))


def test_text_between_articles_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "wiki_00", WIKI + "stray words\n")
    assert refusal(path).startswith(f'{path}:14: expected <doc id="…" title="…">, found \'stray words\'')


def test_a_long_article_keeps_its_title(tmp_path: Path) -> None:
    body = "\n".join(f"Sentence number {number} of the article." for number in range(100))
    path = written(tmp_path, "wiki_00", f'<doc id="1" url="u" title="Long">\nLong\n\n{body}\n</doc>\n')
    corpus = Corpus([path], Reading(longest=1000))
    documents = list(corpus)
    assert {document.title for document in documents} == {"Long"}
    assert "\n".join(document.text for document in documents) == body
    assert corpus.cut == 1


ROWS = ["Plain text.", 'With "quotes", commas\nand a second line.', "한국어"]


def test_json_lines(tmp_path: Path) -> None:
    lines = [json.dumps({"id": number, "text": text}) for number, text in enumerate(ROWS)]
    path = written(tmp_path, "a.jsonl", "\n".join([*lines, "", json.dumps({"text": None}), '{"text": "  "}']))
    assert texts(path) == ROWS
    assert [document.source for document in Corpus([path])] == [f"{path}:{line}" for line in (1, 2, 3)]


def test_lone_surrogates_of_json_become_replacement_characters(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", r'{"text": "a\ud800b\uDFFFc \ud83d\ude00"}')
    assert texts(path) == ["a\ufffdb\ufffdc 😀"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"', "not JSON: Expecting ',' delimiter at column 13"),
        ('["text"]', "a JSON object is needed, found list"),
        ('{"text": 3}', "'text' must be a string, found int"),
        ('{"texts": "a", "id": 1}', "no field 'text', only texts, id; did you mean texts? Name it with --field"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_broken_json_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = written(tmp_path, "a.jsonl", '{"text": "good"}\n' + line + "\n")
    assert refusal(path).startswith(f"{path}:2: {message}")


def test_csv_with_quoted_fields_and_other_column(tmp_path: Path) -> None:
    lines = ["id,body", "1,Plain text.", '2,"With ""quotes"", commas', 'and a second line."', "3,한국어"]
    path = written(tmp_path, "a.csv", "\n".join(lines))
    documents = list(Corpus([path], Reading(field="body")))
    assert [document.text for document in documents] == ROWS
    assert [document.source for document in documents] == [f"{path}:{line}" for line in (2, 3, 5)]
    assert refusal(path, field="bdy").startswith(f"{path}: no field 'bdy', only id, body; did you mean body?")


def test_fields_longer_than_the_csv_module_likes(tmp_path: Path) -> None:
    long = "word " * 100_000
    assert texts(written(tmp_path, "a.csv", f'text\n"{long}"\n')) == [long.strip()]


def test_csv_faults_are_named(tmp_path: Path) -> None:
    assert refusal(written(tmp_path, "a.csv", "id,text\n1,a\n2\n")).endswith("a.csv:3: 1 fields, but the header has 2")
    assert "a.csv:3: not CSV: " in refusal(written(tmp_path, "a.csv", 'id,text\n1,a\n2,"never closed\n'))


def test_a_quote_in_tsv_is_a_quote(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", 'id\ttext\n1\t"unbalanced\n2\tfine\n')
    assert texts(path) == ['"unbalanced', "fine"]


STRINGS = [pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())]


@pytest.mark.parametrize("kind", STRINGS, ids=str)
def test_parquet(tmp_path: Path, kind: pyarrow.DataType) -> None:
    table = pyarrow.table({"id": [1, 2, 3, 4], "text": pyarrow.array([*ROWS, None]).cast(kind)})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    corpus = Corpus([tmp_path / "a.parquet"])
    documents = list(corpus)
    assert [document.text for document in documents] == ROWS
    assert documents[1].source == f"{tmp_path / 'a.parquet'}:2"
    assert corpus.bytes_read == corpus.bytes_total > 0


def test_parquet_faults_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": [1], "body": ["text"]}), path)
    assert refusal(path, field="id").endswith("'id' must be a column of strings, found int64")
    assert "did you mean body?" in refusal(path, field="bdy")
    good = path.read_bytes()
    path.write_bytes(good[:-20])
    assert "is not Parquet that can be read" in refusal(path)
    broken = pyarrow.array([b"fine", b"\xff"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": broken}), path)
    assert f"{path}:2: byte 0 of 'text' is not UTF-8" in refusal(path)
    assert texts(path, errors="replace") == ["fine", "\ufffd"]


# --- bytes ---------------------------------------------------------------------------------------------------------


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
    assert refusal(path).startswith(f"{path}: the {kind} data ends too early; ")
    damaged = bytearray(whole)
    damaged[20:60] = bytes(40)
    assert f"the {kind} data is damaged" in refusal(written(tmp_path, f"b.txt{suffix}", bytes(damaged)))
    path = written(tmp_path, f"c.txt{suffix}", "plain text")
    assert refusal(path).startswith(f"{path} is named {suffix} but holds uncompressed or unknown data: ")


def test_a_wrong_suffix_is_told_with_what_the_file_is(tmp_path: Path) -> None:
    assert "is named .gz but holds xz data" in refusal(written(tmp_path, "a.txt.gz", lzma.compress(b"text")))


@pytest.mark.parametrize(("name", "place", "magic"), [("a.zip", 0, b"PK\x03\x04"), ("a.tar", 257, b"ustar")])
def test_archives_are_refused(tmp_path: Path, name: str, place: int, magic: bytes) -> None:
    data = bytearray(1024)
    data[place : place + len(magic)] = magic
    path = written(tmp_path, name, bytes(data))
    assert refusal(path) == f"{path} is a {name[2:]} archive, not text: unpack it and name the folder"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp949", "utf-16", "utf-16-le"])
def test_encodings_and_byte_order_marks(tmp_path: Path, encoding: str) -> None:
    path = written(tmp_path, "a.txt", THREE.encode(encoding))
    assert texts(path, encoding=encoding) == TEXTS
    assert texts(written(tmp_path, "b.txt", "\ufeff" + THREE)) == TEXTS


@pytest.mark.parametrize("block", [1, 3, 2**20])
def test_bytes_of_another_encoding_are_named_with_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr("bertsmith.corpus.opening.BLOCK", block)
    path = written(tmp_path, "a.txt", "good\n한글\n".encode() + "나쁜".encode("cp949"))
    assert refusal(path) == (
        f"{path}:3: byte 12 (0xb3) is not utf-8: "
        "name its --encoding (such as cp949 or latin-1), or pass --errors replace"
    )
    assert texts(path, errors="ignore") == ["good\n한글"]
    assert texts(path, errors="replace")[0].startswith("good\n한글\n\ufffd")


def test_utf16_is_recognised_and_advised(tmp_path: Path) -> None:
    assert refusal(written(tmp_path, "a.txt", "text".encode("utf-16"))).endswith("it looks like --encoding utf-16")


def test_an_error_inside_a_multibyte_encoding(tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt", "가나\n".encode("cp949") + b"\xff\xff")
    assert f"{path}:2: byte 5 (0xff) is not cp949" in refusal(path, encoding="cp949")


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt", "text")
    corpus = Corpus([path])
    path.unlink()
    with pytest.raises(DataError, match=r"a\.txt cannot be read: No such file"):
        list(corpus)


def test_a_failing_disk_is_no_fault_of_the_data() -> None:
    assert isinstance(unreadable("a.txt", OSError(errno.EIO, "Input/output error")), StorageError)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_forbidden_files_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt", "text")
    path.chmod(0)
    assert refusal(path) == f"{path} cannot be read: Permission denied"


# --- long documents ------------------------------------------------------------------------------------------------


def test_long_documents_go_on_as_further_documents(tmp_path: Path) -> None:
    lines = [f"Line number {number}." for number in range(1000)]
    path = written(tmp_path, "a.txt", "Short.\n\n" + "\n".join(lines) + "\n\nLast.")
    corpus = Corpus([path], Reading(longest=500))
    first, *parts, last = corpus
    assert (first.text, last.text) == ("Short.", "Last.")
    assert "\n".join(part.text for part in parts).split("\n") == lines
    assert max(len(part.text) for part in parts) <= 500
    assert corpus.cut == 1
    for part in parts:
        line = int(part.source.rpartition(":")[2])
        assert part.text.startswith(f"Line number {line - 3}.")


@pytest.mark.parametrize("block", [7, 64, 2**20])
@pytest.mark.parametrize("layout", ["blank", "line", "file"])
def test_cuts_do_not_depend_on_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, layout: str) -> None:
    text = "A sentence. Another one!\nNew line " + "x" * 150 + "\n   indented words here\n\n\nnext 문서 " * 5
    monkeypatch.setattr("bertsmith.corpus.opening.BLOCK", 2**20)
    path = written(tmp_path, "a.txt", text)
    expected = [(d.text, d.source) for d in Corpus([path], Reading(layout=layout, longest=40))]  # type: ignore[arg-type]
    monkeypatch.setattr("bertsmith.corpus.opening.BLOCK", block)
    assert [(d.text, d.source) for d in Corpus([path], Reading(layout=layout, longest=40))] == expected  # type: ignore[arg-type]
    assert "".join("".join(text for text, _ in expected).split()) == "".join(text.split())


def test_where_a_cut_falls() -> None:
    def first(text: str, longest: int) -> str:
        return layouts.cut(text, 1, 0, longest)[0][1]

    assert first("aaa bbb\nccc ddd eee", 12) == "aaa bbb"
    assert first("Aaa bbb ccc. Ddd eee fff", 18) == "Aaa bbb ccc."
    assert first("aaa bbb ccc ddd", 9) == "aaa bbb"
    assert first("aaaaaaaaaaaa", 5) == "aaaaa"
    assert first("가나다라。마바사아자차", 9) == "가나다라。"


def test_a_flood_of_white_space_is_held_in_little_memory(tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt", b"begin" + b" " * 2**24 + b"end\n\nother" + b"\n" * 2**24 + b"last")
    corpus = Corpus([path], Reading(longest=2**16))
    tracemalloc.start()
    assert [document.text for document in corpus] == ["begin", "end", "other", "last"]
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()
    assert corpus.cut == 1


@given(st.text("ab \n\u3000。.\r", max_size=200), st.integers(1, 30), st.sampled_from(["blank", "line", "file"]))
def test_no_character_is_lost_or_moved(
    tmp_path_factory: pytest.TempPathFactory, text: str, longest: int, layout: str
) -> None:
    path = written(tmp_path_factory.getbasetemp(), "property.txt", text)
    found = texts(path, layout=layout, longest=longest)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(0 < len(one) <= longest and one == one.strip() for one in found)


# --- settings, files, progress -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layout": "wik"}, "layout=wik must be one of .*; did you mean wiki?"),
        ({"errors": "skip"}, "errors=skip must be one of strict, replace, ignore"),
        ({"encoding": "utf-9"}, "encoding=utf-9 is not an encoding"),
        ({"encoding": "hex"}, "encoding=hex is not an encoding"),
        ({"longest": 0}, "longest=0 must be at least 1"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Reading(**settings)  # type: ignore[arg-type]


def test_files_are_found_once_and_in_order(tmp_path: Path) -> None:
    names = ["b/2.txt", "b/10.txt", "a.txt", "b/c/3.txt", ".hidden/4.txt", "b/.5.txt"]
    paths = {name: written(tmp_path, name, "x") for name in names}
    (tmp_path / "b" / "round").symlink_to(tmp_path, target_is_directory=True)
    found = find_files([tmp_path / "b", tmp_path, paths["a.txt"], f"{tmp_path}/**/2.txt"])
    assert found == [paths["b/10.txt"], paths["b/2.txt"], paths["b/c/3.txt"], tmp_path / "b" / "round" / "a.txt"]
    assert find_files([paths["a.txt"], tmp_path / "b"])[0] == paths["a.txt"]
    assert find_files([paths[".hidden/4.txt"]]) == [paths[".hidden/4.txt"]]


def test_a_name_with_brackets_is_a_name_first(tmp_path: Path) -> None:
    path = written(tmp_path, "a[1].txt", "x")
    written(tmp_path, "a1.txt", "x")
    assert find_files([path]) == [path]


def test_missing_paths_are_named(tmp_path: Path) -> None:
    written(tmp_path, "corpus.txt", "x")
    (tmp_path / "empty").mkdir()
    for wrong, message in [
        (tmp_path / "corpsu.txt", f"{tmp_path}/corpsu.txt does not exist; did you mean {tmp_path}/corpus.txt?"),
        (tmp_path / "no" / "a.txt", f"{tmp_path}/no/a.txt does not exist: there is no folder {tmp_path}/no"),
        (tmp_path / "*.csv", f"no file matches {tmp_path}/*.csv"),
        (tmp_path / "empty", f"no files in {tmp_path}/empty"),
        (Path("/dev/null"), "/dev/null is neither a file nor a folder"),
    ]:
        with pytest.raises(DataError) as caught:
            find_files([wrong])
        assert str(caught.value) == message


def test_names_that_are_not_utf8_can_be_printed(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.txt")
    path.write_text("text")
    (document,) = Corpus([tmp_path])
    assert document.source.encode().endswith("caf\ufffd.txt:1".encode())


def test_progress_moves_with_the_bytes_on_disk(tmp_path: Path) -> None:
    data = gzip.compress("\n\n".join(random.Random(1).randbytes(500).hex() for _ in range(4000)).encode())
    corpus = Corpus([written(tmp_path, "a.gz", data), written(tmp_path, "b.txt", "end")])
    seen = [corpus.bytes_read for _ in corpus]
    assert seen == sorted(seen)
    assert seen[0] < corpus.bytes_total / 2 < seen[-3] <= corpus.bytes_total == corpus.bytes_read
    assert list(corpus)[-1].text == "end"


def test_an_empty_corpus_has_its_error(tmp_path: Path) -> None:
    corpus = Corpus([written(tmp_path, "a.txt", "\n \n"), written(tmp_path, "b.jsonl", "")])
    assert list(corpus) == []
    assert str(no_documents(corpus)) == f"no text in {tmp_path}/a.txt, {tmp_path}/b.jsonl (2 files, 3 bytes)"
