"""A process that has used Icechunk ends when the threads of Icechunk have left Python."""

from __future__ import annotations

import _thread
import threading
import time

import pytest

from giaann_dask.store import icechunk_process
from giaann_dask.store.icechunk_process import await_foreign_threads


def run_outside(stop: threading.Event, current: bool) -> None:
    """Call Python in a thread that Python's `threading` did not start, with or without an entry for it there."""
    entered = threading.Event()

    def work() -> None:
        if current:
            threading.current_thread()
        entered.set()
        stop.wait(10)

    _thread.start_new_thread(work, ())
    assert entered.wait(10)


@pytest.mark.parametrize("current", [False, True])
def test_threads_of_others_are_awaited(current: bool) -> None:
    stop = threading.Event()
    run_outside(stop, current)
    threading.Timer(0.2, stop.set).start()
    began = time.monotonic()
    await_foreign_threads()
    assert stop.is_set()
    assert time.monotonic() - began < icechunk_process._LONGEST_WAIT_S


def test_the_wait_is_bounded_and_does_not_concern_own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    own = threading.Thread(target=stop.wait, args=(10,))
    own.start()
    await_foreign_threads()
    monkeypatch.setattr(icechunk_process, "_LONGEST_WAIT_S", 0.1)
    run_outside(stop, current=False)
    began = time.monotonic()
    await_foreign_threads()
    assert 0.1 <= time.monotonic() - began < 5
    stop.set()
    own.join()
