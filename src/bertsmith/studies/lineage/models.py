"""The models of the study, as data: a row of `MODELS` is a row of the table, and a new model is one more entry.

A stage is one pre-training run; models may share stages. The shares of a model's stages sum to 1, so that every model
has the same minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from bertsmith import recipes
from bertsmith.config import did_you_mean
from bertsmith.errors import ConfigError
from bertsmith.training.recipe import Recipe, with_overrides

Size = Literal["tiny", "quick"]
SIZES: tuple[Size, ...] = get_args(Size)
Idea = Literal["none", "static", "contextual", "deep", "fine-tuned", "bidirectional", "more efficient"]
PAIRS = "pairs"  # the tokenizer of parallel text


@dataclass(frozen=True)
class Stage:
    """One pre-training run."""

    tokenizer: str  # a name of `TOKENIZERS`
    recipe: str
    share: float = 1.0  # of the minutes; 0: new weights, which are not trained
    changes: tuple[str, ...] = ()  # of the recipe
    after: str = ""  # the stage whose model it starts from


@dataclass(frozen=True, kw_only=True)
class LineageModel:
    """A row of the table: what is pre-trained, and how it is used in a task."""

    title: str
    paper: str
    idea: Idea
    adds: str  # what it adds to the model of the row before
    stage: str  # the model folder that is fine-tuned: the last of its stages
    features: tuple[str, ...] = ()  # stages whose frozen encoders give features to the task network
    tuning: tuple[str, ...] = ()  # settings of fine-tuning
    tagging: tuple[str, ...] = ()  # more of them, for tasks that tag words
    learning_rate: Mapping[Size, float] | None = None  # of fine-tuning; None: that of the encoder's paper


# vocabularies: the kind and its settings. Case is kept, so that all models but GPT-1 predict the same text.
TOKENIZERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "words": ("words", ("lowercase=false",)),
    "bpe": ("bpe", ()),  # GPT-1's always lower-cases
    "wordpiece": ("wordpiece", ("lowercase=false",)),
    "byte_bpe": ("byte_bpe", ()),
    "unigram": ("unigram", ("lowercase=false",)),
    PAIRS: ("words", ("lowercase=false",)),
}

# The papers' recipes take days. For a minute on a CPU: many small steps. At a learning rate of 1e-3, the
# vectors of BERT become equal for all words (LOG.md, "Lineage").
_MINUTE = ("max_length=64", "batch_size=8", "micro_batch_size=0", "learning_rate=3e-4", "warmup=0.1")
_SHORT = 0.1  # of the minutes: for word vectors below another model, and for the last stage of Transformers

STAGES: dict[Size, dict[str, Stage]] = {
    "tiny": {
        "none": Stage("wordpiece", "bert/tiny", share=0.0),
        "vectors": Stage("words", "word_vectors/tiny", changes=("batch_size=4",)),
        "vectors-short": Stage("words", "word_vectors/tiny", _SHORT, ("batch_size=4",)),
        "bilm": Stage("words", "elmo/tiny", 1 - _SHORT),
        "translation": Stage(PAIRS, "cove/tiny", 1 - _SHORT),
        "ulmfit": Stage("words", "awd_lstm/tiny"),
        "gpt": Stage("bpe", "gpt/tiny", changes=_MINUTE),
        "bert": Stage("wordpiece", "bert/tiny", changes=_MINUTE),
        "roberta": Stage("byte_bpe", "roberta/tiny", changes=_MINUTE),
        "albert": Stage("unigram", "albert/tiny", changes=_MINUTE),
        "electra": Stage("wordpiece", "electra/tiny", changes=_MINUTE),
    },
    "quick": {
        "none": Stage("wordpiece", "bert/quick", share=0.0),
        "vectors": Stage("words", "word_vectors/quick"),
        "vectors-short": Stage("words", "word_vectors/quick", _SHORT),
        "bilm": Stage("words", "elmo/quick", 1 - _SHORT),
        "translation": Stage(PAIRS, "cove/quick", 1 - _SHORT),
        "ulmfit": Stage("words", "awd_lstm/quick"),
        "gpt-words": Stage("bpe", "gpt/quick", 1 - _SHORT),
        "gpt": Stage("bpe", "gpt/quick_long", _SHORT, after="gpt-words"),
        "bert-words": Stage("wordpiece", "bert/quick", 1 - _SHORT),
        "bert": Stage("wordpiece", "bert/quick_pairs", _SHORT, after="bert-words"),
        "roberta": Stage("byte_bpe", "roberta/quick"),
        "albert-words": Stage("unigram", "albert/quick", 1 - _SHORT),
        "albert": Stage("unigram", "albert/quick_pairs", _SHORT, after="albert-words"),
        "electra-words": Stage("wordpiece", "electra/quick", 1 - _SHORT),
        "electra": Stage("wordpiece", "electra/quick_pairs", _SHORT, after="electra-words"),
    },
}

# TagLM's task network without its features; the same for all models that are used as features
_NETWORK = (
    *("encoder.kind=taglm", "encoder.cell=lstm", "encoder.layers=2", "encoder.hidden=200", "encoder.characters=cnn"),
    *("schedule.kind=linear", "patience=0", "epochs=10"),
)
_CRF = ("head.crf=true",)
_TRANSFORMER: Mapping[Size, float] = {"tiny": 5e-4, "quick": 1e-4}  # above those of the papers' larger models

MODELS: dict[str, LineageModel] = {
    "none": LineageModel(
        title="no pre-training",
        paper="",
        idea="none",
        adds="BERT's network with random weights",
        stage="none",
        tuning=("random_init=true",),
        learning_rate=_TRANSFORMER,
    ),
    "word-vectors": LineageModel(
        title="word vectors",
        paper="Mikolov et al. 2013",
        idea="static",
        adds="one vector for each word, learned from unlabelled text; a BiLSTM reads them in the task",
        stage="vectors",
        tuning=_NETWORK,
        tagging=_CRF,
    ),
    "taglm": LineageModel(
        title="TagLM",
        paper="Peters et al. 2017",
        idea="contextual",
        adds="the top layer of a frozen language model beside the words: a vector that depends on the sentence",
        stage="vectors-short",
        features=("bilm",),
        tuning=(*_NETWORK, "encoder.features_at=[1]", "encoder.feature_layers=top"),
        tagging=_CRF,
    ),
    "cove": LineageModel(
        title="CoVe",
        paper="McCann et al. 2017",
        idea="contextual",
        adds="the same from a translation model, which needs parallel text",
        stage="vectors-short",
        features=("translation",),
        tuning=(*_NETWORK, "encoder.features_at=[0]", "encoder.feature_layers=top"),
        tagging=_CRF,
    ),
    "elmo": LineageModel(
        title="ELMo",
        paper="Peters et al. 2018",
        idea="deep",
        adds="all layers of the language model, in a mix that each task learns",
        stage="vectors-short",
        features=("bilm",),
        tuning=(*_NETWORK, "encoder.features_at=[0]", "encoder.feature_layers=mix"),
        tagging=_CRF,
    ),
    "ulmfit": LineageModel(
        title="ULMFiT",
        paper="Howard and Ruder 2018",
        idea="fine-tuned",
        adds="the language model itself is fine-tuned, layer by layer, instead of a network on top of it",
        stage="ulmfit",
    ),
    "gpt": LineageModel(
        title="GPT-1",
        paper="Radford et al. 2018",
        idea="fine-tuned",
        adds="a Transformer instead of an LSTM, and one input format for all tasks",
        stage="gpt",
        learning_rate=_TRANSFORMER,
    ),
    "bert": LineageModel(
        title="BERT",
        paper="Devlin et al. 2019",
        idea="bidirectional",
        adds="masked tokens, so that every layer reads both sides; sentence pairs",
        stage="bert",
        learning_rate=_TRANSFORMER,
    ),
    "roberta": LineageModel(
        title="RoBERTa",
        paper="Liu et al. 2019",
        idea="more efficient",
        adds="masked LM only, on running text; a vocabulary of bytes",
        stage="roberta",
        learning_rate=_TRANSFORMER,
    ),
    "albert": LineageModel(
        title="ALBERT",
        paper="Lan et al. 2020",
        idea="more efficient",
        adds="one set of weights for all layers, a small embedding table, sentence order",
        stage="albert",
        learning_rate=_TRANSFORMER,
    ),
    "electra": LineageModel(
        title="ELECTRA",
        paper="Clark et al. 2020",
        idea="more efficient",
        adds="a loss at every token: which ones did a generator replace?",
        stage="electra",
        learning_rate=_TRANSFORMER,
    ),
}


def chosen_models(names: Sequence[str]) -> dict[str, LineageModel]:
    """The rows of these names in chronological order; all if there are none."""
    for name in names:
        if name not in MODELS:
            raise ConfigError(f"--models {name}: it must be one of {', '.join(MODELS)}{did_you_mean(name, MODELS)}")
    return {name: model for name, model in MODELS.items() if name in names or not names}


def stages_of(model: LineageModel, size: Size) -> list[str]:
    """The stages of a model, each after those that it starts from."""
    table, found = STAGES[size], list[str]()
    for last in (model.stage, *model.features):
        chain = [last]
        while after := table[chain[0]].after:
            chain.insert(0, after)
        found += chain
    return found


def share_of(model: LineageModel, size: Size) -> float:
    """The share of the minutes that a model is pre-trained for: 1, or 0 without pre-training."""
    return sum(STAGES[size][name].share for name in stages_of(model, size))


def recipe_of(stage: Stage, *, minutes: float, seed: int, start: str, more: Sequence[str]) -> Recipe:
    """The recipe of a stage; `more`: settings that every run of the study has."""
    changes = [*stage.changes, *([f"start={start}"] if start else ()), f"seed={seed}", *more]
    return with_overrides(recipes.find(stage.recipe), [*changes, f"minutes={minutes * stage.share:g}"])
