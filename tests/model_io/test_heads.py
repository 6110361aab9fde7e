"""Heads of fine-tuning in folders: labels and settings, heads that transformers does not have, new heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model_fixtures import randomize_weights
from model_io.folder_fixtures import (
    Tensors,
    change_config,
    change_weights,
    folder,
    foreign,
    model,
    one_line,
    same_weights,
    tokenizer,
)

from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.model_io.importers import import_folder
from bertsmith.model_io.model_folder import open_for, open_model, save_model
from bertsmith.objectives import choose, classify, masked_lm, multi_label, regress, span, tag

COLOURS = ("red", "green", "파랑")


SETTINGS = {
    "classes": classify.Config(labels=COLOURS, dropout=0.3),
    "numbers": regress.Config(dropout=0.0),
    "several classes": multi_label.Config(labels=COLOURS, dropout=0.2),
    "words": tag.Config(labels=("O", "B-PER", "I-PER"), dropout=0.25),
    "choices": choose.Config(dropout=0.4),
    "spans": span.Config(),
    "spans that may be none": span.Config(no_answer=-1.25),
}
NATIVE = {
    "mean of a mix": classify.Config(labels=COLOURS, pooling="mean", layers="mix"),
    "last": regress.Config(pooling="last"),
    "raw": choose.Config(pooling="cls", layers="second_to_last"),
    "recurrent": tag.Config(recurrent="bilstm", recurrent_width=9, recurrent_layers=2, layers="all_sum"),
    "recurrent span": span.Config(recurrent="bilstm", recurrent_width=9, recurrent_layers=1),
    "recurrent class": classify.Config(labels=COLOURS, recurrent="bilstm", recurrent_width=9, pooling="mean"),
    "recurrent number": regress.Config(recurrent="bilstm", recurrent_width=9, recurrent_layers=1, pooling="last"),
    "recurrent choice": choose.Config(recurrent="bilstm", recurrent_width=9, pooling="concat", layers="mix"),
    "wide": tag.Config(layers="last_four_concat"),
}


@pytest.mark.parametrize("case", [*SETTINGS, *NATIVE])
def test_settings_and_weights_survive_saving_and_loading(case: str, tmp_path: Path) -> None:
    settings = (SETTINGS | NATIVE)[case]
    ours = model(settings, layers=4)
    save_model(ours, tokenizer(), tmp_path / "m")
    again, _, facts = open_model(tmp_path / "m")
    same_weights(ours, again)
    (head,) = again.objectives.values()
    assert head.config == next(iter(ours.objectives.values())).config
    assert again.encoder.config == ours.encoder.config
    assert facts.notes == ()
    assert open_model(tmp_path / "m", objectives=())[0].objectives.keys() == set()
    imported = import_folder(tmp_path / "m", tmp_path / "n")
    assert imported.verified
    same_weights(ours, open_model(tmp_path / "n")[0])


def test_values_of_config_json(tmp_path: Path) -> None:
    folder(tmp_path / "m", SETTINGS["classes"])
    written = json.loads((tmp_path / "m" / "config.json").read_text())
    assert written["architectures"] == ["BertForSequenceClassification"]
    assert written["id2label"] == {"0": "red", "1": "green", "2": "파랑"}
    assert written["label2id"] == {"red": 0, "green": 1, "파랑": 2}
    assert (written["num_labels"], written["problem_type"]) == (3, "single_label_classification")
    assert written["classifier_dropout"] == 0.3
    assert "bertsmith" not in written
    folder(tmp_path / "n", "masked_lm")
    plain = json.loads((tmp_path / "n" / "config.json").read_text())
    assert plain["classifier_dropout"] is None
    assert "id2label" not in plain


def test_a_head_that_transformers_does_not_have_is_written_natively(tmp_path: Path) -> None:
    folder(tmp_path / "m", NATIVE["mean of a mix"])
    written = json.loads((tmp_path / "m" / "config.json").read_text())
    assert written["model_type"] == "bertsmith"
    assert written["objectives"]["classify"]["pooling"] == "mean"
    card = (tmp_path / "m" / "README.md").read_text()
    assert "bertsmith.load" in card
    assert "from transformers" not in card


def test_defaults_of_settings_that_are_not_in_a_folder(tmp_path: Path) -> None:
    path = foreign(tmp_path / "m", SETTINGS["classes"], dropout=0.2)
    change_config(path, id2label=..., label2id=..., num_labels=..., problem_type=..., classifier_dropout=None)
    head = open_model(path)[0].objectives["classify"]
    assert head.config == classify.Config(labels=("LABEL_0", "LABEL_1", "LABEL_2"), dropout=0.2, pooling="pooler")


@pytest.mark.parametrize("says", [{"problem_type": None}, {"problem_type": "regression"}, {"id2label": ...}], ids=str)
def test_one_label_is_regression(says: dict[str, Any], tmp_path: Path) -> None:
    path = foreign(tmp_path / "m", "regress")
    change_config(path, **says)
    assert list(open_model(path)[0].objectives) == ["regress"]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "too many names": ({"id2label": {str(number): str(number) for number in range(4)}}, "names 4 classes, but .* 3"),
    "gap": ({"id2label": {"0": "a", "1": "b", "3": "c"}}, "no name for class 2"),
    "no names": ({"id2label": ["a", "b", "c"]}, "must map every class index"),
    "no text": ({"id2label": {"0": None, "1": [], "2": {}}}, "must map every class index"),
    "twice": ({"id2label": {"0": "a", "1": "b", "2": "a"}}, "'a' more than once"),
    "count": ({"id2label": ..., "num_labels": 10**9}, "num_labels=1000000000, but the weights have 3"),
    "problem": ({"problem_type": "ranking"}, "problem_type='ranking'.*--ignore-heads"),
    "dropout": ({"classifier_dropout": 1.5}, "classifier_dropout=1.5 must be a number"),
    "odd": ({"id2label": {"0": "a\n", "1": "b", "2": "a\n"}}, "more than once"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_labels(case: str, tmp_path: Path) -> None:
    path = foreign(tmp_path / "m", SETTINGS["classes"])
    change_config(path, **WRONG[case][0])
    with pytest.raises(ConfigError, match=WRONG[case][1]) as found:
        open_model(path)
    one_line(found, str(path / "config.json"))
    assert list(open_model(path, objectives=())[0].objectives) == []


def test_weights_of_a_head_that_the_class_does_not_have_are_noted(tmp_path: Path) -> None:
    path = foreign(tmp_path / "m", SETTINGS["classes"])
    change_config(path, architectures=["BertModel"])
    opened, _, facts = open_model(path)
    assert (list(opened.objectives), facts.notes) == ([], ("unused weights: classifier.bias, classifier.weight",))
    assert open_model(path, head="classify")[0].objectives["classify"].config.labels == COLOURS


IOB = {"0": "O", "1": "B-PER", "2": "I-PER"}
OWN: dict[str, tuple[dict[str, tuple[int, ...]], dict[str, Any], list[str], str]] = {
    "text classification": ({"classifier": (3, 32)}, {}, ["classify"], "read as the head classify"),
    "tagging": ({"classifier": (3, 32)}, {"id2label": IOB}, ["tag"], "read as the head tag"),
    "another classifier": ({"classifier": (3, 32), "slots": (9, 32)}, {}, ["classify"], "unused weights: slots.bias"),
    "question answering": ({"qa_outputs": (2, 32)}, {}, ["span"], "qa_outputs.* is read as the head span"),
    "an answer type": ({"qa_outputs": (3, 32)}, {}, [], "qa_outputs.bias is not read, whose kind it does not say"),
    "one number": ({"classifier": (1, 32)}, {}, [], "classifier.bias is not read, whose kind it does not say"),
    "regression": ({"classifier": (1, 32)}, {"problem_type": "regression"}, ["regress"], "head regress"),
    "labels of another head": ({"classifier": (7, 32)}, {"id2label": IOB | {"3": "x"}}, [], "is not read"),
    "two layers": ({"classifier.0": (32, 32), "classifier.2": (3, 32)}, {}, [], "classifier.0.bias is not read"),
    "a layer before": ({"classifier": (3, 32), "dense": (32, 32)}, {}, [], "which dense.bias may precede"),
    "a recurrent layer": ({"qa_outputs": (2, 32), "lstm.0": (64, 32, 2)}, {}, [], "which lstm.0.bias may precede"),
}


@pytest.mark.parametrize("case", OWN)
def test_heads_of_a_class_that_is_not_known(case: str, tmp_path: Path) -> None:
    layers, values, heads, note = OWN[case]
    path = foreign(tmp_path / "m", "masked_lm")
    change_config(path, architectures=["BertForIntents"], **values)
    sizes = {f"{name}.weight": shape for name, shape in layers.items()}
    sizes |= {f"{name}.bias": shape[:1] for name, shape in layers.items()}
    change_weights(path, lambda tensors: tensors | {name: torch.ones(size) for name, size in sizes.items()})
    opened, _, facts = open_model(path)
    assert set(opened.objectives) == {"masked_lm", *heads}
    assert note in "; ".join(facts.notes)
    assert list(open_model(path, ignore_heads=True)[0].objectives) == []


def test_a_head_is_chosen_by_name(tmp_path: Path) -> None:
    path = foreign(tmp_path / "m", SETTINGS["classes"])
    change_config(path, architectures=["MyParser"])
    assert list(open_model(path, head="tag")[0].objectives) == ["tag"]
    with pytest.raises(BertsmithError, match=r"qa_outputs.*has no head span: --head NAME reads another"):
        open_model(path, head="span")
    with pytest.raises(BertsmithError, match="--head tag and --ignore-heads exclude each other"):
        open_model(path, head="tag", ignore_heads=True)


def test_unknown_weights_beside_an_encoder_without_prefix_are_refused_in_a_class_that_is_not_known(
    tmp_path: Path,
) -> None:
    path = foreign(tmp_path / "m", "masked_lm")

    def bare(tensors: Tensors) -> Tensors:
        encoder = {name.removeprefix("bert."): value for name, value in tensors.items() if name.startswith("bert.")}
        return encoder | {"adapter.weight": torch.ones(3, 32)}

    change_weights(path, bare)
    change_config(path, architectures=["BertModel"])
    assert open_model(path)[2].notes == ("unused weights: adapter.weight",)
    change_config(path, architectures=["BertWithAdapters"])
    with pytest.raises(DataError, match=r"unexpected weights: adapter\.weight"):
        open_model(path)


def test_a_tokenizer_of_another_folder(tmp_path: Path) -> None:
    path = foreign(tmp_path / "m", SETTINGS["classes"])
    (tmp_path / "words").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        (path / name).rename(tmp_path / "words" / name)
    with pytest.raises(DataError, match="--tokenizer DIR"):
        open_model(path)
    assert open_model(path, tokenizer=tmp_path / "words")[1].fingerprint == tokenizer().fingerprint
    import_folder(path, tmp_path / "whole", tokenizer=tmp_path / "words")
    assert open_model(tmp_path / "whole")[1].fingerprint == tokenizer().fingerprint
    with pytest.raises(DataError, match="words2 has no tokenizer"):
        open_model(path, tokenizer=tmp_path / "words2")


def test_a_head_of_another_size(tmp_path: Path) -> None:
    path = foreign(tmp_path / "m", "span")

    def wider(tensors: Tensors) -> None:
        tensors["qa_outputs.weight"] = torch.ones(3, 32)

    change_weights(path, wider)
    with pytest.raises(DataError) as found:
        open_model(path)
    one_line(found, "qa_outputs.weight has the shape [3, 32], the config requires [2, 32]")


def test_new_heads_on_a_trained_encoder(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    settings = classify.Config(labels=COLOURS)
    made, words, facts = open_for(path, [settings], seed=1)
    assert list(made.objectives) == ["classify"]
    assert made.objectives["classify"].config == settings.with_pooling("both")
    assert words.fingerprint == tokenizer().fingerprint
    same_weights(made.encoder, model("masked_lm", "next_sentence").encoder)
    (note,) = facts.notes
    assert note.startswith("newly initialised: the head classify; unused weights: cls.predictions.")
    assert note.endswith("and 3 more")


def test_new_heads_are_a_function_of_the_seed(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", "masked_lm", pooler=False)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = open_for(path, [classify.Config()], seed=1)[0]
    assert torch.equal(torch.get_rng_state(), before), "the global random state is unchanged"
    torch.manual_seed(6)
    same_weights(first, open_for(path, [classify.Config()], seed=1)[0])
    other = open_for(path, [classify.Config()], seed=2)[0]
    for name in ("objectives.classify.head.weight", "encoder.pooler.weight"):
        assert not torch.equal(first.get_parameter(name), other.get_parameter(name))


@pytest.mark.parametrize("settings", [span.Config(), tag.Config(), classify.Config(pooling="mean")])
def test_a_pooler_that_no_head_reads_is_removed(settings: Any, tmp_path: Path) -> None:
    made, _, facts = open_for(folder(tmp_path / "m"), [settings])
    assert made.encoder.pooler is None
    assert "bert.pooler.dense.bias" in facts.notes[0]


def test_a_new_pooler_is_noted(tmp_path: Path) -> None:
    _, _, facts = open_for(folder(tmp_path / "m", "masked_lm", pooler=False), [classify.Config()])
    assert facts.notes[0].startswith("newly initialised: the head classify, the pooler; unused weights")


def test_a_new_head_replaces_the_head_of_an_earlier_task(tmp_path: Path) -> None:
    """A new head replaces a stored one of the same name, whatever its size."""
    path = folder(tmp_path / "m", SETTINGS["classes"])
    made, _, facts = open_for(path, [classify.Config(labels=("no", "yes"))])
    assert made.objectives["classify"].head.out_features == 2
    assert "unused weights: classifier.bias, classifier.weight" in facts.notes[0]
    own = folder(tmp_path / "n", NATIVE["mean of a mix"])
    again, _, facts = open_for(own, [tag.Config()])
    assert list(again.objectives) == ["tag"]
    assert "objectives.classify.head.bias" in facts.notes[0]


def test_kept_heads_have_the_weights_of_the_folder(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    made, _, _ = open_for(path, [classify.Config()], keep=[masked_lm.Config(mask_probability=0.3)])
    assert set(made.objectives) == {"masked_lm", "classify"}
    trained = model("masked_lm", "next_sentence").objectives["masked_lm"]
    assert torch.equal(made.objectives["masked_lm"].bias, trained.bias)
    with pytest.raises(BertsmithError, match="classify cannot be both kept and new"):
        open_for(path, [classify.Config()], keep=["classify"])


def test_a_fine_tuned_model_is_saved_and_opened(tmp_path: Path) -> None:
    made = randomize_weights(open_for(folder(tmp_path / "m"), [SETTINGS["words"]])[0], 3)
    save_model(made, tokenizer(), tmp_path / "n")
    again, _, facts = open_model(tmp_path / "n")
    same_weights(made, again)
    assert facts.architectures == ("BertForTokenClassification",)
