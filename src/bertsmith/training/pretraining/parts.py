"""What a pre-training run is made of: rows, model, trainer, held-out batches, baselines. All of it by recipe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from bertsmith.data.collate import from_packed
from bertsmith.data.packing.packing import Packing
from bertsmith.data.shards import Shards
from bertsmith.errors import ConfigError, DataError
from bertsmith.model_io.companions import companions
from bertsmith.model_io.folder_tokenizer import vocabulary_of
from bertsmith.model_io.huggingface.family import POOLER
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_model
from bertsmith.tokenizers.tokenizer import Tokenizer, load
from bertsmith.training.recipe import Recipe
from bertsmith.training.world import World
from bertsmith.types import Batch

TABLE_MULTIPLE = 64  # rows of the token table, so that matrices have sizes that GPUs like
COUNTED, SCORED = 20_000_000, 2_000_000  # tokens that the unigram baseline looks at, of train and of held-out


@dataclass(frozen=True)
class PretrainData:
    """A shard set and the tokenizer that wrote it."""

    folder: Path
    shards: Shards
    tokenizer: Tokenizer

    @classmethod
    def open(cls, folder: str | Path) -> PretrainData:
        folder = Path(folder)
        shards = Shards.open(folder)
        tokenizer = load(folder / "tokenizer")
        if tokenizer.fingerprint != shards.fingerprint:
            raise DataError(
                f"{folder / 'tokenizer'} is not the tokenizer that wrote {folder}: run bertsmith verify {folder}"
            )
        return cls(folder, shards, tokenizer)

    @property
    def fingerprints(self) -> dict[str, str]:
        """What makes these data these and no others, wherever they lie."""
        return {"data": self.shards.digest, "tokenizer": self.tokenizer.fingerprint}

    def with_vocabulary(self, recipe: Recipe) -> Recipe:
        """The recipe with a token table for this vocabulary, whose padding is the tokenizer's."""
        size = -(-self.tokenizer.vocab_size // TABLE_MULTIPLE) * TABLE_MULTIPLE
        table = {"vocab_size": size, "padding_id": self.tokenizer.padding_id}
        return replace(recipe, encoder=replace(recipe.encoder, **table))

    def packing(self, recipe: Recipe, shards: Shards | None = None) -> Packing:
        """The rows that the recipe asks for, of the training text or of the shards given."""
        found: Packing = recipe.packing.build(
            shards or self.shards,
            frame=self.tokenizer.frame_parts,
            padding_id=self.tokenizer.padding_id,
            seed=recipe.seed,
            max_length=recipe.max_length,
        )
        return found

    def held_out(self, recipe: Recipe, world: World) -> list[Batch]:
        """This rank's share of the first held-out rows, in batches of a micro-batch's size; none where none are."""
        shards = Shards.open(self.folder, "held-out")
        if not shards.tokens or (shards.documents < 2 and "next_sentence" in recipe.objectives):
            return []
        packing = self.packing(recipe, shards)
        rows = min(recipe.eval_rows, packing.rows_per_epoch)
        share = min(recipe.micro_batch_size or 32, max(rows // world.size, 1))  # so that every rank has some
        batches = [from_packed(packing.rows(first, min(share, rows - first))) for first in range(0, rows, share)]
        if rows < world.size:  # not enough to share: all ranks score all of them, which leaves the means as they are
            return batches
        return batches[world.rank :: world.size]

    def unigram_loss(self) -> float | None:
        """What guessing every held-out token by its frequency alone costs, in nats; None where nothing is held out."""
        held_out = Shards.open(self.folder, "held-out")
        if not held_out.tokens:
            return None
        size = self.tokenizer.vocab_size
        seen = np.bincount(self.shards.read(0, min(self.shards.tokens, COUNTED)), minlength=size) + 1.0
        asked = np.bincount(held_out.read(0, min(held_out.tokens, SCORED)), minlength=size)
        return float(-(asked * np.log(seen / seen.sum())).sum() / asked.sum())


def build_model(recipe: Recipe, tokenizer: Tokenizer) -> Model:
    """A model with new weights, or with those of the folder that the recipe starts from."""
    torch.manual_seed(recipe.seed)
    return Model.build(
        recipe.encoder, recipe.objectives.values(), vocabulary=vocabulary_of(tokenizer), seed=recipe.seed
    )


def check_model(recipe: Recipe) -> None:
    """A ConfigError where encoder and objectives do not go together; no weights are made."""
    with torch.device("meta"):
        Model.build(recipe.encoder, recipe.objectives.values())


def load_start(recipe: Recipe, model: Model, tokenizer: Tokenizer) -> list[str]:
    """Puts the weights that a recipe starts from into its model, if it says any; what a user should hear about it."""
    if recipe.start:
        return load_weights(model, recipe.start, tokenizer)
    if recipe.after:
        return [f"{recipe.name} is a second stage, but begins anew: --start it from what {recipe.after} has made"]
    return []


def load_weights(model: Model, folder: str | Path, tokenizer: Tokenizer) -> list[str]:
    """Puts the weights of a model folder into a model; returns what a user should hear about it.

    The folder's encoder and its tokens must be the model's; heads and a pooler that it lacks stay new. A generator that
    lies beside the folder, as a run leaves it, is taken too.
    """
    other, theirs, _ = open_model(folder)
    if theirs.vocabulary() != tokenizer.vocabulary():
        raise ConfigError(f"{folder} has another vocabulary than the shards: prepare them with its tokenizer")
    mine, found = model.state_dict(), other.state_dict()
    notes = []
    for name, value in mine.items():
        if name not in found:
            if not name.startswith(("objectives.", f"{POOLER}.")):
                raise ConfigError(f"{folder} has no {name}: the recipe's encoder is another one")
            continue
        source, rows = found[name], min(len(value), len(found[name])) if value.dim() else 0
        if source.shape[1:] != value.shape[1:] or (source.shape != value.shape and rows < tokenizer.vocab_size):
            shapes = f"{list(source.shape)} there and {list(value.shape)} in the recipe"
            raise ConfigError(f"{folder}: {name} is {shapes}: the run must go on with the same encoder")
        value[:rows].copy_(source[:rows])  # the table may have been filled up to another size
    heads = {f"the head {name}" for name in set(model.objectives) & set(other.objectives)}
    new = sorted({_part(name) for name in mine.keys() - found.keys()} - heads)
    left = sorted({_part(name) for name in found.keys() - mine.keys()} - heads)
    notes += [f"began with the weights of {folder}"]
    notes += [f"{name} is new: it knows nothing yet" for name in new]
    notes += [f"{name} of {folder} is not asked for" for name in left]
    for kind, part in companions(model).items():
        beside = Path(folder).parent / kind / Path(folder).name
        there = beside.is_dir()
        notes += load_weights(part, beside, tokenizer) if there else [f"the {kind} is new: it knows nothing yet"]
    return notes


def _part(name: str) -> str:
    """The part of a model that a weight belongs to, in words."""
    return "the pooler" if name.startswith(f"{POOLER}.") else f"the head {name.split('.')[1]}"
