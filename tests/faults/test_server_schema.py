"""F9: responses to requests generated from the server's OpenAPI schema, valid and invalid, conform to the schema."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from server.http_fixtures import all_predictors

from bertsmith.server.app import build
from bertsmith.server.middleware import Gateway
from bertsmith.server.settings import Limits

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
FEW = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
MANY = settings(FEW, max_examples=150, derandomize=False)


@pytest.fixture(scope="module")
def app() -> Iterator[Gateway]:
    found = build(all_predictors(), limits=Limits(deadline=20))
    yield found
    assert found.service.close(seconds=10)


@pytest.fixture(scope="module")
def description(app: Gateway) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_asgi("/openapi.json", app)


schema = schemathesis.pytest.from_fixture("description")


def check(case: schemathesis.Case) -> None:
    answer = case.call()
    assert answer.status_code != 500
    if answer.status_code != 503:  # too much work, or too little time, is an honest answer
        case.validate_response(answer, checks=CHECKS)


@schema.parametrize()
@FEW
def test_requests_by_schema(case: schemathesis.Case) -> None:
    check(case)


@pytest.mark.slow
@schema.parametrize()
@MANY
def test_many_requests_by_schema(case: schemathesis.Case) -> None:
    check(case)
