"""Texts that a user names: by the file they stand in, or as they are."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from bertsmith.data.corpus import Corpus, ReadOptions, empty_corpus_error
from bertsmith.errors import DataError


def is_file(source: str) -> bool:
    """Whether this names a file; a text of any length or kind does not."""
    return os.path.isfile(source)


def read_texts(path: str, reading: ReadOptions, *, limit: int | None = None) -> list[str]:
    """The texts of a file, at most `limit`; none at all is an error."""
    corpus = Corpus([path], reading)
    texts = [document.text for document in islice(corpus, limit)]
    if not texts:
        raise empty_corpus_error(corpus)
    return texts


def read_text(source: str) -> str:
    """The whole text of a file, or the source itself where it names none."""
    if not is_file(source):
        return source
    try:
        return Path(source).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{source} is no text in UTF-8 (byte {error.start}): write it anew in UTF-8") from error
    except OSError as error:
        raise DataError(f"{source} cannot be read: {error.strerror}") from error
