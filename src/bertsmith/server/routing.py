"""How routes get their body and report problems: bodies come parsed from the guard, problems go back to it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from bertsmith.config import did_you_mean
from bertsmith.server.errors import RequestError
from bertsmith.server.request import visit_in
from bertsmith.server.schemas import Error, OpenAiError

CASES = {
    400: "The body is no JSON.",
    401: "A key is asked for.",
    404: "There is no such path or model.",
    405: "The path is for another method.",
    408: "The request came too slowly.",
    413: "More than a limit allows.",
    415: "The body is of another kind.",
    422: "The body is not as described, or no model here can do this.",
    429: "Too much work waits: ask again later.",
    503: "Stopping, failing, or no answer in time.",
}
Errors = dict[int | str, dict[str, Any]]
ERRORS: Errors = {status: {"model": Error, "description": what} for status, what in CASES.items()}
OPEN_AI_ERRORS: Errors = {status: {**case, "model": OpenAiError} for status, case in ERRORS.items()}


class ParsedRequest(Request):
    """A request whose body the guard has read and parsed."""

    async def body(self) -> bytes:
        """The bytes that were read."""
        return visit_in(self.scope).body

    async def json(self) -> Any:
        """What was parsed, strictly."""
        return visit_in(self.scope).value


class Unsaid(Response):
    """Sends nothing: the guard answers with the visit's problem."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """See ASGI."""


class GuardedRoute(APIRoute):
    """A route behind the guard."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See FastAPI."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            visit = visit_in(request.scope)
            try:
                return await handle(ParsedRequest(request.scope, request.receive))
            except RequestValidationError as error:
                visit.problem = RequestError(422, "validation", self._invalid(error.errors()))
            except RequestError as problem:
                visit.problem = problem
            return Unsaid()

        return guarded

    def _invalid(self, errors: Iterable[Any]) -> str:
        """One line about the first field that is wrong; it never repeats what was sent."""
        found = list(errors)
        first = found[0]
        if first["type"] == "extra_forbidden":
            known = list(self.body_field.field_info.annotation.model_fields) if self.body_field else []  # type: ignore[union-attr]
            hint = did_you_mean(str(first["loc"][-1]), known) if len(first["loc"]) == 2 else ""
            return f"the body has a field that is not known{hint or ':'} ({', '.join(known)})"
        same = [one for one in found if one["loc"][1:2] == first["loc"][1:2]]  # one for each kind that it might be
        place = max((_place(one["loc"]) for one in same), key=len)
        reasons = dict.fromkeys(one["msg"] for one in same if _place(one["loc"]) == place)
        return f"{place or 'the body'}: {' or '.join(list(reasons)[:3])}"


def _place(parts: tuple[Any, ...]) -> str:
    """`inputs[3]`; the names that the validator gives to kinds of values are left out."""
    text = str(parts[1]) if len(parts) > 1 else ""
    return text + "".join(f"[{part}]" for part in parts[2:] if isinstance(part, int))
