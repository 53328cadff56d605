"""Leaving in order: the first Ctrl-C or SIGTERM asks a command to finish, the second ends it.

Covers: signals of the process that runs a command. Does not cover: what finishing means
(`giaann_dask.training.trainer`).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signals(message: str = "committing what is under way") -> Iterator[threading.Event]:
    """Yield an event that the first signal sets; a second one raises `KeyboardInterrupt`.

    Parameters
    ----------
    message : str
        What to say that happens after the first signal.
    """
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        click.echo(f"giaann-dask: {message}; once more to leave at once", err=True)

    if threading.current_thread() is not threading.main_thread():
        # Only the main thread may install handlers; elsewhere nobody can be interrupted this way.
        yield asked
        return
    before = {number: signal.signal(number, ask) for number in SIGNALS}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
