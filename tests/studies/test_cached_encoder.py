"""An encoder that repeats another: the same layers and logits as from the encoder itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from model_fixtures import (
    PADDING,
    random_labels,
    random_rows,
    randomize_weights,
    relative_difference,
    small_bert_config,
)

from bertsmith.data.collate import collate
from bertsmith.encoders import elmo
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.model_io.folder_tokenizer import spelling
from bertsmith.model_io.frozen_encoders import encoder_digest
from bertsmith.model_io.model import Model
from bertsmith.nn.pooling import LayerChoice
from bertsmith.objectives import classify, tag
from bertsmith.objectives.objective import BuildContext
from bertsmith.studies.cached_encoder import CachedEncoder, feature_extractor
from bertsmith.studies.feature_files import FeatureSpec, Precision, cache_features
from bertsmith.studies.features import ROWS, chosen_layers, layer_indices
from bertsmith.tokenizers.words import Config as WordsConfig
from bertsmith.types import Batch

LENGTHS = [12, 9, 23, 7, 40, 5, 5, 16]


def batch_of(*, pack: bool = True) -> Batch:
    rows = random_rows(LENGTHS)
    labels, indices = random_labels(rows)
    tags = {"labels": {"tag": labels["tag"]}, "indices": indices}
    return collate(rows, length=40, padding_id=PADDING, pack=pack, shape=(9, 10), **tags)


def model_of(**head: object) -> Model:
    settings = small_bert_config(layers=4, dropout=0.0, attention_dropout=0.0)
    return randomize_weights(Model.build(settings, [tag.Config(recurrent_width=8, **head)]))  # type: ignore[arg-type]


def cached_encoder(model: Model, folder: Path, layers: LayerChoice, precision: Precision = "float32") -> CachedEncoder:
    numbers = layer_indices(layers, model.encoder)
    spec = FeatureSpec(encoder_digest(model.encoder), tuple(numbers), model.encoder.width, precision)
    extract = feature_extractor(model.encoder, list(numbers), padding_id=PADDING, device="cpu")
    return CachedEncoder(
        cache_features(folder, random_rows(LENGTHS), spec, extract, quiet=True), model.encoder, numbers
    )


@pytest.mark.parametrize("recurrent", ["none", "bilstm"])
@pytest.mark.parametrize("layers", [*ROWS, "mix"])
def test_logits_and_gradients_are_those_of_the_live_encoder(
    layers: LayerChoice, recurrent: str, tmp_path: Path
) -> None:
    live = model_of(layers=layers, recurrent=recurrent, dropout=0.0).eval()
    cached, batch = live.with_encoder(cached_encoder(live, tmp_path, layers)), batch_of()
    assert relative_difference(cached.predict(batch, "tag"), live.predict(batch, "tag")) < 1e-6
    gradients = []
    for model in (live, cached):
        model.zero_grad()
        model(batch).mean().backward()
        gradients.append([weight.grad.clone() for weight in live.objectives.parameters() if weight.grad is not None])
    for actual, expected in zip(*gradients, strict=True):
        assert torch.allclose(actual, expected, rtol=1e-4, atol=1e-6)


def test_float16_features_are_close(tmp_path: Path) -> None:
    live = model_of(layers="all_sum", recurrent="bilstm").eval()
    cached = live.with_encoder(cached_encoder(live, tmp_path, "all_sum", "float16"))
    assert 0 < relative_difference(cached.predict(batch_of(), "tag"), live.predict(batch_of(), "tag")) < 1e-2


def test_the_cached_encoder_has_no_parameters_and_is_not_saved(tmp_path: Path) -> None:
    live = model_of(layers="top", recurrent="bilstm")
    cached = live.with_encoder(cached_encoder(live, tmp_path, "top"))
    assert not list(cached.encoder.parameters())
    assert not cached.encoder.state_dict()
    assert cached.layer_groups() == [cached.objectives]
    assert cached.objectives["tag"] is live.objectives["tag"]


def test_unsupported_requests_are_errors(tmp_path: Path) -> None:
    live = model_of(layers="top", recurrent="bilstm")
    replay = cached_encoder(live, tmp_path, "top")
    with pytest.raises(BertsmithError, match="has no attentions"):
        replay(batch_of(), return_attentions=True)
    with pytest.raises(BertsmithError, match="not in the feature cache"):
        replay(batch_of().replace(input_ids=batch_of().input_ids + 1), return_layers=True)
    with pytest.raises(ConfigError, match="the encoder has no pooler"):
        Model(replay, [classify.Config().build(BuildContext(width=32, vocab_size=97))])


def test_other_weights_or_settings_are_another_encoder() -> None:
    first = small_bert_config(heads=4).build()
    same = small_bert_config(heads=4).build()
    same.load_state_dict(first.state_dict())
    other = small_bert_config(heads=2).build()
    other.load_state_dict(first.state_dict())
    assert encoder_digest(first) == encoder_digest(same) != encoder_digest(other)
    with torch.no_grad():
        same.token_embeddings[5, 3] += 1e-3
    assert encoder_digest(first) != encoder_digest(same)


def test_a_small_encoder_has_fewer_rows() -> None:
    assert chosen_layers(small_bert_config(layers=2).build(), ()) == ("embeddings", "second_to_last", "top", "all_sum")
    assert chosen_layers(small_bert_config(layers=4).build(), ()) == ROWS
    assert chosen_layers(small_bert_config(layers=2).build(), ["mix", "top", "mix"]) == ("mix", "top")
    with pytest.raises(ConfigError, match="the encoder has only 2 layers"):
        chosen_layers(small_bert_config(layers=2).build(), ["last_four_sum"])
    with pytest.raises(ConfigError, match="--layers last must be one of"):
        chosen_layers(small_bert_config(layers=2).build(), ["last"])


def test_unknown_words_have_features_of_their_own(tmp_path: Path) -> None:
    """ELMo reads characters: rows with equal ids may differ."""
    words = WordsConfig(lowercase=False).train({"the": 5}, vocab_size=20)
    tokenizer = spelling(words, reads_ids=False)
    rows = [tokenizer.frame(tokenizer.encode(text), max_length=20) for text in ("the Zyzzyva", "the qu", "the qux the")]
    assert rows[0].ids.tolist() == rows[1].ids.tolist()
    encoder = elmo.Config(width=8, hidden=12, filters=((1, 4), (2, 8))).build().eval()
    spec = FeatureSpec(encoder_digest(encoder), (0, 1, 2), encoder.width, "float32")
    extract = feature_extractor(encoder, [0, 1, 2], padding_id=0, device="cpu")
    cached = CachedEncoder(cache_features(tmp_path, rows, spec, extract, quiet=True), encoder, range(3))
    batch = collate(rows, length=12, pack=True)
    with torch.no_grad():
        live = encoder(batch, return_layers=True).layers
    shown = batch.document_ids.flatten() > 0
    for found, expected in zip(cached(batch, return_layers=True).layers, live, strict=True):
        assert torch.allclose(found[shown], expected[shown], atol=1e-6)
    assert (live[0][2] - live[0][6]).abs().max() > 1e-4, "the two unknown words"
