"""ASGI middleware in front of the routes: routing, API key, size and strict JSON are checked before anything else runs.

Every response passes through it, gets its headers here, and is counted and logged here.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertsmith.server.errors import RequestError, client_disconnected, internal_error, over_limit, overloaded, stopping
from bertsmith.server.monitoring import SCOPE_KEY, Log, RequestContext
from bertsmith.server.schemas import parse_json
from bertsmith.server.service import Service
from bertsmith.server.settings import AllowedHosts, Limits

DISCARD_SECONDS = 1.0  # for reading the rest of a rejected body, so that the client reads the response
METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT")  # that logs may contain
HEALTH_PATHS = ("/health", "/health/live", "/health/ready")
OVERFLOW = "bertsmith.overflow"  # key of the scope: the connection is over the limit and is only for health checks
FLUSH_SECONDS = 0.02
LARGE_BODY = 256 << 10  # bytes; few requests with larger bodies are processed at a time, so that small ones can run
LARGE_REQUESTS = 2  # processed at the same time
BUFFERED_BODIES = 16  # bodies of the maximum size that may be in memory
OPENAI_PREFIX = "/v1/"  # routes with OpenAI's error format
HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-store"}


def error_response(error: RequestError, context: RequestContext) -> Response:
    """The response of an error."""
    headers = error.headers | ({"connection": "close"} if error.close else {})
    body = error.body(openai=context.openai)
    return Response(body, error.status, headers, "application/json")


class DelayedCalls:
    """Calls functions after a delay. One timer calls all that are due: cheaper than a timer for each."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[float, Callable[..., None], tuple[Any, ...]]] = deque()

    def add(self, seconds: float, function: Callable[..., None], *arguments: Any) -> None:
        """Calls the function after so many seconds, immediately if 0; all other delays must be equal."""
        if not seconds:
            function(*arguments)
            return
        if not self.waiting:
            asyncio.get_running_loop().call_later(seconds, self._flush)
        self.waiting.append((time.monotonic() + seconds, function, arguments))

    def _flush(self) -> None:
        try:
            while self.waiting and self.waiting[0][0] <= time.monotonic():
                _, function, arguments = self.waiting.popleft()
                function(*arguments)
        finally:
            if self.waiting:
                wait = max(self.waiting[0][0] - time.monotonic(), FLUSH_SECONDS)
                asyncio.get_running_loop().call_later(wait, self._flush)


class Gateway:
    """The middleware, and the ASGI application of the server."""

    def __init__(
        self,
        app: ASGIApp,
        routes: list[Any],
        service: Service,
        *,
        public: set[str],
        log: Log,
        api_key: str | None,
        allowed_hosts: AllowedHosts | None,
    ) -> None:
        self.app, self.routes, self.service, self.log = app, routes, service, log
        self.allowed_hosts = allowed_hosts  # None: any
        self.post_paths = {route.path for route in routes if "POST" in route.methods}
        self.public = public  # path templates that need no API key
        self.limits, self.metrics = service.limits, service.metrics
        self.api_key = None if api_key is None else api_key.encode()
        self.delayed = 0  # 429 responses
        self.buffered = 0  # bytes of bodies in memory
        self.large_requests = asyncio.Semaphore(LARGE_REQUESTS)
        self.rejections = DelayedCalls()
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
        sender = self._with_headers(send, context, close=scope.get(OVERFLOW, False))
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
            self.buffered -= body.size
            self.metrics.in_flight.dec()
            self.metrics.request(context)
            self.log.request(context)

    async def _check(self, scope: Scope, context: RequestContext, body: _RequestBody) -> None:
        """Everything that must hold before a route runs, the cheapest checks first."""
        host = _origin_form(scope) or body.headers.get(b"host", b"").decode("latin-1")
        path = _strip_model(scope, context)
        context.openai = path.startswith(OPENAI_PREFIX)
        if path not in HEALTH_PATHS:  # which are never refused, and contain no data
            self._check_connection(scope, host)
        if b"content-length" in body.headers and b"transfer-encoding" in body.headers:
            message = "the request has both Content-Length and Transfer-Encoding: send one of them"
            raise RequestError(400, "validation", message, close=True)
        context.route = self._find_route(path, "GET" if context.method == "HEAD" else context.method)
        if context.route not in self.public:
            self._check_api_key(body.headers)
        if context.method == "POST":
            if self.service.draining:
                raise stopping()
            self.check_capacity(context.model, body.declared)
            body.check_content_type()
        context.body = await body.read(self.limits, self._buffer)

    def _buffer(self, size: int) -> None:
        """Counts bytes of a body; an error if bodies already fill the memory for them."""
        if self.buffered > BUFFERED_BODIES * self.limits.max_body:
            raise overloaded(f"too many large requests are in progress, at most {BUFFERED_BODIES} of --max-body")
        self.buffered += size

    @asynccontextmanager
    async def _turn(self, context: RequestContext) -> AsyncIterator[None]:
        """Requests with a large body take turns, until their deadline; small ones do not wait."""
        if len(context.body) <= LARGE_BODY:
            yield
            return
        turn = asyncio.ensure_future(self.large_requests.acquire())
        left = asyncio.ensure_future(context.disconnected.wait())
        try:
            seconds = max(0.0, self.limits.deadline - context.seconds)
            await asyncio.wait({turn, left}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if context.disconnected.is_set():
                raise client_disconnected()
            if not turn.done():
                raise self.service.late()
            yield
        finally:
            left.cancel()
            if not turn.cancel():
                self.large_requests.release()

    def _check_connection(self, scope: Scope, host: str) -> None:
        if scope.get(OVERFLOW):
            limit = f"{self.limits.max_connections} connections are open, which is the limit (--max-connections)"
            raise RequestError(503, "overloaded", limit, close=True)
        if self.allowed_hosts is not None and host not in self.allowed_hosts:
            message = "this server does not answer to the name in the Host header: start it with --allowed-host NAME"
            raise RequestError(403, "unauthorized", message)

    def check_capacity(self, model: str | None, size: int) -> None:
        """An error if the model in the path, or without one every model, is too busy for a request of `size` bytes."""
        named = self.service.models.get(model or "")
        self.service.check_capacity([named] if named else self.service.models.values(), size)

    def _find_route(self, path: str, method: str) -> str:
        """The path template of a request's route."""
        known: dict[str, str] = {}  # by method
        for route in self.routes:
            if route.path == path or ("{" in route.path and route.path_regex.match(path)):
                known |= dict.fromkeys(route.methods, route.path)
        if not known:
            raise RequestError(404, "not_found", "this path does not exist: GET /docs lists all paths")
        if method not in known:
            allowed = ", ".join(sorted({*known, "HEAD"} if "GET" in known else known))
            raise RequestError(405, "not_found", f"this path accepts only {allowed}", headers={"Allow": allowed})
        return known[method]

    async def _run(self, scope: Scope, body: _RequestBody, sender: Send) -> None:
        watch = asyncio.create_task(body.watch_disconnect())
        self.in_progress += 1
        try:
            async with self._turn(body.context):
                if scope["method"] == "POST":
                    body.context.json = parse_json(body.context.body, self.limits)
                method = "GET" if scope["method"] == "HEAD" else scope["method"]  # uvicorn leaves out the body
                await self.app({**scope, "method": method}, body.replay, sender)
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

    def _with_headers(self, send: Send, context: RequestContext, *, close: bool) -> Send:
        """ASGI send that records the status and adds headers."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                present = {name.lower() for name, _ in message["headers"]}
                added = HEADERS | {"x-request-id": context.id}
                if self.service.draining or close:
                    added["connection"] = "close"
                extra = [(name.encode(), value.encode()) for name, value in added.items()]
                headers = [*message["headers"], *(one for one in extra if one[0] not in present)]
                message = {**message, "headers": headers}
            await send(message)

        return send_with_headers

    async def _reject(self, error: RequestError, scope: Scope, body: _RequestBody, sender: Send) -> None:
        error = await self.delay(error)
        error.close = error.close or not await body.discard(self.limits)
        await error_response(error, body.context)(scope, body.replay, sender)

    async def delay(self, error: RequestError) -> RequestError:
        """Waits before a 429 response."""
        error, seconds = self.delay_of(error)
        if error.delayed:
            try:
                await asyncio.sleep(seconds)
            finally:
                self.delayed -= 1
        return error

    def reject_unparsed(self, path: str, size: int) -> tuple[RequestContext, RequestError, float] | None:
        """The rejection of a POST request by an overloaded server, and the seconds before it is sent; else None.

        The caller sends it and calls `finish_rejection`.
        """
        context = RequestContext("POST")
        path = _strip_model({"path": path}, context)
        if self.service.draining or path not in self.post_paths:
            return None
        try:
            self.check_capacity(context.model, size)
        except RequestError as error:
            context.route, context.openai = path, path.startswith(OPENAI_PREFIX)
            return context, *self.delay_of(error)
        return None

    def finish_rejection(self, context: RequestContext, error: RequestError) -> None:
        """Counts and logs the response of `reject_unparsed`."""
        context.status = error.status
        self.delayed -= error.delayed
        self.metrics.request(context)
        self.log.request(context)

    def delay_of(self, error: RequestError) -> tuple[RequestError, float]:
        """The response, and the seconds before it: a client that is rejected at once retries at once.

        A 429 is counted in `delayed` until it is sent; it becomes a 503 if too many are.
        """
        if not error.delayed:
            return error, 0.0
        if self.delayed >= self.limits.max_rejections:
            self.metrics.rejections.labels("closed").inc()
            return RequestError(503, "overloaded", error.message, headers=error.headers, close=True), 0.0
        self.metrics.rejections.labels("delayed").inc()
        self.delayed += 1
        return error, self.limits.rejection_seconds


def _origin_form(scope: Scope) -> str:
    """Reduces a target in absolute form, http://host/path, to its path; returns its host."""
    target = scope.get("raw_path") or b""
    match = re.match(rb"https?://([^/]*)", target, re.IGNORECASE)
    if not match:
        return ""
    raw_path = scope["raw_path"] = target[match.end() :] or b"/"
    scope["path"] = unquote(raw_path.decode("ascii"))
    return match[1].decode("ascii")


def _strip_model(scope: Scope, context: RequestContext) -> str:
    """Removes /models/NAME from the path; the name goes to the context."""
    path: str = scope["path"]
    if match := re.fullmatch(r"/models/([^/]+)(/.*)", path, re.DOTALL):
        context.model, path = match.groups()
        scope["path"], scope["raw_path"] = path, path.encode("utf-8", "replace")
    return path


class _RequestBody:
    """The body of one request, read once, within the limits."""

    def __init__(self, scope: Scope, receive: Receive, context: RequestContext) -> None:
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.receive, self.context = receive, context
        length = self.headers.get(b"content-length", b"0")
        self.declared = int(length[:20]) if length.isdigit() else 0
        self.empty = length == b"0" and b"transfer-encoding" not in self.headers
        self.size = 0  # bytes in memory
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

    async def read(self, limits: Limits, buffer: Callable[[int], None]) -> bytes:
        """The body; an error if it is too large or too slow. `buffer` is called with the size of each part."""
        if self.declared > limits.max_body:
            raise over_limit(f"a body of {self.declared:,} bytes", "max_body", limits.max_body)
        chunks: list[bytes] = []
        try:
            async with asyncio.timeout(limits.read_seconds):
                while not self.complete:
                    chunk = await self._chunk()
                    buffer(len(chunk))
                    chunks.append(chunk)
                    self.size += len(chunk)
                    if self.size > limits.max_body:
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
        return bytes(message.get("body", b""))

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
