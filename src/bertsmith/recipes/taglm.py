"""Fine-tuning over word vectors with features of frozen language models: TagLM's taggers (Peters et al. 2017), ELMo's.

The language models are those of the user: `encoder.features=["FOLDER", "FOLDER"]`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertsmith import config
from bertsmith.encoders import taglm
from bertsmith.tasks import conll
from bertsmith.training.recipe import FinetuneConfig


def _tagger(task: conll.Config, encoder: dict[str, Any]) -> FinetuneConfig:
    """A tagger with a CRF, and Adam at 1e-3 as in P-TagLM §3.3."""
    head, encoder = {"crf": True}, {"kind": "taglm", **encoder}
    return config.update(FinetuneConfig(task=task, model="", encoder=encoder, head=head), taglm.Config.finetuning)


def ner() -> FinetuneConfig:
    """P-TagLM §3.3."""
    characters = {"characters": "gru", "character_width": 25, "character_hidden": 80}
    layers = {"cell": "gru", "layers": 2, "hidden": 300, "dropout": 0.25, "features_at": [1]}
    return _tagger(conll.Config(name="conll2003", label_scheme="IOBES"), characters | layers)


def chunking() -> FinetuneConfig:
    """P-TagLM §3.3."""
    characters = {"characters": "cnn", "character_width": 30, "character_hidden": 30, "character_window": 3}
    layers = {"cell": "lstm", "layers": 2, "hidden": 200, "dropout": 0.5, "features_at": [1]}
    return _tagger(conll.Config(name="conll2000", label_scheme="IOBES"), characters | layers)


def elmo() -> FinetuneConfig:
    """As AllenNLP trained them for P-ELMo; BIOUL is its name of BILOU."""
    characters = {"characters": "cnn", "character_width": 16, "character_hidden": 128, "character_window": 3}
    layers = {"cell": "lstm", "layers": 2, "hidden": 200, "dropout": 0.5}
    mix = {"features_at": [0], "feature_layers": "mix", "mix_l2": 0.1}
    recipe = _tagger(conll.Config(name="conll2003", label_scheme="BILOU"), characters | layers | mix)
    return replace(recipe, head={**recipe.head, "crf_start_end": False}, batch_size=64)


FINETUNING = {
    "ner": ("TagLM's named entities: character GRU, two GRU layers of 300, a CRF.", ner),
    "chunking": ("TagLM's chunking: character CNN, two LSTM layers of 200, a CRF.", chunking),
    "elmo": ("ELMo's named entities: its mix at the input of two LSTM layers of 200, a CRF.", elmo),
}
