"""Loops over parts of rows: every row once, one thread per operation within, errors of threads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from bertsmith.nn import row_threads
from bertsmith.nn.row_threads import ROWS, for_parts, one_thread_per_operation, parts, run

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() == 3, "loops restore the number of threads"
    torch.set_num_threads(before)


@pytest.mark.parametrize("rows", [0, 1, ROWS, ROWS + 1, 7 * ROWS + 5])
def test_every_row_is_in_one_part(rows: int) -> None:
    counts = torch.zeros(rows)

    def part(first: int, last: int) -> None:
        counts[first:last] += 1

    for_parts(part, rows, CPU)
    assert counts.eq(1).all()


@pytest.mark.parametrize("rows", [ROWS + 1, 2 * ROWS + 32, 5 * ROWS])
def test_parts_are_even_in_number_and_about_equal(rows: int) -> None:
    sizes = [last - first for first, last in parts(rows, CPU, multiple=32)]
    assert len(sizes) % 2 == 0
    assert sum(sizes) == rows
    assert all(size == sizes[0] <= ROWS and size % 32 == 0 for size in sizes[:-1])
    assert sizes[0] - sizes[-1] < 32 * len(sizes)


def test_results_are_in_the_order_of_the_calls() -> None:
    assert run([partial(pow, number, 2) for number in range(50)], CPU) == [number**2 for number in range(50)]


def test_operations_of_a_part_run_in_one_thread_without_gradients() -> None:
    weight, seen = torch.ones(3, requires_grad=True), []

    def part(first: int, last: int) -> None:
        seen.append((torch.get_num_threads(), (2 * weight).requires_grad, torch.is_autocast_enabled("cpu")))

    with torch.autocast("cpu", torch.bfloat16):
        for_parts(part, 9 * ROWS, CPU)
    assert seen == [(1, False, False)] * 10, "an even number of parts"


def test_an_error_in_any_part_is_raised() -> None:
    for wrong in range(4):

        def part(first: int, last: int, wrong: int = wrong) -> None:
            if first == wrong * ROWS:
                raise ValueError(f"part {wrong}")

        with pytest.raises(ValueError, match=f"part {wrong}"):
            for_parts(part, 4 * ROWS, CPU)


def test_loops_within_a_step_use_its_threads() -> None:
    with one_thread_per_operation() as threads:
        assert torch.get_num_threads() == 1
        with one_thread_per_operation() as inner:
            assert inner == threads == 3
        assert torch.get_num_threads() == 1


def test_other_devices_compute_all_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_threads, "ROWS", 2)
    seen: list[tuple[int, int]] = []
    for_parts(lambda first, last: seen.append((first, last)), 5, torch.device("cuda"))
    assert seen == [(0, 5)]
