"""Stop a command in order: the first Ctrl-C or SIGTERM sets an event, the second one ends the process.

What a training does then is in `giaann_dask.training.trainer`.
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
def stop_on_signals(message: str = "committing rounds in progress") -> Iterator[threading.Event]:
    """Yield an event that the first signal sets; a second one raises `KeyboardInterrupt`.

    Parameters
    ----------
    message : str
        Text to print after the first signal: what the command does now.
    """
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        click.echo(f"giaann-dask: {message}; send the signal again to exit immediately", err=True)

    if threading.current_thread() is not threading.main_thread():
        # Only the main thread may install handlers; in other threads there is nothing to handle.
        yield stop
        return
    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
