"""What is computed of texts does not depend on whom they are computed with; and no more is computed than is read."""

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


def direct(model: Model, **settings: Any) -> LocalBackend:
    return LocalBackend(model, padding_id=0, device="cpu", **settings)


def placed(some: Sequence[Row]) -> list[ModelInput]:
    return [ModelInput((one,), np.arange(number % 3, len(one), 2)) for number, one in enumerate(some)]


CHOICES = [
    ModelInput((row(4, 1), row(11, 2), row(4, 3))),
    ModelInput((row(20, 4), row(2, 5))),
    ModelInput((row(7, 6), row(7, 7))),
]
WISHES = [
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
    (LogitsQuery("tag"), placed(ROWS)),
    (LogitsQuery("masked_lm"), [ModelInput((one,), np.array([len(one) // 2])) for one in ROWS]),
    (LogitsQuery("choose"), CHOICES),
]


@pytest.mark.parametrize(("wish", "items"), WISHES, ids=lambda value: "" if isinstance(value, list) else str(value))
def test_company_changes_nothing(model: Model, wish: Any, items: list[ModelInput]) -> None:
    """The last bits apart: sums are taken in another order."""
    alone = [direct(model).run(wish, [one])[0] for one in items]
    for settings in ({}, {"batch_tokens": 40}):
        together = direct(model, **settings).run(wish, items)
        for ours, own in zip(together, alone, strict=True):
            assert ours.shape == own.shape
            assert ours.dtype == np.float32
            assert np.allclose(ours, own, atol=2e-6)
    spread = np.concatenate([one.reshape(-1)[:2] for one in alone])
    assert np.std(spread) > 1e-3, "the items are told apart"


def padded(model: Model, rows: Sequence[Row]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The last layer as padded rows give it [rows, places, D], and which places are texts."""
    batch = collate(rows, length=LENGTH)
    with torch.inference_mode():
        top = model.encoder(batch, pool=False).last_hidden.view(len(rows), LENGTH, -1)
    return top.numpy(), (batch.document_ids > 0).numpy()


def test_equal_to_padded_rows(model: Model) -> None:
    top, real = padded(model, ROWS)
    means = direct(model).run(EmbeddingQuery("mean", (-1,), "mean"), PLAIN)
    firsts = direct(model).run(EmbeddingQuery("first", (-1,), "mean"), PLAIN)
    states = direct(model).run(TokenEmbeddingQuery(-1), PLAIN)
    for number in range(len(ROWS)):
        assert np.allclose(states[number], top[number][real[number]], atol=2e-6)
        assert np.allclose(means[number], top[number][real[number]].mean(0), atol=2e-6)
        assert np.allclose(firsts[number], top[number][0], atol=2e-6)


def test_causal_texts_in_one_line() -> None:
    shape = bert.Config(layers=2, width=16, heads=2, vocab_size=40, max_positions=LENGTH, causal=True)
    model = Model.build(shape, []).eval()
    top, real = padded(model, ROWS)
    for number, found in enumerate(direct(model).run(TokenEmbeddingQuery(-1), PLAIN)):
        assert np.allclose(found, top[number][real[number]], atol=2e-6)


def last_places(model: Model, wish: Any, items: list[ModelInput]) -> int:
    """At how many places the last feed-forward was computed."""
    seen: list[int] = []
    encoder: Any = model.encoder
    hook = encoder.blocks[-1].feed_forward.register_forward_hook(lambda part, given, out: seen.append(len(out)))
    try:
        direct(model).run(wish, items)
    finally:
        hook.remove()
    return sum(seen)


def test_only_what_is_read_is_computed_in_the_last_layer(model: Model) -> None:
    tokens = sum(one.tokens for one in PLAIN)
    for wish in (
        EmbeddingQuery("first", (-1,), "mean"),
        EmbeddingQuery("pooled", (-1,), "mean"),
        LogitsQuery("classify"),
    ):
        assert last_places(model, wish, PLAIN) == len(PLAIN)
    assert last_places(model, LogitsQuery("tag"), placed(ROWS)) == sum(len(one.indices) for one in placed(ROWS))  # type: ignore[arg-type]
    assert last_places(model, EmbeddingQuery("mean", (-1,), "mean"), PLAIN) == tokens, "no padding"


def test_groups_hold_every_item_once_and_fit(model: Model) -> None:
    backend = direct(model, batch_tokens=70)
    groups = backend._batches(LogitsQuery("classify"), PLAIN)
    assert sorted(number for group in groups for number in group) == list(range(len(PLAIN)))
    assert all(sum(PLAIN[number].tokens for number in group) <= 70 for group in groups)
    assert len(groups) == 2
    lengths = [PLAIN[number].tokens for group in groups for number in group]
    assert lengths == sorted(lengths)
    assert [len(group) for group in backend._batches(AttentionQuery(), PLAIN)] == [1] * len(PLAIN)
    large = direct(model, batch_tokens=1)._batches(LogitsQuery("classify"), PLAIN)
    assert [len(group) for group in large] == [1] * len(PLAIN), "an item that is larger than a batch has its own"
    assert backend.run(LogitsQuery("classify"), []) == []


def test_wishes_that_are_equal_are_one() -> None:
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
