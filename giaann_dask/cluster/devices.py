"""Share the tasks of a stage between workers with a GPU and the processor's workers, by their measured speeds.

Both give the same bytes, so each task may run at either place. Whether devices take part is an option (``device``).
How fast devices have been found to be, stage by stage, is kept in the user's cache, by cards and versions, so that
others are measured again; `giaann_dask.api.calibration` measures.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from distributed import Client, Future, Worker
from distributed.diagnostics.plugin import WorkerPlugin

from giaann_dask.cluster.roles import BOTH_ROLES, COMPUTE, GPU, STORAGE, Roles, roles_of
from giaann_dask.cluster.waiting import ask_workers
from giaann_dask.device import DeviceName, device_names
from giaann_dask.errors import OptionError
from giaann_dask.local_files import private_cache, user_cache

_LOG = logging.getLogger(__name__)
_FILE = "device-speeds.json"
# What the speed of a stage depends on, besides the machine.
_PACKAGES = ("giaann-dask", "torch", "numba", "numba-cuda", "numpy", "distributed", "dask-cuda")


def describe_machine() -> str:
    """Return the cards, processors and versions of this process, by which speeds are kept; no device is used."""
    return json.dumps(
        {
            "cards": list(device_names()),
            "processors": os.cpu_count(),
            "versions": {name: _version(name) for name in _PACKAGES},
        },
        sort_keys=True,
    )


def read_speeds(machine: str) -> dict[str, float]:
    """Return the speeds of stages on the devices of a machine; empty where none have been measured.

    Parameters
    ----------
    machine : str
        From `describe_machine`, called in a process that has the devices.

    Returns
    -------
    dict of str to float
        How many tasks of the stage a device finishes while a worker of the processor finishes one.
    """
    return {str(name): float(speed) for name, speed in read_measured(_FILE, machine).items()}


def write_speeds(machine: str, speeds: Mapping[str, float]) -> None:
    """Keep the speeds of stages on the devices of a machine, beside those of other machines."""
    write_measured(_FILE, machine, speeds)


def read_measured(file: str, machine: str) -> dict[str, Any]:
    """Return what has been measured on a machine and is kept in a file of the user's cache; empty without."""
    found = _read(file).get(machine)
    return found if isinstance(found, dict) else {}


def write_measured(file: str, machine: str, values: Mapping[str, Any]) -> None:
    """Keep what has been measured on a machine in a file of the user's cache, beside that of other machines."""
    path = user_cache() / file
    text = json.dumps({**_read(file), machine: dict(values)}, indent=2)
    try:
        private_cache("")
        # Another process may read it meanwhile.
        made = path.with_name(f"{file}.{os.getpid()}")
        made.write_text(text, encoding="utf-8")
        made.replace(path)
    except OSError as error:
        _LOG.warning("the measured speeds cannot be cached in %s, and will be measured again: %s", path, error)


def _read(file: str) -> dict[str, object]:
    path: Path = user_cache() / file
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class ProcessorRoles(WorkerPlugin):  # type: ignore[misc]
    """Declare both roles for a worker that declares nothing, as the workers that this package starts do."""

    name = "giaann-processor-roles"

    async def setup(self, worker: Worker) -> None:
        """Declare the roles; called on every worker, and on those that join later."""
        if not worker.state.total_resources.keys() & {STORAGE, COMPUTE, GPU}:
            await worker.set_resources(**BOTH_ROLES)


def declare_roles(client: Client) -> Roles:
    """Declare roles for the workers of a cluster where some declare a GPU and all others nothing; return all roles.

    Tasks can then require a role, so that workers with a GPU run none but the tasks that need one. Other clusters stay
    as they are.
    """
    roles = roles_of(client)
    if roles.devices and not roles.restricted and len(roles.every) > len(roles.devices):
        client.register_plugin(ProcessorRoles())
        return roles_of(client)
    return roles


def machine_of(client: Client, roles: Roles) -> str:
    """Return what describes the machine of a worker with a GPU, by which speeds are kept.

    Raises
    ------
    ClusterError
        If the worker does not answer.
    """
    (found,) = ask_workers(client, describe_machine, workers={roles.devices[0]}).values()
    return str(found)


class DeviceShare:
    """Choice of the tasks of one stage that devices compute.

    Parameters
    ----------
    tasks : float
        Tasks that each device may have at the same time, as many as it finishes while a worker of the processor
        finishes one: more would make others wait. 0 for none, infinity for all.
    """

    def __init__(self, tasks: float = 0.0) -> None:
        self._tasks = tasks
        self._running: list[tuple[Future, int]] = []

    @classmethod
    def of(cls, client: Client, stage: str, device: DeviceName, roles: Roles) -> DeviceShare:
        """Return the share of the devices of a cluster in a stage.

        With ``auto`` they take what makes nothing slower by the speeds that are kept in the user's cache, else none.

        Raises
        ------
        OptionError
            If CUDA is requested, and no worker declares a GPU.
        """
        if device == "cpu" or not (roles.devices or device == "cuda"):
            return cls()
        if device == "auto":
            return cls(int(read_speeds(machine_of(client, roles)).get(stage, 0.0)))
        if not roles.devices:
            raise OptionError(
                "device is 'cuda', and no worker of the cluster declares a GPU",
                "workers with the resource GPU",
                "start workers by dask-cuda that declare the resource GPU; or choose device auto or cpu",
                names=("device",),
            )
        return cls(math.inf)

    @property
    def wanted(self) -> bool:
        """Whether devices have any share."""
        return self._tasks > 0

    def capacity(self, roles: Roles, most: int = 1) -> int:
        """Return how many tasks, `most` or fewer, a device may do now as one; 0 leaves all to other workers."""
        self._running = [(future, tasks) for future, tasks in self._running if not future.done()]
        left = self._tasks * len(roles.devices) - sum(tasks for _, tasks in self._running) if roles.devices else 0
        return max(0, int(min(most, self._tasks, left)))

    def place(self, roles: Roles) -> dict[str, Any] | None:
        """Return the arguments of `Client.submit` for the next task on a device, None where no device is to run it."""
        return roles.on_device() if self.capacity(roles) else None

    def add(self, future: Future, tasks: int = 1) -> None:
        """Count a future that a device computes, which does so many tasks."""
        self._running.append((future, tasks))
