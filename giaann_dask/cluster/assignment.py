"""Assign regions to storage workers by memory.

A region stays with its worker while that worker is in the cluster; when workers join or leave, as few regions as
possible move. The tasks that add to regions are in `giaann_dask.training.regions`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from giaann_dask.cluster.roles import Roles


def assign_regions(owners: Mapping[int, str], weights: Mapping[int, int], roles: Roles) -> dict[int, str]:
    """Assign regions to the present storage workers by memory.

    A worker's quota is its share of the memory that is free or used by regions: regions grow, so the
    available memory counts, and not the present size of a region.

    Parameters
    ----------
    owners : mapping of int to str
        Last owner of each region that had one; it may have left the cluster.
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
    memory = _available_memory(kept, weights, roles)
    quota = {worker: len(weights) * memory[worker] / sum(memory.values()) for worker in roles.storage}
    count = Counter(kept.values())

    def below_quota(workers: Iterable[str]) -> str:
        return max(workers, key=lambda worker: quota[worker] - count[worker])

    for region in sorted(set(weights) - set(kept), key=lambda r: (-weights[r], r)):
        kept[region] = below_quota(roles.storage)
        count[kept[region]] += 1
    # A worker that joined later receives regions, the lightest first, until it is near its quota.
    while quota[receiver := below_quota(roles.storage)] - count[receiver] >= 1:
        sender = min(roles.storage, key=lambda worker: quota[worker] - count[worker])
        if count[sender] - quota[sender] <= 0:
            break
        region = min((r for r in kept if kept[r] == sender), key=lambda r: (weights[r], r))
        kept[region] = receiver
        count.update({sender: -1, receiver: 1})
    return dict(sorted(kept.items()))


def _available_memory(owners: Mapping[int, str], weights: Mapping[int, int], roles: Roles) -> dict[str, float]:
    """Return for each worker the memory that regions use or could use; equal shares without memory limits."""
    if any(worker not in roles.memory or not roles.memory[worker].limit for worker in roles.storage):
        return dict.fromkeys(roles.storage, 1.0)
    memory = {worker: 1.0 + roles.memory[worker].free for worker in roles.storage}
    for region, owner in owners.items():
        memory[owner] += weights[region]
    # Rounded to 256 MiB: short-lived differences must not move regions.
    return {worker: max(round(value / 2**28), 1) for worker, value in memory.items()}
