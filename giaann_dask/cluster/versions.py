"""Compare the versions of a client with those of the scheduler and the workers before anything is sent to them.

Dask asks for them itself, so a scheduler or worker without this package answers, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from giaann_dask.cluster.compilation import load_on_scheduler
from giaann_dask.cluster.resilience import survive_losses
from giaann_dask.cluster.waiting import timeout_s
from giaann_dask.errors import ClusterError

if TYPE_CHECKING:
    from distributed import Client

_LOG = logging.getLogger(__name__)
# What client, scheduler and workers send each other depends on these.
_SAME = ("giaann_dask", "python", "dask", "distributed")
_SIMILAR = ("numpy", "cloudpickle")
_NAMED = 3
_compared: WeakSet[Client] = WeakSet()


def require_versions(client: Client) -> None:
    """Check that scheduler and workers have this package and the versions of this process; once for each client.

    A scheduler that was started separately then gets the plugin of `giaann_dask.cluster.resilience`, and imports what
    a training sends it.

    Parameters
    ----------
    client : Client
        Connected to a cluster.

    Raises
    ------
    ClusterError
        If one has another version of this package, Python, dask or distributed, or does not answer in time.
    """
    if client in _compared or client.scheduler is None or client.scheduler.address.startswith("inproc:"):
        return
    compare_versions(client)
    survive_losses(client)
    load_on_scheduler(client)
    _compared.add(client)


def compare_versions(client: Client) -> None:
    """Check that scheduler and workers have this package and the versions of this process, and change nothing.

    Raises
    ------
    ClusterError
        As `require_versions`.
    """
    try:
        found: dict[str, Any] = client.sync(
            client._get_versions, packages=["giaann_dask"], callback_timeout=timeout_s()
        )
    except OSError as error:
        raise ClusterError(
            "the cluster does not answer when it is asked for its versions",
            "a scheduler and workers that are there",
            "look at their logs, or start the cluster again",
        ) from error
    ours = _packages(found["client"])
    others = {"the scheduler": _packages(found["scheduler"])}
    others |= {f"worker {address}": _packages(each) for address, each in sorted(found["workers"].items())}
    different = list(_differences(ours, others, _SAME))
    if different:
        more = f", and {len(different) - _NAMED} more" if len(different) > _NAMED else ""
        raise ClusterError(
            "; ".join(different[:_NAMED]) + more,
            "the same versions on client, scheduler and workers",
            f"install giaann-dask {ours['giaann_dask']} and what this process has there, and start them again",
        )
    for difference in _differences(ours, others, _SIMILAR):
        _LOG.warning("%s", difference)


def _packages(answer: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of an answer by package; those of Python without the last numbers."""
    packages = {name: str(version or "none") for name, version in answer.get("packages", {}).items()}
    packages["python"] = ".".join(packages.get("python", "none").split(".")[:2])
    return packages


def _differences(
    ours: Mapping[str, str], others: Mapping[str, Mapping[str, str]], names: tuple[str, ...]
) -> Iterator[str]:
    """Yield a description of every difference."""
    for place, versions in others.items():
        for name in names:
            if versions.get(name, "none") != ours.get(name, "none"):
                yield f"{place} has {name} {versions.get(name, 'none')}, not {ours.get(name, 'none')}"
