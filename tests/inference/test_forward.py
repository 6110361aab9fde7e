"""Forward passes: results do not depend on the batch, and only the tokens that are read are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from inference.predictor_fixtures import LENGTH, TAGS, random_model, tokenizer
from numpy.typing import NDArray

from bertsmith.data.collate import collate
from bertsmith.encoders import bert
from bertsmith.inference.cuda_graphs import pad_to_shape, shape_for
from bertsmith.inference.encoder_outputs import AttentionQuery, EmbeddingQuery, TokenEmbeddingQuery
from bertsmith.inference.forward import LocalBackend, LogitsQuery, ModelInput
from bertsmith.model_io.model import Model
from bertsmith.objectives import choose, classify, masked_lm, next_sentence, span, tag
from bertsmith.types import Row

WORDS = "the smith has red iron and gold of which it is a thing in blue".split()  # noqa: SIM905


def row(size: int, seed: int = 0) -> Row:
    """A row of about so many tokens."""
    known = tokenizer()
    words = np.random.default_rng([size, seed]).choice(WORDS, size)
    return known.frame(known.encode(" ".join(words)), max_length=LENGTH)


SIZES = (3, 9, 3, 27, 1, 9, 9, 14, 30)
ROWS = [row(size, number) for number, size in enumerate(SIZES)]
PLAIN = [ModelInput((one,)) for one in ROWS]


@pytest.fixture(scope="module")
def model() -> Model:
    heads = [classify.Config(labels=("a", "b")), tag.Config(labels=TAGS), span.Config(), choose.Config()]
    return random_model(*heads, masked_lm.Config(), next_sentence.Config())


def local_backend(model: Model, **settings: Any) -> LocalBackend:
    return LocalBackend(model, padding_id=0, device="cpu", **settings)


def with_indices(some: Sequence[Row]) -> list[ModelInput]:
    return [ModelInput((one,), np.arange(number % 3, len(one), 2)) for number, one in enumerate(some)]


CHOICES = [
    ModelInput((row(4, 1), row(11, 2), row(4, 3))),
    ModelInput((row(20, 4), row(2, 5))),
    ModelInput((row(7, 6), row(7, 7))),
]
QUERIES = [
    (EmbeddingQuery("mean", (-1,), "mean"), PLAIN),
    (EmbeddingQuery("first", (-1,), "mean"), PLAIN),
    (EmbeddingQuery("first", (1, -1), "mean"), PLAIN),
    (EmbeddingQuery("pooled", (-1,), "mean"), PLAIN),
    (EmbeddingQuery("mean", (0, -2), "concat"), PLAIN),
    (TokenEmbeddingQuery(-1), PLAIN),
    (TokenEmbeddingQuery(1), PLAIN),
    (AttentionQuery(), PLAIN),
    (LogitsQuery("classify"), PLAIN),
    (LogitsQuery("next_sentence"), PLAIN),
    (LogitsQuery("span"), PLAIN),
    (LogitsQuery("tag"), with_indices(ROWS)),
    (LogitsQuery("masked_lm"), [ModelInput((one,), np.array([len(one) // 2])) for one in ROWS]),
    (LogitsQuery("choose"), CHOICES),
]


@pytest.mark.parametrize(("query", "inputs"), QUERIES, ids=lambda value: "" if isinstance(value, list) else str(value))
def test_results_do_not_depend_on_the_batch(model: Model, query: Any, inputs: list[ModelInput]) -> None:
    """Up to rounding: sums are computed in another order."""
    alone = [local_backend(model).run(query, [one])[0] for one in inputs]
    for settings in ({}, {"batch_tokens": 40}):
        together = local_backend(model, **settings).run(query, inputs)
        for batched, single in zip(together, alone, strict=True):
            assert batched.shape == single.shape
            assert batched.dtype == np.float32
            assert np.allclose(batched, single, atol=2e-6)
    spread = np.concatenate([one.reshape(-1)[:2] for one in alone])
    assert np.std(spread) > 1e-3, "the results differ between inputs"


def padded(model: Model, rows: Sequence[Row]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The last layer of padded rows [rows, L, D], and the mask of mask tokens."""
    batch = collate(rows, length=LENGTH)
    with torch.inference_mode():
        hidden = model.encoder(batch, pool=False).last_hidden.view(len(rows), LENGTH, -1)
    return hidden.numpy(), (batch.document_ids > 0).numpy()


def test_unpadded_batches_equal_padded_rows(model: Model) -> None:
    hidden, mask = padded(model, ROWS)
    means = local_backend(model).run(EmbeddingQuery("mean", (-1,), "mean"), PLAIN)
    firsts = local_backend(model).run(EmbeddingQuery("first", (-1,), "mean"), PLAIN)
    states = local_backend(model).run(TokenEmbeddingQuery(-1), PLAIN)
    for number in range(len(ROWS)):
        assert np.allclose(states[number], hidden[number][mask[number]], atol=2e-6)
        assert np.allclose(means[number], hidden[number][mask[number]].mean(0), atol=2e-6)
        assert np.allclose(firsts[number], hidden[number][0], atol=2e-6)


def test_unpadded_batches_of_a_causal_encoder() -> None:
    shape = bert.Config(layers=2, width=16, heads=2, vocab_size=40, max_positions=LENGTH, causal=True)
    model = Model.build(shape, []).eval()
    hidden, mask = padded(model, ROWS)
    for number, found in enumerate(local_backend(model).run(TokenEmbeddingQuery(-1), PLAIN)):
        assert np.allclose(found, hidden[number][mask[number]], atol=2e-6)


def last_layer_tokens(model: Model, query: Any, inputs: list[ModelInput]) -> int:
    """The number of tokens in the last feed-forward layer."""
    seen: list[int] = []
    encoder: Any = model.encoder
    hook = encoder.blocks[-1].feed_forward.register_forward_hook(lambda part, given, out: seen.append(len(out)))
    try:
        local_backend(model).run(query, inputs)
    finally:
        hook.remove()
    return sum(seen)


def test_last_layer_runs_only_on_the_tokens_that_are_read(model: Model) -> None:
    tokens = sum(one.tokens for one in PLAIN)
    for query in (
        EmbeddingQuery("first", (-1,), "mean"),
        EmbeddingQuery("pooled", (-1,), "mean"),
        LogitsQuery("classify"),
    ):
        assert last_layer_tokens(model, query, PLAIN) == len(PLAIN)
    assert last_layer_tokens(model, LogitsQuery("tag"), with_indices(ROWS)) == sum(
        len(one.indices) for one in with_indices(ROWS)
    )  # type: ignore[arg-type]
    assert last_layer_tokens(model, EmbeddingQuery("mean", (-1,), "mean"), PLAIN) == tokens, "no padding"


def test_batches_contain_every_input_once_and_fit(model: Model) -> None:
    backend = local_backend(model, batch_tokens=70)
    batches = backend._batches(LogitsQuery("classify"), PLAIN)
    assert sorted(number for batch in batches for number in batch) == list(range(len(PLAIN)))
    assert all(sum(PLAIN[number].tokens for number in batch) <= 70 for batch in batches)
    assert len(batches) == 2
    lengths = [PLAIN[number].tokens for batch in batches for number in batch]
    assert lengths == sorted(lengths)
    assert [len(batch) for batch in backend._batches(AttentionQuery(), PLAIN)] == [1] * len(PLAIN)
    large = local_backend(model, batch_tokens=1)._batches(LogitsQuery("classify"), PLAIN)
    assert [len(batch) for batch in large] == [1] * len(PLAIN), "an item that is larger than a batch has its own"
    assert backend.run(LogitsQuery("classify"), []) == []


def test_equal_queries_compare_equal() -> None:
    assert EmbeddingQuery("mean", (-1,), "mean") == EmbeddingQuery("mean", (-1,), "mean")
    assert (
        len(
            {
                LogitsQuery("tag"),
                LogitsQuery("tag"),
                LogitsQuery("span"),
                TokenEmbeddingQuery(1),
                AttentionQuery(),
                AttentionQuery(),
            }
        )
        == 4
    )


def test_shapes_of_graphs() -> None:
    assert shape_for(30, 2, None) == (32, 4, None)
    assert shape_for(30, 5, 9) == (64, 8, 64)  # space for more texts needs more tokens
    assert shape_for(16_385, 1, None) is None
    assert shape_for(10, 1, 16_385) is None


@pytest.mark.parametrize(("query", "inputs"), QUERIES)
def test_batches_padded_to_a_shape_give_the_same_results(model: Model, query: Any, inputs: list[ModelInput]) -> None:
    if query.one_per_batch:
        pytest.skip("runs without graphs")
    rows = [row for one in inputs for row in one.rows]
    indices = {query.objective: [one.indices for one in inputs]} if inputs[0].indices is not None else None
    reads = None if indices is None else sum(map(len, indices[query.objective]))
    shape = shape_for(sum(map(len, rows)), len(rows), reads)
    assert shape is not None
    batch = pad_to_shape(rows, shape, max_length=LENGTH, padding_id=0, indices=indices)
    sizes = (1, shape.texts) if shape.reads is None else (1, shape.texts, shape.reads)
    slow = collate(rows, length=shape.tokens, pack=True, shape=sizes, indices=indices)
    for own, other in zip(batch.tensors(), slow.tensors(), strict=True):
        assert own.dtype == other.dtype
        assert torch.equal(own, other)
    with torch.inference_mode():
        results = query.split(query.forward(model, batch).float().numpy(), inputs)
    for own, other in zip(results, local_backend(model).run(query, inputs), strict=True):
        assert np.allclose(own, other, atol=1e-5)
