"""Carry the bytes of rounds over the simulated links of hosts, racks and sites, which workers share.

Does not cover: when rounds send them (`simulation`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from giaann_dask.keys import Integers
from giaann_dask.planning.hardware import COMPRESSED, Hardware, Tier
from giaann_dask.planning.simulated_workers import WorkerPool
from giaann_dask.planning.workloads import ComposedRound, Floats

# Transfers that a worker of Dask receives at the same time (`distributed.worker.connections.incoming`).
_CONNECTIONS = 10
# Tiers whose links workers share, and by what a link is numbered.
SHARED_TIERS: tuple[Tier, ...] = ("host", "rack", "site")


class Transfer(NamedTuple):
    """Bytes that some links of a tier carried in one round.

    Attributes
    ----------
    tier : str
        Of the links.
    received : bool
        Whether it was received, else sent.
    link : ndarray
        Numbers of workers, hosts or racks; int64.
    begin, end, nbytes : ndarray
        Seconds, and bytes; float64.
    """

    tier: Tier
    received: bool
    link: Integers
    begin: Floats
    end: Floats
    nbytes: Floats


class Traffic(NamedTuple):
    """Bytes that the workers of a round send and receive, by the tier of link; float64 by worker."""

    sent: dict[Tier, Floats]
    received: dict[Tier, Floats]
    messages: Integers
    owned: Floats
    touched: Integers
    # Worker and kind of each batch; kinds of batches, and the owners to whom they send.
    worker: Integers
    kind: Integers
    entry: Integers
    owner: Integers


class SharedLinks:
    """Links of all tiers in both directions; each carries its bytes one after another."""

    def __init__(self, hardware: Hardware, pool: WorkerPool) -> None:
        self._links = hardware.links
        self.numbers: dict[Tier, Integers] = {"host": np.arange(len(pool.host)), "rack": pool.host, "site": pool.rack}
        count = {tier: int(numbers.max()) + 1 for tier, numbers in self.numbers.items()}
        ways = [(tier, received) for tier in SHARED_TIERS for received in (False, True)]
        self._free = {way: np.zeros(count[way[0]]) for way in ways}
        self.busy = {way: np.zeros(count[way[0]]) for way in ways}
        self.tier_bytes: dict[Tier, float] = dict.fromkeys(SHARED_TIERS, 0.0)
        self.transfers: list[Transfer] = []

    def carry(self, tier: Tier, received: bool, nbytes: Floats, begin: Floats | float) -> Floats:
        """Return until when the links of a tier have carried the bytes of each worker."""
        link, numbers, way = self._links[tier], self.numbers[tier], (tier, received)
        load = sum_by_number(numbers, nbytes, len(self._free[way]))
        used = np.flatnonzero(load)
        began = np.zeros(len(load))
        np.maximum.at(began, numbers, np.broadcast_to(begin, numbers.shape))
        start = np.maximum(began, self._free[way])[used]
        end = start + load[used] / link.bandwidth
        self._free[way][used] = end
        self.busy[way][used] += end - start
        self.tier_bytes[tier] += 0.0 if received else float(load.sum())
        self.transfers.append(Transfer(tier, received, used, start, end, load[used]))
        done = np.array(began)
        done[used] = end
        return np.where(nbytes > 0, done[numbers], 0.0)

    def move(self, traffic: Traffic, now: float, ready: float) -> Floats:
        """Return when the increments of a round have come to each owner, which takes them from a time on.

        Parameters
        ----------
        traffic : Traffic
            Of the round.
        now, ready : float
            When increments are sent, and from when on owners take them.
        """
        gone = np.full(len(traffic.messages), now)
        latency = np.zeros(len(gone))
        for tier in SHARED_TIERS:
            gone = np.maximum(gone, self.carry(tier, False, traffic.sent[tier], now))
            turns = np.ceil(traffic.messages / _CONNECTIONS) * (traffic.sent[tier] > 0)
            latency = np.maximum(latency, turns * self._links[tier].latency)
        # An owner has everything when the slowest of those that send to it has sent.
        slowest = np.zeros(int(traffic.kind.max(initial=-1)) + 1)
        np.maximum.at(slowest, traffic.kind, (gone + latency)[traffic.worker])
        arrived = np.full(len(gone), ready)
        np.maximum.at(arrived, traffic.owner, slowest[traffic.entry])
        for tier in SHARED_TIERS:
            begin = now + np.where(traffic.received[tier] > 0, self._links[tier].latency, 0.0)
            arrived = np.maximum(arrived, self.carry(tier, True, traffic.received[tier], begin))
        return arrived


def traffic_of(batches: ComposedRound, worker: Integers, owner_of: Integers, links: SharedLinks) -> Traffic:
    """Return what the counted batches of a round send to the owners of regions.

    Parameters
    ----------
    batches : ComposedRound
        The round.
    worker : ndarray
        Which worker counted each batch.
    owner_of : ndarray
        The owner of each region.
    links : SharedLinks
        Between workers.
    """
    table, kind = batches.table, batches.kind
    total, kinds = len(links.numbers["host"]), len(table.sequences)
    pairs, inverse = np.unique(table.batch * total + owner_of[table.region], return_inverse=True)
    nbytes = sum_by_number(inverse, table.nbytes, len(pairs))
    entry, owner = pairs // total, pairs % total
    alike = np.bincount(kind, minlength=kinds)
    whole = sum_by_number(entry, nbytes, kinds)
    sent: dict[Tier, Floats] = {}
    received: dict[Tier, Floats] = {}
    for tier, number in links.numbers.items():
        places = int(number.max()) + 1
        inside = _sums_of(entry * places + number[owner], nbytes, kind * places + number[worker])
        sent[tier] = sum_by_number(worker, np.maximum(whole[kind] - inside, 0.0), total)
        sent[tier][sent[tier] < 1e-6 * sent[tier].max(initial=0)] = 0.0
        near = _sums_of(kind * places + number[worker], np.ones(len(worker)), entry * places + number[owner])
        received[tier] = sum_by_number(owner, nbytes * (alike[entry] - near), total)
        if tier != "host":
            sent[tier], received[tier] = COMPRESSED * sent[tier], COMPRESSED * received[tier]
    touched = np.flatnonzero(np.bincount(table.region, batches.times))
    messages = np.bincount(worker, np.bincount(entry, minlength=kinds)[kind], minlength=total).astype(np.int64)
    return Traffic(
        sent=sent,
        received=received,
        messages=messages,
        owned=sum_by_number(owner, nbytes * alike[entry], total),
        touched=np.bincount(owner_of[touched], minlength=total),
        worker=worker,
        kind=kind,
        entry=entry,
        owner=owner,
    )


def _sums_of(keys: Integers, values: Floats, wanted: Integers) -> Floats:
    """Return for each wanted key the sum of the values with this key."""
    known, inverse = np.unique(keys, return_inverse=True)
    sums = sum_by_number(inverse, values, len(known))
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[at] == wanted, sums[at], 0.0)


def sum_by_number(numbers: Integers, values: Floats, count: int) -> Floats:
    """Return the sum of the values of each number, of so many or more."""
    return np.bincount(numbers, values, minlength=count).astype(np.float64)
