"""The first thing a request meets: is it known, allowed, small enough and JSON? Only then does anything parse it.

A plain ASGI application round another one. Every answer passes through it, and is counted and logged here.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from bertsmith.server import strict_json
from bertsmith.server.errors import RequestError, defect, left, over_limit
from bertsmith.server.monitoring import Log
from bertsmith.server.rejections import Rejections
from bertsmith.server.request import KEY, RequestContext
from bertsmith.server.service import Service
from bertsmith.server.settings import Limits

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

DISCARD_SECONDS = 1.0  # in which the rest of a refused body is read and forgotten, so that the answer is heard
METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT")  # that a log may name
OPEN_AI = "/v1/"  # routes whose errors have another form
HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-store"}


class Paths:
    """Which routes there are, and what each needs."""

    def __init__(self, routes: list[Any], *, is_public: Callable[[str, str], bool]) -> None:
        self.routes, self.is_public = routes, is_public
        self.exact: dict[str, dict[str, str]] = {}  # path -> method -> route
        for route in routes:
            if "{" not in route.path:
                known = self.exact.setdefault(route.path, {})
                known.update({method: route.path for method in route.methods if method != "HEAD"})

    def find(self, path: str, method: str) -> str:
        """The route of a request; a `Problem` where there is none."""
        known = self.exact.get(path) or self._by_pattern(path)
        if not known:
            raise RequestError(404, "not_found", "there is no such path here: GET /docs lists them")
        if method not in known:
            allowed = ", ".join(sorted(known))
            raise RequestError(405, "not_found", f"this path answers {allowed}", headers={"Allow": allowed})
        return known[method]

    def _by_pattern(self, path: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for route in self.routes:
            if "{" in route.path and route.path_regex.match(path):
                found |= {method: route.path for method in route.methods if method != "HEAD"}
        return found


class Gateway:
    """`app` behind a door."""

    def __init__(
        self, app: App, paths: Paths, limits: Limits, *, service: Service, log: Log, api_key: str | None = None
    ) -> None:
        self.app, self.paths, self.limits, self.service = app, paths, limits, service
        self.metrics, self.log = service.metrics, log
        self.api_key = None if api_key is None else api_key.encode()
        self.rejections = Rejections(limits, service.metrics)
        self.under_way = 0  # requests that were let in and are not answered yet
        self.cut_off = 0  # requests that were let in and had to be dropped when the server stopped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._visit(scope, receive, send)

    async def _visit(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = scope[KEY] = RequestContext(scope["method"] if scope["method"] in METHODS else "unknown")
        body = _Body(scope, receive, visit)
        answer = _Answer(send, visit, close=lambda: self.service.draining)
        self.metrics.in_flight.inc()
        try:
            await self._let_in(scope, visit, body, answer)
        except RequestError as problem:
            await self._refuse(problem, body, answer)
        except asyncio.CancelledError:  # the server stops, and the time to finish is over
            self.cut_off += 1
            if not visit.status:
                await self._refuse(RequestError(503, "unhealthy", "the server has stopped", close=True), body, answer)
        except Exception as error:
            self.log.defect(visit, error)
            if not visit.status:
                await self._refuse(defect(visit.number), body, answer)
        finally:
            self.metrics.in_flight.dec()
            self.metrics.request(visit.route, visit.status, visit.seconds, visit.tokens)
            self.log.request(visit)

    async def _let_in(self, scope: Scope, visit: RequestContext, body: _Body, answer: _Answer) -> None:
        path = self._without_model(scope, visit)
        visit.route = self.paths.find(path, visit.method)
        if not self.paths.is_public(visit.method, path):
            self._check_key(body.headers)
        if visit.method == "POST":
            if self.service.draining:
                raise RequestError(503, "unhealthy", "the server is stopping: ask another one", close=True)
            self.service.work.check_room(self.service.shelf)  # refused here it costs least
            body.check_kind()
        visit.body = await body.read(self.limits)
        if visit.method == "POST":
            visit.value = strict_json.parse(visit.body, self.limits)
        watch = asyncio.create_task(body.watch())
        self.under_way += 1
        try:
            await self.app(scope, body.again, answer)
            if visit.problem is not None:
                raise visit.problem
        finally:
            self.under_way -= 1
            watch.cancel()

    def _without_model(self, scope: Scope, visit: RequestContext) -> str:
        """The path without /models/NAME before it; the name goes to the visit."""
        path: str = scope["path"]
        if path.startswith("/models/"):
            name, slash, rest = path.removeprefix("/models/").partition("/")
            if name and slash:
                visit.model = name
                path = scope["path"] = f"/{rest}"
                scope["raw_path"] = path.encode("utf-8", "replace")
        return path

    def _check_key(self, headers: dict[bytes, bytes]) -> None:
        if self.api_key is None:
            return
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if not hmac.compare_digest(key.strip(), self.api_key) or scheme.lower() != b"bearer":
            needs = {"WWW-Authenticate": 'Bearer realm="bertsmith"'}
            raise RequestError(
                401, "unauthorized", "this server asks for a key: send Authorization: Bearer KEY", headers=needs
            )

    async def _refuse(self, problem: RequestError, body: _Body, answer: _Answer) -> None:
        if problem.delayed:
            problem = await self.rejections.hold(problem)
        close = problem.close or not await body.discard(self.limits)
        content = problem.body(open_ai=body.visit.route.startswith(OPEN_AI))
        await answer.whole(problem.status, content, problem.headers, close=close)


class _Body:
    """The body of one request, read once, within bounds."""

    def __init__(self, scope: Scope, receive: Receive, visit: RequestContext) -> None:
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.receive, self.visit = receive, visit
        self.complete = False
        self.given = False

    def check_kind(self) -> None:
        """Raises unless the body is said to be plain JSON."""
        kind, _, rest = self.headers.get(b"content-type", b"").partition(b";")
        charset = rest.strip().lower().removeprefix(b"charset=").strip(b'"')
        if kind.strip().lower() != b"application/json" or charset not in (b"", b"utf-8"):
            raise RequestError(415, "validation", "the body must be JSON in UTF-8: send Content-Type: application/json")
        if self.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise RequestError(415, "validation", "the body must not be compressed: leave Content-Encoding out")

    async def read(self, limits: Limits) -> bytes:
        """The body; a `Problem` where it is too large or too slow."""
        said = self.headers.get(b"content-length", b"0")
        if said.isdigit() and int(said[:20]) > limits.max_body:
            raise over_limit(f"a body of {int(said[:20]):,} bytes", "max_body", limits.max_body)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(limits.read_seconds):
                while not self.complete:
                    part = await self._part()
                    parts.append(part)
                    size += len(part)
                    if size > limits.max_body:
                        raise over_limit(f"a body of over {limits.max_body:,} bytes", "max_body", limits.max_body)
        except TimeoutError:
            slow = f"the body did not arrive within {limits.read_seconds:g} s: --read-seconds"
            raise RequestError(408, "deadline", slow, close=True) from None
        return b"".join(parts)

    async def _part(self) -> bytes:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            self.visit.gone.set()
            self.complete = True
            raise left()
        self.complete = not message.get("more_body", False)
        part: bytes = message.get("body", b"")
        return part

    async def discard(self, limits: Limits) -> bool:
        """Reads what is left of a refused body and forgets it; False where it does not end soon."""
        said = self.headers.get(b"content-length", b"0")
        if said == b"0" and b"transfer-encoding" not in self.headers:
            return True
        if b"expect" in self.headers or (said.isdigit() and int(said[:20]) > 2 * limits.max_body):
            return self.complete  # asking for the rest would bring it on
        size, until = 0, time.monotonic() + DISCARD_SECONDS
        try:
            async with asyncio.timeout(DISCARD_SECONDS):
                while not self.complete and size <= limits.max_body and time.monotonic() < until:
                    size += len(await self._part())
        except (TimeoutError, RequestError):
            return False
        return self.complete

    async def watch(self) -> None:
        """Waits until the caller leaves."""
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.visit.gone.set()

    async def again(self) -> Message:
        """The body for the application, from memory; then whether the caller has left."""
        if not self.given:
            self.given = True
            return {"type": "http.request", "body": self.visit.body, "more_body": False}
        await self.visit.gone.wait()
        return {"type": "http.disconnect"}


class _Answer:
    """What is sent back: notes the status, adds headers."""

    def __init__(self, send: Send, visit: RequestContext, *, close: Callable[[], bool]) -> None:
        self.send, self.visit, self.close = send, visit, close

    async def __call__(self, message: Message) -> None:
        """See ASGI's send."""
        if message["type"] == "http.response.start":
            self.visit.status = message["status"]
            there = {name.lower() for name, _ in message["headers"]}
            added = {**HEADERS, "x-request-id": self.visit.number} | ({"connection": "close"} if self.close() else {})
            extra = [(name.encode(), value.encode()) for name, value in added.items() if name.encode() not in there]
            message = {**message, "headers": [*message["headers"], *extra]}
        await self.send(message)

    async def whole(self, status: int, body: bytes, headers: dict[str, str], *, close: bool) -> None:
        """A JSON answer in one piece."""
        known = {"content-type": "application/json", "content-length": str(len(body)), **headers}
        listed = known | ({"connection": "close"} if close else {})
        coded = [(name.lower().encode(), value.encode()) for name, value in listed.items()]
        await self({"type": "http.response.start", "status": status, "headers": coded})
        await self.send({"type": "http.response.body", "body": body})
