"""Thousands of hostile command lines over all verbs; another seed: pytest -m slow --hypothesis-seed=1 THIS_FILE."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.fuzz_sandbox import make_files
from cli.fuzzing import check, command_lines, verbs
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as some

EXAMPLES = -(-2000 // len(verbs()))
LONG_RUN = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_files(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.slow
@pytest.mark.parametrize("verb", verbs(), ids=" ".join)
@LONG_RUN
@given(data=some.data())
def test_many_hostile_values(base: Path, verb: tuple[str, ...], data: some.DataObject) -> None:
    check(base, data.draw(command_lines(verb)))
