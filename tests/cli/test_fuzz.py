"""Hostile values for every verb and option: one line on stderr, a documented exit code, no traceback.

`make faults` has thousands of cases, see tests/faults/test_command_line_faults.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.fuzz_sandbox import make_files
from cli.fuzzing import check, command_lines, verbs
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as some

EXAMPLES = 150 // len(verbs())
SHORT_RUN = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_files(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.parametrize("verb", verbs(), ids=" ".join)
@SHORT_RUN
@given(data=some.data())
def test_hostile_values(base: Path, verb: tuple[str, ...], data: some.DataObject) -> None:
    check(base, data.draw(command_lines(verb)))
