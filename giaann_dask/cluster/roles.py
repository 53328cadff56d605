"""Read the roles of workers, storage, compute and GPU, and assign tasks and regions to the workers of a role.

Workers declare their roles as Dask resources. `connecting` starts workers with roles. Tasks require a role as a
resource, so that a worker that is restarted under another address may run them; a task must never wait for the
address of a lost worker. Regions are assigned to storage workers by memory. A worker that declares a GPU and nothing
else runs the tasks of stages that devices compute (`devices`), and no others, unless all workers are of that kind.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from giaann_dask.cluster.waiting import query_scheduler
from giaann_dask.keywords import names_keywords

if TYPE_CHECKING:
    from distributed import Client

STORAGE = "storage"
COMPUTE = "compute"
# As dask-cuda's documentation names it.
GPU = "GPU"
# Workers of the processor that are started together both store columns and compute.
BOTH_ROLES = {STORAGE: 1, COMPUTE: 1}

# Unit of the memory by which regions are assigned, and how many times the bytes of regions must be available
# before a slow worker loses any: regions grow, and adding to them needs room.
_UNIT, _ROOM = 2**28, 2
# Amount of a resource that a task requires: so small that it never limits how many tasks run.
_SHARE = 1e-3


@dataclass(frozen=True)
class WorkerMemory:
    """Memory of a worker process as reported to the scheduler, in bytes.

    Attributes
    ----------
    limit : int
        Memory limit; 0 for no limit.
    process : int
        Its resident size.
    spilled : int
        Bytes that it has written to its local disk to stay within the limit.
    """

    limit: int = 0
    process: int = 0
    spilled: int = 0

    @property
    def free(self) -> int:
        """Bytes until the limit; 0 where there is none."""
        return max(self.limit - self.process, 0)


@dataclass(frozen=True)
class Roles:
    """Addresses of the workers of each role, in a fixed order.

    Attributes
    ----------
    storage, compute : tuple of str
        Workers that store columns, and workers that compute; where none declares the role, all workers but those
        with a GPU alone.
    restricted : frozenset of str
        Roles that some workers declare and others do not.
    memory : dict of str to WorkerMemory
        Of the storage workers, by address.
    devices : tuple of str
        Workers with a GPU.
    sole : frozenset of str
        Workers that declare a resource, of any name, that no other one has.
    """

    storage: tuple[str, ...]
    compute: tuple[str, ...]
    restricted: frozenset[str] = frozenset()
    memory: dict[str, WorkerMemory] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    sole: frozenset[str] = frozenset()

    @property
    def every(self) -> set[str]:
        """All workers."""
        return {*self.storage, *self.compute, *self.devices}

    def computing(self) -> dict[str, Any]:
        """Return the arguments of `Client.submit` for tasks that compute; none where all workers do."""
        return self._requiring(COMPUTE)

    def storing(self) -> dict[str, Any]:
        """Return the arguments of `Client.submit` for tasks that store columns; none where all workers do."""
        return self._requiring(STORAGE)

    def on_device(self) -> dict[str, Any]:
        """Return the arguments of `Client.submit` for tasks that need a GPU."""
        return {"resources": {GPU: _SHARE}}

    def anywhere(self) -> dict[str, Any]:
        """Return the arguments of `Client.submit` for tasks of no role; none where no worker has a GPU alone."""
        alone = set(self.devices) - {*self.storage, *self.compute}
        return self.computing() if alone else {}

    def _requiring(self, role: str) -> dict[str, Any]:
        return {"resources": {role: _SHARE}} if role in self.restricted else {}


@names_keywords
def roles_of(client: Client) -> Roles:
    """Return the present workers of a cluster by role.

    Parameters
    ----------
    client : Client
        Of the cluster; `giaann_dask.connect` has an example.

    Returns
    -------
    Roles
    """
    return roles_among(query_scheduler(client, "identity", n_workers=-1)["workers"])


def roles_among(workers: Mapping[str, Any]) -> Roles:
    """Return workers by role, given what a scheduler's ``identity`` says of them, by address."""
    declared = {address: set(worker.get("resources", {})) for address, worker in workers.items()}
    every = tuple(sorted(declared))
    devices = tuple(address for address in every if GPU in declared[address])
    others = tuple(address for address in every if not _has_device_alone(declared[address])) or every
    storage, compute = (tuple(a for a in every if role in declared[a]) for role in (STORAGE, COMPUTE))
    by_role = {STORAGE: storage, COMPUTE: compute}
    restricted = frozenset(role for role, its in by_role.items() if its and its != every)
    memory = {address: _memory(workers[address]) for address in storage or others}
    having = Counter(resource for resources in declared.values() for resource in resources)
    sole = frozenset(a for a, resources in declared.items() if any(having[resource] == 1 for resource in resources))
    return Roles(storage or others, compute or others, restricted, memory, devices, sole)


def _has_device_alone(declared: Set[str]) -> bool:
    return GPU in declared and not declared & {STORAGE, COMPUTE}


def directed(worker: str) -> dict[str, Any]:
    """Return the arguments of `Client.submit` that prefer a worker; none for an empty address.

    Examples
    --------
    >>> directed("tcp://a:1")
    {'workers': ['tcp://a:1'], 'allow_other_workers': True}
    """
    return {"workers": [worker], "allow_other_workers": True} if worker else {}


def _memory(worker: dict[str, Any]) -> WorkerMemory:
    metrics = worker.get("metrics", {})
    spilled = metrics.get("spilled_bytes", {})
    return WorkerMemory(
        int(worker.get("memory_limit") or 0),
        int(metrics.get("memory", 0)),
        int(spilled.get("disk", 0)) if isinstance(spilled, dict) else int(spilled),
    )


def assign_regions(
    owners: Mapping[int, str],
    weights: Mapping[int, int],
    roles: Roles,
    shares: Mapping[str, float] = MappingProxyType({}),
) -> dict[int, str]:
    """Assign regions to the present storage workers by memory, and to slow ones by their share.

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
    shares : mapping of str to float
        Of slow workers, 0 to 1: how much of the quota by its memory each gets; more where the memory of the others
        has no room for their regions.

    Returns
    -------
    dict of int to str
        Owner of every live region; empty without workers.

    Examples
    --------
    >>> assign_regions({}, {0: 5, 1: 5, 2: 5, 3: 5}, Roles(("a", "b"), ()))
    {0: 'a', 1: 'b', 2: 'a', 3: 'b'}
    >>> assign_regions({0: "a", 1: "b", 2: "a"}, {0: 5, 1: 5, 2: 5}, Roles(("a", "b"), ()), {"a": 0})
    {0: 'b', 1: 'b', 2: 'b'}
    """
    if not roles.storage:
        return {}
    kept = {region: owner for region, owner in owners.items() if region in weights and owner in roles.storage}
    nbytes = sum(weights.values()) if _is_limited(roles) else 0
    memory = _slowed(_available_memory(kept, weights, roles), shares, nbytes)
    quota = {worker: len(weights) * memory[worker] / sum(memory.values()) for worker in roles.storage}
    count = Counter(kept.values())
    # A heap, so that thousands of regions are assigned to thousands of workers in milliseconds.
    below = [(count[worker] - quota[worker], at, worker) for at, worker in enumerate(roles.storage)]
    heapq.heapify(below)
    for region in sorted(set(weights) - set(kept), key=lambda r: (-weights[r], r)):
        _, at, worker = below[0]
        kept[region] = worker
        count[worker] += 1
        heapq.heapreplace(below, (count[worker] - quota[worker], at, worker))

    def below_quota(workers: Iterable[str]) -> str:
        return max(workers, key=lambda worker: quota[worker] - count[worker])

    # A worker that joined later receives regions, the lightest first, until it is near its quota, and one that has
    # become slow gives them away.
    while True:
        receiver = below_quota(roles.storage)
        sender = min(roles.storage, key=lambda worker: quota[worker] - count[worker])
        lacking, beyond = quota[receiver] - count[receiver], count[sender] - quota[sender]
        if min(lacking, beyond) <= 0 or max(lacking, beyond * (sender in shares)) < 1:
            break
        region = min((r for r in kept if kept[r] == sender), key=lambda r: (weights[r], r))
        kept[region] = receiver
        count.update({sender: -1, receiver: 1})
    return dict(sorted(kept.items()))


def _is_limited(roles: Roles) -> bool:
    return all(worker in roles.memory and roles.memory[worker].limit for worker in roles.storage)


def _slowed(memory: Mapping[str, float], shares: Mapping[str, float], nbytes: int) -> Mapping[str, float]:
    """Return the memory of workers, that of slow ones reduced as far as all regions still fit."""
    slowed = {worker: its * shares.get(worker, 1.0) for worker, its in memory.items()}
    every, left = sum(memory.values()), sum(slowed.values())
    if not left or left == every:
        return memory
    back = min(max((_ROOM * nbytes / _UNIT - left) / (every - left), 0.0), 1.0)
    return {worker: slowed[worker] + back * (memory[worker] - slowed[worker]) for worker in memory}


def _available_memory(owners: Mapping[int, str], weights: Mapping[int, int], roles: Roles) -> dict[str, float]:
    """Return for each worker the memory that regions use or could use; equal shares without memory limits."""
    if not _is_limited(roles):
        return dict.fromkeys(roles.storage, 1.0)
    memory = {worker: 1.0 + roles.memory[worker].free for worker in roles.storage}
    for region, owner in owners.items():
        memory[owner] += weights[region]
    # Rounded to 256 MiB: short-lived differences must not move regions.
    return {worker: max(round(value / _UNIT), 1) for worker, value in memory.items()}
