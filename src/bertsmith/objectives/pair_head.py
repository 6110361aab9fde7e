"""Objectives that ask one of two things of each text, out of the encoder's own vector for it. N texts, D width."""

from __future__ import annotations

from torch import Tensor, nn

from bertsmith.objectives.objective import BuildContext, Objective
from bertsmith.types import Batch, Encoding


class PairHead(Objective):
    """Two classes from the pooled vector (bert: run_pretraining.py; albert: run_pretraining.py)."""

    reads_pooled = True

    def __init__(self, context: BuildContext, *, weight: float) -> None:
        super().__init__(weight=weight)
        self.classify = nn.Linear(context.width, 2)
        context.layer_config.init_weights(self)

    def predict(self, encoding: Encoding, batch: Batch, table: Tensor) -> Tensor:
        """The logits of both answers for each text [N, 2]."""
        assert encoding.pooled is not None, "the model asks the encoder to pool where an objective reads it"
        logits_N2: Tensor = self.classify(encoding.pooled)
        return logits_N2
