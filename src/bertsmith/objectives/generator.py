"""A small masked language model that proposes replacements for masked tokens (P-ELECTRA §2, §3.2).

It shares the encoder's embeddings and has its own Transformer blocks. T flat tokens, R slots for masked tokens,
E width of the token table, D width of the generator, V tokens.
"""

# differs from the paper's code: masked tokens are drawn without replacement, so that 15 % are masked (in the paper's
# code 14 % on average, since some are drawn twice).

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.nn import counter_random
from bertsmith.nn.attention import AttentionShape, make_attention_context
from bertsmith.nn.transformer import make_block
from bertsmith.objectives import masked_lm
from bertsmith.objectives.objective import AuxiliaryModel, BuildContext, Embed, Objective, at_least_float32
from bertsmith.types import Batch, Encoding, Loss

GENERATOR_TERM = "masked_lm"  # the generator's loss term, and the key of its labels and indices
HEAD_WIDTH = 64  # in every published size
NOISE_CHUNK = 1 << 24  # random numbers drawn at a time outside compiled code


@dataclass(frozen=True, kw_only=True)
class GeneratorMasking(masked_lm.Config):
    """Masks 15 % of the tokens; 85 % of them become [MASK], 15 % stay."""

    mask_token_share: float = 0.85  # of the masked tokens that become [MASK]
    keep_share: float = 0.15  # of the masked tokens that stay; the others become random tokens
    weight: float = 1.0  # of the generator's loss


@dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
    """Settings of a generator."""

    generator_width: float = 0.25  # as a share of the encoder's width; 0: no generator, for inference only
    generator_layers: int | None = None  # blocks of the generator; by default as many as the encoder has layers
    temperature: float = 1.0  # of the softmax that replacements are sampled from; below 1: likelier ones
    masking: GeneratorMasking = field(default_factory=GeneratorMasking)  # tokens that the generator replaces

    def __post_init__(self) -> None:
        if not 0 <= self.generator_width <= 1:
            raise ConfigError(
                f"generator_width={self.generator_width} must be a share of the encoder's width, from 0 to 1"
            )
        if self.generator_layers is not None and self.generator_layers < 1:
            raise ConfigError(f"generator_layers={self.generator_layers} must be at least 1")
        if self.temperature <= 0:
            raise ConfigError(f"temperature={self.temperature:g} must be above 0")

    def build_generator(self, context: BuildContext, *, weight: float) -> Generator | None:
        """The generator for an encoder; its loss has `weight` in the total."""
        if not self.generator_width:
            return None
        if context.embedding_width is None:
            raise ConfigError("a generator shares the encoder's token embeddings, and this encoder has none")
        layers = context.layers if self.generator_layers is None else self.generator_layers
        small = replace(context, width=max(1, round(self.generator_width * context.width)), layers=layers)
        head = replace(self.masking, weight=weight * self.masking.weight).build(small)
        return Generator(head, small, temperature=self.temperature)


class Generator(nn.Module):
    """A projection from the embeddings, Transformer blocks and a masked-language-model head."""

    def __init__(self, head: masked_lm.MaskedLM, context: BuildContext, *, temperature: float = 1.0) -> None:
        """`context`: the encoder's, with the generator's width and layers."""
        super().__init__()
        width, layers, embedding_width = context.width, context.layer_config, context.embedding_width
        assert embedding_width is not None
        self.width, self.heads, self.inner = width, max(1, width // HEAD_WIDTH), 4 * width
        if width % self.heads:
            raise ConfigError(
                f"a generator of width {width} cannot have {self.heads} attention heads: choose generator_width so "
                f"that the width is a multiple of {HEAD_WIDTH}, or below {2 * HEAD_WIDTH}"
            )
        if context.rope_theta is not None and width // self.heads % 2:
            raise ConfigError(
                f"rotary positions need an even head width, and the heads of a generator of width {width} have "
                f"{width // self.heads}: choose another generator_width"
            )
        vocabulary = context.vocabulary
        self.tokens = context.vocab_size if vocabulary is None else vocabulary.size  # the table may have more rows
        self.rope_theta, self.temperature = context.rope_theta, temperature
        self.key = counter_random.stream_key(context.seed, "generator/guess")
        dropout = layers.attention_dropout
        self.attention_shape = AttentionShape(self.heads, width // self.heads, dropout, causal=False)
        self.project = nn.Linear(embedding_width, width) if width != embedding_width else nn.Identity()
        self.blocks = nn.ModuleList(
            make_block(width=width, heads=self.heads, inner=self.inner, layer_config=layers)
            for _ in range(context.layers)
        )
        layers.init_weights(self)
        self.masked_lm = head

    def forward(self, x_TE: Tensor, batch: Batch) -> Encoding:
        """The last hidden states at the masked tokens, from embeddings [T, E]."""
        x_TD = self.project(x_TE)
        how: dict[str, Any] = {"training": self.training, "rope_theta": self.rope_theta}
        context = make_attention_context(batch, self.attention_shape, dtype=x_TE.dtype, **how)
        for block in self.blocks[:-1]:
            x_TD, _ = block(x_TD, context)
        last_RD, _ = self.blocks[-1](x_TD, context, batch.indices[GENERATOR_TERM])
        return Encoding(last_hidden=last_RD, selections={GENERATOR_TERM: slice(None)})

    def replace_masked(self, batch: Batch, embed: Embed, table: Tensor | None) -> tuple[Batch, Tensor, Loss]:
        """The masked batch with sampled tokens, where these differ from the original [T] bool, and the loss."""
        original_R, used_R = self.masked_lm.labels(batch), self.masked_lm.label_mask(batch)
        index_R = batch.indices[GENERATOR_TERM]
        logits_RV = self.masked_lm.predict(self(embed(batch), batch), batch, table)
        known_RV = logits_RV[:, : self.tokens]
        sampled_R = sample_tokens(known_RV, batch, index_R, key=self.key, temperature=self.temperature)
        ids_T = scatter_where(batch.input_ids.flatten(), index_R, used_R, sampled_R)
        unchanged_T = torch.zeros_like(ids_T, dtype=torch.bool)
        changed_T = scatter_where(unchanged_T, index_R, used_R & (sampled_R != original_R), torch.ones_like(used_R))
        filled = batch.replace(input_ids=ids_T.view_as(batch.input_ids))
        return filled, changed_T, self.masked_lm.loss_from_logits(logits_RV, batch)


class GeneratorObjective(Objective):
    """An objective over text in which a generator replaced the masked tokens.

    The generator is trained by its own loss alone: no gradient passes through the sampled tokens.
    """

    generator: Generator | None

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """The generator's loss has the name of a masked language model's."""
        own = (self.name,) if self.reads_encoding else ()
        return own if self.generator is None else (GENERATOR_TERM, *own)

    @property
    def perplexity_terms(self) -> tuple[str, ...]:
        """The generator's."""
        return () if self.generator is None else (GENERATOR_TERM,)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Of its terms; known before anything is sampled."""
        masked = {} if self.generator is None else self.generator.masked_lm.counts(batch)
        return {**masked, **super().counts(batch)} if self.reads_encoding else masked

    def per_token_modules(self) -> list[nn.Module]:
        """The generator without its head."""
        return [] if self.generator is None else [self.generator.project, self.generator.blocks]

    def auxiliary_models(self) -> dict[str, AuxiliaryModel]:
        """The generator, as a masked language model."""
        if (generator := self.generator) is None:
            return {}
        sizes = {"layers": len(generator.blocks), "width": generator.width, "heads": generator.heads}
        sizes["feed_forward"] = generator.inner
        weights = {f"embeddings.project.{name}": value for name, value in generator.project.state_dict().items()}
        weights |= {f"blocks.{name}": value for name, value in generator.blocks.state_dict().items()}
        return {"generator": AuxiliaryModel({**sizes, "pooler": False}, weights, generator.masked_lm)}

    def required_generator(self) -> Generator:
        """The generator; an error where the objective has none and cannot be trained."""
        if self.generator is None:
            raise BertsmithError(f"{self.name} has no generator here: it can predict, but not be trained")
        return self.generator


@torch.no_grad()
def sample_tokens(logits_RV: Tensor, batch: Batch, index_R: Tensor, *, key: int, temperature: float = 1.0) -> Tensor:
    """A token for each index [R] from softmax(logits / temperature), by the Gumbel-max trick; no gradient.

    The noise is a function of (key, epoch, sample, position, token): it does not depend on the rest of the batch.
    """
    token_V = torch.arange(logits_RV.shape[1], device=logits_RV.device)
    sample_R1, position_R1 = (
        values.flatten()[index_R].unsqueeze(1) for values in (batch.sample_ids, batch.position_ids)
    )
    rows = len(index_R) if torch.compiler.is_compiling() else max(1, NOISE_CHUNK // len(token_V))
    sampled = []
    for begin in range(0, len(index_R), rows):
        some = slice(begin, begin + rows)
        drawn_RV = counter_random.random_bits(key, batch.epoch, sample_R1[some], position_R1[some], token_V)
        scaled_RV = at_least_float32(logits_RV[some]) / temperature
        sampled.append((scaled_RV + counter_random.gumbel(drawn_RV)).argmax(-1))
    return torch.cat(sampled)


def scatter_where(values_T: Tensor, index_R: Tensor, used_R: Tensor, new_R: Tensor) -> Tensor:
    """The values [T] with new ones at the used indices."""
    target_R = torch.where(used_R, index_R, len(values_T))  # unused slots write past the end, which is dropped
    return torch.cat((values_T, values_T[:1])).scatter(0, target_R, new_R)[: len(values_T)]
