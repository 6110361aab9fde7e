"""On CUDA: packed rows in bfloat16, masking equal to the CPU's, one graph per step, no synchronisation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from model_fixtures import VOCABULARY, random_batch, randomize_weights, relative_difference, small_bert_config

from bertsmith.model_io.model import Model
from bertsmith.nn import counter_random
from bertsmith.nn.attention import AttentionContext, _sdpa_attention
from bertsmith.objectives import causal_lm, masked_lm, next_sentence
from bertsmith.types import Batch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
LENGTHS = [12, 9, 23, 7, 40, 5, 31, 16, 40, 18]
UNITS = ["tokens", "words", "ngrams"]


def build(*, causal: bool = False, units: str = "tokens") -> Model:
    """Head width 32, large weights, no dropout."""
    encoder = small_bert_config(width=64, heads=2, feed_forward=128, causal=causal, dropout=0.0, attention_dropout=0.0)
    words = causal_lm.Config() if causal else masked_lm.Config(units=units)
    built = Model.build(encoder, [words, next_sentence.Config()], vocabulary=VOCABULARY, seed=3)
    return randomize_weights(built, std=0.2)


def packed(*, seed: int = 0, epoch: int = 0) -> Batch:
    return random_batch(LENGTHS, length=40, pack=True, shape=(7, 12), seed=seed, epoch=epoch)


def texts(model: Model, batch: Batch) -> list[torch.Tensor]:
    """The last layer of each text, in float32 on the CPU."""
    top = model.encoder(batch).last_hidden.float().cpu()
    return [
        top[first : first + size]
        for first, size in zip(batch.cls_positions[: len(LENGTHS)].tolist(), LENGTHS, strict=True)
    ]


@pytest.fixture(autouse=True)
def reset_compiler() -> None:
    torch._dynamo.reset()


@pytest.fixture
def half() -> Iterator[None]:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        yield


@pytest.mark.parametrize("causal", [False, True])
def test_packed_texts_equal_separate_ones(causal: bool, half: None) -> None:
    model = build(causal=causal).eval()
    with torch.no_grad():
        truth = texts(model, random_batch(LENGTHS, length=40))
        model = model.cuda()
        batch = packed().to("cuda")
        assert model.encoder._attention_context(batch, return_attentions=False).kernel == "varlen"
        actual = texts(model, batch)
        alone = texts(model, random_batch(LENGTHS, length=40, shape=(12, 12)).to("cuda"))
        for own_value, other, right in zip(actual, alone, truth, strict=True):
            assert relative_difference(own_value, other) < 2e-2
            assert relative_difference(own_value, right) < 3e-2


def test_another_text_of_the_row_changes_no_bit(half: None) -> None:
    model, batch = build().eval().cuda(), packed()
    with torch.no_grad():
        before = texts(model, batch.to("cuda"))
        ids = batch.input_ids.clone()
        second = int(batch.cls_positions[1])
        ids.view(-1)[second + 1 : second + 8] = 50
        after = texts(model, batch.replace(input_ids=ids).to("cuda"))
    same = [torch.equal(one, other) for one, other in zip(before, after, strict=True)]
    assert same == [number != 1 for number in range(len(LENGTHS))]


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_in_half_precision_are_close_to_float32(causal: bool) -> None:
    model = build(causal=causal).train()
    batch = model.corrupt(packed())
    model(batch).mean().backward()
    exact = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model = model.cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        model(batch.to("cuda")).mean().backward()
    for name, parameter in model.named_parameters():
        if "qkv" not in name:  # gradients of queries and keys cancel here: noise in bfloat16
            result, right = parameter.grad.cpu().flatten(), exact[name].flatten()
            assert torch.nn.functional.cosine_similarity(result, right, dim=0) > 0.995, name


@pytest.mark.parametrize("units", UNITS)
def test_masking_is_the_same_on_both_devices(units: str) -> None:
    model = build(units=units)
    batches = [packed(seed=seed, epoch=seed) for seed in range(4)]
    here = [model.corrupt(batch) for batch in batches]
    model = model.cuda()
    for batch, expected in zip(batches, here, strict=True):
        result = model.corrupt(batch.to("cuda"))
        assert torch.equal(result.input_ids.cpu(), expected.input_ids)
        assert torch.equal(result.indices["masked_lm"].cpu(), expected.indices["masked_lm"])
        assert torch.equal(result.labels["masked_lm"].cpu(), expected.labels["masked_lm"])


def test_random_numbers_are_the_same_on_both_devices() -> None:
    numbers = torch.randint(-(1 << 62), 1 << 62, (100_000,), generator=torch.Generator().manual_seed(0))
    key = counter_random.stream_key(1, "gpu")
    assert torch.equal(
        counter_random.mix_counters(key, numbers.cuda(), numbers.cuda()).cpu(),
        counter_random.mix_counters(key, numbers, numbers),
    )


@pytest.mark.parametrize("units", UNITS)
def test_a_compiled_step_is_one_graph_with_the_same_masking(units: str) -> None:
    model = build(units=units).cuda().eval()

    def step(batch: Batch) -> tuple[Batch, torch.Tensor]:
        masked = model.corrupt(batch)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return masked, model(masked).mean()

    compiled = torch.compile(step, fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in range(2):
            batch = packed(seed=seed, epoch=seed).to("cuda")
            (masked, loss), (expected, right) = compiled(batch), step(batch)
            assert torch.equal(masked.input_ids, expected.input_ids)
            assert torch.equal(masked.labels["masked_lm"], expected.labels["masked_lm"])
            assert loss.item() == pytest.approx(right.item(), rel=2e-2)


def test_a_compiled_step_trains() -> None:
    model = build().cuda().train()
    compiled = torch.compile(lambda batch: model(model.corrupt(batch)).mean(), fullgraph=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = compiled(packed().to("cuda"))
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


def test_a_step_does_not_synchronise() -> None:
    model, batch = build(units="ngrams").cuda().train(), packed().to("cuda")

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            masked = model.corrupt(batch)
            model.counts(masked)
            model(masked).mean().backward()

    step()  # allocates memory and loads kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_attention_dropout_without_gradients_uses_the_masked_kernel() -> None:
    encoder = small_bert_config(width=64, heads=2, attention_dropout=0.5, dropout=0.0).build().cuda().train()
    batch = packed().to("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16), torch.no_grad():
        assert encoder._attention_context(batch, return_attentions=False).kernel == "masked"
        assert not torch.equal(encoder(batch).last_hidden, encoder(batch).last_hidden)
        assert encoder.eval()._attention_context(batch, return_attentions=False).kernel == "varlen"


@pytest.mark.parametrize("compiles", [False, True])
def test_masked_gradients_are_finite_where_rows_end_inside_a_tile(compiles: bool) -> None:
    """Large negative scores in rows of 64: cuDNN's backward kernel, torch's first choice, gives NaN for all of q."""
    length, width = 64, 64
    q, k, v = (torch.randn(1, 1, length, width, device="cuda", dtype=torch.bfloat16) * 0.1 for _ in range(3))
    q[..., 0], k[..., 0] = 1.0, -120 * width**0.5
    parts = [part.requires_grad_() for part in (q, k, v)]
    mask = torch.ones(1, 1, length, length, dtype=torch.bool, device="cuda")
    bounds = torch.tensor([0, length], dtype=torch.int32, device="cuda")
    context = AttentionContext("masked", 1, False, bounds, length, mask)
    attend = torch.compile(_sdpa_attention, fullgraph=True) if compiles else _sdpa_attention
    seen = attend(*parts, context, 0.0)
    seen.backward(torch.randn_like(seen))
    assert all(part.grad is not None and part.grad.isfinite().all() for part in parts)
