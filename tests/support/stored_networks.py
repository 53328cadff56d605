"""Networks of a few runs that are written without training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from giaann_dask.api.network import Network
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import RegionRun, Run
from giaann_dask.spec import Specification
from giaann_dask.store import commits
from giaann_dask.store.commits import CommitContent
from giaann_dask.store.manifest import Manifest, StoredRun
from giaann_dask.store.network_store import CommitReader, NetworkStore
from giaann_dask.store.run_io import write_runs
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.ledger import LedgerEntry
from giaann_dask.text.vocabulary import Vocabulary
from giaann_dask.training.tasks import pack_run

RUNS = ("00000.00000000-00000000", "00001.00000000-00000000", "00001.00000001-00000001")


def reader_of(network: Network) -> CommitReader:
    """Open the commit of a network as the store has it."""
    return NetworkStore(network.path).open(network.commit)


def create_network(path: Path) -> NetworkStore:
    """Create an empty network of two regions."""
    return NetworkStore.create(path, Manifest(specification=Specification(regions=2)), EverPos())


def commit_runs(store: NetworkStore, identities: tuple[str, ...], ledger: Sequence[LedgerEntry] = ()) -> str:
    """Commit runs with these identities and two connections each, in place of those of the commit before."""
    run = Run(np.array([5]), np.array([0, 2]), np.array([1, 3]), np.array([7, 9], np.int32))
    packed = pack_run(RegionRun(run, Run.empty()))
    nbytes = packed.connections.nbytes + packed.neurons.nbytes
    before = store.open(store.head())
    runs = tuple(StoredRun(name, int(name[:5]), 0, 1, 2, nbytes) for name in identities)
    manifest = Manifest(specification=Specification(regions=2), runs=runs, neurons=1, connections=2)
    content = CommitContent(manifest, Vocabulary(), list(ledger), Placement(2))
    present = before.stored_runs()
    with store.lock():
        session = store.begin()
        forks = [write_runs(store.fork(session), {name: packed for name in identities if name not in present})]
        store.write_content(session, before, content)
        return store.commit(session, forks, before, manifest)


def edit_manifest(root: Any, **changed: Any) -> None:
    """Change fields of the manifest in the group of a commit, with the checksum that goes with them."""
    root.attrs["manifest"] = {**root.attrs["manifest"], **changed}
    root.attrs["checksum"] = commits._checksum(root.attrs)
