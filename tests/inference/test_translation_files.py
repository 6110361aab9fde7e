"""Files of texts to translate: lines, pairs, and tables with and without references."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertsmith.data.corpus import ReadOptions
from bertsmith.errors import DataError, DataWarning
from bertsmith.inference.translation_files import SourceTexts, read_sources

READING = ReadOptions()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", "id\tsource\n1\tdrei\n2\t\n3\teins zwei\n"),
        ("a.csv", 'source,id\ndrei,1\n,2\n"eins\nzwei",3\n'),
        ("a.jsonl", '{"source": "drei"}\n{"source": null}\n{"source": "eins zwei"}\n'),
    ],
)
def test_a_table_with_only_sources_has_no_references(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_sources(tmp_path / name, None, READING) == SourceTexts(["drei", "", "eins zwei"])
    assert read_sources(tmp_path / name, None, READING, limit=1) == SourceTexts(["drei"])


def test_the_only_column_needs_no_header(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("drei\neins zwei\n", encoding="utf-8")
    assert read_sources(tmp_path / "a.tsv", None, READING) == SourceTexts(["drei", "eins zwei"])


def test_tables_of_pairs_have_references(tmp_path: Path) -> None:
    table = tmp_path / "a.tsv"
    table.write_text("source\ttarget\ndrei\t3\n", encoding="utf-8")
    assert read_sources(table, None, READING) == SourceTexts(["drei"], ["3"])
    table.write_text("1\tdrei\t3\n", encoding="utf-8")
    assert read_sources(table, None, READING, fields=("2", "3")) == SourceTexts(["drei"], ["3"])
    table.write_text("drei\t3\n", encoding="utf-8")
    with pytest.warns(DataWarning, match="its two columns are read as source and target"):
        assert read_sources(table, None, READING) == SourceTexts(["drei"], ["3"])


def test_a_missing_column_of_references_that_was_named_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("source\tid\ndrei\t3\n", encoding="utf-8")
    with pytest.raises(DataError, match="no field 'taget'"):
        read_sources(tmp_path / "a.tsv", None, READING, fields=("source", "taget"))
