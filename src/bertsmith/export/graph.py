"""A model as plain tensors in and out, named as transformers names them: what an ONNX file holds.

Rows hold one text each, padded at their end. B rows, C choices, L places, D width, K classes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.errors import BertsmithError
from bertsmith.model_io.model import Model
from bertsmith.nn.recurrent import BiLSTM
from bertsmith.objectives.objective import Objective
from bertsmith.types import Batch, Encoding

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TOP, POOLED, SENTENCE = "last_hidden_state", "pooler_output", "sentence_embedding"
POOLINGS = ("mean", "first", "pooled")


class OnnxModule(nn.Module):
    """The heads of a model or, where it has none, its vectors; with `pooling` one vector for each text too.

    Places of padding say nothing: what stands there is not to be read.
    """

    def __init__(self, model: Model, *, pooling: str | None = None, normalize: bool = False) -> None:
        super().__init__()
        self.model = model
        self.pooling, self.normalize = pooling, normalize
        if pooling is not None and len(model.objectives):
            raise BertsmithError("pooling makes vectors of texts: it goes with the vectors of a model, not with heads")
        if pooling == "pooled" and not model.encoder.has_pooler:
            raise BertsmithError("this model has no pooler: use pooling mean or first")
        if pooling not in (None, *POOLINGS):
            raise BertsmithError(f"pooling {pooling} is not known: {', '.join(POOLINGS)}")
        self.input_names = INPUTS if model.encoder.segment_types > 1 else INPUTS[:2]
        self.output_names = self._outputs()
        self.multiple_choice = any(head.several_rows for head in self._heads())  # its inputs are [B, C, L]

    def _outputs(self) -> tuple[str, ...]:
        heads = self._heads()
        if not heads:
            return (TOP, SENTENCE) if self.pooling else (TOP, POOLED) if self.model.encoder.has_pooler else (TOP,)
        found: list[str] = []
        for head in heads:
            before = "" if len(heads) == 1 else f"{head.name}_"
            combined = head.combined_output_name if before else ""
            found += [combined] if combined else [before + end for end in head.output_names]
        return tuple(found)

    def _heads(self) -> list[Objective]:
        return cast(list[Objective], list(self.model.objectives.values()))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> list[Tensor]:
        """What `outputs` names, in that order; `attention_mask` is 0 at padding."""
        shape = input_ids.shape  # [B, L], or [B, C, L]
        batch = as_batch(input_ids.view(-1, shape[-1]), attention_mask.view(-1, shape[-1]), token_type_ids)
        heads = self._heads()
        if not heads:
            return self._vectors(batch)
        encoding = self._encoding(batch, heads)
        found: list[Tensor] = []
        for head in heads:
            logits = head.predict(encoding, batch, self.model.encoder.token_embeddings)
            found += head.graph_outputs(logits, shape)
        return found

    def _vectors(self, batch: Batch) -> list[Tensor]:
        encoding = self.model.encoder(batch, pool=self.pooling in (None, "pooled"))
        top_BLD = encoding.last_hidden.view(*batch.input_ids.shape, -1)
        if self.pooling is None:
            return [top_BLD, *([encoding.pooled] if self.model.encoder.has_pooler else [])]
        if self.pooling == "mean":
            real_BL1 = (batch.document_ids > 0).to(top_BLD.dtype).unsqueeze(-1)
            text_BD = (top_BLD * real_BL1).sum(1) / real_BL1.sum(1)
        else:
            text_BD = encoding.pooled if self.pooling == "pooled" else top_BLD[:, 0]
        return [top_BLD, F.normalize(text_BD, dim=-1) if self.normalize else text_BD]

    def _encoding(self, batch: Batch, heads: list[Objective]) -> Encoding:
        """With the last layer only at the places that heads read, where these are few."""
        few = all(head.per_text and not (head.reads_all_tokens or head.reads_all_layers) for head in heads)
        places = {head.name: cast(Tensor, head.indices(batch)) for head in heads if few and not head.reads_pooled}
        encoding: Encoding = self.model.encoder(
            batch.replace(indices={}),
            indices=places if few else None,
            pool=any(head.reads_pooled for head in heads),
            return_layers=any(head.reads_all_layers for head in heads),
        )
        return encoding if few else replace(encoding, selections=self._reads(batch, heads))

    def _reads(self, batch: Batch, heads: list[Objective]) -> dict[str, slice | Tensor]:
        """Where in all places each head reads: at a token of each text, or everywhere."""
        everywhere = slice(None)
        return {head.name: cast(Tensor, head.indices(batch)) if head.per_text else everywhere for head in heads}


def as_batch(ids: Tensor, mask: Tensor, segments: Tensor | None) -> Batch:
    """Rows [B, L] of one text each, with padding where `mask` is 0."""
    rows, length = ids.shape
    place_L = torch.arange(length, device=ids.device)
    return Batch(
        input_ids=ids,
        position_ids=place_L.expand(rows, length),
        segment_ids=torch.zeros_like(ids) if segments is None else segments.view(-1, length),
        document_ids=(mask != 0).to(torch.int32),
        special_mask=mask == 0,
        sample_ids=torch.zeros_like(ids),
        epoch=torch.zeros((), dtype=torch.int64),
        cu_seqlens=torch.zeros(1, dtype=torch.int32),  # of the variable-length kernel, which no runtime has
        cls_positions=torch.arange(rows, device=ids.device) * length,
        max_seqlen=length,
    )


class _OneLSTM(nn.Module):
    """Stands for an nn.LSTM of one layer while a graph is made: one node, where torch would unroll every place."""

    into: Tensor  # [1, 4W, D]
    back: Tensor  # [1, 4W, W]
    bias: Tensor  # [1, 8W]

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.width = lstm.hidden_size
        order = [0, 3, 1, 2]  # ONNX has input, output, forget, cell; torch input, forget, cell, output
        ordered = {
            name: torch.cat([value.detach().chunk(4)[gate] for gate in order])
            for name, value in lstm.named_parameters()
        }
        self.register_buffer("into", ordered["weight_ih_l0"][None])
        self.register_buffer("back", ordered["weight_hh_l0"][None])
        self.register_buffer("bias", torch.cat((ordered["bias_ih_l0"], ordered["bias_hh_l0"]))[None])

    def forward(self, x_NMD: Tensor) -> tuple[Tensor, None]:
        """[N, M, D] -> [N, M, W]."""
        count, length, _ = x_NMD.shape
        found_M1NW = torch.onnx.ops.symbolic(
            "LSTM",
            (x_NMD.transpose(0, 1), self.into, self.back, self.bias),
            attrs={"hidden_size": self.width},
            dtype=x_NMD.dtype,
            shape=(length, 1, count, self.width),
        )
        return found_M1NW[:, 0].transpose(0, 1), None


@contextmanager
def with_lstm_nodes(model: nn.Module) -> Iterator[None]:
    """While it lasts, recurrent layers of the model are such as a graph can hold."""
    networks = [module for module in model.modules() if isinstance(module, BiLSTM)]
    kept = [(network, network.ahead, network.back) for network in networks]
    for network in networks:
        network.ahead, network.back = (
            nn.ModuleList(_OneLSTM(cast(nn.LSTM, lstm)) for lstm in some) for some in (network.ahead, network.back)
        )
    try:
        yield
    finally:
        for network, ahead, back in kept:
            network.ahead, network.back = ahead, back
