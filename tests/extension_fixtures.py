"""Encoders and objectives of users: written into a folder of extensions, found like those of bertsmith."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from bertsmith import config

FOCAL = '''
"""Focal loss for text classification (Lin et al. 2017)."""

from dataclasses import dataclass

import torch
from torch import nn

from bertsmith.objectives.objective import Objective, at_least_float32


@dataclass(frozen=True, kw_only=True)
class Config:
    labels: tuple[str, ...] = ("no", "yes")
    gamma: float = 2.0  # 0: cross entropy
    weight: float = 1.0

    def build(self, context):
        return Focal(self, context)


class Focal(Objective):
    per_text = True
    pipeline = "text-classification"

    def __init__(self, config, context):
        super().__init__(weight=config.weight)
        self.config = config
        self.head = nn.Linear(context.width, len(config.labels))
        context.layer_config.init_weights(self)

    def indices(self, batch):
        return batch.cls_positions.clamp(min=0)

    def predict(self, encoding, batch, table):
        return self.head(encoding.at(self.name))

    def loss_from_logits(self, logits, batch):
        labels, mask = self.labels(batch), self.label_mask(batch)
        log_p = at_least_float32(logits).log_softmax(-1).gather(1, labels.clamp(min=0)[:, None])[:, 0]
        loss = torch.where(mask, -((1 - log_p.exp()) ** self.config.gamma) * log_p, 0.0)
        return self.make_loss(batch, loss.sum(), mask & (logits.argmax(-1) == labels))
'''

BILSTM = '''
"""A bidirectional LSTM over token embeddings."""

from dataclasses import dataclass

from torch import nn

from bertsmith.encoders.encoder import Encoder, select_tokens
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.pooling import run_recurrent
from bertsmith.nn.recurrent import BiLSTM
from bertsmith.types import Encoding


@dataclass(frozen=True, kw_only=True)
class Config:
    layers: int = 1
    width: int = 32
    vocab_size: int = 30522
    max_positions: int = 128
    tied: bool = True  # language-model heads share the token table

    def build(self):
        return BiLSTMEncoder(self)


class BiLSTMEncoder(Encoder):
    segment_types, has_pooler, compiles = 0, False, False

    def __init__(self, config):
        super().__init__()
        self.config, self.layer_config = config, LayerConfig()
        self.width, self.layers, self.max_positions = config.width, 1, config.max_positions
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.lstm = BiLSTM(config.width, config.width // 2, layers=config.layers)
        self.layer_config.init_weights(self)

    @property
    def token_embeddings(self):
        return self.tokens.weight if self.config.tied else None

    def forward(self, batch, state=None, *, indices=None, pool=True, return_layers=False, return_attentions=False):
        self.check(batch)
        embedded = self.tokens(batch.input_ids.flatten())
        hidden = run_recurrent(self.lstm, embedded, batch)
        selection = select_tokens(batch, indices, pool=False)
        last = hidden if selection.indices is None else hidden[selection.indices]
        layers = (embedded, hidden) if return_layers else ()
        return Encoding(last_hidden=last, selections=selection.by_objective, layers=layers)

    def layer_groups(self):
        return [self.tokens, self.lstm]
'''


@contextmanager
def extensions(folder: Path, files: Mapping[str, str]) -> Iterator[None]:
    """Extension files by path, such as `objectives/focal.py`, while the block runs."""
    packages = {importlib.import_module(f"bertsmith.{Path(name).parent}") for name in files}
    before = {package: list(package.__path__) for package in packages}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(config.EXTENSIONS, "")
        config.add_extensions(folder)
        try:
            yield
        finally:
            for package, path in before.items():
                package.__path__ = path
            for name in files:
                sys.modules.pop("bertsmith." + name.removesuffix(".py").replace("/", "."), None)
