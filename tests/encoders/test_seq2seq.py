"""The Transformer for translation: equal to torch's layers, positions, sharing of tables, decoding step by step."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from model_fixtures import SIZE, random_rows, randomize_weights, relative_difference
from torch import Tensor, nn

from bertsmith.data.collate import collate
from bertsmith.encoders import seq2seq
from bertsmith.encoders.seq2seq import Seq2Seq
from bertsmith.errors import ConfigError
from bertsmith.nn.attention import Attention
from bertsmith.nn.decoder import CrossAttention, sinusoids
from bertsmith.types import Batch

SMALL: dict[str, Any] = {"layers": 2, "decoder_layers": 3, "width": 32, "heads": 4, "vocab_size": SIZE, "dropout": 0.0}
SOURCES, TARGETS = [12, 9, 23, 7, 40], [10, 11, 20, 8, 31]


def build(**changes: Any) -> Seq2Seq:
    encoder: Seq2Seq = randomize_weights(seq2seq.Config(**{**SMALL, **changes}).build()).eval()
    return encoder


def pairs(numbers: list[int], *, source_length: int = 40, target_length: int = 31) -> Batch:
    """Some of the same five pairs, one per row."""
    sources, targets = random_rows(SOURCES, pairs=False), random_rows(TARGETS, seed=1, pairs=False)
    source = collate([sources[number] for number in numbers], length=source_length)
    return source.replace(target=collate([targets[number] for number in numbers], length=target_length))


def copy_attention(ours: Attention | CrossAttention, theirs: nn.MultiheadAttention) -> None:
    if isinstance(ours, Attention):
        weight, bias = ours.qkv.weight, ours.qkv.bias
    else:
        weight = torch.cat([ours.query.weight, ours.key_value.weight])
        bias = torch.cat([ours.query.bias, ours.key_value.bias])
    for target, source in ((theirs.in_proj_weight, weight), (theirs.in_proj_bias, bias)):
        target.data.copy_(source)
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def torch_layers(encoder: Seq2Seq) -> tuple[nn.TransformerEncoder, nn.TransformerDecoder]:
    """torch's layers with the same weights; with pre-norm, an output norm each."""
    config = encoder.config
    how: dict[str, Any] = {"dim_feedforward": config.inner, "dropout": 0.0, "batch_first": True}
    how |= {"layer_norm_eps": config.layer_norm_eps, "norm_first": config.pre_norm, "activation": config.activation}
    norms = [nn.LayerNorm(config.width, eps=config.layer_norm_eps) if config.pre_norm else None for _ in range(2)]
    first = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(config.width, config.heads, **how),
        config.layers,
        norms[0],
        enable_nested_tensor=False,
    )
    second = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(config.width, config.heads, **how), config.target_layers, norms[1]
    )
    for stack, blocks, own in ((first, encoder.blocks, norms[0]), (second, encoder.decoder_blocks, norms[1])):
        for theirs, ours in zip(stack.layers, blocks, strict=True):
            copy_attention(ours.attention, theirs.self_attn)
            parts = [(theirs.norm1, ours.attention_norm)]
            if isinstance(theirs, nn.TransformerDecoderLayer):
                copy_attention(ours.cross_attention, theirs.multihead_attn)
                parts += [(theirs.norm2, ours.cross_attention_norm), (theirs.norm3, ours.feed_forward_norm)]
            else:
                parts += [(theirs.norm2, ours.feed_forward_norm)]
            parts += [(theirs.linear1, ours.feed_forward.expand), (theirs.linear2, ours.feed_forward.contract)]
            for one, other in parts:
                one.load_state_dict(other.state_dict())
        if own is not None:
            own.load_state_dict(blocks[-1].output_norm.state_dict())
    return first.eval(), second.eval()


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_equal_to_torch_layers_of_the_same_weights(
    pre_norm: bool, activation: str, dtype: torch.dtype, tolerance: float
) -> None:
    encoder = build(pre_norm=pre_norm, activation=activation).to(dtype)
    batch = pairs([0, 1, 2, 3, 4])
    target = batch.target
    assert target is not None
    first, second = (stack.to(dtype) for stack in torch_layers(encoder))
    table = encoder.embeddings.tokens.weight * math.sqrt(32)
    positions = encoder.embeddings.positions.table
    padding, target_padding = batch.document_ids == 0, target.document_ids == 0
    with torch.no_grad():
        source = first(table[batch.input_ids] + positions[batch.position_ids], src_key_padding_mask=padding)
        expected = second(
            table[target.input_ids] + positions[target.position_ids],
            source,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(31, dtype=dtype),
            tgt_key_padding_mask=torch.zeros(target_padding.shape, dtype=dtype).masked_fill(target_padding, -torch.inf),
            memory_key_padding_mask=padding,
        )
        actual = encoder(batch)
    assert actual.target is not None
    for ours, theirs, skipped in (
        (actual.last_hidden, source, padding),
        (actual.target.last_hidden, expected, target_padding),
    ):
        assert relative_difference(ours.view(theirs.shape)[~skipped], theirs[~skipped]) < tolerance


def test_sinusoids_of_the_paper_and_of_its_code() -> None:
    table, code = sinusoids(50, 8, interleaved=True), sinusoids(50, 8, interleaved=False)
    for position in (0, 1, 49):
        for pair in range(4):
            angle = position / 10_000 ** (2 * pair / 8)
            assert table[position, 2 * pair].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, 2 * pair + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)
            angle = position * 10_000 ** (-pair / 3)
            assert code[position, pair].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert code[position, 4 + pair].item() == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize("positions", ["interleaved", "concatenated", "learned"])
def test_every_kind_of_positions_tells_tokens_apart(positions: str) -> None:
    encoder, batch = build(positions=positions), pairs([0])
    same = batch.replace(input_ids=torch.full_like(batch.input_ids, 7))
    hidden = encoder.embed(same)
    assert relative_difference(hidden[0], hidden[1]) > 1e-3
    stored = {name for name in encoder.state_dict() if "positions" in name}
    assert bool(stored) == (positions == "learned"), "sinusoids are not stored"


def hidden_of_targets(encoder: Seq2Seq, batch: Batch) -> list[Tensor]:
    assert batch.target is not None
    target = encoder(batch).target
    assert target is not None
    documents = batch.target.document_ids
    rows = target.last_hidden.view(*documents.shape, -1)
    return [
        row[ids == number] for row, ids in zip(rows, documents, strict=True) for number in range(1, int(ids.max()) + 1)
    ]


@pytest.mark.parametrize("pre_norm", [False, True])
def test_padding_and_other_pairs_change_nothing(pre_norm: bool) -> None:
    encoder = build(pre_norm=pre_norm)
    alone = [
        hidden_of_targets(encoder, pairs([number], source_length=SOURCES[number], target_length=TARGETS[number]))[0]
        for number in range(5)
    ]
    together = hidden_of_targets(encoder, pairs([0, 1, 2, 3, 4], source_length=44, target_length=37))
    assert all(relative_difference(one, other) < 1e-5 for one, other in zip(together, alone, strict=True))
    sources, targets = random_rows(SOURCES, pairs=False), random_rows(TARGETS, seed=1, pairs=False)
    packed = collate(sources, length=100, pack=True).replace(target=collate(targets, length=90, pack=True))
    assert len(packed.input_ids) == 1
    found = hidden_of_targets(encoder, packed)
    assert all(relative_difference(one, other) < 1e-5 for one, other in zip(found, alone, strict=True))


def test_a_target_token_reads_the_whole_source_and_the_target_up_to_itself() -> None:
    encoder, batch = build(), pairs([2])
    assert batch.target is not None
    before = hidden_of_targets(encoder, batch)[0]
    ids = batch.target.input_ids.clone()
    ids[0, 8] = 33 if ids[0, 8] != 33 else 34
    after = hidden_of_targets(encoder, batch.replace(target=batch.target.replace(input_ids=ids)))[0]
    assert torch.equal(after[:8], before[:8])
    assert relative_difference(after[8:], before[8:]) > 1e-5
    ids = batch.input_ids.clone()
    ids[0, 22] = 33 if ids[0, 22] != 33 else 34  # the last source token
    assert relative_difference(hidden_of_targets(encoder, batch.replace(input_ids=ids))[0][0], before[0]) > 1e-5


@torch.inference_mode()
@pytest.mark.parametrize("pre_norm", [False, True])
def test_decoding_token_by_token_equals_the_whole_target(pre_norm: bool) -> None:
    encoder, batch = build(pre_norm=pre_norm).double(), pairs([0, 1, 2])
    assert batch.target is not None
    whole = encoder(batch).target.last_hidden.view(3, 31, -1)
    state = encoder.start(batch, hypotheses=2, length=8, dtype=torch.float64)
    for position in range(8):
        ids = batch.target.input_ids[:, position].repeat_interleave(2)
        hidden = encoder.step(ids, state)
        for text, length in enumerate(TARGETS[:3]):
            if position < length:
                for hypothesis in (2 * text, 2 * text + 1):
                    assert relative_difference(hidden[hypothesis], whole[text, position]) < 1e-12


@torch.inference_mode()
def test_selected_hypotheses_continue_from_their_own_tokens() -> None:
    encoder, batch = build().double(), pairs([0, 1, 2])
    state = encoder.start(batch, hypotheses=2, length=8, dtype=torch.float64)
    first = torch.tensor([7, 8, 9, 10, 11, 12])
    encoder.step(first, state)
    state = state.select(torch.tensor([1, 1, 4, 5]), torch.tensor([0, 2]))
    actual = encoder.step(torch.tensor([20, 21, 22, 23]), state)
    other = encoder.start(pairs([0, 2], source_length=50), hypotheses=2, length=8, dtype=torch.float64)
    encoder.step(torch.tensor([8, 8, 11, 12]), other)
    assert relative_difference(actual, encoder.step(torch.tensor([20, 21, 22, 23]), other)) < 1e-12


def test_cross_attention_is_returned_on_request() -> None:
    encoder, batch = build(), pairs([0, 1])
    encoding = encoder(batch, return_attentions=True)
    assert [one.shape for one in encoding.target.attentions] == [(2, 4, 31, 40)] * 3
    weights = encoding.target.attentions[0][1, :, :11]
    assert (weights.sum(-1) - 1).abs().max() < 1e-6
    assert weights[:, :, 9:].abs().max() == 0, "no weight on padding"
    plain = encoder(batch)
    assert plain.target.attentions == ()
    valid = batch.target.document_ids.flatten() > 0
    assert relative_difference(encoding.target.last_hidden[valid], plain.target.last_hidden[valid]) < 1e-5


def test_shared_and_separate_tables() -> None:
    shared, separate = build(), build(share_embeddings=False)
    assert shared.target_embeddings is shared.token_embeddings
    assert separate.target_embeddings is not separate.token_embeddings
    count = [sum(one.numel() for one in encoder.parameters()) for encoder in (shared, separate)]
    assert count[1] - count[0] == SIZE * 32


def test_new_weights_have_the_variance_of_the_papers_code() -> None:
    encoder = seq2seq.Config.size("small", vocab_size=2000).build()
    block = encoder.decoder_blocks[0]
    bound = math.sqrt(6 / (256 + 256))
    for weight in (*block.attention.qkv.weight.chunk(3), *block.cross_attention.key_value.weight.chunk(2)):
        assert 0.99 * bound < weight.abs().max() <= bound
    assert block.feed_forward.expand.weight.abs().max() <= math.sqrt(6 / (256 + 1024))
    assert encoder.token_embeddings.std().item() == pytest.approx(256**-0.5, rel=0.02)


def test_the_base_model_has_the_papers_size() -> None:
    with torch.device("meta"):
        encoder = seq2seq.Config.size("base", vocab_size=37_000).build()
    assert sum(one.numel() for one in encoder.parameters()) == 63_082_496  # about the 65 M of table 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 33}, "width=33 must be a multiple of heads=4"),
        ({"width": 3, "heads": 1}, "width=3 must be even for sinusoidal positions"),
        ({"decoder_layers": 0}, "decoder_layers=0 must be at least 1"),
        ({"dropout": 1.0}, "dropout=1.0 must be at least 0 and less than 1"),
    ],
)
def test_settings_that_build_no_model(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        build(**change)
