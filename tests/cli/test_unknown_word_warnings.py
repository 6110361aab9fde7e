"""Every command that reads texts warns in one line when the tokenizer does not know many of their words."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from command_line import Done, call
from finetune_fixtures import tiny_model, write
from inference.predictor_fixtures import KINDS, LONG, reader, saved_predictor, tokenizer
from model_io import zoo

from bertsmith.errors import UnknownWordsWarning
from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.model_folder import save_model
from bertsmith.objectives import classify, masked_lm, next_sentence
from bertsmith.studies import ablations
from bertsmith.tokenizers.unknown_words import check_unknown_words
from bertsmith.training import sweep

FOREIGN = "서울은 한국의 수도이다"
KNOWN = "the smith has red iron"
WARNING = (
    "of the words are unknown to this tokenizer, e.g. 서울은, 한국의, 수도이다: is it the tokenizer of this language?"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("models")
    saved_predictor(base / "words", masked_lm.Config(), next_sentence.Config())
    saved_predictor(base / "labels", classify.Config(labels=KINDS))
    for head in ("tag", "span"):
        one = reader().model
        for name in set(one.objectives) - {head}:
            del one.objectives[name]
        save_model(one, tokenizer(), base / head)
    tiny_model(base)
    return base


def is_one_warning(done: Done, share: str, warning: str = WARNING) -> bool:
    """Whether the command succeeded, with this line once on stderr."""
    assert done.returncode == 0, done.stderr
    return done.stderr.count("unknown to this tokenizer") == 1 and f"bertsmith: warning: {share} % {warning}" in (
        done.stderr.splitlines()
    )


@pytest.mark.parametrize(
    "words",
    [
        ("fill-mask", "words", f"{FOREIGN} [MASK]"),
        ("next-sentence", "words", FOREIGN, ""),
        ("embed", "labels", FOREIGN),
        ("classify", "labels", FOREIGN, FOREIGN),
        ("attention", "labels", FOREIGN),
        ("ner", "tag", FOREIGN),
        ("ask", "span", FOREIGN, "-c", FOREIGN),
    ],
    ids=lambda words: words[0],
)
def test_commands_that_apply_a_model_warn(folder: Path, words: tuple[str, ...]) -> None:
    command, model, *texts = words
    assert is_one_warning(call(command, folder / model, *texts, "--json"), "100")
    known = [text if text == "-c" else "the [MASK]" if command == "fill-mask" else KNOWN for text in texts]
    assert call(command, folder / model, *known).stderr == ""


def test_a_predictor_warns_once(folder: Path) -> None:
    predictor = Predictor.open(folder / "labels", device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictor.predict([KNOWN, LONG])
        predictor.embed([[5, 6]])
        predictor.predict(f"{LONG} 서울은")  # one of 97 words
    with pytest.warns(UnknownWordsWarning, match="서울은"):
        predictor.predict(FOREIGN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictor.predict(FOREIGN)


def test_examples_are_short_and_printable() -> None:
    with pytest.warns(UnknownWordsWarning) as found:
        assert check_unknown_words(tokenizer(), ["z" * 90, "\u202ez"]) == 1.0
    message = str(found[0].message)
    assert f"{'z' * 40}…, " in message
    assert message.isprintable()


def test_prepare_warns(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(f"{KNOWN}.\n\n{FOREIGN}", encoding="utf-8")
    reading = ("prepare", tmp_path / "text.txt", "-o", tmp_path / "s", "-t", folder / "labels", "--json")
    for more in (["--dry-run"], ["--held-out", 0, "--workers", 1]):
        done = call(*reading, *more)
        assert is_one_warning(done, "33")
        assert json.loads(done.stdout)["unknown_word_rate"] == pytest.approx(1 / 3)


def test_finetune_evaluate_and_predict_warn(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, object]] = [{"text": f"{FOREIGN} the", "label": label} for label in "ab" * 4]
    data, known = write(tmp_path / "d.jsonl", rows), write(tmp_path / "k.jsonl", [{"text": "the iron", "label": "a"}])
    files = ("-t", "classification", "--train", data, "--dev", data)
    tuning = ("finetune", folder / "m", *files, "epochs=1", "batch_size=4", "--json", "--device", "cpu")
    done = call(*tuning, "-o", tmp_path / "run")
    assert is_one_warning(done, "75")
    assert json.loads(done.stdout)["unknown_word_rate"] == 0.75
    done = call(*tuning, "-o", tmp_path / "sweep", "--seeds", 2)
    assert is_one_warning(done, "75")
    assert json.loads(done.stdout)["unknown_word_rate"] == 0.75
    monkeypatch.setattr(sweep, "run_parallel", lambda runs, jobs: (one.run() for one in runs))
    assert is_one_warning(call(*tuning, "-o", tmp_path / "parallel", "--seeds", 2, "--jobs", 2), "75")
    models = ("-m", folder / "m", "-m", f"other={folder / 'm'}", "--sizes", "4,all", "--seeds", 1, "--min-steps", 1)
    study = ("sample-efficiency", *models, *files, "epochs=1", "batch_size=4", "--json", "--device", "cpu", "-q")
    assert is_one_warning(call(*study, "-o", tmp_path / "study"), "75")
    (tmp_path / "own").mkdir()
    for name in ("train", "dev"):
        write(tmp_path / "own" / f"{name}.jsonl", rows)
    given = (f"a={folder / 'm'}", f"b={folder / 'm'}", "-t", "classification", "--data", tmp_path / "own")
    table = ("ablate", *given, "--set", "epochs=1", "--set", "batch_size=4", "--json", "--device", "cpu", "-q")
    monkeypatch.setattr(ablations, "run_parallel", lambda runs, jobs: (one.run() for one in runs))
    for jobs in (1, 2):
        assert is_one_warning(call(*table, "--jobs", jobs, "-o", tmp_path / f"table-{jobs}"), "75")
    done = call("evaluate", tmp_path / "run", "--file", data, "--json")
    assert is_one_warning(done, "75")
    assert json.loads(done.stdout)["unknown_word_rate"] == 0.75
    assert is_one_warning(call("predict", tmp_path / "run", "--file", data), "75")
    assert "unknown" not in call("predict", tmp_path / "run", "--file", known).stderr


def test_import_warns_where_the_vocabulary_does_not_know_its_own_words(tmp_path: Path) -> None:
    """Lower-casing strips accents, which decomposes Hangul."""
    zoo.write(zoo.Case("bert", "korean", weights="pickled"), tmp_path / "theirs")
    done = call("import", tmp_path / "theirs", "-o", tmp_path / "cased", "--cased")
    assert "unknown" not in done.stderr, done.stderr
    done = call("import", tmp_path / "theirs", "-o", tmp_path / "uncased", "--uncased")
    question = "does the setting of case and accents (--cased or --uncased) match the vocabulary?"
    assert done.returncode == 0
    assert "% of the words of the vocabulary are unknown to this tokenizer, e.g. 서울, " in done.stderr
    assert question in done.stderr
