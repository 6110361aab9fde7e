"""Feature-based tagging (P-BERT §5.3, Table 7; P-ELMo): a BiLSTM tagger over layers of a frozen encoder.

The encoder computes each row once for all choices of layers and all seeds; the taggers train on the cached features.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import chain, groupby, product
from pathlib import Path
from typing import Any

from bertsmith import config
from bertsmith.encoders.elmo import ELMo
from bertsmith.encoders.encoder import Encoder
from bertsmith.encoders.transformer_encoder import TransformerEncoder
from bertsmith.errors import ConfigError
from bertsmith.metrics.confidence import summarize_seeds
from bertsmith.model_io.frozen_encoders import encoder_digest
from bertsmith.model_io.model_folder import open_model
from bertsmith.nn.pooling import SLICES, LayerChoice, layer_numbers
from bertsmith.objectives.objective import objective_class
from bertsmith.reports.run_history import read_run
from bertsmith.studies.cached_encoder import CachedEncoder, feature_extractor
from bertsmith.studies.feature_files import FeatureCache, FeatureSpec, Precision, cache_features
from bertsmith.studies.published import BERT_FEATURES, CONLL, ELMO_FEATURES, FeatureReference
from bertsmith.studies.stored_results import read_result, write_result
from bertsmith.studies.task_setup import labelled_test, refuse_distributed
from bertsmith.system.devices import choose_device
from bertsmith.system.durable import Disk, checksummed_json
from bertsmith.system.workers import RUN_TIMEOUT, ordered_map
from bertsmith.tasks.task import Example, Task
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.training.finetune import finetune, open_with_head
from bertsmith.training.finetune_data import TaskData, build_task, predict, prepare
from bertsmith.training.recipe import FinetuneConfig, make_finetune_config
from bertsmith.training.run import advise_removal
from bertsmith.training.sweep import BEST, best_scores, copy_model, remove_run_files

# of P-BERT Table 7; encoders of other kinds also have ELMo's mix
ROWS: tuple[LayerChoice, ...] = ("embeddings", "second_to_last", "top", "last_four_sum", "last_four_concat", "all_sum")
# The paper gives two BiLSTM layers of 768 and five restarts; it does not give these settings.
SETTINGS = ("learning_rate=1e-3", "epochs=10", "head.recurrent=bilstm", "compute.compile=false")
CACHE, SCORES, TABLE = "features", "scores.json", "features.json"


def feature_config(task: str, model: str | Path, files: Mapping[str, Path], changes: Sequence[str]) -> FinetuneConfig:
    """The settings that all taggers share; the study sets their layers."""
    if any(change.startswith("head.layers=") for change in changes):
        raise ConfigError("the study sets head.layers: pass --layers")
    return replace(make_finetune_config(task, model, files, [*SETTINGS, *changes]), auxiliary={})


@advise_removal()
def features(
    settings: FinetuneConfig,
    output: str | Path,
    *,
    layers: Sequence[str] = (),
    seeds: int = 5,
    jobs: int = 1,
    precision: Precision = "float32",
    device: str = "auto",
    quiet: bool = False,
) -> dict[str, Any]:
    """A table of scores by layers over the seeds; `layers`: by default all rows that the encoder has.

    `jobs`: taggers in parallel. Finished ones are reused. The best on dev is saved with the encoder in `best/`.
    """
    output = Path(output)
    study = _Study.prepare(settings, output, layers, precision=precision, device=device, quiet=quiet)
    study.quiet = quiet or jobs > 1
    wanted = [Tagger(name, seed) for name, seed in product(study.layers, range(settings.seed, settings.seed + seeds))]
    runs = zip(wanted, _trained(study, wanted, jobs=jobs, quiet=quiet), strict=True)
    by_layers = groupby(runs, key=lambda pair: pair[0].layers)
    rows = [study.table_row(name, [scores for _, scores in some]) for name, some in by_layers]
    reference = study.reference
    table = {
        "task": study.task.name,
        "main_metric": study.task.main_metric,
        "model": str(output / BEST),
        "source": None if reference is None else reference.table.source,
        "published_split": None if reference is None else reference.split,
        "notes": [] if reference is None else list(reference.notes),
        "rows": rows,
    }
    Disk().write_file(output / TABLE, [checksummed_json(table)])
    return table


def _trained(study: _Study, wanted: Sequence[Tagger], *, jobs: int, quiet: bool) -> Iterator[dict[str, Any]]:
    """The scores of each tagger in order; unfinished ones are trained, `jobs` in parallel."""
    best = _best_before(study.output, study.task.main_metric)
    missing = [one for one in wanted if study.finished(one) is None]
    with closing(ordered_map(study.train, missing, workers=jobs, timeout=RUN_TIMEOUT)) as trained:
        for number, one in enumerate(wanted, start=1):
            title = f"{number} of {len(wanted)}: {one.layers}, seed {one.seed}"
            if not quiet and jobs == 1:
                print(title, file=sys.stderr)
            scores = study.finished(one) or study.save(one, next(trained), best=best)
            remove_run_files(study.folder(one), BEST)
            best = max(best, scores["dev"][study.task.main_metric])
            if not quiet and jobs > 1:
                print(f"{title}: done", file=sys.stderr, flush=True)
            yield scores


def reference_for(encoder: Encoder, task: str) -> FeatureReference | None:
    """The published scores for encoders of this kind on the task; None without such."""
    if task != CONLL:
        return None
    return BERT_FEATURES if _is_bert(encoder) else ELMO_FEATURES if isinstance(encoder, ELMo) else None


def _is_bert(encoder: Encoder) -> bool:
    """Whether it is BERT or a Transformer encoder of its family, which read both sides of a token."""
    return isinstance(encoder, TransformerEncoder) and encoder.direction == "both"


def chosen_layers(encoder: Encoder, given: Sequence[str]) -> tuple[LayerChoice, ...]:
    """The given choices of layers, checked; by default all rows that the encoder has."""
    chosen: list[LayerChoice] = []
    for name in dict.fromkeys(given or (ROWS if _is_bert(encoder) else (*ROWS, "mix"))):
        if name not in SLICES:
            raise ConfigError(f"--layers {name} must be one of {', '.join(SLICES)}")
        try:
            layer_numbers(name, encoder.layers)
        except ConfigError:
            if given:
                raise
            continue
        if (widths := {encoder.layer_widths[number] for number in layer_indices(name, encoder)}) == {encoder.width}:
            chosen.append(name)
        elif given:
            found = f"layers of width {', '.join(map(str, sorted(widths)))}, where the last has {encoder.width}"
            raise ConfigError(
                f"--layers {name} reads {found}: leave it out, or use `bertsmith finetune` head.layers={name}"
            )
    return tuple(chosen)


def layer_indices(name: LayerChoice, encoder: Encoder) -> range:
    """The indices of `Encoding.layers` that a choice reads."""
    return range(encoder.layers + 1)[SLICES[name]]


@dataclass(frozen=True)
class Tagger:
    """A choice of layers and a seed."""

    layers: LayerChoice
    seed: int


@dataclass
class _Study:
    """What all runs share; can be pickled for worker processes."""

    settings: FinetuneConfig
    output: Path
    layers: tuple[LayerChoice, ...]
    task: Task
    encoder: Encoder  # on the meta device: its outputs are cached
    tokenizer: Tokenizer
    data: TaskData
    test: list[Example]  # empty if it has no tags
    features: FeatureCache
    device: str
    quiet: bool

    @classmethod
    def prepare(
        cls,
        settings: FinetuneConfig,
        output: Path,
        layers: Sequence[str],
        *,
        precision: Precision,
        device: str,
        quiet: bool,
    ) -> _Study:
        task = build_task(settings)
        _check(settings, task)
        model, tokenizer, _ = open_with_head(settings, task)
        encoder = model.encoder
        chosen = chosen_layers(encoder, layers)
        data = prepare(settings, task, tokenizer, positions=encoder.max_positions)
        test = labelled_test(task)
        indices = sorted({index for name in chosen for index in layer_indices(name, encoder)})
        spec = FeatureSpec(encoder_digest(encoder), tuple(indices), encoder.width, precision)
        extract = feature_extractor(encoder, indices, padding_id=tokenizer.padding_id, device=choose_device(device))
        framed = (task.rows(examples, tokenizer, max_length=data.max_length) for examples in (data.dev, test))
        rows = [row for one in chain(data.train, *framed) for row in one.rows]
        cache = cache_features(output / CACHE, rows, spec, extract, quiet=quiet)
        return cls(settings, output, chosen, task, encoder.to("meta"), tokenizer, data, test, cache, device, quiet)

    def __getstate__(self) -> dict[str, Any]:
        """Tasks cannot be pickled: they are rebuilt from their settings."""
        return vars(self) | {"task": None, "data": replace(self.data, task=None)}  # type: ignore[arg-type]

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        task = build_task(state["settings"])
        vars(self).update(state, task=task, data=replace(state["data"], task=task))

    @property
    def reference(self) -> FeatureReference | None:
        """What the paper of the encoder has for the task."""
        return reference_for(self.encoder, self.task.name)

    def folder(self, one: Tagger) -> Path:
        """The run folder of a tagger."""
        return self.output / one.layers / f"seed-{one.seed}"

    def finished(self, one: Tagger) -> dict[str, Any] | None:
        """The scores of a finished tagger."""
        return read_result(self.folder(one) / SCORES, self._key(one))

    def train(self, one: Tagger) -> dict[str, Any]:
        """Trains a tagger and returns its scores; the model is in best/ of its run."""
        folder = self.folder(one)
        encoder = CachedEncoder(self.features, self.encoder, layer_indices(one.layers, self.encoder))
        how: dict[str, Any] = {"device": self.device, "quiet": self.quiet, "data": self.data}
        finetune(self._settings(one), folder, **how, replacement=encoder)
        dev = best_scores(read_run(folder), self.task.main_metric)
        return {"seed": one.seed, "dev": dev, "test": self._score_test(folder / BEST, encoder) if self.test else {}}

    def save(self, one: Tagger, scores: dict[str, Any], *, best: float) -> dict[str, Any]:
        """Writes the scores of a tagger, and its model if it is better than `best`."""
        folder = self.folder(one)
        if scores["dev"][self.task.main_metric] > best:
            copy_model(folder / BEST, self.output / BEST)
        write_result(folder / SCORES, self._key(one), scores)
        return scores

    def _settings(self, one: Tagger) -> FinetuneConfig:
        return replace(self.settings, seed=one.seed, head={**self.settings.head, "layers": one.layers})

    def _key(self, one: Tagger) -> dict[str, Any]:
        """Everything that the scores depend on."""
        spec = asdict(self.features.spec) | {"layers": one.layers}
        return {"settings": config.to_dict(self._settings(one)), "features": spec}

    def _score_test(self, folder: Path, encoder: CachedEncoder) -> dict[str, float]:
        device, precision = choose_device(self.device), self.settings.precision
        bf16 = precision == "bf16" or (precision == "auto" and device == "cuda")  # as for dev
        model = open_model(folder)[0].with_encoder(encoder).to(device)
        predictions = predict(model, self.task, self.test, self.tokenizer, length=self.data.max_length, bf16=bf16)
        return self.task.score(self.test, predictions)

    def table_row(self, name: LayerChoice, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """One row of the table."""
        main, reference = self.task.main_metric, self.reference
        published = {} if reference is None else reference.table.scores.get(name, {})
        return {
            "layers": name,
            "dev": asdict(summarize_seeds([run["dev"][main] for run in runs])),
            "test": asdict(summarize_seeds([run["test"][main] for run in runs])) if self.test else None,
            "published": published.get(self.task.name),
            "runs": list(runs),
        }


def _check(settings: FinetuneConfig, task: Task) -> None:
    if objective_class(task.objective).pipeline != "token-classification":
        raise ConfigError(f"{settings.name} is not a tagging task: use conll/conll2003, conll/wnut17 or tagging")
    if not task.has_split("dev"):
        raise ConfigError(f"{settings.name} has no dev examples to select taggers: pass --dev FILE")
    refuse_distributed(settings, "features")


def _best_before(output: Path, metric: str) -> float:
    """The best dev score of all finished taggers of this folder, whatever layers they read."""
    finished = [read_result(path, {}) for path in output.glob(f"*/seed-*/{SCORES}")]
    return max((scores["dev"][metric] for scores in finished if scores is not None), default=-1.0)
