"""Reject the use of Icechunk in a process that was forked after Icechunk started its threads.

The threads do not exist in the forked process, which would wait for them without end. Dask's workers are not affected:
they are forked from a process that has imported Icechunk and never used it.
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
