"""The bidirectional language model: labels of both directions, the sampler, the sampled softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from encoders.test_awd_lstm import rows
from model_fixtures import VOCABULARY, random_batch

from bertsmith.encoders import bert, elmo
from bertsmith.errors import ConfigError
from bertsmith.model_io.model import Model
from bertsmith.objectives import bidirectional_lm
from bertsmith.objectives.bidirectional_lm import LogUniformSampler
from bertsmith.types import IGNORE_INDEX, Vocabulary

NONE = IGNORE_INDEX


def model(*, size: int = 97, **settings: Any) -> Model:
    torch.manual_seed(0)
    encoder = elmo.Config(width=8, hidden=12, filters=((1, 4), (2, 8)), dropout=0.0)
    settings = {"dropout": 0.0, **settings}
    return Model.build(encoder, [bidirectional_lm.Config(**settings)], vocabulary=Vocabulary(size=size))


def test_labels_of_both_directions() -> None:
    batch = rows([[1, 2, 3, 4], [5, 6, 7, 8]], start=4).replace(next_ids=torch.tensor([9, 10]))
    labels = model().corrupt(batch).labels["bidirectional_lm"].view(2, 2, 4)
    assert labels[0].tolist() == [[2, 3, 4, 9], [6, 7, 8, 10]]
    assert labels[1].tolist() == [[NONE, 1, 2, 3], [NONE, 5, 6, 7]], "the state has read the token before the window"


def test_texts_that_share_a_row_do_not_predict_each_other() -> None:
    batch = random_batch([5, 6], length=13, pack=True, pairs=False)
    labels = model().corrupt(batch).labels["bidirectional_lm"].view(2, 13)
    ids = batch.input_ids[0].tolist()
    assert labels[0].tolist() == [*ids[1:5], NONE, *ids[6:11], NONE, NONE, NONE]
    assert labels[1].tolist() == [NONE, *ids[:4], NONE, *ids[5:10], NONE, NONE]


def test_neither_direction_sees_its_label() -> None:
    made = model().eval()
    ids = torch.randint(5, 97, (1, 9))
    with torch.no_grad():
        before = made.encoder(rows(ids.tolist())).last_hidden.view(9, 2, 8)
        ids[0, 4] = 5 + (ids[0, 4] - 4) % 92
        after = made.encoder(rows(ids.tolist())).last_hidden.view(9, 2, 8)
    changed = (before != after).any(-1)
    assert changed[:, 0].tolist() == [False] * 4 + [True] * 5
    assert changed[:, 1].tolist() == [True] * 5 + [False] * 4


def test_the_evaluated_loss_is_the_mean_cross_entropy_of_both_directions() -> None:
    made = model(samples=10).eval()
    batch = made.corrupt(rows([[11, 12, 13, 14]]).replace(next_ids=torch.tensor([15])))
    head = made.objectives["bidirectional_lm"]
    with torch.no_grad():
        loss = made(batch)
        hidden = made.encoder(batch).last_hidden
        forward, backward = (F.linear(half, head.output.weight, head.bias) for half in hidden.chunk(2, -1))
        expected = F.cross_entropy(forward, torch.tensor([12, 13, 14, 15]), reduction="sum")
        expected += F.cross_entropy(backward[1:], torch.tensor([11, 12, 13]), reduction="sum")
    assert int(loss.counts["bidirectional_lm"]) == 7
    assert loss.sums["bidirectional_lm"].item() == pytest.approx(expected.item(), rel=1e-5)
    assert head.perplexity_terms == ("bidirectional_lm",)


def test_sampled_ids_differ_and_follow_the_log_uniform_distribution() -> None:
    """TensorFlow's log_uniform_candidate_sampler with unique=True: expected counts are those of the tries."""
    size, samples, runs = 200, 20, 400
    sampler = LogUniformSampler(size, samples, seed=3)
    counts, expected, tries = torch.zeros(size), torch.zeros(size, dtype=torch.float64), []
    for step in range(runs):
        ids, needed = sampler.draw(torch.tensor(step))
        assert len(ids.unique()) == samples
        counts[ids] += 1
        expected += sampler.log_expected_count(torch.arange(size), needed).exp()
        tries.append(int(needed))
    assert min(tries) >= samples
    assert torch.equal(ids, sampler.draw(torch.tensor(runs - 1))[0]), "a function of the seed and the step"
    share = sampler.log_probability(torch.arange(size)).exp()
    assert share.sum().item() == pytest.approx(1)
    assert share[0].item() == pytest.approx(math.log(2) / math.log(201))
    for group in (slice(0, 3), slice(3, 20), slice(20, 80), slice(80, 200)):
        assert counts[group].sum() == pytest.approx(expected[group].sum().item(), rel=0.08)


def test_rare_ids_have_exact_probabilities() -> None:
    sampler = LogUniformSampler(793_471, 8192, seed=0)
    exact = np.log(np.log1p(1 / np.longdouble(793_471)) / np.log(np.longdouble(793_472)))
    assert sampler.log_probability(torch.tensor(793_470)).item() == pytest.approx(float(exact), rel=1e-12)
    ids, tries = sampler.draw(torch.tensor(7))
    assert len(ids.unique()) == 8192
    assert 8192 < int(tries) < sampler.draws


def test_the_bias_of_a_sampled_softmax_starts_at_the_frequencies_of_the_sampler() -> None:
    head = model(samples=10).objectives["bidirectional_lm"]
    assert head.bias.exp().sum().item() == pytest.approx(1.0)
    assert (head.bias.diff() < 0).all(), "the vocabulary is sorted by frequency"
    assert not model(samples=0).objectives["bidirectional_lm"].bias.any()


def test_the_sampled_loss_is_that_of_the_formula() -> None:
    made = model(samples=10).train()
    head = made.objectives["bidirectional_lm"]
    batch = made.corrupt(rows([[1, 2, 3, 4, 5, 6]]))
    loss = made(batch)
    x = head.hidden(made.encoder(batch))
    sampled, tries = head.sampler.draw(batch.sample_ids[0, 0])
    labels = head.labels(batch)
    assert bool((labels[:, None] == sampled).any()), "a label is among the sampled tokens"
    total = 0.0
    for vector, label in zip(x, labels.tolist(), strict=True):
        if label == NONE:
            continue
        ids = torch.tensor([label, *(number for number in sampled.tolist() if number != label)])
        counts = head.sampler.log_expected_count(ids, tries)
        logits = head.output.weight[ids] @ vector + head.bias[ids] - counts
        total += F.cross_entropy(logits[None], torch.tensor([0])).item()
    assert loss.sums["bidirectional_lm"].item() == pytest.approx(total, rel=1e-4)
    loss.mean().backward()
    touched = head.output.weight.grad.abs().sum(1) > 0
    assert set(touched.nonzero()[:, 0].tolist()) <= {*sampled.tolist(), *labels[labels != NONE].tolist()}


def test_the_sampled_sum_estimates_that_of_the_full_softmax() -> None:
    """Of the exponentials of logits, less the logarithm of the expected counts."""
    torch.manual_seed(0)
    sampler, logits = LogUniformSampler(400, 40, seed=3), torch.randn(400)
    estimates = []
    for step in range(500):
        ids, tries = sampler.draw(torch.tensor(step))
        estimates.append((logits[ids] - sampler.log_expected_count(ids, tries)).exp().sum())
    assert torch.stack(estimates).mean().item() == pytest.approx(logits.exp().sum().item(), rel=0.04)


def test_small_vocabularies_use_the_full_softmax() -> None:
    assert model(size=97, samples=49).objectives["bidirectional_lm"].sampler is None
    assert model(size=97, samples=0).objectives["bidirectional_lm"].sampler is None
    assert model(size=99, samples=49).objectives["bidirectional_lm"].sampler is not None


def test_other_encoders_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"an encoder of two separate directions: set encoder\.kind=elmo"):
        Model.build(bert.Config(layers=1, width=8, heads=1, vocab_size=97), [bidirectional_lm.Config()])
    with pytest.raises(ConfigError, match="samples=-1 must be at least 0"):
        bidirectional_lm.Config(samples=-1)
    assert VOCABULARY.size == 97
