"""Roles: which workers hold columns and which compute.

Covers: reading the roles that workers declare as Dask resources, and where tasks of each role are
directed. Does not cover: starting workers with roles (`connecting`).

Tasks that compute ask for the resource of their role, so that a worker that comes back under another
address may take them. Tasks that add to a region prefer its owner and may run elsewhere, because a
task must never wait for an address that is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distributed import Client

from giaann_dask.cluster.waiting import ask_scheduler

STORAGE = "storage"
COMPUTE = "compute"

# Of a worker's resource: so little that it names the role and never limits how many tasks run.
_SHARE = 1e-3


@dataclass(frozen=True)
class Roles:
    """Addresses of the workers of each role, in a fixed order.

    Attributes
    ----------
    storage, compute : tuple of str
        Workers that hold columns, and workers that compute; all workers where none declares a role.
    """

    storage: tuple[str, ...]
    compute: tuple[str, ...]

    def owner(self, region: int) -> tuple[str, ...]:
        """Return the storage worker that a region is dealt to; none without workers."""
        return (self.storage[region % len(self.storage)],) if self.storage else ()

    def computing(self) -> dict[str, Any]:
        """Return the arguments of `Client.submit` for tasks that compute; none where all workers do."""
        return {} if set(self.compute) >= set(self.storage) else {"resources": {COMPUTE: _SHARE}}

    def holding(self, region: int) -> dict[str, Any]:
        """Return the arguments of `Client.submit` for tasks that add to a region."""
        return directed(self.owner(region))


def roles_of(client: Client) -> Roles:
    """Return the present workers of a cluster by role."""
    workers = ask_scheduler(client, "identity", n_workers=-1)["workers"]
    declared = {address: set(worker.get("resources", {})) for address, worker in workers.items()}
    every = tuple(sorted(declared))
    storage, compute = (tuple(a for a in every if role in declared[a]) for role in (STORAGE, COMPUTE))
    return Roles(storage or every, compute or every)


def directed(workers: tuple[str, ...]) -> dict[str, Any]:
    """Return the arguments of `Client.submit` that prefer some workers.

    Examples
    --------
    >>> directed(("tcp://a:1",))
    {'workers': ['tcp://a:1'], 'allow_other_workers': True}
    >>> directed(())
    {}
    """
    return {"workers": list(workers), "allow_other_workers": True} if workers else {}
