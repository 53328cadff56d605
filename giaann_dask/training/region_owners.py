"""Assign regions to the storage workers of a cluster, and direct their tasks there.

`giaann_dask.cluster.roles` chooses the owners by memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from distributed import Client, Future

from giaann_dask.cluster import assign_regions, directed, roles_of, task_key
from giaann_dask.training import tasks


class RegionOwners:
    """The storage worker of each region.

    Parameters
    ----------
    client : Client
        Connected to the cluster.

    Attributes
    ----------
    roles : Roles
        Workers at the last assignment.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._owners: dict[int, str] = {}
        # Values that are kept at the owners, for tasks that depend on them.
        self._anchors: dict[int, Future] = {}
        self.roles = roles_of(client)

    @property
    def addresses(self) -> Mapping[int, str]:
        """Address of the owner of each region that has one."""
        return MappingProxyType(self._owners)

    def begin_with(self, owners: Mapping[int, str]) -> None:
        """Assign some regions to workers that have them in memory; `assign` keeps those that store columns."""
        self._owners = dict(owners)

    def assign(self, weights: Mapping[int, int]) -> None:
        """Read which workers are present, and assign regions to those that store columns.

        Parameters
        ----------
        weights : mapping of int to int
            Bytes of every live region.
        """
        self.roles = roles_of(self._client)
        self._owners = assign_regions(self._owners, weights, self.roles)

    def split(self, region: int, low: int) -> None:
        """Keep the first part of a split region at its owner; `assign` chooses one for the second part."""
        self._anchors.pop(region, None)
        if region in self._owners:
            self._owners = {**self._owners, low: self._owners[region]}

    def groups(self, regions: Iterable[int]) -> list[tuple[int, ...]]:
        """Return regions grouped by their owner; all in one group where one worker stores columns."""
        by_owner: dict[str, list[int]] = {}
        for region in regions:
            owner = self._owners.get(region, "") if len(self.roles.storage) > 1 else ""
            by_owner.setdefault(owner, []).append(region)
        return [tuple(group) for group in by_owner.values()]

    def at_owner(self, region: int) -> dict[str, Any]:
        """Return arguments of `Client.submit` that direct a task to a region's owner.

        Dask alone would follow the increments. Where all workers store columns, the owner is preferred, also
        where it is the only one: tasks that may run anywhere and have no inputs, as those that take over what
        the owner has just written, are held back while it has others, by which time it may have forgotten that.
        Where some only compute, tasks must never leave the storage workers, which a preference does not
        ensure; so they depend on a value that is kept at the owner, and that is computed again at another
        one when it is lost.
        """
        owner = (self._owners[region],) if region in self._owners else ()
        storing = self.roles.storing()
        if not storing:
            return directed(owner)
        if not owner or len(self.roles.storage) == 1:
            return storing
        key = task_key("owner_anchor", region, owner)
        anchor = self._anchors.get(region)
        if anchor is None or anchor.key != key:
            # Without the role's resource: a task with both may be sent to a worker without it, which dies of it.
            anchor = self._client.submit(tasks.owner_anchor, region, key=key, **directed(owner))
            self._anchors[region] = anchor
        return {**storing, "owner_anchor": anchor}
