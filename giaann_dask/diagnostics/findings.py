"""Check this machine: versions, devices, ports, disks, memory, caches.

The checks change nothing. `giaann_dask.cli.machine` prints their findings.
"""

from __future__ import annotations

import os
import platform
import socket
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Any, Literal

import psutil
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from giaann_dask.device import select_device
from giaann_dask.object_urls import is_object_store
from giaann_dask.representations import format_bytes
from giaann_dask.user_cache import code_cache, is_temporary

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
        remedy = "set NUMBA_CACHE_DIR to a folder that can be written; every process compiles for a minute otherwise"
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
