"""Beam search with the length penalty of Wu et al. 2016, as in the Transformer's code (t2t: beam_search.py).

A text has K alive hypotheses and the K best finished ones. Each step extends the alive ones by their 2K most likely
continuations: those that end may enter the finished set, the best K others stay alive. A text is done when no alive
hypothesis can still beat its finished ones: from then on it does not change, and it leaves the batch when the host next
reads the state. All tensors of a step have constant shapes and stay on the device, so that a GPU can replay it as a
CUDA graph.
N texts, M = N * K hypotheses, C = 2K continuations, L the maximum length, V tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from bertsmith.encoders.encoder import CapturedState, DecoderState
from bertsmith.errors import BertsmithError
from bertsmith.inference.decoding import STEPS

LogProbs = Callable[[Tensor, Any], Tensor]  # the last tokens [M] and a `DecoderState` -> log probabilities [M, V]
MAX_BEAM_SIZE = 64
GRAPH_STEPS = 12  # from so many steps on: a capture takes about as long
MIN_REDUCTION = 4  # of the texts of a graph


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
    captures: bool = False,
) -> list[list[Hypothesis]]:
    """The `n_best` hypotheses of each text, best first. `limits`: the maximum of tokens of each, the end included.

    `state` has `beam_size` hypotheses of each text. A text that reaches its limit with too few finished hypotheses is
    completed by alive ones. `captures`: see `EncoderDecoder.captures`; a GPU then replays steps as a CUDA graph.
    """
    how: dict[str, Any] = {"start_id": start_id, "end_id": end_id, "limits": limits, "settings": settings}
    steps = search_steps(log_probs, state, **how, device=device, captures=captures)
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
    captures: bool = False,
) -> Generator[int, None, list[list[Hypothesis]]]:
    """`beam_search`, a few steps at a time: yields the number of alive hypotheses, and returns the results."""
    beams = _Beams(limits, settings, start_id=start_id, end_id=end_id, device=torch.device(device))
    return _Search(log_probs, state, beams, captures=captures).run()


class _Search:
    """Runs the steps of a search, and takes texts out of it that are done."""

    def __init__(self, log_probs: LogProbs, state: DecoderState, beams: _Beams, *, captures: bool) -> None:
        self.log_probs, self.state, self.beams, self.captures = log_probs, state, beams, captures
        self.texts = list(range(len(beams.limits_N)))  # that are in the batch
        self.results: list[list[Hypothesis]] = [[] for _ in self.texts]
        self.limit, self.steps_done = int(beams.tokens_NKL.shape[2]), 0
        self.graphs = captures and beams.device.type == "cuda"
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self) -> Generator[int, None, list[list[Hypothesis]]]:
        """See `search_steps`."""
        interval = STEPS.get(self.beams.device.type, 1)
        while self.texts:
            for _ in range(min(interval, self.limit - self.steps_done)):
                self._step()
            self._remove_done(self.beams.done_N.tolist())
            if self.texts:
                yield len(self.texts) * self.beams.settings.beam_size
        return self.results

    def _step(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        elif self.graphs and self.limit - self.steps_done >= GRAPH_STEPS:
            self._capture()
        else:
            self._compute()
        self.steps_done += 1

    def _compute(self) -> None:
        hypotheses_M = self.beams.advance(self.log_probs(self.beams.ids_M, self.state))
        if self.captures:
            cast(CapturedState, self.state).reorder(hypotheses_M)
        elif self.beams.settings.beam_size > 1:
            self.state = self.state.select(hypotheses_M)

    def _capture(self) -> None:
        """Runs a step, which loads its kernels and allocates their workspaces, and records the next one as a graph."""
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(current)
        autocast: dict[str, Any] = {"enabled": torch.is_autocast_enabled("cuda"), "cache_enabled": False}
        with torch.cuda.stream(stream), torch.autocast("cuda", torch.bfloat16, **autocast):
            self._compute()
            try:
                # not `torch.cuda.graph`, which empties the cache of the allocator
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    self._compute()
                finally:
                    graph.capture_end()
                self._graph = graph
            except RuntimeError as error:
                reason = str(error).partition("\n")[0]
                warnings.warn(f"beam search runs without CUDA graphs, which is slower: {reason}", stacklevel=2)
                self.graphs = False
        current.wait_stream(stream)

    def _remove_done(self, done: Sequence[bool]) -> None:
        """Keeps the results of finished texts and removes these from the batch; with a graph, only if they are many."""
        left = [index for index, finished in enumerate(done) if not finished]
        if len(left) == len(done) or (self._graph is not None and MIN_REDUCTION * len(left) > len(done)):
            return
        finished = [index for index, one in enumerate(done) if one]
        for index, result in zip(finished, self.beams.results(finished), strict=True):
            self.results[self.texts[index]] = result
        self.texts, self._graph = [self.texts[index] for index in left], None
        if left:
            kept_N = torch.tensor(left, device=self.beams.device)
            beams = self.beams.settings.beam_size
            every_K = torch.arange(beams, device=self.beams.device)
            self.state = self.state.select((kept_N[:, None] * beams + every_K).flatten(), kept_N)
            self.beams.select(kept_N)


class _Beams:
    """The alive and finished hypotheses of N texts; steps change its tensors in place."""

    BY_TEXT: ClassVar[tuple[str, ...]] = (
        "limits_N",
        "done_N",
        "lengths_N",
        "tokens_NKL",
        "logprobs_NK",
        "finished_NKL",
        "finished_logprobs_NK",
        "finished_scores_NK",
    )

    def __init__(
        self, limits: Sequence[int], settings: SearchSettings, *, start_id: int, end_id: int, device: torch.device
    ) -> None:
        self.settings, self.end_id, self.device = settings, end_id, device
        count, beams = len(limits), settings.beam_size
        self.limits_N = torch.tensor(limits, dtype=torch.int64, device=device)
        self.done_N = torch.zeros(count, dtype=torch.bool, device=device)
        self.lengths_N = torch.zeros_like(self.limits_N)  # of the alive hypotheses
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.ids_M = torch.full((count * beams,), start_id, device=device)  # the newest tokens
        size = count, beams, max(limits, default=0)
        self.tokens_NKL = torch.full(size, end_id, dtype=torch.int64, device=device)
        self.logprobs_NK = torch.full((count, beams), -torch.inf, device=device)
        self.logprobs_NK[:, 0] = 0.0  # at first all hypotheses of a text are equal: one is extended
        self.finished_NKL = self.tokens_NKL.clone()  # with end tokens from their end on
        self.finished_logprobs_NK = torch.full((count, beams), -torch.inf, device=device)
        self.finished_scores_NK = self.finished_logprobs_NK.clone()

    def select(self, kept_N: Tensor) -> None:
        """Keeps only these texts."""
        self.ids_M = self.ids_M.view(-1, self.settings.beam_size)[kept_N].flatten()
        for name in self.BY_TEXT:
            setattr(self, name, getattr(self, name)[kept_N])

    def advance(self, logprobs_MV: Tensor) -> Tensor:
        """Extends all hypotheses by a token; which hypotheses [M] the alive ones continue, by their numbers before."""
        count, beams = self.logprobs_NK.shape
        top_NC, beam_NC, token_NC = self._continuations(logprobs_MV)
        ends_NC = token_NC == self.end_id
        tokens_NCL = self.tokens_NKL.gather(1, _repeated(beam_NC, self.tokens_NKL))
        tokens_NCL.index_copy_(2, self.step, token_NC[:, :, None])
        self.step.add_(1)
        self._finish(top_NC.masked_fill(~ends_NC, -torch.inf), tokens_NCL)
        logprobs_NK, chosen_NK = _top(top_NC.masked_fill(ends_NC, -torch.inf), beams)
        self.ids_M.copy_(token_NC.gather(1, chosen_NK).flatten())
        self._update("logprobs_NK", logprobs_NK)
        self._update("tokens_NKL", tokens_NCL.gather(1, _repeated(chosen_NK, tokens_NCL)))
        self._update("lengths_N", self.step.expand(count))
        # log probabilities never rise, so the upper bound of a score is the current one at the maximum length
        bound_N = self.logprobs_NK.amax(1) / length_penalty(self.limits_N, self.settings.length_penalty)
        beaten_N = self.finished_scores_NK[:, self.settings.n_best - 1] >= bound_N
        self.done_N.logical_or_(beaten_N | (self.limits_N <= self.step))
        first_N1 = torch.arange(0, count * beams, beams, device=self.device)[:, None]
        return (first_N1 + beam_NC.gather(1, chosen_NK)).flatten()

    def _continuations(self, logprobs_MV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The most likely ones: their log probabilities, hypotheses and tokens [N, C]."""
        count, beams = self.logprobs_NK.shape
        wanted = 2 * beams if beams > 1 else 1  # greedy search takes the most likely token even if it is the end
        # of each hypothesis first: a few long rows would not fill a GPU
        each_MC, token_MC = logprobs_MV.topk(min(wanted, logprobs_MV.shape[1]))
        totals_NC = (self.logprobs_NK.flatten()[:, None] + each_MC).view(count, -1)
        top_NC, index_NC = totals_NC.topk(min(wanted, totals_NC.shape[1]))
        return top_NC, index_NC // each_MC.shape[1], token_MC.view(count, -1).gather(1, index_NC)

    def _finish(self, logprobs_NC: Tensor, tokens_NCL: Tensor) -> None:
        """Keeps the best of the finished hypotheses and of these, which are -inf where they have not ended."""
        scores_NC = logprobs_NC / length_penalty(self.step, self.settings.length_penalty)
        scores_NC = torch.cat([self.finished_scores_NK, scores_NC], 1)
        scores_NK, kept_NK = scores_NC.topk(self.settings.beam_size)
        logprobs_NC = torch.cat([self.finished_logprobs_NK, logprobs_NC], 1)
        tokens_NCL = torch.cat([self.finished_NKL, tokens_NCL], 1)
        self._update("finished_scores_NK", scores_NK)
        self._update("finished_logprobs_NK", logprobs_NC.gather(1, kept_NK))
        self._update("finished_NKL", tokens_NCL.gather(1, _repeated(kept_NK, tokens_NCL)))

    def _update(self, name: str, values: Tensor) -> None:
        """Texts that are done do not change."""
        old = getattr(self, name)
        old.copy_(torch.where(self.done_N.view(-1, *(1,) * (old.ndim - 1)), old, values))

    def results(self, texts: Sequence[int]) -> list[list[Hypothesis]]:
        """Of texts that are done, by their indices in the batch."""
        names = ("finished_NKL", "finished_logprobs_NK", "finished_scores_NK", "tokens_NKL", "logprobs_NK", "lengths_N")
        index = torch.tensor(texts, device=self.device)
        values = [getattr(self, name)[index].tolist() for name in names]
        return [self._result(*each) for each in zip(*values, strict=True)]

    def _result(
        self,
        finished: list[list[int]],
        finished_logprobs: list[float],
        scores: list[float],
        alive: list[list[int]],
        logprobs: list[float],
        length: int,
    ) -> list[Hypothesis]:
        ended = [
            Hypothesis(tuple(tokens[: tokens.index(self.end_id)]), logprob, score, True)
            for tokens, logprob, score in zip(finished, finished_logprobs, scores, strict=True)
            if logprob > -torch.inf
        ]
        penalty = length_penalty(length, self.settings.length_penalty)
        cut_off = [
            Hypothesis(tuple(tokens[:length]), logprob, logprob / penalty, False)
            for tokens, logprob in zip(alive, logprobs, strict=True)
            if logprob > -torch.inf
        ]
        return [*ended, *cut_off][: self.settings.n_best]


def _repeated(index_NC: Tensor, tokens: Tensor) -> Tensor:
    """Indices of hypotheses for `gather` of all their tokens [N, K, L]."""
    return index_NC[:, :, None].expand(-1, -1, tokens.shape[2])


def _top(values_NC: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest `count` values and their indices, padded with -inf where there are fewer."""
    top_NK, index_NK = values_NC.topk(min(count, values_NC.shape[1]))
    missing = count - top_NK.shape[1]
    if not missing:
        return top_NK, index_NK
    padding = torch.nn.functional.pad
    return padding(top_NK, (0, missing), value=-torch.inf), padding(index_NK, (0, missing))
