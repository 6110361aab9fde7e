"""ASGI middleware in front of the routes: routing, API key, size and strict JSON are checked before anything else runs.

Every response passes through it, gets its headers here, and is counted and logged here.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import Response

from bertsmith.server.errors import RequestError, client_disconnected, internal_error, over_limit, stopping
from bertsmith.server.monitoring import Log, Metrics
from bertsmith.server.request import SCOPE_KEY, RequestContext, parse_json
from bertsmith.server.service import Service
from bertsmith.server.settings import Limits

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

DISCARD_SECONDS = 1.0  # for reading the rest of a rejected body, so that the client reads the response
METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT")  # that logs may contain
OPENAI_PREFIX = "/v1/"  # routes with OpenAI's error format
HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-store"}


class RouteTable:
    """Methods by path, for the routes of the application."""

    def __init__(self, routes: list[Any], *, is_public: Callable[[str, str], bool]) -> None:
        self.is_public = is_public  # (method, path): needs no API key
        self.exact: dict[str, dict[str, str]] = {}  # path -> method -> path template
        self.patterns = [route for route in routes if "{" in route.path]
        for route in routes:
            if "{" not in route.path:
                self.exact.setdefault(route.path, {}).update(_methods(route))

    def find(self, path: str, method: str) -> str:
        """The path template of a request's route."""
        known = dict(self.exact.get(path, {}))
        if not known:
            for route in self.patterns:
                known |= _methods(route) if route.path_regex.match(path) else {}
        if not known:
            raise RequestError(404, "not_found", "this path does not exist: GET /docs lists all paths")
        if method not in known:
            allowed = ", ".join(sorted(known))
            raise RequestError(405, "not_found", f"this path accepts only {allowed}", headers={"Allow": allowed})
        return known[method]


def _methods(route: Any) -> dict[str, str]:
    return {method: route.path for method in route.methods if method != "HEAD"}


class Rejections:
    """Delays a bounded number of 429 responses: a client that is rejected at once retries at once."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits, self.metrics = limits, metrics
        self.waiting = 0

    async def delay(self, error: RequestError) -> RequestError:
        """The error, after a delay; if too many are delayed already, a 503 that closes the connection."""
        if not error.delayed:
            return error
        if self.waiting >= self.limits.max_rejections:
            self.metrics.rejections.labels("closed").inc()
            return RequestError(503, "overloaded", error.message, headers=error.headers, close=True)
        self.metrics.rejections.labels("delayed").inc()
        self.waiting += 1
        try:
            await asyncio.sleep(self.limits.rejection_seconds)
        finally:
            self.waiting -= 1
        return error


def error_response(error: RequestError, context: RequestContext) -> Response:
    """The response of an error."""
    headers = error.headers | ({"connection": "close"} if error.close else {})
    body = error.body(openai=context.route.startswith(OPENAI_PREFIX))
    return Response(body, error.status, headers, "application/json")


class Gateway:
    """The middleware, and the ASGI application of the server."""

    def __init__(
        self, app: App, routes: RouteTable, limits: Limits, *, service: Service, log: Log, api_key: str | None = None
    ) -> None:
        self.app, self.routes, self.limits, self.service = app, routes, limits, service
        self.metrics, self.log = service.metrics, log
        self.api_key = None if api_key is None else api_key.encode()
        self.rejections = Rejections(limits, service.metrics)
        self.in_progress = 0  # accepted requests without a response
        self.aborted = 0  # accepted requests that were dropped when the server stopped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._handle(scope, receive, send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = scope[SCOPE_KEY] = RequestContext(scope["method"] if scope["method"] in METHODS else "unknown")
        body = _RequestBody(scope, receive, context)
        sender = _ResponseSender(send, context, self.service)
        self.metrics.in_flight.inc()
        try:
            await self._check(scope, context, body)
            await self._run(scope, body, sender)
        except RequestError as error:
            await self._reject(error, scope, body, sender)
        except asyncio.CancelledError:  # the server stops, and the drain time is over
            self.aborted += 1
            if not context.status:
                stopped = RequestError(503, "unhealthy", "the server has stopped", close=True)
                await self._reject(stopped, scope, body, sender)
        except Exception as error:
            self.log.internal_error(context, error)
            if not context.status:
                await self._reject(internal_error(context.id), scope, body, sender)
        finally:
            self.metrics.in_flight.dec()
            self.metrics.request(context.route, context.status, context.seconds, context.tokens)
            self.log.request(context)

    async def _check(self, scope: Scope, context: RequestContext, body: _RequestBody) -> None:
        """Everything that must hold before a route runs, the cheapest checks first."""
        path = _strip_model(scope, context)
        context.route = self.routes.find(path, context.method)
        if not self.routes.is_public(context.method, path):
            self._check_api_key(body.headers)
        if context.method == "POST":
            if self.service.draining:
                raise stopping()
            self.service.check_capacity(self.service.models)
            body.check_content_type()
        context.body = await body.read(self.limits)
        if context.method == "POST":
            context.json = parse_json(context.body, self.limits)

    async def _run(self, scope: Scope, body: _RequestBody, sender: _ResponseSender) -> None:
        watch = asyncio.create_task(body.watch_disconnect())
        self.in_progress += 1
        try:
            await self.app(scope, body.replay, sender)
        finally:
            self.in_progress -= 1
            watch.cancel()

    def _check_api_key(self, headers: dict[bytes, bytes]) -> None:
        if self.api_key is None:
            return
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if not hmac.compare_digest(key.strip(), self.api_key) or scheme.lower() != b"bearer":
            message = "this server requires an API key: send Authorization: Bearer KEY"
            raise RequestError(401, "unauthorized", message, headers={"WWW-Authenticate": 'Bearer realm="bertsmith"'})

    async def _reject(self, error: RequestError, scope: Scope, body: _RequestBody, sender: _ResponseSender) -> None:
        error = await self.rejections.delay(error)
        error.close = error.close or not await body.discard(self.limits)
        await error_response(error, body.context)(scope, body.replay, sender)


def _strip_model(scope: Scope, context: RequestContext) -> str:
    """Removes /models/NAME from the path; the name goes to the context."""
    path: str = scope["path"]
    if path.startswith("/models/"):
        name, slash, rest = path.removeprefix("/models/").partition("/")
        if name and slash:
            context.model = name
            path = scope["path"] = f"/{rest}"
            scope["raw_path"] = path.encode("utf-8", "replace")
    return path


class _RequestBody:
    """The body of one request, read once, within the limits."""

    def __init__(self, scope: Scope, receive: Receive, context: RequestContext) -> None:
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.receive, self.context = receive, context
        length = self.headers.get(b"content-length", b"0")
        self.declared = int(length[:20]) if length.isdigit() else 0
        self.empty = length == b"0" and b"transfer-encoding" not in self.headers
        self.complete = False
        self.replayed = False

    def check_content_type(self) -> None:
        """An error unless the body is declared as uncompressed JSON."""
        kind, _, rest = self.headers.get(b"content-type", b"").partition(b";")
        charset = rest.strip().lower().removeprefix(b"charset=").strip(b'"')
        if kind.strip().lower() != b"application/json" or charset not in (b"", b"utf-8"):
            raise RequestError(415, "validation", "the body must be JSON in UTF-8: send Content-Type: application/json")
        if self.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise RequestError(415, "validation", "the body must not be compressed: do not send Content-Encoding")

    async def read(self, limits: Limits) -> bytes:
        """The body; an error if it is too large or too slow."""
        if self.declared > limits.max_body:
            raise over_limit(f"a body of {self.declared:,} bytes", "max_body", limits.max_body)
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(limits.read_seconds):
                while not self.complete:
                    chunks.append(await self._chunk())
                    size += len(chunks[-1])
                    if size > limits.max_body:
                        raise over_limit(f"a body of over {limits.max_body:,} bytes", "max_body", limits.max_body)
        except TimeoutError:
            message = f"the body did not arrive within {limits.read_seconds:g} s (--read-seconds)"
            raise RequestError(408, "deadline", message, close=True) from None
        return b"".join(chunks)

    async def _chunk(self) -> bytes:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            self.context.disconnected.set()
            self.complete = True
            raise client_disconnected()
        self.complete = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        return chunk

    async def discard(self, limits: Limits) -> bool:
        """Reads the rest of a rejected body; False if it does not end soon."""
        if self.empty:
            return True
        if b"expect" in self.headers or self.declared > 2 * limits.max_body:
            return self.complete  # reading would make the client send the rest
        size, until = 0, time.monotonic() + DISCARD_SECONDS
        try:
            async with asyncio.timeout(DISCARD_SECONDS):
                while not self.complete and size <= limits.max_body and time.monotonic() < until:
                    size += len(await self._chunk())
        except (TimeoutError, RequestError):
            return False
        return self.complete

    async def watch_disconnect(self) -> None:
        """Waits until the client disconnects."""
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.context.disconnected.set()

    async def replay(self) -> Message:
        """ASGI receive for the application: the body that was read, then the disconnect."""
        if not self.replayed:
            self.replayed = True
            return {"type": "http.request", "body": self.context.body, "more_body": False}
        await self.context.disconnected.wait()
        return {"type": "http.disconnect"}


class _ResponseSender:
    """ASGI send that records the status and adds headers."""

    def __init__(self, send: Send, context: RequestContext, service: Service) -> None:
        self.send, self.context, self.service = send, context, service

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.context.status = message["status"]
            present = {name.lower() for name, _ in message["headers"]}
            added = {**HEADERS, "x-request-id": self.context.id}
            if self.service.draining:
                added["connection"] = "close"
            extra = [(name.encode(), value.encode()) for name, value in added.items() if name.encode() not in present]
            message = {**message, "headers": [*message["headers"], *extra]}
        await self.send(message)
