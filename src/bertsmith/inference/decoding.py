"""Token-by-token decoding with a key/value cache: one forward pass over the prompts, then one token per step.

All tensors of a step have constant shapes and stay on the device, so that a GPU replays it as a CUDA graph; the host
reads the tokens after every few steps. B sequences, N new tokens, V rows of the token table.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.data.collate import collate_unpadded
from bertsmith.encoders.transformer_encoder import TransformerEncoder
from bertsmith.inference.forward import ModelInput, Query
from bertsmith.inference.sampling import GenerationSettings, choose_tokens, warp_logits
from bertsmith.model_io.model import Model
from bertsmith.objectives.objective import Objective, at_least_float32
from bertsmith.types import Batch, Row

STEPS = {"cuda": 8}  # between two reads of the tokens by the host, which waits for the device; elsewhere 1
GRAPH_STEPS = 16  # from so many steps on: a capture takes about as long


@dataclass(frozen=True)
class Step:
    """The state of a decoding on the host: the tokens so far, and on request their log probabilities."""

    tokens: NDArray[np.int64]  # [B, steps]
    logprobs: NDArray[np.float32]  # [B, steps] of these tokens by the model; empty unless requested
    top_ids: NDArray[np.int64]  # [B, steps, top_logprobs] the most likely tokens, best first
    top_logprobs: NDArray[np.float32]  # [B, steps, top_logprobs]


class Decoder:
    """The state of one decoding: cache, tokens and counters. `run` computes the next steps; one thread at a time."""

    def __init__(
        self,
        model: Model,
        prompts: Sequence[Row],
        settings: GenerationSettings,
        *,
        new_tokens: Sequence[int],
        samples: Sequence[int],
        banned: Sequence[int],
    ) -> None:
        """`new_tokens` and `samples`, of each sequence: its maximum of new tokens, and its number among the samples of
        its prompt. `banned`: ids that are never chosen.
        """
        self.model, self.rows, self.settings = model, prompts, settings
        self.limits, self.new_tokens = new_tokens, max(new_tokens)
        self.samples, self.banned = samples, banned
        self.done_steps = 0
        self.graphs = True  # False: a step could not be captured
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self, device: str) -> Step:
        """The state after the next few steps; the first call also runs the prompts."""
        steps = min(STEPS.get(device, 1), self.new_tokens - self.done_steps)
        if not self.done_steps:
            self._prefill(device)
            steps -= 1
        for _ in range(steps):
            self._step(device)
        done = self.done_steps
        found = (self.tokens_BN, self.logprobs_BN, self.top_ids_BNK, self.top_logprobs_BNK)
        return Step(*(values[:, :done].cpu().numpy() for values in found))

    def _prefill(self, device: str) -> None:
        lengths = np.array([len(row) for row in self.rows])
        name, count = "causal_lm", len(self.rows)
        batch = collate_unpadded(self.rows, indices={name: [[length - 1] for length in lengths]}).to(device)
        autocast = torch.is_autocast_enabled(device)
        encoder = cast(TransformerEncoder, self.model.encoder)
        dtype = torch.get_autocast_dtype(device) if autocast else encoder.token_embeddings.dtype
        ends = lengths + np.array(self.limits)
        self.cache = encoder.make_cache(batch_size=count, length=int(ends.max()), dtype=dtype)
        logits_BV = self._logits(batch)
        self.position_B = torch.from_numpy(lengths - 1).to(device)  # of the last token so far
        self.last_position_B = torch.from_numpy(ends - 1).to(device)
        self._allocate(logits_BV, batch)
        self._advance(logits_BV)
        self.done_steps = 1

    def _allocate(self, logits_BV: Tensor, prompts: Batch) -> None:
        """The tensors that steps change in place."""
        (count, size), new = logits_BV.shape, self.new_tokens
        top = self.top_logprobs = min(self.settings.top_logprobs, size)
        like: dict[str, Any] = {"device": logits_BV.device, "dtype": torch.int64}
        self.ids_B = torch.zeros(count, **like)
        self.step = torch.zeros(1, **like)
        self.sample_B, self.token_V = torch.tensor(self.samples, **like), torch.arange(size, **like)
        self.tokens_BN = torch.zeros(count, new, **like)
        self.logprobs_BN = torch.zeros(count, new if top else 0, device=logits_BV.device)
        self.top_ids_BNK = torch.zeros(count, new if top else 0, top, **like)
        self.top_logprobs_BNK = self.top_ids_BNK.float()
        self.bias_V = torch.zeros(size, device=logits_BV.device)
        self.bias_V[torch.tensor(self.banned, **like)] = -torch.inf
        self.seen_BV: Tensor | None = None
        if self.settings.repetition_penalty != 1:
            self.seen_BV = torch.zeros(count, size, dtype=torch.bool, device=logits_BV.device)
            self.seen_BV[prompts.sample_ids.flatten(), prompts.input_ids.flatten()] = True
        every = torch.arange(count, **like)[:, None]
        self.batch = Batch(
            input_ids=self.ids_B[:, None],
            position_ids=self.position_B[:, None],
            segment_ids=torch.zeros_like(every),
            document_ids=torch.ones_like(every, dtype=torch.int32),
            special_mask=torch.zeros_like(every, dtype=torch.bool),
            sample_ids=every,
            epoch=torch.zeros((), **like),
            cu_seqlens=torch.arange(count + 1, device=logits_BV.device, dtype=torch.int32),
            cls_positions=every.flatten(),
            max_seqlen=1,
            indices={"causal_lm": every.flatten()},
        )

    def _logits(self, batch: Batch) -> Tensor:
        """The logits [B, V] at the tokens that the batch selects."""
        encoder, head = self.model.encoder, cast(Objective, self.model.objectives["causal_lm"])
        encoding = encoder(batch, self.cache, indices=batch.indices, pool=False)
        return at_least_float32(head.predict(encoding, batch, encoder.token_embeddings))

    def _advance(self, logits_BV: Tensor) -> None:
        """Chooses the next tokens and makes them the input of the next step."""
        logits_BV = logits_BV + self.bias_V
        warped_BV = warp_logits(logits_BV, self.settings, self.seen_BV)
        counters = {"sample_B": self.sample_B, "step": self.step, "token_V": self.token_V}
        next_B = choose_tokens(warped_BV, self.settings, **counters)
        if self.top_logprobs:
            logprobs_BV = logits_BV.log_softmax(-1)
            top = logprobs_BV.topk(self.top_logprobs)
            self.logprobs_BN.index_copy_(1, self.step, logprobs_BV.gather(1, next_B[:, None]))
            self.top_ids_BNK.index_copy_(1, self.step, top.indices[:, None])
            self.top_logprobs_BNK.index_copy_(1, self.step, top.values[:, None])
        if self.seen_BV is not None:
            self.seen_BV.scatter_(1, next_B[:, None], True)
        self.tokens_BN.index_copy_(1, self.step, next_B[:, None])
        self.ids_B.copy_(next_B)
        self.position_B.add_(1).clamp_(max=self.last_position_B)  # the tokens of a finished text are not read
        self.step.add_(1)

    def _step(self, device: str) -> None:
        if self._graph is not None:
            self._graph.replay()
        elif device == "cuda" and self.new_tokens - self.done_steps >= GRAPH_STEPS and self.graphs:
            self._capture()
        else:
            self._advance(self._logits(self.batch))
        self.done_steps += 1

    def _capture(self) -> None:
        """Runs a step, which loads its kernels and allocates their workspaces, and records the next one as a graph."""
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(current)
        autocast: dict[str, Any] = {"enabled": torch.is_autocast_enabled("cuda"), "cache_enabled": False}
        with torch.cuda.stream(stream), torch.autocast("cuda", torch.bfloat16, **autocast):
            self._advance(self._logits(self.batch))
            try:
                # not `torch.cuda.graph`, which empties the cache of the allocator
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    self._advance(self._logits(self.batch))
                finally:
                    graph.capture_end()
                self._graph = graph
            except RuntimeError as error:
                reason = str(error).partition("\n")[0]
                warnings.warn(f"generation runs without CUDA graphs, which is slower: {reason}", stacklevel=2)
                self.graphs = False
        current.wait_stream(stream)


@dataclass(frozen=True)
class DecodeInput(ModelInput):
    """The number of tokens that the next steps compute: the rows are in the `Decoder`."""

    tokens: int = field(default=0, kw_only=True)


@dataclass(frozen=True)
class DecodeQuery(Query):
    """The next steps of one decoding."""

    name = "generate"
    one_per_batch = True
    collates = False
    decoder: Decoder

    def run(self, model: Model, inputs: Sequence[ModelInput], device: str) -> list[Any]:
        return [self.decoder.run(device) for _ in inputs]
