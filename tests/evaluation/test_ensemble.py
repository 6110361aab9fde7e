"""Ensembles: the mean of several models, by example, by label name and by word; what is refused."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import call
from finetune_fixtures import COLOURS, METALS, made_up, write
from threads import threads

import bertsmith
from bertsmith import config
from bertsmith.encoders import bert
from bertsmith.errors import ConfigError
from bertsmith.evaluation import Evaluation, evaluate
from bertsmith.evaluation.ensemble import Ensemble, open_models
from bertsmith.evaluation.evaluator import make_evaluation_config
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import save_model
from bertsmith.model_io.run_folder import distinct_names
from bertsmith.tasks.qa_answers import Answer, Answers, mean_answers
from bertsmith.tasks.word_predictions import WordPrediction, mean_words
from bertsmith.tokenizers import training, wordpiece

TAGS = ("O", "B-COLOUR", "B-METAL", "I-COLOUR", "I-METAL")
LABELS = {"classification": METALS, "multi_label": ("red", "blue", "iron", "gold"), "tagging": TAGS}
HEADS = {
    "classification": "classify",
    "multi_label": "multi_label",
    "regression": "regress",
    "choice": "choose",
    "qa": "span",
    "tagging": "tag",
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with threads(1):
        yield


def model_folder(
    folder: Path, kind: str, *, seed: int = 0, labels: Sequence[str] | None = None, tokens: int = 190, **head: Any
) -> Path:
    """A model with random weights and a head for the task; `tokens` of its vocabulary decide how words are split."""
    words = [*COLOURS, *METALS, "the", "smith", "has", "a", "thing", "and", "which", "metal"]
    settings = wordpiece.Config(min_count=1)
    tokenizer = settings.train(training.count_words(words, settings.word_splitter()), vocab_size=tokens)
    torch.manual_seed(seed)
    shape: dict[str, Any] = {"layers": 1, "width": 32, "heads": 2, "max_positions": 64, "vocab_size": 192}
    names = labels or LABELS.get(kind)
    given = head | ({"labels": tuple(names)} if names else {})
    chosen = config.find_kind("bertsmith.objectives", HEADS[kind]).Config(**given)
    model = Model.build(bert.Config(**shape, initializer_range=0.5), [chosen])
    save_model(model, tokenizer, folder)
    return folder


def dev_file(folder: Path, kind: str, count: int = 12) -> Path:
    return write(folder / f"{kind}.jsonl", made_up(kind, count, 3))


def scored(models: Path | Sequence[Path], kind: str, dev: Path) -> Evaluation:
    return evaluate(models, kind, {"dev": dev}, device="cpu", max_length=48)


def opened(models: Sequence[Path], kind: str, dev: Path) -> Ensemble:
    settings = [make_evaluation_config(None, kind) for _ in models]
    found = open_models(settings, models, {"dev": dev}, device="cpu")
    assert isinstance(found, Ensemble)
    return found


@pytest.mark.parametrize("kind", HEADS)
def test_an_ensemble_of_a_model_with_itself_equals_the_model(kind: str, tmp_path: Path) -> None:
    model, dev = model_folder(tmp_path / "m", kind), dev_file(tmp_path, kind)
    alone, twice = scored(model, kind, dev), scored([model, model], kind, dev)
    assert twice.scores == alone.scores
    assert twice.predictions == alone.predictions
    assert [one.scores for one in twice.models] == [alone.scores] * 2
    assert len({one.name for one in twice.models}) == 2


@pytest.mark.parametrize("kind", ["classification", "multi_label"])
def test_probabilities_are_averaged_by_label_name_over_models_with_other_tokenizers(kind: str, tmp_path: Path) -> None:
    labels = LABELS[kind]
    a = model_folder(tmp_path / "a", kind)
    b = model_folder(tmp_path / "b", kind, seed=1, labels=labels[::-1], tokens=119)
    dev = dev_file(tmp_path, kind)
    both, alone = scored([a, b], kind, dev), [scored(one, kind, dev) for one in (a, b)]
    rows = [[one.detail["probabilities"] for one in result.predictions[1]] for result in alone]
    expected = np.mean([[[row[label] for label in labels] for row in some] for some in rows], axis=0)
    found = [one.detail["probabilities"] for one in both.predictions[1]]
    assert list(found[0]) == list(labels)
    assert np.allclose([list(row.values()) for row in found], expected, rtol=0, atol=1e-15)
    if kind == "classification":
        assert [one.value for one in both.predictions[1]] == [labels[number] for number in expected.argmax(axis=1)]
    assert [one.scores for one in both.models] == [one.scores for one in alone]
    assert [one.name for one in both.models] == ["a", "b"]


def test_numbers_are_averaged(tmp_path: Path) -> None:
    models = [model_folder(tmp_path / str(seed), "regression", seed=seed) for seed in range(3)]
    dev = dev_file(tmp_path, "regression")
    values = [[one.value for one in scored(model, "regression", dev).predictions[1]] for model in models]
    found = [one.value for one in scored(models, "regression", dev).predictions[1]]
    assert found == pytest.approx(np.mean(values, axis=0).tolist(), abs=1e-12)
    assert found != values[0]


def test_words_are_averaged_whatever_their_tokens_are(tmp_path: Path) -> None:
    a = model_folder(tmp_path / "a", "tagging")
    b = model_folder(tmp_path / "b", "tagging", seed=1, labels=("O", *TAGS[:0:-1]), tokens=119)
    dev = dev_file(tmp_path, "tagging")
    ensemble = opened([a, b], "tagging", dev)
    examples = ensemble.task.examples("dev")
    first, second = (member.outputs(examples) for member in ensemble.members)
    assert sum(map(len, (one.rows[0] for one in first[1]))) != sum(map(len, (one.rows[0] for one in second[1])))
    (chunk,) = ensemble.predict(examples, title="", quiet=True)
    order = [ensemble.members[1].task.labels.index(tag) for tag in TAGS]  # type: ignore[attr-defined]
    assert order != list(range(5))
    for example, one, two, prediction in zip(examples, first[0], second[0], chunk.predictions, strict=True):
        means = [(x.probabilities + y.probabilities[order]) / 2 for x, y in zip(one, two, strict=True)]
        assert prediction.value == tuple(TAGS[row.argmax()] for row in means)
        assert len(means) == len(example.gold)
        assert prediction.score == pytest.approx(np.mean([row.max() for row in means]))


def test_words_that_share_a_token_in_one_model_only() -> None:
    """A token for both characters of 그는 has B-, which means I- for the second; the other model has two tokens."""
    tags = ("O", "B-PER", "I-PER")

    def word(number: int, values: list[float], *, shared: bool = False) -> WordPrediction:
        return WordPrediction.of(number, np.array(values), shared=shared)

    one = [word(0, [0.2, 0.7, 0.1]), word(1, [0.2, 0.7, 0.1], shared=True), word(3, [1.0, 0.0, 0.0])]
    two = [word(0, [0.4, 0.5, 0.1]), word(1, [0.3, 0.1, 0.6])]
    mean = mean_words([one, two], tags)
    assert [found.word for found in mean] == [0, 1, 3]
    assert mean[0].probabilities == pytest.approx([0.3, 0.6, 0.1])
    assert mean[1].probabilities == pytest.approx([0.25, 0.05, 0.7])  # 0.7 and 0.1 of B and I are I in the first model
    assert [found.shared for found in mean] == [False, False, False]
    assert mean[2].probabilities.tolist() == [1.0, 0.0, 0.0]  # of the only model with a token for the word
    same = mean_words([one, one], tags)
    assert [(found.shared, found.probabilities.tolist()) for found in same] == [
        (found.shared, found.probabilities.tolist()) for found in one
    ]
    plain = mean_words([one, two], ())
    assert plain[1].probabilities == pytest.approx([0.25, 0.4, 0.35])


def test_n_best_answers_are_averaged_by_their_text() -> None:
    def answers(null_odds: float, **texts: float) -> Answers:
        some = [Answer(text.strip("_"), 4, 4 + len(text.strip("_")), share, 1.0, 2.0) for text, share in texts.items()]
        return Answers(tuple(some), null_odds)

    mean = mean_answers([answers(1.0, iron=0.6, gold=0.3, _=0.1), answers(-2.0, gold=0.8, tin=0.1, _=0.1)], 2)
    assert [(one.text, round(one.probability, 12)) for one in mean.best] == [("gold", 0.55), ("iron", 0.3), ("", 0.1)]
    assert mean.null_odds == -0.5


def test_thresholds_are_averaged_by_label(tmp_path: Path) -> None:
    labels = LABELS["multi_label"]
    a = model_folder(tmp_path / "a", "multi_label", thresholds=(0.1, 0.2, 0.3, 0.4))
    b = model_folder(tmp_path / "b", "multi_label", labels=labels[::-1], thresholds=(0.9, 0.7, 0.5, 0.3))
    c = model_folder(tmp_path / "c", "multi_label")
    task: Any = opened([a, b, c], "multi_label", dev_file(tmp_path, "multi_label")).task
    assert task.thresholds == pytest.approx([(0.1 + 0.3 + 0.5) / 3, 0.4, 0.5, (0.4 + 0.9 + 0.5) / 3])


def test_commands_take_several_models(tmp_path: Path) -> None:
    kind = "classification"
    a = model_folder(tmp_path / "forward", kind)
    b = model_folder(tmp_path / "backward", kind, seed=1, labels=METALS[::-1], tokens=119)
    words = [a, b, "-t", kind, "max_length=48", "--device", "cpu", "-q"]
    dev = dev_file(tmp_path, kind)
    shown = call("evaluate", *words, "--dev", dev)
    assert shown.returncode == 0, shown.stderr
    headings = next(line.split() for line in shown.stdout.splitlines() if line.startswith("Metric"))
    assert headings[:4] == ["Metric", "Ensemble", "forward", "backward"]
    facts = json.loads(call("evaluate", *words, "--dev", dev, "--json", "-o", tmp_path / "out").stdout)
    expected = scored([a, b], kind, dev)
    assert facts["scores"] == expected.scores
    assert [one["scores"] for one in facts["models"]] == [scored(one, kind, dev).scores for one in (a, b)]
    assert facts["models"][1]["interval"]["value"] == facts["models"][1]["scores"]["accuracy"]
    assert facts["model"] == f"{a} + {b}"
    assert '<th scope="col">backward</th>' in (tmp_path / "out" / "evaluation.html").read_text(encoding="utf-8")
    told = call("predict", *words, "--file", dev, "-o", tmp_path / "p.csv")
    assert told.returncode == 0, told.stderr
    with (tmp_path / "p.csv").open(encoding="utf-8", newline="") as file:
        assert [row["value"] for row in csv.DictReader(file)] == [one.value for one in expected.predictions[1]]


def test_python_takes_several_models(tmp_path: Path) -> None:
    rows = made_up("classification", 12, 3)
    models = [model_folder(tmp_path / name, "classification", seed=seed) for seed, name in enumerate("ab")]
    found = bertsmith.evaluate([bertsmith.load(models[0], device="cpu"), models[1]], rows, device="cpu")
    assert found.scores == evaluate(models, "classification", {"dev": write(tmp_path / "d.jsonl", rows)}).scores
    assert [one.name for one in found.models] == ["a", "b"]
    with pytest.raises(bertsmith.BertsmithError, match="at least one model"):
        bertsmith.evaluate([], rows)


def test_models_that_cannot_be_averaged_are_refused_in_one_line(tmp_path: Path) -> None:
    kind = "classification"
    dev, a = dev_file(tmp_path, kind), model_folder(tmp_path / "a", kind)
    other = model_folder(tmp_path / "other", kind, labels=("copper", "gold", "iron", "tin"))
    with pytest.raises(ConfigError, match=r"the labels differ: silver only in .*a, tin only in .*other: an ensemble"):
        opened([a, other], kind, dev)
    runs = []
    for name, files in (("one", {"dev": str(dev)}), ("two", {"dev": "other.jsonl"})):
        run = tmp_path / name
        model_folder(run / "best", kind)
        recipe = {"task": {"kind": kind}, "model": "m", "files": files}
        (run / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
        runs.append(run)
    (tmp_path / "other.jsonl").write_bytes(dev.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        done = call("evaluate", *runs, "--device", "cpu")
    assert (done.returncode, done.stderr.count("\n")) == (78, 1)
    assert "have other dev examples: pass --data DIR, or --dev FILE" in done.stderr
    pairs = tmp_path / "three"
    model_folder(pairs / "best", kind)
    (pairs / "recipe.json").write_text(json.dumps({"task": {"kind": "pairs"}, "model": "m"}), encoding="utf-8")
    for words, message in {
        (runs[0], pairs, "--dev", dev): f"{runs[0]} was fine-tuned on classification, but {pairs} on pairs",
        (a, a, "-t", kind, "--dev", dev, "--tokenizer", a): "--tokenizer names the tokenizer of one model",
        (a, "./b", "-t", kind, "--dev", dev): "./b is not a setting: no such folder, if it is a further model",
    }.items():
        done = call("evaluate", *words, "--device", "cpu")
        assert done.returncode, words
        assert done.stderr.count("\n") == 1, done.stderr
        assert message in done.stderr, done.stderr


def test_models_of_characters_and_of_words_are_not_averaged(tmp_path: Path) -> None:
    model, dev = model_folder(tmp_path / "m", "tagging"), dev_file(tmp_path, "tagging")
    settings = [make_evaluation_config(None, "tagging", [f"task.unit={unit}"]) for unit in ("word", "character")]
    with pytest.raises(ConfigError, match=r"labels each word, but .* each character: set task\.unit to the same"):
        open_models(settings, [model, model], {"dev": dev}, device="cpu")


def test_names_of_models_are_distinct() -> None:
    folders = [Path("runs/a/best"), Path("runs/b/best"), Path("x/c"), Path("y/c"), Path("runs/a/best")]
    assert distinct_names(folders[:3]) == ["a", "b", "c"]
    assert distinct_names(folders) == ["runs/a/best", "b", "x/c", "y/c", "runs/a/best (2)"]
