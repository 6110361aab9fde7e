"""Fixtures and hooks for all tests: temporary files in memory, small shards, a browser for HTML pages."""

from __future__ import annotations

import gc
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from browser_fixtures import open_pages, running_browser

MEMORY, MIN_FREE = "/dev/shm", 4 << 30
BENCH = Path(__file__).parent / "bench"
gc.set_threshold(20_000, 20, 50)  # torch and its compiler keep many objects alive


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Puts temporary files into memory, where fsync is free; set TMPDIR to keep the files of failed tests."""
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MIN_FREE:
        folder = os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="bertsmith-tests-", dir=MEMORY)
        config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of bench/ are slow tests."""
    for item in items:
        if item.path.is_relative_to(BENCH):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Restores torch's CPU kernels, and skips the measurement of the device's peak.

    A bfloat16 product that fails on a CPU without bfloat16 makes torch use other kernels from then on.
    """
    torch, devices = sys.modules.get("torch"), sys.modules.get("bertsmith.system.devices")
    if torch is not None:
        torch.backends.mkldnn.enabled = torch.backends.mkldnn.is_available()
    if devices is not None:
        devices.SEARCH_SECONDS = 0.0


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small shards of English and Korean words; text.txt and the tokenizer folder t are next to them."""
    from bertsmith.data import prepare
    from bertsmith.tokenizers.wordpiece import Config

    base, rng = tmp_path_factory.mktemp("shards"), random.Random(0)
    words = [
        "the",
        "smith",
        "heats",
        "iron",
        "and",
        "strikes",
        "an",
        "anvil",
        "while",
        "fire",
        "burns",
        "쇠를",
        "두드린다",
    ]
    texts = [" ".join(" ".join(rng.choices(words, k=7)) + "." for _ in range(6)) for _ in range(200)]
    (base / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")
    prepare.train_tokenizer([base / "text.txt"], base / "t", settings=Config(), vocab_size=160, workers=1, quiet=True)
    prepare.prepare([base / "text.txt"], base / "shards", tokenizer=base / "t", held_out=0.1, workers=1, quiet=True)
    return base / "shards"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with running_browser() as browser:
        yield browser


@pytest.fixture
def visit(browser: Any, pages: dict[str, Path]) -> Iterator[Any]:
    """Opens one of `pages`, a fixture of the test module, by its name."""
    with open_pages(browser, pages) as open_page:
        yield open_page
