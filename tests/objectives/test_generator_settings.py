"""Settings of ELECTRA's generator: its layers, the temperature of its samples, and training it alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from model_fixtures import SIZE, VOCABULARY, random_batch, randomize_weights
from model_io.folder_fixtures import tokenizer

from bertsmith.encoders import electra
from bertsmith.errors import ConfigError
from bertsmith.model_io.folder_tokenizer import vocabulary_of
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import save_model
from bertsmith.objectives import replaced_token
from bertsmith.objectives.generator import GeneratorMasking, sample_tokens
from bertsmith.training.distributed import World
from bertsmith.training.optimizers import adamw
from bertsmith.training.plan import TrainingPlan
from bertsmith.training.roofline import flops_per_token
from bertsmith.training.start import load_weights
from bertsmith.training.trainer import Trainer
from bertsmith.types import Batch

LENGTHS = [12, 9, 23, 7, 40, 5, 31, 16]
SMALL: dict[str, Any] = {"layers": 3, "width": 32, "heads": 4, "embedding_width": 24, "max_positions": 40}
SMALL |= {"dropout": 0.0, "attention_dropout": 0.0, "vocab_size": SIZE}


def build(**settings: Any) -> Model:
    torch.manual_seed(0)
    config = replaced_token.Config(**{"generator_width": 0.5} | settings)
    return Model.build(electra.Config(**SMALL), [config], vocabulary=VOCABULARY, seed=3)


def texts(seed: int = 0) -> Batch:
    return random_batch(LENGTHS, length=40, pack=True, seed=seed)


def trained(model: Model, *, steps: int) -> Trainer:
    plan = TrainingPlan(steps=steps, learning_rate=1e-2)
    trainer = Trainer(model, lambda step: [texts(step)], plan=plan, optimizer=adamw.Config(), world=World())
    for step in trainer:
        assert not step.skipped
    return trainer


def test_the_generator_may_be_shallower_than_the_encoder() -> None:
    assert len(build().objectives["replaced_token"].generator.blocks) == 3
    shallow = randomize_weights(build(generator_layers=1)).eval()
    assert len(shallow.objectives["replaced_token"].generator.blocks) == 1
    assert shallow.auxiliary_models()["generator"].encoder.layers == 1
    assert shallow(shallow.corrupt(texts())).mean().isfinite()


def test_the_temperature_sharpens_the_samples() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]]).repeat(4000, 1)
    batch = texts()
    ids = torch.arange(4000).remainder(batch.input_ids.numel())
    batch = batch.replace(sample_ids=torch.arange(batch.input_ids.numel()).view_as(batch.sample_ids))
    for temperature in (0.5, 1.0, 2.0):
        rows = []
        for epoch in range(20):  # every index is drawn anew in each epoch
            drawn = batch.replace(epoch=torch.tensor(epoch))
            rows.append(sample_tokens(logits[:200], drawn, ids[:200], key=1, temperature=temperature))
        shares = torch.cat(rows).bincount(minlength=3) / 4000
        assert torch.allclose(shares, (logits[0] / temperature).softmax(-1), atol=0.03), temperature


class TestTheGeneratorAlone:
    def test_only_generator_and_embeddings_change(self) -> None:
        model = build(discriminator_weight=0.0)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        trained(model, steps=3)
        changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
        assert changed
        assert all(".generator." in name or name.startswith("encoder.embeddings.") for name in changed), changed
        assert "encoder.embeddings.tokens.weight" in changed
        assert not [name for name in changed if ".project." in name and name.startswith("encoder.")]

    def test_the_encoder_is_not_computed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = build(discriminator_weight=0.0)

        def fail(*_: Any, **__: Any) -> None:
            raise AssertionError("the encoder was run")

        monkeypatch.setattr(model.encoder, "forward", fail)
        corrupted = model.corrupt(texts())
        loss = model(corrupted)
        assert set(loss.sums) == set(model.counts(corrupted)) == {"masked_lm"}
        assert model.objectives["replaced_token"].loss_terms == ("masked_lm",)

    def test_its_loss_is_that_of_the_generator_in_a_complete_step(self) -> None:
        alone, both = build(discriminator_weight=0.0), build()
        both.load_state_dict(alone.state_dict())
        batch = alone.corrupt(texts())
        assert torch.equal(alone(batch).sums["masked_lm"], both(batch).sums["masked_lm"])

    def test_flops_are_those_of_the_generator(self) -> None:
        labels = {"masked_lm": 0.15, "replaced_token": 1.0}
        alone, both = (
            flops_per_token(build(**changes), length=40, labels=labels) for changes in ({"discriminator_weight": 0}, {})
        )
        encoder = build().encoder
        blocks = sum(weight.numel() for weight in encoder.blocks.parameters() if weight.dim() == 2)
        assert both - alone >= 6 * blocks

    def test_a_resumed_run_is_bit_identical(self) -> None:
        whole, halves = build(discriminator_weight=0.0), build(discriminator_weight=0.0)
        trained(whole, steps=4)
        plan = TrainingPlan(steps=4, learning_rate=1e-2)
        first = Trainer(halves, lambda step: [texts(step)], plan=plan, optimizer=adamw.Config(), world=World())
        for _ in range(2):
            next(first)
        state = first.state()
        again = build(discriminator_weight=0.0)
        second = Trainer(again, lambda step: [texts(step)], plan=plan, optimizer=adamw.Config(), world=World())
        second.load(state)
        for _ in second:
            pass
        for name, value in whole.state_dict().items():
            assert torch.equal(again.state_dict()[name], value), name

    @pytest.mark.parametrize("positions", ["learned", "rotary"])
    def test_the_trained_generator_starts_a_discriminator(self, positions: str, tmp_path: Path) -> None:
        """From a folder of transformers with the generator's beside it, or from a native one that holds both."""
        words = tokenizer()
        encoder = electra.Config(**SMALL | {"vocab_size": words.vocab_size, "positions": positions})
        heads = [replaced_token.Config(generator_width=0.5, discriminator_weight=weight) for weight in (0.0, 50.0)]
        first, second = (Model.build(encoder, [head], vocabulary=vocabulary_of(words)) for head in heads)
        randomize_weights(first)
        save_model(first, words, tmp_path / "last")
        expected = {"learned": [tmp_path / "last", tmp_path / "generator" / "last"], "rotary": [tmp_path / "last"]}
        if positions == "learned":
            save_model(first.auxiliary_models()["generator"], words, tmp_path / "generator" / "last")
        notes = load_weights(second, tmp_path / "last", words)
        assert notes == [f"started from the weights of {folder}" for folder in expected[positions]]
        for name, value in first.state_dict().items():
            assert torch.equal(second.state_dict()[name], value), name


def mean_cosine(model: Model) -> float:
    """Between the vectors of different tokens in the encoder's last layer."""
    batch = model.corrupt(texts(100))
    with torch.no_grad():
        hidden = model.eval().encoder(batch.replace(indices={})).last_hidden[(batch.document_ids != 0).flatten()]
    unit = torch.nn.functional.normalize(hidden, dim=-1)
    return float((unit @ unit.T).fill_diagonal_(0).sum() / (len(unit) * (len(unit) - 1)))


def test_the_first_predictions_are_the_base_rate() -> None:
    head = build(masking=GeneratorMasking(mask_probability=0.2)).objectives["replaced_token"]
    assert torch.sigmoid(head.classifier.bias).item() == pytest.approx(0.2)
    assert build(predict_at="masked").objectives["replaced_token"].classifier.bias.item() == 0


def test_the_bias_keeps_the_vectors_of_tokens_apart() -> None:
    """From a bias of 0 all weights first move to lower every logit, which gives all tokens one vector."""
    cosines = []
    for bias in (None, 0.0):
        model = build()
        if bias is not None:
            torch.nn.init.constant_(model.objectives["replaced_token"].classifier.bias, bias)
        trained(model, steps=20)
        cosines.append(mean_cosine(model))
    assert cosines[0] < cosines[1] - 0.2


def test_wrong_settings_are_one_line_errors() -> None:
    for settings, words in (
        ({"generator_layers": 0}, "generator_layers=0 must be at least 1"),
        ({"temperature": 0.0}, "temperature=0 must be above 0"),
        ({"discriminator_weight": -1.0}, "discriminator_weight=-1 must be at least 0"),
    ):
        with pytest.raises(ConfigError, match=f"^{words}$"):
            replaced_token.Config(**settings)
