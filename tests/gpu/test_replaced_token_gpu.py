"""On CUDA: ELECTRA's step compiles as one graph without synchronisation; noise and samples equal the CPU's."""

from __future__ import annotations

import pytest
import torch
from objectives.test_replaced_token import build, filled, texts

from bertsmith.nn import counter_random
from bertsmith.types import Batch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_noise_is_the_same() -> None:
    counter = torch.arange(200_000)
    here, there = (
        counter_random.random_bits(counter_random.stream_key(1, "noise"), counter.to(device))
        for device in ("cpu", "cuda")
    )
    assert torch.equal(here, there.cpu())
    assert torch.allclose(counter_random.gumbel(here), counter_random.gumbel(there).cpu(), rtol=1e-5, atol=1e-5)


def test_samples_are_the_same() -> None:
    here, there = build(), build().cuda()
    actual, _ = filled(here, here.corrupt(texts()))
    expected, _ = filled(there, there.corrupt(texts().to("cuda")))
    other = (actual.input_ids != expected.input_ids.cpu()).sum().item()
    assert other <= 1, "two tokens may be equally likely to the last digits"


def test_a_step_compiles_as_one_graph_without_synchronisation() -> None:
    model, batch = build().cuda().train(), texts().to("cuda")

    def step(batch: Batch) -> torch.Tensor:
        return model(model.corrupt(batch)).mean()

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=False)
    with torch.autocast("cuda", torch.bfloat16):
        compiled(batch).backward()
    model.zero_grad()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(batch)
        loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert loss.isfinite()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
