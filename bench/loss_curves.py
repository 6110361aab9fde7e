"""Compares loss curves of the fast and the plain implementation: same recipe, same rows, same order.

    python bench/loss_curves.py SHARDS [--recipe bert/small] [--steps 2000] [--variants fast plain-bf16 plain-fp32 fp8]
        [--seeds 3 [--from 0]] [--dropout 0] [--set SETTING=VALUE]... [--stretch 50] [--no-compile] [-o DIR]
    python bench/loss_curves.py --compare DIR

`fast` is the default of users: compiled, with bertsmith's kernels, even where others are faster. `graphs` and `fp8` add
CUDA graphs and FP8, `fp8-graphs` both. A plain variant is not compiled and uses torch's masked attention, F.gelu and
F.dropout. Rows, model, masks, optimizer and schedule are the same for all. A seed changes initial weights and dropout,
never rows or masks; variants with equal seeds have equal initial weights. The schedule is the recipe's over the given
steps with 10 % warm-up and a learning rate of 5e-4; `--set` overrides it.

Criterion: curves are means over windows of 50 steps. The difference of a variant is the mean over seeds of its curve
minus the plain curve with the same seed. The noise is the standard deviation over seeds of the plain variant in the
same window, with variances averaged over two windows to either side, since the variance of three seeds is often small
by chance. A variant is within noise if its difference never exceeds 3 standard deviations, its final held-out
difference does not exceed 3 either, and every loss is finite. The distance between two plain seeds is reported for
reference. With three seeds an equivalent variant fails now and then. A model at the unigram loss does not use
attention: the unigram loss is reported too, with a warning if the plain variant is not below it.

With `-o` each run writes a file to DIR and is not run again: variants may be split over calls; `--compare` reads all
files.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith import config, recipes
from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.model_io.folder_tokenizer import vocabulary_of
from bertsmith.model_io.model import Model
from bertsmith.nn import attention
from bertsmith.system.devices import choose_device
from bertsmith.system.durable import Disk
from bertsmith.training.distributed import World
from bertsmith.training.pretrain_data import PretrainData, PretrainLoader
from bertsmith.training.recipe import Recipe, with_overrides
from bertsmith.training.step import Diverged, Step
from bertsmith.training.trainer import Trainer

# Overrides of each variant.
VARIANTS = {
    "fast": ("compute.compile=true", "compute.cuda_graphs=false"),
    "graphs": ("compute.compile=true", "compute.cuda_graphs=true"),
    "fp8": ("compute.compile=true", "compute.cuda_graphs=false", "precision=fp8"),
    "fp8-graphs": ("compute.compile=true", "compute.cuda_graphs=true", "precision=fp8"),
    "plain-bf16": ("compute.compile=false", "compute.cuda_graphs=false", "precision=bf16"),
    "plain-fp32": ("compute.compile=false", "compute.cuda_graphs=false", "precision=fp32"),
}
LIMIT = 3.0  # standard deviations
NEIGHBOURS = 2  # windows to either side included in the variance
WARM = 10  # steps excluded from the throughput
POINTS = 10  # of a curve in the table
MIN_IMPROVEMENT = 0.2  # nats below the unigram loss that count as learning

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """One run: the loss of each step, and the final held-out loss if there is held-out data."""

    variant: str
    seed: int
    losses: list[float]  # nan after divergence
    held_out: float | None
    tokens_per_second: float
    provenance: dict[str, Any]  # recipe, compute, data, device
    words: float | None = None  # held-out loss of the language modelling objective
    unigram_loss: float | None = None  # unigram loss of held-out words


@dataclass(frozen=True)
class Comparison:
    """A variant compared with a plain one: loss differences, and ratios to the standard deviation over seeds."""

    variant: str
    plain: str
    seeds: int  # common to both
    within: bool
    largest: float
    at: int  # last step of the window with the largest difference
    difference: float  # there
    mean: float  # difference over all windows
    seed_distance: float  # largest between two seeds of the plain variant
    held_out: float | None
    held_out_difference: float | None

    def __str__(self) -> str:
        verdict = "within noise" if self.within else "NOT within noise"
        text = f"{self.variant} against {self.plain}: {verdict}: "
        if not math.isfinite(self.difference):
            return f"{text}a loss is not finite by step {self.at:,}"
        text += f"largest difference {self.largest:.2f} standard deviations ({self.difference:+.4f} by step {self.at:,}"
        text += f", {self.mean:+.4f} on average), two seeds of {self.plain} {self.seed_distance:.2f}"
        if self.held_out is not None:
            text += f"; held out {self.held_out:.2f} ({self.held_out_difference:+.4f})"
        return f"{text}; {self.seeds} seed{'s' if self.seeds > 1 else ''}"


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    options = _parser().parse_args(words)
    try:
        curves = read(options.compare) if options.compare else run(options)
        show(curves, stretch=options.stretch, folder=options.compare or options.output)
    except BertsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("shards", nargs="?", type=Path)
    parser.add_argument("--recipe", default="bert/small")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=["fast", "plain-bf16", "plain-fp32"])
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="SEED", help="the first of them")
    parser.add_argument("--dropout", type=float, default=0.0, help="of blocks and of attention")
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE", help="of the recipe")
    parser.add_argument("--stretch", type=int, default=50, help="window: steps averaged per point")
    parser.add_argument("--no-compile", action="store_true", help="disable compilation for all variants")
    parser.add_argument("--device", default="auto")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR")
    parser.add_argument("--compare", type=Path, metavar="DIR", help="run nothing, compare the curves in DIR")
    return parser


def run(options: argparse.Namespace) -> list[Curve]:
    """Trains all requested variants and seeds; returns all curves in the output folder."""
    if options.shards is None:
        raise ConfigError("no shards given: pass a folder that bertsmith prepare wrote, or --compare DIR")
    data, world = PretrainData.open(options.shards), World(device=torch.device(choose_device(options.device)))
    changes = [f"steps={options.steps}", "warmup=0.1", "learning_rate=5e-4"]
    changes += [f"encoder.dropout={options.dropout}", f"encoder.attention_dropout={options.dropout}", *options.set]
    recipe = data.with_vocabulary(with_overrides(recipes.find(options.recipe), changes))
    curves = []
    for seed in range(options.first, options.first + options.seeds):  # an interrupted call leaves complete pairs
        for variant in options.variants:
            overrides = list(VARIANTS[variant])
            overrides += ["compute.compile=false"] if options.no_compile else []
            varied = with_overrides(recipe, overrides)
            path = options.output and options.output / f"{variant}-{seed}.json"
            curve = _finished(path, _provenance(varied, data)) if path else None
            if curve is None:
                curve = train(variant, seed, varied, data, world)
                if path:
                    _write(path, asdict(curve))
                print(f"{variant} seed {seed}: {curve.tokens_per_second / 1e3:,.1f} k tokens/s", flush=True)
            curves.append(curve)
    return read(options.output) if options.output else curves


@contextmanager
def plain() -> Iterator[None]:
    """Restricts attention to torch's kernels, dense or masked. GELU and dropout are torch's if not compiled."""
    before = attention.choose_kernel

    def choose(*, dense: bool, return_attentions: bool, **_: Any) -> attention.Kernel:
        return "eager" if return_attentions else "dense" if dense else "masked"

    attention.choose_kernel = choose
    try:
        yield
    finally:
        attention.choose_kernel = before


def train(variant: str, seed: int, recipe: Recipe, data: PretrainData, world: World) -> Curve:
    """Trains one variant with one seed."""
    torch.compiler.reset()
    gc.collect()  # the model of the previous run
    with plain() if variant.startswith("plain") else nullcontext():
        trainer = _trainer(recipe, data, world, seed)
        steps, seconds = _steps(trainer)
        losses = [step.loss for step in steps] + [math.nan] * (recipe.steps - len(steps))
        held_out = data.held_out(recipe, world)
        scores = trainer.evaluate(held_out) if held_out else None
    tokens = sum(step.tokens for step in steps[WARM:])
    words = [loss for name, loss in scores.losses.items() if name.endswith("_lm")] if scores else []
    word_losses = {"words": words[0] if words else None, "unigram_loss": data.unigram_loss()}
    provenance = {**_provenance(recipe, data), **world.environment()}
    return Curve(variant, seed, losses, scores.loss if scores else None, tokens / seconds, provenance, **word_losses)


def _trainer(recipe: Recipe, data: PretrainData, world: World, seed: int) -> Trainer:
    """Weights and dropout depend on `seed`; rows and masks on the recipe's seed."""
    torch.manual_seed(seed)
    vocabulary = vocabulary_of(data.tokenizer)
    model = Model.build(recipe.encoder, recipe.objectives.values(), vocabulary=vocabulary, seed=recipe.seed)
    loader = PretrainLoader(recipe, data.packing(recipe), world)
    settings = {"plan": recipe.plan, "optimizer": recipe.optimizer, "precision": recipe.precision}
    return Trainer(model, loader, **settings, compute=recipe.compute, world=world, seed=seed)


def _steps(trainer: Trainer) -> tuple[list[Step], float]:
    """All steps, fewer after divergence, and the seconds of those after warm-up."""
    steps: list[Step] = []
    began = time.perf_counter()
    try:
        for step in trainer:
            steps.append(step)
            if len(steps) == WARM:
                step.device_values.values()  # waits for the device
                began = time.perf_counter()
    except Diverged as error:
        print(error, file=sys.stderr)
    steps[-1].device_values.values()
    return steps, time.perf_counter() - began


def _provenance(recipe: Recipe, data: PretrainData) -> dict[str, Any]:
    settings = config.to_dict(recipe)
    compute = {"precision": settings.pop("precision"), **settings.pop("compute")}
    return {"compute": compute, "recipe": settings, "data": data.fingerprints}


def read(folder: Path) -> list[Curve]:
    """The curves in a folder, by variant; raises unless they have the same recipe and data."""
    files = [path for variant in VARIANTS for path in sorted(folder.glob(f"{variant}-[0-9]*.json"))]
    if not files:
        raise ConfigError(f"{folder} holds no curves: run some variants with -o {folder}")
    curves = [_read(path) for path in files]
    for curve, path in zip(curves, files, strict=True):
        if any(curve.provenance[part] != curves[0].provenance[part] for part in ("recipe", "data")):
            raise ConfigError(f"{path} and {files[0]} are not of one recipe and the same data: compare them separately")
    return curves


def _finished(path: Path, provenance: Mapping[str, Any]) -> Curve | None:
    """The curve of an earlier call, if any."""
    if not path.is_file():
        return None
    curve = _read(path)
    if any(curve.provenance[part] != value for part, value in json.loads(json.dumps(provenance)).items()):
        raise ConfigError(f"{path} was made with other settings or data: choose another folder")
    return curve


def _read(path: Path) -> Curve:
    try:
        curve = Curve(**json.loads(path.read_text(encoding="utf-8")))
        found = {"recipe", "compute", "data"} <= curve.provenance.keys()
    except (OSError, ValueError, TypeError, AttributeError):
        found = False
    if not found:
        raise DataError(f"{path} is not a curve in the format of this version: remove it and run that variant again")
    return curve


def _write(path: Path, contents: Any) -> None:
    Disk().make_folder(path.parent)
    Disk().write_file(path, [(json.dumps(contents, indent=1) + "\n").encode()])


def smoothed(losses: Sequence[float], stretch: int) -> Floats:
    """Means over windows of `stretch` steps; an incomplete last window is dropped."""
    stretch = min(stretch, len(losses))
    covered = len(losses) // stretch * stretch
    means: Floats = np.asarray(losses[:covered], dtype=np.float64).reshape(-1, stretch).mean(axis=1)
    return means


def deviation(curves: Floats) -> Floats:
    """Standard deviation over seeds [seeds, windows] -> [windows], smoothed over neighbouring windows."""
    variances = curves.var(axis=0, ddof=1)
    windows = [variances[max(index - NEIGHBOURS, 0) : index + NEIGHBOURS + 1] for index in range(len(variances))]
    return np.asarray([math.sqrt(part.mean()) for part in windows])


def difference_of(curves: Sequence[Curve], plain_curves: Sequence[Curve], stretch: int) -> Floats:
    """Differences of curves with equal seeds [common seeds, windows]."""
    plain_by_seed = {curve.seed: smoothed(curve.losses, stretch) for curve in plain_curves}
    shared = [curve for curve in curves if curve.seed in plain_by_seed]
    if len(plain_curves) < 2 or not shared:
        raise ConfigError(
            f"{plain_curves[0].variant} needs two seeds at least, one of them a seed of {curves[0].variant}"
        )
    return np.stack([smoothed(curve.losses, stretch) - plain_by_seed[curve.seed] for curve in shared])


def compare(curves: Sequence[Curve], plain_curves: Sequence[Curve], *, stretch: int) -> Comparison:
    """Compares a variant with a plain one, which needs at least two seeds, one of them in common."""
    differences = difference_of(curves, plain_curves, stretch)
    difference = differences.mean(axis=0)
    noise = np.stack([smoothed(curve.losses, stretch) for curve in plain_curves])
    deviations = deviation(noise)
    ratios = _over(difference, deviations)
    index = int(np.argmax(ratios))
    seed_distance = max(_over(one - other, deviations).max() for one, other in combinations(noise, 2))
    away, far = _held_out(curves, plain_curves)
    return Comparison(
        variant=curves[0].variant,
        plain=plain_curves[0].variant,
        seeds=len(differences),
        within=bool(ratios[index] <= LIMIT and (far is None or far <= LIMIT)),
        largest=float(ratios[index]),
        at=(index + 1) * min(stretch, len(plain_curves[0].losses)),
        difference=float(difference[index]),
        mean=float(difference.mean()),
        seed_distance=float(seed_distance),
        held_out=far,
        held_out_difference=away,
    )


def _held_out(curves: Sequence[Curve], plain_curves: Sequence[Curve]) -> tuple[float | None, float | None]:
    """Mean difference of held-out losses at equal seeds and its ratio to the deviation; None without them."""
    reference = {curve.seed: curve.held_out for curve in plain_curves if curve.held_out is not None}
    shared = [curve for curve in curves if curve.seed in reference]
    differences = [one.held_out - reference[one.seed] for one in shared if one.held_out is not None]
    if len(reference) < 2 or not differences:
        return None, None
    away, noise = np.array([np.mean(differences)]), np.array([np.std(list(reference.values()), ddof=1)])
    return float(away[0]), float(_over(away, noise)[0])


def _over(differences: Floats, deviations: Floats) -> Floats:
    """Ratio of differences to deviations: 0 for no difference, infinite if not finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.where(differences == 0, 0.0, np.abs(differences) / deviations)
    return np.where(np.isfinite(values), values, np.inf)


def show(curves: Sequence[Curve], *, stretch: int, folder: Path | None) -> None:
    """Prints the table and the comparisons; writes them and the plots if there is a folder."""
    variants = {
        variant: values for variant in VARIANTS if (values := [curve for curve in curves if curve.variant == variant])
    }
    notes = [
        line for variant, values in variants.items() if variant.startswith("plain") for line in unigram_lines(values)
    ]
    print("\n".join([*table(curves, stretch), *notes]))
    comparisons = []
    for name, plain_curves in variants.items():
        for variant, variant_curves in variants.items():
            if name.startswith("plain") and variant != name and not (variant.startswith("plain") and variant > name):
                try:
                    comparisons.append(compare(variant_curves, plain_curves, stretch=stretch))
                    print(comparisons[-1])
                except ConfigError as error:
                    print(f"{variant} against {name}: not compared: {error}")
    if folder:
        _write(folder / "comparison.json", {"stretch": stretch, "comparisons": [asdict(one) for one in comparisons]})
        _draw(variants, stretch, folder)


def table(curves: Sequence[Curve], stretch: int) -> list[str]:
    """One line per run: loss at some points, held-out loss, throughput."""
    stretch = min(stretch, len(curves[0].losses))
    indices = np.unique(np.linspace(0, len(curves[0].losses) // stretch - 1, POINTS).round().astype(int))
    heads = "".join(f"{(index + 1) * stretch:>8,}" for index in indices)
    lines = [f"loss, mean of {stretch} steps up to step", f"variant     seed{heads}  held out  k tokens/s"]
    for curve in curves:
        losses = smoothed(curve.losses, stretch)
        held_out = "–" if curve.held_out is None else f"{curve.held_out:.4f}"
        cells = "".join(f"{losses[index]:8.4f}" for index in indices)
        lines.append(f"{curve.variant:<12}{curve.seed:>4}{cells}{held_out:>10}{curve.tokens_per_second / 1e3:12,.1f}")
    return lines


def unigram_lines(curves: Sequence[Curve]) -> list[str]:
    """Final held-out loss of a plain variant beside the unigram loss; empty without held-out words."""
    words, unigram_loss = [curve.words for curve in curves if curve.words is not None], curves[0].unigram_loss
    if not words or unigram_loss is None:
        return []
    loss = float(np.mean(words))
    lines = [f"{curves[0].variant} has a held-out loss of {loss:.2f} on words; unigram loss {unigram_loss:.2f}"]
    if not loss < unigram_loss - MIN_IMPROVEMENT:
        lines.append("WARNING: not below the unigram loss, an error in attention would not show: train longer")
    return lines


def _draw(variants: Mapping[str, Sequence[Curve]], stretch: int, folder: Path) -> None:
    """Writes curves.svg (means over seeds) and differences-….svg (from each plain variant, with ± the limit)."""
    from bench.ten_minutes.drawing import draw

    means = {name: np.stack([smoothed(curve.losses, stretch) for curve in values]) for name, values in variants.items()}
    steps = min(stretch, len(next(iter(variants.values()))[0].losses))

    def points(values: Floats) -> list[tuple[float, float]]:
        return [((index + 1) * steps, float(value)) for index, value in enumerate(values) if math.isfinite(value)]

    pictures = {"curves": ({name: points(values.mean(axis=0)) for name, values in means.items()}, "loss")}
    for name in [variant for variant in variants if variant.startswith("plain") and len(variants[variant]) > 1]:
        seeds = {curve.seed for curve in variants[name]}
        others = {
            variant: values
            for variant, values in variants.items()
            if variant != name and seeds & {one.seed for one in values}
        }
        lines = {
            variant: points(difference_of(values, variants[name], stretch).mean(axis=0))
            for variant, values in others.items()
        }
        band = LIMIT * deviation(means[name])
        lines |= {f"{LIMIT:g} deviations": points(band), f"−{LIMIT:g} deviations": points(-band)}
        pictures[f"differences-{name}"] = (lines, f"loss minus that of {name}")
    for name, (lines, up) in pictures.items():
        Disk().write_file(folder / f"{name}.svg", [draw(lines, across="steps", up=up).encode()])


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # modules shared by the benchmarks
    sys.exit(main())
