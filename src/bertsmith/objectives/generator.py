"""The small network that guesses hidden words, for objectives that fill its guesses in (P-ELECTRA §2, §3.2).

It reads the encoder's own embeddings, which it is handed: the tables are shared, the blocks are its own. T flat places,
R slots for hidden places, E width of the token table, D width of the generator, V tokens.
"""

# differs from the paper's code: hidden places are drawn without replacement, so that 15 % really are hidden (there 14 %
# on average, since some are drawn twice).

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.nn import counter_random
from bertsmith.nn.attention import make_attention_context
from bertsmith.nn.transformer import make_block
from bertsmith.objectives import masked_lm
from bertsmith.objectives.objective import BuildContext, Embed, exact
from bertsmith.types import Batch, Encoding, Loss

WORDS = "masked_lm"  # the part of the loss that is the generator's
HEAD_WIDTH = 64  # of every published size
AT_ONCE = 1 << 24  # numbers of noise that are drawn at a time where nothing is compiled


@dataclass(frozen=True, kw_only=True)
class Hiding(masked_lm.Config):
    """15 % of what may be hidden; of that 85 % [MASK], 15 % left as it is."""

    masked: float = 0.85  # share of the hidden that becomes [MASK]
    kept: float = 0.15  # share that stays as it is; the rest becomes random words
    weight: float = 1.0  # of the generator's loss


@dataclass(frozen=True, kw_only=True)
class Guessing:
    """Settings of a generator."""

    generator: float = 0.25  # its width, as a share of the encoder's; 0: none, so that nothing can be hidden
    hiding: Hiding = field(default_factory=Hiding)  # what the generator is asked

    def __post_init__(self) -> None:
        if not 0 <= self.generator <= 1:
            raise ConfigError(f"generator={self.generator} must be a share of the encoder's width, from 0 to 1")

    def make_generator(self, context: BuildContext, *, weight: float) -> Generator | None:
        """The generator beside an encoder; its loss counts `weight` times."""
        if not self.generator:
            return None
        narrow = replace(
            context,
            width=max(1, round(self.generator * context.width)),
            embedding_width=context.embedding_width or context.width,
        )
        return Generator(replace(self.hiding, weight=weight * self.hiding.weight).build(narrow), narrow)


class Generator(nn.Module):
    """A Transformer over embeddings, a way from their width to its own before it, and masked words to guess."""

    def __init__(self, words: masked_lm.MaskedLM, context: BuildContext) -> None:
        """`context`: the encoder's, with the generator's width."""
        super().__init__()
        width, layer_config, embedding_width = context.width, context.layer_config, context.embedding_width
        assert embedding_width is not None
        self.width, self.heads, self.inner = width, max(1, width // HEAD_WIDTH), 4 * width
        if width % self.heads:
            raise ConfigError(
                f"a generator of width {width} cannot be split among {self.heads} heads: choose its share of the width "
                f"so that it is a multiple of {HEAD_WIDTH}, or under {2 * HEAD_WIDTH}"
            )
        vocabulary = context.vocabulary
        # that can be guessed: the table may have more rows
        self.tokens = context.vocab_size if vocabulary is None else vocabulary.size
        self.layer_config, self.key = layer_config, counter_random.stream_key(context.seed, "generator/guess")
        self.project = nn.Linear(embedding_width, width) if width != embedding_width else nn.Identity()
        self.blocks = nn.ModuleList(
            make_block(width=width, heads=self.heads, inner=self.inner, layer_config=layer_config)
            for _ in range(context.layers)
        )
        layer_config.init_weights(self)
        self.masked_lm = words

    def forward(self, x_TE: Tensor, batch: Batch) -> Encoding:
        """What it makes of embeddings [T, E], at the hidden places."""
        x_TD = self.project(x_TE)
        context = make_attention_context(
            batch.document_ids,
            batch.cu_seqlens,
            max_seqlen=batch.max_seqlen,
            dense=batch.dense,
            causal=False,
            dtype=x_TE.dtype,
            head_width=self.width // self.heads,
            dropout=self.layer_config.attention_dropout if self.training else 0.0,
        )
        for block in self.blocks[:-1]:
            x_TD, _ = block(x_TD, context)
        top_RD, _ = self.blocks[-1](x_TD, context, batch.indices[WORDS])
        return Encoding(last_hidden=top_RD, selections={WORDS: slice(None)})

    def fill(self, batch: Batch, embed: Embed, table: Tensor) -> tuple[Batch, Tensor, Loss]:
        """The hidden batch with guesses in it, where these are other tokens [T] bool, and the loss of guessing."""
        original_R, asked_R, places_R = (
            self.masked_lm.labels(batch),
            self.masked_lm.label_mask(batch),
            batch.indices[WORDS],
        )
        logits_RV = self.masked_lm.predict(self(embed(batch), batch), batch, table)
        guess_R = guess(logits_RV[:, : self.tokens], batch, places_R, key=self.key)
        ids_T = put(batch.input_ids.flatten(), places_R, asked_R, guess_R)
        nowhere_T = torch.zeros_like(ids_T, dtype=torch.bool)
        changed_T = put(nowhere_T, places_R, asked_R & (guess_R != original_R), torch.ones_like(asked_R))
        return (
            batch.replace(input_ids=ids_T.view_as(batch.input_ids)),
            changed_T,
            self.masked_lm.loss_from_logits(logits_RV, batch),
        )


def expect(generator: Generator | None, name: str) -> Generator:
    """The generator, without which the objective of that name cannot hide anything."""
    if generator is None:
        raise BertsmithError(f"{name} has no generator here: it can judge texts, not hide and learn")
    return generator


@torch.no_grad()
def guess(logits_RV: Tensor, batch: Batch, places_R: Tensor, *, key: int) -> Tensor:
    """A token for each place [R], drawn from softmax(logits): the largest of them with Gumbel noise added.

    The noise is a function of (key, epoch, sample, place in the text, token), so a guess does not depend on what else
    is in the batch. No gradient goes through it.
    """
    token_V = torch.arange(logits_RV.shape[1], device=logits_RV.device)
    sample_R1, position_R1 = (
        of_each.flatten()[places_R].unsqueeze(1) for of_each in (batch.sample_ids, batch.position_ids)
    )
    rows = len(places_R) if torch.compiler.is_compiling() else max(1, AT_ONCE // len(token_V))
    guesses = []
    for begin in range(0, len(places_R), rows):
        some = slice(begin, begin + rows)
        drawn_RV = counter_random.random_bits(key, batch.epoch, sample_R1[some], position_R1[some], token_V)
        guesses.append((exact(logits_RV[some]) + counter_random.gumbel(drawn_RV)).argmax(-1))
    return torch.cat(guesses)


def put(values_T: Tensor, places_R: Tensor, used_R: Tensor, new_R: Tensor) -> Tensor:
    """The values with others at those of the places that are used."""
    behind_R = torch.where(used_R, places_R, len(values_T))  # what is not used goes behind the end, and is cut off
    return torch.cat((values_T, values_T[:1])).scatter(0, behind_R, new_R)[: len(values_T)]
