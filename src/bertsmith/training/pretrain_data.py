"""Data of a pre-training run: shards and their tokenizer, batches, held-out batches, and the weights to start from."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.data.collate import from_packed
from bertsmith.data.packing.document_stream import DocumentIndex
from bertsmith.data.packing.packing import PackedBatch, Packing
from bertsmith.data.packing.spelled import SpelledPacking
from bertsmith.data.shards import Shards, SpelledShards
from bertsmith.data.shards.folder import TOKENIZER, damaged_tokenizer_files
from bertsmith.errors import ConfigError, DataError
from bertsmith.model_io.folder_tokenizer import spell_vocabulary, vocabulary_characters, vocabulary_of
from bertsmith.model_io.model import Model
from bertsmith.model_io.word_tables import load_vectors
from bertsmith.nn.meta_device import on_meta_device
from bertsmith.system.workers import FunctionWorkers, WorkerDied, default_workers
from bertsmith.tokenizers.tokenizer import Tokenizer, load
from bertsmith.training.distributed import World
from bertsmith.training.prefetch import Prefetcher
from bertsmith.training.recipe import Recipe
from bertsmith.training.start import load_weights
from bertsmith.types import Batch

VOCAB_MULTIPLE = 64  # rows of the token table, so that GPUs get matrices of suitable sizes
COUNTED, SCORED = 20_000_000, 2_000_000  # tokens of train and held-out that the unigram baseline reads
MAX_WORKERS = 4
MAX_PREFETCHED_TOKENS = 2**22  # about 40 bytes each
CORES_PER_WORKER = 4
MIN_WINDOWS = 8  # of each column of the held-out rows, where there are enough


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
        try:
            tokenizer = load(folder / TOKENIZER)
            found = "is not of the tokenizer that wrote these shards"
            if tokenizer.fingerprint == shards.fingerprint:
                return cls(folder, shards, tokenizer)
        except DataError as error:
            found = f"is damaged or missing ({error})"
        file = next(iter(damaged_tokenizer_files(folder)), folder / TOKENIZER)
        raise DataError(
            f"{file} {found}: copy the files of the tokenizer with fingerprint {shards.fingerprint} to "
            f"{folder / TOKENIZER}, or run `bertsmith prepare` again with --overwrite"
        )

    @property
    def fingerprints(self) -> dict[str, str]:
        """Of data and tokenizer, independent of where the files are."""
        return {"data": self.shards.digest, "tokenizer": self.tokenizer.fingerprint}

    def with_vocabulary(self, recipe: Recipe) -> Recipe:
        """The recipe with the vocabulary size and padding token of this tokenizer."""
        vocabulary: dict[str, Any] = {"vocab_size": _rows(self.tokenizer), "padding_id": self.tokenizer.padding_id}
        vocabulary |= {"unknown_ids": tuple(sorted(self.tokenizer.unknown_ids))}
        known = {item.name for item in fields(recipe.encoder)}
        if self.tokenizer.target is not None:
            vocabulary["target_vocab_size"] = _rows(self.tokenizer.target)
            if "target_vocab_size" not in known:
                kind = type(recipe.encoder).__module__.rpartition(".")[2]
                raise ConfigError(f"{self.folder} has a vocabulary of the target texts, which {kind} does not read")
        encoder = replace(recipe.encoder, **{name: value for name, value in vocabulary.items() if name in known})
        return replace(recipe, encoder=encoder)

    def packing(self, recipe: Recipe) -> Packing:
        """The rows of the recipe's packing, of the training shards."""
        return self._packing(recipe, self.shards, columns=recipe.batch_size)

    def _packing(self, recipe: Recipe, shards: Shards, *, columns: int) -> Packing:
        options: dict[str, Any] = {"frame": self.tokenizer.frame_ids, "padding_id": self.tokenizer.padding_id}
        if recipe.by_column:
            options |= {"columns": columns, "backward": getattr(recipe.encoder, "backward", False)}
        spelled = getattr(recipe.encoder, "reads_spelling", False)
        shards = self._spelled(shards) if spelled else shards
        packing: Packing = recipe.packing.build(shards, max_length=recipe.max_length, seed=recipe.seed, **options)
        if isinstance(shards, SpelledShards):
            table = vocabulary_characters(self.tokenizer, recipe.encoder.max_characters)
            packing = SpelledPacking(packing, shards, table)
        return packing

    def _spelled(self, shards: Shards) -> SpelledShards:
        """The same split with the spelling of words; a DataError where the shards do not keep it."""
        if not shards.spelling:
            raise DataError(
                f"{self.folder} does not keep the spelling of words, which this encoder reads: train a tokenizer of "
                "words without markers (`bertsmith tokenizer train --kind words`), and prepare the shards again with it"
            )
        return SpelledShards.open(self.folder, shards.split)

    @classmethod
    def rows_per_epoch(cls, folder: str | Path, recipe: Recipe) -> int:
        return cls.open(folder).packing(recipe).rows_per_epoch

    def held_out(self, recipe: Recipe, world: World) -> list[Batch]:
        """This rank's batches of the first held-out rows; empty where there are too few documents.

        Rows that continue each other are the same on all ranks, which leaves the means unchanged.
        """
        shards = Shards.open(self.folder, "held-out")
        if not shards.tokens or shards.documents < getattr(recipe.packing, "min_documents", 1):
            return []
        size = recipe.micro_batch_size or 32
        if recipe.by_column:
            if shards.tokens + shards.documents < (getattr(recipe.packing, "mean_length", 0) or recipe.max_length):
                return []
            size = min(size, recipe.eval_rows, max(shards.tokens // (MIN_WINDOWS * recipe.max_length), 1))
        packing = self._packing(recipe, shards, columns=size)
        rows = min(recipe.eval_rows, packing.rows_per_epoch)
        if recipe.by_column:
            return [from_packed(packing.rows(first, size)) for first in range(0, rows - size + 1, size)]
        size = min(size, max(rows // world.size, 1))  # so that every rank has some
        batches = [from_packed(packing.rows(first, min(size, rows - first))) for first in range(0, rows, size)]
        if recipe.compute.fsdp and len(batches) > world.size:  # a forward of one rank needs those of all others
            batches = batches[: len(batches) // world.size * world.size]
        # with fewer rows than ranks, all ranks evaluate all rows, which leaves the means unchanged
        return batches if rows < world.size else batches[world.rank :: world.size]

    def unigram_loss(self) -> float | None:
        """The held-out loss in nats of predicting every token by its frequency; None without held-out data."""
        held_out = Shards.open(self.folder, "held-out")
        if not held_out.tokens:
            return None
        size = (self.tokenizer.target or self.tokenizer).vocab_size
        counts = np.bincount(_predicted(self.shards, COUNTED), minlength=size) + 1.0
        scored = np.bincount(_predicted(held_out, SCORED), minlength=size)
        return float(-(scored * np.log(counts / counts.sum())).sum() / scored.sum())


def _rows(tokenizer: Tokenizer) -> int:
    """The rows of a token table."""
    return -(-tokenizer.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def _predicted(shards: Shards, limit: int) -> NDArray[np.unsignedinteger[Any]]:
    """The first tokens of a split, about `limit`; of parallel text those of the target texts."""
    if "parallel" not in shards.index["settings"]:
        return shards.read(0, min(shards.tokens, limit))
    sentences = DocumentIndex(shards).sentences.astype(np.int64)
    starts, lengths = sentences[1:-1:2], np.diff(sentences)[1::2]
    kept = np.cumsum(lengths) <= max(limit, int(lengths[0]))
    return shards.read(starts[kept], lengths[kept])


class PretrainLoader(Prefetcher):
    """`loader(step)`, counted from 0: this rank's micro-batches, a function of the recipe and the step.

    For a GPU they are made in worker processes where there are enough cores: a thread of this process would delay the
    thread that launches kernels, and small models need a batch every few milliseconds.
    """

    def __init__(self, recipe: Recipe, packing: Packing, world: World, *, source: object = "the shards") -> None:
        workers = _worker_count(world)
        tokens = recipe.batch_size * recipe.max_length // world.size
        super().__init__(self._make, source=source, steps=max(1, min(1 + workers, MAX_PREFETCHED_TOKENS // tokens)))
        self._workers = FunctionWorkers(packing.batch, workers) if workers else None
        self.recipe, self.packing, self.world = recipe, packing, world
        self.rows = recipe.rank_rows(world.size) * world.size
        recipe.batch_sizes.micro_batches(0, self.rows, world.size)  # raises where they do not divide evenly

    def _make(self, step: int) -> list[Batch]:
        pin = self.world.device.type == "cuda"
        share = {"batch_size": self.rows, "rank": self.world.rank, "world_size": self.world.size}
        micros = self.recipe.batch_sizes.micro_batches(step, self.rows)
        return [from_packed(self._batch(micro, **share), pin=pin) for micro in micros]

    def _batch(self, micro: int, **share: int) -> PackedBatch:
        workers = self._workers
        if workers is not None:
            try:
                batch: PackedBatch = workers(micro, **share)
                return batch
            except WorkerDied:
                if self._workers is not None:
                    warnings.warn("a data worker was killed: batches are made in this process now", stacklevel=2)
                self.close()
        return self.packing.batch(micro, **share)

    def close(self) -> None:
        """Ends the workers; later batches are made in this process."""
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.close()


def _worker_count(world: World) -> int:
    if world.device.type != "cuda":
        return 0
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # on this machine
    return min(MAX_WORKERS, default_workers() // ranks // CORES_PER_WORKER)


def build_model(recipe: Recipe, tokenizer: Tokenizer, shards: Shards | None = None) -> Model:
    """The recipe's model with new weights; `shards` of the training text, for objectives that read token counts."""
    if getattr(recipe.encoder, "fixed_embeddings", False) and not (recipe.vectors or recipe.start):
        raise ConfigError(
            "encoder.fixed_embeddings=true needs word vectors: pass vectors=FILE, or train them with "
            "encoder.fixed_embeddings=false"
        )
    torch.manual_seed(recipe.seed)
    vocabulary, objectives = vocabulary_of(tokenizer), recipe.objectives.values()
    if shards is not None and any(getattr(settings, "reads_token_counts", False) for settings in objectives):
        vocabulary = replace(vocabulary, counts=_token_counts(shards, tokenizer.vocab_size))
    model = Model.build(recipe.encoder, objectives, vocabulary=vocabulary, seed=recipe.seed)
    kind = type(recipe.encoder).__module__.rpartition(".")[2]
    if model.encoder.stateful and not recipe.by_column:
        raise ConfigError(f"{kind} carries its state from row to row: set packing.kind=columns")
    if recipe.by_column and not model.encoder.stateful:
        raise ConfigError(f"packing.kind=columns is for recurrent encoders, not for {kind}: set packing.kind=stream")
    spell_vocabulary(model.encoder, tokenizer)
    return model


def _token_counts(shards: Shards, vocab_size: int) -> NDArray[np.int64]:
    """Occurrences of each token [V]."""
    counts = np.zeros(vocab_size, np.int64)
    for first in range(0, shards.tokens, COUNTED):
        counts += np.bincount(shards.read(first, min(COUNTED, shards.tokens - first)), minlength=vocab_size)
    return counts


def meta_model(recipe: Recipe) -> Model:
    """A model without values; a ConfigError where encoder and objectives cannot be combined."""
    with on_meta_device():
        return Model.build(recipe.encoder, recipe.objectives.values())


def load_start(recipe: Recipe, model: Model, tokenizer: Tokenizer) -> list[str]:
    """Loads the weights or word vectors that the recipe starts from into its model; returns notes for the user."""
    if recipe.vectors:
        return load_vectors(model, recipe.vectors, tokenizer)
    if recipe.start:
        return load_weights(model, recipe.start, tokenizer, match_tokens=recipe.match_tokens)
    note = f"{recipe.name} is a second stage, but starts with new weights: --start it from a run of {recipe.after}"
    return [note] if recipe.after else []
