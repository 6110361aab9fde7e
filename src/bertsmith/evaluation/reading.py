"""An evaluation folder read again, for whoever shows it: the numbers of its JSON, the cases of its page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bertsmith import config
from bertsmith.errors import BertsmithError, ConfigError, DataError, StorageError
from bertsmith.evaluation.evaluation import Evaluation
from bertsmith.evaluation.writing import NUMBERS, PAGE

DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', flags=re.DOTALL)
LARGEST = 1 << 26  # bytes of a file that is read


def read_numbers(folder: Path) -> Evaluation:
    """The evaluation without its cases and errors."""
    path = folder / NUMBERS
    numbers = _json(_text(path), path)
    if not isinstance(numbers, dict):
        raise DataError(f"{path} is no evaluation: it holds no values by name")
    numbers.pop("errors", None)  # the page has them too
    try:
        return config.from_dict(Evaluation, numbers)
    except ConfigError as error:
        raise DataError(f"{path} is no evaluation: {error}") from error


def read_cases(folder: Path) -> dict[str, Any]:
    """What `page_data` gave when the folder was written."""
    path = folder / PAGE
    found = DATA.search(_text(path))
    data = _json(found[1], path) if found else None
    if not isinstance(data, dict) or not {"sure", "share", "wrong", "errors", "cells", "cases"} <= data.keys():
        raise DataError(f"{path} is no page about an evaluation: write it again with bertsmith evaluate")
    return data


def _json(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no evaluation: {error}") from error


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST:
            raise DataError(f"{path} is larger than {LARGEST >> 20} MiB: no evaluation is")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BertsmithError(f"{path} is not there: run bertsmith evaluate again") from error
    except OSError as error:
        raise StorageError(f"{error.strerror}: reading {path}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in UTF-8 (byte {error.start})") from error
