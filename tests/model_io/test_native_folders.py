"""Native folders: a user-defined encoder, pre-trained, resumed, fine-tuned, loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from extension_fixtures import BILSTM, extensions
from finetune_fixtures import METALS, QUICK, made_up, write
from frozen_fixtures import WORDS
from model_io.folder_fixtures import tokenizer

import bertsmith
from bertsmith import recipes
from bertsmith.data import prepare
from bertsmith.encoders import awd_lstm, bert
from bertsmith.errors import BertsmithError, ConfigError, DataError, StoppedError
from bertsmith.model_io.folder_tokenizer import vocabulary_of
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_for, open_model, save_model
from bertsmith.objectives import causal_lm, classify, masked_lm, replaced_token, span, tag
from bertsmith.tokenizers.wordpiece import Config as WordPiece
from bertsmith.training.finetune import finetune
from bertsmith.training.pretrain import pretrain
from bertsmith.training.recipe import make_finetune_config, with_overrides
from bertsmith.training.trainer import Trainer

SMALL = [
    "max_length=32",
    "steps=12",
    "batch_size=8",
    "micro_batch_size=4",
    "eval_rows=8",
    "save_every=4",
    "eval_every=6",
]


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "own output table"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Shards, and a pre-training run of a BiLSTM over them."""
    base = tmp_path_factory.mktemp("lstm")
    text = "\n\n".join(str(row["text"]) for row in made_up("classification", 400, 0))
    (base / "text.txt").write_text(text, encoding="utf-8")
    prepare.train_tokenizer(
        [base / "text.txt"], base / "t", settings=WordPiece(), vocab_size=160, workers=1, quiet=True
    )
    prepare.prepare([base / "text.txt"], base / "shards", tokenizer=base / "t", workers=1, quiet=True)
    with extensions(base / "mine", {"encoders/bilstm.py": BILSTM}):
        encoder = ["encoder.kind=bilstm", f"encoder.tied={str(request.param).lower()}"]
        recipe = with_overrides(recipes.find("roberta/tiny"), [*SMALL, *encoder])
        pretrain(recipe, base / "shards", base / "run", device="cpu", quiet=True)
        stop_after(5, lambda: pretrain(recipe, base / "shards", base / "stopped", device="cpu", quiet=True))
        pretrain(recipe, base / "shards", base / "stopped", device="cpu", quiet=True)
        yield base


def stop_after(steps: int, work: Callable[[], object]) -> None:
    before = Trainer.__next__

    def stopping(trainer: Trainer) -> object:
        if trainer.steps_done == steps:
            trainer.stop_signal.request()
        return before(trainer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "__next__", stopping)
        with pytest.raises(StoppedError):
            work()


def test_a_resumed_run_is_bit_identical(base: Path) -> None:
    weights = [(base / run / "last" / "model.safetensors").read_bytes() for run in ("run", "stopped")]
    assert weights[0] == weights[1]


def test_it_fills_masks(base: Path) -> None:
    values = json.loads((base / "run" / "last" / "config.json").read_text())
    assert (values["model_type"], values["encoder"]["kind"]) == ("bertsmith", "bilstm")
    model = bertsmith.load(base / "run" / "last", device="cpu")
    assert len(model.fill_mask("the smith has [MASK] gold")) == 5
    assert model.encode("the smith").shape == (32,)


def test_it_is_fine_tuned_and_predicts(base: Path, tmp_path: Path) -> None:
    files = {"train": write(tmp_path / "train.jsonl", made_up("classification", 64, 1))}
    settings = make_finetune_config("classification", base / "run" / "last", files, [*QUICK, "head.pooling=mean"])
    finetune(settings, tmp_path / "run", device="cpu", quiet=True)
    model = bertsmith.load(tmp_path / "run" / "last", device="cpu")
    assert model.predict("the smith has red gold")["label"] in METALS


def test_an_objective_that_needs_a_pooler_is_refused_in_one_line(base: Path) -> None:
    with pytest.raises(ConfigError, match="classify reads the pooled vector"):
        open_for(base / "run" / "last", [classify.Config()])


HEADS = {
    "two heads": [tag.Config(labels=("O", "B", "I")), span.Config()],
    "with a generator": [replaced_token.Config(generator_width=0.5)],
    "a BiLSTM and a mix of layers": [
        classify.Config(pooling="mean", layers="mix", recurrent="bilstm", recurrent_width=4)
    ],
    "a mix of normalised layers with a penalty": [tag.Config(layers="mix", mix_layer_norm=True, mix_l2=0.1)],
    "words": [masked_lm.Config(mask_probability=0.3, units="words"), tag.Config()],
}


@pytest.mark.parametrize("case", HEADS)
def test_heads_that_transformers_does_not_combine(case: str, tmp_path: Path) -> None:
    words = tokenizer()
    encoder = bert.Config(layers=2, width=32, heads=2, vocab_size=words.vocab_size, max_positions=32)
    model = Model.build(encoder, HEADS[case], vocabulary=vocabulary_of(words)).eval()
    save_model(model, words, tmp_path / "m")
    again, _, facts = open_model(tmp_path / "m")
    assert facts.architectures == ("Bertsmith",)
    assert facts.notes == ()
    assert {name: head.config for name, head in again.objectives.items()} == {
        name: head.config for name, head in model.objectives.items()
    }
    state = model.state_dict()
    assert {name: value.tolist() for name, value in again.state_dict().items()} == {
        name: value.tolist() for name, value in state.items()
    }
    assert not any(value.is_meta for value in [*again.parameters(), *again.buffers()])


def test_folders_without_the_settings_of_the_mix_have_a_plain_one(tmp_path: Path) -> None:
    words = tokenizer()
    encoder = bert.Config(layers=2, width=32, heads=2, vocab_size=words.vocab_size, max_positions=32)
    model = Model.build(encoder, [tag.Config(layers="mix")], vocabulary=vocabulary_of(words)).eval()
    save_model(model, words, tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    values = json.loads(path.read_text())
    for name in ("mix_l2", "mix_layer_norm"):
        del values["objectives"]["tag"][name]
    path.write_text(json.dumps(values))
    (tmp_path / "m" / "checksums.json").unlink()
    again, _, _ = open_model(tmp_path / "m")
    assert again.objectives["tag"].config == tag.Config(layers="mix")
    assert {"objectives.tag.layers.weights", "objectives.tag.layers.scale"} <= set(again.state_dict())


def test_an_encoder_without_its_config_cannot_be_saved(tmp_path: Path) -> None:
    words = tokenizer()
    model = Model.build(bert.Config(layers=1, width=16, heads=2, vocab_size=words.vocab_size), [])
    del model.encoder.config
    with pytest.raises(BertsmithError, match="BERT cannot be saved: it must keep the Config that built it"):
        save_model(model, words, tmp_path / "m")


WRONG = {
    "no encoder": (lambda values: values.pop("encoder"), "needs a table 'encoder'"),
    "no objectives": (lambda values: values.update(objectives=[]), "needs a table 'objectives'"),
    "unknown encoder": (lambda values: values["encoder"].update(kind="rnn"), "'rnn' is not among the encoders"),
    "unknown objective": (lambda values: values["objectives"].update(guess={}), "'guess' is not among the objectives"),
    "unknown setting": (lambda values: values["encoder"].update(depth=3), "depth"),
    "many layers": (lambda values: values["encoder"].update(layers=10**9), "layers=1000000000 is more than 1,024"),
    "one more layer": (lambda values: values["encoder"].update(layers=3), "weights are missing: encoder.blocks.2"),
    "wide": (lambda values: values["encoder"].update(width=10**9, heads=1), "build no model|has the shape"),
    "wider head": (lambda values: values["objectives"]["tag"].update(recurrent_width=11), "has the shape"),
    "huge head": (
        lambda values: values["objectives"]["tag"].update(recurrent_width=10**9),
        "build no model|has the shape",
    ),
    "smaller table": (lambda values: values["encoder"].update(vocab_size=3), "tokens"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_config_that_does_not_fit_the_weights_is_one_line(case: str, tmp_path: Path) -> None:
    words, (change, message) = tokenizer(), WRONG[case]
    encoder = bert.Config(layers=2, width=32, heads=2, vocab_size=words.vocab_size, max_positions=32)
    save_model(Model.build(encoder, [tag.Config(recurrent="bilstm", recurrent_width=9)]), words, tmp_path / "m")
    (tmp_path / "m" / "checksums.json").unlink()
    values = json.loads((tmp_path / "m" / "config.json").read_text())
    change(values)  # type: ignore[no-untyped-call]
    (tmp_path / "m" / "config.json").write_text(json.dumps(values))
    with pytest.raises((ConfigError, DataError), match=message) as caught:
        open_model(tmp_path / "m")
    assert "\n" not in str(caught.value)


def test_weights_are_those_of_the_state_dict(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    words = tokenizer()
    encoder = bert.Config(layers=1, width=16, heads=2, vocab_size=words.vocab_size, max_positions=32)
    model = Model.build(encoder, [tag.Config(), span.Config()])
    save_model(model, words, tmp_path / "m")
    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert set(stored) == set(model.state_dict())
    assert all(torch.equal(value, stored[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("backward", [False, True])
def test_a_language_model_of_columns_reads_texts_as_in_its_stream(tmp_path: Path, backward: bool) -> None:
    """In fine-tuning, in a saved model and in inference; the tokenizer itself stays that of the shards."""
    config = awd_lstm.Config(layers=1, width=8, hidden=8, vocab_size=WORDS.vocab_size, backward=backward)
    save_model(Model.build(config, [causal_lm.Config()]), WORDS, tmp_path / "lm")
    model, words, _ = open_for(tmp_path / "lm", [classify.Config(labels=("a", "b"), pooling="concat")])
    save_model(model, words, tmp_path / "tuned")
    _, again, _ = open_model(tmp_path / "tuned")
    expected = ["anna", "lives", "</s>"] if backward else ["</s>", "anna", "lives"]
    pair = [*expected, *(["in", "paris", "</s>"] if backward else ["</s>", "in", "paris"])]
    for one in (words, again):
        row = one.frame(one.encode("Anna lives"), max_length=9)
        assert [one.id_to_token(number) for number in row.ids.tolist()] == expected
        row = one.frame(one.encode("Anna lives"), one.encode("in Paris"), max_length=9)
        assert [one.id_to_token(number) for number in row.ids.tolist()] == pair
        assert one.fingerprint == WORDS.fingerprint
        assert one.files() == WORDS.files()
    predictor = bertsmith.load(tmp_path / "tuned", device="cpu")
    assert [*predictor.tokenize(["Anna lives"])[0].tokens] == expected
    assert [*predictor.embed_all(["Anna lives"]).tokens[0]] == expected
