"""Beam search with the length penalty of Wu et al. 2016, as in the Transformer's code (t2t: beam_search.py).

A text has K alive hypotheses and the K best finished ones. Each step extends the alive ones by their 2K most likely
continuations: those that end may enter the finished set, the best K others stay alive. A text is done when no alive
hypothesis can still beat its finished ones, and leaves the batch. N texts, M = N * K hypotheses, V tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bertsmith.encoders.encoder import DecoderState
from bertsmith.errors import BertsmithError
from bertsmith.inference.decoding import STEPS

LogProbs = Callable[[Tensor, Any], Tensor]  # the last tokens [M] and a `DecoderState` -> log probabilities [M, V]
MAX_BEAM_SIZE = 64


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """The paper's settings (Vaswani et al. 2017, §6.1)."""

    beam_size: int = 4  # alive hypotheses of a text; 1: greedy search, the most likely token at each step
    length_penalty: float = 0.6  # alpha: scores are divided by ((5 + length) / 6)^alpha; 0 favours short translations
    n_best: int = 1  # results for each text
    max_extra_tokens: int = 50  # of a translation, over the number of source tokens

    def __post_init__(self) -> None:
        limits = {
            "beam_size": (1 <= self.beam_size <= MAX_BEAM_SIZE, f"from 1 to {MAX_BEAM_SIZE}"),
            "length_penalty": (0 <= self.length_penalty <= 10, "from 0 to 10"),
            "n_best": (1 <= self.n_best <= self.beam_size, f"from 1 to beam_size={self.beam_size}"),
            "max_extra_tokens": (self.max_extra_tokens >= 0, "at least 0"),
        }
        for name, (valid, expected) in limits.items():
            if not valid:
                raise BertsmithError(f"{name}={getattr(self, name)}: it must be {expected}")


@dataclass(frozen=True)
class Hypothesis:
    """A result of the search."""

    tokens: tuple[int, ...]  # without the end token
    logprob: float  # of all tokens, the end token included
    score: float  # the log probability divided by the length penalty
    finished: bool  # False: cut off at the maximum length


def length_penalty(length: Tensor | float, alpha: float) -> Any:
    """((5 + length) / 6)^alpha; the length counts the end token."""
    return ((5 + length) / 6) ** alpha


def beam_search(
    log_probs: LogProbs,
    state: DecoderState,
    *,
    start_id: int,
    end_id: int,
    limits: Sequence[int],
    settings: SearchSettings,
    device: str | torch.device = "cpu",
) -> list[list[Hypothesis]]:
    """The `n_best` hypotheses of each text, best first. `limits`: the maximum of tokens of each, the end included.

    `state` has `beam_size` hypotheses of each text. A text that reaches its limit with too few finished hypotheses is
    completed by alive ones.
    """
    ids: dict[str, Any] = {"start_id": start_id, "end_id": end_id}
    steps = search_steps(log_probs, state, **ids, limits=limits, settings=settings, device=device)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            results: list[list[Hypothesis]] = done.value
            return results


def search_steps(
    log_probs: LogProbs,
    state: DecoderState,
    *,
    start_id: int,
    end_id: int,
    limits: Sequence[int],
    settings: SearchSettings,
    device: str | torch.device = "cpu",
) -> Generator[int, None, list[list[Hypothesis]]]:
    """`beam_search`, a few steps at a time: yields the number of alive hypotheses, and returns the results."""
    search = _Search(list(limits), end_id, settings, torch.device(device))
    interval = STEPS.get(search.limits_N.device.type, 1)
    ids_M = torch.full((len(limits) * settings.beam_size,), start_id, device=device)
    while search.texts:
        hypotheses_M, texts_N = search.advance(log_probs(ids_M, state))
        if not search.texts:
            break
        if settings.beam_size > 1 or texts_N is not None:
            state = state.select(hypotheses_M, texts_N)
        ids_M = search.tokens_NKT[:, :, -1].flatten()
        if search.length % interval == 0:
            yield len(ids_M)
    return search.results


class _Search:
    """The alive and finished hypotheses of the texts that are not done."""

    def __init__(self, limits: list[int], end_id: int, settings: SearchSettings, device: torch.device) -> None:
        self.settings, self.end_id = settings, end_id
        self.results: list[list[Hypothesis]] = [[] for _ in limits]
        self.texts = list(range(len(limits)))  # that are not done
        self.length = 0  # of the alive hypotheses
        count, beams = len(limits), settings.beam_size
        self.limits_N = torch.tensor(limits, device=device)
        self.tokens_NKT = torch.zeros(count, beams, 0, dtype=torch.int64, device=device)
        self.logprobs_NK = torch.full((count, beams), -torch.inf, device=device)
        self.logprobs_NK[:, 0] = 0.0  # at first all hypotheses of a text are equal: one is extended
        self.finished_NKT = self.tokens_NKT  # with end tokens after their end
        self.finished_logprobs_NK = torch.full((count, beams), -torch.inf, device=device)
        self.finished_scores_NK = self.finished_logprobs_NK.clone()

    def advance(self, logprobs_MV: Tensor) -> tuple[Tensor, Tensor | None]:
        """Extends all hypotheses by a token. Which hypotheses [M'] the alive ones continue, and which texts [N'] are
        left, by their indices before; None for all.
        """
        count, beams = self.logprobs_NK.shape
        self.length += 1
        totals_NC = (self.logprobs_NK.flatten()[:, None] + logprobs_MV).view(count, -1)
        # greedy search takes the most likely token even if it is the end
        wanted = min(2 * beams if beams > 1 else 1, totals_NC.shape[1])
        top_NC, index_NC = totals_NC.topk(wanted)
        beam_NC, token_NC = index_NC // logprobs_MV.shape[1], index_NC % logprobs_MV.shape[1]
        ends_NC = token_NC == self.end_id
        before_NCT = self.tokens_NKT.gather(1, _repeated(beam_NC, self.length - 1))
        tokens_NCT = torch.cat([before_NCT, token_NC[:, :, None]], 2)
        self._finish(top_NC.masked_fill(~ends_NC, -torch.inf), tokens_NCT)
        self.logprobs_NK, chosen_NK = _top(top_NC.masked_fill(ends_NC, -torch.inf), beams)
        self.tokens_NKT = tokens_NCT.gather(1, _repeated(chosen_NK, self.length))
        first_N1 = torch.arange(0, count * beams, beams, device=beam_NC.device)[:, None]
        return self._remove_done(first_N1 + beam_NC.gather(1, chosen_NK))

    def _finish(self, logprobs_NC: Tensor, tokens_NCT: Tensor) -> None:
        """Keeps the best of the finished hypotheses and of these, which are -inf where they have not ended."""
        padding = self.finished_NKT.new_full((*self.finished_NKT.shape[:2], 1), self.end_id)
        scores_NC = logprobs_NC / length_penalty(self.length, self.settings.length_penalty)
        scores_NC = torch.cat([self.finished_scores_NK, scores_NC], 1)
        self.finished_scores_NK, kept_NK = scores_NC.topk(self.settings.beam_size)
        self.finished_logprobs_NK = torch.cat([self.finished_logprobs_NK, logprobs_NC], 1).gather(1, kept_NK)
        tokens_NCT = torch.cat([torch.cat([self.finished_NKT, padding], 2), tokens_NCT], 1)
        self.finished_NKT = tokens_NCT.gather(1, _repeated(kept_NK, self.length))

    def _remove_done(self, hypotheses_NK: Tensor) -> tuple[Tensor, Tensor | None]:
        # log probabilities only fall, so the best that an alive hypothesis can reach is this one at the longest length
        bound_N = self.logprobs_NK.amax(1) / length_penalty(self.limits_N, self.settings.length_penalty)
        beaten_N = self.finished_scores_NK[:, self.settings.n_best - 1] >= bound_N
        done = (beaten_N | (self.limits_N <= self.length)).tolist()
        if not any(done):
            return hypotheses_NK.flatten(), None
        for index, text in enumerate(self.texts):
            if done[index]:
                self.results[text] = self._result(index)
        left = [index for index, finished in enumerate(done) if not finished]
        self.texts = [self.texts[index] for index in left]
        kept_N = torch.tensor(left, dtype=torch.int64, device=hypotheses_NK.device)
        for name in ("limits_N", "tokens_NKT", "logprobs_NK"):
            setattr(self, name, getattr(self, name)[kept_N])
        for name in ("finished_NKT", "finished_logprobs_NK", "finished_scores_NK"):
            setattr(self, name, getattr(self, name)[kept_N])
        return hypotheses_NK[kept_N].flatten(), kept_N

    def _result(self, index: int) -> list[Hypothesis]:
        finished = [
            Hypothesis(tuple(tokens[: tokens.index(self.end_id)]), logprob, score, True)
            for tokens, logprob, score in zip(
                self.finished_NKT[index].tolist(),
                self.finished_logprobs_NK[index].tolist(),
                self.finished_scores_NK[index].tolist(),
                strict=True,
            )
            if logprob > -torch.inf
        ]
        penalty = length_penalty(self.length, self.settings.length_penalty)
        alive = [
            Hypothesis(tuple(tokens), logprob, logprob / penalty, False)
            for tokens, logprob in zip(self.tokens_NKT[index].tolist(), self.logprobs_NK[index].tolist(), strict=True)
            if logprob > -torch.inf
        ]
        return [*finished, *alive][: self.settings.n_best]


def _repeated(index_NC: Tensor, length: int) -> Tensor:
    return index_NC[:, :, None].expand(-1, -1, length)


def _top(values_NC: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest `count` values and their indices, filled up with -inf where there are fewer."""
    top_NK, index_NK = values_NC.topk(min(count, values_NC.shape[1]))
    missing = count - top_NK.shape[1]
    if not missing:
        return top_NK, index_NK
    padding = torch.nn.functional.pad
    return padding(top_NK, (0, missing), value=-torch.inf), padding(index_NK, (0, missing))
