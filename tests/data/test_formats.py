"""Every corpus format yields the documents that were written, and every error names its line."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from data.corpus_fixtures import TEXTS, THREE, refusal, texts, written

from bertsmith.data.corpus import Corpus, ReadOptions


def test_blank_lines_separate_documents(tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt", THREE)
    documents = list(Corpus([path]))
    assert [document.text for document in documents] == TEXTS
    assert [document.source for document in documents] == [f"{path}:1", f"{path}:5", f"{path}:8"]


@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_every_line_end_is_a_newline(tmp_path: Path, newline: str) -> None:
    assert texts(written(tmp_path, "a.txt", THREE.replace("\n", newline))) == TEXTS


def test_line_ends_that_fall_between_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertsmith.data.text_files.BLOCK", 1)
    assert texts(written(tmp_path, "a.txt", "\ufeff" + THREE.replace("\n", "\r\n") + "\r")) == TEXTS


def test_a_line_or_a_file_can_be_the_document(tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt", "one\n\n  two \nthree\n")
    assert texts(path, format="line") == ["one", "two", "three"]
    assert texts(path, format="file") == ["one\n\n  two \nthree"]


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


def test_an_unclosed_article_ends_at_the_next_or_at_the_end(tmp_path: Path) -> None:
    open_ended = WIKI.replace("그대로다.\n</doc>", "그대로다.").rstrip().removesuffix("</doc>")
    assert texts(written(tmp_path, "wiki_00", open_ended)) == texts(written(tmp_path, "wiki_01", WIKI))


def test_text_between_articles_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "wiki_00", WIKI + "stray words\n")
    assert refusal(path).startswith(f'{path}:14: expected <doc id="…" title="…">, found \'stray words\'')


def test_a_long_article_keeps_its_title(tmp_path: Path) -> None:
    body = "\n".join(f"Sentence number {number} of the article." for number in range(100))
    path = written(tmp_path, "wiki_00", f'<doc id="1" url="u" title="Long">\nLong\n\n{body}\n</doc>\n')
    corpus = Corpus([path], ReadOptions(max_characters=1000))
    documents = list(corpus)
    assert {document.title for document in documents} == {"Long"}
    assert "\n".join(document.text for document in documents) == body
    assert corpus.split_documents == 1


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
        ('["text"]', "expected a JSON object, found list"),
        ('{"text": 3}', "'text' must be a string, found int"),
        ('{"texts": "a", "id": 1}', "no field 'text' (fields: texts, id): pass another --field; did you mean texts?"),
        ("[" * 100_000, "invalid JSON"),
    ],
)
def test_broken_json_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = written(tmp_path, "a.jsonl", '{"text": "good"}\n' + line + "\n")
    assert refusal(path).startswith(f"{path}:2: {message}")


def test_csv_with_quoted_fields_and_other_column(tmp_path: Path) -> None:
    lines = ["id,body", "1,Plain text.", '2,"With ""quotes"", commas', 'and a second line."', "3,한국어"]
    path = written(tmp_path, "a.csv", "\n".join(lines))
    documents = list(Corpus([path], ReadOptions(field="body")))
    assert [document.text for document in documents] == ROWS
    assert [document.source for document in documents] == [f"{path}:{line}" for line in (2, 3, 5)]
    assert refusal(path, field="bdy").startswith(
        f"{path}: no field 'bdy' (fields: id, body): pass another --field; did you mean body?"
    )


def test_csv_fields_of_any_length(tmp_path: Path) -> None:
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
    assert "is not a readable Parquet file" in refusal(path)
    broken = pyarrow.array([b"fine", b"\xff"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": broken}), path)
    assert f"{path}:2: byte 0 of 'text' is not UTF-8" in refusal(path)
    assert texts(path, errors="replace") == ["fine", "\ufffd"]
