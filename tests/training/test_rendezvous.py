"""Ranks rendezvous through torchrun's store despite entries of dead ranks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from bertsmith.errors import PeerLostError
from bertsmith.training.distributed import private_store

TIMEOUT = timedelta(seconds=20)


def start_ranks(store: dist.Store, size: int) -> list[dist.Store]:
    with ThreadPoolExecutor(size) as pool:
        started = [pool.submit(private_store, store, rank=rank, size=size, timeout=TIMEOUT) for rank in range(size)]
        return [one.result() for one in started]


def test_all_ranks_get_the_same_prefix() -> None:
    stores = start_ranks(dist.HashStore(), 4)
    stores[2].set("address", "here")
    assert [store.get("address") for store in stores] == [b"here"] * 4


def test_entries_of_dead_ranks_are_ignored() -> None:
    """Ten starts with one store; in some, a rank died before or after its reply."""
    store = dist.HashStore()
    for attempt in range(10):
        store.set("token/1", f"of a dead rank {attempt}")
        store.set(f"confirmed/{attempt}/1", "")
        stores = start_ranks(store, 3)
        assert not stores[1].check(["address"])
        stores[0].set("address", str(attempt))
        assert stores[2].get("address") == str(attempt).encode()


def test_a_missing_rank_is_named() -> None:
    with pytest.raises(PeerLostError, match="rank 1 did not start"):
        private_store(dist.HashStore(), rank=0, size=2, timeout=timedelta(seconds=0.1))
