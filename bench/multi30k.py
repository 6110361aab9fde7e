"""Variants of a recipe on Multi30k (English to German), trained several at a time on one device.

    PYTHONPATH=src python bench/multi30k.py DATA WORK [--variants quick tiny] [--file bench/multi30k.toml] [--jobs 4]
        [--minutes 1.5] [--stop-after 530] [--set SETTING=VALUE]... [--test] [--device cuda]

DATA has train.en.gz, train.de.gz, val.*.gz and test_2016_flickr.*.gz (multi30k/data/task1/raw). A variant is a run in
WORK; its last model and the average of its last checkpoints translate val with several beams and length penalties. The
table, also in WORK/table.md, has BLEU by sacrebleu, cased and detokenised, and beside it in lower case, as much of the
literature has it (which also tokenises differently). `--test` adds test2016 with the settings that are best on val.
`--minutes` ends every run after that time instead of after its steps. Finished variants are not repeated, and others
are resumed; `--stop-after` saves those that are in progress and ends the call.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

LANGUAGES = ("en", "de")
TEST = "test_2016_flickr"
RESULT = "result.json"
GRACE = 15.0  # seconds to save a checkpoint
GRID = [(4, 0.6), (5, 1.0), (5, 1.4), (8, 1.0)]  # beams and length penalties that val chooses from


def main(words: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Prints a line for each variant; returns their results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--file", type=Path, default=Path(__file__).with_suffix(".toml"))
    parser.add_argument("--variants", nargs="+", help="default: all")
    parser.add_argument("--jobs", type=int, default=4, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--stop-after", type=float, metavar="SECONDS")
    parser.add_argument("--limit", type=int, help="translate only the first texts")
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE", help="of every variant")
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    options.end = time.monotonic() + options.stop_after if options.stop_after else None
    settings = tomllib.loads(options.file.read_text())
    names = options.variants or list(settings["variants"])
    if options.worker:
        run_variant(options.worker, variant(settings, options.worker), options)
        return []
    options.work.mkdir(parents=True, exist_ok=True)
    shards = {shards_name(variant(settings, name)): variant(settings, name) for name in names}
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda one: prepare(one, options), shards.values()))
        arguments = sys.argv[1:] if words is None else list(words)
        results = list(pool.map(lambda name: start_worker(name, arguments, options), names))
    found = sorted((one for one in results if one), key=lambda one: -one["val"])
    (options.work / "table.md").write_text(table(found))
    print(table(found), end="", flush=True)
    return found


def table(found: Sequence[dict[str, Any]]) -> str:
    """Markdown, a line for each variant."""
    columns = ["variant", "val", "val, lower case", "test2016", "test2016, lower case"]
    columns += ["model", "beam", "length penalty", "training, s"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for one in found:
        names = ("val", "val_lower", TEST, f"{TEST}_lower")
        scores = (f"{one[name]:.2f}" if name in one else "" for name in names)
        how = (str(one[name]) for name in ("model", "beam", "length_penalty", "train_seconds"))
        lines.append(f"| {' | '.join([one['variant'], *scores, *how])} |")
    return "".join(f"{line}\n" for line in lines)


def variant(settings: dict[str, Any], name: str) -> dict[str, Any]:
    """The settings of a variant; lists of settings are added up."""
    own, defaults = settings["variants"][name], settings["defaults"]
    return {**defaults, **own, "settings": [*defaults["settings"], *own.get("settings", [])]}


def shards_name(one: dict[str, Any]) -> str:
    return f"{one['kind']}-{one['vocabulary']}"


def bertsmith(*words: object) -> None:
    """A command that must succeed."""
    call = [sys.executable, "-m", "bertsmith", *map(str, words)]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(call[2:])}: {done.stderr[-1500:]}")


def prepare(one: dict[str, Any], options: argparse.Namespace) -> None:
    folder = options.work / shards_name(one)
    if (folder / "shards").is_dir():
        return
    pairs = [options.data / f"train.{language}.gz" for language in LANGUAGES]
    size = ["--kind", one["kind"], "--vocab-size", one["vocabulary"], *one.get("tokenizer", [])]
    bertsmith("tokenizer", "train", *pairs, "--parallel", "-o", folder / "tokenizer", *size, "-q")
    bertsmith(
        "prepare", *pairs, "--parallel", "-t", folder / "tokenizer", "-o", folder / "shards", "--held-out", 0, "-q"
    )


def start_worker(name: str, arguments: Sequence[str], options: argparse.Namespace) -> dict[str, Any] | None:
    """Runs a variant in a process of its own, with its output in WORK/NAME.log; None where it fails or is stopped."""
    log, began = options.work / f"{name}.log", time.monotonic()
    found = read_result(name, options)
    if found is None or (options.test and TEST not in found):
        with log.open("ab") as output:
            call = [sys.executable, __file__, *arguments, "--worker", name]
            process = subprocess.Popen(call, stdout=output, stderr=subprocess.STDOUT)
            status = wait(process, None if options.end is None else options.end - time.monotonic())
        if status:
            lines = log.read_text(errors="replace").splitlines()
            print(
                f"{name}: exit status {status} after {time.monotonic() - began:.0f} s: {' '.join(lines[-1:])}",
                flush=True,
            )
            return None
        found = read_result(name, options)
    if found is not None:
        print(f"{name:<28} {time.monotonic() - began:5.0f} s  val {found['val']:.2f}", flush=True)
    return found


def read_result(name: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """The result of a variant, if it is finished."""
    path = options.work / name / RESULT
    return json.loads(path.read_text()) if path.exists() else None


def wait(process: subprocess.Popen[bytes], seconds: float | None) -> int:
    """The exit status of a process, which is asked to end after some seconds, and killed if it does not."""
    for limit, end in ((seconds, process.terminate), (GRACE, process.kill)):
        try:
            return process.wait(None if limit is None else max(limit, 0.0))
        except subprocess.TimeoutExpired:
            end()
    return process.wait()


def run_variant(name: str, one: dict[str, Any], options: argparse.Namespace) -> None:
    """Trains, averages, chooses the search on val, and writes the result."""
    import bertsmith
    from bertsmith import recipes
    from bertsmith.training.averaging import average_checkpoints
    from bertsmith.training.pretrain import pretrain
    from bertsmith.training.recipe import with_overrides

    folder = options.work / name
    changes = [*one["settings"], *options.set, *([f"minutes={options.minutes}"] if options.minutes else [])]
    recipe = with_overrides(recipes.find(one["recipe"]), changes)
    began = time.perf_counter()
    metrics = pretrain(recipe, options.work / shards_name(one) / "shards", folder, device=options.device, quiet=True)
    seconds = time.perf_counter() - began
    count = len(list((folder / "checkpoints").iterdir()))
    average_checkpoints(folder, folder / "averaged", last=min(count, recipe.keep_checkpoints), overwrite=True)
    found: list[dict[str, Any]] = []
    for kind in ("last", "averaged"):
        model = bertsmith.load(folder / kind, device=options.device)
        for beam, penalty in GRID:
            scores = bleu(model, "val", beam, penalty, options)
            found.append({"model": kind, "beam": beam, "length_penalty": penalty, **scores})
    best = max(found, key=lambda each: float(each["val"]))
    result = {"variant": name, "train_loss": metrics.get("loss"), "train_seconds": round(seconds), **best}
    if options.test:
        model = bertsmith.load(folder / best["model"], device=options.device)
        result |= bleu(model, TEST, best["beam"], best["length_penalty"], options)
    (folder / RESULT).write_text(json.dumps({**result, "all_val": found}))


def bleu(model: Any, split: str, beam: int, penalty: float, options: argparse.Namespace) -> dict[str, float]:
    """BLEU of a split, cased and detokenised, and in lower case; and the seconds of the translation."""
    from bertsmith.metrics.translation import translation_scores

    sources, references = (lines(options.data / f"{split}.{language}.gz")[: options.limit] for language in LANGUAGES)
    began = time.perf_counter()
    found = [one["text"] for one in model.translate(sources, beam_size=beam, length_penalty=penalty)]
    seconds = time.perf_counter() - began
    scores = translation_scores(found, references)
    cased, lower = (round(scores[name], 2) for name in ("bleu", "bleu_lowercase"))
    return {split: cased, f"{split}_lower": lower, f"{split}_seconds": round(seconds, 2)}


def lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in file]


if __name__ == "__main__":
    main()
