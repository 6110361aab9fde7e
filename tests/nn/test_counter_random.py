"""Counter-based random numbers: fixed values, a Python reference, uniformity, independence of streams."""

from __future__ import annotations

import pytest
import torch

from bertsmith.nn import counter_random

WORD = (1 << 64) - 1


def mixed_in_python(key: int, *numbers: int) -> int:
    state = key & WORD
    for number in numbers:
        state = ((state ^ (number & WORD)) + 0x9E3779B97F4A7C15) & WORD
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & WORD
        state ^= state >> 31
    return state


@pytest.mark.parametrize("numbers", [(0, 0, 0), (1, 2, 3), (-1, 1 << 40, 511), (7, -(1 << 63), (1 << 63) - 1)])
def test_equals_a_python_implementation(numbers: tuple[int, ...]) -> None:
    key = counter_random.stream_key(12345, "test")
    actual = counter_random.mix_counters(key, *(torch.tensor(number) for number in numbers))
    assert int(actual) & WORD == mixed_in_python(key, *numbers)
    drawn = counter_random.random_bits(key, *(torch.tensor(number) for number in numbers))
    assert int(drawn) == mixed_in_python(key, *numbers) >> 33


def test_equals_splitmix64() -> None:
    """The first three outputs of splitmix64 from state 0, as its authors' C code gives them."""
    steps = torch.arange(3) * counter_random._GOLDEN
    result = [int(number) & WORD for number in counter_random.mix_counters(0, steps)]
    assert result == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_values_never_change() -> None:
    """The masking of existing runs depends on these values."""
    drawn = counter_random.random_bits(
        counter_random.stream_key(0, "masked_lm/choice"), torch.tensor(0), torch.arange(3)[:, None], torch.arange(2)
    )
    assert drawn.tolist() == [[1861492268, 326921699], [1643538709, 1671473473], [424159221, 29474318]]


def test_uniform_and_independent() -> None:
    drawn = counter_random.random_bits(
        counter_random.stream_key(1, "a"), torch.arange(1000)[:, None], torch.arange(1000)
    )
    other = counter_random.random_bits(
        counter_random.stream_key(1, "b"), torch.arange(1000)[:, None], torch.arange(1000)
    )
    shares = torch.bincount(counter_random.to_range(drawn, 10).flatten(), minlength=10) / drawn.numel()
    assert (shares - 0.1).abs().max() < 0.001  # three deviations
    both = torch.corrcoef(torch.stack((drawn.flatten(), other.flatten())).double())[0, 1]
    beside = torch.corrcoef(torch.stack((drawn[:, :-1].flatten(), drawn[:, 1:].flatten())).double())[0, 1]
    below = torch.corrcoef(torch.stack((drawn[:-1].flatten(), drawn[1:].flatten())).double())[0, 1]
    assert max(abs(both), abs(beside), abs(below)) < 0.004
    assert (drawn < counter_random.threshold(0.15)).double().mean() == pytest.approx(0.15, abs=0.0015)


def test_to_range_includes_both_ends() -> None:
    ends = torch.tensor([0, counter_random.RANGE - 1])
    assert counter_random.to_range(ends, 30_522).tolist() == [0, 30_521]
    assert counter_random.threshold(0) == 0
    assert counter_random.threshold(1) == counter_random.RANGE


def test_streams_differ_by_seed_and_purpose() -> None:
    keys = {counter_random.stream_key(seed, purpose) for seed in range(50) for purpose in ("choice", "fate")}
    assert len(keys) == 100
