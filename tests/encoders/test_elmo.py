"""ELMo: states, distinct words, published sizes, settings; test_elmo_hdf5 compares it with a reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from encoders.test_awd_lstm import rows
from model_fixtures import random_batch

from bertsmith import recipes
from bertsmith.data.collate import collate
from bertsmith.encoders import elmo
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.model_io.folder_tokenizer import spelling
from bertsmith.model_io.loading import parameter_count
from bertsmith.nn.meta_device import on_meta_device
from bertsmith.tokenizers.words import Config as WordsConfig
from bertsmith.types import Batch

SMALL: dict[str, Any] = {"width": 6, "hidden": 10, "filters": ((1, 4), (3, 5)), "dropout": 0.0}


def build(**settings: Any) -> elmo.ELMo:
    torch.manual_seed(0)
    made = elmo.Config(**{**SMALL, **settings}).build()
    for weight in made.parameters():
        torch.nn.init.normal_(weight, 0, 0.4)
    return made.eval()


def texts(*lines: str) -> Batch:
    """A batch of spelled texts."""
    words = WordsConfig(lowercase=False).train({"the": 5, "smith": 5}, vocab_size=20)
    tokenizer = spelling(words, reads_ids=False)
    framed = [tokenizer.frame(one, max_length=50) for one in tokenizer.encode_batch(list(lines))]
    return collate(framed, length=max(map(len, framed)))


def test_published_sizes() -> None:
    """The parameters that AllenNLP lists: 93.6 and 13.6 million."""
    for name, expected in (("elmo/original", 93.6e6), ("elmo/small", 13.6e6)):
        with on_meta_device():
            encoder = recipes.find(name).encoder.build()
        assert parameter_count(encoder) == pytest.approx(expected, rel=0.005)
        assert encoder.width == 2 * recipes.find(name).encoder.width


def test_forward_states_continue_and_the_backward_direction_starts_each_window_at_its_end() -> None:
    made = build()
    ids = torch.randint(5, 90, (2, 8))
    first, second = rows(ids[:, :5].tolist()), rows(ids[:, 5:].tolist(), start=5)
    with torch.no_grad():
        whole = made(rows(ids.tolist())).last_hidden.view(2, 8, 12)
        before = made(first)
        after = made(second, before.state)
        fresh = made(second)
    assert torch.allclose(after.last_hidden.view(2, 3, 12)[:, :, :6], whole[:, 5:, :6], atol=1e-6)
    carried, new = after.last_hidden.view(2, 3, 12), fresh.last_hidden.view(2, 3, 12)
    assert not torch.allclose(carried[:, :, 6:], new[:, :, 6:], atol=1e-3), "the backward state is carried too"
    shapes = [(2, 2, 6), (2, 2, 10)] * 2
    assert [tuple(part.shape) for part in after.state] == shapes, "a row for each row of the batch"


def test_rows_that_start_ignore_the_state() -> None:
    made = build()
    state = made(rows([[5, 6, 7], [8, 9, 10]])).state
    start, later = rows([[5, 6], [7, 8]]), rows([[5, 6], [7, 8]], start=3)
    mixed = start.replace(position_ids=torch.stack((start.position_ids[0], later.position_ids[1])))
    with torch.no_grad():
        fresh, carried, both = (made(each, state).last_hidden.view(2, 2, -1) for each in (start, later, mixed))
        assert torch.equal(fresh, made(start).last_hidden.view(2, 2, -1))
    assert torch.equal(both[0], fresh[0])
    assert torch.equal(both[1], carried[1])


def test_states_of_rows_of_different_lengths() -> None:
    made, batch = build(), texts("the smith heats iron", "the smith")
    alone = made(texts("the smith")).state
    assert all(torch.allclose(part[1:], own, atol=1e-6) for part, own in zip(made(batch).state, alone, strict=True))
    packed = random_batch([5, 6], length=13, pack=True, pairs=False)
    with pytest.raises(BertsmithError, match="only where each is one text"):
        made(packed, alone)


def test_unknown_and_long_words_have_vectors_of_their_own() -> None:
    made = build()
    batch = texts("zyzzyva", "zyzzyvas", "q" + "x" * 199, "r" + "x" * 199, "", "\ud800", "쇠", "sword " * 12)
    word = made.embed(batch).view(*batch.input_ids.shape, -1)[:4, 1]
    assert (torch.cdist(word, word) + 9 * torch.eye(4)).min() > 1e-3
    assert torch.isfinite(made(batch).last_hidden).all()


def test_bfloat16_keeps_cells_in_float32() -> None:
    made, batch = build(), texts("the smith heats iron", "Zyzzyva")
    with torch.autocast("cpu", torch.bfloat16):
        encoding = made(batch, return_layers=True)
    assert [part.dtype for part in encoding.state] == [torch.bfloat16, torch.float32] * 2
    for half, layer in zip(encoding.layers, made(batch, return_layers=True).layers, strict=True):
        assert half.dtype == torch.bfloat16
        assert (half.float() - layer).abs().max() < 0.05 * layer.abs().max()


def test_a_table_of_distinct_words_is_read_as_texts_are() -> None:
    """Of pre-training batches."""
    made, batch = build(), texts("the Zyzzyva heats the iron", "the quux")
    words, index = torch.unique(batch.characters.flatten(0, 1), dim=0, return_inverse=True)
    table = batch.replace(characters=None, spellings=words, spelling_ids=index.view(batch.input_ids.shape))
    assert torch.allclose(made(table).last_hidden, made(batch).last_hidden, atol=1e-6)
    other = table.replace(spelling_ids=torch.zeros_like(index).view(batch.input_ids.shape))
    assert not torch.allclose(made(other).last_hidden, made(batch).last_hidden, atol=1e-3)


def test_case_of_words_is_read() -> None:
    word = build().embed(texts("Smith", "smith")).view(2, 3, -1)[:, 1]
    assert (word[0] - word[1]).abs().max() > 1e-3


def test_layer_zero_is_the_word_twice() -> None:
    layers = build()(texts("the smith heats iron"), return_layers=True).layers
    assert [tuple(layer.shape) for layer in layers] == [(6, 12)] * 3
    assert torch.equal(layers[0][:, :6], layers[0][:, 6:])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"filters": ((60, 4),)}, r"filters=\[\[60, 4\]\] must be pairs of characters \(at most max_characters=50\)"),
        ({"filters": ()}, r"filters=\[\] must be pairs"),
        ({"cell_clip": -1.0}, "cell_clip=-1"),
        ({"dropout": 1.0}, "dropout=1 also below 1"),
        ({"layers": 0}, "layers=0 must be at least 1"),
        ({"activation": "swoosh"}, "swoosh"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        elmo.Config(**settings)
