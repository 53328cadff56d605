"""Check a running cluster and a stored network.

The scheduler answers, its workers run the same versions, have roles and see the network, and the last commit of the
network can be read. The checks of this machine are in `giaann_dask.diagnostics.findings`.
"""

from __future__ import annotations

import fcntl
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from distributed import Client

from giaann_dask.cluster import ClusterOptions, connect
from giaann_dask.cluster.lost import lost_cluster
from giaann_dask.cluster.roles import roles_of
from giaann_dask.cluster.sharing import look_from_workers
from giaann_dask.cluster.versions import compare_versions
from giaann_dask.cluster.waiting import ask_workers
from giaann_dask.diagnostics.findings import Finding
from giaann_dask.errors import ClusterError, GiaannError
from giaann_dask.object_urls import is_object_store
from giaann_dask.runs.packing import unpack
from giaann_dask.storage import absolute_place
from giaann_dask.store.lease import read_token
from giaann_dask.store.locking import LOCK_FILE, LockToken, inspect_folder, locked, unshared
from giaann_dask.store.network_store import NetworkStore

# Of these, client and workers need the same: what they send each other, and what they read and compute.
PACKAGES = ("giaann-dask", "dask", "distributed", "cloudpickle", "numpy", "zarr", "icechunk", "numba")
# Runs that are decoded without being asked for all.
_SAMPLE_BYTES = 64 << 20
_TIMEOUT_S = 30.0


def versions() -> dict[str, str]:
    """Return the versions that this process has, as a task."""
    found = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def check_cluster(options: ClusterOptions, network: Path | None = None) -> Iterator[Finding]:
    """Yield the findings of checks of a running cluster.

    Parameters
    ----------
    options : ClusterOptions
        Which names a scheduler.
    network : Path, optional
        Folder that its workers should see.
    """
    try:
        with connect(options=options, same_versions=False) as client, lost_cluster():
            yield from _check_workers(client, network)
    except GiaannError as error:
        remedy = f"{error.remedy}; see that firewalls let the scheduler's port and those of workers through"
        yield Finding("cluster", "bad", error.received, remedy)


def _check_workers(client: Client, network: Path | None) -> Iterator[Finding]:
    roles = roles_of(client)
    workers = roles.every
    address = client.scheduler.address
    if not workers:
        remedy = f"start some: dask worker {address} --resources 'storage=1,compute=1'"
        yield Finding("cluster", "bad", f"the scheduler at {address} has no workers", remedy)
        return
    yield Finding("cluster", "good", f"{len(workers)} workers at {address}")
    declared = sorted(roles.restricted)
    told = f"{len(roles.storage)} hold columns, {len(roles.compute)} compute"
    devices = f"; {len(roles.devices)} have a GPU" if roles.devices else ""
    yield Finding("roles", "good", told + ("" if declared else "; every worker does both") + devices)
    try:
        compare_versions(client)
    except ClusterError as error:
        yield Finding("versions", "bad", error.received, error.remedy)
    yield check_versions(versions(), _ask(client, versions))
    if network is not None:
        yield _check_seen(client, absolute_place(network))


def _check_seen(client: Client, network: Path) -> Finding:
    """Check that all workers see the folder of a network that this process sees."""
    check = "network seen by workers"
    if not is_object_store(network) and not network.is_dir():
        return Finding(check, "bad", f"this process sees no folder {network}", "check the path")
    with ExitStack() as resources:
        try:
            expected = resources.enter_context(locked(network)).mark()
        except GiaannError:
            # Another process trains it, with tokens of its own, or this user may not write there.
            expected = LockToken(str(network), next(iter(inspect_folder(str(network)).tokens), ""))
        blind, seeing = look_from_workers(client, expected)
    if blind:
        remedy = unshared("", network).remedy
        return Finding(check, "bad", "; ".join(blind[worker] for worker in sorted(blind)), remedy)
    if not expected.token:
        found = "all see a folder; whether it is the same one cannot be told without the right to write there"
        return Finding(check, "note", found, "check it as the user who trains the network")
    return Finding(check, "good", f"by all {len(seeing)}")


def check_versions(ours: Mapping[str, str], theirs: Mapping[str, Mapping[str, str] | BaseException]) -> Finding:
    """Check that workers have the versions that this process has.

    Parameters
    ----------
    ours : mapping of str to str
        From `versions`.
    theirs : mapping
        The same by worker, or the error with which a worker answered.

    Examples
    --------
    >>> check_versions({"dask": "2"}, {"tcp://a:1": {"dask": "1"}}).found
    'tcp://a:1 has dask 1, not 2'
    """
    without = [worker for worker, found in theirs.items() if not isinstance(found, Mapping)]
    if without:
        return Finding(
            "versions of workers",
            "bad",
            f"giaann_dask cannot be imported by {', '.join(sorted(without)[:3])} ({theirs[without[0]]})",
            "install giaann-dask in the environment of every worker, in the same version as here",
        )
    differing = [
        f"{worker} has {name} {found.get(name, 'none')}, not {wanted}"
        for worker, found in sorted(theirs.items())
        if isinstance(found, Mapping)
        for name, wanted in ours.items()
        if found.get(name) != wanted
    ]
    if differing:
        more = f", and {len(differing) - 3} more" if len(differing) > 3 else ""
        return Finding(
            "versions of workers",
            "bad",
            "; ".join(differing[:3]) + more,
            "install the same versions everywhere (constraints.txt names those that are tested)",
        )
    return Finding("versions of workers", "good", f"as here: giaann-dask {ours.get('giaann-dask')}")


def _ask(client: Client, question: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """Return every worker's response within a bounded time."""
    try:
        return ask_workers(client, question, *arguments, limit_s=_TIMEOUT_S)
    except ClusterError as error:
        return {"some worker": error}


def check_network(path: Path, all_runs: bool = False, ref: str | None = None) -> Iterator[Finding]:
    """Yield the findings of reading a network.

    Parameters
    ----------
    path : Path
        Its folder.
    all_runs : bool
        Whether to decode all runs of the commit, which takes as long as reading it; otherwise some of them.
    ref : str, optional
        Tag, branch or identity of a commit; the last one by default.
    """
    which = "last commit" if ref is None else f"commit {ref}"
    try:
        store = NetworkStore(path)
        reader = store.open(store.head() if ref is None else ref)
        manifest, commits = reader.manifest(), len(store.commits())
        yield Finding("network", "good", f"{path}: {commits} commits, {manifest.connections:,} connections")
        reader.vocabulary(), reader.ledger(), reader.placement()
        missing = {run.identity for run in manifest.runs} - reader.stored_runs()
        decoded = nbytes = 0
        for run in sorted(manifest.runs, key=lambda run: run.nbytes):
            if run.identity in missing or (decoded and not all_runs and nbytes + run.nbytes > _SAMPLE_BYTES):
                continue
            unpack(reader.connections(run.identity))
            decoded, nbytes = decoded + 1, nbytes + run.nbytes
    except GiaannError as error:
        remedy = error.remedy or "restore it from a copy (giaann-dask job backup)"
        yield Finding("network", "bad", error.received, remedy)
        return
    if missing:
        yield Finding(which, "bad", f"{len(missing)} of its runs are missing", "restore it from a copy")
    else:
        more = "" if decoded == len(manifest.runs) else "; --all-runs decodes all"
        yield Finding(which, "good", f"{decoded} of {len(manifest.runs)} runs decoded{more}")
    written = read_token(store.path) is not None if is_object_store(path) else is_locked(path / LOCK_FILE)
    if written:
        yield Finding("writer", "note", "another process is training it", "wait until that has ended to train it here")


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of a file; False where there is no file or it may not be read."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
