"""A model as an ONNX graph, with inputs and outputs named as in transformers.

Each row is one text, padded at the end. The same model gives the same bytes: a file contains nothing of the machine.
B rows, C choices, L tokens, D width.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith import __version__
from bertsmith.errors import BertsmithError
from bertsmith.inference.encoder_outputs import POOLINGS
from bertsmith.model_io.model import Model
from bertsmith.nn.recurrent import BiLSTM
from bertsmith.objectives.objective import Objective
from bertsmith.types import Batch, Encoding

INPUT_NAMES = ("input_ids", "attention_mask", "token_type_ids")
LAST_HIDDEN, POOLED, SENTENCE = "last_hidden_state", "pooler_output", "sentence_embedding"
MODEL_FILE, WEIGHTS_FILE = "model.onnx", "model.onnx_data"
MAX_INLINE_BYTES = 2_000_000_000  # of weights in model.onnx; a protocol buffer is smaller than 2 GiB
MIN_EXTERNAL_BYTES = 1024  # smaller tensors stay in model.onnx
ALIGNMENT = 4096  # bytes, so that a runtime can map the weights
OPSETS = range(18, 24)
DEFAULT_OPSET = 20
AXES = ("batch_size", "num_choices", "sequence_length")


class OnnxModule(nn.Module):
    """The logits of a model's heads; without heads its hidden states, and with `pooling` one vector per text.

    Outputs at padding tokens are undefined.
    """

    def __init__(self, model: Model, *, pooling: str | None = None, normalize: bool = False) -> None:
        super().__init__()
        self.model = model
        self.pooling, self.normalize = pooling, normalize
        if pooling is not None and len(model.objectives):
            raise BertsmithError("pooling applies to a model without heads: leave out the pooling or the heads")
        if pooling == "pooled" and not model.encoder.has_pooler:
            raise BertsmithError("this model has no pooler: use pooling mean or first")
        if pooling not in (None, *POOLINGS):
            raise BertsmithError(f'pooling "{pooling}" does not exist: choose {", ".join(POOLINGS)}')
        self.input_names = INPUT_NAMES if model.encoder.segment_types > 1 else INPUT_NAMES[:2]
        self.heads = cast(list[Objective], list(model.objectives.values()))
        self.output_names = self._output_names()
        if any(head.reads_target for head in self.heads):
            raise BertsmithError(
                "a graph has no decoder: export the encoder of a translation model, with --head vectors"
            )
        if any(head.sequence_decoder is not None for head in self.heads):
            raise BertsmithError(
                "this model predicts by a CRF, whose search for the best label sequence a graph cannot do: fine-tune "
                "it with head.crf=false to export it, or export the encoder with --head vectors"
            )
        if any(getattr(getattr(head, "config", None), "both_orders", False) for head in self.heads):
            raise BertsmithError(
                "this model reads each pair in both orders, which a graph of one text per row cannot: fine-tune it "
                "with head.both_orders=false to export it"
            )
        self.multiple_choice = any(head.several_rows for head in self.heads)  # inputs are [B, C, L]

    def _output_names(self) -> tuple[str, ...]:
        heads = self.heads
        if not heads:
            second = SENTENCE if self.pooling else POOLED if self.model.encoder.has_pooler else None
            return (LAST_HIDDEN, second) if second else (LAST_HIDDEN,)
        names: list[str] = []
        for head in heads:
            prefix = "" if len(heads) == 1 else f"{head.name}_"
            combined = head.combined_output_name if prefix else ""
            names += [combined] if combined else [prefix + name for name in head.output_names]
        return tuple(names)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> list[Tensor]:
        """The outputs in the order of `output_names`; `attention_mask` is 0 at padding."""
        shape = input_ids.shape  # [B, L], or [B, C, L]
        batch = as_batch(input_ids.view(-1, shape[-1]), attention_mask.view(-1, shape[-1]), token_type_ids)
        if not self.heads:
            return self._embeddings(batch)
        encoding = self._encode(batch, self.heads)
        outputs: list[Tensor] = []
        for head in self.heads:
            logits = head.predict(encoding, batch, self.model.encoder.token_embeddings)
            outputs += head.graph_outputs(logits, shape)
        return outputs

    def _embeddings(self, batch: Batch) -> list[Tensor]:
        encoding = self.model.encoder(batch, pool=self.pooling in (None, "pooled"))
        hidden_BLD = encoding.last_hidden.view(*batch.input_ids.shape, -1)
        if self.pooling is None:
            return [hidden_BLD, *([encoding.pooled] if self.model.encoder.has_pooler else [])]
        mask_BL1 = (batch.document_ids > 0).unsqueeze(-1)
        if self.pooling == "max":
            text_BD = hidden_BLD.masked_fill(~mask_BL1, float("-inf")).amax(1)
        elif self.pooling in ("mean", "mean_sqrt_len"):
            count_B1 = mask_BL1.to(hidden_BLD.dtype).sum(1)
            text_BD = (hidden_BLD * mask_BL1).sum(1) / (count_B1 if self.pooling == "mean" else count_B1.sqrt())
        else:
            text_BD = encoding.pooled if self.pooling == "pooled" else hidden_BLD[:, 0]
        return [hidden_BLD, F.normalize(text_BD, dim=-1) if self.normalize else text_BD]

    def _encode(self, batch: Batch, heads: list[Objective]) -> Encoding:
        """The encoding; if all heads read single tokens, the last layer runs on those only."""
        sparse = all(head.per_text and not (head.reads_all_tokens or head.reads_all_layers) for head in heads)
        indices = {head.name: cast(Tensor, head.indices(batch)) for head in heads if sparse and not head.reads_pooled}
        encoding: Encoding = self.model.encoder(
            batch.replace(indices={}),
            indices=indices if sparse else None,
            pool=any(head.reads_pooled for head in heads),
            return_layers=any(head.reads_all_layers for head in heads),
        )
        if sparse:
            return encoding
        selections = {head.name: cast(Tensor, head.indices(batch)) if head.per_text else slice(None) for head in heads}
        return replace(encoding, selections=selections)


def as_batch(input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None) -> Batch:
    """Rows [B, L] of one text each, with padding where the mask is 0."""
    rows, length = input_ids.shape
    return Batch(
        input_ids=input_ids,
        position_ids=torch.arange(length, device=input_ids.device).expand(rows, length),
        segment_ids=torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids.view(-1, length),
        document_ids=(attention_mask != 0).to(torch.int32),
        special_mask=attention_mask == 0,
        sample_ids=torch.zeros_like(input_ids),
        epoch=torch.zeros((), dtype=torch.int64),
        cu_seqlens=torch.zeros(1, dtype=torch.int32),  # only the variable-length kernel reads it
        cls_positions=torch.arange(rows, device=input_ids.device) * length,
        max_seqlen=length,
    )


class _LSTMNode(nn.Module):
    """Replaces an nn.LSTM of one layer by one ONNX node; torch's exporter would unroll it over the tokens."""

    weight_ih: Tensor  # [1, 4W, D]
    weight_hh: Tensor  # [1, 4W, W]
    bias: Tensor  # [1, 8W]

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.width = lstm.hidden_size
        order = [0, 3, 1, 2]  # ONNX has input, output, forget, cell; torch input, forget, cell, output
        ordered = {
            name: torch.cat([value.detach().chunk(4)[gate] for gate in order])
            for name, value in lstm.named_parameters()
        }
        self.register_buffer("weight_ih", ordered["weight_ih_l0"][None])
        self.register_buffer("weight_hh", ordered["weight_hh_l0"][None])
        self.register_buffer("bias", torch.cat((ordered["bias_ih_l0"], ordered["bias_hh_l0"]))[None])

    def forward(self, x_BLD: Tensor) -> tuple[Tensor, None]:
        """[B, L, D] -> [B, L, W]."""
        count, length, _ = x_BLD.shape
        out_L1BW = torch.onnx.ops.symbolic(
            "LSTM",
            (x_BLD.transpose(0, 1), self.weight_ih, self.weight_hh, self.bias),
            attrs={"hidden_size": self.width},
            dtype=x_BLD.dtype,
            shape=(length, 1, count, self.width),
        )
        return out_L1BW[:, 0].transpose(0, 1), None


@contextmanager
def with_lstm_nodes(model: nn.Module) -> Iterator[None]:
    """Replaces the LSTMs of a model by ONNX nodes inside the context."""
    networks = [module for module in model.modules() if isinstance(module, BiLSTM)]
    originals = [(network, network.forward_lstms, network.backward_lstms) for network in networks]
    for network in networks:
        network.forward_lstms, network.backward_lstms = (
            nn.ModuleList(_LSTMNode(cast(nn.LSTM, lstm)) for lstm in lstms)
            for lstms in (network.forward_lstms, network.backward_lstms)
        )
    try:
        yield
    finally:
        for network, forward, backward in originals:
            network.forward_lstms, network.backward_lstms = forward, backward


class OnnxFiles(NamedTuple):
    """The bytes of an ONNX model."""

    model: bytes
    weights: Iterable[bytes] | None  # of the external weights file; None if the model contains all weights


def require_packages() -> None:
    """An error if the packages of the onnx extra are not installed."""
    try:
        import onnx_ir  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise BertsmithError(f"ONNX needs the package {error.name}: pip install 'bertsmith[onnx]'") from error


def check_opset(opset: int) -> None:
    """An error for opsets that the exporter does not support."""
    if opset not in OPSETS:
        raise BertsmithError(f"opset {opset} is not supported: choose {OPSETS[0]} to {OPSETS[-1]}")


def convert(module: OnnxModule, *, opset: int = DEFAULT_OPSET, max_inline_bytes: int = MAX_INLINE_BYTES) -> OnnxFiles:
    """The ONNX model with dynamic batch size and length."""
    import onnx_ir

    check_opset(opset)
    model = _trace(module, opset)
    if model.opset_imports.get("") != opset:
        raise BertsmithError(f"this model cannot be exported with opset {opset}: use {DEFAULT_OPSET}")
    _strip(model)
    sizes = [value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None]
    weights = _externalize(model) if sum(sizes) > max_inline_bytes else None
    return OnnxFiles(onnx_ir.to_proto(model).SerializeToString(deterministic=True), weights)


def _trace(module: OnnxModule, opset: int) -> Any:
    """The graph of torch's exporter, as an onnx_ir model."""
    positions = module.model.encoder.max_positions
    length = min(7, positions)
    shape = (3, 2, length) if module.multiple_choice else (3, length)  # distinct sizes, so that axes stay distinct
    dims = [torch.export.Dim(name, min=1, max=None) for name in AXES[: len(shape) - 1]]
    dims.append(torch.export.Dim(AXES[2], min=1, max=positions))
    dynamic = tuple(dict(enumerate(dims)) for _ in module.input_names)
    examples = tuple(torch.ones(shape, dtype=torch.int64) for _ in module.input_names)  # a shared one would be merged
    try:
        with _quiet(), torch.no_grad(), with_lstm_nodes(module):
            program = torch.export.export(module.eval(), examples, dynamic_shapes=dynamic, strict=False)
            exported: Any = torch.onnx.export(
                program,
                dynamo=True,
                input_names=list(module.input_names),
                output_names=list(module.output_names),
                opset_version=opset,
                custom_translation_table={torch.ops.aten.remainder.Scalar: _remainder(opset)},
                verbose=False,
            )
    except Exception as error:  # the exporter has no common exception type
        reason = " ".join(str(error).split())[:200]
        raise BertsmithError(f"this model cannot be exported to ONNX: {type(error).__name__}: {reason}") from error
    return exported.model


def _remainder(opset: int) -> Any:
    """Translation of remainder by a dynamic size, which torch's own translation rejects."""
    import onnxscript

    op = getattr(onnxscript, f"opset{opset}")

    def remainder(dividend: Any, divisor: Any) -> Any:
        return op.Mod(dividend, op.CastLike(divisor, dividend))

    return remainder


def _strip(model: Any) -> None:
    """Names the axes, and removes metadata about source code and machine."""
    import onnx_ir

    axes = AXES if len(model.graph.inputs[0].shape) == len(AXES) else (AXES[0], AXES[2])
    names = dict(zip((dim.value for dim in model.graph.inputs[0].shape), axes, strict=True))
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.shape = onnx_ir.Shape([dim if isinstance(dim, int) else names[dim.value] for dim in value.shape])
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.graph.doc_string = model.doc_string = None
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
            if not value.is_graph_output():
                value.shape = value.type = None  # runtimes infer intermediate shapes
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    model.producer_name, model.producer_version = "bertsmith", __version__


def _externalize(model: Any) -> Iterable[bytes]:
    """Moves the larger weights to the external file; returns its bytes."""
    import onnx_ir

    offset, tensors = 0, []
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.nbytes < MIN_EXTERNAL_BYTES:
            continue
        value.const_value = onnx_ir.ExternalTensor(
            WEIGHTS_FILE, offset, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=tensor.name
        )
        tensors.append(tensor)
        offset += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    return (part for tensor in tensors for part in (tensor.tobytes(), bytes(-tensor.nbytes % ALIGNMENT)))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences warnings of the exporter about optional packages."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
