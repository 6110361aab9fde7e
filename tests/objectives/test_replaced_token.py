"""Replaced token detection: samples and labels, gradients of each network, and no leak of masked positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from model_fixtures import MASK, SIZE, VOCABULARY, random_batch, randomize_weights, relative_difference

from bertsmith.encoders import electra
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.model_io.model import Model
from bertsmith.nn import counter_random
from bertsmith.objectives import masked_lm, replaced_token
from bertsmith.objectives.generator import sample_tokens
from bertsmith.objectives.objective import BuildContext, Embed
from bertsmith.objectives.replaced_token import ORIGINAL, REPLACED, ReplacedToken
from bertsmith.types import IGNORE_INDEX, Batch, Loss

LENGTHS = [12, 9, 23, 7, 40, 5, 31, 16, 40, 38, 22, 17]


def build(*, shake: bool = True, encoder: dict[str, Any] | None = None, rows: int = SIZE, **settings: Any) -> Model:
    small: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4, "embedding_width": 24, "feed_forward": 48}
    small |= {"vocab_size": rows, "max_positions": 40, "dropout": 0.0, "attention_dropout": 0.0}
    torch.manual_seed(0)
    counted = Model.build(
        electra.Config(**small | (encoder or {})),
        [replaced_token.Config(**{"generator_width": 0.5} | settings)],
        vocabulary=VOCABULARY,
        seed=3,
    )
    return (randomize_weights(counted) if shake else counted).eval()


def objective_of(model: Model) -> ReplacedToken:
    sampled = model.objectives["replaced_token"]
    assert isinstance(sampled, ReplacedToken)
    return sampled


def texts(**how: Any) -> Batch:
    return random_batch(LENGTHS, length=40, **{"pack": True, **how})


def filled(model: Model, batch: Batch) -> tuple[Batch, Loss]:
    sampled, loss = objective_of(model).sample_replacements(batch, model.encoder.embed, model.encoder.token_embeddings)
    assert loss is not None
    return sampled, loss


def masked_positions(corrupted: Batch) -> torch.Tensor:
    return corrupted.indices["masked_lm"][corrupted.labels["masked_lm"] != IGNORE_INDEX]


class TestReplacing:
    def test_only_masked_tokens_are_replaced(self) -> None:
        model, batch = build(), texts()
        corrupted = model.corrupt(batch)
        after, _ = filled(model, corrupted)
        positions, original = masked_positions(corrupted), batch.input_ids.flatten()
        untouched = torch.ones(batch.input_ids.numel(), dtype=torch.bool)
        untouched[positions] = False
        assert torch.equal(after.input_ids.flatten()[untouched], original[untouched])
        assert (after.input_ids.flatten()[positions] != original[positions]).float().mean() > 0.5, (
            "new weights guess badly"
        )
        assert torch.equal(corrupted.labels["masked_lm"][: len(positions)], original[positions])

    def test_labels_mark_exactly_the_replaced_tokens(self) -> None:
        model, batch = build(), texts()
        after, _ = filled(model, model.corrupt(batch))
        labels, real = after.labels["replaced_token"], (batch.document_ids != 0).flatten()
        assert torch.equal(labels[real] == REPLACED, (after.input_ids != batch.input_ids).flatten()[real])
        assert torch.equal(labels[real] == ORIGINAL, (after.input_ids == batch.input_ids).flatten()[real])
        assert (labels[~real] == IGNORE_INDEX).all()

    def test_a_correct_sample_is_labelled_original(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With a perfect generator, the encoder's input is the original text: masked positions leave no trace."""
        model, batch = build(), texts()
        corrupted = model.corrupt(batch)
        assert (corrupted.input_ids == MASK).sum() > 10
        truth = F.one_hot(corrupted.labels["masked_lm"].clamp(min=0), SIZE) * 1e4
        words = objective_of(model).generator.masked_lm
        monkeypatch.setattr(words, "predict", lambda *_: truth)
        after, _ = filled(model, corrupted)
        assert torch.equal(after.input_ids, batch.input_ids)
        assert (after.labels["replaced_token"] == REPLACED).sum() == 0
        for field in (
            "position_ids",
            "segment_ids",
            "document_ids",
            "special_mask",
            "sample_ids",
            "cu_seqlens",
            "cls_positions",
        ):
            assert torch.equal(getattr(after, field), getattr(batch, field))

    def test_predictions_depend_on_ids_only(self) -> None:
        """A masked and correctly sampled position has the label of an unmasked one."""
        model, batch = build(), texts()
        after, _ = filled(model, model.corrupt(batch))
        assert torch.equal(
            model.predict(after, "replaced_token"),
            model.predict(batch.replace(input_ids=after.input_ids), "replaced_token"),
        )

    def test_ids_outside_the_vocabulary_are_never_sampled(self) -> None:
        model = build(rows=SIZE + 31)
        with torch.no_grad():
            objective_of(model).generator.masked_lm.bias[SIZE:] = 1e4
        corrupted = model.corrupt(texts())
        after, loss = filled(model, corrupted)
        assert int(after.input_ids.max()) < SIZE
        assert loss.mean().item() > 1e3, "the generator's own loss does see them"

    def test_the_generator_masks_like_masked_lm(self) -> None:
        lengths = [40] * 400
        batch = random_batch(lengths, length=40, pairs=False)
        corrupted = build(shake=False).corrupt(batch)
        context = BuildContext(width=8, vocab_size=SIZE, vocabulary=VOCABULARY, seed=3)
        alone = masked_lm.Config(mask_token_share=0.85, keep_share=0.15).build(context)
        assert torch.equal(corrupted.input_ids, alone.corrupt(batch).input_ids)
        positions = masked_positions(corrupted)
        assert len(positions) / (~batch.special_mask).sum() == pytest.approx(0.15, abs=0.002)
        was, now = batch.input_ids.flatten()[positions], corrupted.input_ids.flatten()[positions]
        assert (now == MASK).float().mean().item() == pytest.approx(0.85, abs=0.02)
        assert ((now == MASK) | (now == was)).all(), "no random words"

    @pytest.mark.parametrize(("predict_at", "target"), [("all", "document"), ("words", "special"), ("masked", "")])
    def test_which_tokens_are_classified(self, predict_at: str, target: str) -> None:
        model, batch = build(predict_at=predict_at), texts(shape=(9, 13))
        corrupted = model.corrupt(batch)
        expected = {"document": (batch.document_ids != 0).flatten(), "special": ~batch.special_mask.flatten()}.get(
            target
        )
        if expected is None:
            expected = torch.zeros(batch.input_ids.numel(), dtype=torch.bool)
            expected[masked_positions(corrupted)] = True
        after, _ = filled(model, corrupted)
        assert torch.equal(after.labels["replaced_token"] != IGNORE_INDEX, expected)
        counts = model.counts(corrupted)
        number = int(expected.sum())
        assert counts == {"masked_lm": len(masked_positions(corrupted)), "replaced_token": number, "base_rate": number}
        assert {name: int(count) for name, count in model(corrupted).counts.items()} == counts


class TestSampling:
    def test_frequencies_are_the_softmax(self) -> None:
        """1e5 draws of five tokens (SPEC.md §3.6: .076 .207 .563 .126 .028); chi-square at 1e-4."""
        draws = 100_000
        logits = torch.tensor([0.5, 1.5, 2.5, 1.0, -0.5])
        batch = random_batch([40] * 2500, length=40).replace(sample_ids=torch.arange(draws).view(2500, 40))
        sampled = sample_tokens(
            logits.expand(draws, 5), batch, torch.arange(draws), key=counter_random.stream_key(0, "test")
        )
        shares = sampled.bincount(minlength=5) / draws
        expected = logits.softmax(0)
        assert (((shares - expected) ** 2 / expected).sum() * draws).item() < 23.5
        assert (shares - expected).abs().max() < 0.005

    def test_samples_among_many_tokens_are_uniform(self) -> None:
        """A thousand equal logits: the largest noise values decide, which float32 must still distinguish."""
        draws, tokens = 6_000, 1000
        batch = random_batch([40] * 150, length=40).replace(sample_ids=torch.arange(draws).view(150, 40))
        sampled = sample_tokens(torch.zeros(draws, tokens), batch, torch.arange(draws), key=7).bincount(
            minlength=tokens
        )
        chi = ((sampled - draws / tokens) ** 2 / (draws / tokens)).sum().item()
        assert abs(chi - (tokens - 1)) < 4 * (2 * tokens) ** 0.5

    def test_noise_is_finite_where_it_decides_and_nowhere_nan(self) -> None:
        drawn = torch.tensor([0, 1, 2**30, 2**31 - 2, 2**31 - 1])
        noise = counter_random.gumbel(drawn)
        assert not noise.isnan().any()
        assert noise[0] == noise.max() == pytest.approx(22.18, abs=0.01)
        assert noise[2].item() == pytest.approx(0.3665, abs=1e-3)
        assert noise[3:].max() < -2.5

    def test_samples_do_not_depend_on_the_rest_of_the_batch(self) -> None:
        model = build()
        batched, _ = filled(model, model.corrupt(texts()))
        separate, _ = filled(model, model.corrupt(texts(pack=False)))
        for number, length in enumerate(LENGTHS):
            ours = batched.input_ids.flatten()[(batched.sample_ids == number).flatten()]
            assert len(ours) == length
            assert torch.equal(ours, separate.input_ids.flatten()[(separate.sample_ids == number).flatten()])

    def test_sampling_in_chunks_gives_the_same_tokens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = build()
        corrupted = model.corrupt(texts())
        whole, _ = filled(model, corrupted)
        monkeypatch.setattr("bertsmith.objectives.generator.NOISE_CHUNK", 3 * SIZE)
        assert torch.equal(filled(model, corrupted)[0].input_ids, whole.input_ids)

    def test_samples_depend_on_seed_and_epoch(self) -> None:
        model, batch = build(), texts()
        corrupted = model.corrupt(batch)
        repeated, _ = filled(model, corrupted)
        assert torch.equal(repeated.input_ids, filled(model, corrupted)[0].input_ids)
        assert not torch.equal(repeated.input_ids, filled(model, corrupted.replace(epoch=torch.tensor(1)))[0].input_ids)
        objective_of(model).generator.key += 1
        assert not torch.equal(repeated.input_ids, filled(model, corrupted)[0].input_ids)


class TestLearning:
    def test_the_loss_is_the_sum_of_both_terms(self) -> None:
        model, batch = build(), texts()
        corrupted = model.corrupt(batch)
        after, generator = filled(model, corrupted)
        logits, labels = model.predict(after, "replaced_token"), after.labels["replaced_token"]
        labelled = labels != IGNORE_INDEX
        assert (logits[:, 0] == 0).all()
        discriminator = F.binary_cross_entropy_with_logits(logits[labelled, 1], labels[labelled].float())
        loss = model(corrupted)
        assert (loss.sums["replaced_token"] / loss.counts["replaced_token"]).item() == pytest.approx(
            discriminator.item(), rel=1e-5
        )
        assert loss.mean().item() == pytest.approx(50 * discriminator.item() + generator.mean().item(), rel=1e-5)
        perfect = ((logits[:, 1] > 0) == (labels == REPLACED)) & labelled
        assert int(loss.correct["replaced_token"]) == int(perfect.sum())

    def test_the_generator_is_trained_by_its_own_loss_and_the_embeddings_by_both(self) -> None:
        model = build().double()
        corrupted = model.corrupt(texts())
        inner = {name for name, _ in model.named_parameters() if ".generator." in name}
        shared = {name for name, _ in model.named_parameters() if "embeddings" in name and "project" not in name}

        def gradients(loss: torch.Tensor) -> dict[str, torch.Tensor]:
            model.zero_grad()
            loss.backward()
            return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

        whole = gradients(model(corrupted).mean())
        after, loss = filled(model, corrupted)
        own = gradients(loss.mean())
        objective = objective_of(model)
        discriminator = gradients(objective.loss(model.encoder(after), after, model.encoder.token_embeddings).mean())
        assert set(own) == inner | shared
        assert not set(discriminator) & inner
        assert set(whole) == inner | set(discriminator)
        for name in inner:
            assert torch.equal(whole[name], own[name])
            assert name.endswith("qkv.bias") or own[name].abs().max() > 0
        for name in shared:
            assert torch.allclose(whole[name], own[name] + discriminator[name], rtol=1e-9, atol=1e-12)
            assert own[name].abs().max() > 0
            assert discriminator[name].abs().max() > 0

    def test_gradient_accumulation_gives_the_same_gradient(self) -> None:
        model = build().double()
        lengths = [40, 31, 12, 9] * 8
        rows = [random_batch(lengths, length=40)]
        eights = [
            rows[0].replace(
                **{
                    name: getattr(rows[0], name)[begin : begin + 8]
                    for name in ("input_ids", "position_ids", "segment_ids")
                },
                **{
                    name: getattr(rows[0], name)[begin : begin + 8]
                    for name in ("document_ids", "special_mask", "sample_ids")
                },
                cu_seqlens=rows[0].cu_seqlens[
                    (rows[0].cu_seqlens >= 40 * begin) & (rows[0].cu_seqlens <= 40 * (begin + 8))
                ]
                - 40 * begin,
                cls_positions=rows[0].cls_positions[begin : begin + 8] - 40 * begin,
                labels={},
            )
            for begin in range(0, 32, 8)
        ]
        sampled = []
        for parts in (rows, eights):
            model.zero_grad()
            corrupted = [model.corrupt(part) for part in parts]
            counts = {name: sum(model.counts(part)[name] for part in corrupted) for name in model.counts(corrupted[0])}
            for part in corrupted:
                model(part).total(counts).backward()
            sampled.append({name: p.grad.clone() for name, p in model.named_parameters()})
        for name, gradient in sampled[0].items():
            assert torch.allclose(sampled[1][name], gradient, rtol=0, atol=1e-10 * gradient.abs().max().item() + 1e-15)

    def test_one_compiled_graph_serves_every_batch_of_its_shape(self) -> None:
        model = build(encoder={"layers": 1})

        def step(batch: Batch) -> torch.Tensor:
            return model(model.corrupt(batch)).mean()

        torch._dynamo.reset()
        compiled = torch.compile(step, fullgraph=True, backend="eager")
        with torch._dynamo.config.patch(error_on_recompile=True):
            for seed in range(3):
                batch = random_batch(LENGTHS, length=40, pack=True, shape=(9, 13), seed=seed, epoch=seed)
                assert compiled(batch).item() == pytest.approx(step(batch).item(), rel=1e-5)

    def test_the_generator_has_the_encoders_dropout(self) -> None:
        generator = objective_of(build(encoder={"dropout": 0.2, "attention_dropout": 0.3})).generator
        assert {block.dropout.p for block in generator.blocks} == {0.2}
        assert {block.attention.dropout for block in generator.blocks} == {0.3}


class TestShapes:
    def test_generator_sizes_are_those_of_the_paper(self) -> None:
        for width, share, expected in (
            (256, 0.25, (64, 1)),
            (768, 1 / 3, (256, 4)),
            (1024, 0.25, (256, 4)),
            (256, 1, (256, 4)),
        ):
            with torch.device("meta"):
                encoder = electra.Config(width=width, heads=width // 64, layers=3)
                model = Model.build(encoder, [replaced_token.Config(generator_width=share)])
            generator = objective_of(model).generator
            assert (generator.width, generator.heads, generator.inner) == (*expected, 4 * expected[0])
            assert len(generator.blocks) == 3
            assert isinstance(generator.project, torch.nn.Linear)
            assert generator.project.weight.shape == (expected[0], 128)

    def test_no_projection_for_equal_widths(self) -> None:
        generator = objective_of(build(encoder={"embedding_width": 16})).generator
        assert generator.width == 16
        assert not list(generator.project.parameters())

    def test_it_works_with_every_encoder(self) -> None:
        from model_fixtures import small_bert_config as bert

        model = randomize_weights(
            Model.build(bert(pooler=False), [replaced_token.Config(generator_width=0.5)], vocabulary=VOCABULARY)
        ).eval()
        assert model(model.corrupt(texts())).mean().item() > 0


class TestRefused:
    def test_without_a_generator_it_cannot_be_trained(self) -> None:
        model, batch = build(generator_width=0.0), texts()
        assert not [name for name, _ in model.named_parameters() if "generator" in name]
        with pytest.raises(BertsmithError, match=r"^replaced_token has no generator here: it can predict, but not"):
            model.corrupt(batch)
        labels = torch.where(batch.document_ids != 0, ORIGINAL, IGNORE_INDEX).flatten()
        loss = model(batch.replace(labels={"replaced_token": labels}))
        logits = model.predict(batch, "replaced_token")
        expected = F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX)
        assert (loss.sums["replaced_token"] / loss.counts["replaced_token"]).item() == pytest.approx(expected.item())
        assert relative_difference(logits, model.predict(batch.replace(labels={}), "replaced_token")) == 0

    def test_settings(self) -> None:
        for generator in (-0.1, 1.5):
            with pytest.raises(
                ConfigError, match=f"^generator_width={generator} must be a share of the encoder's width, from 0"
            ):
                replaced_token.Config(generator_width=generator)
        with pytest.raises(ConfigError, match=r"^predict_at=some must be one of all, words, masked$"):
            replaced_token.Config(predict_at="some")
        with pytest.raises(
            ConfigError, match=r"^a generator of width 200 cannot have 3 attention heads: choose generator_width"
        ):
            build(generator_width=200 / 256, encoder={"width": 256})

    def test_beside_masked_lm(self) -> None:
        settings = [masked_lm.Config(), replaced_token.Config(generator_width=0.5)]
        with pytest.raises(ConfigError, match=r"^masked_lm and replaced_token both have a loss term masked_lm: remove"):
            Model.build(electra.Config(layers=1, width=32, heads=4, vocab_size=SIZE), settings)


def test_sampling_is_part_of_the_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = build(), []
    refill = ReplacedToken.sample_replacements

    def watch(self: ReplacedToken, batch: Batch, embed: Embed, table: torch.Tensor) -> tuple[Batch, Loss | None]:
        seen.append(refill(self, batch, embed, table))
        return seen[-1]

    monkeypatch.setattr(ReplacedToken, "sample_replacements", watch)
    corrupted = model.corrupt(texts())
    assert not seen
    model(corrupted)
    assert len(seen) == 1
    assert not torch.equal(seen[0][0].input_ids, corrupted.input_ids)
