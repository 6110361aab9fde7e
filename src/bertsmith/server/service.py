"""What every route works with: the models, their threads, the limits and counters. Starts and ends with the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request

from bertsmith.inference.engine import BatchStats, Engine
from bertsmith.inference.predictor import Predictor
from bertsmith.server.errors import RequestError, over_limit
from bertsmith.server.metrics import Metrics
from bertsmith.server.models import ModelRegistry, ServedModel
from bertsmith.server.request import RequestContext, visit_in
from bertsmith.server.settings import Limits
from bertsmith.server.work import Work
from bertsmith.server.writing import Reply

HEALTH_SECONDS = 5.0  # in which each model must have computed something
HEALTH_KEPT = 1.0  # seconds for which an answer about health holds


class Service:
    """Models at work."""

    def __init__(
        self, models: Sequence[tuple[str, Predictor]], limits: Limits, *, metrics: Metrics, runs: Path | None = None
    ) -> None:
        self.limits, self.metrics, self.runs = limits, metrics, runs
        self.batch_ended: dict[str, float] = {}
        self.shelf = ModelRegistry([self._served(name, predictor) for name, predictor in models])
        self.work = Work(limits)
        self.draining = False
        self._health: tuple[float, dict[str, Any]] | None = None
        self._asking_health = asyncio.Lock()
        metrics.watch_queue(lambda: [(one.name, one.engine.queued_tokens) for one in self.shelf])

    def _served(self, name: str, predictor: Predictor) -> ServedModel:
        self.batch_ended[name] = time.monotonic()
        engine = Engine(
            predictor.backend,
            batch_tokens=self.limits.batch_tokens,
            max_queued_tokens=self.limits.max_queued_tokens,
            observe=partial(self._batch, name),
        )
        return ServedModel(name, predictor.with_backend(engine), engine)

    def _batch(self, name: str, facts: BatchStats) -> None:
        self.batch_ended[name] = time.monotonic()
        self.metrics.batch(name, facts)

    async def answer(
        self, request: Request, route: str, ask: Callable[[Predictor], Reply], *, model: str | None
    ) -> Reply:
        """Lets a model work for a request; `ask` runs in a thread."""
        return await self.work.run(visit_in(request.scope), self.chosen(request, route, model), ask)

    def chosen(self, request: Request, route: str, model: str | None) -> ServedModel:
        """The model that a request is for: by its path, by its field, or the first that can."""
        return self.shelf.find(visit_in(request.scope).model or model, route)

    def check_count(self, texts: int, what: str = "texts") -> None:
        """Raises where a request has no texts or too many."""
        if not texts:
            raise RequestError(422, "validation", f"no {what} were sent: send at least one")
        if texts > self.limits.max_texts:
            raise over_limit(f"{texts} {what}", "max_texts", self.limits.max_texts)

    def check_numbers(self, count: int, what: str) -> None:
        """Raises where an answer would hold too many numbers."""
        if count > self.limits.max_numbers:
            raise over_limit(f"{what} {count:,} numbers", "max_numbers", self.limits.max_numbers)

    # Is everything well?

    async def health(self) -> dict[str, Any]:
        """`status` is ok after a forward of every model; kept for a moment, and asked once for all who ask."""
        if self.draining:
            return {"status": "draining"}
        async with self._asking_health:
            if self._health is None or time.monotonic() - self._health[0] > HEALTH_KEPT:
                failing = [one.name for one in self.shelf if not await self._is_well(one)]
                found: dict[str, Any] = {"status": "failing", "models": failing} if failing else {"status": "ok"}
                self._health = (time.monotonic(), found)
            return self._health[1]

    async def _is_well(self, served: ServedModel) -> bool:
        """Whether a model has computed something just now; one that is busy is well while batches come through."""
        visit, began = RequestContext("GET", "/health"), time.monotonic()
        try:
            return await asyncio.wait_for(self.work.run(visit, served, _one_forward), HEALTH_SECONDS)
        except TimeoutError:
            return self.batch_ended[served.name] > began
        except RequestError as problem:
            return problem.kind == "overloaded" and self.batch_ended[served.name] > began - HEALTH_SECONDS
        except Exception:  # a model that cannot compute is what is asked for here
            return False

    def close(self, *, drain: bool, seconds: float) -> bool:
        """Ends the engines; True where everything that was taken on was computed."""
        self.work.close()
        until = time.monotonic() + seconds
        done = [one.engine.close(drain=drain, timeout=max(0.0, until - time.monotonic())) for one in self.shelf]
        return all(done)


def _one_forward(predictor: Predictor) -> bool:
    return bool(np.isfinite(predictor.encode("health", pooling="mean")).all())


def service_of(request: Request) -> Service:
    """The service that a request came to."""
    found: Service = request.app.state.service
    return found
