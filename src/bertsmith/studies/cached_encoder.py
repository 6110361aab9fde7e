"""A frozen encoder whose layers come from a feature cache instead of a forward pass. T flat tokens, D width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertsmith.data.collate import collate
from bertsmith.encoders.encoder import Encoder, select_tokens
from bertsmith.errors import BertsmithError
from bertsmith.studies.feature_files import Extract, FeatureCache, Numbers, row_key
from bertsmith.types import Batch, Encoding, Row

TOKENS = 8192  # of one forward


class CachedEncoder(Encoder):
    """Stands in for an encoder: without weights and pooler, and only with the cached layers."""

    empty: Tensor

    def __init__(self, features: FeatureCache, like: Encoder, layers: range) -> None:
        super().__init__()
        self.features, self.read = features, layers
        self.width, self.layers = like.width, like.layers
        self.max_positions, self.segment_types = like.max_positions, like.segment_types
        self.direction, self.has_pooler, self.layer_config = like.direction, False, like.layer_config
        self.register_buffer("empty", torch.empty(0, like.width), persistent=False)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self,
        batch: Batch,
        state: Any = None,
        *,
        indices: Mapping[str, Tensor] | None = None,
        pool: bool = True,
        return_layers: bool = False,
        return_attentions: bool = False,
    ) -> Encoding:
        """See `Encoder.forward`; layers that are not read are empty, the last one included."""
        if return_attentions:
            raise BertsmithError("the feature cache has no attentions: use the encoder itself")
        selection = select_tokens(batch, None if return_layers else indices, pool=False)
        layers = self._layers(batch)
        top = layers[-1] if selection.indices is None else layers[-1][selection.indices]
        return Encoding(
            last_hidden=top, selections=selection.by_objective, layers=tuple(layers) if return_layers else ()
        )

    def _layers(self, batch: Batch) -> list[Tensor]:
        ids, segments = (values.flatten().cpu().numpy() for values in (batch.input_ids, batch.segment_ids))
        characters = None if batch.characters is None else batch.characters.flatten(0, 1).cpu().numpy()
        bounds = batch.cu_seqlens.cpu().numpy()
        values = np.zeros((len(self.read), ids.size, self.width), np.float32)
        for first in batch.cls_positions.tolist():
            if first >= 0:
                text = slice(first, int(bounds[np.searchsorted(bounds, first, "right")]))
                key = row_key(ids[text], segments[text], None if characters is None else characters[text])
                values[:, text] = self.features.read(key, self.read)
        layers = torch.from_numpy(values).to(batch.input_ids.device)
        return [layers[self.read.index(n)] if n in self.read else self.empty for n in range(self.layers + 1)]

    def layer_groups(self) -> list[nn.Module]:
        """Empty: nothing is trainable."""
        return []

    @property
    def token_embeddings(self) -> Tensor:
        """Empty [0, D]: features cannot predict tokens."""
        return self.empty


def feature_extractor(encoder: Encoder, layers: Sequence[int], *, padding_id: int, device: str) -> Extract:
    """Computes layers of the encoder for rows, without dropout and in float32: per row [layers, L, D]."""

    @torch.no_grad()
    def extract(rows: Sequence[Row]) -> Iterator[Numbers]:
        encoder.to(device).eval()
        for some in _groups(rows):
            length = max(len(row) for row in some)
            batch = collate(some, length=length, padding_id=padding_id).to(device)
            encoding = encoder(batch, pool=False, return_layers=True)
            values = torch.stack([encoding.layers[number] for number in layers]).float().cpu().numpy()
            for number, row in enumerate(some):
                yield values[:, number * length : number * length + len(row)]

    return extract


def _groups(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Consecutive rows with at most `TOKENS` padded tokens."""
    some: list[Row] = []
    for row in rows:
        if some and (len(some) + 1) * max(len(row), *map(len, some)) > TOKENS:
            yield some
            some = []
        some.append(row)
    yield some
