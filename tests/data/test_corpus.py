"""Files are found, read in order with bounded memory, split if too long, and counted."""

import gzip
import os
import random
import tracemalloc
from pathlib import Path

import pytest
from data.corpus_fixtures import texts, written
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.data import formats
from bertsmith.data.corpus import Corpus, ReadOptions, empty_corpus_error, find_files
from bertsmith.errors import ConfigError, DataError


def test_long_documents_are_split(tmp_path: Path) -> None:
    lines = [f"Line number {number}." for number in range(1000)]
    path = written(tmp_path, "a.txt", "Short.\n\n" + "\n".join(lines) + "\n\nLast.")
    corpus = Corpus([path], ReadOptions(max_characters=500))
    first, *parts, last = corpus
    assert (first.text, last.text) == ("Short.", "Last.")
    assert "\n".join(part.text for part in parts).split("\n") == lines
    assert max(len(part.text) for part in parts) <= 500
    assert corpus.split_documents == 1
    for part in parts:
        line = int(part.source.rpartition(":")[2])
        assert part.text.startswith(f"Line number {line - 3}.")


@pytest.mark.parametrize("block", [7, 64, 2**20])
@pytest.mark.parametrize("layout", ["blank", "line", "file"])
def test_cuts_do_not_depend_on_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, layout: str) -> None:
    text = "A sentence. Another one!\nNew line " + "x" * 150 + "\n   indented words here\n\n\nnext 문서 " * 5
    monkeypatch.setattr("bertsmith.data.text_files.BLOCK", 2**20)
    path = written(tmp_path, "a.txt", text)
    expected = [(d.text, d.source) for d in Corpus([path], ReadOptions(format=layout, max_characters=40))]  # type: ignore[arg-type]
    monkeypatch.setattr("bertsmith.data.text_files.BLOCK", block)
    assert [(d.text, d.source) for d in Corpus([path], ReadOptions(format=layout, max_characters=40))] == expected  # type: ignore[arg-type]
    assert "".join("".join(text for text, _ in expected).split()) == "".join(text.split())


def test_where_long_documents_are_cut() -> None:
    def first(text: str, longest: int) -> str:
        return formats.cut(text, 1, 0, longest)[0][1]

    assert first("aaa bbb\nccc ddd eee", 12) == "aaa bbb"
    assert first("Aaa bbb ccc. Ddd eee fff", 18) == "Aaa bbb ccc."
    assert first("aaa bbb ccc ddd", 9) == "aaa bbb"
    assert first("aaaaaaaaaaaa", 5) == "aaaaa"
    assert first("가나다라。마바사아자차", 9) == "가나다라。"


def test_a_long_run_of_white_space_takes_little_memory(tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt", b"begin" + b" " * 2**24 + b"end\n\nother" + b"\n" * 2**24 + b"last")
    corpus = Corpus([path], ReadOptions(max_characters=2**16))
    tracemalloc.start()
    assert [document.text for document in corpus] == ["begin", "end", "other", "last"]
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()
    assert corpus.split_documents == 1


@given(st.text("ab \n\u3000。.\r", max_size=200), st.integers(1, 30), st.sampled_from(["blank", "line", "file"]))
def test_no_character_is_lost_or_moved(
    tmp_path_factory: pytest.TempPathFactory, text: str, longest: int, layout: str
) -> None:
    path = written(tmp_path_factory.getbasetemp(), "property.txt", text)
    result = texts(path, format=layout, max_characters=longest)
    assert "".join("".join(result).split()) == "".join(text.split())
    assert all(0 < len(one) <= longest and one == one.strip() for one in result)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format": "wik"}, "format=wik must be one of .*; did you mean wiki?"),
        ({"errors": "skip"}, "errors=skip must be one of strict, replace, ignore"),
        ({"encoding": "utf-9"}, "encoding=utf-9 is not an encoding"),
        ({"encoding": "hex"}, "encoding=hex is not an encoding"),
        ({"max_characters": 0}, "max_characters=0 must be at least 1"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ReadOptions(**settings)  # type: ignore[arg-type]


def test_files_are_found_once_and_in_order(tmp_path: Path) -> None:
    names = ["b/2.txt", "b/10.txt", "a.txt", "b/c/3.txt", ".hidden/4.txt", "b/.5.txt"]
    paths = {name: written(tmp_path, name, "x") for name in names}
    (tmp_path / "b" / "round").symlink_to(tmp_path, target_is_directory=True)
    result = find_files([tmp_path / "b", tmp_path, paths["a.txt"], f"{tmp_path}/**/2.txt"])
    assert result == [paths["b/10.txt"], paths["b/2.txt"], paths["b/c/3.txt"], tmp_path / "b" / "round" / "a.txt"]
    assert find_files([paths["a.txt"], tmp_path / "b"])[0] == paths["a.txt"]
    assert find_files([paths[".hidden/4.txt"]]) == [paths[".hidden/4.txt"]]


def test_existing_names_with_brackets_are_not_patterns(tmp_path: Path) -> None:
    path = written(tmp_path, "a[1].txt", "x")
    written(tmp_path, "a1.txt", "x")
    assert find_files([path]) == [path]


def test_missing_paths_are_named(tmp_path: Path) -> None:
    written(tmp_path, "corpus.txt", "x")
    (tmp_path / "empty").mkdir()
    for wrong, message in [
        (tmp_path / "corpsu.txt", f"{tmp_path}/corpsu.txt does not exist; did you mean {tmp_path}/corpus.txt?"),
        (tmp_path / "no" / "a.txt", f"{tmp_path}/no/a.txt does not exist: the folder {tmp_path}/no is missing"),
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
    assert str(empty_corpus_error(corpus)) == f"no text in {tmp_path}/a.txt, {tmp_path}/b.jsonl (2 files, 3 bytes)"
