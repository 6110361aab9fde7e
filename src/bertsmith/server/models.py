"""The models behind the server: their names, what each can do, and which one a request is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.errors import BertsmithError
from bertsmith.inference.engine import Engine
from bertsmith.inference.predictor import Predictor
from bertsmith.objectives.objective import Pipeline, objectives_with
from bertsmith.server.errors import RequestError

PIPELINES: dict[str, tuple[Pipeline, ...]] = {  # that a route needs; none: every model can
    "embed": (),
    "embed_all": (),
    "similarity": (),
    "rerank": (),
    "tokenize": (),
    "attention": (),
    "fill-mask": ("fill-mask",),
    "next-sentence": ("next-sentence",),
    "predict": ("text-classification", "text-regression"),
    "ner": ("token-classification",),
    "qa": ("question-answering",),
    "choose": ("multiple-choice",),
}


@dataclass(frozen=True)
class ServedModel:
    """One model: `predictor` computes through `engine`."""

    name: str
    predictor: Predictor
    engine: Engine

    @property
    def heads(self) -> list[str]:
        return list(self.predictor.model.objectives)

    def can(self, route: str) -> bool:
        """Whether the model has a head that the route needs."""
        pipelines = PIPELINES[route]
        return not pipelines or self.predictor.model.head_for(*pipelines) is not None

    def shown(self) -> dict[str, Any]:
        """What a caller may know of it."""
        model, tokenizer, facts = self.predictor.model, self.predictor.tokenizer, self.predictor.facts
        encoder: Any = model.encoder
        return {
            "name": self.name,
            "architecture": facts.architectures[0] if facts and facts.architectures else type(encoder).__name__,
            "heads": self.heads,
            "can": [route for route in PIPELINES if self.can(route)],
            "layers": encoder.layers,
            "width": encoder.width,
            "heads_per_layer": getattr(encoder.config, "heads", None),
            "positions": encoder.max_positions,
            "vocab_size": tokenizer.vocab_size,
            "parameters": sum(value.numel() for value in model.parameters()),
            "labels": list(self.labels),
            "mask_token": tokenizer.specials.roles().get("mask"),
            "device": self.predictor.device,
        }

    @property
    def labels(self) -> Sequence[str]:
        """The names of the classes of a head that has some."""
        configs: list[Any] = [getattr(head, "config", None) for head in self.predictor.model.objectives.values()]
        return next((tuple(config.labels) for config in configs if getattr(config, "labels", ())), ())


class ModelRegistry:
    """All models of a server, in the order in which they were named."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        assert models
        self.models = {one.name: one for one in models}
        assert len(self.models) == len(models), "names are made unique before"

    def __iter__(self) -> Any:
        return iter(self.models.values())

    def find(self, name: str | None, route: str) -> ServedModel:
        """The model of that name, or the first that can; a `Problem` that says what there is where none can."""
        if name is not None and name not in self.models:
            raise RequestError(404, "not_found", f"there is no model of that name here: {', '.join(self.models)}")
        asked = list(self.models.values()) if name is None else [self.models[name]]
        for one in asked:
            if one.can(route):
                return one
        needs = " or ".join(objectives_with(*PIPELINES[route]))
        has = "; ".join(f"{one.name} has {', '.join(one.heads) or 'none'}" for one in asked)
        raise RequestError(422, "validation", f"/{route} needs a model with a {needs} head: {has}")


def name_models(words: Sequence[str]) -> list[tuple[str, Path]]:
    """Names for models given as FOLDER or NAME=FOLDER; two of one name get numbers, unless a name was chosen twice."""
    found: list[tuple[str, Path]] = []
    for word in words:
        name, sign, folder = word.partition("=")
        chosen = bool(sign) and not Path(word).exists()
        path = Path(folder if chosen else word)
        name = _usable(name) if chosen else _usable(_folder_name(path))
        taken = {other for other, _ in found}
        if chosen and name in taken:
            raise BertsmithError(f"two models are called {name}: choose another name for {path}")
        number = 2
        base = name
        while name in taken:
            name, number = f"{base}-{number}", number + 1
        found.append((name, path))
    return found


def _folder_name(path: Path) -> str:
    """A run's best model is called by its run."""
    whole = path.resolve()
    return whole.parent.name if whole.name in ("best", "last") else whole.name


def _usable(name: str) -> str:
    """A name as it stands in paths."""
    kept = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name).strip("-.")
    return kept or "model"
