"""Work for models in threads: admitted or not, within its deadline, dropped where the caller leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from bertsmith.errors import BertsmithError
from bertsmith.inference.forward import Computing, Item, Wish
from bertsmith.inference.engine import Closed, Expired, Overloaded, Patience, deadline
from bertsmith.inference.predictor import Predictor
from bertsmith.server.settings import Limits
from bertsmith.server.errors import Problem, left, overloaded, without
from bertsmith.server.models import Served
from bertsmith.server.request import Visit

Result = TypeVar("Result")
FULL = 0.9  # of what may wait: from there on nothing more is taken, however small


class Counting:
    """Computes by another, and counts tokens."""

    def __init__(self, computing: Computing) -> None:
        self.computing, self.tokens = computing, 0

    def compute(self, wish: Wish, items: Sequence[Item]) -> list[Any]:
        """See `Computing`."""
        self.tokens += sum(item.tokens for item in items)
        return self.computing.compute(wish, items)


class Work:
    """A bounded number of threads; each works for one request, and mostly waits for the engine."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.pool = ThreadPoolExecutor(limits.max_requests, thread_name_prefix="bertsmith-request")
        self.busy = 0
        self.lock = threading.Lock()

    async def run(self, visit: Visit, served: Served, ask: Callable[[Predictor], Result]) -> Result:
        """What `ask` makes of the model, in a thread; a `Problem` where there is no room, no time or no sense in it."""
        seconds = self.limits.deadline - visit.seconds
        if seconds <= 0:
            raise self._late()
        self.check_room([served])
        with self.lock:
            self.busy += 1
        patience: Future[Patience] = Future()
        counting = Counting(served.engine)
        try:
            task = self.pool.submit(self._ask, counting, served, ask, seconds, patience)
        except RuntimeError:  # the pool is shut
            self._free(None)
            raise Problem(503, "unhealthy", "the server is stopping: ask another one", close=True) from None
        task.add_done_callback(self._free)
        try:
            return await self._wait(asyncio.wrap_future(task), visit, patience, seconds)
        except BertsmithError as error:
            raise self._problem(error, visit) from None
        finally:
            visit.tokens += counting.tokens

    def check_room(self, models: Iterable[Served]) -> None:
        """Raises where none of these models may be asked for more; told here it costs no thread and no tokenizing."""
        waiting, most = min(one.engine.waiting for one in models), self.limits.waiting_tokens
        if waiting > FULL * most:
            raise overloaded(f"{waiting:,} tokens wait, at most {most:,}: --waiting-tokens")
        if self.busy >= self.limits.max_requests:
            raise overloaded(f"{self.busy} requests are in work, at most {self.limits.max_requests}: --max-requests")

    def _ask(
        self,
        counting: Counting,
        served: Served,
        ask: Callable[[Predictor], Result],
        seconds: float,
        patience: Future[Patience],
    ) -> Result:
        with deadline(seconds) as mine:
            patience.set_result(mine)
            return ask(served.predictor.through(counting))

    async def _wait(
        self, task: asyncio.Future[Result], visit: Visit, patience: Future[Patience], seconds: float
    ) -> Result:
        gone = asyncio.ensure_future(visit.gone.wait())
        first: set[asyncio.Future[Any]] = {task, gone}
        try:
            await asyncio.wait(first, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not task.done():  # late, left or stopped: what is not yet computed need not be
                patience.add_done_callback(lambda ready: ready.result().give_up())
                task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody will ask for it
        if task.done():
            return task.result()
        raise left() if visit.gone.is_set() else self._late()

    def _free(self, _: Any) -> None:
        with self.lock:
            self.busy -= 1

    def _late(self) -> Problem:
        return Problem(
            503, "deadline", f"no answer within {self.limits.deadline:g} s: --deadline", headers={"Retry-After": "1"}
        )

    def _problem(self, error: BertsmithError, visit: Visit) -> Problem:
        if isinstance(error, Overloaded):
            waits = f"{error.waiting:,} tokens would wait, at most {error.limit:,}: --waiting-tokens"
            return overloaded(waits)
        if isinstance(error, Expired):
            return self._late()
        if isinstance(error, Closed):
            return Problem(503, "unhealthy", "the server is stopping: ask another one", close=True)
        return Problem(422, "validation", without(str(error), visit.value))

    def close(self) -> None:
        """Takes nothing more; what is under way goes on."""
        self.pool.shutdown(wait=False, cancel_futures=False)
