"""Checks of the recipe and its data: what is there, what a run would walk through, what could be asked of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from bertsmith import config
from bertsmith.data.packing.packing import PackedBatch, Packing
from bertsmith.data.shards import Shards
from bertsmith.errors import ConfigError, DataError
from bertsmith.training.preflight.case import Finding, PreflightContext, megabytes
from bertsmith.training.pretraining.parts import PretrainData
from bertsmith.types import IGNORE_INDEX

# What the data must bring labels for: the packing that does, and what it calls those with label 1.
BROUGHT = {"next_sentence": ("pairs", "random"), "sentence_order": ("ordered_pairs", "swapped")}
SAMPLES, SAMPLE_ROWS = 8, 32  # batches all over the first epoch on which shares are measured


def recipe(case: PreflightContext) -> Finding:
    """What the run is; that its settings fit each other was found out when it was made."""
    settings = config.to_dict(case.recipe)
    asked = " + ".join(settings["objectives"])
    minutes, steps = case.recipe.minutes, case.recipe.steps
    length = f"{minutes:g} minutes" if minutes else f"{steps:,} steps"
    rows = f"{settings['packing']['kind']} in rows of {case.recipe.max_length}"
    fits = f"of at most {case.recipe.encoder.max_positions} positions"
    text = f"{case.recipe.name}: {settings['encoder']['kind']}, {asked}; {rows} {fits}; {length}"
    return Finding(text, {"settings": settings})


def micro_batches(case: PreflightContext) -> Finding:
    """Whether forwards of so many rows make up every step."""
    rows, micro = case.recipe.batch_sizes, case.micro_rows
    rows.micro_batches(0, micro)
    first = f", {rows.warmup.initial:,} at first" if rows.warmup else ""
    text = f"{rows.full:,} rows a step{first}, in forwards of {micro:,}"
    return Finding(text, {"batch_size": rows.full, "micro_batch_size": micro})


def shards(case: PreflightContext) -> Finding:
    """Whether index, headers and first blocks are as they were written."""
    splits = [Shards.open(case.folder, split) for split in ("train", "held-out")]
    for split in splits:
        split.read([part.token_base for part in split.parts if part.tokens], 1)  # a block is checked when it is touched
    train, _ = splits
    files, size = len(train.index["files"]), sum(entry["bytes"] for entry in train.index["files"])
    text = f"{train.documents:,} documents, {train.tokens:,} tokens; index, headers and first blocks of {files} files "
    text += f"match their checksums (bertsmith verify reads all {megabytes(size)})"
    facts = {"documents": train.documents, "sentences": train.sentences, "tokens": train.tokens}
    return Finding(text, {**facts, "files": files, "bytes": size})


def tokenizer(case: PreflightContext) -> Finding:
    """Whether it is the one that wrote the shards."""
    case.data = PretrainData.open(case.folder)
    case.recipe = case.data.with_vocabulary(case.recipe)
    found, table = case.data.tokenizer, case.recipe.encoder.vocab_size
    text = f"{found.kind} with {found.vocab_size:,} tokens wrote these shards; the token table has {table:,} rows"
    facts = {"kind": found.kind, "vocab_size": found.vocab_size, "fingerprint": found.fingerprint}
    return Finding(text, {**facts, "table": table})


def rows(case: PreflightContext) -> Finding:
    """Rows an epoch, epochs, padding, and whether every question that the data must bring is in them."""
    packing = case.packing = case.data.packing(case.recipe)
    batches = _sample(packing)
    padding = 1 - sum(batch.tokens for batch in batches) / sum(batch.input_ids.size for batch in batches)
    facts: dict[str, Any] = {"rows_per_epoch": packing.rows_per_epoch, "padding": padding}
    text = f"{packing.rows_per_epoch:,} an epoch"
    if case.whole_rows is not None:
        facts["epochs"] = case.whole_rows / packing.rows_per_epoch
        text += f", {facts['epochs']:,.1f} epochs"
    worn = case.worn(facts.get("epochs", 0))
    text += f"; {padding:.1%} padding in {sum(len(batch.input_ids) for batch in batches)} of them"
    for name, (_, odd) in BROUGHT.items():
        if name not in case.recipe.objectives:
            continue
        facts |= _pairs(case, batches, name)
        text += f"; {facts['asked']:.0%} of texts are pairs, {facts[odd]:.0%} of these {odd}"
    return Finding(text + worn, facts, "note" if worn else "ok")


def _sample(packing: Packing) -> list[PackedBatch]:
    rows = min(SAMPLE_ROWS, packing.rows_per_epoch)
    return [packing.rows(number * packing.rows_per_epoch // SAMPLES, rows) for number in range(SAMPLES)]


def _pairs(case: PreflightContext, batches: list[PackedBatch], name: str) -> dict[str, float]:
    """The share of texts of which that objective asks, and of those the share with label 1."""
    kind, (wanted, odd) = config.to_dict(case.recipe.packing)["kind"], BROUGHT[name]
    if any(name not in batch.labels for batch in batches):
        raise ConfigError(
            f"objectives.{name} needs {wanted}, which packing.kind={kind} does not make: set it to {wanted}"
        )
    texts = np.concatenate([batch.labels[name][batch.cls_positions >= 0] for batch in batches])
    asked = texts[texts != IGNORE_INDEX]
    if not len(asked):
        raise DataError(f"no text of {case.folder} has two sentences, so {name} has nothing to ask: leave it out")
    return {"asked": len(asked) / len(texts), odd: float(asked.mean())}


def held_out(case: PreflightContext) -> Finding:
    """What the model is scored on while it trains."""
    split = Shards.open(case.folder, "held-out")
    scored = sum(len(batch.input_ids) for batch in case.data.held_out(case.recipe, case.world))
    facts = {"documents": split.documents, "tokens": split.tokens, "scored_rows": scored}
    if not scored:
        text = "nothing to score on: no scores while it trains, and no best model; prepare with a larger --held-out"
        return Finding(text, facts, "note")
    every = case.recipe.eval_every
    when = f"every {every:,} steps" if every else "at the end"
    return Finding(f"{split.documents:,} documents, {split.tokens:,} tokens; {scored:,} rows are scored {when}", facts)
