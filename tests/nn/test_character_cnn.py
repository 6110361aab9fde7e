"""Character CNN: distinct words are computed once; long and unknown words; new weights."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from model_fixtures import random_batch

from bertsmith.errors import EqualWordsWarning
from bertsmith.nn.character_cnn import TABLE, CharacterCNN, _Lookup, _Windows, distinct_words, fit_words, id_characters
from bertsmith.tokenizers.spelling import PADDING, WORD_END, spell


def cnn(**changes: object) -> CharacterCNN:
    torch.manual_seed(0)
    options = {"width": 4, "highway": 1, "activation": "relu", **changes}
    return CharacterCNN(((1, 6), (3, 10)), 5, **options)  # type: ignore[arg-type]


def characters(*words: str, most: int = 50) -> torch.Tensor:
    return fit_words(torch.from_numpy(spell(words)), most, padding=most)


def test_new_weights() -> None:
    made = cnn(highway=2)
    assert 0.9 < made.embeddings.weight.abs().max() <= 1
    assert 0.04 < made.filters[1].weight.abs().max() <= 0.05
    assert made.highway[0].gates.bias.tolist() == [-2.0] * 16 + [0.0] * 16
    assert made.highway[0].gates.weight.std().item() == pytest.approx(1 / math.sqrt(16), rel=0.2)


def test_padding_beyond_one_window_changes_nothing() -> None:
    """The published code fills all words to 50 characters; fewer columns give the same vectors and gradients."""
    made = cnn().double()
    words = ["iron", "쇠", "", "smith"]
    narrow = fit_words(torch.from_numpy(spell(words)), 50, padding=made.padding)
    full = characters(*words)
    assert (narrow.shape[1], full.shape[1]) == (7 + 3, 50)
    assert torch.equal(full[:, narrow.shape[1] :].unique(), torch.tensor([PADDING]))
    found = []
    for ids in (narrow, full):
        made.zero_grad()
        vectors = made(ids)
        vectors.square().sum().backward()
        found.append([vectors, *(weight.grad.clone() for weight in made.parameters())])
    assert all(torch.allclose(one, other, rtol=0, atol=1e-12) for one, other in zip(*found, strict=True))
    each = torch.cat([made(characters(word)) for word in words])
    assert torch.allclose(found[0][0], each, rtol=0, atol=1e-12)
    assert fit_words(full[:, :48], 50, padding=made.padding).shape[1] == 50


def test_filters_are_those_of_a_convolution() -> None:
    torch.manual_seed(0)
    made, ids = cnn().double(), characters("iron", "x", "hammers", most=12).long()
    x = torch.nn.functional.embedding(ids, made.embeddings.weight).transpose(1, 2)
    parts = [
        torch.nn.functional.conv1d(x, layer.weight.unflatten(1, (4, -1)), layer.bias).amax(2) for layer in made.filters
    ]
    expected = made.project(made.highway[0](torch.cat(parts, 1).relu()))
    assert torch.allclose(made(ids), expected, rtol=0, atol=1e-12)


def test_the_gradient_of_windows() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.equal(_Windows.apply(x, 2)[1, 4], x[1, 4:6].flatten())
    assert all(torch.autograd.gradcheck(lambda x, size=size: _Windows.apply(x, size), x) for size in (1, 4, 6))


def test_long_words_are_cut_as_in_the_published_code() -> None:
    cut = characters("x" * 200, "y" * 48, "z" * 47)
    assert cut.shape == (3, 50)
    assert cut[:, 48].tolist() == [ord("x"), ord("y"), WORD_END]
    assert cut[:, 49].tolist() == [WORD_END, WORD_END, PADDING]


def test_words_that_become_equal_are_reported() -> None:
    long = "w" * 199
    batch = random_batch([5], length=5, pairs=False)
    table = torch.from_numpy(spell([f"{long}a", f"{long}b", "iron", "iron", "a"]))[None]
    with pytest.warns(
        EqualWordsWarning, match=r"^words that are equal in their first 48 bytes get the same.*: 1 here$"
    ):
        words, index = distinct_words(batch.replace(characters=table), max_characters=50, vocabulary=None)
    assert len(words) == 3
    assert index[0] == index[1] != index[2] == index[3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        words, index = distinct_words(batch.replace(characters=table), max_characters=202, vocabulary=None)
    assert len(words) == 4
    assert index[0] != index[1]


def test_the_gradient_of_characters_on_cuda_is_that_of_a_table() -> None:
    torch.manual_seed(0)
    table = torch.randn(TABLE, 5, dtype=torch.float64, requires_grad=True)
    ids, weights = characters("iron", "x", "hammers").long(), torch.randn(3, 50, 5, dtype=torch.float64)
    found = [torch.autograd.grad((rows * weights).sum(), table)[0] for rows in (_Lookup.apply(table, ids), table[ids])]
    assert torch.allclose(*found, rtol=0, atol=1e-12)
    assert found[0][PADDING].any()


def test_batches_with_ids_alone() -> None:
    batch = random_batch([12, 9], length=12, pairs=False).replace(characters=None)
    words, index = distinct_words(batch, max_characters=50, vocabulary=None)
    assert len(words) == len(batch.input_ids.unique()) == len(words.unique(dim=0))
    assert torch.equal(words[index][:, :6], id_characters(batch.input_ids.flatten()))
    vocabulary = characters(*[f"word{number}" for number in range(97)])
    words, index = distinct_words(batch, max_characters=50, vocabulary=vocabulary)
    assert torch.equal(words[index], vocabulary[batch.input_ids.flatten()])


def test_gradients_of_repeated_words_add_up() -> None:
    made = cnn()
    words, index = characters("iron", "smith"), torch.tensor([0, 1, 0, 0])
    made(words).index_select(0, index).square().sum().backward()
    once = [weight.grad.clone() for weight in made.parameters()]
    made.zero_grad()
    made(words[index]).square().sum().backward()
    assert all(torch.allclose(weight.grad, one, atol=1e-6) for weight, one in zip(made.parameters(), once, strict=True))
