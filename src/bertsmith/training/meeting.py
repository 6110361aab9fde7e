"""How ranks that start together find each other, and not the traces of ranks that were there before them.

torchrun keeps one store of addresses through all its restarts. A rank that is quick could find there what one that is
dead has written, and call it. Counting restarts is no help: torchrun counts them on each machine by itself.
"""

from __future__ import annotations

import secrets
import time
from datetime import timedelta

from torch.distributed.distributed_c10d import PrefixStore, Store

from bertsmith.errors import PeerLostError

LOOK_EVERY = 0.01  # seconds


def private_store(store: Store, *, rank: int, size: int, patience: timedelta) -> Store:
    """The part of a store that these ranks alone know of. Every rank must come.

    Each rank but the first says a new word. The first answers every word that it finds, an old one in vain, with the
    name of the part; whoever has heard its own word answered says so.
    """
    mine = secrets.token_hex(8)
    store.set_timeout(patience)
    if rank == 0:
        _answer(store, mine, size, time.monotonic() + patience.total_seconds())
        return PrefixStore(mine, store)
    store.set(f"word/{rank}", mine)
    name = store.get(f"answer/{rank}/{mine}").decode()  # waits for it
    store.set(f"heard/{name}/{rank}", "")
    return PrefixStore(name, store)


def _answer(store: Store, name: str, size: int, limit: float) -> None:
    waiting = set(range(1, size))
    while waiting:
        for rank in sorted(waiting):
            if store.check([f"heard/{name}/{rank}"]):
                waiting.remove(rank)
            elif store.check([f"word/{rank}"]):
                store.set(f"answer/{rank}/{store.get(f'word/{rank}').decode()}", name)
        if waiting and time.monotonic() > limit:
            raise PeerLostError(f"rank {min(waiting)} has not come: are all machines started with the same command?")
        time.sleep(LOOK_EVERY)
