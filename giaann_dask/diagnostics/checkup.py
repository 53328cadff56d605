"""Check this machine, a running cluster and a stored network.

Of this machine versions, devices, ports, disks, memory and caches are looked at. The scheduler answers, its workers run
the same versions, have roles and see the network, and the last commit of the network can be read. The checks change
nothing. `giaann_dask.cli.machine` prints their findings.
"""

from __future__ import annotations

import fcntl
import os
import platform
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Any, Literal

import psutil
from distributed import Client
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from giaann_dask.cluster import ClusterOptions, connect
from giaann_dask.cluster.connecting import compare_versions
from giaann_dask.cluster.roles import roles_of
from giaann_dask.cluster.sharing import look_from_workers
from giaann_dask.cluster.waiting import ask_workers, lost_cluster
from giaann_dask.device import select_device
from giaann_dask.errors import ClusterError, GiaannError
from giaann_dask.local_files import code_cache, is_temporary
from giaann_dask.object_urls import absolute_place, is_object_store
from giaann_dask.representations import format_bytes
from giaann_dask.runs.packing import unpack
from giaann_dask.store.locking import LockToken, inspect_folder, locked, read_token, unshared
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.unfinished import LOCK_FILE

# Of these, client and workers need the same: what they send each other, and what they read and compute.
PACKAGES = ("giaann-dask", "dask", "distributed", "cloudpickle", "numpy", "zarr", "icechunk", "numba")
# Runs that are decoded without being asked for all.
_SAMPLE_BYTES = 64 << 20
_TIMEOUT_S = 30.0
Status = Literal["good", "note", "bad"]

PACKAGE = "giaann-dask"
# What a machine can run out of: below the first something fails soon, below the second it may.
LEAST_DISK, LITTLE_DISK = 1 << 30, 10 << 30
LEAST_MEMORY, LITTLE_MEMORY = 1 << 30, 4 << 30
_SHARED = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "fuse.sshfs", "9p", "virtiofs")


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes
    ----------
    check : str
        What was looked at.
    status : {"good", "note", "bad"}
        Whether it is as it should be, worth knowing, or will make something fail.
    found : str
        What is there.
    remedy : str
        What to do about it; empty where there is nothing to do.
    """

    check: str
    status: Status
    found: str
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return asdict(self)


def check_machine(folder: Path, ports: Iterable[tuple[str, int]]) -> Iterator[Finding]:
    """Yield the findings of checks of this machine.

    Parameters
    ----------
    folder : Path
        Where networks are or will be; object stores have no disk of this machine.
    ports : iterable of (str, int)
        Ports that will be listened at, and what for.
    """
    yield check_python(platform.python_version())
    yield from check_packages(requires(PACKAGE) if _installed(PACKAGE) is not None else None)
    yield check_device()
    yield check_memory(_memory_limit(), psutil.virtual_memory().available)
    if not is_object_store(folder):
        yield check_disk("disk", folder)
    yield check_disk("disk for spilling", spill_folder())
    if not is_object_store(folder):
        yield check_sharing(folder)
    yield check_numba_cache()
    yield from (check_port(name, port) for name, port in ports)


def check_python(running: str) -> Finding:
    """Check that the package supports a version of Python.

    Examples
    --------
    >>> check_python("3.12.1").status, check_python("3.9.0").status
    ('good', 'bad')
    """
    supported = ">=3.11,<3.14" if _installed(PACKAGE) is None else str(metadata(PACKAGE)["Requires-Python"])
    fits = SpecifierSet(supported).contains(running, prereleases=True)
    remedy = "" if fits else f"install Python {supported} and make a new environment"
    return Finding("Python", "good" if fits else "bad", running, remedy)


def check_packages(requirements: Iterable[str] | None) -> Iterator[Finding]:
    """Yield findings on required packages and extras.

    Parameters
    ----------
    requirements : iterable of str, optional
        As a distribution names them; None where the package itself is not installed.
    """
    if requirements is None:
        yield Finding("packages", "bad", f"{PACKAGE} is not installed", f"pip install {PACKAGE}")
        return
    extras: dict[str, list[Requirement]] = {}
    for requirement in map(Requirement, requirements):
        named = [part.split("'")[1] if "'" in part else part.split('"')[1] for part in _extras(requirement)]
        for extra in named or [""]:
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                extras.setdefault(extra, []).append(requirement)
    for extra, wanted in sorted(extras.items()):
        if extra != "dev":
            yield _check_extra(extra, wanted)


def _extras(requirement: Requirement) -> list[str]:
    """Return the conditions of a requirement that name an extra."""
    conditions = str(requirement.marker or "").replace(" or ", " and ").split(" and ")
    return [condition for condition in conditions if "extra" in condition]


def _check_extra(extra: str, wanted: list[Requirement]) -> Finding:
    there = {requirement.name: _installed(requirement.name) for requirement in wanted}
    unfit = [
        f"{requirement.name} {there[requirement.name]} is not {requirement.specifier}"
        for requirement in wanted
        if there[requirement.name] is not None
        and not requirement.specifier.contains(str(there[requirement.name]), prereleases=True)
    ]
    missing = [name for name, found in there.items() if found is None]
    what = f"extra {extra}" if extra else "packages"
    install = f"pip install --upgrade '{PACKAGE}[{extra}]'" if extra else f"pip install --upgrade {PACKAGE}"
    if unfit or (missing and not extra):
        return Finding(what, "bad", "; ".join([*unfit, *(f"no {name}" for name in missing)]), install)
    if missing:
        return Finding(what, "note", f"not installed: {', '.join(missing)}", f"if you want it: {install}")
    main = ("dask", "distributed", "torch", "zarr", "icechunk") if not extra else tuple(there)
    return Finding(what, "good", ", ".join(f"{name} {there[name]}" for name in main if name in there))


def check_device() -> Finding:
    """Report the device of dense computations."""
    device, processors = select_device("auto"), os.cpu_count() or 1
    if device is None:
        return Finding("device", "good", f"CPU, {processors} processors; PyTorch finds no CUDA device")
    if _installed("dask-cuda") is None:
        remedy = f"for a worker for each GPU: pip install '{PACKAGE}[cuda]'"
        return Finding("device", "note", "a CUDA device, and no dask-cuda", remedy)
    return Finding("device", "good", "a CUDA device, with dask-cuda")


def check_memory(limit: int, available: int) -> Finding:
    """Check the available memory, in bytes.

    Examples
    --------
    >>> check_memory(8 << 30, 6 << 30).status, check_memory(2 << 30, 1 << 29).status
    ('good', 'bad')
    """
    available = min(limit, available)
    status = _status(available, LEAST_MEMORY, LITTLE_MEMORY)
    remedy = "" if status == "good" else "end other programs, or use fewer --workers with a --memory-limit each"
    return Finding("memory", status, f"{format_bytes(available)} free of {format_bytes(limit)}", remedy)


def check_disk(what: str, folder: Path) -> Finding:
    """Check that a folder, which need not exist yet, can be written, and report its free space."""
    there = existing(folder)
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding(what, "bad", f"{there} cannot be written", "choose another folder, or change its owner")
    free = psutil.disk_usage(str(there)).free
    status = _status(free, LEAST_DISK, LITTLE_DISK)
    remedy = "" if status == "good" else "free some space; commits stop, and lose nothing, when the disk is full"
    return Finding(what, status, f"{format_bytes(free)} free at {there}", remedy)


def check_sharing(folder: Path) -> Finding:
    """Report whether a folder is on a file system that other machines can share."""
    there = existing(folder).resolve()
    mounts = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    above = [str(parent) for parent in (there, *there.parents) if str(parent) in mounts]
    kind = mounts[above[0]] if above else "an unknown file system"
    if kind.lower().startswith(_SHARED):
        return Finding("file system", "good", f"{there} is on {kind}, which other machines can share")
    remedy = "workers on other machines need a folder that all of them share"
    return Finding("file system", "note", f"{there} is on {kind}, of this machine", remedy)


def check_numba_cache() -> Finding:
    """Check that compiled code can be cached between processes."""
    place = code_cache()
    if not os.access(existing(place), os.W_OK | os.X_OK):
        remedy = "set NUMBA_CACHE_DIR to a folder that can be written; every process compiles again otherwise"
        return Finding("compiled code", "bad", f"{place} cannot be written", remedy)
    named = os.environ.get("NUMBA_CACHE_DIR")
    if named and Path(named) != place:
        found = f"kept below {place}, as {named} in NUMBA_CACHE_DIR cannot be written"
        return Finding("compiled code", "note", found, "set NUMBA_CACHE_DIR to a folder that can be written")
    if is_temporary(place):
        found = f"kept below {place}, as neither the package's folder nor the user's can be written"
        return Finding("compiled code", "note", found, "set NUMBA_CACHE_DIR to a folder that stays")
    return Finding("compiled code", "good", f"kept below {place}")


def check_port(what: str, port: int) -> Finding:
    """Check that a port of this machine is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            found = f"{port} is taken or refused ({error.strerror})"
            return Finding(f"port of the {what}", "note", found, "if that is not yours, choose another port")
    return Finding(f"port of the {what}", "good", f"{port} is free")


def existing(folder: Path) -> Path:
    """Return a folder, or its nearest existing parent."""
    folder = folder.absolute()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder


def spill_folder() -> Path:
    """Return the folder to which workers spill."""
    import dask

    return Path(dask.config.get("temporary-directory", None) or tempfile.gettempdir())


def _memory_limit() -> int:
    """Return the memory limit of this machine or container, in bytes."""
    from distributed.system import MEMORY_LIMIT

    return int(MEMORY_LIMIT)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _status(there: int, least: int, little: int) -> Status:
    if there < least:
        return "bad"
    return "note" if there < little else "good"


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
