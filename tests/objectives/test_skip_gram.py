"""Skip-gram: pairs, windows, subsampling and noise by loops over words; the loss by its formula."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from model_fixtures import SIZE, VOCABULARY, random_batch, randomize_weights, relative_difference
from threads import threads

from bertsmith.encoders import word_vectors
from bertsmith.errors import ConfigError
from bertsmith.model_io.model import Model
from bertsmith.nn import row_threads
from bertsmith.nn.banded import BLOCK, banded_products, offsets
from bertsmith.nn.sparse_rows import sum_rows
from bertsmith.objectives import skip_gram
from bertsmith.types import Batch

COUNTS = np.arange(SIZE) ** 2 + 1
PADDED = dataclasses.replace(VOCABULARY, counts=COUNTS)


def model(**settings: Any) -> Model:
    config = skip_gram.Config(**{"subsample": 0.0, **settings})
    made = Model.build(word_vectors.Config(vocab_size=SIZE, width=8), [config], vocabulary=PADDED, seed=3)
    return randomize_weights(made).double()


def batch() -> Batch:
    return random_batch([40, 12, 9, 30], length=60, pack=True, pairs=False)


def listed(made: Model, corrupted: Batch) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The pairs and the noise words of the labels, as numbers of kept words."""
    (objective,) = made.objectives.values()
    weights = objective._weights(*objective._cases(corrupted.labels["skip_gram"]))
    results = []
    for weight, reach in zip(weights, (objective.config.window, objective.config.noise_reach), strict=True):
        other = torch.arange(len(weight))[:, None] + offsets(reach, weight.device).repeat(len(weight) // BLOCK, 1)
        results.append([(int(row), int(other[row, column])) for row, column in weight.nonzero()])
    return results[0], results[1]


def test_pairs_are_words_within_the_window_of_the_same_text() -> None:
    made = model(window=4, noise_reach=3)
    corrupted = made.corrupt(batch())
    kept = corrupted.indices["skip_gram"][: int((~batch().special_mask).sum())]
    texts = corrupted.sample_ids.flatten()[kept].tolist()
    pairs, noise = listed(made, corrupted)
    expected_noise = [(i, j) for i in range(len(kept)) for j in range(len(kept)) if abs(i - j) <= 3]
    assert noise == [(i, j) for i, j in expected_noise if texts[i] == texts[j]]
    windows = [max([abs(j - i) for one, j in pairs if one == i], default=0) for i in range(len(kept))]
    assert set(windows) == {1, 2, 3, 4}, "every size occurs"
    for i, window in enumerate(windows):
        near = [j for j in range(len(kept)) if 0 < abs(i - j) <= window and texts[i] == texts[j]]
        assert [j for one, j in pairs if one == i] == near


def test_the_loss_is_that_of_the_paper_with_weighted_noise_words() -> None:
    made = model(window=3, negatives=7)
    corrupted = made.corrupt(batch())
    (objective,) = made.objectives.values()
    pairs, noise = listed(made, corrupted)
    kept = corrupted.indices["skip_gram"]
    ids = corrupted.input_ids.flatten()[kept]
    drawn = torch.searchsorted(objective.noise_bounds, objective._draw("noise", corrupted, kept), right=True)
    table, output = made.encoder.token_embeddings, objective.output.weight
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(kept)):
        positive = [j for one, j in pairs if one == i]
        others = [j for one, j in noise if one == i]
        for j in positive:
            total -= F.logsigmoid(table[ids[i]] @ output[ids[j]])
        for j in others:
            total -= 7 * len(positive) / len(others) * F.logsigmoid(-table[ids[i]] @ output[drawn[j]])
    loss = made(corrupted)
    assert loss.sums["skip_gram"].item() == pytest.approx(total.item(), rel=1e-9)
    assert int(loss.counts["skip_gram"]) == 8 * len(pairs)
    gradients = torch.autograd.grad(total, [table, output])
    loss.sums["skip_gram"].backward()
    for parameter, expected in zip((table, output), gradients, strict=True):
        assert torch.allclose(parameter.grad, expected, atol=1e-9)


def test_noise_words_follow_the_unigram_distribution_to_a_power() -> None:
    objective = model(noise_power=0.5).objectives["skip_gram"]
    ids = torch.randint(5, SIZE, (1, 200_000))
    many = random_batch([40], length=40, pairs=False).replace(
        input_ids=ids, sample_ids=torch.zeros_like(ids), position_ids=torch.arange(200_000)[None]
    )
    drawn = objective._draw("noise", many, torch.arange(200_000))
    share = torch.searchsorted(objective.noise_bounds, drawn, right=True).bincount(minlength=SIZE) / 200_000
    expected = torch.from_numpy(COUNTS**0.5 / (COUNTS**0.5).sum())
    assert (share - expected).abs().max() < 0.002


def test_frequent_words_are_kept_by_the_share_of_word2vec() -> None:
    frequent, size = 96, 60_000
    made = model(subsample=1e-3)
    objective = made.objectives["skip_gram"]
    ids = torch.full((size // 60, 60), frequent)
    one = random_batch([60] * (size // 60), length=60, pairs=False)
    one = one.replace(input_ids=ids, special_mask=torch.zeros_like(one.special_mask))
    frequency = COUNTS[frequent] / COUNTS.sum()
    share = (1e-3 / frequency) ** 0.5 + 1e-3 / frequency
    kept = objective._draw("subsample", one) < objective.keep_below[ids.flatten()]
    assert kept.double().mean().item() == pytest.approx(share, abs=4 * (share / size) ** 0.5)
    assert objective.keep_below[5] == 1 << 31, "rare words are always kept"
    assert len(made.corrupt(one).indices["skip_gram"]) == objective.slots(size) < size


def test_the_sparse_loss_of_parts_equals_that_of_all_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_threads, "ROWS", BLOCK)
    made = model(window=3, negatives=7)
    corrupted = made.corrupt(batch())
    assert len(corrupted.indices["skip_gram"]) > 2 * BLOCK, "several parts"
    (objective,) = made.objectives.values()
    table, output = made.encoder.token_embeddings, objective.output.weight
    expected = made(corrupted)
    expected_gradients = torch.autograd.grad(expected.sums["skip_gram"], [table, output])
    assert not made.threads_over_rows
    objective.output.sparse = True
    assert made.threads_over_rows
    actual = made(corrupted)
    gradients = torch.autograd.grad(actual.sums["skip_gram"] * 3, [table, output])
    assert gradients[1].is_sparse
    assert actual.sums["skip_gram"].item() == pytest.approx(expected.sums["skip_gram"].item(), rel=1e-12)
    assert actual.counts == expected.counts
    for gradient, wanted in zip(gradients, expected_gradients, strict=True):
        assert torch.allclose(gradient.to_dense(), 3 * wanted, atol=1e-12)


def test_scores_in_bfloat16_are_close_and_have_gradients() -> None:
    made = model(window=3).float()
    corrupted, tables = made.corrupt(batch()), [*made.parameters()]
    expected = made(corrupted).sums["skip_gram"]
    with torch.autocast("cpu", torch.bfloat16):
        total = made(corrupted).sums["skip_gram"]
    assert total.item() == pytest.approx(expected.item(), rel=1e-2)
    assert total.item() != expected.item()
    pairs = zip(torch.autograd.grad(total, tables), torch.autograd.grad(expected, tables), strict=True)
    assert all(relative_difference(ours, exact) < 2e-2 for ours, exact in pairs)


def test_gradients_are_the_same_bits_with_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_threads, "ROWS", BLOCK)
    made = model(window=3)
    (objective,) = made.objectives.values()
    made.encoder.embeddings["tokens"].sparse = objective.output.sparse = True
    corrupted, found = made.corrupt(batch()), []
    for count in (1, 3):
        with threads(count):
            total = made(corrupted).sums["skip_gram"]
            found.append([total, *torch.autograd.grad(total, [made.encoder.token_embeddings, objective.output.weight])])
    assert torch.equal(found[0][0], found[1][0])
    for table in (1, 2):
        (one, other), norms = sum_rows([found[0][table], found[1][table]])
        assert torch.equal(one.values(), other.values())
        assert norms[: len(norms) // 2] == norms[len(norms) // 2 :]


def test_banded_products_equal_dense_ones() -> None:
    rows = 3 * BLOCK
    for reaches in ((2, 3), (20, 40)):
        sizes = [rows, *(rows + 2 * reach for reach in reaches)]
        x, y, z = (torch.randn(size, 5, dtype=torch.float64, requires_grad=True) for size in sizes)
        products = banded_products(x, y, z)
        parts = products.split([BLOCK + 2 * reach for reach in reaches], 1)
        dense = []
        for other, reach in zip((y, z), reaches, strict=True):
            column = torch.arange(rows)[:, None] + offsets(reach, x.device).repeat(3, 1) + reach
            dense.append((x @ other.T).gather(1, column))
        assert all(torch.allclose(part, expected) for part, expected in zip(parts, dense, strict=True))
        weights = torch.randn_like(products)
        actual = torch.autograd.grad((products * weights).sum(), (x, y, z))
        expected = torch.autograd.grad((torch.cat(dense, 1) * weights).sum(), (x, y, z))
        assert all(torch.allclose(one, other) for one, other in zip(actual, expected, strict=True))


@pytest.mark.parametrize("wrong", [{"window": 0}, {"negatives": 0}, {"subsample": 1.0}, {"noise_power": -1.0}])
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        skip_gram.Config(**wrong)
