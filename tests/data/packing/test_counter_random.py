"""Counter-based random numbers: the same bits as in torch, valid and uniform permutations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from bertsmith.data.packing import counter_random
from bertsmith.nn import counter_random as torch_counter_random


def test_the_same_bits_as_in_torch() -> None:
    chance = np.random.default_rng(0)
    first, second = chance.integers(0, 2**62, 1000), chance.integers(-5, 10**6, 1000)
    actual = counter_random.mix_counters(counter_random.stream_key(7, "rows"), first, second)
    reference = torch_counter_random.mix_counters(
        torch_counter_random.stream_key(7, "rows"), torch.from_numpy(first), torch.from_numpy(second)
    )
    assert np.array_equal(actual.view(np.int64), reference.numpy())


def test_seed_and_purpose_change_the_key() -> None:
    keys = {int(counter_random.stream_key(seed, purpose)[0]) for seed in range(10) for purpose in ("a", "b", "c")}
    assert len(keys) == 30


@settings(max_examples=200, deadline=None)
@given(limit=some.integers(1, 3000), seed=some.integers(0, 1000))
def test_a_permutation_of_any_size(limit: int, seed: int) -> None:
    result = counter_random.permute(np.arange(limit), limit, counter_random.stream_key(seed, "test"))
    assert np.array_equal(np.sort(result), np.arange(limit))


def test_limits_and_keys_per_number() -> None:
    limits = np.repeat([1, 2, 7, 100, 10**10], 50)
    numbers = np.arange(250) % np.minimum(limits, 50)
    keys = counter_random.mix_counters(counter_random.stream_key(1, "test"), np.arange(250) // 50)
    together = counter_random.permute(numbers, limits, keys)
    alone = [counter_random.permute(numbers[at : at + 1], limits[at], keys[at : at + 1])[0] for at in range(250)]
    assert together.tolist() == alone
    assert ((together >= 0) & (together < limits)).all()


@pytest.mark.parametrize("limit", [2, 3, 5, 17, 100])
def test_permutations_are_uniform(limit: int) -> None:
    keys = counter_random.mix_counters(counter_random.stream_key(3, "test"), np.arange(20_000))
    for number in {0, 1, limit - 1}:
        counts = np.bincount(counter_random.permute(np.full(20_000, number), limit, keys), minlength=limit)
        expected = 20_000 / limit
        assert (np.abs(counts - expected) < 6 * np.sqrt(expected)).all(), counts


def test_neighbours_are_separated() -> None:
    result = counter_random.permute(np.arange(10_000), 10_000, counter_random.stream_key(0, "test"))
    distance = np.abs(np.diff(result))
    assert abs(distance.mean() / 3333.3 - 1) < 0.05  # of two numbers drawn at random: a third of the limit
    assert abs(np.corrcoef(np.arange(10_000), result)[0, 1]) < 0.04


@pytest.mark.parametrize(("probability", "low", "high"), [(0.0, 0, 0), (1.0, 10**5, 10**5), (0.1, 9_600, 10_400)])
def test_bernoulli(probability: float, low: int, high: int) -> None:
    mixed = counter_random.mix_counters(counter_random.stream_key(0, "test"), np.arange(10**5))
    assert low <= int(counter_random.bernoulli(mixed, probability).sum()) <= high


def test_to_range() -> None:
    mixed = counter_random.mix_counters(counter_random.stream_key(0, "test"), np.arange(70_000))
    counts = np.bincount(counter_random.to_range(mixed, 7))
    assert len(counts) == 7
    assert (np.abs(counts - 10_000) < 500).all()
    assert counter_random.to_range(mixed, np.full(70_000, 2**40)).max() > 2**39
