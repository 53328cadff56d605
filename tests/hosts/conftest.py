"""Hosts for trainings over several of them, with a folder that all share and one that none shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.hosts import Hosts, require_namespaces

NAMES = ("head", "n1", "n2", "n3", "client")
# Else the loss of a host is noticed after five minutes.
IMPATIENT = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "12s", "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "10s"}

MakeHosts = Callable[..., Hosts]


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """Folder that is another one on each host."""
    folder = tmp_path / "private"
    folder.mkdir()
    return folder


@pytest.fixture
def make_hosts(private: Path) -> Iterator[MakeHosts]:
    """Make hosts with some variables of the environment; they are removed after the test."""
    require_namespaces()
    made: list[Hosts] = []

    def make(**environment: str) -> Hosts:
        made.append(Hosts(NAMES, private, {**IMPATIENT, **environment}))
        return made[-1]

    yield make
    for hosts in made:
        hosts.close()
