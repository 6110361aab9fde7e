"""Ranks find each other in a store, whatever dead ranks have left in it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from bertsmith.errors import PeerLostError
from bertsmith.training.meeting import private_store

PATIENCE = timedelta(seconds=20)


def together(store: dist.Store, size: int) -> list[dist.Store]:
    with ThreadPoolExecutor(size) as pool:
        coming = [pool.submit(private_store, store, rank=rank, size=size, patience=PATIENCE) for rank in range(size)]
        return [one.result() for one in coming]


def test_all_come_to_the_same_part() -> None:
    parts = together(dist.HashStore(), 4)
    parts[2].set("address", "here")
    assert [part.get("address") for part in parts] == [b"here"] * 4


def test_what_dead_ranks_wrote_is_not_found() -> None:
    """Ten attempts in one store; in some, a rank died before or after it was answered."""
    store = dist.HashStore()
    for attempt in range(10):
        store.set("word/1", f"of one that died {attempt}")
        store.set(f"heard/{attempt}/1", "")
        parts = together(store, 3)
        assert not parts[1].check(["address"])
        parts[0].set("address", str(attempt))
        assert parts[2].get("address") == str(attempt).encode()


def test_who_does_not_come_is_named() -> None:
    with pytest.raises(PeerLostError, match="rank 1 has not come"):
        private_store(dist.HashStore(), rank=0, size=2, patience=timedelta(seconds=0.1))
