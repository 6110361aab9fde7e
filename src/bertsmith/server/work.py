"""Work for models in threads: admitted or not, within its deadline, dropped where the caller leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from bertsmith.errors import BertsmithError
from bertsmith.inference.engine import Deadline, DeadlineExceeded, EngineClosed, Overloaded, deadline
from bertsmith.inference.forward import Backend, ModelInput, Query
from bertsmith.inference.predictor import Predictor
from bertsmith.server.errors import RequestError, left, overloaded, without
from bertsmith.server.models import ServedModel
from bertsmith.server.request import RequestContext
from bertsmith.server.settings import Limits

Result = TypeVar("Result")
FULL = 0.9  # of what may wait: from there on nothing more is taken, however small


class Counting:
    """Computes by another, and counts tokens."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.tokens = backend, 0

    def run(self, wish: Query, items: Sequence[ModelInput]) -> list[Any]:
        """See `Computing`."""
        self.tokens += sum(item.tokens for item in items)
        return self.backend.run(wish, items)


class Work:
    """A bounded number of threads; each works for one request, and mostly waits for the engine."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.pool = ThreadPoolExecutor(limits.max_requests, thread_name_prefix="bertsmith-request")
        self.busy = 0
        self.lock = threading.Lock()

    async def run(self, visit: RequestContext, served: ServedModel, ask: Callable[[Predictor], Result]) -> Result:
        """What `ask` makes of the model, in a thread; a `Problem` where there is no room, no time or no sense in it."""
        seconds = self.limits.deadline - visit.seconds
        if seconds <= 0:
            raise self._late()
        self.check_room([served])
        with self.lock:
            self.busy += 1
        patience: Future[Deadline] = Future()
        counting = Counting(served.engine)
        try:
            task = self.pool.submit(self._ask, counting, served, ask, seconds, patience)
        except RuntimeError:  # the pool is shut
            self._free(None)
            raise RequestError(503, "unhealthy", "the server is stopping: ask another one", close=True) from None
        task.add_done_callback(self._free)
        try:
            return await self._wait(asyncio.wrap_future(task), visit, patience, seconds)
        except BertsmithError as error:
            raise self._problem(error, visit) from None
        finally:
            visit.tokens += counting.tokens

    def check_room(self, models: Iterable[ServedModel]) -> None:
        """Raises where none of these models may be asked for more; told here it costs no thread and no tokenizing."""
        waiting, most = min(one.engine.queued_tokens for one in models), self.limits.max_queued_tokens
        if waiting > FULL * most:
            raise overloaded(f"{waiting:,} tokens wait, at most {most:,}: --max-queued-tokens")
        if self.busy >= self.limits.max_requests:
            raise overloaded(f"{self.busy} requests are in work, at most {self.limits.max_requests}: --max-requests")

    def _ask(
        self,
        counting: Counting,
        served: ServedModel,
        ask: Callable[[Predictor], Result],
        seconds: float,
        patience: Future[Deadline],
    ) -> Result:
        with deadline(seconds) as mine:
            patience.set_result(mine)
            return ask(served.predictor.with_backend(counting))

    async def _wait(
        self, task: asyncio.Future[Result], visit: RequestContext, patience: Future[Deadline], seconds: float
    ) -> Result:
        gone = asyncio.ensure_future(visit.gone.wait())
        first: set[asyncio.Future[Any]] = {task, gone}
        try:
            await asyncio.wait(first, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not task.done():  # late, left or stopped: what is not yet computed need not be
                patience.add_done_callback(lambda ready: ready.result().cancel())
                task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody will ask for it
        if task.done():
            return task.result()
        raise left() if visit.gone.is_set() else self._late()

    def _free(self, _: Any) -> None:
        with self.lock:
            self.busy -= 1

    def _late(self) -> RequestError:
        return RequestError(
            503, "deadline", f"no answer within {self.limits.deadline:g} s: --deadline", headers={"Retry-After": "1"}
        )

    def _problem(self, error: BertsmithError, visit: RequestContext) -> RequestError:
        if isinstance(error, Overloaded):
            waits = f"{error.queued:,} tokens would wait, at most {error.limit:,}: --max-queued-tokens"
            return overloaded(waits)
        if isinstance(error, DeadlineExceeded):
            return self._late()
        if isinstance(error, EngineClosed):
            return RequestError(503, "unhealthy", "the server is stopping: ask another one", close=True)
        return RequestError(422, "validation", without(str(error), visit.value))

    def close(self) -> None:
        """Takes nothing more; what is under way goes on."""
        self.pool.shutdown(wait=False, cancel_futures=False)
