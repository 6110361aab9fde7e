"""sentence-transformers folders: how the embedding of a text is computed, read and written beside the model.

modules.json lists the modules: the encoder, pooling, optional linear layers, optional normalisation; each has a folder.
N texts, D width.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.encoders.encoder import Encoder
from bertsmith.errors import BertsmithError, DataError
from bertsmith.model_io.safetensors_files import WEIGHTS, WeightFiles, file_chunks
from bertsmith.model_io.untrusted_files import ConfigReader, UntrustedFile, exists, read_json, shown
from bertsmith.tokenizers.folder import json_bytes

MODULES, SETTINGS, TOKENIZER = "modules.json", "config.json", "tokenizer_config.json"
LIMITS, PROMPTS = "sentence_bert_config.json", "config_sentence_transformers.json"
OLD_LIMITS = tuple(f"sentence_{kind}_config.json" for kind in ("bert", "roberta", "camembert", "albert", "xlm-roberta"))
TRANSFORMER, POOLING, DENSE, NORMALIZE, DROPOUT = "Transformer", "Pooling", "Dense", "Normalize", "Dropout"
MAX_BYTES = 1 << 16
MODES = {"mean": "mean", "cls": "first", "max": "max", "mean_sqrt_len_tokens": "mean_sqrt_len"}  # theirs -> ours
OLD_KEYS = {
    "mean": "pooling_mode_mean_tokens",
    "first": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
}
TANH, IDENTITY = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"
FORWARD = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
# Settings of LIMITS and of Dense with the values that do not change embeddings; others are not supported.
NEUTRAL_LIMITS: dict[str, tuple[Any, ...]] = {
    "transformer_task": ("feature-extraction",),
    "modality_config": (FORWARD,),
    "module_output_name": ("token_embeddings",),
    "unpad_inputs": (True, False),
}
NEUTRAL_DENSE: dict[str, tuple[Any, ...]] = {
    "use_residual": (False,),
    "module_input_name": ("sentence_embedding",),
    "module_output_name": ("sentence_embedding",),
}


@dataclass(frozen=True, eq=False)
class DenseLayer:
    """A linear layer over embeddings, with or without tanh."""

    weight: Tensor  # [out, in] float32
    bias: Tensor | None  # [out]
    tanh: bool

    def __call__(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """[N, in] -> [N, out]."""
        outputs = nn.functional.linear(torch.from_numpy(vectors), self.weight, self.bias)
        return (outputs.tanh() if self.tanh else outputs).numpy()

    def files(self) -> dict[str, bytes]:
        """The files of the module."""
        out_features, in_features = self.weight.shape
        activation = TANH if self.tanh else IDENTITY
        values = {"in_features": in_features, "out_features": out_features, "bias": self.bias is not None}
        tensors = {"linear.weight": self.weight} | ({} if self.bias is None else {"linear.bias": self.bias})
        weights = b"".join(bytes(chunk) for chunk in file_chunks(tensors))
        return {SETTINGS: json_bytes(values | {"activation_function": activation}), WEIGHTS: weights}


@dataclass(frozen=True)
class SentenceSettings:
    """How the embedding of a text is computed."""

    pooling: str = "mean"  # mean, first, max, mean_sqrt_len or pooled
    normalize: bool = False
    max_length: int | None = None  # tokens, special tokens included; None: the encoder's maximum
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)  # texts that precede inputs, by name
    default_prompt: str | None = None
    include_prompt: bool = True  # whether the tokens of the prompt are pooled
    similarity: str | None = "cosine"  # kept for sentence-transformers
    dense: tuple[DenseLayer, ...] = ()  # between pooling and normalisation
    unread: str = ""  # why the settings of the folder are not supported

    def prompt_text(self, name: str | None) -> str:
        """The prompt of that name; None: the default prompt, if there is one; "": none."""
        name = self.default_prompt if name is None else name
        if not name:
            return ""
        if name not in self.prompts:
            known = ", ".join(map(shown, self.prompts))
            listed = f"choose {known}, or an empty name for none" if known else "this model folder has no prompts"
            raise BertsmithError(f"the prompt {shown(name)} does not exist: {listed}")
        if self.prompts[name] and not self.include_prompt:
            raise BertsmithError(
                f"the prompt {shown(name)} cannot be used: pooling without the tokens of the prompt "
                "(include_prompt=false in this model folder) is not supported; use an empty prompt name for none"
            )
        return self.prompts[name]


def tanh_pooler(encoder: Encoder) -> DenseLayer | None:
    """The encoder's pooler, if it is a linear layer with tanh."""
    pooler = getattr(encoder, "pooler", None)
    if isinstance(pooler, nn.Linear) and getattr(pooler, "activation", None) is torch.tanh:
        return DenseLayer(pooler.weight.detach().cpu().float(), pooler.bias.detach().cpu().float(), tanh=True)
    return None


def sentence_files(settings: SentenceSettings, encoder: Encoder) -> dict[str, bytes]:
    """The files of a sentence-transformers folder beside the encoder's, by relative path."""
    pooling, dense = settings.pooling, settings.dense
    if pooling == "pooled":
        pooler = tanh_pooler(encoder)
        assert pooler is not None, "callers check that the encoder has a tanh pooler"
        pooling, dense = "first", (pooler,)
    kinds = [POOLING, *([DENSE] * len(dense)), *([NORMALIZE] * settings.normalize)]
    paths = [f"{number}_{kind}" for number, kind in enumerate(kinds, start=1)]
    modules = [("", TRANSFORMER), *zip(paths, kinds, strict=True)]
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(modules)
    ]
    modes = {key: name == pooling for name, key in OLD_KEYS.items()}
    if not settings.include_prompt:
        modes["include_prompt"] = False
    limits = {"max_seq_length": settings.max_length or encoder.max_positions, "do_lower_case": settings.lowercase}
    prompts = {"prompts": dict(settings.prompts), "default_prompt_name": settings.default_prompt}
    found = {
        MODULES: json_bytes(listed),
        LIMITS: json_bytes(limits),
        PROMPTS: json_bytes(prompts | {"similarity_fn_name": settings.similarity}),
        f"{paths[0]}/{SETTINGS}": json_bytes({"word_embedding_dimension": encoder.width, **modes}),
    }
    for path, layer in zip(paths[1:], dense, strict=False):
        found |= {f"{path}/{name}": data for name, data in layer.files().items()}
    return found


def encoder_folder(folder: Path) -> Path:
    """The folder of the encoder: in old versions of sentence-transformers a subfolder, such as 0_Transformer."""
    if not exists(folder, MODULES):
        return folder
    try:
        path, kind = (*_steps(folder), ("", ""))[0]
        return _below(folder, path) if path and kind == TRANSFORMER else folder
    except DataError:
        return folder  # `read_sentence_settings` has the reason


def read_sentence_settings(folder: str | Path, encoder: Encoder) -> SentenceSettings:
    """The settings of a folder; the defaults where it has none."""
    folder = Path(folder)
    if not exists(folder, MODULES):
        return SentenceSettings()
    try:
        return _read(folder, encoder)
    except BertsmithError as error:
        return SentenceSettings(unread=str(error))


def _read(folder: Path, encoder: Encoder) -> SentenceSettings:
    steps = [(path, kind) for path, kind in _steps(folder) if kind != DROPOUT]
    kinds = [kind for _, kind in steps]
    ends = kinds[2 + kinds.count(DENSE) :]
    if (
        kinds[:2] != [TRANSFORMER, POOLING]
        or set(kinds[2 : 2 + kinds.count(DENSE)]) - {DENSE}
        or ends not in ([], [NORMALIZE])
    ):
        listed = ", ".join(map(shown, kinds[:9])) or "none"
        expected = "supported are Transformer, Pooling, Dense and Normalize, in this order"
        raise DataError(f"{folder / MODULES} has the modules {listed}; {expected}")
    pooling, include_prompt = _pooling(_below(folder, steps[1][0]))
    dense = tuple(_dense(_below(folder, path)) for path, kind in steps if kind == DENSE)
    if pooling == "first" and len(dense) == 1 and _equal(dense[0], tanh_pooler(encoder)):
        pooling, dense = "pooled", ()
    max_length, lowercase = _limits(_below(folder, steps[0][0]) if steps[0][0] else folder)
    return SentenceSettings(
        pooling,
        bool(ends),
        max_length=min(max_length or encoder.max_positions, encoder.max_positions),
        lowercase=lowercase,
        include_prompt=include_prompt,
        dense=dense,
        **_prompts(folder),
    )


def _steps(folder: Path) -> list[tuple[str, str]]:
    """Path and class name of each module, in order; the whole name of a class that is not sentence-transformers'."""
    with UntrustedFile(folder, MODULES, max_bytes=MAX_BYTES) as file:
        data = file.read(0, file.size)
    try:
        steps = [(str(step["path"]), str(step["type"])) for step in json.loads(data)]
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise DataError(
            f"{folder / MODULES} is not a list of modules with path and type: {shown(str(error), 120)}"
        ) from error
    ours = "sentence_transformers."
    return [(path, kind.rpartition(".")[2] if kind.startswith(ours) else kind) for path, kind in steps]


def _below(folder: Path, name: str) -> Path:
    """The folder of a module, which must be inside the model's."""
    where = folder / name
    if name in {"", ".", ".."} or "/" in name or "\\" in name or not name.isprintable():
        raise DataError(f"{folder / MODULES}: {shown(name)} is not the name of a folder")
    if where.is_dir() and where.resolve().parent != folder.resolve():
        raise DataError(f"{where} is a link to another folder")
    return where


def _pooling(where: Path) -> tuple[str, bool]:
    """The pooling, in the format of any version, and whether it includes the prompt."""
    reader = ConfigReader.open(where, SETTINGS)
    mode = reader.get("pooling_mode")
    if mode is None:
        on = [key for key, value in reader.settings.items() if key.startswith("pooling_mode_") and value]
        mode = next((name for name in MODES if on == [OLD_KEYS[MODES[name]]]), ", ".join(on) or "nothing")
    mode = mode[0] if isinstance(mode, list) and len(mode) == 1 else mode
    if not isinstance(mode, str) or mode not in MODES:
        raise DataError(f"{where / SETTINGS}: pooling {shown(mode)} is not supported: {', '.join(MODES)}")
    return MODES[mode], reader.flag("include_prompt", default=True)


def _dense(where: Path) -> DenseLayer:
    """A linear layer."""
    reader = ConfigReader.open(where, SETTINGS)
    _require_neutral(reader, {"in_features", "out_features", "bias", "activation_function"}, NEUTRAL_DENSE)
    activation = reader.text("activation_function", TANH)
    if activation not in (TANH, IDENTITY):
        raise DataError(f"{reader.path}: activation_function={shown(activation)} is not supported: Tanh or Identity")
    if not exists(where, WEIGHTS):
        raise DataError(f"{where} has no {WEIGHTS}: load and save the model with sentence-transformers 3 or later")
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (reader.count("out_features"), reader.count("in_features"))}
    if reader.flag("bias", default=True):
        shapes["linear.bias"] = shapes["linear.weight"][:1]
    with WeightFiles.of(where) as weights:
        if {name: entry.shape for name, entry in weights.entries.items()} != shapes:
            raise DataError(f"{where / WEIGHTS} does not have the weights that {SETTINGS} describes")
        tensors = {name: torch.empty(shape) for name, shape in shapes.items()}
        for name, tensor in tensors.items():
            weights.fill(name, tensor)
    return DenseLayer(tensors["linear.weight"], tensors.get("linear.bias"), activation == TANH)


def _equal(layer: DenseLayer, pooler: DenseLayer | None) -> bool:
    """Whether a module is the model's pooler."""
    if pooler is None or pooler.bias is None or layer.bias is None or not layer.tanh:
        return False
    return torch.equal(layer.weight, pooler.weight) and torch.equal(layer.bias, pooler.bias)


def _require_neutral(reader: ConfigReader, known: set[str], neutral: Mapping[str, tuple[Any, ...]]) -> None:
    """An error for a setting that may change embeddings and is not supported; empty values are the default."""
    for key, value in reader.settings.items():
        if key not in known and value not in (None, {}, [], "", *neutral.get(key, ())):
            raise DataError(f"{reader.path}: {key}={shown(value)} is not supported")


def _limits(folder: Path) -> tuple[int | None, bool]:
    """The maximum length (None: the encoder's) and whether texts are lower-cased."""
    name = next((name for name in OLD_LIMITS if exists(folder, name)), None)
    length, lowercase = None, False
    if name is not None:
        reader = ConfigReader.open(folder, name)
        _require_neutral(reader, {"max_seq_length", "do_lower_case"}, NEUTRAL_LIMITS)
        length = None if reader.get("max_seq_length") is None else reader.count("max_seq_length")
        lowercase = reader.flag("do_lower_case")
    if length is None and exists(folder, TOKENIZER):
        values = read_json(folder, TOKENIZER)
        value = values.get("model_max_length", values.get("max_len"))
        length = int(value) if isinstance(value, int | float) and value >= 1 else None
    return length, lowercase


def _prompts(folder: Path) -> dict[str, Any]:
    """The prompts, the default prompt and the similarity function."""
    if not exists(folder, PROMPTS):
        return {}
    reader = ConfigReader.open(folder, PROMPTS)
    reader.require("model_type", "SentenceTransformer")
    prompts = reader.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise DataError(f"{reader.path}: prompts={shown(prompts)} must map names to texts")
    default, similarity = reader.get("default_prompt_name"), reader.get("similarity_fn_name")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise DataError(f"{reader.path}: default_prompt_name={shown(default)} is not one of the prompts")
    return {
        "prompts": prompts,
        "default_prompt": default,
        "similarity": None if similarity is None else str(similarity),
    }
