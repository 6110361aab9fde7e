"""Refusals that wait a moment: whoever hears at once that there is too much work asks again at once."""

from __future__ import annotations

import asyncio

from bertsmith.server.errors import RequestError
from bertsmith.server.metrics import Metrics
from bertsmith.server.settings import Limits


class Rejections:
    """Callers that wait to hear that there is too much work; their number is bounded."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits, self.metrics = limits, metrics
        self.waiting = 0

    async def hold(self, problem: RequestError) -> RequestError:
        """Keeps a caller waiting; where too many wait already, it is another problem, which ends its connection."""
        if self.waiting >= self.limits.max_rejections:
            self.metrics.rejections.labels("closed").inc()
            return RequestError(503, "overloaded", problem.message, headers=problem.headers, close=True)
        self.metrics.rejections.labels("delayed").inc()
        self.waiting += 1
        try:
            await asyncio.sleep(self.limits.rejection_seconds)
        finally:
            self.waiting -= 1
        return problem
