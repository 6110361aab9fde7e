"""Commands that apply a model to texts: the results of the Python API, printed output, one-line errors."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import call
from inference.generation_fixtures import random_lm, random_translator
from inference.predictor_fixtures import KINDS, LONG, TEXTS, reader, saved_predictor, tokenizer

from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.model_folder import save_model
from bertsmith.objectives import choose, classify
from bertsmith.reports import terminal_predictions


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    return saved_predictor(tmp_path_factory.mktemp("labelled") / "m", classify.Config(labels=KINDS))


def test_classify_and_attention_commands(labelled: Predictor, tmp_path: Path) -> None:
    assert labelled.facts is not None
    folder = labelled.facts.folder
    done = json.loads(call("classify", folder, *TEXTS[:2], "-k", 2, "--json").stdout)
    assert [[one["label"] for one in some["results"]] for some in done["predictions"]] == [
        [one["label"] for one in some] for some in labelled.predict(TEXTS[:2], top_k=2)
    ]
    shown = call("classify", folder, LONG, "--second", "it is iron").stdout
    assert "windows)" in shown
    assert "%" in shown
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:3]), encoding="utf-8")
    ranked = json.loads(call("rank", folder, "red iron", tmp_path / "texts.txt", "--json").stdout)["ranked"]
    assert [one["index"] for one in ranked] == [one["index"] for one in labelled.rank("red iron", TEXTS[:3])]
    assert "쇠 is blue" in call("rank", folder, "red iron", tmp_path / "texts.txt").stdout
    picture = call("attention", folder, "the smith has 쇠", "--layer", 2, "--head", 1).stdout
    assert "layer 2, head 1" in picture
    assert "█" in picture
    assert len(picture.splitlines()) == 2 + len(labelled.attention("the smith has 쇠").tokens)
    assert len(json.loads(call("attention", folder, "iron", "gold", "--json").stdout)["weights"]) == 5
    assert "truncated" in call("attention", folder, LONG, "--head", 1).stdout


def test_attention_map_fits_the_terminal_width(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = [f"token{number}" for number in range(90)]
    facts = {"tokens": tokens, "weights": np.eye(90).tolist(), "layer": None, "head": 1, "truncated": False}
    terminal_predictions.attention_map(facts)
    lines = capsys.readouterr().out.splitlines()
    shown = len(lines) - 3
    assert 2 * shown + 20 <= terminal_predictions.console.width < 2 * shown + 22
    assert lines[0].startswith("layer mean, head 1")
    assert f"{90 - shown} more tokens" in lines[-1]
    assert lines[3].index("█") - lines[2].index("█") == 2


def test_ner_and_ask_commands(tmp_path: Path) -> None:
    for head in ("tag", "span"):
        one = reader().model
        for name in set(one.objectives) - {head}:
            del one.objectives[name]
        save_model(one, tokenizer(), tmp_path / head)
    (tmp_path / "page.txt").write_text(f"{LONG}\n🔥", encoding="utf-8")
    found = json.loads(call("ner", tmp_path / "tag", LONG, "--json").stdout)["entities"]
    assert [one["word"] for one in found] == ["red", "gold"] * 12
    assert "METAL" in call("ner", tmp_path / "tag", tmp_path / "page.txt").stdout
    assert "no entities" in call("ner", tmp_path / "tag", "the smith").stdout
    asked = call("ask", tmp_path / "span", "which thing", "-c", tmp_path / "page.txt", "--json")
    assert json.loads(asked.stdout)["answers"][0]["answer"] == "gold"
    assert "of «gold» the" in call("ask", tmp_path / "span", "which thing", "--context", LONG).stdout
    assert "no answer" in call("ask", tmp_path / "span", "which", "-c", "it is", "--no-answer", -99).stdout


def test_choose_and_rank_commands(tmp_path: Path) -> None:
    predictor = saved_predictor(tmp_path / "m", choose.Config())
    words = ("choose", tmp_path / "m", TEXTS[0], "iron", "gold")
    assert json.loads(call(*words, "--json").stdout)["index"] == predictor.choose(TEXTS[0], ["iron", "gold"])["index"]
    assert call(*words).stdout.count("%") == 2


@pytest.mark.parametrize(
    ("words", "status", "part"),
    [
        (["ner", "{m}", "a"], 2, "no tag head"),
        (["ask", "{m}", "a", "-c", "b"], 2, "no span head"),
        (["ask", "{m}", "a", "-c", "{t}/broken.txt"], 65, "try --encoding utf-16"),
        (["choose", "{m}", "a", "b"], 2, "no choose head"),
        (["rank", "{m}", "a", "{t}/nowhere.txt"], 65, "nowhere.txt"),
        (["attention", "{m}", "a", "--layer", "9"], 2, "1 to 3"),
        (["classify", "{t}", "a"], 65, "not a model folder"),
    ],
)
def test_bad_input_is_a_one_line_error(
    labelled: Predictor, tmp_path: Path, words: list[str], status: int, part: str
) -> None:
    assert labelled.facts is not None
    (tmp_path / "broken.txt").write_bytes(b"\xff\xfe\x00")
    done = call(*[word.format(m=labelled.facts.folder, t=tmp_path) for word in words])
    assert done.returncode == status, done.stderr
    assert part in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_generate_and_score_commands(tmp_path: Path) -> None:
    model, folder, prompts = random_lm(), tmp_path / "gpt", ["the smith", "iron"]
    model.save(folder)
    (tmp_path / "prompts.txt").write_text("\n".join(prompts), encoding="utf-8")
    expected = model.generate(prompts, max_new_tokens=6)
    assert call("generate", folder, "the smith", "--max-new-tokens", 6).stdout == f"the smith{expected[0]['text']}\n"
    shown = call("generate", folder, tmp_path / "prompts.txt", "--max-new-tokens", 6).stdout
    assert shown == "".join(f"{prompt}{one['text']}\n" for prompt, one in zip(prompts, expected, strict=True))
    options = ("--temperature", 1, "--top-k", 9, "--top-p", 0.9, "--stop", "b", "--seed", 3, "-n", 2, "--json")
    found = json.loads(call("generate", folder, tmp_path / "prompts.txt", *options).stdout)["generated"]
    sampled = model.generate(prompts, temperature=1.0, top_k=9, top_p=0.9, stop="b", seed=3, samples=2)
    assert found == [{"prompt": one, "results": some} for one, some in zip(prompts, sampled, strict=True)]
    for words, message in (
        (("the smith", "--temperature", -1), "temperature=-1.0: it must be at least 0"),
        (("the smith", "--max-new-tokens", 40), "at most 30 new tokens fit"),
        (("prompts.txt",), "prompts.txt"),
    ):
        failed = call("generate", folder, *words)
        assert failed.returncode
        assert message in failed.stderr
        assert failed.stderr.count("\n") == 1
    scored = model.score("the smith heats")
    assert json.loads(call("score", folder, "the smith heats", "--json").stdout)["texts"] == [
        {"text": "the smith heats", **scored}
    ]
    shown = call("score", folder, "the smith heats").stdout
    assert f"perplexity {scored['perplexity']:.5g}" in shown
    assert f"{scored['tokens'][1]['surprisal']:.3f}  smith" in shown
    assert "1 scored tokens" in call("score", folder, tmp_path / "prompts.txt").stdout


@pytest.mark.parametrize("command", ["generate", "score", "translate"])
def test_texts_on_stdin(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_translator() if command == "translate" else random_lm()
    model.save(tmp_path / "m")
    monkeypatch.setattr(sys, "stdin", stdin_of("the smith\r\n\n쇠\n".encode("cp949")))
    done = call(command, tmp_path / "m", "-", "--encoding", "cp949", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if command == "translate":  # line by line
        assert found["translations"] == model.translate(["the smith", "", "쇠"])
    elif command == "generate":
        assert [one["prompt"] for one in found["generated"]] == ["the smith", "쇠"]
    else:
        assert [one["text"] for one in found["texts"]] == ["the smith", "쇠"]
    monkeypatch.setattr(sys, "stdin", stdin_of(b"the smith\xff"))
    failed = call(command, tmp_path / "m", "-")
    assert failed.returncode == 65
    assert "stdin: byte 9 (0xff) is not utf-8: convert the text first" in failed.stderr


def stdin_of(data: bytes) -> io.TextIOWrapper:
    """As in the C locale, in which Python decodes any bytes."""
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", errors="surrogateescape")


def test_options_that_translate_would_ignore_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_translator()
    model.save(tmp_path / "m")
    (tmp_path / "a.txt").write_text("the smith\n", encoding="utf-8")
    monkeypatch.setattr(Predictor, "translate", lambda *given, **options: pytest.fail("translated before the error"))
    for words, message in (
        (["the smith", "--reference", tmp_path / "a.txt"], "a.txt is for a file of source texts"),
        ([tmp_path / "a.txt", "--n-best", 2, "-o", tmp_path / "b.txt"], "b.txt gets one translation of each text"),
        (
            [tmp_path / "a.txt", "-o", tmp_path / "none" / "b.txt"],
            "b.txt does not exist: choose another -o, or make it",
        ),
    ):
        failed = call("translate", tmp_path / "m", *words)
        assert failed.returncode
        assert message in failed.stderr
        assert failed.stderr.count("\n") == 1
