"""The service behind the routes: the models by name, run in worker threads within limits and deadlines.

Routes pass the service a function of a predictor; its result is the response.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import Depends
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from bertsmith.errors import BertsmithError
from bertsmith.inference.deadline import Deadline, DeadlineExceeded, RequestTooLarge, current_deadline, deadline
from bertsmith.inference.engine import BatchStats, Engine, EngineClosed, Overloaded
from bertsmith.inference.predictor import Predictor
from bertsmith.inference.word_labels import tags_entities
from bertsmith.model_io.loading import parameter_count
from bertsmith.objectives.objective import Pipeline, objectives_with
from bertsmith.server.errors import (
    RETRY_AFTER,
    RequestError,
    client_disconnected,
    over_limit,
    overloaded,
    redact,
    stopping,
)
from bertsmith.server.monitoring import Metrics, RequestContext, context_of
from bertsmith.server.settings import Limits

Result = TypeVar("Result")
LARGE_RESPONSES = 2  # made at the same time from many small objects, which take much memory
BYTES_PER_TOKEN = 4  # of a body, to estimate its tokens before it is read
FULL_QUEUE = 0.9  # share of max_queued_tokens from which on new requests are rejected before their body is read
HEALTH_TIMEOUT = 5.0  # seconds for the health check of each model
HEALTH_CACHE_SECONDS = 1.0
ROUTE_PIPELINES: dict[str, tuple[Pipeline, ...]] = {  # a model needs a head for one of them; none: any model
    **dict.fromkeys(("embed", "embed_all", "similarity", "rerank", "tokenize", "attention", "word-contexts"), ()),
    "fill-mask": ("fill-mask",),
    "next-sentence": ("next-sentence",),
    "predict": ("text-classification", "multi-label-classification", "text-regression"),
    "ner": ("token-classification",),  # with entity tags
    "tag-words": ("token-classification",),
    "qa": ("question-answering",),
    "choose": ("multiple-choice",),
    "v1/completions": ("text-generation",),
    "translate": ("translation",),
}
TRANSLATION_ROUTES = ("translate", "tokenize")  # of encoder–decoders


@dataclass(frozen=True)
class ServedModel:
    """A model with its engine, which is the backend of its predictor."""

    name: str
    predictor: Predictor
    engine: Engine

    def supports(self, route: str) -> bool:
        """Whether the model has a head, and labels, that the route needs."""
        if route == "attention" and not self.attention_heads:
            return False
        return self.has_head(route) and (route != "ner" or tags_entities(self.predictor.model))

    @property
    def attention_heads(self) -> int | None:
        """The attention heads of a layer; None where the encoder has no attention."""
        return getattr(self.predictor.model.encoder.config, "heads", None)

    def has_head(self, route: str) -> bool:
        """Whether the model has a head for one of the route's pipelines, and the kind of encoder that it needs."""
        pipelines = ROUTE_PIPELINES.get(route, ())
        if self.predictor.model.encoder.has_decoder and route not in TRANSLATION_ROUTES:
            return False
        return not pipelines or self.predictor.model.head_for(*pipelines) is not None

    def to_json(self) -> dict[str, Any]:
        """The model's entry in /info."""
        model, tokenizer, facts = self.predictor.model, self.predictor.tokenizer, self.predictor.facts
        encoder = model.encoder
        configs: list[Any] = [getattr(head, "config", None) for head in model.objectives.values()]
        return {
            "name": self.name,
            "architecture": facts.architectures[0] if facts and facts.architectures else type(encoder).__name__,
            "heads": list(model.objectives),
            "routes": [route for route in ROUTE_PIPELINES if self.supports(route)],
            "layers": encoder.layers,
            "width": encoder.width,
            "attention_heads": self.attention_heads,
            "max_length": encoder.max_positions,
            "vocab_size": tokenizer.vocab_size,
            "parameters": parameter_count(model),
            "labels": next((list(config.labels) for config in configs if getattr(config, "labels", ())), []),
            "mask_token": tokenizer.special_tokens.roles().get("mask"),
            "device": self.predictor.device,
        }


class Service:
    """The models of a server, each with an engine, and a pool of worker threads."""

    def __init__(self, models: Mapping[str, Predictor], limits: Limits) -> None:
        self.limits, self.metrics = limits, Metrics()
        self.draining = False
        self.last_batch: dict[str, float] = {}  # time.monotonic() by model
        self.models = {name: self._served(name, predictor) for name, predictor in models.items()}
        self.pool = ThreadPoolExecutor(limits.max_requests, thread_name_prefix="bertsmith-request")
        self.health_pool = ThreadPoolExecutor(1, thread_name_prefix="bertsmith-health")
        self.busy = 0  # worker threads
        self._large_responses = threading.BoundedSemaphore(LARGE_RESPONSES)
        self._lock = threading.Lock()
        self._health: tuple[float, dict[str, Any]] | None = None
        self._health_lock = asyncio.Lock()

    def _served(self, name: str, predictor: Predictor) -> ServedModel:
        self.last_batch[name] = time.monotonic()
        engine = Engine(
            predictor.backend,
            batch_tokens=self.limits.batch_tokens,
            max_queued_tokens=self.limits.max_queued_tokens,
            observe=partial(self._observe_batch, name),
        )
        self.metrics.queue_tokens.labels(name).set_function(lambda: engine.queued_tokens)
        return ServedModel(name, predictor.with_backend(engine), engine)

    def _observe_batch(self, name: str, stats: BatchStats) -> None:
        self.last_batch[name] = time.monotonic()
        self.metrics.batch(name, stats)

    async def run(self, request: Request, model: str | None, function: Callable[[Predictor], Result]) -> Result:
        """Calls a function with the model of a request, in a worker thread; `model` is the field of the body."""
        return await self.run_model(context_of(request), self.select(request, model), function)

    def select(self, request: Request, model: str | None) -> ServedModel:
        """The model of a request: by its path, by its field `model`, or the first that supports the route."""
        context = context_of(request)
        route, name = context.route.removeprefix("/"), context.model or model
        if name is not None and name not in self.models:
            raise RequestError(404, "not_found", f"no model has that name: choose {', '.join(self.models)}")
        candidates = list(self.models.values()) if name is None else [self.models[name]]
        # if only `has_head` holds, the pipeline raises an error that says why
        for supporting in (ServedModel.supports, ServedModel.has_head):
            if found := next((one for one in candidates if supporting(one, route)), None):
                return found
        needed = " or ".join(objectives_with(*ROUTE_PIPELINES[route]))
        if not needed:  # all are encoder–decoders
            names = " and ".join(one.name for one in candidates)
            message = f"/{route} needs an encoder, and {names} can only translate: send texts to /translate"
            raise RequestError(422, "validation", message)
        heads = "; ".join(f"{one.name} has {', '.join(one.predictor.model.objectives) or 'none'}" for one in candidates)
        raise RequestError(422, "validation", f"/{route} needs a model with a {needed} head: {heads}")

    async def run_model(
        self, context: RequestContext, served: ServedModel, function: Callable[[Predictor], Result]
    ) -> Result:
        """Calls a function with a model; a `RequestError` if the server is full, the deadline passes or it fails."""
        seconds = self.limits.deadline - context.seconds
        if seconds <= 0:
            raise self.late()
        self.check_capacity([served])
        with self._lock:
            self.busy += 1
        with deadline(seconds, max_tokens=self.limits.max_queued_tokens) as own:
            with_deadline = copy_context()  # for the worker thread
        try:
            task = self.pool.submit(with_deadline.run, function, served.predictor)
        except RuntimeError:  # the pool is shut down
            self._release(None)
            raise stopping() from None
        task.add_done_callback(self._release)
        try:
            return await self._wait(asyncio.wrap_future(task), context, own, seconds)
        except BertsmithError as error:
            raise self._request_error(error, context) from None
        finally:
            context.tokens += own.tokens

    async def stream(
        self, context: RequestContext, served: ServedModel, events: Callable[[Predictor], Iterator[str]]
    ) -> Response:
        """A response whose body is made event by event in a worker thread; it ends when the client disconnects.

        An error before the first event is an error response, a later one is the last event.
        """
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[str | None]()

        def run(predictor: Predictor) -> None:
            for event in events(predictor):
                loop.call_soon_threadsafe(queue.put_nowait, event)

        task = asyncio.create_task(self.run_model(context, served, run))
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            first = await queue.get()
            if first is None:
                await task
        except BaseException:
            task.cancel()
            raise

        async def body() -> AsyncIterator[str]:
            event = first
            try:
                while event is not None:
                    yield event
                    event = await queue.get()
                await task
            except RequestError as error:
                yield f"data: {error.body(openai=context.openai).decode()}\n\n"
            finally:
                task.cancel()

        return StreamingResponse(body(), media_type="text/event-stream")

    async def _wait(
        self, task: asyncio.Future[Result], context: RequestContext, own: Deadline, seconds: float
    ) -> Result:
        disconnected: asyncio.Future[Any] = asyncio.ensure_future(context.disconnected.wait())
        try:
            await asyncio.wait({task, disconnected}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnected.cancel()
            if not task.done():  # late, disconnected or cancelled: drop what is still queued
                own.cancelled = True
                task.add_done_callback(lambda done: done.cancelled() or done.exception())  # mark it as retrieved
        if task.done():
            return task.result()
        raise client_disconnected() if context.disconnected.is_set() else self.late()

    def _release(self, _: Any) -> None:
        with self._lock:
            self.busy -= 1

    def late(self) -> RequestError:
        """The error of a request that was not computed by its deadline."""
        message = f"no response within {self.limits.deadline:g} s (--deadline)"
        return RequestError(503, "deadline", message, headers=RETRY_AFTER)

    def _request_error(self, error: BertsmithError, context: RequestContext) -> RequestError:
        if isinstance(error, Overloaded):
            return overloaded(f"{error.queued:,} tokens would be queued, at most {error.limit:,} (--max-queued-tokens)")
        if isinstance(error, RequestTooLarge):
            if error.seconds is None:
                return over_limit(error.amount, "max_queued_tokens", error.limit)
            within = f"about {error.limit:,} can be computed within {self.limits.deadline:g} s (--deadline)"
            return RequestError(413, "too_large", f"{error.amount}, but only {within}: send fewer or shorter texts")
        if isinstance(error, DeadlineExceeded):
            return self.late()
        if isinstance(error, EngineClosed):
            return stopping()
        return RequestError(422, "validation", redact(str(error), context.json))

    @property
    def near_capacity(self) -> bool:
        """Whether `check_capacity` may fail; it is cheap, because it does not sum over the queue."""
        full = FULL_QUEUE * self.limits.max_queued_tokens
        return self.busy >= self.limits.max_requests or any(
            one.engine.queued_tokens > full for one in self.models.values()
        )

    def check_capacity(self, models: Iterable[ServedModel], size: int = 0) -> None:
        """An error if all of these models are overloaded for a body of `size` bytes; cheap: before a body is read."""
        limit = self.limits.max_queued_tokens
        queued = min(one.engine.queued_tokens for one in models)
        if queued > FULL_QUEUE * limit:  # the sum over the queue is needed only now
            queued = min(one.engine.tokens_ahead(max(1, size // BYTES_PER_TOKEN)) for one in models)
        if queued > FULL_QUEUE * limit:
            raise overloaded(f"the queue is full, at most {limit:,} tokens (--max-queued-tokens)")
        if self.busy >= self.limits.max_requests:
            raise overloaded(f"too many requests are in progress, at most {self.limits.max_requests} (--max-requests)")

    @contextmanager
    def large_response(self) -> Iterator[None]:
        """Limits the responses made at the same time to `LARGE_RESPONSES`; an error at the deadline of the request."""
        own = current_deadline()
        while not self._large_responses.acquire(timeout=0.05):
            own.check()
        try:
            yield
        finally:
            self._large_responses.release()

    def text_list(self, inputs: str | list[str]) -> list[str]:
        """The texts of a request; an error if there are none or too many."""
        texts = [inputs] if isinstance(inputs, str) else inputs
        self.check_count(len(texts))
        return texts

    def check_count(self, count: int, what: str = "texts") -> None:
        """An error if a request has no texts or too many."""
        if not count:
            raise RequestError(422, "validation", f"the request has no {what}: send at least one")
        if count > self.limits.max_texts:
            raise over_limit(f"{count} {what}", "max_texts", self.limits.max_texts)

    def check_numbers(self, count: int, what: str, unit: str = "numbers") -> None:
        """An error if a response would have too many numbers, or characters."""
        if count > self.limits.max_numbers:
            raise over_limit(f"{what} {count:,} {unit}", "max_numbers", self.limits.max_numbers)

    def truncated_header(self, truncated: Sequence[int]) -> dict[str, str]:
        """Counts truncated texts; the header of the response that lists them."""
        if truncated:
            self.metrics.truncations.inc(len(truncated))
        return {"X-Truncated": ",".join(map(str, truncated))} if truncated else {}

    async def health(self) -> dict[str, Any]:
        """`status` is ok if every model has just run a forward pass. Concurrent checks share one result."""
        if self.draining:
            return {"status": "draining"}
        async with self._health_lock:
            if self._health is None or time.monotonic() - self._health[0] > HEALTH_CACHE_SECONDS:
                failing = [one.name for one in self.models.values() if not await self._is_healthy(one)]
                result: dict[str, Any] = {"status": "failing", "models": failing} if failing else {"status": "ok"}
                self._health = (time.monotonic(), result)
            return self._health[1]

    async def _is_healthy(self, served: ServedModel) -> bool:
        """Whether a model can compute; a busy model is healthy as long as its batches finish."""
        began = time.monotonic()
        with deadline(HEALTH_TIMEOUT):
            with_deadline = copy_context()
        try:
            return await asyncio.wrap_future(
                self.health_pool.submit(with_deadline.run, _forward_once, served.predictor)
            )
        except (DeadlineExceeded, Overloaded):
            return self.last_batch[served.name] > began - HEALTH_TIMEOUT
        except Exception:  # any failure of the model makes it unhealthy
            return False

    def close(self, *, seconds: float) -> bool:
        """Drains and stops the engines; True if every accepted request was computed."""
        self.pool.shutdown(wait=False)
        self.health_pool.shutdown(wait=False)
        until = time.monotonic() + seconds
        finished = [one.engine.close(timeout=max(0.0, until - time.monotonic())) for one in self.models.values()]
        return all(finished)


def _forward_once(predictor: Predictor) -> bool:
    return bool(np.isfinite(predictor.encode("health", pooling="mean", prompt="")).all())


async def _service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceDependency = Annotated[Service, Depends(_service_of)]


def json_response(value: Any, **headers: str) -> Response:
    """A response with a JSON body. Bytes and strings are JSON already."""
    content = value if isinstance(value, bytes | str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
    return Response(content, headers=headers, media_type="application/json")
