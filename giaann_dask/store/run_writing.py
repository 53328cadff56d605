"""Writing runs into a commit that is not made yet, from the workers that hold them.

Covers: what a worker needs to write a run (a session's fork), and what it answers. Does not cover: beginning and
making the commit (`store`).

Forks travel as bytes. One that has been opened takes megabytes, whatever its size by Dask's reckoning, and Dask
keeps what a task was given and what it returned as long as it may have to run again: a worker with hundreds of
runs had no memory left for them. So a task opens a fork for itself, and none of two attempts sees the other's.
"""

from __future__ import annotations

import pickle

import icechunk
from zarr.core.buffer.cpu import Buffer
from zarr.core.sync import sync

from giaann_dask.runs.packing import PackedRegionRun
from giaann_dask.storage import writing
from giaann_dask.store.locking import PlaceToken, require_place

_GROUP = b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'


def fork_session(session: icechunk.Session, place: PlaceToken) -> bytes:
    """Return what `write_run` needs to write into a session that nothing has been written into yet.

    Parameters
    ----------
    session : icechunk.Session
        Of the next commit.
    place : PlaceToken
        By which a worker knows the folder that it writes to.
    """
    return pickle.dumps((place, pickle.dumps(session.fork())))


def write_run(fork: bytes, identity: str, packed: PackedRegionRun) -> bytes:
    """Write a run, on the worker that holds it.

    Parameters
    ----------
    fork : bytes
        Of a session, as `fork_session` returns it.
    identity : str
        Name of the run in the store.
    packed : PackedRegionRun
        The run.

    Returns
    -------
    bytes
        What was written, for `merge_written`.

    Raises
    ------
    StoreWriteError
        If the disk is full.
    StoreUnsharedError
        If this process does not see the folder that the session is of; then nothing is written.
    """
    place, packed_fork = pickle.loads(fork)
    # Before the fork is opened, which makes a folder where none is.
    require_place(place)
    opened: icechunk.ForkSession = pickle.loads(packed_fork)
    with writing("the network"):
        # A group of its own, so that a run can be listed and deleted as one.
        sync(opened.store.set(f"runs/{identity}/zarr.json", Buffer.from_bytes(_GROUP)))
        for name, table in zip(packed._fields, packed, strict=True):
            for key, value in table.entries.items():
                sync(opened.store.set(f"runs/{identity}/{name}/{key}", Buffer.from_bytes(value)))
    return pickle.dumps(opened)


def merge_written(session: icechunk.Session, written: bytes) -> None:
    """Take what `write_run` has written into the session of which it got a fork."""
    session.merge(pickle.loads(written))
