"""Choosing the next token: the settings of a generation, and sampling on the device by counter-based random numbers.

B sequences, V rows of the token table. The operations and their order are those of transformers' logits processors.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from bertsmith.errors import BertsmithError
from bertsmith.nn.counter_random import gumbel, random_bits, stream_key

MAX_SAMPLES = 128  # of one prompt
MAX_TOP_LOGPROBS = 20
MAX_STOPS = 16


class GenerationOptions(TypedDict, total=False):
    """The options of `Predictor.generate`."""

    max_new_tokens: int | None
    temperature: float
    top_k: int | None
    top_p: float
    repetition_penalty: float
    stop: str | Sequence[str]
    samples: int
    seed: int | None
    top_logprobs: int


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """The options with their defaults, checked."""

    max_new_tokens: int | None = None  # None: up to 64, as far as they fit
    temperature: float = 0.0  # 0: always the most likely token
    top_k: int | None = None  # sample only from so many of the most likely tokens
    top_p: float = 1.0  # sample only from the most likely tokens that have this probability together
    repetition_penalty: float = 1.0  # divides the positive logits of tokens of the text so far (Keskar et al. 2019)
    stop: tuple[str, ...] = ()  # strings that end a text, which they are not part of
    samples: int = 1  # texts for each prompt
    seed: int | None = None  # of sampling; None: another one in each call
    top_logprobs: int = 0  # also so many of the most likely tokens at each step

    def __post_init__(self) -> None:
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        object.__setattr__(self, "stop", stops)
        if self.seed is None:
            object.__setattr__(self, "seed", secrets.randbits(31))
        limits = {
            "max_new_tokens": (self.max_new_tokens is None or self.max_new_tokens >= 1, "at least 1"),
            "temperature": (self.temperature >= 0 and math.isfinite(self.temperature), "at least 0"),
            "top_k": (self.top_k is None or self.top_k >= 1, "at least 1, or absent for all tokens"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "repetition_penalty": (0 < self.repetition_penalty < math.inf, "above 0; 1 has no effect"),
            "samples": (1 <= self.samples <= MAX_SAMPLES, f"from 1 to {MAX_SAMPLES}"),
            "top_logprobs": (0 <= self.top_logprobs <= MAX_TOP_LOGPROBS, f"from 0 to {MAX_TOP_LOGPROBS}"),
        }
        for name, (valid, expected) in limits.items():
            if not valid:
                raise BertsmithError(f"{name}={getattr(self, name)}: it must be {expected}")
        if "" in stops or len(stops) > MAX_STOPS:
            raise BertsmithError(f"stop takes at most {MAX_STOPS} strings of at least one character")
        if self.samples > 1 and not self.temperature:
            raise BertsmithError(
                f"samples={self.samples} with temperature=0 would give equal texts: set a temperature, such as 0.8"
            )


def warp_logits(logits_BV: Tensor, settings: GenerationSettings, seen_BV: Tensor | None = None) -> Tensor:
    """The logits with repetition penalty, temperature, top-k and top-p applied; excluded tokens are -inf.

    `seen_BV`: whether a token is in the text so far, for the penalty.
    """
    if seen_BV is not None:
        penalty = settings.repetition_penalty
        penalised_BV = torch.where(logits_BV < 0, logits_BV * penalty, logits_BV / penalty)
        logits_BV = torch.where(seen_BV, penalised_BV, logits_BV)
    if not settings.temperature:
        return logits_BV
    logits_BV = logits_BV / settings.temperature
    if settings.top_k is not None and settings.top_k < logits_BV.shape[-1]:
        least_B1 = logits_BV.topk(settings.top_k).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < least_B1, -torch.inf)
    if settings.top_p < 1:
        sorted_BV, order_BV = logits_BV.sort(descending=False)
        removed_BV = sorted_BV.softmax(-1).cumsum(-1) <= 1 - settings.top_p
        removed_BV[:, -1] = False
        logits_BV = logits_BV.masked_fill(removed_BV.scatter(1, order_BV, removed_BV), -torch.inf)
    return logits_BV


def choose_tokens(
    logits_BV: Tensor, settings: GenerationSettings, *, sample_B: Tensor, step: Tensor, token_V: Tensor
) -> Tensor:
    """The next token [B] of each sequence: the most likely one, or with a temperature a sample (Gumbel-max).

    The random numbers depend on the seed, the number of the sample, the step and the token, so not on the batch.
    """
    if not settings.temperature:
        return logits_BV.argmax(-1)
    assert settings.seed is not None
    key = stream_key(settings.seed, "generate")
    return (logits_BV + gumbel(random_bits(key, sample_B[:, None], step, token_V))).argmax(-1)
