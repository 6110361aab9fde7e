"""On CUDA: kernels of the Transformer equal their references; beam search by CUDA graphs equals the CPU's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from inference.test_translation import TEXTS, random_translator, same

from bertsmith.data.collate import collate
from bertsmith.inference import beam_search
from bertsmith.nn.decoder import CrossAttention, make_cross_attention_context
from bertsmith.nn.kernels import linear_relu

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("width", [128, 256, 512])
def test_cross_attention_equals_masked_attention(width: int, compiles: bool) -> None:
    torch.manual_seed(0)
    targets = torch.tensor([[1] * 100 + [2] * 9 + [0] * 3, [1] * 30 + [2] * 82], dtype=torch.int32, device="cuda")
    sources = torch.tensor([[1] * 20 + [2] * 130, [1] * 77 + [2] * 70 + [0] * 3], dtype=torch.int32, device="cuda")
    layer = CrossAttention(width=width, heads=4, dropout=0.0).cuda().bfloat16()
    valid, results = (targets != 0).flatten(), []
    x, source = (torch.randn(ids.numel(), width, device="cuda").bfloat16() for ids in (targets, sources))
    torch.compiler.reset()
    for ranges in (False, True):
        context = make_cross_attention_context(targets, sources, ranges=ranges)
        inputs = [each.clone().requires_grad_() for each in (x, source)]
        run = torch.compile(layer, fullgraph=True) if compiles else layer
        out = run(*inputs, context)[0][valid]
        gradients = torch.autograd.grad(out.float().square().sum(), [*inputs, *layer.parameters()])
        results.append([out, *(each for each in gradients if each.float().norm() > 1e-2)])
    for expected, actual in zip(*results, strict=True):
        assert (actual - expected).float().norm() < 0.02 * expected.float().norm()


@pytest.mark.parametrize("compiles", [False, True])
def test_a_linear_layer_with_relu(compiles: bool) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(1000, 64), torch.randn(256, 64) / 8, torch.randn(256)
    run = torch.compile(linear_relu.linear_relu, fullgraph=True) if compiles else linear_relu.linear_relu
    results = []
    for function in (lambda *given: torch.relu(torch.nn.functional.linear(*given)), run):
        given = [each.cuda().requires_grad_() for each in (x, weight, bias)]
        out = function(*given)
        results.append([out, *torch.autograd.grad(out.float().square().mean(), given)])
    for expected, actual in zip(*results, strict=True):
        assert (actual - expected).float().norm() < 0.02 * expected.float().norm()


@pytest.mark.parametrize("beam_size", [1, 4])
def test_translations_equal_the_cpus_with_and_without_graphs(
    beam_size: int, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    options: dict[str, Any] = {"beam_size": beam_size, "max_extra_tokens": 30}
    predictor = random_translator()
    expected = predictor.translate(TEXTS, **options)
    predictor.to("cuda")
    for graph_steps in (beam_search.GRAPH_STEPS, 1000):
        monkeypatch.setattr(beam_search, "GRAPH_STEPS", graph_steps)
        found = predictor.translate(TEXTS, **options)
        assert all(same(one, other) for one, other in zip(found, expected, strict=True))
    assert not [one for one in recwarn if "CUDA graphs" in str(one.message)]


@torch.inference_mode()
def test_decoding_in_half_precision_equals_the_whole_target() -> None:
    predictor = random_translator(width=64, heads=2)
    encoder, words = predictor.model.encoder.to("cuda", torch.bfloat16), predictor.tokenizer
    rows = [words.frame(words.encode(text), max_length=40) for text in TEXTS]
    length = max(map(len, rows))
    batch = collate(rows, length=length).to("cuda")
    whole = encoder(batch.replace(target=batch)).target.last_hidden.view(len(rows), length, -1)
    state = encoder.start(batch, hypotheses=1, length=length, dtype=torch.bfloat16)
    for position in range(min(map(len, rows))):
        hidden = encoder.step(batch.input_ids[:, position], state)
        assert (hidden - whole[:, position]).float().norm() < 0.05 * whole[:, position].float().norm()
