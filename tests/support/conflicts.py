"""Trainings that lose the lease of a network to another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distributed import Client

import giaann_dask as gd
from giaann_dask.events import Event, RoundIntegrated
from giaann_dask.store.locking import Lease, LeaseObject
from giaann_dask.store.places import StorePlace
from support.processes import until

TEXTS = {
    "a": ["The old miller carried the flour to the baker in the village ."],
    "b": [
        "A young baker with a large basket sings a song in the town .",
        "The miller walks to the old town with a basket .",
    ],
    "c": ["The large basket of the young miller stands in the old village ."],
}


RULE: dict[str, Any] = {"regions": 2}


def interrupted(texts: list[str], place: str, client: Client, by: Callable[[], None], **rule: Any) -> gd.Network:
    """Train on texts, losing the lease and doing something else when the first round is integrated."""
    left = [by]

    def lose(event: Event) -> None:
        if isinstance(event, RoundIntegrated) and left:
            StorePlace(place).objects().delete(StorePlace(place).key + ".writer.lease")
            left.pop()()

    return gd.train(texts, place, client=client, observer=lose, specification=gd.Specification(**RULE, **rule))


def renewed(lease: Lease) -> bool:
    """Wait until a lease is renewed again, and return whether it was not lost meanwhile."""
    stored = LeaseObject(lease.path)
    before = stored.read()
    assert before is not None
    until(lambda: lease.lost or ((now := stored.read()) is not None and now.until > before.until))
    return not lease.lost
