"""Masking over a million tokens: rates, replacements, excluded tokens, and independence of the batch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from model_fixtures import FIRST_CONTINUATION, MASK, SIZE, UNKNOWN, VOCABULARY, make_row, random_batch, random_rows

from bertsmith.data.collate import collate
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.objectives.masked_lm import Config, MaskedLM
from bertsmith.objectives.objective import BuildContext
from bertsmith.types import IGNORE_INDEX, Batch, Vocabulary

BIG = Vocabulary(size=1000, mask_id=MASK, special_ids=VOCABULARY.special_ids, is_continuation=np.arange(1000) >= 700)


def build(seed: int = 0, vocabulary: Vocabulary | None = VOCABULARY, **settings: Any) -> MaskedLM:
    rows = vocabulary.size if vocabulary else SIZE
    return Config(**settings).build(BuildContext(width=8, vocab_size=rows, vocabulary=vocabulary, seed=seed))


@pytest.fixture(scope="module")
def million() -> Batch:
    """A million tokens in 512 rows of 2,048 tokens: texts of 10 to 500 tokens, packed."""
    random = np.random.default_rng(0)
    lengths = random.integers(10, 500, 4000).tolist()
    batch = random_batch(lengths, length=2048, pack=True)
    assert int((~batch.special_mask).sum()) > 1_000_000
    ids = torch.from_numpy(random.integers(UNKNOWN + 1, BIG.size, batch.input_ids.shape))
    return batch.replace(input_ids=torch.where(batch.special_mask, batch.input_ids, ids), max_seqlen=512)


def masked_positions(before: Batch, after: Batch) -> torch.Tensor:
    """[T] bool from indices and labels."""
    labelled = after.labels["masked_lm"] != IGNORE_INDEX
    positions = after.indices["masked_lm"][labelled]
    assert len(positions.unique()) == len(positions)
    assert torch.equal(after.labels["masked_lm"][labelled], before.input_ids.flatten()[positions])
    found = torch.zeros(before.input_ids.numel(), dtype=torch.bool)
    found[positions] = True
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mask_probability": 0.4, "mask_token_share": 0.5, "keep_share": 0.0},
        {"mask_token_share": 0.0, "keep_share": 0.2},
    ],
)
def test_shares_over_a_million_tokens(million: Batch, settings: dict[str, float]) -> None:
    objective = build(vocabulary=BIG, **settings)
    after = objective.corrupt(million)
    corrupted = masked_positions(million, after)
    candidates = ~million.special_mask.flatten()
    config = objective.config
    assert corrupted.sum().item() / candidates.sum().item() == pytest.approx(config.mask_probability, abs=0.001)
    assert not corrupted[~candidates].any()
    old, new = million.input_ids.flatten(), after.input_ids.flatten()
    assert torch.equal(new[~corrupted], old[~corrupted])
    became_mask = (new == MASK)[corrupted].float().mean().item()
    stayed = (new == old)[corrupted].float().mean().item()
    assert became_mask == pytest.approx(config.mask_token_share, abs=0.005)
    assert stayed == pytest.approx(
        config.keep_share + (1 - config.mask_token_share - config.keep_share) / 995, abs=0.005
    )
    other = new[corrupted & (new != old) & (new != MASK)]
    assert other.min() > UNKNOWN, "a random word is not a special token"
    shares = torch.bincount(other, minlength=BIG.size)[UNKNOWN + 1 :] / len(other)
    assert (shares - 1 / 995).abs().max() < 6 * (1 / 995 / len(other)) ** 0.5, "every word is as likely"


def test_every_token_is_masked_with_the_same_probability() -> None:
    batch = random_batch([40] * 20_000, length=40, pairs=False)
    corrupted = masked_positions(batch, build().corrupt(batch)).view(-1, 40)[:, 1:-1].double()
    assert (corrupted.mean(0) - 0.15).abs().max() < 4 * (0.15 * 0.85 / 20_000) ** 0.5
    assert set(corrupted.sum(1).tolist()) == {5.0, 6.0}, "38 * 0.15 = 5.7, rounded up or down"
    assert corrupted.sum(1).mean().item() == pytest.approx(5.7, abs=0.015)
    batched = (corrupted[:, 3] * corrupted[:, 4]).mean().item()
    assert batched == pytest.approx(0.15 * 4.7 / 37, abs=0.004), "neighbours are masked independently"


def masks_by_text(objective: MaskedLM, numbers: list[int], epoch: int = 3, **how: Any) -> dict[int, list[int]]:
    """The masked tokens of each of fifty texts, in a batch of some of them."""
    rows = random_rows([12, 30, 25, 8, 40] * 10)
    batch = collate([rows[number] for number in numbers], length=40, sample_ids=numbers, epoch=epoch, **how)
    after = objective.corrupt(batch)
    return {number: after.input_ids[batch.sample_ids == number].tolist() for number in numbers}


@pytest.mark.parametrize("units", ["tokens", "words", "ngrams"])
def test_a_mask_depends_on_seed_epoch_and_sample_only(units: str) -> None:
    objective = build(seed=7, units=units)
    every = masks_by_text(objective, list(range(50)))
    for numbers, how in (
        (list(range(49, -1, -1)), {}),
        ([3, 44, 17], {}),
        ([20, 21, 22, 23, 24, 25, 26], {"pack": True}),
        ([8], {"shape": (5, 9)}),
    ):
        found = masks_by_text(objective, numbers, **how)
        assert found == {number: every[number] for number in numbers}
    assert masks_by_text(objective, list(range(50)), epoch=4) != every
    assert masks_by_text(build(seed=8, units=units), list(range(50))) != every


def test_golden() -> None:
    """Existing runs are resumed with these masks: they must never change."""
    rows = [make_row(5 + np.arange(18) * 7 % 92), make_row(5 + np.arange(14) * 11 % 92, 5 + np.arange(15) * 13 % 92)]
    batch = collate(rows, length=32, sample_ids=[5, 1 << 40], epoch=2)
    found = {}
    for units in ("tokens", "words", "ngrams"):
        after = build(seed=12345, units=units).corrupt(batch)
        positions = np.flatnonzero(masked_positions(batch, after))
        found[units] = dict(zip(positions.tolist(), after.input_ids.flatten()[positions].tolist(), strict=True))
    assert found == {
        "tokens": {11: 69, 15: 3, 36: 3, 50: 3, 54: 3, 57: 3},
        "words": {10: 68, 11: 69, 12: 3, 13: 89, 14: 96, 15: 3, 36: 3, 50: 3, 57: 3},
        "ngrams": {10: 68, 11: 69, 12: 3, 13: 89, 14: 96, 15: 3, 16: 47, 36: 3, 57: 3, 58: 3, 59: 3},
    }


def runs(corrupted: torch.Tensor, batch: Batch) -> list[tuple[int, int]]:
    """Spans of masked candidates [begin, end), cut at text ends."""
    edges = (
        torch.cat((torch.tensor([False]), corrupted & ~batch.special_mask.flatten(), torch.tensor([False])))
        .int()
        .diff()
    )
    return list(zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True))


def test_whole_word_masking(million: Batch) -> None:
    after = build(vocabulary=BIG, units="words").corrupt(million)
    corrupted = masked_positions(million, after)
    candidate = ~million.special_mask.flatten()
    share = corrupted.sum().item() / candidate.sum().item()
    assert share == pytest.approx(0.15, abs=0.001)
    continues = (million.input_ids.flatten() >= 700) & candidate & candidate.roll(1)
    assert torch.equal(corrupted[continues], corrupted.roll(1)[continues]), (
        "a piece is masked exactly when the one before it is"
    )
    assert after.labels["masked_lm"][-1] == IGNORE_INDEX, "there were slots enough"


def test_ngrams(million: Batch) -> None:
    objective = build(vocabulary=BIG, units="ngrams")
    after = objective.corrupt(million)
    corrupted = masked_positions(million, after)
    candidate = ~million.special_mask.flatten()
    assert corrupted.sum().item() / candidate.sum().item() == pytest.approx(0.15, abs=0.0015)
    continues = (million.input_ids.flatten() >= 700) & candidate & candidate.roll(1)
    assert torch.equal(corrupted[continues], corrupted.roll(1)[continues]), "whole words only"
    assert after.labels["masked_lm"][-1] == IGNORE_INDEX, "there were slots enough"


@pytest.mark.parametrize("longest", [1, 2, 3, 5])
def test_lengths_of_ngrams(longest: int) -> None:
    """p(n) proportional to 1/n, measured at 2 % masking so that spans seldom touch; every token is a word."""
    batch = random_batch([512] * 2000, length=512, pairs=False)
    words = torch.randint(
        UNKNOWN + 1, FIRST_CONTINUATION, batch.input_ids.shape, generator=torch.Generator().manual_seed(0)
    )
    batch = batch.replace(input_ids=torch.where(batch.special_mask, batch.input_ids, words))
    objective = build(units="ngrams", max_ngram=longest, mask_probability=0.02)
    lengths = Counter(end - begin for begin, end in runs(masked_positions(batch, objective.corrupt(batch)), batch))
    whole = sum(1 / words for words in range(1, longest + 1))
    total = sum(lengths.values())
    for words_in_run in range(1, longest + 1):
        assert lengths[words_in_run] / total == pytest.approx(1 / words_in_run / whole, abs=0.02), lengths
    assert sum(count for length, count in lengths.items() if length > longest) / total < 0.06


@pytest.mark.parametrize("length", [3, 6, 10, 30, 50, 70, 128])
def test_reference_counts(length: int) -> None:
    """max(1, round(0.15 * length)) of bert: create_pretraining_data.py, with [CLS] and [SEP] in the length."""
    batch = random_batch([length] * 50, length=130, pairs=False)
    corrupted = masked_positions(batch, build(reference_counts=True).corrupt(batch)).view(50, -1)
    assert set(corrupted.sum(1).tolist()) == {max(1, round(length * 0.15))}


def test_slots_are_enough_and_constant() -> None:
    objective = build()
    few = objective.corrupt(random_batch([40] * 64, length=40))
    assert few.labels["masked_lm"].shape == (objective.slots(64 * 40, 128),)
    assert objective.slots(64 * 40, 128) == 384 + 34
    assert objective.slots(4, 100) == 4, "never more than there are slots"
    assert objective.slots(65_536, 256) < 65_536 * 0.15 * 1.006
    for seed in range(40):
        corrupted = build(seed=seed).choose(random_batch([5, 6, 7, 8] * 50, length=8))
        assert corrupted.sum() <= objective.slots(200 * 8, 400)


def test_tokens_without_a_slot_are_not_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, batch = build(), random_batch([40] * 8, length=40)
    monkeypatch.setattr(objective, "slots", lambda *_: 10)
    after = objective.corrupt(batch)
    corrupted = masked_positions(batch, after)
    assert corrupted.sum() == 10
    assert torch.equal(after.input_ids.flatten()[~corrupted], batch.input_ids.flatten()[~corrupted])


@pytest.mark.parametrize("units", ["tokens", "words", "ngrams"])
def test_compiles_without_graph_breaks(units: str) -> None:
    objective, batch = build(units=units), random_batch([40, 22, 17, 9], length=40, pack=True)
    compiled = torch.compile(objective.corrupt, fullgraph=True, backend="eager")(batch)
    assert torch.equal(compiled.input_ids, objective.corrupt(batch).input_ids)


@pytest.mark.parametrize("units", ["tokens", "words", "ngrams"])
def test_masks_do_not_depend_on_document_ids(units: str) -> None:
    batch = random_batch([40] * 6, length=40)
    cuts = torch.arange(0, 240, 40)
    bounds = torch.cat((torch.stack((cuts, cuts + 17), 1).flatten(), torch.tensor([240]))).int()
    apart = batch.replace(
        document_ids=torch.where(batch.position_ids >= 17, 2, 1).int(), cu_seqlens=bounds, dense=False
    )
    batched, other = (build(units=units).corrupt(each) for each in (batch, apart))
    assert torch.equal(batched.input_ids, other.input_ids)
    assert torch.equal(masked_positions(batch, batched), masked_positions(apart, other))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask_probability": 0.0}, "mask_probability=0.0 must be more than 0"),
        ({"mask_token_share": 0.8, "keep_share": 0.3}, "mask_token_share=0.8 and keep_share=0.3 must not be negative"),
        ({"units": "letters"}, "units=letters must be one of tokens, words, ngrams"),
        ({"max_ngram": 0}, "max_ngram=0"),
        ({"units": "words", "reference_counts": True}, "needs units=tokens"),
    ],
)
def test_settings_that_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(**change)


def test_required_fields_of_the_vocabulary() -> None:
    batch = random_batch([20], length=20)
    with pytest.raises(BertsmithError, match="needs the id of the mask token: build it with a vocabulary"):
        build(vocabulary=None).corrupt(batch)
    with pytest.raises(ConfigError, match="units=words needs a tokenizer that marks the tokens that continue a word"):
        build(vocabulary=Vocabulary(size=SIZE, mask_id=MASK), units="words")
    with pytest.raises(ConfigError, match="the tokenizer has 97 tokens, the model's token table only 90 rows"):
        Config().build(BuildContext(width=8, vocab_size=90, vocabulary=VOCABULARY))
    padded = Config(mask_token_share=0.0, keep_share=0.0).build(
        BuildContext(width=8, vocab_size=2000, vocabulary=VOCABULARY)
    )
    assert padded.corrupt(random_batch([40] * 50, length=40)).input_ids.max() < SIZE, (
        "padding rows of the table are not words"
    )
