"""Preflight: would this run work? Checks before a run, with a few steps of it, that write nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bertsmith import config
from bertsmith.data.packing.packing import PackedBatch
from bertsmith.data.shards import Shards
from bertsmith.errors import BertsmithError, ConfigError, DataError, StorageError, is_out_of_memory
from bertsmith.model_io.run_folder import refuse_other_folders
from bertsmith.system.devices import choose_device
from bertsmith.system.durable import Disk
from bertsmith.training import preflight_trial as trial
from bertsmith.training.checkpoints import Checkpoints
from bertsmith.training.distributed import World
from bertsmith.training.memory import format_bytes, tensor_bytes
from bertsmith.training.preflight_trial import Finding, PreflightContext, problem
from bertsmith.training.pretrain_data import PretrainData
from bertsmith.training.recipe import Recipe
from bertsmith.training.run import recipe_changes
from bertsmith.types import IGNORE_INDEX

PACKINGS = "bertsmith.data.packing"
SAMPLES, SAMPLE_ROWS = 8, 32  # batches across the first epoch on which shares are measured
MODELS = 3  # best, last, and one that is written before it replaces another


def check_recipe(context: PreflightContext) -> Finding:
    """A summary of the run; its settings were validated when the recipe was made."""
    recipe, settings = context.recipe, config.to_dict(context.recipe)
    objectives = " + ".join(settings["objectives"])
    duration = f"{recipe.minutes:g} minutes" if recipe.minutes else f"{recipe.steps:,} steps"
    rows = f"{settings['packing']['kind']} in rows of {recipe.max_length}"
    positions = f"of at most {recipe.encoder.max_positions} positions"
    text = f"{recipe.name}: {settings['encoder']['kind']}, {objectives}; {rows} {positions}; {duration}"
    return Finding(text, {"settings": settings})


def check_micro_batches(context: PreflightContext) -> Finding:
    """Whether micro-batches divide every step evenly."""
    sizes, micro = context.recipe.batch_sizes, context.forward_rows
    sizes.micro_batches(0, micro)
    initial = f", {sizes.warmup.initial:,} at first" if sizes.warmup else ""
    text = f"{sizes.full:,} rows a step{initial}, in forwards of {micro:,}"
    return Finding(text, {"batch_size": sizes.full, "micro_batch_size": micro})


def check_shards(context: PreflightContext) -> Finding:
    """Whether index, headers and first blocks have their checksums."""
    splits = [Shards.open(context.folder, split) for split in ("train", "held-out")]
    for split in splits:
        split.read([part.token_base for part in split.parts if part.tokens], 1)  # reading verifies a block
    train, _ = splits
    files, size = len(train.index["files"]), sum(entry["bytes"] for entry in train.index["files"])
    text = f"{train.documents:,} documents, {train.tokens:,} tokens; index, headers and first blocks of {files} files "
    text += f"match their checksums (bertsmith verify reads all {format_bytes(size)})"
    facts = {"documents": train.documents, "sentences": train.sentences, "tokens": train.tokens}
    return Finding(text, {**facts, "files": files, "bytes": size})


def check_tokenizer(context: PreflightContext) -> Finding:
    """Whether the tokenizer is the one that wrote the shards."""
    context.data = PretrainData.open(context.folder)
    context.recipe = context.data.with_vocabulary(context.recipe)
    tokenizer = context.data.tokenizer
    text = f"{tokenizer.kind} with {tokenizer.vocab_size:,} tokens wrote these shards"
    facts = {"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size, "fingerprint": tokenizer.fingerprint}
    if (table := getattr(context.recipe.encoder, "vocab_size", None)) is None:  # it reads the spelling of words
        return Finding(text, facts)
    return Finding(f"{text}; the token table has {table:,} rows", {**facts, "table": table})


def check_rows(context: PreflightContext) -> Finding:
    """Rows per epoch, epochs, padding, and whether rows have the labels that objectives need from the data."""
    packing = context.packing = context.data.packing(context.recipe)
    epoch, rows = packing.rows_per_epoch, min(SAMPLE_ROWS, packing.rows_per_epoch)
    batches = [packing.rows(number * epoch // SAMPLES, rows) for number in range(SAMPLES)]
    padding = 1 - sum(batch.all_tokens for batch in batches) / sum(batch.size for batch in batches)
    facts: dict[str, Any] = {"rows_per_epoch": epoch, "padding": padding}
    text = f"{epoch:,} an epoch"
    if context.total_rows is not None:
        facts["epochs"] = context.total_rows / epoch
        text += f", {facts['epochs']:,.1f} epochs"
    advice, state = context.epochs_advice(facts.get("epochs", 0))
    text += f"; {padding:.1%} padding in {sum(len(batch.input_ids) for batch in batches)} of them"
    for objective, (kind, positive) in _label_sources().items():
        if objective in context.recipe.objectives:
            pairs, share = _pair_shares(context, batches, objective, kind)
            facts |= {"pairs": pairs, positive: share}
            text += f"; {pairs:.0%} of texts are pairs, {share:.0%} of these {positive}"
    return Finding(text + advice, facts, state)


def _label_sources() -> dict[str, tuple[str, str]]:
    """By objective whose labels come with the rows: the packing that makes them, and the name of label 1."""
    sources: dict[str, tuple[str, str]] = {}
    for kind in config.kinds(PACKINGS):
        labels = getattr(config.find_kind(PACKINGS, kind).Config, "labels", {})
        sources |= {objective: (kind, positive) for objective, positive in labels.items()}
    return sources


def _pair_shares(
    context: PreflightContext, batches: list[PackedBatch], objective: str, needed: str
) -> tuple[float, float]:
    """The share of texts with a label for the objective, and the share of label 1 among these."""
    kind = config.to_dict(context.recipe.packing)["kind"]
    if any(objective not in batch.labels for batch in batches):
        raise ConfigError(
            f"objectives.{objective} needs the labels of packing.kind={needed}, but packing.kind={kind}: change it"
        )
    texts = np.concatenate([batch.labels[objective][batch.cls_positions >= 0] for batch in batches])
    labels = texts[texts != IGNORE_INDEX]
    if not len(labels):
        raise DataError(f"no text of {context.folder} has two sentences, so {objective} has no labels: leave it out")
    return len(labels) / len(texts), float(labels.mean())


def check_held_out(context: PreflightContext) -> Finding:
    """The rows of evaluations."""
    split = Shards.open(context.folder, "held-out")
    rows = sum(len(batch.input_ids) for batch in context.data.held_out(context.recipe, context.world))
    facts = {"documents": split.documents, "tokens": split.tokens, "eval_rows": rows}
    if not rows:
        text = "no held-out rows: there will be no evaluation and no best model; prepare with a larger --held-out"
        return Finding(text, facts, "note")
    every = context.recipe.eval_every
    when = f"every {every:,} steps" if every else "at the end"
    return Finding(f"{split.documents:,} documents, {split.tokens:,} tokens; {rows:,} rows evaluated {when}", facts)


def check_run_folder(context: PreflightContext) -> Finding | None:
    """Whether a run can start or resume in its folder."""
    folder, recipe = context.output, context.recipe
    if folder is None:
        return None
    existing = _nearest_existing(folder)
    if not existing.is_dir():
        raise BertsmithError(f"{existing} is a file: choose another -o")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise StorageError(f"{existing} is not writable: choose another -o")
    if not folder.exists():
        return Finding(f"{folder} does not exist yet: the run starts there", {"resumes_at": None})
    refuse_other_folders(folder)
    with Disk().lock(folder):  # an error where another process uses it
        changes = recipe_changes(folder, recipe)
        resumed = Checkpoints(folder, keep=recipe.keep_checkpoints).resume()
    if resumed.checkpoint is None or resumed.state is None:
        return Finding(f"{folder} has no checkpoint: the run starts there", {"resumes_at": None, "changes": changes})
    if resumed.checkpoint.facts != context.data.fingerprints:
        raise ConfigError(f"{folder} was trained on other shards: choose another -o, or pass those")
    notes, step = [*resumed.skipped, *changes], resumed.state.step
    if not recipe.minutes and step >= recipe.steps:
        notes.append("this run is finished")
    facts = {"resumes_at": step, "changes": changes, "skipped": list(resumed.skipped)}
    text = "; ".join([f"{folder} resumes after step {step:,} of {recipe.steps:,}", *notes])
    return Finding(text, facts, "note" if notes else "ok")


def check_disk(context: PreflightContext) -> Finding:
    state = context.trainer.state()
    weights = tensor_bytes(state.weights)
    checkpoint = weights + tensor_bytes(state.optimizer)
    keep = Checkpoints(context.output or ".", keep=context.recipe.keep_checkpoints).keep  # raises if too few
    needed = (keep + 1) * checkpoint + MODELS * weights
    facts = {"checkpoint_bytes": checkpoint, "model_bytes": weights, "needed_bytes": needed}
    text = f"{format_bytes(needed)} for {keep} + 1 checkpoints of {format_bytes(checkpoint)} and {MODELS} models"
    if context.output is None:
        return Finding(f"{text}; pass -o to compare with the free space", facts)
    free = shutil.disk_usage(_nearest_existing(context.output)).free
    used = sum(path.stat().st_size for path in context.output.rglob("*") if path.is_file())
    facts |= {"free_bytes": free, "used_bytes": used}
    text += f"; {format_bytes(free)} free" + (f", {format_bytes(used)} used by this run" if used else "")
    if needed > free + used:
        return problem(StorageError(f"{text}: choose another -o, or a smaller keep_checkpoints"), facts)
    return Finding(text, facts)


def _nearest_existing(path: Path) -> Path:
    path = path.absolute()
    return next(parent for parent in (path, *path.parents) if parent.exists())


class Check(NamedTuple):
    """One check; it is skipped where one that it `needs` failed."""

    name: str
    run: Callable[[PreflightContext], Finding | None]  # None where it does not apply
    needs: tuple[str, ...] = ()


CHECKS = (
    Check("recipe", check_recipe),
    Check("micro-batches", check_micro_batches),
    Check("shards", check_shards),
    Check("tokenizer", check_tokenizer, ("shards",)),
    Check("rows", check_rows, ("tokenizer",)),
    Check("held out", check_held_out, ("rows",)),
    Check("run folder", check_run_folder, ("tokenizer",)),
    Check("model", trial.check_model, ("rows", "micro-batches")),
    Check("memory", trial.check_memory, ("model",)),
    Check("step", trial.check_step, ("model",)),
    Check("speed", trial.check_speed, ("step",)),
    Check("disk", check_disk, ("step",)),
)


def preflight(
    recipe: Recipe, data: str | Path, *, output: str | Path | None = None, device: str = "auto"
) -> Iterator[Finding]:
    """Runs the checks and yields their findings. Writes nothing; `output` is the run folder that would be used."""
    world = World(device=torch.device(choose_device(device)))
    context = PreflightContext(recipe, Path(data), None if output is None else Path(output), world)
    failed: set[str] = set()
    for check in CHECKS:
        if failed.intersection(check.needs):
            failed.add(check.name)
            continue
        try:
            finding = check.run(context)
        except BertsmithError as error:
            finding = problem(error)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            rows, advice = context.forward_rows, trial.memory_advice(context)
            finding = problem(BertsmithError(f"out of memory with {rows:,} rows in one forward: {advice}"))
        if finding is not None:
            if finding.error is not None:
                failed.add(check.name)
            yield replace(finding, name=check.name)


def summary(findings: Sequence[Finding]) -> dict[str, Any]:
    """All findings as plain JSON."""
    problems = [finding.text for finding in findings if finding.error is not None]
    warned = [finding.text for finding in findings if finding.state == "warning"]
    return {
        "ok": not problems,
        "problems": problems,
        "warnings": warned,
        "checks": [finding.to_dict() for finding in findings],
    }
