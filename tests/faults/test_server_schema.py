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
from bertsmith.server.settings import AllowedHosts, Limits

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
SHORT_RUN = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
LONG_RUN = settings(SHORT_RUN, max_examples=150, derandomize=False)


@pytest.fixture(scope="module")
def app() -> Iterator[Gateway]:
    application = build(all_predictors(), limits=Limits(deadline=20), allowed_hosts=AllowedHosts(names=("*",)))
    yield application
    assert application.service.close(seconds=10)


@pytest.fixture(scope="module")
def description(app: Gateway) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_asgi("/openapi.json", app)


schema = schemathesis.pytest.from_fixture("description")


def check(case: schemathesis.Case) -> None:
    response = case.call()
    assert response.status_code != 500
    if response.status_code != 503:  # overload and timeout are valid responses
        case.validate_response(response, checks=CHECKS)


@schema.parametrize()
@SHORT_RUN
def test_requests_by_schema(case: schemathesis.Case) -> None:
    check(case)


@pytest.mark.slow
@schema.parametrize()
@LONG_RUN
def test_many_requests_by_schema(case: schemathesis.Case) -> None:
    check(case)
