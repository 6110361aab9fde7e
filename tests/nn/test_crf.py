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
        crf, sequences = random_crf(labels, seed=seed, boundaries=boundaries), None
        sequences = random_sequences(labels, seed=seed, breaks=breaks)
        scores = crf.scores()
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
    crf, sequences = random_crf(labels, boundaries=boundaries), random_sequences(labels, breaks=breaks)
    draw = np.random.default_rng(0)
    for row, paths, values in rows_with_paths(sequences, crf.scores()):
        for number in draw.integers(0, len(paths), 5):
            gold = torch.zeros(sequences.emissions.shape[:2], dtype=torch.int64)
            gold[row, : LENGTHS[row]] = torch.tensor(paths[number])
            assert float(path_scores(sequences, crf.scores(), gold)[row]) == pytest.approx(float(values[number]))
            expected = -float(values.log_softmax(0)[number])
            assert float(crf.negative_log_likelihood(sequences, gold)[row]) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("breaks", [False, True])
def test_gradients_equal_finite_differences_and_expected_counts(breaks: bool) -> None:
    crf, sequences = random_crf(3), random_sequences(3, breaks=breaks)
    gold = torch.randint(0, 3, sequences.emissions.shape[:2], generator=torch.Generator().manual_seed(1))
    emissions = sequences.emissions.requires_grad_()

    def loss(emissions: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        names = dict(zip([name for name, _ in crf.named_parameters()], weights, strict=True))
        given = LabelSequences(emissions, sequences.lengths, sequences.breaks)
        called = torch.func.functional_call(_Loss(crf), {f"crf.{name}": one for name, one in names.items()}, (given, gold))
        assert isinstance(called, torch.Tensor)
        return called

    assert torch.autograd.gradcheck(loss, (emissions, *crf.parameters()))
    total = log_partition(sequences, crf.scores()).sum()
    (gradient,) = torch.autograd.grad(total, emissions)
    inside = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    with torch.no_grad():
        expected = marginals(sequences, crf.scores()) * inside[:, :, None]
    assert torch.allclose(gradient, expected, atol=1e-12)


class _Loss(torch.nn.Module):
    def __init__(self, crf: CRF) -> None:
        super().__init__()
        self.crf = crf

    def forward(self, sequences: LabelSequences, gold: torch.Tensor) -> torch.Tensor:
        return self.crf.negative_log_likelihood(sequences, gold)


def test_a_new_crf_is_a_softmax_at_each_position() -> None:
    sequences, crf = random_sequences(4), CRF(4)
    sequences = LabelSequences(sequences.emissions.float(), sequences.lengths)
    gold = sequences.emissions.argmin(2)
    inside = torch.arange(max(LENGTHS)) < sequences.lengths[:, None]
    expected = -(sequences.emissions.log_softmax(2).gather(2, gold[:, :, None])[:, :, 0] * inside).sum(1)
    assert torch.allclose(crf.negative_log_likelihood(sequences, gold), expected, atol=1e-4)
    words = [one[:length].numpy() for one, length in zip(sequences.emissions, LENGTHS, strict=True) if length]
    for (best, shares), logits in zip(crf.decode(words), words, strict=True):
        assert best.tolist() == logits.argmax(1).tolist()
        assert shares == pytest.approx(torch.from_numpy(logits).double().softmax(1).amax(1).numpy())


def test_decoding_a_batch_equals_decoding_each_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertsmith.nn.crf.DECODED_POSITIONS", 60)
    draw, crf = np.random.default_rng(3), random_crf(5)
    words = [draw.normal(0, 3, (length, 5)).astype(np.float32) for length in draw.integers(1, 14, 30)]
    for one, (best, shares) in zip(words, crf.decode(words), strict=True):
        ((alone, same_shares),) = crf.decode([one])
        assert best.tolist() == alone.tolist()
        assert shares == pytest.approx(same_shares, abs=1e-12)
        assert 0 < shares.min() <= shares.max() <= 1
    assert crf.decode([]) == []


def test_constraints_hold_however_high_forbidden_scores_are() -> None:
    draw = np.random.default_rng(5)
    allowed = Allowed([True, True, False], [[True, True, False], [False, False, True], [True, False, True]], [1, 0, 1])
    crf = random_crf(3, allowed=allowed)
    words = [draw.normal(0, 50, (length, 3)).astype(np.float32) for length in draw.integers(2, 7, 40)]
    changed = 0
    for logits, (best, shares) in zip(words, crf.decode(words), strict=True):
        sequences = LabelSequences(torch.from_numpy(logits).double()[None], torch.tensor([len(logits)]))
        scores = crf.constrained_scores()
        (_, paths, values) = next(rows_with_paths(sequences, scores))
        assert tuple(best.tolist()) == paths[int(values.argmax())]
        assert float(values.max()) > -torch.inf
        probabilities = values.softmax(0)
        expected = [sum(probabilities[[path[n] == best[n] for path in paths]]) for n in range(len(best))]
        assert shares == pytest.approx([float(one) for one in expected], abs=1e-10)
        changed += best.tolist() != viterbi(sequences, crf.scores())[0].tolist()
    assert changed > 20


def test_compiles() -> None:
    crf, sequences = random_crf(3), random_sequences(3, breaks=True)
    gold = torch.zeros(sequences.emissions.shape[:2], dtype=torch.int64)
    compiled = torch.compile(crf.negative_log_likelihood, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(sequences, gold), crf.negative_log_likelihood(sequences, gold))
