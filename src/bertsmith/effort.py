"""What a token costs: multiplications and additions of the matrix products that are useful, there and back.

Counted for everybody alike: every layer at every place, attention over the whole row, heads only where something is
asked. So a model that computes more than it must gains nothing by it.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from bertsmith.model import Model
from bertsmith.nn.attention import Attention
from bertsmith.objectives.words import Words

THERE_AND_BACK = 6  # for each weight of a matrix: 2 forward, 4 backward


def flops_per_token(model: Model, *, length: int, asked: Mapping[str, float]) -> float:
    """FLOP for a token in rows of `length` places; `asked`: by objective, things asked for each token."""
    attentions = sum(isinstance(part, Attention) for part in model.encoder.modules())
    found: float = THERE_AND_BACK * (_matrices(model.encoder) + 2 * attentions * model.encoder.width * length)
    for name, objective in model.objectives.items():
        table = model.encoder.table.numel() if isinstance(objective, Words) else 0
        found += THERE_AND_BACK * (_matrices(objective) + table) * asked.get(name, 0.0)
    return found


def _matrices(part: nn.Module) -> int:
    """Weights that every token is multiplied with; look-up tables and the pooler, which only first tokens meet, not."""
    left_out = {
        id(weight) for module in part.modules() if isinstance(module, nn.Embedding) for weight in module.parameters()
    }
    if isinstance(pooler := getattr(part, "pooler", None), nn.Module):
        left_out |= {id(weight) for weight in pooler.parameters()}
    return sum(weight.numel() for weight in part.parameters() if weight.dim() == 2 and id(weight) not in left_out)
