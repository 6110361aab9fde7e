"""Tables of every format give the same rows; errors name file and line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tasks.samples import written

from bertsmith.errors import DataError
from bertsmith.tasks import tables

TEXTS = ["plain", 'with "quotes", a comma', "두 줄이 아니다 👩‍🔧", "e\u0301", "", " spaces "]
ROWS = [(text, str(number)) for number, text in enumerate(TEXTS)]


def refusal(path: Path, **how: Any) -> str:
    with pytest.raises(DataError) as caught:
        tables.read_table(path, **how)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def as_csv(path: Path) -> Path:
    quoted = ['"' + text.replace('"', '""') + '"' for text in TEXTS]
    return written(path, "text,label\n" + "".join(f"{text},{number}\n" for number, text in enumerate(quoted)))


def as_tsv(path: Path) -> Path:
    return written(path, "text\tlabel\n" + "".join(f"{text}\t{number}\n" for text, number in ROWS))


def as_json_lines(path: Path) -> Path:
    return written(path, "".join(json.dumps({"text": text, "label": number}) + "\n" for text, number in ROWS))


def as_json_list(path: Path) -> Path:
    items = [{"text": text, "label": number} for text, number in ROWS]
    return written(path, json.dumps(items, indent=2, ensure_ascii=False))


def as_parquet(path: Path) -> Path:
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS, "label": [number for _, number in ROWS]}), path)
    return path


def as_gzip(path: Path) -> Path:
    return written(path, gzip.compress(as_csv(path.with_suffix("")).read_bytes()))


@pytest.mark.parametrize(
    ("write", "name", "lines"),
    [
        (as_csv, "a.csv", [2, 3, 4, 5, 6, 7]),
        (as_tsv, "a.tsv", [2, 3, 4, 5, 6, 7]),
        (as_tsv, "a.txt", [2, 3, 4, 5, 6, 7]),
        (as_json_lines, "a.jsonl", [1, 2, 3, 4, 5, 6]),
        (as_json_list, "a.json", [2, 6, 10, 14, 18, 22]),
        (as_json_lines, "b.json", [1, 2, 3, 4, 5, 6]),
        (as_parquet, "a.parquet", [1, 2, 3, 4, 5, 6]),
        (as_gzip, "a.csv.gz", [2, 3, 4, 5, 6, 7]),
    ],
)
def test_every_format_has_the_same_rows(write: Any, name: str, lines: list[int], tmp_path: Path) -> None:
    path = write(tmp_path / name)
    table = tables.read_table(path)
    assert table.columns == ("text", "label")
    assert table.rows == ROWS
    assert table.lines == lines
    assert table.source(1) == f"{path}:{lines[1]}"
    assert table.column("text") == TEXTS


def test_quotes_enclose_cells_in_csv_and_are_characters_in_tsv_by_default(tmp_path: Path) -> None:
    tsv = written(tmp_path / "a.tsv", 'text\tlabel\n"He said ""no"".\t1\n"unclosed\t0\n')
    assert tables.read_table(tsv).column("text") == ['"He said ""no"".', '"unclosed']
    closed = written(tmp_path / "b.tsv", 'text\tlabel\n"He said ""no""\nand left."\t1\n')
    assert tables.read_table(closed, quoted=True).rows == [('He said "no"\nand left.', "1")]
    assert "b.tsv:2: 1 cells, but the header has 2 (text, label)" in refusal(closed)
    assert "quoted=true" in refusal(closed)
    assert "a.csv:2: not CSV" in refusal(written(tmp_path / "a.csv", 'text,label\n"never closed,1\nmore,2\n'))


def test_a_cell_over_several_lines_counts_as_one_row_and_later_lines_are_right(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", 'text,label\n"one\ntwo\nthree",1\nnext,2\n\nlast,3\n')
    table = tables.read_table(path)
    assert table.lines == [2, 5, 7]
    assert table.rows[0] == ("one\ntwo\nthree", "1")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_byte_order_marks(end: str, name: str, mark: str, tmp_path: Path) -> None:
    cells = "," if name == "a.csv" else "\t"
    text = mark + end.join(cells.join(row) for row in [("text", "label"), ("x", "1"), ("y", "2")]) + end
    table = tables.read_table(written(tmp_path / name, text))
    assert table.columns == ("text", "label")
    assert table.rows == [("x", "1"), ("y", "2")]


def test_a_line_separator_of_unicode_ends_no_row(tmp_path: Path) -> None:
    table = tables.read_table(written(tmp_path / "a.tsv", "text\tlabel\none\u2028two\x0bthree\x85four\t1\n"))
    assert table.rows == [("one\u2028two\x0bthree\x85four", "1")]


def test_files_without_a_header(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", "gj04\t1\t\tA sentence.\ngj04\t0\t*\tSentence a.\n")
    assert tables.read_table(path, header=False).columns == ("column1", "column2", "column3", "column4")
    named = tables.read_table(path, columns=("source", "label", "mark", "sentence"))
    assert named.column("label") == ["1", "0"]
    assert named.lines == [1, 2]
    assert "a.tsv:1: 4 cells, but expected 2" in refusal(path, columns=("a", "b"))


def test_semicolons_where_spreadsheets_write_them(tmp_path: Path) -> None:
    assert tables.read_table(written(tmp_path / "a.csv", "text;score\nhallo;1,5\n")).rows == [("hallo", "1,5")]


def test_ragged_rows_are_errors_or_skipped_and_counted(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", "a\tb\n1\t2\n3\n4\t5\t6\n7\t8\n")
    assert "a.tsv:3: 1 cells" in refusal(path)
    table = tables.read_table(path, ragged="skip")
    assert table.rows == [("1", "2"), ("7", "8")]
    assert (table.lines, table.skipped) == ([2, 5], 2)


def test_missing_and_duplicate_columns_are_errors(tmp_path: Path) -> None:
    table = tables.read_table(written(tmp_path / "a.csv", "text,lable,x,x\na,b,c,d\n"))
    with pytest.raises(DataError, match=r"no column 'label' among text, lable, x, x; did you mean task.label=lable\?"):
        table.column_index("label", setting="label")
    with pytest.raises(DataError, match="two columns are called 'x'"):
        table.column("x")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "has no rows: the file is empty"),
        ("a.csv", "text,label\n", "has no rows below its header"),
        ("a.jsonl", "\n \n", "has no rows"),
        ("a.json", "[ ]", "has no rows"),
        ("a.csv", b"text,label\nok,1\ncaf\xe9,2\n", ":3: byte 0xe9 is not UTF-8: save the file as UTF-8"),
        ("a.csv", "text,label\n".encode("utf-16"), "it may be UTF-16"),
        ("a.jsonl", '{"a": 1}\n{"a": \n', ":2: not JSON"),
        ("a.jsonl", '{"a": 1}\n[1]\n', ":2: expected a JSON object, found list"),
        ("a.json", '[\n{"a": 1},\n{"a" 2}\n]', ":3: not JSON"),
        ("a.json", '[\n{"a": 1}\n{"a": 2}\n]', ":3: not JSON: expecting ','"),
        ("a.json", '[\n{"a": 1},\n', "not JSON"),
        ("a.json", '[{"a": 1},\n 3]', ":2: expected a JSON object, found int"),
        ("a.parquet", b"PAR1 but not really", "is not a valid Parquet file"),
        ("a.csv.gz", b"not gzip", "is not valid gzip data"),
        ("a.doc", "x", "is not a supported table format: use .csv"),
        ("noextension", "x", "a file without extension"),
    ],
)
def test_unsupported_and_invalid_tables_are_one_line_errors(
    name: str, content: str | bytes, message: str, tmp_path: Path
) -> None:
    assert message in refusal(written(tmp_path / name, content))


def test_a_missing_file_error_names_the_nearest_file(tmp_path: Path) -> None:
    written(tmp_path / "train.csv", "x\n")
    assert f"does not exist; did you mean {tmp_path}/train.csv?" in refusal(tmp_path / "trian.csv")
    (tmp_path / "folder.csv").mkdir()
    assert "cannot be read" in refusal(tmp_path / "folder.csv")


def test_json_keys_may_be_missing_and_surrogates_are_replaced(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", '{"a": "x\\ud800y", "b": ["\\udfff"]}\n{"a": "z", "c": {"d": 1}}\n')
    table = tables.read_table(path)
    assert table.columns == ("a", "b", "c")
    assert table.rows == [("x\ufffdy", ["\ufffd"], None), ("z", None, {"d": 1})]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\n\r"), min_size=1), min_size=1))
def test_any_text_survives_a_tsv(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("any") / "a.tsv"
    rows = [(text, str(number)) for number, text in enumerate(texts)]
    written(path, "text\tlabel\n" + "".join(f"{text}\t{number}\n" for text, number in rows))
    assert tables.read_table(path).rows == rows
