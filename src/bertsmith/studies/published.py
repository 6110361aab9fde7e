"""Published scores in percent with their source; rows and tasks have the names of recipes and tasks here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

MNLI, QNLI, MRPC, SST2 = "glue/mnli", "glue/qnli", "glue/mrpc", "glue/sst-2"
SQUAD, CONLL, POS = "squad/1.1", "conll/conll2003", "conll/conll2003-pos"
METRICS = {MNLI: "accuracy", QNLI: "accuracy", MRPC: "accuracy", SST2: "accuracy", SQUAD: "f1", CONLL: "f1"}


@dataclass(frozen=True)
class Published:
    """One table of a paper: dev scores by row and task, in `METRICS`."""

    source: str
    scores: Mapping[str, Mapping[str, float]]

    @classmethod
    def table(cls, source: str, tasks: tuple[str, ...], **rows: tuple[float, ...]) -> Self:
        """A table with one column per task."""
        return cls(source, {name: dict(zip(tasks, numbers, strict=True)) for name, numbers in rows.items()})


# Devlin et al. 2019
OBJECTIVES = Published.table(
    "P-BERT Table 5",
    (MNLI, QNLI, MRPC, SST2, SQUAD),
    base=(84.4, 88.4, 86.7, 92.7, 88.5),
    no_nsp=(83.9, 84.9, 86.5, 92.6, 87.9),
    ltr=(82.1, 84.3, 77.5, 92.1, 77.8),
    **{"ltr+bilstm": (82.1, 84.1, 75.7, 91.6, 84.9)},
)
SIZES = Published.table(
    "P-BERT Table 6",
    (MNLI, MRPC, SST2),
    size_3_768_12=(77.9, 79.8, 88.4),
    size_6_768_3=(80.6, 82.2, 90.7),
    size_6_768_12=(81.9, 84.8, 91.3),
    base=(84.4, 86.7, 92.9),
    size_12_1024_16=(85.7, 86.9, 93.3),
    large=(86.6, 87.8, 93.7),
)
MASKS = Published.table(
    "P-BERT Table 8",
    (MNLI, CONLL),
    base=(84.2, 95.4),
    mask_100_0_0=(84.3, 94.9),
    mask_80_0_20=(84.1, 95.2),
    mask_80_20_0=(84.4, 95.2),
    mask_0_20_80=(83.7, 94.8),
    mask_0_0_100=(83.6, 94.9),
)


@dataclass(frozen=True)
class FeatureReference:
    """What a paper has for taggers on features of its encoder; rows are the layers that the tagger reads."""

    table: Published
    split: str  # of the scores in the table
    notes: tuple[str, ...]  # its other scores on CoNLL-2003


BERT_FEATURES = FeatureReference(
    Published.table(
        "P-BERT Table 7",
        (CONLL,),
        embeddings=(91.0,),
        second_to_last=(95.6,),
        top=(94.9,),
        last_four_sum=(95.9,),
        last_four_concat=(96.1,),
        all_sum=(95.5,),
    ),
    "dev",
    ("base, fine-tuned: 96.4 on dev, 92.4 on test", "large, fine-tuned: 96.6 on dev, 92.8 on test"),
)
ELMO_FEATURES = FeatureReference(
    Published.table("P-ELMo Table 1", (CONLL,), mix=(92.22,)),
    "test",
    ("tagger without ELMo: 90.15 on test", "the same tagger with ELMo: 92.22 ± 0.10 on test"),
)

# Peters et al. 2017, Table 4 and the baseline of Table 1, from memory: F1 on test
TAGLM_POSITIONS = Published.table(
    "P-TagLM, F1 on test, from memory",
    (CONLL,),
    **{
        "no features": (90.87,),
        "input of layer 1": (91.55,),
        "output of layer 1": (91.93,),
        "output of layer 2": (91.72,),
    },
)
# Of single language models no score is known for certain, and "all" may be others than the paper's two.
TAGLM_MODELS = Published(
    TAGLM_POSITIONS.source, {name: row for name, row in TAGLM_POSITIONS.scores.items() if name == "no features"}
)
# Peters et al. 2018, from memory. Table 6: parts of speech of the Penn Treebank; Table 2 and Table 3: dev. Their
# columns on SNLI and semantic role labelling, which are not tasks here, are in docs/papers/taglm.md.
ELMO_LAYERS = Published.table(
    "P-ELMo Table 6, Penn Treebank, from memory", (POS,), **{"layer 1": (97.3,), "layer 2": (96.8,)}
)
ELMO_MIX = Published.table(
    "P-ELMo Table 2, from memory",
    (SQUAD,),
    **{"no features": (80.8,), "top": (84.7,), "mix, λ=1": (85.0,), "mix, λ=0.001": (85.2,)},
)
ELMO_INJECTION = Published.table(
    "P-ELMo Table 3, from memory",
    (SQUAD,),
    **{"input": (85.1,), "input and output": (85.6,), "output": (84.8,)},
)
LM_FEATURES = {  # by the tables of `lm-features`
    "position": TAGLM_POSITIONS,
    "models": TAGLM_MODELS,
    "layers": ELMO_LAYERS,
    "mix": ELMO_MIX,
    "injection": ELMO_INJECTION,
}


def scores_for(names: Collection[str], tasks: Collection[str]) -> Published:
    """The published ablation scores of these rows and tasks, as one table.

    A score that occurs in several tables is taken from the table with the most of these rows, or the earlier one.
    """
    scores: dict[str, dict[str, float]] = {}
    sources: set[str] = set()
    for table in sorted((OBJECTIVES, SIZES, MASKS), key=lambda table: -len(set(names) & set(table.scores))):
        for name in names:
            for task, score in table.scores.get(name, {}).items():
                if task in tasks and task not in scores.setdefault(name, {}):
                    scores[name][task] = score
                    sources.add(table.source)
    return Published(", ".join(sorted(sources)), {name: row for name, row in scores.items() if row})
