"""Beam search on toy models whose best sequences are known by trying all of them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import bertsmith.inference.beam_search as module
from bertsmith.errors import BertsmithError
from bertsmith.inference.beam_search import Hypothesis, SearchSettings, beam_search, length_penalty

START, END, SIZE = 0, 1, 5


@dataclass(frozen=True)
class ToyState:
    """The tokens so far of each hypothesis [M, T], and the number of its text [M]."""

    tokens: Tensor
    text: Tensor

    def select(self, hypotheses: Tensor, texts: Tensor | None = None) -> ToyState:
        return replace(self, tokens=self.tokens[hypotheses], text=self.text[hypotheses])


class ToyModel:
    """Random log probabilities of the next token, a function of the text and of all tokens before it."""

    def __init__(self, seed: int, sharpness: float = 2.0) -> None:
        self.seed, self.sharpness = seed, sharpness

    def next(self, text: int, tokens: tuple[int, ...]) -> Tensor:
        number = hash((self.seed, text, tokens)) % 2**31
        logits = torch.randn(SIZE, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
        logits = logits * self.sharpness
        logits[START] = -torch.inf
        return logits.log_softmax(-1)

    def start(self, texts: list[int], beams: int) -> ToyState:
        count = len(texts) * beams
        return ToyState(torch.zeros(count, 0, dtype=torch.int64), torch.tensor(texts).repeat_interleave(beams))

    def search(self, texts: list[int], limits: list[int], **settings: float) -> list[list[Hypothesis]]:
        chosen = SearchSettings(**settings)  # type: ignore[arg-type]

        def log_probs(ids: Tensor, state: ToyState) -> Tensor:
            object.__setattr__(state, "tokens", torch.cat([state.tokens, ids[:, None]], 1))
            rows = zip(state.text.tolist(), state.tokens.tolist(), strict=True)
            return torch.stack([self.next(text, tuple(tokens)) for text, tokens in rows])

        state = self.start(texts, chosen.beam_size)
        return beam_search(log_probs, state, start_id=START, end_id=END, limits=limits, settings=chosen)

    def logprob(self, text: int, tokens: tuple[int, ...]) -> float:
        """Of a sequence with its end token."""
        before = (START, *tokens)
        return sum(
            float(self.next(text, before[:number])[token]) for number, token in enumerate((*tokens, END), start=1)
        )

    def every(self, text: int, limit: int, alpha: float) -> list[Hypothesis]:
        """All sequences that end within the limit, best first."""
        letters = [token for token in range(SIZE) if token not in (START, END)]
        found = []
        for length in range(limit):
            for tokens in itertools.product(letters, repeat=length):
                logprob = self.logprob(text, tokens)
                found.append(Hypothesis(tokens, logprob, logprob / length_penalty(length + 1, alpha), True))
        return sorted(found, key=lambda one: -one.score)


def test_length_penalties_of_the_paper() -> None:
    values = [length_penalty(length, 0.6) for length in (1, 5, 10, 20, 50)]
    assert values == pytest.approx([1, 1.358655, 1.732862, 2.354362, 3.778565], abs=1e-6)
    assert length_penalty(17, 0) == 1


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_beam_as_wide_as_everything_finds_the_best_sequences(seed: int, alpha: float) -> None:
    model, limit = ToyModel(seed), 4
    expected = model.every(7, limit, alpha)[:5]
    (found,) = model.search([7], [limit], beam_size=27, length_penalty=alpha, n_best=5)
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    assert all(one.finished for one in found)
    for one, other in zip(found, expected, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-6)
        assert one.logprob == pytest.approx(other.logprob, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_a_narrow_beam_finds_nothing_better_than_the_best(seed: int) -> None:
    model = ToyModel(seed)
    best = model.every(3, 5, 0.6)[0].score
    (found,) = model.search([3], [5], beam_size=2)
    assert found[0].score <= best + 1e-6
    assert found[0].logprob == pytest.approx(model.logprob(3, found[0].tokens), abs=1e-5) or not found[0].finished


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_a_beam_of_one_is_greedy_search(alpha: float) -> None:
    model, limit = ToyModel(11), 12
    for text in range(8):
        tokens: list[int] = []
        total = 0.0
        while len(tokens) < limit:
            log_probs = model.next(text, (START, *tokens))
            token = int(log_probs.argmax())
            total += float(log_probs[token])
            if token == END:
                break
            tokens.append(token)
        ((found,),) = model.search([text], [limit], beam_size=1, length_penalty=alpha)
        assert (list(found.tokens), found.finished) == (tokens, len(tokens) < limit)
        assert found.logprob == pytest.approx(total, abs=1e-5)


class EndingModel(ToyModel):
    """After the first token the end is the most likely one, of every hypothesis."""

    def next(self, text: int, tokens: tuple[int, ...]) -> Tensor:
        shares = {1: (0.0, 0.0, 0.5, 0.4, 0.1), 2: (0.0, 0.6, 0.0, 0.0, 0.4)}.get(
            len(tokens), (0.0, 1.0, 0.0, 0.0, 0.0)
        )
        return torch.tensor(shares, dtype=torch.float64).log()


def test_hypotheses_stay_alive_where_the_end_is_the_most_likely_token_of_all() -> None:
    """Twice as many continuations as hypotheses are needed: the first K of them all end."""
    model = EndingModel(0)
    ((best, second),) = model.search([0], [4], beam_size=2, n_best=2, length_penalty=3.0)
    assert (best.tokens, second.tokens) == ((2, 4), (2,))
    assert best.logprob == pytest.approx(math.log(0.5 * 0.4))
    assert best.tokens == model.every(0, 4, 3.0)[0].tokens, "the best of all sequences"


def test_texts_of_a_batch_do_not_change_each_other() -> None:
    model, texts, limits = ToyModel(5, sharpness=1.0), [0, 1, 2, 3, 4, 5], [2, 9, 1, 6, 9, 4]
    together = model.search(texts, limits, beam_size=3, n_best=3)
    for text, limit, found in zip(texts, limits, together, strict=True):
        assert [found] == model.search([text], [limit], beam_size=3, n_best=3)
        assert len({one.tokens for one in found if one.finished}) == sum(one.finished for one in found)


@pytest.mark.parametrize("interval", [3, 100])
def test_finished_texts_do_not_change_until_the_host_reads_them(interval: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    model, texts, limits = ToyModel(5, sharpness=1.0), [0, 1, 2, 3, 4, 5], [2, 9, 1, 6, 9, 4]
    for settings in ({"beam_size": 3, "n_best": 3}, {"beam_size": 4}, {"beam_size": 1}):
        monkeypatch.setattr(module, "STEPS", {})
        expected = model.search(texts, limits, **settings)
        monkeypatch.setattr(module, "STEPS", {"cpu": interval})
        assert model.search(texts, limits, **settings) == expected


def test_hypotheses_that_reach_the_limit_are_cut_off() -> None:
    class Endless(ToyModel):
        def next(self, text: int, tokens: tuple[int, ...]) -> Tensor:
            return super().next(text, tokens).masked_fill(torch.arange(SIZE) == END, -torch.inf)

    (found,) = Endless(1).search([0], [3], beam_size=2, n_best=2)
    assert [(len(one.tokens), one.finished) for one in found] == [(3, False), (3, False)]
    assert found[0].score >= found[1].score


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam_size": 0}, "beam_size=0: it must be from 1 to 64"),
        ({"n_best": 5}, "n_best=5: it must be from 1 to beam_size=4"),
        ({"length_penalty": -1.0}, "length_penalty=-1.0: it must be from 0 to 10"),
        ({"max_extra_tokens": -1}, "max_extra_tokens=-1: it must be at least 0"),
    ],
)
def test_refused_settings(settings: dict[str, float], message: str) -> None:
    with pytest.raises(BertsmithError, match=f"^{message}$"):
        SearchSettings(**settings)  # type: ignore[arg-type]
