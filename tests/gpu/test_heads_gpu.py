"""On CUDA: every head compiles as one graph, does not synchronise, and equals the CPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from objectives.head_fixtures import model_with, packed

from bertsmith.objectives import choose, classify, regress, span, tag
from bertsmith.training.distributed import World
from bertsmith.training.forward_backward import ComputeConfig, ForwardBackward
from bertsmith.training.optimizers import adamw
from bertsmith.training.plan import TrainingPlan
from bertsmith.training.trainer import Trainer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CASES: dict[str, Any] = {
    "classify": classify.Config(dropout=0.0),
    "mean of a mix": classify.Config(pooling="mean", layers="mix", dropout=0.0),
    "concat_pool": classify.Config(pooling="concat", dropout=0.0),
    "last": regress.Config(pooling="last", dropout=0.0),
    "regress": regress.Config(dropout=0.0),
    "tag": tag.Config(dropout=0.0),
    "tag of four layers": tag.Config(layers="last_four_concat", dropout=0.0),
    "span": span.Config(),
    "choose": choose.Config(dropout=0.0),
}
BETWEEN = tag.Config(recurrent="bilstm", recurrent_width=16, dropout=0.0)
RECURRENT: dict[str, Any] = {
    "tag": BETWEEN,
    "crf": tag.Config(crf=True, dropout=0.0),
    "span": span.Config(recurrent="bilstm", recurrent_width=16),
    "classify": classify.Config(pooling="last", recurrent="bilstm", recurrent_width=16, dropout=0.0),
}
QUIET = {"dropout": 0.0, "attention_dropout": 0.0}


@pytest.mark.parametrize("case", CASES)
def test_heads_compile_as_one_graph_without_synchronisation(case: str) -> None:
    torch._dynamo.reset()  # which otherwise counts earlier cases as recompilations of the same function
    here, there = model_with(CASES[case], **QUIET), model_with(CASES[case], **QUIET).cuda()
    batch = packed()
    expected = here(batch).mean()
    expected.backward()
    moved = batch.to("cuda")

    def step(batch: Any) -> torch.Tensor:
        return there(there.corrupt(batch)).mean()

    compiled = torch.compile(step, fullgraph=True, dynamic=False)
    compiled(moved).backward()
    there.zero_grad()
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss = compiled(moved)
        loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    for (name, one), other in zip(here.named_parameters(), there.parameters(), strict=True):
        if one.grad is not None:
            assert other.grad is not None, name
            scale = max(one.grad.abs().max().item(), 1e-6)
            assert torch.allclose(other.grad.cpu(), one.grad, rtol=0, atol=2e-3 * scale + 1e-6), name


def test_a_crf_equals_the_cpu_without_synchronisation() -> None:
    here, there = (model_with(tag.Config(crf=True, dropout=0.0), **QUIET) for _ in range(2))
    batch, there = packed(), there.cuda()
    expected = here(batch).mean()
    expected.backward()
    moved = batch.to("cuda")
    there(moved).mean().backward()
    there.zero_grad()
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss = there(moved).mean()
        loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    for (name, one), other in zip(here.objectives.named_parameters(), there.objectives.parameters(), strict=True):
        scale = max(one.grad.abs().max().item(), 1e-6)
        assert torch.allclose(other.grad.cpu(), one.grad, rtol=0, atol=2e-3 * scale), name
    compiled = torch.compile(lambda: there(moved).mean())()
    assert compiled.item() == pytest.approx(expected.item(), rel=1e-4)


def test_a_bilstm_trains_in_half_precision_without_synchronisation() -> None:
    model, batch = model_with(BETWEEN).train(), packed()
    passes = ForwardBackward(
        model, precision="auto", compute=ComputeConfig(), world=World(device=torch.device("cuda")), seed=0
    )
    corrupted, counts, _ = passes.corrupt(batch)
    learn = partial(
        passes.accumulate_gradients,
        corrupted,
        {name: count.float() for name, count in counts.items()},
        micro=0,
        last=True,
    )
    learn(step=0)
    model.zero_grad()
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss = learn(step=1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert loss.mean().isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.objectives.parameters())


@pytest.mark.parametrize("case", RECURRENT)
def test_steps_with_loops_over_words_run_as_cuda_graphs(case: str, recwarn: pytest.WarningsRecorder) -> None:
    def losses(*, graphs: bool) -> list[float]:
        trainer = Trainer(
            model_with(RECURRENT[case], **QUIET).train(),
            lambda step: [packed()],
            plan=TrainingPlan(steps=12, learning_rate=1e-3),
            optimizer=adamw.Config(),
            compute=ComputeConfig(cuda_graphs=graphs, compile=False),
            world=World(device=torch.device("cuda")),
        )
        return [step.loss for step in trainer]

    assert losses(graphs=True) == pytest.approx(losses(graphs=False), rel=5e-3)
    assert not any("not replayed" in str(warning.message) for warning in recwarn)
