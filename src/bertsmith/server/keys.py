"""The key that callers must send, from its file."""

from __future__ import annotations

from pathlib import Path

from bertsmith.errors import BertsmithError, DataError

LEAST = 16  # letters: what is shorter can be guessed


def read_api_key(path: Path) -> str:
    """The one line of a file; the error never quotes it."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise DataError(f"--api-key-file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"--api-key-file {path} is no text: put one key into it") from None
    if not text.isascii() or not text.isprintable() or " " in text or len(text) < LEAST:
        raise BertsmithError(
            f"--api-key-file {path} must hold one key of at least {LEAST} letters and digits: "
            "openssl rand -hex 32 makes one"
        )
    return text
