"""TagLM: recurrent layers over words, their characters and features of frozen language models (Peters et al. 2017).

With features at the input and at the output, this is how tasks use ELMo (Peters et al. 2018, §3.3); without
recurrent layers its vectors are [word vector; context vector] (CoVe: McCann et al. 2017, §4).
N texts, M tokens of the longest, T flat tokens, C characters, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from bertsmith.config import Registry
from bertsmith.encoders import word_vectors
from bertsmith.encoders.encoder import FOLDER, Encoder, select_tokens
from bertsmith.encoders.frozen_features import (
    FeatureConfig,
    FrozenEncoder,
    FrozenFeatures,
    encoders_by_name,
    freeze,
)
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.pooling import TextTokens
from bertsmith.nn.recurrent import BiGRU, BiLSTM
from bertsmith.nn.scalar_mix import ScalarMix
from bertsmith.nn.word_characters import CharacterKind, WordCharacters
from bertsmith.tokenizers.spelling import lower
from bertsmith.types import Batch, Direction, Encoding

Cell = Literal["gru", "lstm"]


@dataclass(frozen=True, kw_only=True)
class Config(FeatureConfig):
    """The paper's tagger for named entities by default (P-TagLM §3.3)."""

    words: Annotated[Any, Registry(FOLDER)] = field(default_factory=word_vectors.Config)  # those of the model folder
    tune_words: bool = True  # train the word vectors; false: they stay as they are
    lowercase_words: bool = False  # the word vectors are of lower-cased words, as is detected in their folder
    characters: CharacterKind = "gru"  # network over the spelling of each word
    character_width: int = 25  # of the vector of each byte
    character_hidden: int = 80  # filters of the CNN, or width of the GRU in each direction
    character_window: int = 3  # bytes that a filter of the CNN reads
    cell: Cell = "gru"  # of the recurrent layers
    layers: int = 2  # recurrent layers; 0: none
    hidden: int = 300  # their width in each direction
    dropout: float = 0.25  # on the input of each recurrent layer
    # where the features are concatenated: 0 is the input of the recurrent layers, n the output of layer n
    features_at: tuple[int, ...] = (1,)
    max_positions: int = 16_384  # maximum length of a text in words

    # P-TagLM §3.3: from the best epoch on a tenth of the learning rate for five epochs, then a hundredth for five
    # differs from the paper: both follow five epochs without improvement, and continue from the last weights
    finetuning: ClassVar[Mapping[str, Any]] = {
        "learning_rate": 1e-3,
        "warmup": 0.0,
        "schedule": {"kind": "reduce_on_plateau", "reduction": 0.1, "patience": 4, "floor": 0.01},
        "patience": 15,
        "optimizer": {"kind": "adamw", "weight_decay": 0.0},
        "compute": {"max_grad_norm": 5.0},
        "batch_size": 32,
        "epochs": 100.0,
    }
    text_head: ClassVar[Mapping[str, Any]] = {"pooling": "concat"}
    built_over: ClassVar[str] = "words"  # the setting that is the encoder of the model folder it is built over
    segment_types: ClassVar[int] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("character_width", "character_hidden", "character_window", "hidden", "max_positions"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        for name, choices in (("characters", get_args(CharacterKind)), ("cell", get_args(Cell))):
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name}={getattr(self, name)} must be one of {', '.join(choices)}")
        if self.layers < 0 or not 0 <= self.dropout < 1:
            raise ConfigError(f"layers={self.layers} must be at least 0, dropout={self.dropout:g} from 0 to below 1")
        if self.features and not self.features_at:
            raise ConfigError("features_at is empty: name a layer that reads the features, such as features_at=[1]")
        if self.features and not {*self.features_at} <= {*range(self.layers + 1)}:
            found = f"features_at={list(self.features_at)} must be layers from 0 (input) to {self.layers}"
            raise ConfigError(f"{found}: with layers={self.layers}, write features_at=[{self.layers and 1}]")

    @property
    def vocab_size(self) -> int:
        """Rows of the table of words."""
        return int(self.words.vocab_size)

    def build(self) -> TagLM:
        return TagLM(self)


class TagLM(Encoder):
    """Word vectors, characters, and bidirectional recurrent layers, with frozen features concatenated to them."""

    segment_types, has_pooler, compiles, starts_texts = 0, False, False, False
    reads = frozenset({"ids", "characters"})
    reads_case = True

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.max_positions = config, config.max_positions
        self.layer_config = LayerConfig()
        self.words: Encoder = config.words.build()
        self.spellings = self.words.spellings
        if not config.tune_words:
            freeze(self.words)
        sizes = {"width": config.character_width, "hidden": config.character_hidden, "window": config.character_window}
        self.characters = WordCharacters(config.characters, **sizes)
        self.features = FrozenFeatures(config)
        self.mixes = nn.ModuleDict({str(layer): self.features.new_mixes() for layer in self._injection_layers()})
        network = BiGRU if config.cell == "gru" else BiLSTM
        added = [self.features.width if str(layer) in self.mixes else 0 for layer in range(config.layers + 1)]
        widths = [self.words.width + self.characters.width + added[0]]
        widths += [2 * config.hidden + one for one in added[1:]]
        self.networks = nn.ModuleList(
            network(width, config.hidden, layers=1, dropout=config.dropout) for width in widths[:-1]
        )
        self._widths, self.layers, self.width = tuple(widths), config.layers, widths[-1]

    def _injection_layers(self) -> list[int]:
        return sorted({*self.config.features_at}) if self.config.features else []

    @property
    def direction(self) -> Direction:  # type: ignore[override]
        """Without recurrent layers and features, a vector depends on its word alone."""
        return "both" if self.config.layers or self.config.features else "none"

    def forward(
        self,
        batch: Batch,
        state: Any = None,
        *,
        indices: Mapping[str, Tensor] | None = None,
        pool: bool = True,
        return_layers: bool = False,
        return_attentions: bool = False,
    ) -> Encoding:
        """See `Encoder.forward`. The output of a layer at which features are concatenated includes them."""
        self.check(batch)
        selection = select_tokens(batch, None if return_layers else indices, pool=False)
        texts, size = TextTokens.of(batch), batch.input_ids.numel()
        lengths_N, frozen = texts.lengths(), self.features(batch)
        x_TD = torch.cat([self.embed(batch), *self._injected(0, frozen)], -1)
        outputs = [x_TD]
        for number, network in enumerate(self.networks, start=1):
            output_NMD = network(outputs[-1][texts.indices], lengths_N)
            outputs.append(torch.cat([texts.flatten(output_NMD, size), *self._injected(number, frozen)], -1))
        top_TD = outputs[-1]
        return Encoding(
            last_hidden=top_TD if selection.indices is None else top_TD[selection.indices],
            selections=selection.by_objective,
            layers=tuple(outputs) if return_layers else (),
        )

    def _injected(self, layer: int, frozen: list[list[Tensor]]) -> list[Tensor]:
        """The features [T, D] that are concatenated there, or nothing."""
        return [self.mixes[str(layer)](frozen)] if str(layer) in self.mixes else []

    def embed(self, batch: Batch) -> Tensor:
        """Word vectors and character features [T, E], without frozen features."""
        if batch.characters is None:
            raise BertsmithError("taglm reads the spelling of words: the batch has none")
        words = batch
        if self.config.lowercase_words and "characters" in self.words.reads:
            spelled_TC = lower(batch.characters.flatten(0, 1).cpu().numpy())
            spelled = torch.from_numpy(spelled_TC).view(*batch.input_ids.shape, -1)
            words = batch.replace(characters=spelled.to(batch.input_ids.device))
        parts = [self.words.embed(words)]
        if self.config.characters != "none":
            parts.append(self.characters(batch.characters.flatten(0, 1)))
        return torch.cat(parts, -1)

    def set_spellings(self, tokens: Sequence[str]) -> None:
        """Those of the word vectors."""
        self.words.set_spellings(tokens)
        self.spellings = self.words.spellings

    def frozen_encoders(self) -> Mapping[str, FrozenEncoder]:
        return encoders_by_name(self.features)

    def layer_groups(self) -> list[nn.Module]:
        """Words, characters, frozen features, then the mixes and the recurrent layers."""
        return [self.words, self.characters, self.features, self.mixes, *self.networks]

    def init_weights(self) -> None:
        """New weights, but for those that are frozen."""
        if self.config.tune_words:
            self.words.init_weights()
        self.characters.init_weights()
        for module in self.networks.modules():
            if isinstance(module, nn.RNNBase):
                module.reset_parameters()
        for mix in self.mixes.modules():
            if isinstance(mix, ScalarMix):
                mix.init_weights()

    @property
    def layer_widths(self) -> tuple[int, ...]:
        """The input, and each recurrent layer."""
        return self._widths
