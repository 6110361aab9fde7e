"""TagLM: the alignment of frozen features with words, where they are concatenated, and training."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from frozen_fixtures import SENTENCES, TEXT, WORDS, bert_folder, conll_file, lm_folder, pieces, saved, word_folder
from model_fixtures import randomize_weights, relative_difference

import bertsmith
from bertsmith.data.collate import collate
from bertsmith.encoders import awd_lstm, elmo, taglm
from bertsmith.encoders.encoder import Encoder
from bertsmith.errors import BertsmithError, ConfigError, EqualWordsWarning
from bertsmith.model_io.loading import parameter_count
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_model, open_over, save_model
from bertsmith.nn.scalar_mix import ScalarMix
from bertsmith.objectives import tag
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.training.finetune import finetune
from bertsmith.training.recipe import make_finetune_config
from bertsmith.types import Batch

QUICK = ["schedule.kind=linear", "learning_rate=0.03", "batch_size=4", "encoder.dropout=0", "head.dropout=0"]
QUICK += ["evals_per_epoch=0"]
ELMO: dict[str, Any] = {"width": 4, "hidden": 6, "filters": ((1, 4), (2, 4)), "character_width": 4, "highway": 1}
SMALL: dict[str, Any] = {"kind": "taglm", "hidden": 5, "character_hidden": 3}


def built(folder: Path, *features: Path, **settings: Any) -> tuple[Encoder, Tokenizer]:
    """An encoder with large weights over word vectors, in evaluation mode."""
    words = word_folder(folder / "words") if not (folder / "words").exists() else folder / "words"
    encoder = {**SMALL, "features": [str(one) for one in features], **settings}
    model, tokenizer, _ = open_over(words, {"tag": tag.Config()}, encoder=encoder)
    randomize_weights(model)
    return model.encoder.eval(), tokenizer


def batch_of(tokenizer: Tokenizer, *texts: str, **options: Any) -> Batch:
    rows = [tokenizer.frame(tokenizer.encode(text), max_length=60) for text in texts]
    return collate(rows, **{"length": 20, **options})


def frozen_layers(encoder: Encoder, batch: Batch) -> list[torch.Tensor]:
    """All layers of its first frozen encoder."""
    assert isinstance(encoder, taglm.TagLM)
    return encoder.features(batch)[0]


@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
def test_a_word_has_the_vector_of_the_piece_that_has_read_all_of_it(direction: str, tmp_path: Path) -> None:
    folder = (
        bert_folder(tmp_path / "lm")
        if direction == "both"
        else lm_folder(tmp_path / "lm", backward=direction == "backward")
    )
    encoder, tokenizer = built(tmp_path, folder)
    found = frozen_layers(encoder, batch_of(tokenizer, TEXT))
    lm, its_tokenizer, _ = open_model(folder)
    encoded = its_tokenizer.encode(TEXT)
    row = its_tokenizer.frame(encoded, max_length=60)
    alone = lm.encoder(collate([row], length=len(row)), return_layers=True, pool=False).layers
    pieces = [[n for n, one in enumerate(row.words) if one == number] for number in range(4)]
    assert max(map(len, pieces)) > 2, "words have several pieces"
    read = [some[-1] if direction == "forward" else some[0] for some in pieces]
    start = list(tokenizer.frame_ids.single).index("a")
    for layer, expected in zip(found, alone, strict=True):
        assert relative_difference(layer[start : start + 4], expected[read]) < 1e-5
        assert not layer[start + 4 :].any(), "special tokens and padding have no features"


def test_elmo_gives_its_layers_and_reads_unknown_words(tmp_path: Path) -> None:
    folder = saved(tmp_path / "elmo", elmo.Config(**ELMO), WORDS)
    encoder, tokenizer = built(tmp_path, folder, feature_layers="mix", features_at=[0, 2])
    text = "Anna Oslo lives Rome"  # two of them are not in its vocabulary
    found = frozen_layers(encoder, batch_of(tokenizer, text))
    lm, its_tokenizer, _ = open_model(folder)
    row = its_tokenizer.frame(its_tokenizer.encode(text), max_length=60)
    alone = lm.encoder(collate([row], length=len(row)), return_layers=True, pool=False).layers
    ours, theirs = (list(one.frame_ids.single).index("a") for one in (tokenizer, its_tokenizer))
    for layer, expected in zip(found, alone, strict=True):
        assert relative_difference(layer[ours : ours + 4], expected[theirs : theirs + 4]) < 1e-5
    assert relative_difference(found[0][ours + 1], found[0][ours + 3]) > 1e-3, "unknown words differ"


def test_texts_without_a_word_have_no_features_of_elmo(tmp_path: Path) -> None:
    folder = saved(tmp_path / "elmo", elmo.Config(**ELMO), WORDS)
    encoder, tokenizer = built(tmp_path, folder, feature_layers="mix", mix_layer_norm=True)
    batch = batch_of(tokenizer, "")
    assert all(layer.is_floating_point() and not layer.any() for layer in frozen_layers(encoder, batch))
    assert encoder(batch).last_hidden.isfinite().all()


def test_long_texts_are_read_in_windows(tmp_path: Path) -> None:
    short = bert_folder(tmp_path / "short", max_positions=16)
    whole = bert_folder(tmp_path / "whole")
    text = " ".join(SENTENCES[1:3])
    (encoder, tokenizer), (other, _) = built(tmp_path, short), built(tmp_path, whole)
    found, expected = (frozen_layers(one, batch_of(tokenizer, text))[0] for one in (encoder, other))
    nonzero = found.abs().sum(1) > 0
    assert torch.equal(nonzero, expected.abs().sum(1) > 0)
    assert int(nonzero.sum()) == len(text.split())
    assert len(encoder.frozen_encoders()["features-0"].align(tuple(text.split())).rows) > 1


def test_words_without_a_piece_and_texts_without_a_word_have_no_features(tmp_path: Path) -> None:
    encoder, tokenizer = built(tmp_path, lm_folder(tmp_path / "lm"))
    part = encoder.frozen_encoders()["features-0"]
    assert part.align(("\u200b", "anna")).first.tolist()[0] == -1, "WordPiece drops format characters"
    batch = batch_of(tokenizer, "", "anna")
    assert not frozen_layers(encoder, batch)[0][:20].any()
    assert encoder(batch_of(tokenizer, "")).last_hidden.isfinite().all()


@pytest.mark.parametrize("change", ['features=["lm"]', "cell=lstm", "hidden=8"])
def test_its_settings_without_its_kind_name_the_kind(change: str, tmp_path: Path) -> None:
    data = conll_file(tmp_path / "train.conll", 2)
    settings = make_finetune_config("tagging", word_folder(tmp_path / "words"), {"train": data}, [f"encoder.{change}"])
    expected = "word_vectors has no setting .*; it is one of taglm, over word vectors: add encoder.kind=taglm"
    with pytest.raises(ConfigError, match=expected):
        finetune(settings, tmp_path / "run", device="cpu", quiet=True)


def test_texts_of_a_batch_do_not_affect_each_other(tmp_path: Path) -> None:
    encoder, tokenizer = built(tmp_path, lm_folder(tmp_path / "a"), bert_folder(tmp_path / "b"), features_at=[0, 1, 2])
    together = batch_of(tokenizer, *SENTENCES, pack=True, length=40)
    assert len(together.input_ids) < len(SENTENCES)
    all_hidden = encoder(together).last_hidden
    for number, text in enumerate(SENTENCES):
        alone = encoder(batch_of(tokenizer, text)).last_hidden
        size = int((together.sample_ids == number).sum())
        first = int(together.cls_positions[number])
        assert relative_difference(all_hidden[first : first + size], alone[:size]) < 1e-5


@pytest.mark.parametrize(("cell", "network"), [("gru", torch.nn.GRU), ("lstm", torch.nn.LSTM)])
def test_layers_are_bidirectional_ones_of_the_chosen_cell(cell: str, network: Any, tmp_path: Path) -> None:
    encoder, tokenizer = built(tmp_path, cell=cell)
    batch = batch_of(tokenizer, TEXT)
    size = int((batch.document_ids > 0).sum())
    outputs = [output[:size] for output in encoder(batch, return_layers=True).layers]
    for layer, one in enumerate(encoder.networks):
        theirs = network(outputs[layer].shape[1], 5, batch_first=True, bidirectional=True)
        ways = (("", one.forward_lstms[0]), ("_reverse", one.backward_lstms[0]))
        theirs.load_state_dict({name + way: value for way, part in ways for name, value in part.state_dict().items()})
        expected = theirs(outputs[layer][None])[0][0]
        assert relative_difference(outputs[layer + 1], expected) < 1e-5
    save_model(Model(encoder, []), tokenizer, tmp_path / "saved")
    again, _, _ = open_model(tmp_path / "saved")
    assert torch.equal(again.encoder(batch).last_hidden[:size], outputs[-1])


def test_features_are_concatenated_where_the_setting_says(tmp_path: Path) -> None:
    lm = lm_folder(tmp_path / "lm")
    plain = built(tmp_path)[0].layer_widths
    assert plain == (6 + 2 * 3, 10, 10)
    for layer in range(3):
        encoder, tokenizer = built(tmp_path, lm, features_at=[layer])
        assert [a - b for a, b in zip(encoder.layer_widths, plain, strict=True)] == [8 * (n == layer) for n in range(3)]
        batch = batch_of(tokenizer, TEXT)
        layers = encoder(batch, return_layers=True).layers
        assert torch.equal(layers[layer][:, -8:], frozen_layers(encoder, batch)[-1])
    assert built(tmp_path, lm, layers=0, features_at=[0])[0].width == 12 + 8
    with pytest.raises(ConfigError, match=r"with encoder.layers=1, write encoder.features_at=\[1\]"):
        built(tmp_path, lm, layers=1, features_at=[2])


def test_the_mix_is_a_scaled_sum_of_layers_with_a_penalty(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "bert")
    settings = {"feature_layers": "mix", "mix_l2": 0.5, "mix_layer_norm": True, "features_at": [0]}
    encoder, tokenizer = built(tmp_path, folder, **settings)
    batch = batch_of(tokenizer, TEXT)
    weights, scale = (dict(encoder.named_parameters())[f"mixes.0.mixes.0.{name}"] for name in ("weights", "scale"))
    layers = [torch.nn.functional.layer_norm(layer, (8,)) for layer in frozen_layers(encoder, batch)]
    expected = scale * sum(share * layer for share, layer in zip(weights.softmax(0), layers, strict=True))
    assert relative_difference(encoder(batch, return_layers=True).layers[0][:, -8:], expected) < 1e-6
    penalty = sum(mix.penalty() for mix in encoder.modules() if isinstance(mix, ScalarMix))
    assert float(penalty.detach()) == pytest.approx(0.5 * float(weights.detach().square().sum()))
    with pytest.raises(ConfigError, match="have different widths"):
        built(tmp_path, _uneven(tmp_path), feature_layers="mix")


def test_a_mix_needs_features(tmp_path: Path) -> None:
    lm = lm_folder(tmp_path / "lm")
    for setting, shown in (({"mix_l2": 0.1}, "mix_l2=0.1"), ({"mix_layer_norm": True}, "mix_layer_norm=true")):
        with pytest.raises(ConfigError, match=f"{shown} is for features of frozen encoders: set encoder.features="):
            built(tmp_path, feature_layers="mix", **setting)
        with pytest.raises(ConfigError, match="need the weighted sum of layers: set"):
            built(tmp_path, lm, **setting)


def _uneven(folder: Path) -> Path:
    sizes = {"layers": 2, "width": 8, "hidden": 9, "vocab_size": pieces().vocab_size}
    return saved(folder / "uneven", awd_lstm.Config(**sizes), pieces())


def test_the_penalty_is_added_once_whatever_the_micro_batches(tmp_path: Path) -> None:
    words = word_folder(tmp_path / "words")
    encoder = {**SMALL, "features": [str(bert_folder(tmp_path / "b"))], "feature_layers": "mix", "mix_l2": 0.5}
    model, tokenizer, _ = open_over(words, {"tag": tag.Config()}, encoder=encoder, seed=1)
    randomize_weights(model)
    rows = [tokenizer.frame(tokenizer.encode(text), max_length=60) for text in SENTENCES]
    labels = {"tag": [[0, 1]] * 4}
    indices = {"tag": [[1, 2]] * 4}
    losses = []
    for size in (4, 2):
        parts = [slice(begin, begin + size) for begin in range(0, 4, size)]
        some = [
            collate(rows[part], length=20, labels={"tag": labels["tag"][part]}, indices={"tag": indices["tag"][part]})
            for part in parts
        ]
        counts = [model.counts(batch) for batch in some]
        divisors = {name: sum(count[name] for count in counts) for name in counts[0]}
        model.eval()
        losses.append(float(sum(model(batch).total(divisors).detach() for batch in some)))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    penalty = 0.5 * sum(value.square().sum() for name, value in model.named_parameters() if name.endswith(".weights"))
    assert losses[0] > float(penalty.detach()) > 0
    assert float(model(some[0]).sums["penalty"].detach()) == pytest.approx(float(penalty.detach()))


def tuned(folder: Path, task: str, data: dict[str, Path], *features: Path, changes: list[str]) -> dict[str, Any]:
    words = word_folder(folder / "words") if not (folder / "words").exists() else folder / "words"
    listed = ",".join(f'"{one}"' for one in features)
    common = ["encoder.kind=taglm", f"encoder.features=[{listed}]", "encoder.hidden=8", "encoder.character_hidden=4"]
    settings = make_finetune_config(task, words, data, [*common, *changes])
    return finetune(settings, folder / "run", quiet=True, device="cpu")


def test_a_tagger_is_trained_saved_with_its_language_models_and_used_without_them(tmp_path: Path) -> None:
    data = {name: conll_file(tmp_path / f"{name}.conll", repeats) for name, repeats in (("train", 8), ("dev", 2))}
    lms = [lm_folder(tmp_path / "forward"), lm_folder(tmp_path / "backward", backward=True)]
    before = open_model(lms[0])[0].encoder.state_dict()
    result = tuned(tmp_path, "tagging", data, *lms, changes=["epochs=8", "head.crf=true", *QUICK])
    assert result["score/f1"] > 0.9
    for folder in (*lms, tmp_path / "words"):
        shutil.rmtree(folder)
    model = bertsmith.load(tmp_path / "run" / "best", device="cpu")
    weights = sum(value.numel() for name, value in model.model.state_dict().items())
    assert parameter_count(model.model) == weights, "frozen weights are counted"
    stored = model.model.encoder.frozen_encoders()["features-0"].encoder.state_dict()
    assert all(torch.equal(stored[name], value) for name, value in before.items())
    found = {(one["word"], one["entity_group"]) for one in model.ner("Dora Smith lives in Oslo .")}
    assert {("Dora Smith", "PER"), ("Oslo", "LOC")} <= found or {("Dora", "PER"), ("Smith", "PER")} <= found
    save_model(model.model, model.tokenizer, tmp_path / "copy")
    again = bertsmith.load(tmp_path / "copy", device="cpu")
    assert again.ner(SENTENCES[0]) == model.ner(SENTENCES[0])
    (tmp_path / "copy" / "features-1" / "vocab.txt").write_text("changed")
    with pytest.raises(BertsmithError, match="features-1"):
        bertsmith.load(tmp_path / "copy", device="cpu")


def test_texts_are_classified_with_features(tmp_path: Path) -> None:
    rows = ['{"text": "Anna lives in Paris", "label": "a"}\n', '{"text": "the play of Dora", "label": "b"}\n']
    (tmp_path / "train.jsonl").write_text("".join(rows * 8), encoding="utf-8")
    data = {"train": tmp_path / "train.jsonl", "dev": tmp_path / "train.jsonl"}
    changes = ["epochs=6", *QUICK, "encoder.features_at=[0,2]", "encoder.feature_layers=mix"]
    result = tuned(tmp_path, "classification", data, bert_folder(tmp_path / "bert"), changes=changes)
    assert result["score/accuracy"] == 1
    model = bertsmith.load(tmp_path / "run" / "best", device="cpu")
    assert model.predict(["Anna lives in Paris"])[0]["label"] == "a"


def test_frozen_word_vectors_and_lower_case(tmp_path: Path) -> None:
    words = word_folder(tmp_path / "words", unknown="hashed")
    encoder, tokenizer = built(tmp_path, tune_words=False)
    assert not any(name.startswith("words.") for name, _ in encoder.named_parameters())
    batch = batch_of(tokenizer, "Émile émile Paris paris")
    vectors = encoder.embed(batch)
    start = list(tokenizer.frame_ids.single).index("a")
    word_part, character_part = vectors[start:, :6], vectors[start:, 6:]
    assert torch.equal(word_part[0], word_part[1]), "the vectors of words are of lower-cased words"
    assert torch.equal(word_part[2], word_part[3])
    assert not torch.equal(character_part[2], character_part[3]), "characters are as written"
    original, its_tokenizer, _ = open_model(words)
    assert torch.equal(original.encoder.embed(batch_of(its_tokenizer, "émile"))[start], word_part[0])


@pytest.mark.parametrize("kind", ["gru", "cnn"])
def test_the_padding_of_words_changes_nothing(kind: str, tmp_path: Path) -> None:
    encoder, tokenizer = built(tmp_path, characters=kind)
    alone = encoder.embed(batch_of(tokenizer, "anna"))
    beside = encoder.embed(batch_of(tokenizer, "anna", "a" * 40))
    assert relative_difference(beside[:3], alone[:3]) < 1e-6


def test_what_taglm_is_not_built_over_is_an_error(tmp_path: Path) -> None:
    bert = bert_folder(tmp_path / "bert")
    with pytest.raises(ConfigError, match="whose tokens are words"):
        open_over(bert, {}, encoder=SMALL)
    words = word_folder(tmp_path / "words")
    with pytest.raises(ConfigError, match=r"encoder.kind=bert is not built over another encoder, only taglm"):
        open_over(words, {}, encoder={"kind": "bert"})
    with pytest.raises(ConfigError, match=r"encoder\.hiden"):
        open_over(words, {}, encoder={"kind": "taglm", "hiden": 3})
    with pytest.raises(ConfigError, match=r"encoder.words cannot be set"):
        open_over(words, {}, encoder={"kind": "taglm", "words": {}})
    with pytest.raises(ConfigError, match=r"unknown=random must be one of vector, hashed, characters"):
        open_over(words, {}, encoder={"kind": "taglm", "unknown": "random"})


def test_the_vectors_of_unknown_words_are_a_setting(tmp_path: Path) -> None:
    words, found = word_folder(tmp_path / "words"), []
    for unknown in ("vector", "hashed"):
        model, tokenizer, _ = open_over(words, {}, encoder={**SMALL, "unknown": unknown})
        batch = batch_of(tokenizer, "zyzzyva qwertz")
        assert isinstance(model.encoder, taglm.TagLM)
        found.append(model.encoder.words.embed(batch.replace(input_ids=torch.ones_like(batch.input_ids)))[1:3])
    assert torch.equal(found[0][0], found[0][1])
    assert not torch.equal(found[1][0], found[1][1])


def test_new_weights_but_for_frozen_encoders(tmp_path: Path) -> None:
    encoder, _ = built(tmp_path, lm_folder(tmp_path / "lm"), feature_layers="mix")
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    encoder.init_weights()
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, before[name]) == name.startswith("features."), name


@pytest.mark.parametrize("characters", ["cnn", "gru"])
def test_long_words_are_cut_and_a_warning_names_them(characters: str, tmp_path: Path) -> None:
    encoder, tokenizer = built(tmp_path, characters=characters)
    with pytest.warns(EqualWordsWarning, match=r"equal in their first 48 bytes get the same vector.*: 1 here"):
        same = encoder.embed(batch_of(tokenizer, f"{'x' * 200} {'x' * 201}"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = encoder.embed(batch_of(tokenizer, f"{'x' * 200} {'x' * 47}y"))
    assert torch.equal(same[1], same[2])
    assert not torch.equal(other[1], other[2])
