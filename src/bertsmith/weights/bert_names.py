"""BERT's weights by our names and by transformers': which of theirs make up one of ours, and spellings of old.

Ours are those of `Model.state_dict()`. Attention is one matrix here and three there. Knows names only, no tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from bertsmith.errors import DataError

PREFIX = "bert."  # before the encoder's names wherever there is a head
TABLE = "bert.embeddings.word_embeddings.weight"
HEADS = {  # how the weights of each objective's head begin in transformers
    "masked_lm": "cls.predictions.",
    "causal_lm": "cls.predictions.",
    "next_sentence": "cls.seq_relationship.",
    "classify": "classifier.",
    "regress": "classifier.",
    "tag": "classifier.",
    "choose": "classifier.",
    "span": "qa_outputs.",
}
POOLER = "bert.pooler."
TENSORS_PER_LAYER = 16

# Of our modules; {} is the number of a layer.
MODULES = {
    "encoder.embeddings.tokens": "bert.embeddings.word_embeddings",
    "encoder.embeddings.positions": "bert.embeddings.position_embeddings",
    "encoder.embeddings.segments": "bert.embeddings.token_type_embeddings",
    "encoder.embeddings.norm": "bert.embeddings.LayerNorm",
    "encoder.blocks.{}.attention.output": "bert.encoder.layer.{}.attention.output.dense",
    "encoder.blocks.{}.attention_norm": "bert.encoder.layer.{}.attention.output.LayerNorm",
    "encoder.blocks.{}.feed_forward.expand": "bert.encoder.layer.{}.intermediate.dense",
    "encoder.blocks.{}.feed_forward.contract": "bert.encoder.layer.{}.output.dense",
    "encoder.blocks.{}.feed_forward_norm": "bert.encoder.layer.{}.output.LayerNorm",
    "encoder.pooler": "bert.pooler.dense",
    "objectives.masked_lm": "cls.predictions",
    "objectives.masked_lm.transform": "cls.predictions.transform.dense",
    "objectives.masked_lm.norm": "cls.predictions.transform.LayerNorm",
    "objectives.causal_lm": "cls.predictions",
    "objectives.causal_lm.transform": "cls.predictions.transform.dense",
    "objectives.causal_lm.norm": "cls.predictions.transform.LayerNorm",
    "objectives.next_sentence.classify": "cls.seq_relationship",
    "objectives.classify.head": "classifier",
    "objectives.regress.head": "classifier",
    "objectives.tag.head": "classifier",
    "objectives.choose.head": "classifier",
    "objectives.span.head": "qa_outputs",
}
OURS, OWN_PREFIX = "objectives.", "bertsmith."  # before the weights of heads that transformers has not
QKV = "encoder.blocks.{}.attention.qkv"
SELF_ATTENTION = "bert.encoder.layer.{}.attention.self."

# Buffers that transformers stored before version 4.31: counted, not learned.
BUFFERS = {"bert.embeddings.position_ids", "bert.embeddings.token_type_ids"}
# The same tensor once more, under the name of the layer that uses it: (copy, original).
COPIES = (("cls.predictions.decoder.weight", TABLE), ("cls.predictions.decoder.bias", "cls.predictions.bias"))


def their_names(ours: str, *, own: bool = False) -> tuple[str, ...]:
    """transformers' names of what is one weight here, in the order in which they are stacked.

    `own`: the heads are such as transformers has not, and keep our names.
    """
    if own and ours.startswith(OURS):
        return (OWN_PREFIX + ours.removeprefix(OURS),)
    module, _, kind = ours.rpartition(".")
    number = re.search(r"\.blocks\.(\d+)\.", ours)
    general = module if number is None else module.replace(f".blocks.{number[1]}.", ".blocks.{}.", 1)
    layer = number[1] if number else ""
    if general == QKV:
        return tuple(f"{SELF_ATTENTION}{part}.{kind}".format(layer) for part in ("query", "key", "value"))
    return (f"{MODULES[general]}.{kind}".format(layer),)


def modern(name: str) -> str:
    """A name as transformers writes it today in a model with heads: `bert.` in front, weight and bias of norms."""
    name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
    return f"{PREFIX}{name}" if re.match(r"(embeddings|encoder|pooler)\.", name) else name


def modern_names(found: Iterable[str], where: object) -> dict[str, str]:
    """Today's name -> the name found; two that come to the same are a DataError."""
    names: dict[str, str] = {}
    for name in found:
        new = modern(name)
        if new in names:
            raise DataError(f"{where}: {names[new]!r} and {name!r} are two names of one weight")
        names[new] = name
    return names


def layers_of(names: Iterable[str]) -> int:
    """How many layers have weights."""
    return len({found[1] for name in names if (found := re.match(r"bert\.encoder\.layer\.(\d+)\.", name))})
