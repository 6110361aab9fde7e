"""ASGI middleware in front of the routes: routing, API key, size and strict JSON are checked before anything else runs.

Every response passes through it, gets its headers here, and is counted and logged here. Strict JSON has no duplicate
keys, NaN or lone surrogates, and a bounded depth, size and number of values.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import math
import re
import time
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertsmith.server.errors import RequestError, client_disconnected, internal_error, over_limit, stopping
from bertsmith.server.monitoring import SCOPE_KEY, Log, RequestContext
from bertsmith.server.service import Service
from bertsmith.server.settings import Limits

DISCARD_SECONDS = 1.0  # for reading the rest of a rejected body, so that the client reads the response
METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT")  # that logs may contain
OPENAI_PREFIX = "/v1/"  # routes with OpenAI's error format
MAX_DEPTH = 16  # of a body
MAX_VALUES = 65_536  # in one body: 32 texts of 512 token ids are 16,384
MAX_DIGITS = 20  # of an integer
HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-store"}


def error_response(error: RequestError, context: RequestContext) -> Response:
    """The response of an error."""
    headers = error.headers | ({"connection": "close"} if error.close else {})
    body = error.body(openai=context.route.startswith(OPENAI_PREFIX))
    return Response(body, error.status, headers, "application/json")


class Gateway:
    """The middleware, and the ASGI application of the server."""

    def __init__(
        self, app: ASGIApp, routes: list[Any], service: Service, *, public: set[str], log: Log, api_key: str | None
    ) -> None:
        self.app, self.routes, self.service, self.log = app, routes, service, log
        self.public = public  # path templates that need no API key
        self.limits, self.metrics = service.limits, service.metrics
        self.api_key = None if api_key is None else api_key.encode()
        self.delayed = 0  # 429 responses
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
        sender = self._with_headers(send, context)
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
            self.metrics.request(context)
            self.log.request(context)

    async def _check(self, scope: Scope, context: RequestContext, body: _RequestBody) -> None:
        """Everything that must hold before a route runs, the cheapest checks first."""
        context.route = self._find_route(_strip_model(scope, context), context.method)
        if context.route not in self.public:
            self._check_api_key(body.headers)
        if context.method == "POST":
            if self.service.draining:
                raise stopping()
            self.service.check_capacity(self.service.models.values())
            body.check_content_type()
        context.body = await body.read(self.limits)
        if context.method == "POST":
            context.json = parse_json(context.body, self.limits)

    def _find_route(self, path: str, method: str) -> str:
        """The path template of a request's route."""
        known: dict[str, str] = {}  # by method
        for route in self.routes:
            if route.path == path or ("{" in route.path and route.path_regex.match(path)):
                known |= dict.fromkeys(route.methods - {"HEAD"}, route.path)
        if not known:
            raise RequestError(404, "not_found", "this path does not exist: GET /docs lists all paths")
        if method not in known:
            allowed = ", ".join(sorted(known))
            raise RequestError(405, "not_found", f"this path accepts only {allowed}", headers={"Allow": allowed})
        return known[method]

    async def _run(self, scope: Scope, body: _RequestBody, sender: Send) -> None:
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

    def _with_headers(self, send: Send, context: RequestContext) -> Send:
        """ASGI send that records the status and adds headers."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                present = {name.lower() for name, _ in message["headers"]}
                added = HEADERS | {"x-request-id": context.id}
                if self.service.draining:
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
        """Delays a 429 response, as a client that is rejected at once retries at once; 503 if too many are delayed."""
        if not error.delayed:
            return error
        if self.delayed >= self.limits.max_rejections:
            self.metrics.rejections.labels("closed").inc()
            return RequestError(503, "overloaded", error.message, headers=error.headers, close=True)
        self.metrics.rejections.labels("delayed").inc()
        self.delayed += 1
        try:
            await asyncio.sleep(self.limits.rejection_seconds)
        finally:
            self.delayed -= 1
        return error


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


def parse_json(body: bytes, limits: Limits) -> Any:
    """The value of a body. Errors never repeat its contents."""
    try:
        value = json.loads(
            body.decode("utf-8"),
            parse_constant=_reject_constant,
            parse_float=_parse_float,
            parse_int=_parse_int,
            object_pairs_hook=_parse_object,
        )
    except UnicodeDecodeError as error:
        raise _invalid(f"the body is not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise _invalid(f"the body is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _invalid(f"the body is nested deeper than {MAX_DEPTH} levels") from None
    _check_values(value, limits)
    return value


def _invalid(message: str, status: int = 400) -> RequestError:
    return RequestError(status, "validation", message)


def _reject_constant(name: str) -> Any:
    raise _invalid(f"the body has {name}, which is not JSON")


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _invalid("the body has a number that is too large")
    return value


def _parse_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise _invalid(f"the body has an integer of more than {MAX_DIGITS} digits")
    return int(text)


def _parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise _invalid("the body has an object with a duplicate key")
    return value


def _check_values(body: Any, limits: Limits) -> None:
    """Visits every value once, without recursion."""
    stack: list[tuple[Any, int]] = [(body, 0)]
    count = 0
    while stack:
        value, depth = stack.pop()
        count += 1
        if count > MAX_VALUES:
            raise RequestError(413, "too_large", f"the body has more than {MAX_VALUES:,} values: send fewer at a time")
        if depth > MAX_DEPTH:
            raise _invalid(f"the body is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, str):
            _check_text(value, limits)
        elif isinstance(value, dict):
            for key in value:
                _check_text(key, limits)
            stack += [(child, depth + 1) for child in value.values()]
        elif isinstance(value, list):
            stack += [(child, depth + 1) for child in value[: MAX_VALUES + 1]]


def _check_text(text: str, limits: Limits) -> None:
    try:
        size = len(text) if text.isascii() else len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise _invalid("a text has a lone surrogate, which is not a character: send valid Unicode", 422) from None
    if size > limits.max_bytes_per_text:
        raise over_limit(f"a text of {size:,} bytes", "max_bytes_per_text", limits.max_bytes_per_text)
