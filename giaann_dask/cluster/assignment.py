"""Dealing: which storage worker holds which region.

Covers: quotas by memory, keeping regions where they are while their worker lives, and moving as few
as possible when workers come and go. Does not cover: the tasks that add to a region
(`giaann_dask.training`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from giaann_dask.cluster.roles import Roles


def assign_regions(owners: Mapping[int, str], weights: Mapping[int, int], roles: Roles) -> dict[int, str]:
    """Deal regions to the present storage workers by memory.

    A worker's quota is its share of the memory that is free or taken by regions: a region grows, so
    what counts is where the room is, and not how much a region takes now.

    Parameters
    ----------
    owners : mapping of int to str
        Present owner of each region, as far as it has one; it may be gone.
    weights : mapping of int to int
        Bytes of every live region.
    roles : Roles
        Present workers and their memory.

    Returns
    -------
    dict of int to str
        Owner of every live region; empty without workers.

    Examples
    --------
    >>> assign_regions({}, {0: 5, 1: 5, 2: 5, 3: 5}, Roles(("a", "b"), ()))
    {0: 'a', 1: 'b', 2: 'a', 3: 'b'}
    """
    if not roles.storage:
        return {}
    kept = {region: owner for region, owner in owners.items() if region in weights and owner in roles.storage}
    room = _room(kept, weights, roles)
    quota = {worker: len(weights) * room[worker] / sum(room.values()) for worker in roles.storage}
    count = Counter(kept.values())

    def most_open(workers: Iterable[str]) -> str:
        return max(workers, key=lambda worker: quota[worker] - count[worker])

    for region in sorted(set(weights) - set(kept), key=lambda r: (-weights[r], r)):
        kept[region] = most_open(roles.storage)
        count[kept[region]] += 1
    # A worker that came later takes regions over, the lightest first, until it is near its quota.
    while quota[taker := most_open(roles.storage)] - count[taker] >= 1:
        giver = min(roles.storage, key=lambda worker: quota[worker] - count[worker])
        if count[giver] - quota[giver] <= 0:
            break
        region = min((r for r in kept if kept[r] == giver), key=lambda r: (weights[r], r))
        kept[region] = taker
        count.update({giver: -1, taker: 1})
    return dict(sorted(kept.items()))


def _room(owners: Mapping[int, str], weights: Mapping[int, int], roles: Roles) -> dict[str, float]:
    """Return for each worker the memory that regions take or could take; equal where there is no limit."""
    if any(worker not in roles.memory or not roles.memory[worker].limit for worker in roles.storage):
        return dict.fromkeys(roles.storage, 1.0)
    room = {worker: 1.0 + roles.memory[worker].free for worker in roles.storage}
    for region, owner in owners.items():
        room[owner] += weights[region]
    # Differences that come and go with the moment must not move regions.
    return {worker: max(round(value / 2**28), 1) for worker, value in room.items()}
