"""Settings of a server: its limits, its API key, the names of its models."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from bertsmith.errors import BertsmithError, DataError

MAX_SECONDS = 86_400  # a day
MAX_COUNT = 1 << 40
MIN_KEY_LENGTH = 16  # shorter keys can be guessed


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of `bertsmith serve`, each with a flag of its name. Bytes and counts are maxima."""

    max_texts: int = 32  # in one request
    max_bytes_per_text: int = 64 << 10  # in UTF-8, checked before tokenization
    max_body: int = 4 << 20  # bytes of a request
    max_numbers: int = 4 << 20  # in one response: token embeddings and attention weights grow fast
    max_requests: int = 128  # processed at the same time; each has a thread that mostly waits for the engine
    max_connections: int = 1024
    max_rejections: int = 512  # requests whose 429 response is delayed at the same time
    batch_tokens: int | None = None  # of one forward pass; default: what suits the device
    max_queued_tokens: int = 65_536  # waiting for a forward pass
    deadline: float = 30.0  # seconds from a request to its response
    read_seconds: float = 10.0  # for the header to arrive, and again for the body
    write_seconds: float = 10.0  # for the client to read a response
    idle_seconds: float = 5.0  # between two requests of a connection
    drain_seconds: float = 30.0  # to finish accepted requests after SIGTERM
    rejection_seconds: float = 0.2  # delay of a 429 response

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            most = MAX_SECONDS if isinstance(value, float) else MAX_COUNT
            if value is not None and not value <= most:  # also refuses NaN
                raise BertsmithError(f"{flag(field.name)} {value}: it must be a number of at most {most:,}")
            may_be_zero = field.name in ("rejection_seconds", "max_rejections", "drain_seconds")
            if value is not None and (value < 0 or (value == 0 and not may_be_zero)):
                raise BertsmithError(f"{flag(field.name)} {value}: it must be greater than 0")

    def to_json(self) -> dict[str, Any]:
        """The limits that clients need to know."""
        names = ("max_texts", "max_bytes_per_text", "max_body", "max_numbers", "max_queued_tokens", "deadline")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class AllowedHosts:
    """The values of the Host header that a server answers to: loopback, the address it listens on, and more names.

    Otherwise a web page whose name resolves to this machine (DNS rebinding) could use a server without a key.
    """

    bound: str = "127.0.0.1"  # --host
    names: tuple[str, ...] = ()  # "*": any

    def __post_init__(self) -> None:
        for name in self.names:
            if name != "*" and not re.fullmatch(r"[\w.-]+|\[?[0-9a-fA-F:.]+\]?", name):
                raise BertsmithError(f"--allowed-host {name}: write only the name, without http:// and port")

    def __contains__(self, header: str) -> bool:
        host = _host_name(header)
        if "*" in self.names or host in {"localhost", *map(_host_name, (self.bound, *self.names))}:
            return True
        try:
            address = ipaddress.ip_address(host)
            return address.is_loopback or ipaddress.ip_address(self.bound).is_unspecified
        except ValueError:
            return host.endswith(".localhost")


def _host_name(header: str) -> str:
    """The name or address without brackets and port."""
    host = header.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return (host.partition(":")[0] if host.count(":") == 1 else host).rstrip(".")


def flag(name: str) -> str:
    """The command-line flag of a limit."""
    return f"--{name.replace('_', '-')}"


def read_api_key(path: Path) -> str:
    """The key in a file of one line. Errors never contain it."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise DataError(f"--api-key-file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"--api-key-file {path} is not a text file: write one key into it") from None
    if not text.isascii() or not text.isprintable() or " " in text or len(text) < MIN_KEY_LENGTH:
        raise BertsmithError(
            f"--api-key-file {path} must contain one key of at least {MIN_KEY_LENGTH} letters and digits: "
            "create one with openssl rand -hex 32"
        )
    return text


def name_models(arguments: Sequence[str]) -> list[tuple[str, Path]]:
    """Names and folders of models given as FOLDER or NAME=FOLDER. Folders of the same name are numbered."""
    models: list[tuple[str, Path]] = []
    for argument in arguments:
        name, equals, folder = argument.partition("=")
        explicit = bool(equals) and not Path(argument).exists()
        path = Path(folder if explicit else argument)
        resolved = path.resolve()  # the best/ and last/ folders of a run have the name of the run
        run = resolved.parent if resolved.name in ("best", "last") else resolved
        name = re.sub(r"[^\w.-]", "-", name if explicit else run.name).strip("-.") or "model"  # for URLs
        taken = {other for other, _ in models}
        if explicit and name in taken:
            raise BertsmithError(f"two models are named {name}: choose another name for {path}")
        base, number = name, 2
        while name in taken:
            name, number = f"{base}-{number}", number + 1
        models.append((name, path))
    return models
