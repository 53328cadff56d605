"""Which process uses Icechunk: its threads are not there in a process that was forked from it.

Covers: noticing such a process before it waits for these threads, which it would do without end. Does not cover:
Dask's workers, which are forked from a process that has imported Icechunk and never used it.
"""

from __future__ import annotations

import os

import icechunk

from giaann_dask.errors import StoreForkedError

_user: int | None = None


def use_icechunk() -> None:
    """Check that this process may use Icechunk; call it before anything of Icechunk that reads or writes.

    Raises
    ------
    StoreForkedError
        If the process was forked from one that had used it.
    """
    global _user
    process = os.getpid()
    if _user is None:
        _user = process
        icechunk.set_logs_filter("error")
    elif _user != process:
        raise StoreForkedError(
            "a network is used in a process that was forked from one that had used a network",
            "a process that was not, because threads that read the store do not live on in a forked one",
            'use the start method "spawn" of multiprocessing, or fork before a network is opened',
        )
