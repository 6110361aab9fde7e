"""Linear-chain conditional random field (Lafferty et al. 2001; Lample et al. 2016, §2.2) over padded label sequences.

score(y) = start[y_1] + Σ_m emission_m[y_m] + Σ_m transition[y_m-1, y_m] + end[y_n]; p(y) = exp(score(y) - log Z).
All sums of exponentials are in log space. N sequences, M positions of the longest, K labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

DECODED_POSITIONS = 65_536  # padded positions that are decoded at once: bounds the memory


class Allowed(NamedTuple):
    """Which labels may begin a sequence [K], follow each other (from, to) [K, K] and end a sequence [K]."""

    start: ArrayLike
    transitions: ArrayLike
    end: ArrayLike


@dataclass(frozen=True)
class LabelSequences:
    """Emission scores of sequences. A row may hold several consecutive sequences, which do not affect each other."""

    emissions: Tensor  # [N, M, K]; finite at padding too
    lengths: Tensor  # [N] int64; may be 0
    breaks: Tensor | None = None  # [N, M] bool: another sequence begins here; the first position of a row always does

    def steps(self, scores: CRFScores, position: int) -> Tensor:
        """The score of each transition to this position from the one before it [K, K] or [N, K, K]."""
        if self.breaks is None:
            return scores.transitions
        return torch.where(self.breaks[:, position, None, None], scores.boundary, scores.transitions)

    def inside(self, position: int) -> Tensor:
        """Whether the sequences reach this position [N, 1] bool."""
        return (position < self.lengths)[:, None]


class CRFScores(NamedTuple):
    """The scores that do not depend on the input; -inf where a label or a transition is not allowed."""

    start: Tensor  # [K]
    transitions: Tensor  # [K, K] from, to
    end: Tensor  # [K]

    @property
    def boundary(self) -> Tensor:
        """From the last label of a sequence to the first one of the next [K, K]."""
        return self.end[:, None] + self.start


class CRF(nn.Module):
    """Start, transition and end scores, 0 at first: a new CRF predicts like a softmax at each position.

    Constraints restrict decoding, as in AllenNLP; the likelihood is over all label sequences, so that it is finite for
    every gold sequence.
    """

    def __init__(self, labels: int, *, boundaries: bool = True, allowed: Allowed | None = None) -> None:
        """`boundaries`: whether there are start and end scores."""
        super().__init__()
        self.allowed = allowed
        self.transitions = nn.Parameter(torch.zeros(labels, labels))
        self.start = nn.Parameter(torch.zeros(labels)) if boundaries else None
        self.end = nn.Parameter(torch.zeros(labels)) if boundaries else None

    def scores(self) -> CRFScores:
        """The scores in float32 or wider, without constraints."""
        transitions = self.transitions.to(torch.promote_types(self.transitions.dtype, torch.float32))
        none = transitions.new_zeros(len(transitions))
        start, end = (none if one is None else one.to(transitions.dtype) for one in (self.start, self.end))
        return CRFScores(start, transitions, end)

    def constrained_scores(self) -> CRFScores:
        """The scores for decoding: detached, in float64 on the CPU, with constraints."""
        found = CRFScores(*(one.detach().double().cpu() for one in self.scores()))
        if self.allowed is None:
            return found
        allowed = (torch.as_tensor(np.asarray(one), dtype=torch.bool) for one in self.allowed)
        return CRFScores(*(one.masked_fill(~mask, -torch.inf) for one, mask in zip(found, allowed, strict=True)))

    def negative_log_likelihood(self, sequences: LabelSequences, labels_NM: Tensor) -> Tensor:
        """-log p of the label sequences of each row [N]."""
        scores = self.scores()
        return log_partition(sequences, scores) - path_scores(sequences, scores, labels_NM)

    @torch.no_grad()
    def decode(self, emissions: Sequence[NDArray[np.float32]]) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """The most likely allowed labels of each sequence [words, K], and the marginal probabilities of all labels."""
        scores = self.constrained_scores()
        results: dict[int, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}
        for numbers in _groups([len(one) for one in emissions]):
            some = [torch.from_numpy(np.asarray(emissions[number], np.float64)) for number in numbers]
            padded = nn.utils.rnn.pad_sequence(some, batch_first=True)
            sequences = LabelSequences(padded, torch.tensor([len(one) for one in some]))
            best_NM, share_NMK = viterbi(sequences, scores), marginals(sequences, scores)
            for number, one, best_M, share_MK in zip(numbers, some, best_NM, share_NMK, strict=True):
                results[number] = best_M[: len(one)].numpy(), share_MK[: len(one)].numpy()
        return [results[number] for number in range(len(emissions))]


def log_partition(sequences: LabelSequences, scores: CRFScores) -> Tensor:
    """log Z of each row [N], by the forward algorithm; of rows with several sequences the sum."""
    last_NK = _forward(sequences, scores)[-1]
    return torch.where(sequences.lengths > 0, (last_NK + scores.end).logsumexp(1), 0.0)


def path_scores(sequences: LabelSequences, scores: CRFScores, labels_NM: Tensor) -> Tensor:
    """The score of one label sequence for each row [N]; labels beyond its length must be valid, but do not count."""
    emissions_NMK, lengths_N = sequences.emissions, sequences.lengths
    inside_NM = torch.arange(labels_NM.shape[1], device=labels_NM.device) < lengths_N[:, None]
    emission_NM = emissions_NMK.gather(2, labels_NM[:, :, None])[:, :, 0]
    step_NM = scores.transitions[labels_NM[:, :-1], labels_NM[:, 1:]]
    if sequences.breaks is not None:
        boundary_NM = scores.end[labels_NM[:, :-1]] + scores.start[labels_NM[:, 1:]]
        step_NM = torch.where(sequences.breaks[:, 1:], boundary_NM, step_NM)
    last_N = labels_NM.gather(1, (lengths_N - 1).clamp(min=0)[:, None])[:, 0]
    ends_N = scores.start[labels_NM[:, 0]] + scores.end[last_N]
    inner_N = (emission_NM * inside_NM).sum(1) + (step_NM * inside_NM[:, 1:]).sum(1)
    return torch.where(lengths_N > 0, inner_N + ends_N, 0.0)


def marginals(sequences: LabelSequences, scores: CRFScores) -> Tensor:
    """The probability of each label at each position [N, M, K], by forward-backward; undefined beyond the lengths."""
    alphas, emissions_NMK = _forward(sequences, scores), sequences.emissions
    betas = [scores.end.expand_as(alphas[0])]
    for position in range(len(alphas) - 1, 0, -1):
        following_NK = emissions_NMK[:, position] + betas[-1]
        beta_NK = (sequences.steps(scores, position) + following_NK[:, None, :]).logsumexp(2)
        betas.append(torch.where(sequences.inside(position), beta_NK, betas[-1]))
    log_NMK = torch.stack(alphas, 1) + torch.stack(betas[::-1], 1)
    return log_NMK.softmax(2)


def viterbi(sequences: LabelSequences, scores: CRFScores) -> Tensor:
    """The label sequence with the highest score [N, M]; undefined beyond the lengths."""
    emissions_NMK = sequences.emissions
    best_NK, pointers = scores.start + emissions_NMK[:, 0], []
    same_K = torch.arange(emissions_NMK.shape[2], device=emissions_NMK.device)
    for position in range(1, emissions_NMK.shape[1]):
        inside_N1 = sequences.inside(position)
        reached_NK, pointer_NK = (best_NK[:, :, None] + sequences.steps(scores, position)).max(1)
        best_NK = torch.where(inside_N1, reached_NK + emissions_NMK[:, position], best_NK)
        pointers.append(torch.where(inside_N1, pointer_NK, same_K))
    labels = [(best_NK + scores.end).argmax(1)]
    for pointer_NK in reversed(pointers):
        labels.append(pointer_NK.gather(1, labels[-1][:, None])[:, 0])
    return torch.stack(labels[::-1], 1)


def _forward(sequences: LabelSequences, scores: CRFScores) -> list[Tensor]:
    """log Σ exp(score) of all label sequences up to each position that end in each label [N, K], by position."""
    emissions_NMK = sequences.emissions
    alphas = [scores.start + emissions_NMK[:, 0]]
    for position in range(1, emissions_NMK.shape[1]):
        reached_NK = (alphas[-1][:, :, None] + sequences.steps(scores, position)).logsumexp(1)
        alpha_NK = reached_NK + emissions_NMK[:, position]
        alphas.append(torch.where(sequences.inside(position), alpha_NK, alphas[-1]))
    return alphas


def _groups(lengths: Sequence[int]) -> list[list[int]]:
    """The numbers of the sequences that are decoded together, similar lengths next to each other."""
    groups: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not groups or (len(groups[-1]) + 1) * lengths[number] > DECODED_POSITIONS:
            groups.append([])
        groups[-1].append(number)
    return groups
