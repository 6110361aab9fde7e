"""Idle connections are closed, unless a request has arrived that was not read yet."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import h11
import pytest

from bertsmith.server.server import DeadlineProtocol


class Transport:
    """One end of a pair of sockets."""

    def __init__(self, there: socket.socket) -> None:
        self.there, self.closed = there, False

    def get_extra_info(self, name: str) -> Any:
        return self.there if name == "socket" else None

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.there.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("come", [b"", b"POST /embed HTTP/1.1\r\n"], ids=["nothing", "a request"])
def test_idle_connections_close_unless_a_request_is_unread(come: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(come)
        later: list[float] = []
        connection = DeadlineProtocol.__new__(DeadlineProtocol)
        connection.transport = Transport(ours)  # type: ignore[assignment]
        connection.conn = h11.Connection(h11.SERVER)
        connection.loop = SimpleNamespace(call_later=lambda seconds, call: later.append(seconds))  # type: ignore[assignment]
        connection.timeout_keep_alive_handler()
        assert connection.transport.is_closing() == (not come)
        assert bool(later) == bool(come)
        if not come:
            assert theirs.recv(1) == b""  # the caller hears of it before the loop has closed anything
