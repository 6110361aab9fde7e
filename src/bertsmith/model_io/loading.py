"""A model out of weights by transformers' names: which heads there are, every shape checked, then tensor by tensor.

Nothing of a size that only a config claims is ever allocated: the encoder is built without memory first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from bertsmith import config as registry
from bertsmith.encoders.encoder import Encoder
from bertsmith.encoders.transformer_encoder import TransformerConfig
from bertsmith.errors import ConfigError, DataError
from bertsmith.model_io.folder_tokenizer import check_fits, vocabulary_of
from bertsmith.model_io.foreign_files import memory_size, shown
from bertsmith.model_io.head_settings import heads_of, read_head
from bertsmith.model_io.hf_config import OWN, check_family
from bertsmith.model_io.huggingface.family import OURS, OWN_PREFIX, POOLER, Family, Shapes
from bertsmith.model_io.model import Model
from bertsmith.model_io.order import in_halves
from bertsmith.model_io.safetensors_file import Entry
from bertsmith.model_io.said import Said
from bertsmith.nn.meta_device import on_meta_device
from bertsmith.objectives.objective import FOLDER, BuildContext, Objective, ObjectiveConfig, name_of
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Vocabulary

SHOWN = 4  # names in an error
OF_WORDS = ("masked_lm", "causal_lm")  # heads with tables of the tokenizer's in them, as wide as the checked encoder


class Weights(Protocol):
    """Tensors by name, checked but not yet read."""

    @property
    def entries(self) -> Mapping[str, Entry]:
        """What each is and where it lies."""

    def path(self, name: str) -> Path:
        """The file in which a tensor lies."""

    def fill(self, name: str, target: torch.Tensor) -> None:
        """Reads a tensor into one of its shape."""

    def equal(self, first: str, second: str) -> bool:
        """Whether two tensors are the same."""


@dataclass
class Loading:
    """One model on its way from weights: what was asked, what is there, and what is worth saying about it."""

    weights: Weights
    settings: Mapping[str, Any]  # config.json
    path: Path  # of config.json
    family: Family = field(init=False)
    names: dict[str, str] = field(init=False)  # today's names -> those in the files
    architectures: tuple[str, ...] = field(init=False)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.family, self.architectures = check_family(self.settings, self.path)
        self.names = self.family.modern_names(self.weights.entries, self.path.parent)
        for name in self.family.buffers & set(self.names):
            del self.names[name]
        need = sum(entry.end - entry.begin for entry in self.weights.entries.values())
        if need > memory_size():
            where = self.path.parent
            raise DataError(f"{where}: {need:,} bytes of weights do not fit this machine's {memory_size():,} of memory")

    def build(
        self,
        tokenizer: Tokenizer,
        *,
        objectives: Iterable[str | ObjectiveConfig] | None = None,
        new_heads: Iterable[str | ObjectiveConfig] = (),
        spare_pooler: bool = True,
        dropout: float | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> Model:
        """The model with the heads that are asked for, or else with all that are there, for this tokenizer's ids.

        `spare_pooler`: a pooler that no head reads stays in the encoder. `dropout`: everywhere in it, instead of
        what the folder says.
        """
        config = self.family.read_encoder(self.said, self._shapes())
        if dropout is not None:
            config = replace(config, dropout=dropout, attention_dropout=dropout)
        kept = self._kept(self.heads() if objectives is None else objectives)
        new = self._settings(kept.get(head, head) if isinstance(head, str) else head for head in new_heads)
        heads = kept | new
        self._drop_copies(heads)
        vocabulary = self._vocabulary(tokenizer, config.vocab_size)
        made = self._made_heads(config, heads, new=new, vocabulary=vocabulary, seed=seed)
        readers = {head.name for head in made if head.reads_pooled}
        there = set(self._their_names(f"{POOLER}.weight", heads)) <= set(self.names)
        config = self.family.with_pooler(config, readers=readers, there=there and spare_pooler)
        anew = [f"objectives.{name}." for name in new]
        anew += [f"{POOLER}."] if readers and not there and readers <= set(new) else []
        model = Model(_shape_of(config), made)
        self._load(model, new=tuple(anew), complete=objectives is None, dtype=dtype)
        return model.to(dtype).eval()

    @property
    def said(self) -> Said:
        return Said(self.settings, self.path)

    def _their_names(self, ours: str, heads: Collection[str]) -> tuple[str, ...]:
        return self.family.their_names(ours, heads=heads, own=self.settings.get("model_type") == OWN)

    def _kept(self, objectives: Iterable[str | ObjectiveConfig]) -> dict[str, ObjectiveConfig]:
        """The heads that are taken from the weights: those only named with the settings that the folder has."""
        found: dict[str, ObjectiveConfig] = {}
        for objective in objectives:
            if isinstance(objective, str):
                self._expect_head(objective)
                objective = read_head(self.family, objective, self.said, shapes=self._shapes())
            found |= self._settings([objective])
        return found

    def _settings(self, objectives: Iterable[str | ObjectiveConfig]) -> dict[str, ObjectiveConfig]:
        """Objectives by name, those that are only named with their defaults."""
        found: dict[str, ObjectiveConfig] = {}
        for objective in objectives:
            made = registry.find_kind(FOLDER, objective).Config() if isinstance(objective, str) else objective
            self._expect_head(name_of(made))
            found[name_of(made)] = made
        return found

    def _expect_head(self, name: str) -> None:
        registry.find_kind(FOLDER, name)
        known = self.family.heads
        if name not in known:
            title = self.family.title
            raise ConfigError(f"{name} has no head in {title}'s model folders; those that have: {', '.join(known)}")

    def _made_heads(
        self,
        config: TransformerConfig,
        objectives: Mapping[str, ObjectiveConfig],
        *,
        new: Collection[str],
        vocabulary: Vocabulary,
        seed: int,
    ) -> list[Objective]:
        """The heads; those of a size that only a config claims without memory, new ones with their first numbers."""
        found, layers = [], _shape_of(config).layers
        for name, settings in objectives.items():
            with nullcontext() if name in new or name in OF_WORDS else on_meta_device():
                context = BuildContext(
                    width=config.width,
                    layers=layers,
                    vocab_size=config.vocab_size,
                    embedding_width=config.embedding_width,
                    vocabulary=vocabulary,
                    layer_config=self.family.head_layer_config(name, config),
                    seed=seed,
                )
                found.append(settings.build(context))
        return found

    def rows(self) -> int:
        """How many tokens the table has room for."""
        shape = self._shapes().get(self.family.table, ())
        if len(shape) != 2:
            raise DataError(f"{self.path.parent}: the weights lack {self.family.table}, or it is no table")
        return shape[0]

    def heads(self) -> list[str]:
        """The objectives whose heads are there, or that the architecture promises."""
        promised = heads_of(self.family, self.said, architectures=self.architectures)
        there = self.family.heads_there(self.names, causal=self.settings.get("is_decoder") is True)
        return [head for head in self.family.heads if head in promised | there]

    def _vocabulary(self, tokenizer: Tokenizer, rows: int) -> Vocabulary:
        """What the tokenizer has, all of which must be in the table."""
        vocabulary = vocabulary_of(tokenizer)
        check_fits(vocabulary.size, rows, self.path.parent)
        if vocabulary.size < rows:
            self.notes.append(f"the table has {rows - vocabulary.size:,} rows more than the tokenizer has tokens")
        return vocabulary

    def _shapes(self) -> Shapes:
        return {name: self.weights.entries[found].shape for name, found in self.names.items()}

    def _drop_copies(self, objectives: Collection[str]) -> None:
        """Weights stored under two names are taken once; two that should be one and differ are a DataError."""
        for copy, original in self.family.copies:
            if copy not in self.names:
                continue
            if original not in self.names:
                self.names[original] = self.names.pop(copy)
                continue
            if any(copy.startswith(self.family.heads[name]) for name in objectives) and not self.weights.equal(
                self.names[copy], self.names[original]
            ):
                where = self.weights.path(self.names[copy])
                raise DataError(f"{where}: {copy} and {original} differ; bertsmith reads models in which they are one")
            del self.names[copy]

    def _load(self, model: Model, *, new: tuple[str, ...], complete: bool, dtype: torch.dtype) -> None:
        wanted = {ours: value for ours, value in model.state_dict().items() if not ours.startswith(new)}
        parts = {ours: self._their_names(ours, list(model.objectives)) for ours in wanted}
        used = [name for names in parts.values() for name in names]
        missing = sorted(set(used) - set(self.names)) or [ours for ours, names in parts.items() if not names]
        if missing:
            head = missing[-1].startswith((*self.family.beginnings(self.family.heads), OWN_PREFIX, OURS))
            hint = "; heads that are to begin anew are asked for as new_heads" if head else ""
            raise DataError(f"{self.path.parent}: weights are missing: {_listed(missing)}{hint}")
        self._check_leftover(set(self.names) - set(used), new=new, complete=complete)
        for ours, names in parts.items():
            self._check_shapes(wanted[ours], names)
        # only now: nothing is allocated before everything has been checked
        config = model.encoder.config
        assert isinstance(config, TransformerConfig)
        state = {ours: self._read(value.shape, parts[ours], dtype, config.heads) for ours, value in wanted.items()}
        model.load_state_dict(state, assign=True, strict=False)
        _begin_anew(model, new)
        kinds = sorted({self.weights.entries[self.names[name]].kind for name in used})
        self.notes += [f"weights are stored as {', '.join(kinds)}"] if kinds != ["F32"] else []

    def _check_leftover(self, leftover: Collection[str], *, new: tuple[str, ...], complete: bool) -> None:
        """Whoever asks for certain heads leaves the others out; otherwise, and in the encoder, nothing may be left."""
        heads = [head for head in self.family.heads if f"objectives.{head}." in new]
        begun = (*self.family.beginnings(heads), *(f"{OWN_PREFIX}{head}." for head in heads))
        prefix, pooler = self.family.prefix, f"{self.family.pooler(())}."
        wrong = sorted(
            name
            for name in leftover
            if (name.startswith(prefix) and not name.startswith(pooler)) or (complete and not name.startswith(begun))
        )
        if wrong:
            unread = [name for name in self.architectures if name not in self.family.architectures]
            hint = f"; {shown(unread[0])} is not read as a whole, objectives=() opens its encoder" if unread else ""
            if not unread and wrong[0].startswith(self.family.heads["classify"]):
                hint = "; the config does not say of which head: ask for one, such as objectives=['classify']"
            raise DataError(f"{self.path.parent}: weights are left over: {_listed(wrong)}{hint}")
        parts = [*(f"the head {head}" for head in heads), *(["the pooler"] if f"{POOLER}." in new else [])]
        said = [f"new, knowing nothing yet: {', '.join(parts)}"] if parts else []
        said += [f"left out as not asked for: {_listed(sorted(leftover))}"] if leftover else []
        self.notes += ["; ".join(said)] if said else []

    def _check_shapes(self, target: torch.Tensor, names: tuple[str, ...]) -> None:
        shape = (target.shape[0] // len(names), *target.shape[1:])
        for name in names:
            found = self.weights.entries[self.names[name]].shape
            if found != shape:
                where = self.weights.path(self.names[name])
                raise DataError(f"{where}: {name} has the shape {list(found)}, the config means {list(shape)}")

    def _read(self, shape: torch.Size, names: tuple[str, ...], dtype: torch.dtype, heads: int) -> torch.Tensor:
        """One weight of ours, each part of it read straight to its place."""
        target = torch.empty(shape, dtype=dtype)
        for part, name in zip(target.chunk(len(names)), names, strict=True):
            self.weights.fill(self.names[name], part)
            if self.family.in_turn(name):
                part.copy_(in_halves(part, heads))
        return target


def _shape_of(config: TransformerConfig) -> Encoder:
    with on_meta_device():
        return config.build()


def _begin_anew(model: Model, new: tuple[str, ...]) -> None:
    """Gives memory and first numbers to parts of the encoder that had none in the folder."""
    if f"{POOLER}." in new:
        pooler = model.encoder.get_submodule("pooler")
        pooler.to_empty(device="cpu")
        model.encoder.layer_config.init_weights(pooler)
    assert not any(value.is_meta for value in [*model.parameters(), *model.buffers()])


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(name[:100] if name.isprintable() else shown(name) for name in names[:SHOWN]) + more


def parameters(part: nn.Module) -> int:
    """How many numbers are learned, tied ones once."""
    return sum(value.numel() for value in part.parameters())
