"""Layers of frozen encoders as features of words. Not an encoder of its own.

An encoder whose tokens are words holds a `FrozenFeatures`. Each frozen encoder has a tokenizer of its own: it reads the
words of each text, joined by spaces. T flat tokens of the batch, P flat pieces of a frozen encoder, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from bertsmith.config import Registry, find_kind, kinds
from bertsmith.data.collate import collate
from bertsmith.encoders.encoder import FOLDER, Encoder
from bertsmith.encoders.word_alignment import AlignedText, align, words_of
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.nn.scalar_mix import ScalarMix
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Batch, Row

TOKENS = 8192  # padded tokens of one forward of a frozen encoder
ALIGNED_TEXTS = 65_536  # whose pieces are kept


@dataclass(frozen=True, kw_only=True)
class FrozenConfig:
    """One frozen encoder."""

    model: str = ""  # the model folder that it was read from
    fingerprint: str = ""  # of its settings and weights
    encoder: Annotated[Any, Registry(FOLDER)] | None = None  # its settings, as in its model folder


LayerChoice = Literal["top", "mix"] | int


@dataclass(frozen=True, kw_only=True)
class FeatureConfig:
    """Settings of an encoder that reads features of frozen encoders: base class of its `Config`."""

    features: tuple[FrozenConfig, ...] = ()  # frozen encoders, side by side; in settings, their model folders
    # layers of the frozen encoders that are read; mix: the learned weighted sum of all (P-ELMo eq. 1); or a number, 0
    # for the embeddings
    feature_layers: LayerChoice = "top"
    feature_dropout: float = 0.0  # on the features
    mix_layer_norm: bool = False  # normalise each layer before the sum
    mix_l2: float = 0.0  # of ‖w‖² in the loss, over the weights of each mix before their softmax

    def __post_init__(self) -> None:
        if not 0 <= self.feature_dropout < 1 or self.mix_l2 < 0:
            found = f"feature_dropout={self.feature_dropout:g} and mix_l2={self.mix_l2:g}"
            raise ConfigError(f"{found} must be at least 0, feature_dropout below 1")
        if not (self.mix_layer_norm or self.mix_l2):
            return
        if not self.features:
            setting = f"mix_l2={self.mix_l2:g}" if self.mix_l2 else "mix_layer_norm=true"
            raise ConfigError(f"{setting} is for features of frozen encoders: set features=[FOLDER], or leave it out")
        if self.feature_layers != "mix":
            raise ConfigError("mix_layer_norm and mix_l2 need the weighted sum of layers: set feature_layers=mix")


def kinds_over_words(setting: str = "") -> list[str]:
    """The encoders that are built over the one of a model folder; only those with that setting, where it is given."""
    configs = {name: find_kind(FOLDER, name).Config for name in kinds(FOLDER)}
    over = {name: cls for name, cls in configs.items() if hasattr(cls, "built_over")}
    return [name for name, cls in over.items() if not setting or setting in {item.name for item in fields(cls)}]


def freeze(module: nn.Module) -> nn.Module:
    """Its parameters as buffers: they are saved and moved with the model, and no optimizer sees them."""
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            value = parameter.detach()
            delattr(part, name)
            part.register_buffer(name, value)
            setattr(part, name, value)  # LSTMs keep a list of their weights, which this updates
            cast(Any, part).frozen = True
    return module.eval()


def is_frozen(part: nn.Module) -> bool:
    """Whether the buffers of a module, without those of its submodules, are frozen weights."""
    return bool(getattr(part, "frozen", False))


class FrozenEncoder(nn.Module):
    """An encoder without gradients and dropout, and its tokenizer."""

    def __init__(self, config: FrozenConfig) -> None:
        super().__init__()
        if config.encoder is None:
            raise ConfigError("features need a model folder: set features=[FOLDER]")
        self.encoder: Encoder = config.encoder.build()
        freeze(self.encoder)
        self.tokenizer: Tokenizer | None = None
        self._aligned: dict[tuple[str, ...], AlignedText] = {}

    def train(self, mode: bool = True) -> FrozenEncoder:
        """Stays in evaluation mode."""
        return super().train(False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_aligned": {}}

    @torch.no_grad()
    def forward(self, texts: Sequence[tuple[str, ...]], positions: Tensor, size: int) -> list[Tensor]:
        """All its layers [T = size, D] of the words of these texts, at their flat positions; elsewhere 0."""
        aligned = [self.align(words) for words in texts]
        rows = [row for one in aligned for row in one.rows]
        if not rows:
            like = next(one for one in self.encoder.buffers() if one.is_floating_point())  # others: spellings
            return [like.new_zeros(size, width) for width in self.encoder.layer_widths]
        begins = np.cumsum([0, *(sum(map(len, one.rows)) for one in aligned)])
        first, last = (
            np.concatenate([np.where(one >= 0, one + begin, -1) for one, begin in zip(some, begins, strict=False)])
            for some in ([one.first for one in aligned], [one.last for one in aligned])
        )
        known = torch.from_numpy(first >= 0)
        at = positions[known.to(positions.device)]
        pieces = self._layers_of(rows, positions.device)
        first_R, last_R = (torch.from_numpy(one[first >= 0]).to(positions.device) for one in (first, last))
        return [
            layer_PD.new_zeros(size, layer_PD.shape[1]).index_copy(0, at, self._read(layer_PD, first_R, last_R))
            for layer_PD in pieces
        ]

    def align(self, words: tuple[str, ...]) -> AlignedText:
        """The pieces of a text; kept, because training reads each text several times."""
        found = self._aligned.get(words)
        if found is None:
            if self.tokenizer is None:
                raise BertsmithError("a frozen encoder has no tokenizer: open the model from its folder")
            if len(self._aligned) >= ALIGNED_TEXTS:
                self._aligned.clear()
            found = self._aligned[words] = align(words, self.tokenizer, positions=self.encoder.max_positions)
        return found

    def _read(self, layer_PD: Tensor, first_R: Tensor, last_R: Tensor) -> Tensor:
        """The vector [R, D] of each word: that of the piece that has read all of it, else of the first piece."""
        direction = self.encoder.direction
        if direction == "forward":
            return layer_PD[last_R]
        if direction == "forward_and_backward":
            forward_PD, backward_PD = layer_PD.chunk(2, dim=1)
            return torch.cat((forward_PD[last_R], backward_PD[first_R]), 1)
        return layer_PD[first_R]

    def _layers_of(self, rows: Sequence[Row], device: torch.device) -> list[Tensor]:
        """All layers [P, D] of the pieces of all rows, in order."""
        assert self.tokenizer is not None
        ends = np.cumsum([len(row) for row in rows])
        result: list[Tensor] = []
        for numbers in _groups(rows):
            some = [rows[number] for number in numbers]
            length = max(map(len, some))
            batch = collate(some, length=length, padding_id=self.tokenizer.padding_id).to(device)
            layers = self.encoder(batch, pool=False, return_layers=True).layers
            inside = (batch.document_ids.flatten() > 0).nonzero()[:, 0]
            positions = np.concatenate(
                [np.arange(ends[number] - len(rows[number]), ends[number]) for number in numbers]
            )
            if not result:
                result = [layer_PD.new_empty(int(ends[-1]), layer_PD.shape[1]) for layer_PD in layers]
            for whole_PD, layer_PD in zip(result, layers, strict=True):
                whole_PD[torch.from_numpy(positions).to(device)] = layer_PD[inside]
        return result


def _groups(rows: Sequence[Row]) -> Iterator[list[int]]:
    """The numbers of the rows that are computed together, similar lengths next to each other."""
    some: list[int] = []
    for number in sorted(range(len(rows)), key=lambda number: len(rows[number])):
        if some and (len(some) + 1) * len(rows[number]) > TOKENS:
            yield some
            some = []
        some.append(number)
    if some:
        yield some


class FrozenFeatures(nn.Module):
    """The frozen encoders of a `FeatureConfig`. Their features are concatenated."""

    def __init__(self, config: FeatureConfig) -> None:
        super().__init__()
        self.config = config
        self.sources = nn.ModuleList(FrozenEncoder(one) for one in config.features)
        self.width = sum(widths[0 if self._mixes else self._layer(number)] for number, widths in self._widths())

    @property
    def _mixes(self) -> bool:
        return self.config.feature_layers == "mix"

    def frozen_encoders(self) -> list[FrozenEncoder]:
        """In the order of the settings."""
        return [one for one in self.sources if isinstance(one, FrozenEncoder)]

    def _widths(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The number of layers and the widths of all layers of each encoder."""
        for source, one in zip(self.config.features, self.frozen_encoders(), strict=True):
            widths = one.encoder.layer_widths
            if self._mixes and len(set(widths)) > 1:
                listed = ", ".join(map(str, widths))
                found = f"feature_layers=mix: the layers of {source.model} have different widths ({listed})"
                raise ConfigError(f"{found}: use feature_layers=top, or the number of a layer")
            if isinstance(self.config.feature_layers, int) and not 0 <= self.config.feature_layers < len(widths):
                found = f"feature_layers={self.config.feature_layers}: {source.model} has the layers"
                raise ConfigError(f"{found} 0 (embeddings) to {len(widths) - 1}")
            yield one.encoder.layers, widths

    def _layer(self, layers: int) -> int:
        chosen = self.config.feature_layers
        return chosen if isinstance(chosen, int) else layers

    def new_mixes(self) -> FeatureMixes:
        """A new reduction of the layers to one vector per token; every layer that reads the features has its own."""
        return FeatureMixes(self)

    def forward(self, batch: Batch) -> list[list[Tensor]]:
        """The layers [T, D] of each encoder at the words of a batch, zeros at special tokens and padding."""
        if not self.sources:
            return []
        if batch.characters is None:
            raise BertsmithError("frozen features need the spelling of words: the tokenizer does not give it")
        texts, positions = words_of(batch)
        at = torch.from_numpy(positions).to(batch.input_ids.device)
        return [one(texts, at, batch.input_ids.numel()) for one in self.frozen_encoders()]


class FeatureMixes(nn.Module):
    """One vector per token from the layers of `FrozenFeatures`: concatenated over its encoders."""

    def __init__(self, features: FrozenFeatures) -> None:
        super().__init__()
        self.config = features.config
        counts = [one.encoder.layers + 1 for one in features.frozen_encoders()] if features._mixes else []
        how: dict[str, Any] = {"layer_norm": self.config.mix_layer_norm, "l2": self.config.mix_l2}
        self.mixes = nn.ModuleList(ScalarMix(range(count), **how) for count in counts)
        self.dropout = nn.Dropout(self.config.feature_dropout)

    def forward(self, layers: Iterable[Sequence[Tensor]]) -> Tensor:
        """[T, width of the features]."""
        if self.config.feature_layers == "mix":
            vectors = [mix(some) for mix, some in zip(self.mixes, layers, strict=True)]
        else:
            number = -1 if self.config.feature_layers == "top" else self.config.feature_layers
            vectors = [some[number] for some in layers]
        dropped_TD: Tensor = self.dropout(torch.cat(vectors, -1))
        return dropped_TD


def encoders_by_name(features: FrozenFeatures) -> Mapping[str, FrozenEncoder]:
    """The frozen encoders by the names of the folders of their tokenizers; see `Encoder.frozen_encoders`."""
    return {f"features-{number}": one for number, one in enumerate(features.frozen_encoders())}
