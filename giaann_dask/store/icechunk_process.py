"""Use Icechunk, which has threads of its own, only in the process that started these, and end that process safely.

The threads do not exist in a process that is forked after they were started, which would wait for them without end.
Dask's workers are not affected: they are forked from a process that has imported Icechunk and never used it.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from types import FrameType

from giaann_dask.errors import StoreForkedError
from giaann_dask.store.icechunk_library import icechunk, prepare_icechunk

_user: int | None = None
# A thread needs microseconds to leave Python, unless the machine is overloaded.
_LONGEST_WAIT_S = 2.0


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
        # Its errors are exceptions, too, which are told in one line.
        icechunk.set_logs_filter(os.environ.get("ICECHUNK_LOG", "off"))
        prepare_icechunk()
        atexit.register(await_icechunk)
    elif _user != process:
        raise StoreForkedError(
            "a network is used in a process that was forked from one that had used a network",
            "a process that was not, because threads that read the store do not live on in a forked one",
            'use the start method "spawn" of multiprocessing, or fork before a network is opened',
        )


def await_icechunk() -> None:
    """Wait until no thread of Icechunk hands over to an event loop what it has read, for two seconds at most.

    It does so by a method of the loop, so that the process may end before this method has returned. The interpreter
    would end the thread there, which aborts the process.
    """
    deadline = time.monotonic() + _LONGEST_WAIT_S
    while _hands_over() and time.monotonic() < deadline:
        time.sleep(0.001)


def _hands_over() -> bool:
    """Return whether a thread that Python did not start has called asyncio."""
    started = {each.ident for each in threading.enumerate() if not isinstance(each, threading._DummyThread)}
    return any(
        _outermost(frame).f_globals.get("__name__", "").startswith("asyncio.")
        for thread, frame in sys._current_frames().items()
        if thread not in started
    )


def _outermost(frame: FrameType) -> FrameType:
    while frame.f_back is not None:
        frame = frame.f_back
    return frame
