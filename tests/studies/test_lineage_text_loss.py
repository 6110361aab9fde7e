"""The text losses of `lineage`: nats per byte by likelihood, in both directions, and of masked tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from studies.study_fixtures import tokenizer_of
from threads import threads

from bertsmith.data.collate import collate
from bertsmith.encoders import bert, elmo, gpt
from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.folder_tokenizer import fitted_to, vocabulary_of
from bertsmith.model_io.model import Model
from bertsmith.objectives import bidirectional_lm, causal_lm, masked_lm
from bertsmith.studies.lineage.text_loss import BYTE, text_loss
from bertsmith.tokenizers import training, words
from bertsmith.tokenizers.tokenizer import Tokenizer


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with threads(1):
        yield


@pytest.fixture(scope="module", params=["one", "classes"])
def vocabulary(request: pytest.FixtureRequest) -> Tokenizer:
    settings = words.Config(lowercase=False, min_count=1, unknowns=request.param)
    counts = training.count_words(["the smith has red iron and a thing of gold ."], settings.word_splitter())
    return settings.train(counts, vocab_size=40)


def predictor_of(encoder: Any, objective: Any, tokenizer: Tokenizer) -> Predictor:
    torch.manual_seed(3)
    model = Model.build(encoder, [objective], vocabulary=vocabulary_of(tokenizer))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return Predictor(model, fitted_to(model.encoder, tokenizer))


def test_a_causal_model_has_a_likelihood(vocabulary: Tokenizer) -> None:
    shape = {"layers": 1, "width": 32, "heads": 2, "max_positions": 64, "vocab_size": vocabulary.vocab_size}
    predictor = predictor_of(gpt.Config(**shape), causal_lm.Config(), vocabulary)
    known, unknown = "the smith has red iron", "the smith has Rhodium iron"
    result = text_loss(predictor, [known])
    assert result is not None
    assert (result["kind"], result["tokens"], result["unknown_bytes"]) == ("likelihood", 4, 0)
    surprisal = predictor.score(known)["surprisal"]
    assert result["nats_per_byte"] == pytest.approx(surprisal / len("smithhasrediron"), rel=1e-6)
    spelled = text_loss(predictor, [unknown])
    assert spelled is not None
    nats = predictor.score(unknown)["surprisal"] + BYTE * len("Rhodium")
    assert spelled["nats_per_byte"] == pytest.approx(nats / len("smithhasRhodiumiron"), rel=1e-6)
    assert spelled["unknown_bytes"] == pytest.approx(7 / 19)


def test_a_bidirectional_language_model_has_the_mean_of_both_directions(vocabulary: Tokenizer) -> None:
    shape = {"width": 8, "hidden": 16, "filters": ((1, 8), (2, 8)), "dropout": 0.0}
    predictor = predictor_of(elmo.Config(**shape), bidirectional_lm.Config(), vocabulary)
    text = "the smith has red iron"
    result = text_loss(predictor, [text])
    assert result is not None
    assert result["kind"] == "likelihood of both directions"
    row = predictor.tokenizer.frame(predictor.tokenizer.encode(text), max_length=32)
    batch = collate([row], length=len(row))
    with torch.no_grad():
        forward, backward = predictor.model.predict(batch, "bidirectional_lm").chunk(2)
    ids, nats, size = batch.input_ids.flatten(), 0.0, 0
    for index in np.flatnonzero(row.sequence_ids == 0).tolist():
        if 0 < index < len(row) - 1:
            nats += float(F.cross_entropy(forward[index - 1], ids[index]))
            nats += float(F.cross_entropy(backward[index + 1], ids[index]))
            size += 2 * int(np.diff(row.offsets[index])[0])
    assert size > 0
    assert result["nats_per_byte"] == pytest.approx(nats / size, rel=1e-5)


def test_a_masked_model_reads_the_same_masks(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path)
    shape = {"layers": 1, "width": 32, "heads": 2, "max_positions": 128, "vocab_size": tokenizer.vocab_size}
    predictor = predictor_of(bert.Config(**shape), masked_lm.Config(), tokenizer)
    text = "the smith has red iron and a thing of gold. " * 90
    result = text_loss(predictor, [text])
    assert result is not None
    assert result == text_loss(predictor, [text])
    assert result["kind"] == "masked"
    tokens = len(tokenizer.encode(text))
    assert 0.1 < int(str(result["tokens"])) / tokens < 0.2
