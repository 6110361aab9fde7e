"""RoFormer in transformers' folders, with interleaved rotary dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from bertsmith.encoders import roformer
from bertsmith.encoders.transformer_encoder import TransformerConfig
from bertsmith.errors import ConfigError
from bertsmith.model_io.huggingface import family
from bertsmith.model_io.untrusted_files import ConfigReader, shown
from bertsmith.nn.attention import rotary_embedding

PREFIX = "roformer."
HEAD, ANGLES = "cls.predictions", "encoder.embed_positions.weight"
POSITIONS = "max_position_embeddings"


class RoFormer(family.SummaryFamily):
    """BERT's weight names except for the heads; sines and cosines of positions are stored."""

    def has_class(self, config: TransformerConfig) -> bool:
        """Its positions are always rotary."""
        return True

    def settings(self, reader: ConfigReader, sizes: Mapping[str, int]) -> dict[str, Any]:
        """BERT's; embeddings are as wide as the blocks, and values are not rotated."""
        reader.require("rotary_value", False)
        if (narrow := reader.get("embedding_size")) not in (None, sizes["hidden_size"]):
            claim = f"embedding_size={shown(narrow)} differs from hidden_size={sizes['hidden_size']}"
            raise ConfigError(f"{reader.path}: {claim}: RoFormer with factorised embeddings is not supported")
        return super().settings(reader, {**sizes, POSITIONS: reader.count(POSITIONS, 1536)})

    def summary_activation(self, reader: ConfigReader) -> str:
        """The activation of the blocks."""
        return reader.text("hidden_act", "gelu")

    def read_head(self, name: str, reader: ConfigReader) -> dict[str, Any]:
        """transformers reads the last token of choices by default."""
        if name == "choose" and reader.get("summary_use_proj") and reader.get("summary_type") is None:
            raise ConfigError(f"{reader.path} has no summary_type; bertsmith reads the first token of choices")
        return super().read_head(name, reader)

    def config_values(self, config: TransformerConfig) -> dict[str, Any]:
        """BERT's, without learned positions."""
        values = super().config_values(config)
        del values["position_embedding_type"]
        more = {"embedding_size": config.width, "rotary_value": False, "summary_activation": config.activation}
        return values | more

    def stored_constants(self, config: TransformerConfig) -> dict[str, torch.Tensor]:
        """Sines and cosines of all positions."""
        positions, base = torch.arange(config.max_positions), config.rope_theta
        assert base is not None
        angles = rotary_embedding(positions, head_width=config.width // config.heads, theta=base)
        return {f"{PREFIX}{ANGLES}": torch.cat((angles.sin, angles.cos), -1).squeeze(1)}


FAMILY = RoFormer(
    name="roformer",
    title="RoFormer",
    classes="RoFormer",
    prefix=PREFIX,
    encoder=roformer.Config,
    architectures={
        "RoFormerModel": (),
        "RoFormerForMaskedLM": ("masked_lm",),
        "RoFormerForCausalLM": ("causal_lm",),
        **family.task_architectures("RoFormer"),
    },
    heads={**dict.fromkeys(family.LM_HEADS, f"{HEAD}."), **family.TASK_HEADS},
    head_modules={
        **family.lm_modules(HEAD, f"{HEAD}.transform.dense", f"{HEAD}.transform.LayerNorm"),
        **family.task_modules("classifier.out_proj"),
    },
    copies=family.tied_decoder(HEAD, PREFIX),
    bare=("embeddings.", "encoder."),
    interleaved=("attention.self.query", "attention.self.key"),
    modules={ours: theirs for ours, theirs in family.BERT_MODULES.items() if not ours.endswith(".positions")},
    buffers=(ANGLES,),
    size_tensors={key: tensor for key, tensor in family.BERT_SIZE_TENSORS.items() if key != POSITIONS},
)
