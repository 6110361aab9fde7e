"""Features of a frozen encoder under a BiLSTM tagger (P-BERT §5.3, Table 7): which layers say most?

The encoder reads every row once, whatever the number of layers and seeds; taggers then learn from what it said.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any, get_args

from bertsmith import config
from bertsmith.encoders.encoder import Encoder
from bertsmith.errors import ConfigError, DataError
from bertsmith.metrics.confidence import summarize_seeds
from bertsmith.model_io.model_folder import open_model
from bertsmith.nn.pooling import SLICES, LayerChoice, LayerMix
from bertsmith.objectives.objective import pipeline_of
from bertsmith.reports.run_history import read_run
from bertsmith.studies.feature_files import Features, Kind, Precision, keep_features
from bertsmith.studies.published import CONLL, FEATURES, FINE_TUNED
from bertsmith.studies.replay import Replay, digest_of, speaking
from bertsmith.system.devices import choose_device
from bertsmith.system.durable import Disk, checksummed_json, read_checksummed_json
from bertsmith.system.workers import RUN_TIMEOUT, ordered_map
from bertsmith.tasks.task import Example, Task
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.training.finetune import finetune, open_with_head
from bertsmith.training.finetune_data import TaskData, build_task, predict, prepare
from bertsmith.training.recipe import FinetuneConfig, make_finetune_config
from bertsmith.training.sweep import BEST, best_scores, copy_model, remove_run_files
from bertsmith.types import Row

ROWS: tuple[LayerChoice, ...] = ("embeddings", "second_to_last", "top", "last_four_sum", "last_four_concat", "all_sum")
# The paper says only: two BiLSTM layers of 768, five restarts. The rest is ours, and overrides come behind it.
SETTINGS = ("learning_rate=1e-3", "epochs=10", "head.recurrent=bilstm", "compute.compile=false")
KEPT, SCORES, TABLE = "features", "scores.json", "features.json"


def feature_tuning(task: str, model: str | Path, files: Mapping[str, Path], changes: Sequence[str]) -> FinetuneConfig:
    """The settings that all taggers share; the layers that they read are the study's to choose."""
    if any(change.startswith("head.layers=") for change in changes):
        raise ConfigError("head.layers is what a study of features varies: name the layers with --layers")
    return make_finetune_config(task, model, files, [*SETTINGS, *changes])


def features(
    tuning: FinetuneConfig,
    output: str | Path,
    *,
    layers: Sequence[str] = (),
    seeds: int = 5,
    jobs: int = 1,
    precision: Precision = "float32",
    device: str = "auto",
    quiet: bool = False,
) -> dict[str, Any]:
    """A table of scores by layers, over the seeds; all that the encoder has where none are named.

    `jobs`: taggers at a time. What is finished is not done again. The best tagger on dev is kept in `best/`, with the
    encoder.
    """
    output = Path(output)
    study = _Study.prepare(tuning, output, layers, precision=precision, device=device, quiet=quiet)
    study.quiet = quiet or jobs > 1
    wanted = [Tagger(name, seed) for name, seed in product(study.layers, range(tuning.seed, tuning.seed + seeds))]
    runs = zip(wanted, _trained(study, wanted, jobs=jobs, quiet=quiet), strict=True)
    by_layers = groupby(runs, key=lambda pair: pair[0].layers)
    rows = [study.told(name, [found for _, found in some]) for name, some in by_layers]
    found = {
        "task": study.task.name,
        "main": study.task.main_metric,
        "model": str(output / BEST),
        "source": FEATURES.source if study.task.name == CONLL else None,
        "fine_tuned": FINE_TUNED if study.task.name == CONLL else {},
        "rows": rows,
    }
    Disk().write_file(output / TABLE, [checksummed_json(found)])
    return found


def _trained(study: _Study, wanted: Sequence[Tagger], *, jobs: int, quiet: bool) -> Iterator[dict[str, Any]]:
    """The scores of each tagger in order. Those that are not known are trained, `jobs` at a time."""
    best = _best_before(study.output, study.task.main_metric)
    missing = [one for one in wanted if study.known(one) is None]
    with closing(ordered_map(study.train, missing, workers=jobs, timeout=RUN_TIMEOUT)) as elsewhere:
        for number, one in enumerate(wanted, start=1):
            told = f"{number} of {len(wanted)}: {one.layers}, seed {one.seed}"
            if not quiet and jobs == 1:
                print(told, file=sys.stderr)
            found = study.known(one) or study.keep(one, next(elsewhere), best=best)
            remove_run_files(study.folder(one), BEST)
            best = max(best, found["dev"][study.task.main_metric])
            if not quiet and jobs > 1:
                print(f"{told}: done", file=sys.stderr, flush=True)
            yield found


def chosen_layers(encoder: Encoder, asked: Sequence[str]) -> tuple[LayerChoice, ...]:
    """The layers asked for, checked; all rows of the paper's table that the encoder has where none are."""
    found: list[LayerChoice] = []
    for name in dict.fromkeys(asked or ROWS):
        if name not in SLICES:
            raise ConfigError(f"--layers {name}: it must be among {', '.join(get_args(LayerChoice))}")
        try:
            LayerMix(name, width=1, layer_count=encoder.layers)
        except ConfigError:
            if asked:
                raise
            continue
        found.append(name)
    return tuple(found)


def layer_numbers(name: LayerChoice, encoder: Encoder) -> range:
    """Which of an encoding's layers are read."""
    return range(encoder.layers + 1)[SLICES[name]]


@dataclass(frozen=True)
class Tagger:
    """What one reads, and its seed."""

    layers: LayerChoice
    seed: int


@dataclass
class _Study:
    """What all runs share, in a form that travels to other processes."""

    tuning: FinetuneConfig
    output: Path
    layers: tuple[LayerChoice, ...]
    task: Task
    encoder: Encoder  # without its weights: what it says is in the features
    tokenizer: Tokenizer
    ready: TaskData
    test: list[Example]  # none where nobody knows their tags
    features: Features
    device: str
    quiet: bool

    @classmethod
    def prepare(
        cls,
        tuning: FinetuneConfig,
        output: Path,
        layers: Sequence[str],
        *,
        precision: Precision,
        device: str,
        quiet: bool,
    ) -> _Study:
        task = build_task(tuning)
        _check(tuning, task)
        model, tokenizer, _ = open_with_head(tuning, task)
        encoder = model.encoder
        chosen = chosen_layers(encoder, layers)
        ready = prepare(tuning, task, tokenizer, positions=encoder.max_positions)
        test = task.examples("test") if task.has_split("test") else []
        test = test if all(example.gold is not None for example in test) else []
        numbers = sorted({number for name in chosen for number in layer_numbers(name, encoder)})
        kind = Kind(digest_of(encoder), tuple(numbers), encoder.width, precision)
        say = speaking(encoder, numbers, padding_id=tokenizer.padding_id, device=choose_device(device))
        rows = list(_rows(task, ready, test, tokenizer))
        kept = keep_features(output / KEPT, rows, kind, say, quiet=quiet)
        return cls(tuning, output, chosen, task, encoder.to("meta"), tokenizer, ready, test, kept, device, quiet)

    def __getstate__(self) -> dict[str, Any]:
        """Tasks do not travel: they are built again from their settings."""
        return vars(self) | {"task": None, "ready": replace(self.ready, task=None)}  # type: ignore[arg-type]

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        task = build_task(state["tuning"])
        vars(self).update(state, task=task, ready=replace(state["ready"], task=task))

    def folder(self, one: Tagger) -> Path:
        """Of its run."""
        return self.output / one.layers / f"seed-{one.seed}"

    def known(self, one: Tagger) -> dict[str, Any] | None:
        """Its scores, if it is finished."""
        return _known(self.folder(one) / SCORES, self._wanted(one))

    def train(self, one: Tagger) -> dict[str, Any]:
        """Its scores; the model lies in best/ of its run."""
        folder, replay = self.folder(one), Replay(self.features, self.encoder, layer_numbers(one.layers, self.encoder))
        how: dict[str, Any] = {"device": self.device, "quiet": self.quiet, "prepared": self.ready}
        finetune(self._tuning(one), folder, replacement=replay, **how)
        dev = best_scores(read_run(folder), self.task.main_metric)
        return {"seed": one.seed, "dev": dev, "test": self._score_test(folder / BEST, replay) if self.test else {}}

    def keep(self, one: Tagger, found: dict[str, Any], *, best: float) -> dict[str, Any]:
        """Writes its scores down, and its model where none before was better."""
        folder = self.folder(one)
        if found["dev"][self.task.main_metric] > best:
            copy_model(folder / BEST, self.output / BEST)
        Disk().write_file(folder / SCORES, [checksummed_json(self._wanted(one) | {"found": found})])
        return found

    def _tuning(self, one: Tagger) -> FinetuneConfig:
        return replace(self.tuning, seed=one.seed, head={**self.tuning.head, "layers": one.layers})

    def _wanted(self, one: Tagger) -> dict[str, Any]:
        """All that scores depend on."""
        kind = asdict(self.features.kind) | {"layers": one.layers}
        return {"settings": config.to_dict(self._tuning(one)), "features": kind}

    def _score_test(self, folder: Path, replay: Replay) -> dict[str, float]:
        model, _, _ = open_model(folder)
        device, precision = choose_device(self.device), self.tuning.precision
        half = precision == "bf16" or (precision == "auto" and device == "cuda")  # as dev was scored
        model = model.with_encoder(replay).to(device)
        said = predict(model, self.task, self.test, self.tokenizer, length=self.ready.max_length, bf16=half)
        return self.task.score(said.examples, said.predictions)

    def told(self, name: LayerChoice, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """One row of the table."""
        main = self.task.main_metric
        return {
            "layers": name,
            "dev": asdict(summarize_seeds([run["dev"][main] for run in runs])),
            "test": asdict(summarize_seeds([run["test"][main] for run in runs])) if self.test else None,
            "published": FEATURES.scores.get(name, {}).get(self.task.name),
            "runs": list(runs),
        }


def _check(tuning: FinetuneConfig, task: Task) -> None:
    if pipeline_of(task.objective) != "token-classification":
        raise ConfigError(f"{tuning.name}: features are studied with tags: take conll/conll2003, wnut17, or tagging")
    if not task.has_split("dev"):
        raise ConfigError(f"{tuning.name}: taggers are chosen on dev examples: pass --dev FILE")
    if tuning.compute.fsdp or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("a study of features is the work of one process: leave out torchrun and compute.fsdp")


def _rows(task: Task, ready: TaskData, test: Sequence[Example], tokenizer: Tokenizer) -> Iterator[Row]:
    """Every row that is learned from or scored."""
    asked = [*ready.train]
    for examples in (ready.dev, test):
        asked += task.rows(examples, tokenizer, max_length=ready.max_length)
    for one in asked:
        yield from one.rows


def _known(path: Path, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """What was found with just these settings, if it was."""
    try:
        note = read_checksummed_json(path)
    except DataError:  # not there, or damaged: then it is found again
        return None
    found: dict[str, Any] = note["found"]
    return found if {key: note.get(key) for key in wanted} == wanted else None


def _best_before(output: Path, main: str) -> float:
    """The best dev score of all taggers that were finished here, whatever layers they read."""
    known = [_known(path, {}) for path in output.glob(f"*/seed-*/{SCORES}")]
    return max((found["dev"][main] for found in known if found is not None), default=-1.0)
