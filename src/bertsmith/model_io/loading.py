"""Loads a model from weights and a config.json: which heads there are, all shapes checked, then tensor by tensor.

Nothing of a size that only the config claims is allocated: the model is built on the meta device first.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith import config as registry
from bertsmith.config import did_you_mean
from bertsmith.encoders.encoder import Encoder, EncoderConfig
from bertsmith.encoders.frozen_features import is_frozen, kinds_over_words
from bertsmith.errors import BertsmithError, ConfigError, DataError, FolderWarning
from bertsmith.model_io.folder_tokenizer import check_fits, vocabulary_of
from bertsmith.model_io.huggingface.format import TransformersFormat, architectures_of, format_of_config
from bertsmith.model_io.model import Model, build_context
from bertsmith.model_io.native import MODEL_TYPE, NATIVE, UNKNOWN_ROWS, NativeFormat
from bertsmith.model_io.openai_checkpoint import OpenAICheckpoint
from bertsmith.model_io.safetensors_files import WeightFiles
from bertsmith.model_io.tensorflow_checkpoint import TensorFlowCheckpoint
from bertsmith.model_io.untrusted_files import ConfigReader, memory_size, shown
from bertsmith.nn.meta_device import on_meta_device
from bertsmith.objectives.objective import FOLDER, BuildContext, Objective, ObjectiveConfig, kind_of, name_of
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Vocabulary

MAX_LISTED = 4  # names in an error
FREE = ("bptt", "unknown")  # settings that do not change the weights, beside dropout
ROUNDING = {"F16": 1e-3, "BF16": 8e-3}  # of constants in [-1, 1]; float32 angles of 1,500 positions differ by 1e-4
HEADS, POOLER = "objectives.", "encoder.pooler."  # prefixes of our weight names
TABLE = "encoder.embeddings.tokens.weight"
Weights = WeightFiles | TensorFlowCheckpoint | OpenAICheckpoint
FolderFormat = NativeFormat | TransformersFormat


@dataclass
class Loader:
    """Loads one model from opened weights; `notes` collects what users should know about it."""

    weights: Weights
    reader: ConfigReader  # of config.json
    notes: list[str] = field(default_factory=list)
    format: FolderFormat = field(init=False)
    names: dict[str, str] = field(init=False)  # the format's names -> those in the files
    architectures: tuple[str, ...] = field(init=False)
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self.architectures, self.folder = architectures_of(self.reader), self.reader.path.parent
        native = self.reader.get("model_type") == MODEL_TYPE
        self.format = NATIVE if native else format_of_config(self.reader)
        self.names = self.format.current_names(self.weights.entries, self.folder)
        size, memory = sum(entry.end - entry.begin for entry in self.weights.entries.values()), memory_size()
        if size > memory:
            raise DataError(f"{self.folder}: {size:,} bytes of weights do not fit into {memory:,} bytes of memory")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: self.weights.entries[stored].shape for name, stored in self.names.items()}

    def vocab_size(self) -> int:
        """Rows of the token table."""
        return self.format.vocab_size(self.reader, self.shapes())

    def build(
        self,
        tokenizer: Tokenizer,
        *,
        objectives: Iterable[str | ObjectiveConfig] | None = None,
        new_heads: Iterable[str | ObjectiveConfig] | Mapping[str, ObjectiveConfig] = (),
        keep_pooler: bool = True,
        dropout: float | None = None,
        encoder: Mapping[str, Any] | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> Model:
        """The model with these objectives, or else with all of the folder, for this tokenizer's ids.

        `keep_pooler`: a pooler that no objective reads stays in the encoder. `dropout`: everywhere in the encoder,
        instead of the folder's, as are the other settings in `encoder`.
        """
        config = self.format.read_encoder(self.reader, self.shapes())
        config = with_settings(config, dropout=dropout, changes=encoder or {})
        self._check_constants(config)
        complete = objectives is None
        if objectives is None:
            objectives, chosen = self.format.heads(self.reader, self.architectures, self.shapes())
            if chosen:
                self.notes.append(chosen)
                warnings.warn(chosen, FolderWarning, stacklevel=2)
        else:
            objectives = [*objectives]
            for name in (name for name in objectives if isinstance(name, str)):
                registry.find_kind(FOLDER, kind_of(name))
        kept = dict(self._named(head, new=False) for head in objectives)
        if isinstance(new_heads, Mapping):
            new = dict(new_heads)
        else:
            wanted = [kept.get(head, head) if isinstance(head, str) else head for head in new_heads]
            new = dict(self._named(head, new=True) for head in wanted)
        self._drop_copies(kept | new)
        vocabulary = self._vocabulary(tokenizer)
        if vocabulary.size > self.vocab_size():
            config = replace(config, vocab_size=vocabulary.size)
        self.notes += tokenizer.notes
        for note in tokenizer.notes:
            warnings.warn(f"{self.folder}: {note}", FolderWarning, stacklevel=2)
        context = build_context(self._without_memory(config), vocabulary=vocabulary, seed=seed)
        made = self._heads(kept | new, context, new=new)
        readers = {head.name for head in made if head.reads_pooled}
        pooler = set(self.format.file_names(f"{POOLER}weight", heads=list(kept | new))) <= set(self.names)
        config = self.format.with_pooler(config, readers=readers, stored=pooler and keep_pooler)
        prefixes = [f"{HEADS}{name}." for name in new]
        prefixes += [POOLER] if readers and not pooler and readers <= set(new) else []
        model = Model(self._without_memory(config), made)
        self._load(model, new=tuple(prefixes), strict=complete and self._is_closed(), dtype=dtype)
        if any(value.is_meta for value in model.buffers()):  # buffers that are not stored; all sizes are checked by now
            _fill_buffers(model, Model(config.build(), self._heads(kept | new, context, new=kept | new)))
        return model.to(dtype).eval()

    def _check_constants(self, config: Any) -> None:
        """A DataError where constants that transformers reads from the folder differ from those computed here."""
        for name, expected in self.format.stored_constants(config).items():
            stored = name if name in self.weights.entries else name.removeprefix(self.format.prefix)
            if (entry := self.weights.entries.get(stored)) is None:
                continue
            found = torch.empty(entry.shape)
            if entry.shape == expected.shape:
                self.weights.fill(stored, found)
            if entry.shape != expected.shape or (found - expected).abs().max() > ROUNDING.get(entry.kind, 2e-4):
                shape = " x ".join(map(str, expected.shape))
                where = f"{self.weights.path(stored)}: {stored}"
                raise DataError(f"{where} is not the {shape} sines and cosines of rotary position embeddings")

    def _named(self, objective: str | ObjectiveConfig, *, new: bool) -> tuple[str, ObjectiveConfig]:
        """An objective by name, with the default settings where it is `new` and else the folder's, or as it is."""
        if not isinstance(objective, str):
            return name_of(objective), objective
        if new:
            return objective, registry.find_kind(FOLDER, objective).Config()
        return objective, self.format.read_head(objective, self.reader, self.shapes())

    def _heads(
        self, objectives: Mapping[str, ObjectiveConfig], context: BuildContext, *, new: Collection[str]
    ) -> list[Objective]:
        """The objectives; new ones with initialised weights, the others on the meta device."""
        heads = []
        for name, settings in objectives.items():
            with nullcontext() if name in new else on_meta_device():
                heads.append(self._checked(settings.build, context))
            heads[-1].name = name
        return heads

    def _without_memory(self, config: EncoderConfig) -> Encoder:
        with on_meta_device():
            encoder: Encoder = self._checked(config.build)
        return encoder

    def _checked(self, build: Any, *args: Any) -> Any:
        """Builds a module whose settings may be wrong."""
        try:
            return build(*args)
        except BertsmithError:
            raise
        except (RuntimeError, ValueError, TypeError, OverflowError, MemoryError) as error:
            raise DataError(f"{self.reader.path}: these settings build no model: {shown(str(error), 200)}") from error

    def _vocabulary(self, tokenizer: Tokenizer) -> Vocabulary:
        """The tokenizer's vocabulary, which must fit the token table."""
        vocabulary, rows = vocabulary_of(tokenizer), self.vocab_size()
        missing = range(rows, vocabulary.size)
        if missing and self.format.adds_special_tokens and {*missing} <= {*vocabulary.special_ids}:
            tokens = ", ".join(tokenizer.id_to_token(number) for number in missing)
            self.notes.append(f"newly initialised: the embeddings of {tokens}, which the token table lacks")
            return vocabulary
        check_fits(vocabulary.size, rows, self.folder)
        if vocabulary.size < rows < UNKNOWN_ROWS:
            self.notes.append(f"the token table has {rows - vocabulary.size:,} rows more than the tokenizer has tokens")
        return vocabulary

    def _drop_copies(self, objectives: Collection[str]) -> None:
        """Weights stored under two names are read once; two that should be equal and differ are a DataError."""
        for copy, original in self.format.copies:
            if copy not in self.names:
                continue
            stored = self.names.pop(copy)
            known = self.names.setdefault(original, stored)
            read = copy.startswith(self.format.head_prefixes(objectives))
            if read and stored != known and not self.weights.equal(stored, known):
                path = self.weights.path(stored)
                raise DataError(f"{path}: {copy} and {original} differ; bertsmith reads models that tie them")

    def _load(self, model: Model, *, new: tuple[str, ...], strict: bool, dtype: torch.dtype) -> None:
        wanted = {ours: value for ours, value in model.state_dict().items() if not ours.startswith(new)}
        heads, rows = list(model.objectives), self.vocab_size()
        new_rows = len(wanted[TABLE]) - rows if TABLE in wanted else 0
        if new_rows > 0:
            wanted[TABLE] = wanted[TABLE][:rows]
        stored = {ours: self.format.file_names(ours, heads=heads) for ours in wanted}
        used = [name for names in stored.values() for name in names]
        missing = sorted(set(used) - set(self.names)) or [ours for ours, names in stored.items() if not names]
        if missing:
            owners = [head for head in heads if missing[-1].startswith((*self.format.head_prefixes([head]), HEADS))]
            hint = (
                f"; the folder has no head {owners[0]}: --head NAME reads another, --ignore-heads none"
                if owners
                else ""
            )
            raise DataError(f"{self.folder}: weights are missing: {_listed(missing)}{hint}")
        self._check_unused(set(self.names) - set(used), new=new, strict=strict)
        for ours, names in stored.items():
            self._check_shapes(wanted[ours], names)
        # only now: nothing is allocated before everything has been checked
        config = model.encoder.config
        state = {ours: self._read(value.shape, stored[ours], dtype, config) for ours, value in wanted.items()}
        if new_rows > 0:
            rows_VE = torch.empty(new_rows, wanted[TABLE].shape[1])
            rows_VE.normal_(
                std=model.encoder.layer_config.initializer_range, generator=torch.Generator().manual_seed(0)
            )
            state[TABLE] = torch.cat((state[TABLE], rows_VE.to(dtype)))
        model.load_state_dict(state, assign=True, strict=False)
        if POOLER in new:  # the folder does not have one
            pooler = model.encoder.get_submodule("pooler").to_empty(device="cpu")
            model.encoder.layer_config.init_weights(pooler)
        kinds = sorted({self.weights.entries[self.names[name]].kind for name in used})
        self.notes += [f"weights are stored as {', '.join(kinds)}"] if kinds != ["F32"] else []

    def _check_unused(self, unused: Collection[str], *, new: tuple[str, ...], strict: bool) -> None:
        """Weights of other heads may stay unused, those of the encoder may not; `strict`: nor any unknown ones."""
        heads = [prefix.removeprefix(HEADS).removesuffix(".") for prefix in new if prefix.startswith(HEADS)]
        encoder, pooler = self.format.prefix, self.format.pooler_prefix
        needed = [name for name in unused if name.startswith(encoder) and not name.startswith(pooler)]
        allowed = self.format.head_prefixes(heads if self.format is NATIVE else None)
        needed += [name for name in unused if strict and not name.startswith(allowed)]
        if wrong := sorted(set(needed)):
            raise DataError(f"{self.folder}: unexpected weights: {_listed(wrong)}")
        parts = [*(f"the head {head}" for head in heads), *(["the pooler"] if POOLER in new else [])]
        notes = [f"newly initialised: {', '.join(parts)}"] if parts else []
        notes += [f"unused weights: {_listed(sorted(unused))}"] if unused else []
        self.notes += ["; ".join(notes)] if notes else []

    def _is_closed(self) -> bool:
        """Whether unknown weights may be the encoder's: in a native folder, or without prefix in a class not known."""
        (table,) = self.format.file_names(TABLE)
        return self.format is NATIVE or (
            self.names.get(table) != table and not set(self.architectures) & set(self.format.architectures)
        )

    def _check_shapes(self, target: Tensor, names: tuple[str, ...]) -> None:
        part = (target.shape[0] // len(names), *target.shape[1:]) if target.ndim else ()
        for name in names:
            stored, shape = self.weights.entries[self.names[name]].shape, self.format.file_shape(name, part)
            if stored != shape:
                path = self.weights.path(self.names[name])
                raise DataError(f"{path}: {name} has the shape {list(stored)}, the config requires {list(shape)}")

    def _read(self, shape: torch.Size, names: tuple[str, ...], dtype: torch.dtype, config: Any) -> Tensor:
        """One weight of ours, each stacked part read into its slice."""
        target = torch.empty(shape, dtype=dtype)
        for part, name in zip(target.chunk(len(names)) if target.ndim else (target,), names, strict=True):
            stored = part.view(self.format.file_shape(name, tuple(part.shape)))
            self.weights.fill(self.names[name], stored)
            part.copy_(self.format.from_file(name, stored, config))
        return target


def with_settings(config: Any, *, dropout: float | None, changes: Mapping[str, Any]) -> Any:
    """An encoder's settings with another dropout and other changes, none of which may affect its weights."""
    kind, known = type(config).__module__.rpartition(".")[2], {item.name for item in fields(config)}
    free = sorted(name for name in known if "dropout" in name or name in FREE)
    if dropout is not None:
        names = known & {"dropout", "attention_dropout"}
        if not names:
            options = ", ".join(f"encoder.{name}" for name in free) or "none"
            raise ConfigError(f"dropout={dropout:g}: {kind} has no single dropout; its settings are {options}")
        config = replace(config, **dict.fromkeys(names, dropout))
    for name in changes:
        if name not in known and (kinds := kinds_over_words(name)):
            advice = f"it is one of {' and '.join(kinds)}, over word vectors: add encoder.kind={kinds[0]}"
            raise ConfigError(f'encoder.{name}: {kind} has no setting "{name}"; {advice}')
        if name not in free:
            others = f", only {', '.join(free)}{did_you_mean(name, free)}" if free else f", nor any setting of {kind}"
            raise ConfigError(f"encoder.{name} cannot be changed in fine-tuning{others}")
    return registry.update(config, changes) if changes else config


def _fill_buffers(model: Model, built: Model) -> None:
    """Gives the values of a newly built model to buffers on the meta device."""
    values = dict(built.named_buffers())
    for name in [name for name, value in model.named_buffers() if value.is_meta]:
        owner, _, key = name.rpartition(".")
        model.get_submodule(owner).register_buffer(key, values[name], persistent=False)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(name[:100] if name.isprintable() else shown(name) for name in names[:MAX_LISTED]) + more


def parameter_count(module: nn.Module) -> int:
    """The number of parameters, tied ones once, and of the weights of frozen parts, which are buffers."""
    frozen = (buffer for part in module.modules() if is_frozen(part) for buffer in part.buffers(recurse=False))
    return sum(value.numel() for value in (*module.parameters(), *frozen))
