"""One torch for all tests, files in memory; a browser for HTML pages, and a way to visit those that a file makes."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from browser_fixtures import started, visiting

MEMORY, ROOM = "/dev/shm", 4 << 30
gc.set_threshold(20_000, 20, 50)  # torch and its compiler are many objects to go through again and again


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Files go into memory where there is room: every write is synced, half of the time of tests that train by a disk.

    They are gone afterwards; set TMPDIR to look at what a failed test has left.
    """
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
        folder = os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="bertsmith-tests-", dir=MEMORY)
        config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """A product in bfloat16 that fails, on a CPU without, has torch multiply by other kernels from then on.

    And no run of a test looks a quarter of a second for what the machine can do at most, which no test compares.
    """
    torch, devices = sys.modules.get("torch"), sys.modules.get("bertsmith.system.devices")
    if torch is not None:
        torch.backends.mkldnn.enabled = torch.backends.mkldnn.is_available()
    if devices is not None:
        devices.LOOKING = 0.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as found:
        yield found


@pytest.fixture
def visit(browser: Any, pages: dict[str, Path]) -> Iterator[Any]:
    """Opens one of `pages`, a fixture of the file, by its name."""
    with visiting(browser, pages) as go:
        yield go
