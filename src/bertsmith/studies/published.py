"""Published scores in percent with their source; rows and tasks have the names of recipes and tasks here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Published:
    """One table of a paper: dev scores by row and task."""

    source: str
    scores: Mapping[str, Mapping[str, float]]
    metrics: Mapping[str, str] = field(default_factory=dict)  # by task, if not its main metric


MNLI, QNLI, MRPC, SST2 = "glue/mnli", "glue/qnli", "glue/mrpc", "glue/sst-2"
SQUAD, CONLL = "squad/1.1", "conll/conll2003"
METRICS = {MNLI: "accuracy", QNLI: "accuracy", MRPC: "accuracy", SST2: "accuracy", SQUAD: "f1", CONLL: "f1"}


def _rows(tasks: tuple[str, ...], rows: Mapping[str, tuple[float, ...]]) -> dict[str, dict[str, float]]:
    return {name: dict(zip(tasks, numbers, strict=True)) for name, numbers in rows.items()}


# Devlin et al. 2019
OBJECTIVES = Published(
    "P-BERT Table 5",
    _rows(
        (MNLI, QNLI, MRPC, SST2, SQUAD),
        {
            "base": (84.4, 88.4, 86.7, 92.7, 88.5),
            "no_nsp": (83.9, 84.9, 86.5, 92.6, 87.9),
            "ltr": (82.1, 84.3, 77.5, 92.1, 77.8),
            "ltr+bilstm": (82.1, 84.1, 75.7, 91.6, 84.9),
        },
    ),
    METRICS,
)
SIZES = Published(
    "P-BERT Table 6",
    _rows(
        (MNLI, MRPC, SST2),
        {
            "size_3_768_12": (77.9, 79.8, 88.4),
            "size_6_768_3": (80.6, 82.2, 90.7),
            "size_6_768_12": (81.9, 84.8, 91.3),
            "base": (84.4, 86.7, 92.9),
            "size_12_1024_16": (85.7, 86.9, 93.3),
            "large": (86.6, 87.8, 93.7),
        },
    ),
    METRICS,
)
MASKS = Published(
    "P-BERT Table 8",
    _rows(
        (MNLI, CONLL),
        {
            "base": (84.2, 95.4),
            "mask_100_0_0": (84.3, 94.9),
            "mask_80_0_20": (84.1, 95.2),
            "mask_80_20_0": (84.4, 95.2),
            "mask_0_20_80": (83.7, 94.8),
            "mask_0_0_100": (83.6, 94.9),
        },
    ),
    METRICS,
)
# Rows are the layers that the tagger reads; fully fine-tuned models also have a test score.
FEATURES = Published(
    "P-BERT Table 7",
    _rows(
        (CONLL,),
        {
            "embeddings": (91.0,),
            "second_to_last": (95.6,),
            "top": (94.9,),
            "last_four_sum": (95.9,),
            "last_four_concat": (96.1,),
            "all_sum": (95.5,),
        },
    ),
    METRICS,
)
FINE_TUNED = {"base": (96.4, 92.4), "large": (96.6, 92.8)}  # P-BERT Table 7: F1 on dev and test


def scores_for(names: Collection[str], tasks: Collection[str]) -> Published:
    """The published ablation scores of these rows and tasks, as one table.

    A score that occurs in several tables is taken from the table with the most of these rows, or the earlier one.
    """
    scores: dict[str, dict[str, float]] = {}
    sources: list[str] = []
    for table in sorted((OBJECTIVES, SIZES, MASKS), key=lambda table: -len(set(names) & set(table.scores))):
        rows = {name: table.scores[name] for name in names if name in table.scores}
        new = {
            (name, task): row[task]
            for name, row in rows.items()
            for task in tasks
            if task in row and task not in scores.get(name, {})
        }
        sources += [table.source] if new else []
        for (name, task), score in new.items():
            scores.setdefault(name, {})[task] = score
    return Published(", ".join(sorted(sources)), scores, METRICS)
