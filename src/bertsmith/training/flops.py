"""What a token costs: multiplications and additions of the matrix products that are useful, there and back.

Counted for everybody alike: every layer at every place, attention over the whole row, heads only where something is
asked. So a model that computes more than it must gains nothing by it.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from bertsmith.model_io.model import Model
from bertsmith.nn.attention import Attention
from bertsmith.objectives.objective import Objective

THERE_AND_BACK = 6  # for each weight of a matrix: 2 forward, 4 backward
WORTH_COMPILING = 60.0  # seconds of steps: compiling takes most of a minute and saves some of theirs
SHORT = 0.15  # seconds: graphs gained 1.3 % of a step of 0.07 s on an H200, far more of shorter ones


def flops_per_token(model: Model, *, length: int, asked: Mapping[str, float]) -> float:
    """FLOP for a token in rows of `length` places; `asked`: by objective, things asked for each token."""
    pooler = getattr(model.encoder, "pooler", None)  # which only first tokens meet
    found: float = sum(_every_token(part, length) for part in model.encoder.execution_order() if part is not pooler)
    for objective in (part for part in model.objectives.modules() if isinstance(part, Objective)):
        everywhere = objective.per_token_modules()
        inner = [part for part in objective.modules() if isinstance(part, Objective) and part is not objective]
        within = [*everywhere, *inner]
        own = _matrices(objective) - sum(map(_matrices, within))
        table = model.encoder.token_embeddings.numel() if objective.tied else 0
        found += sum(_every_token(part, length) for part in everywhere) + (own + table) * asked.get(objective.name, 0.0)
    return THERE_AND_BACK * found


def is_short(model: Model, *, places: int, length: int, peak: float) -> bool:
    """Whether a step over so many places is short."""
    return seconds_of(model, places=places, length=length, peak=peak) < SHORT


def seconds_of(model: Model, *, places: int, length: int, peak: float) -> float:
    """What a step over so many places takes at half of the peak (FLOP/s); heads and tables are left out."""
    return 2 * flops_per_token(model, length=length, asked={}) * places / peak


def _every_token(part: nn.Module, length: int) -> int:
    """Weights that a token is multiplied with in a part that all go through, attention's products among them."""
    widths = [module.output.in_features for module in part.modules() if isinstance(module, Attention)]
    return _matrices(part) + 2 * length * sum(widths)


def _matrices(part: nn.Module) -> int:
    """Weights that every token is multiplied with; look-up tables not."""
    left_out = {
        id(weight) for module in part.modules() if isinstance(module, nn.Embedding) for weight in module.parameters()
    }
    return sum(weight.numel() for weight in part.parameters() if weight.dim() == 2 and id(weight) not in left_out)
