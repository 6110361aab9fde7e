"""Arguments that are texts: a path, mistyped or not, is never used as a text."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from command_line import call
from inference.predictor_fixtures import KINDS, LONG, random_model, reader, tokenizer

from bertsmith.model_io.model_folder import save_model
from bertsmith.objectives import choose, classify, masked_lm, next_sentence

TEXT_COMMANDS: list[tuple[str, ...]] = [
    ("fill-mask", "words", "{}"),
    ("next-sentence", "words", "it is", "{}"),
    ("embed", "words", "{}"),
    ("classify", "labels", "the smith", "{}"),
    ("classify", "labels", "the smith", "--second", "{}"),
    ("ner", "reader", "{}"),
    ("tag-words", "reader", "{}"),
    ("ask", "reader", "which", "--context", "{}"),
    ("ask", "reader", "{}", "--context", "it is iron"),
    ("rank", "labels", "{}", "texts.txt"),
    ("rank", "labels", "iron", "{}"),
    ("attention", "words", "{}"),
    ("choose", "choices", "{}", "iron", "gold"),
    ("tokenizer", "show", "words", "{}"),
    ("tokenizer", "show", "words", "iron", "--pair", "{}"),
]
READ = {"embed", "ner", "tag-words", "--context", "rank"}  # take a file as well


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("text-arguments")
    heads = {
        "words": [masked_lm.Config(), next_sentence.Config()],
        "labels": [classify.Config(labels=KINDS)],
        "choices": [choose.Config()],
    }
    for name, some in heads.items():
        save_model(random_model(*some), tokenizer(), base / name)
    save_model(reader().model, tokenizer(), base / "reader")
    (base / "texts.txt").write_text("red iron\nblue gold", encoding="utf-8")
    (base / "cp949.txt").write_bytes("쇠 is iron".encode("cp949"))
    return base


@pytest.mark.parametrize("words", TEXT_COMMANDS)
def test_a_path_that_does_not_exist_is_never_a_text(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(folder)
    done = call(*(word.format("text.txt") for word in words))
    assert (done.returncode, done.stdout) == (65, "")
    assert "text.txt does not exist; did you mean texts.txt?" in done.stderr


@pytest.mark.parametrize("words", [words for words in TEXT_COMMANDS if not READ & {words[0], words[-2]}])
def test_a_file_is_not_used_as_the_text_of_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(folder)
    done = call(*(word.format("texts.txt") for word in words))
    assert (done.returncode, done.stdout) == (65, "")
    assert "texts.txt is a file, but a text is expected: " in done.stderr


SOURCE_COMMANDS: list[tuple[str, ...]] = [
    ("translate", "words", "{}", "-o", "out.txt"),
    ("translate", "words", "{}"),
    ("score", "words", "{}"),
    ("generate", "words", "{}"),
    ("embed", "words", "{}"),
    ("embed", "words", "{}", "-o", "out.npy"),
    ("ner", "reader", "{}"),
    ("tag-words", "reader", "{}"),
    ("ask", "reader", "which", "--context", "{}"),
]


@pytest.mark.parametrize("words", SOURCE_COMMANDS)
def test_a_mistyped_file_is_an_error_where_a_file_or_a_text_is_possible(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(folder)
    for name in ("tset.en", "corpora/tset", *(["tset"] if "-o" in words else [])):
        done = call(*(word.format(name) for word in words))
        assert (done.returncode, done.stdout) == (65, "")
        assert f"{name} does not exist" in done.stderr
        assert f'to use the name itself as a text, add a space: "{name} "' in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not list(folder.glob("out.*"))


def test_the_advice_about_paths_works(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert 'add a space: "nosuch.txt "' in call("embed", "words", "nosuch.txt").stderr
    assert json.loads(call("embed", "words", "nosuch.txt ", "--json").stdout)["texts"] == 1
    refused = call("classify", "labels", "texts.txt").stderr
    assert "use bertsmith predict labels --task classification --file texts.txt (to use" in refused
    done = call("predict", "labels", "--task", "classification", "--file", "texts.txt", "-q")
    assert len(done.stdout.splitlines()) == 2
    assert (
        "use bertsmith tokenizer show words - < texts.txt (to use"
        in call("tokenizer", "show", "words", "texts.txt").stderr
    )
    assert "labels is a folder, but a text is expected" in call("classify", "labels", "labels").stderr


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("embed", "words", "the smith", "--field", "body"), "--field"),
        (("embed", "words", "the smith", "--limit", "3"), "--limit"),
        (("ner", "reader", "the smith", "--encoding", "cp949"), "--encoding"),
        (("ask", "reader", "which", "--context", "it is iron", "--errors", "replace"), "--errors"),
        (("score", "words", "the smith", "--format", "line"), "--format"),
        (("score", "words", "-", "--field", "body"), "--field"),
        (("generate", "words", "the smith", "--limit", "3"), "--limit"),
        (("translate", "words", "the smith", "--fields", "a,b"), "--fields"),
        (("translate", "words", "-", "--fields", "a,b"), "--fields"),
    ],
)
def test_options_for_files_are_refused_with_a_text(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], option: str
) -> None:
    monkeypatch.chdir(folder)
    done = call(*words)
    found = "lines on stdin" if "-" in words else "a text"
    assert (done.returncode, done.stdout) == (2, "")
    message = f"{option} is for files, but the argument is {found}: pass a file, or leave it out"
    assert done.stderr == f"bertsmith: {message}\n"


def test_txt_files_are_one_text_per_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "TEXTS.TXT.gz").write_bytes(gzip.compress(b"red iron\nblue gold\n"))
    for path in (folder / "texts.txt", tmp_path / "TEXTS.TXT.gz"):
        assert json.loads(call("embed", folder / "words", path, "--json").stdout)["texts"] == 2
    assert "is a folder, but a text is expected" in call("embed", folder / "words", tmp_path).stderr


def test_files_in_other_encodings(folder: Path) -> None:
    path = folder / "cp949.txt"
    for words in (("ner", folder / "reader", path), ("ask", folder / "reader", "which", "--context", path)):
        done = call(*words, "--json")
        assert "is not utf-8: pass its --encoding (such as cp949 or latin-1), or --errors replace" in done.stderr
        assert "쇠" in call(*words, "--encoding", "cp949", "--json").stdout
    assert "gold" in call("ner", folder / "reader", LONG).stdout
