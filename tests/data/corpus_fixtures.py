"""Write small files, read them back, or return the error of reading them."""

from pathlib import Path

import pytest

from bertsmith.data.corpus import Corpus, ReadOptions
from bertsmith.errors import DataError

THREE = "First document.\nIts second line.\n\n \t\nSecond 문서.\n\n\nThird."
TEXTS = ["First document.\nIts second line.", "Second 문서.", "Third."]


def written(folder: Path, name: str, data: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def texts(*paths: Path, **settings: object) -> list[str]:
    return [document.text for document in Corpus(paths, ReadOptions(**settings))]  # type: ignore[arg-type]


def refusal(*paths: Path, **settings: object) -> str:
    with pytest.raises(DataError) as caught:
        texts(*paths, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)
