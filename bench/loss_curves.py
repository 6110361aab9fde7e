"""Does the fast path learn as the plain one does? The same recipe on the same rows in the same order, by several ways.

    python bench/loss_curves.py SHARDS [--recipe bert/small] [--steps 2000] [--ways fast plain-bf16 plain-fp32 fp8]
        [--seeds 3 [--from 0]] [--dropout 0] [--set SETTING=VALUE]... [--stretch 50] [--no-compile] [-o DIR]
    python bench/loss_curves.py --judge DIR

`fast` is what users run: compiled, by our kernels, even where others are faster; `graphs` and `fp8` add CUDA graphs and
fp8, `fp8-graphs` both. A plain way is not compiled and takes torch's own attention with a mask, F.gelu and F.dropout.
Rows, model, masks, optimiser and plan are the same for all. A seed gives new weights and dropout, never other rows or
masks; ways with equal seeds begin with equal weights. The plan is the recipe's over so many steps, a tenth of them
warm-up, at rate 5e-4, so that much is learnt; `--set` has the last word.

How it is judged: curves are means over stretches of 50 steps. The difference of a way is the mean over seeds of its
curve minus the plain one of equal seed. The noise is the standard deviation over the seeds of the plain way at the same
stretch, as the root of the mean variance of it and two stretches to either side: that of three seeds alone is often
small by chance. A way is within noise where its difference is never over 3 such deviations, that of its held-out losses
at the end is not over 3 of theirs, and every loss is finite. How far two seeds of the plain way lie apart is told
beside it. Three seeds are few: a way that is fair but in no step like the plain one would fail now and then. As long as
a model knows no more of words than how frequent they are, its loss does not tell whether attention is right: what
guessing by frequency loses is told too, with a warning where the plain way is no better.

With `-o` each run leaves a file in DIR and is not run again: ways may come in several calls, `--judge` reads them all.
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
from bertsmith.errors import BertsmithError, ConfigError
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

# What each way sets, whatever the recipe says.
WAYS = {
    "fast": ("compute.compile=true", "compute.cuda_graphs=false"),
    "graphs": ("compute.compile=true", "compute.cuda_graphs=true"),
    "fp8": ("compute.compile=true", "compute.cuda_graphs=false", "precision=fp8"),
    "fp8-graphs": ("compute.compile=true", "compute.cuda_graphs=true", "precision=fp8"),
    "plain-bf16": ("compute.compile=false", "compute.cuda_graphs=false", "precision=bf16"),
    "plain-fp32": ("compute.compile=false", "compute.cuda_graphs=false", "precision=fp32"),
}
LIMIT = 3.0  # standard deviations
NEIGHBOURS = 2  # stretches to either side whose variances count too
WARM = 10  # steps that the speed leaves out
POINTS = 10  # of a curve in the table
LEARNT = 0.2  # by which words must be known better than by frequency

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """One run: the loss of each step, and the held-out loss at the end where something is held out."""

    way: str
    seed: int
    losses: list[float]  # nan from where the run could not go on
    held_out: float | None
    tokens_per_second: float
    made: dict[str, Any]  # recipe, compute, data, device
    words: float | None = None  # the part of the held-out loss that is about words
    guessing: float | None = None  # what guessing held-out words by their frequency loses


@dataclass(frozen=True)
class Judgement:
    """A way beside a plain one. Differences are of losses; the others are in standard deviations over seeds."""

    way: str
    plain: str
    seeds: int  # that both have
    within: bool
    largest: float
    at: int  # the step that ends the stretch of the largest difference
    difference: float  # there
    mean: float  # difference over all stretches
    apart: float  # the largest of two seeds of the plain way
    held_out: float | None
    held_out_difference: float | None

    def __str__(self) -> str:
        verdict = "within noise" if self.within else "NOT within noise"
        said = f"{self.way} against {self.plain}: {verdict}: "
        if not math.isfinite(self.difference):
            return f"{said}a loss is not finite by step {self.at:,}"
        said += f"largest difference {self.largest:.2f} standard deviations ({self.difference:+.4f} by step {self.at:,}"
        said += f", {self.mean:+.4f} on average), two seeds of {self.plain} {self.apart:.2f}"
        if self.held_out is not None:
            said += f"; held out {self.held_out:.2f} ({self.held_out_difference:+.4f})"
        return f"{said}; {self.seeds} seed{'s' if self.seeds > 1 else ''}"


def main(words: Sequence[str] | None = None) -> int:
    """Does what the words ask; the exit status."""
    options = _parser().parse_args(words)
    try:
        curves = read(options.judge) if options.judge else run(options)
        show(curves, stretch=options.stretch, folder=options.judge or options.output)
    except BertsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("shards", nargs="?", type=Path)
    parser.add_argument("--recipe", default="bert/small")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["fast", "plain-bf16", "plain-fp32"])
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="SEED", help="the first of them")
    parser.add_argument("--dropout", type=float, default=0.0, help="of blocks and of attention")
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE", help="of the recipe")
    parser.add_argument("--stretch", type=int, default=50, help="steps whose losses make one point")
    parser.add_argument("--no-compile", action="store_true", help="compile no way, to try this where that is slow")
    parser.add_argument("--device", default="auto")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR")
    parser.add_argument("--judge", type=Path, metavar="DIR", help="run nothing, judge what lies there")
    return parser


def run(options: argparse.Namespace) -> list[Curve]:
    """All ways and seeds that are asked for, and what else lies in the output folder."""
    if options.shards is None:
        raise ConfigError("no shards are named: give a folder that bertsmith prepare wrote, or --judge DIR")
    data, world = PretrainData.open(options.shards), World(device=torch.device(choose_device(options.device)))
    changes = [f"steps={options.steps}", "warmup=0.1", "learning_rate=5e-4"]
    changes += [f"encoder.dropout={options.dropout}", f"encoder.attention_dropout={options.dropout}", *options.set]
    recipe = data.with_vocabulary(with_overrides(recipes.find(options.recipe), changes))
    curves = []
    for seed in range(options.first, options.first + options.seeds):  # a call that is cut short leaves whole pairs
        for way in options.ways:
            passes = list(WAYS[way])
            passes += ["compute.compile=false"] if options.no_compile else []
            ours = with_overrides(recipe, passes)
            path = options.output and options.output / f"{way}-{seed}.json"
            curve = _finished(path, _made(ours, data)) if path else None
            if curve is None:
                curve = train(way, seed, ours, data, world)
                if path:
                    _write(path, asdict(curve))
                print(f"{way} seed {seed}: {curve.tokens_per_second / 1e3:,.1f} k tokens/s", flush=True)
            curves.append(curve)
    return read(options.output) if options.output else curves


@contextmanager
def plain() -> Iterator[None]:
    """Attention by torch's own kernels alone, dense or with a mask. GELU and dropout are torch's where not compiled."""
    before = attention.choose_kernel

    def choose(*, dense: bool, return_attentions: bool, **_: Any) -> attention.Kernel:
        return "eager" if return_attentions else "dense" if dense else "masked"

    attention.choose_kernel = choose
    try:
        yield
    finally:
        attention.choose_kernel = before


def train(way: str, seed: int, recipe: Recipe, data: PretrainData, world: World) -> Curve:
    """The whole plan once."""
    torch.compiler.reset()
    gc.collect()  # the model of the run before
    with plain() if way.startswith("plain") else nullcontext():
        trainer = _trainer(recipe, data, world, seed)
        steps, seconds = _steps(trainer)
        losses = [step.loss for step in steps] + [math.nan] * (recipe.steps - len(steps))
        held_out = data.held_out(recipe, world)
        scores = trainer.evaluate(held_out) if held_out else None
    tokens = sum(step.tokens for step in steps[WARM:])
    words = [loss for name, loss in scores.losses.items() if name.endswith("_lm")] if scores else []
    known = {"words": words[0] if words else None, "guessing": data.unigram_loss()}
    made = {**_made(recipe, data), **world.environment()}
    return Curve(way, seed, losses, scores.loss if scores else None, tokens / seconds, made, **known)


def _trainer(recipe: Recipe, data: PretrainData, world: World, seed: int) -> Trainer:
    """Weights and dropout by the seed; rows and masks by the recipe's own."""
    torch.manual_seed(seed)
    vocabulary = vocabulary_of(data.tokenizer)
    model = Model.build(recipe.encoder, recipe.objectives.values(), vocabulary=vocabulary, seed=recipe.seed)
    how = {"plan": recipe.plan, "optimizer": recipe.optimizer, "precision": recipe.precision, "compute": recipe.compute}
    return Trainer(model, PretrainLoader(recipe, data.packing(recipe), world), **how, world=world, seed=seed)


def _steps(trainer: Trainer) -> tuple[list[Step], float]:
    """All steps, fewer where it diverged, and the seconds of those after the first few."""
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


def _made(recipe: Recipe, data: PretrainData) -> dict[str, Any]:
    settings = config.to_dict(recipe)
    compute = {"precision": settings.pop("precision"), **settings.pop("compute")}
    return {"compute": compute, "recipe": settings, "data": data.fingerprints}


def read(folder: Path) -> list[Curve]:
    """The curves in a folder, by way; an error where they are not of one recipe on the same data."""
    files = [path for way in WAYS for path in sorted(folder.glob(f"{way}-[0-9]*.json"))]
    if not files:
        raise ConfigError(f"{folder} holds no curves: run some ways with -o {folder}")
    curves = [_read(path) for path in files]
    for curve, path in zip(curves, files, strict=True):
        if any(curve.made[part] != curves[0].made[part] for part in ("recipe", "data")):
            raise ConfigError(f"{path} and {files[0]} are not of one recipe and the same data: judge them apart")
    return curves


def _finished(path: Path, made: Mapping[str, Any]) -> Curve | None:
    """What an earlier call left."""
    if not path.is_file():
        return None
    curve = _read(path)
    if any(curve.made[part] != value for part, value in json.loads(json.dumps(made)).items()):
        raise ConfigError(f"{path} was made with other settings or data: choose another folder")
    return curve


def _read(path: Path) -> Curve:
    return Curve(**json.loads(path.read_text(encoding="utf-8")))


def _write(path: Path, contents: Any) -> None:
    Disk().make_folder(path.parent)
    Disk().write_file(path, [(json.dumps(contents, indent=1) + "\n").encode()])


def smoothed(losses: Sequence[float], stretch: int) -> Floats:
    """Means over stretches of so many steps; what is left over at the end counts for nothing."""
    stretch = min(stretch, len(losses))
    whole = len(losses) // stretch * stretch
    means: Floats = np.asarray(losses[:whole], dtype=np.float64).reshape(-1, stretch).mean(axis=1)
    return means


def deviation(curves: Floats) -> Floats:
    """The standard deviation over seeds [seeds, stretches] -> [stretches], steadied by the neighbours."""
    variances = curves.var(axis=0, ddof=1)
    near = [variances[max(place - NEIGHBOURS, 0) : place + NEIGHBOURS + 1] for place in range(len(variances))]
    return np.asarray([math.sqrt(part.mean()) for part in near])


def difference_of(ours: Sequence[Curve], theirs: Sequence[Curve], stretch: int) -> Floats:
    """Curves minus those of equal seed [seeds that both have, stretches]."""
    plain_ones = {curve.seed: smoothed(curve.losses, stretch) for curve in theirs}
    shared = [curve for curve in ours if curve.seed in plain_ones]
    if len(theirs) < 2 or not shared:
        raise ConfigError(f"{theirs[0].way} needs two seeds at least, one of them a seed of {ours[0].way}")
    return np.stack([smoothed(curve.losses, stretch) - plain_ones[curve.seed] for curve in shared])


def judge(ours: Sequence[Curve], theirs: Sequence[Curve], *, stretch: int) -> Judgement:
    """A way against a plain one, which needs two seeds at least, one of them the way's too."""
    differences = difference_of(ours, theirs, stretch)
    difference = differences.mean(axis=0)
    noise = np.stack([smoothed(curve.losses, stretch) for curve in theirs])
    deviations = deviation(noise)
    ratios = _over(difference, deviations)
    place = int(np.argmax(ratios))
    apart = max(_over(one - other, deviations).max() for one, other in combinations(noise, 2))
    away, far = _held_out(ours, theirs)
    return Judgement(
        way=ours[0].way,
        plain=theirs[0].way,
        seeds=len(differences),
        within=bool(ratios[place] <= LIMIT and (far is None or far <= LIMIT)),
        largest=float(ratios[place]),
        at=(place + 1) * min(stretch, len(theirs[0].losses)),
        difference=float(difference[place]),
        mean=float(difference.mean()),
        apart=float(apart),
        held_out=far,
        held_out_difference=away,
    )


def _held_out(ours: Sequence[Curve], theirs: Sequence[Curve]) -> tuple[float | None, float | None]:
    """The mean difference of held-out losses at equal seeds, and how many deviations that is; None where none are."""
    known = {curve.seed: curve.held_out for curve in theirs if curve.held_out is not None}
    there = [curve for curve in ours if curve.seed in known]
    differences = [one.held_out - known[one.seed] for one in there if one.held_out is not None]
    if len(known) < 2 or not differences:
        return None, None
    away, noise = np.array([np.mean(differences)]), np.array([np.std(list(known.values()), ddof=1)])
    return float(away[0]), float(_over(away, noise)[0])


def _over(differences: Floats, deviations: Floats) -> Floats:
    """How many deviations each difference is: none where there is none, infinitely many where it is not finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(differences == 0, 0.0, np.abs(differences) / deviations)
    return np.where(np.isfinite(found), found, np.inf)


def show(curves: Sequence[Curve], *, stretch: int, folder: Path | None) -> None:
    """The table and the judgements, printed; and written with the pictures where there is a folder."""
    ways = {way: found for way in WAYS if (found := [curve for curve in curves if curve.way == way])}
    known = [line for way, found in ways.items() if way.startswith("plain") for line in knowing(found)]
    print("\n".join([*table(curves, stretch), *known]))
    judgements = []
    for name, theirs in ways.items():
        for way, ours in ways.items():
            if name.startswith("plain") and way != name and not (way.startswith("plain") and way > name):
                try:
                    judgements.append(judge(ours, theirs, stretch=stretch))
                    print(judgements[-1])
                except ConfigError as error:
                    print(f"{way} against {name}: not judged: {error}")
    if folder:
        _write(folder / "judgement.json", {"stretch": stretch, "judgements": [asdict(one) for one in judgements]})
        _draw(ways, stretch, folder)


def table(curves: Sequence[Curve], stretch: int) -> list[str]:
    """One line for each run: loss at some points, held out, speed."""
    stretch = min(stretch, len(curves[0].losses))
    places = np.unique(np.linspace(0, len(curves[0].losses) // stretch - 1, POINTS).round().astype(int))
    heads = "".join(f"{(place + 1) * stretch:>8,}" for place in places)
    lines = [f"loss, mean of {stretch} steps up to step", f"way         seed{heads}  held out  k tokens/s"]
    for curve in curves:
        losses = smoothed(curve.losses, stretch)
        held_out = "–" if curve.held_out is None else f"{curve.held_out:.4f}"
        cells = "".join(f"{losses[place]:8.4f}" for place in places)
        lines.append(f"{curve.way:<12}{curve.seed:>4}{cells}{held_out:>10}{curve.tokens_per_second / 1e3:12,.1f}")
    return lines


def knowing(curves: Sequence[Curve]) -> list[str]:
    """How much a plain way knows of words in the end, beside guessing by frequency; nothing where it was not asked."""
    words, guessing = [curve.words for curve in curves if curve.words is not None], curves[0].guessing
    if not words or guessing is None:
        return []
    lost = float(np.mean(words))
    lines = [f"{curves[0].way} loses {lost:.2f} on held-out words, guessing by frequency {guessing:.2f}"]
    if not lost < guessing - LEARNT:
        lines.append("WARNING: no more than frequencies is learnt, a fault of attention would not show: train longer")
    return lines


def _draw(ways: Mapping[str, Sequence[Curve]], stretch: int, folder: Path) -> None:
    """curves.svg, means over seeds; differences-….svg, from each plain way at equal seeds, between ± the limit."""
    from bench.ten_minutes.drawing import draw

    means = {way: np.stack([smoothed(curve.losses, stretch) for curve in found]) for way, found in ways.items()}
    steps = min(stretch, len(next(iter(ways.values()))[0].losses))

    def points(values: Floats) -> list[tuple[float, float]]:
        return [((place + 1) * steps, float(value)) for place, value in enumerate(values) if math.isfinite(value)]

    pictures = {"curves": ({way: points(found.mean(axis=0)) for way, found in means.items()}, "loss")}
    for name in [way for way in ways if way.startswith("plain") and len(ways[way]) > 1]:
        seeds = {curve.seed for curve in ways[name]}
        others = {way: found for way, found in ways.items() if way != name and seeds & {one.seed for one in found}}
        lines = {way: points(difference_of(found, ways[name], stretch).mean(axis=0)) for way, found in others.items()}
        band = LIMIT * deviation(means[name])
        lines |= {f"{LIMIT:g} deviations": points(band), f"−{LIMIT:g} deviations": points(-band)}
        pictures[f"differences-{name}"] = (lines, f"loss minus that of {name}")
    for name, (lines, up) in pictures.items():
        Disk().write_file(folder / f"{name}.svg", [draw(lines, across="steps", up=up).encode()])


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share
    sys.exit(main())
