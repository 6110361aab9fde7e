"""Character CNN: distinct words are computed once; long and unknown words; new weights."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from model_fixtures import random_batch

from bertsmith.nn.character_cnn import TABLE, CharacterCNN, _Lookup, distinct_words, fit_words, id_characters
from bertsmith.tokenizers.spelling import PADDING, WORD_END, spell


def cnn(**changes: object) -> CharacterCNN:
    torch.manual_seed(0)
    options = {"width": 4, "highway": 1, "activation": "relu", **changes}
    return CharacterCNN(((1, 6), (3, 10)), 5, **options)  # type: ignore[arg-type]


def characters(*words: str, most: int = 50) -> torch.Tensor:
    return fit_words(torch.from_numpy(spell(words)), most)


def test_new_weights() -> None:
    made = cnn(highway=2)
    assert 0.9 < made.embeddings.weight.abs().max() <= 1
    assert 0.04 < made.filters[1].weight.abs().max() <= 0.05
    assert made.highway[0].gates.bias.tolist() == [-2.0] * 16 + [0.0] * 16
    assert made.highway[0].gates.weight.std().item() == pytest.approx(1 / math.sqrt(16), rel=0.2)


def test_words_are_read_over_all_characters_and_their_padding() -> None:
    """A word has the same vector in a wider table, since tables are cut and filled to one width."""
    made = cnn()
    words = ["iron", "쇠", "", "smith"]
    assert torch.allclose(made(characters(*words)), torch.cat([made(characters(word)) for word in words]), atol=1e-6)
    narrow = torch.from_numpy(spell(words))
    assert narrow.shape[1] < 50
    assert torch.equal(fit_words(narrow, 50)[:, narrow.shape[1] :].unique(), torch.tensor([PADDING]))


def test_long_words_are_cut_as_in_the_published_code() -> None:
    cut = characters("x" * 200, "y" * 48, "z" * 47)
    assert cut.shape == (3, 50)
    assert cut[:, 48].tolist() == [ord("x"), ord("y"), WORD_END]
    assert cut[:, 49].tolist() == [WORD_END, WORD_END, PADDING]


def test_words_that_become_equal_are_reported() -> None:
    long = "w" * 199
    batch = random_batch([5], length=5, pairs=False)
    table = torch.from_numpy(spell([f"{long}a", f"{long}b", "iron", "iron", "a"]))[None]
    with pytest.warns(UserWarning, match=r"^words that are equal in their first 48 bytes get the same.*: 1 here$"):
        words, index = distinct_words(batch.replace(characters=table), most=50, vocabulary=None)
    assert len(words) == 3
    assert index[0] == index[1] != index[2] == index[3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        words, index = distinct_words(batch.replace(characters=table), most=202, vocabulary=None)
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
    words, index = distinct_words(batch, most=50, vocabulary=None)
    assert len(words) == len(batch.input_ids.unique()) == len(words.unique(dim=0))
    assert torch.equal(words[index][:, :6], id_characters(batch.input_ids.flatten()))
    vocabulary = characters(*[f"word{number}" for number in range(97)])
    words, index = distinct_words(batch, most=50, vocabulary=vocabulary)
    assert torch.equal(words[index], vocabulary[batch.input_ids.flatten()])


def test_gradients_of_repeated_words_add_up() -> None:
    made = cnn()
    words, index = characters("iron", "smith"), torch.tensor([0, 1, 0, 0])
    made(words).index_select(0, index).square().sum().backward()
    once = [weight.grad.clone() for weight in made.parameters()]
    made.zero_grad()
    made(words[index]).square().sum().backward()
    assert all(torch.allclose(weight.grad, one, atol=1e-6) for weight, one in zip(made.parameters(), once, strict=True))
