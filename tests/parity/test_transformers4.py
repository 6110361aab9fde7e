"""Folders exchanged with transformers 4.57, which runs in an environment of its own: `make test-transformers4`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertsmith
from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.model_folder import save_model

pytest.importorskip("transformers")

from model_io import zoo
from parity import transformers4_worker

PYTHON = os.environ.get("TRANSFORMERS4_PYTHON", "")
CASES = transformers4_worker.CASES
pytestmark = pytest.mark.skipif(not PYTHON, reason="TRANSFORMERS4_PYTHON is not set: run make test-transformers4")


def run_worker(action: str, base: Path) -> None:
    result = subprocess.run(
        [PYTHON, transformers4_worker.__file__, action, base],
        env={"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.startswith("transformers 4."), result.stdout


def compare(predictor: Predictor, expected: list[dict[str, Any]]) -> None:
    for one in expected:
        (hidden,) = predictor.embed_all([one["text"]]).vectors
        assert list(predictor.tokenize([one["text"]])[0].ids) == one["ids"], one["text"]
        np.testing.assert_allclose(hidden, np.array(one["hidden"]), atol=1e-5)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of bertsmith and the outputs of transformers 4 for them."""
    base = tmp_path_factory.mktemp("ours")
    for case in CASES:
        zoo.write(case, base / "source" / str(case))
        predictor = bertsmith.load(base / "source" / str(case), device="cpu")
        save_model(predictor.model, predictor.tokenizer, base / str(case))
    run_worker("read", base)
    return base


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of transformers 4 and their outputs."""
    base = tmp_path_factory.mktemp("theirs")
    run_worker("write", base)
    return base


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("writer", ["ours", "theirs"])
def test_outputs_are_equal(writer: str, case: zoo.Case, request: pytest.FixtureRequest) -> None:
    base: Path = request.getfixturevalue(writer)
    compare(bertsmith.load(base / str(case), device="cpu"), json.loads((base / f"{case}.json").read_text()))
