"""The CRF against enumeration of all label sequences, pytorch-crf and finite differences."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from bertsmith.nn.crf import CRF, Allowed, CRFScores, LabelSequences, log_partition, marginals, path_scores, viterbi

LENGTHS = (4, 1, 0, 5, 3)


def random_crf(labels: int, *, seed: int = 0, **options: Any) -> CRF:
    crf = CRF(labels, **options).double()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in crf.parameters():
            value.normal_(0, 2, generator=draw)
    return crf


def exact_scores(crf: CRF) -> CRFScores:
    """Without gradients."""
    return CRFScores(*(one.detach() for one in crf.scores()))


def random_sequences(labels: int, *, seed: int = 0, breaks: bool = False) -> LabelSequences:
    draw = torch.Generator().manual_seed(100 + seed)
    emissions = torch.randn(len(LENGTHS), max(LENGTHS), labels, generator=draw, dtype=torch.float64) * 3
    begins = torch.rand(emissions.shape[:2], generator=draw) < 0.4 if breaks else None
    return LabelSequences(emissions, torch.tensor(LENGTHS), begins)


def score_of(row: int, path: tuple[int, ...], sequences: LabelSequences, scores: CRFScores) -> float:
    """The definition, term by term."""
    start, transitions, end = (one.tolist() for one in scores)
    total = sum(float(sequences.emissions[row, position, label]) for position, label in enumerate(path))
    begins = [True, *([False] * (len(path) - 1))]
    if sequences.breaks is not None:
        begins[1:] = sequences.breaks[row, 1 : len(path)].tolist()
    for position, label in enumerate(path):
        total += start[label] if begins[position] else transitions[path[position - 1]][label]
        total += end[label] if position == len(path) - 1 or begins[position + 1] else 0.0
    return total


def rows_with_paths(
    sequences: LabelSequences, scores: CRFScores
) -> Iterator[tuple[int, list[tuple[int, ...]], torch.Tensor]]:
    """Each row that is not empty, all of its label sequences, and their scores."""
    labels = sequences.emissions.shape[2]
    for row, length in enumerate(sequences.lengths.tolist()):
        if length:
            paths = list(product(range(labels), repeat=length))
            values = [score_of(row, path, sequences, scores) for path in paths]
            yield row, paths, torch.tensor(values, dtype=torch.float64)


CASES = [(2, True, False), (3, False, False), (4, True, True), (3, False, True)]


@pytest.mark.parametrize(("labels", "boundaries", "breaks"), CASES)
def test_log_partition_marginals_and_best_path_equal_enumeration(labels: int, boundaries: bool, breaks: bool) -> None:
    for seed in range(3):
        sequences = random_sequences(labels, seed=seed, breaks=breaks)
        scores = exact_scores(random_crf(labels, seed=seed, boundaries=boundaries))
        found, shares, best = log_partition(sequences, scores), marginals(sequences, scores), viterbi(sequences, scores)
        assert float(found[LENGTHS.index(0)]) == 0
        for row, paths, values in rows_with_paths(sequences, scores):
            assert float(found[row]) == pytest.approx(float(values.logsumexp(0)), abs=1e-10)
            probabilities = values.softmax(0)
            for position in range(LENGTHS[row]):
                chosen = torch.tensor([path[position] for path in paths])
                expected = torch.zeros(labels, dtype=torch.float64).index_add(0, chosen, probabilities)
                assert torch.allclose(shares[row, position], expected, rtol=0, atol=1e-10)
            assert tuple(best[row, : LENGTHS[row]].tolist()) == paths[int(values.argmax())]


@pytest.mark.parametrize(("labels", "boundaries", "breaks"), CASES)
def test_path_scores_and_likelihoods_follow_the_definition(labels: int, boundaries: bool, breaks: bool) -> None:
    crf, sequences = (
        random_crf(labels, boundaries=boundaries).requires_grad_(False),
        random_sequences(labels, breaks=breaks),
    )
    draw = np.random.default_rng(0)
    for row, paths, values in rows_with_paths(sequences, crf.scores()):
        for number in draw.integers(0, len(paths), 5):
            gold = torch.zeros(sequences.emissions.shape[:2], dtype=torch.int64)
            gold[row, : LENGTHS[row]] = torch.tensor(paths[number])
            assert float(path_scores(sequences, crf.scores(), gold)[row]) == pytest.approx(float(values[number]))
            expected = -float(values.log_softmax(0)[number])
            assert float(crf.negative_log_likelihood(sequences, gold)[row]) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("breaks", [False, True])
def test_gradients_equal_finite_differences_and_marginals(breaks: bool) -> None:
    crf, sequences = random_crf(3), random_sequences(3, breaks=breaks)
    gold = torch.randint(0, 3, sequences.emissions.shape[:2], generator=torch.Generator().manual_seed(1))
    emissions = sequences.emissions.requires_grad_()

    def loss(
        emissions: torch.Tensor, transitions: torch.Tensor, start: torch.Tensor, end: torch.Tensor
    ) -> torch.Tensor:
        scores = CRFScores(start, transitions, end)
        given = LabelSequences(emissions, sequences.lengths, sequences.breaks)
        return log_partition(given, scores) - path_scores(given, scores, gold)

    assert torch.autograd.gradcheck(loss, (emissions, crf.transitions, crf.start, crf.end), fast_mode=True)
    assert torch.equal(
        loss(emissions, crf.transitions, crf.start, crf.end), crf.negative_log_likelihood(sequences, gold)
    )
    (gradient,) = torch.autograd.grad(log_partition(sequences, crf.scores()).sum(), emissions)
    inside = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    expected = marginals(sequences, exact_scores(crf)).detach() * inside[:, :, None]
    assert torch.allclose(gradient, expected, rtol=0, atol=1e-12)


def test_equal_to_pytorch_crf() -> None:
    """The values are those of pytorch-crf 0.7.2 in float64: `-crf(x, y, mask, reduction="none")`, `decode(x, mask)`."""

    def wave(*shape: int, step: float) -> torch.Tensor:
        return torch.sin(torch.arange(np.prod(shape), dtype=torch.float64) * step).mul(2).reshape(shape)

    crf = CRF(4).double().requires_grad_(False)
    crf.start.copy_(wave(4, step=0.7))
    crf.end.copy_(wave(4, step=1.3))
    crf.transitions.copy_(wave(4, 4, step=2.1))
    x, gold, lengths = wave(3, 5, 4, step=0.9), (torch.arange(15) * 7 % 5 % 4).reshape(3, 5), (5, 2, 4)
    found = crf.negative_log_likelihood(LabelSequences(x, torch.tensor(lengths)), gold).tolist()
    assert found == pytest.approx([21.642866318392347, 10.957290411977244, 17.803702492917438], abs=1e-12)
    words = [one[:length].numpy() for one, length in zip(x, lengths, strict=True)]
    assert [best.tolist() for best, _ in crf.decode(words)] == [[1, 3, 1, 3, 1], [3, 1], [3, 1, 3, 1]]


def test_a_new_crf_is_a_softmax_at_each_position() -> None:
    sequences, crf = random_sequences(4), CRF(4).requires_grad_(False)
    sequences = LabelSequences(sequences.emissions.float(), sequences.lengths)
    gold = sequences.emissions.argmin(2)
    inside = torch.arange(max(LENGTHS)) < sequences.lengths[:, None]
    expected = -(sequences.emissions.log_softmax(2).gather(2, gold[:, :, None])[:, :, 0] * inside).sum(1)
    assert torch.allclose(crf.negative_log_likelihood(sequences, gold), expected, atol=1e-4)
    words = [one[:length].numpy() for one, length in zip(sequences.emissions, LENGTHS, strict=True) if length]
    for (best, shares), logits in zip(crf.decode(words), words, strict=True):
        assert best.tolist() == logits.argmax(1).tolist()
        assert shares == pytest.approx(torch.from_numpy(logits).double().softmax(1).numpy())


def test_decoding_a_batch_equals_decoding_each_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertsmith.nn.crf.DECODED_POSITIONS", 60)
    draw, crf = np.random.default_rng(3), random_crf(5)
    words = [draw.normal(0, 3, (length, 5)).astype(np.float32) for length in draw.integers(1, 14, 30)]
    for one, (best, shares) in zip(words, crf.decode(words), strict=True):
        ((alone, same_shares),) = crf.decode([one])
        assert best.tolist() == alone.tolist()
        assert shares == pytest.approx(same_shares, abs=1e-12)
        assert shares.sum(1) == pytest.approx(1, abs=1e-12)
    assert crf.decode([]) == []


def test_constraints_hold_however_high_forbidden_scores_are() -> None:
    draw = np.random.default_rng(5)
    allowed = Allowed([True, True, False], [[True, True, False], [False, False, True], [True, False, True]], [1, 0, 1])
    crf = random_crf(3, allowed=allowed)
    words = [draw.normal(0, 50, (length, 3)).astype(np.float32) for length in draw.integers(2, 6, 24)]
    changed = 0
    for logits, (best, shares) in zip(words, crf.decode(words), strict=True):
        sequences = LabelSequences(torch.from_numpy(logits).double()[None], torch.tensor([len(logits)]))
        scores = crf.constrained_scores()
        (_, paths, values) = next(rows_with_paths(sequences, scores))
        assert tuple(best.tolist()) == paths[int(values.argmax())]
        assert float(values.max()) > -torch.inf
        probabilities = values.softmax(0)
        expected = [sum(probabilities[[path[n] == best[n] for path in paths]]) for n in range(len(best))]
        assert shares[range(len(best)), best] == pytest.approx([float(one) for one in expected], abs=1e-10)
        changed += best.tolist() != viterbi(sequences, crf.scores())[0].tolist()
    assert changed > 12
