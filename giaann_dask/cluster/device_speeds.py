"""Keep in the user's cache how fast devices have been found to be, stage by stage, with the versions that this is of.

`giaann_dask.api.calibration` measures. What is kept is asked for by cards and versions, so that others are measured
again.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from giaann_dask.device import device_names
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
        _LOG.warning("what was measured cannot be kept in %s, and is measured again: %s", path, error)


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
