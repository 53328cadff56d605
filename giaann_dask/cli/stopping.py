"""Stop a command in order: the first Ctrl-C, SIGTERM or SIGHUP sets an event, the second one ends the process.

A signal that was ignored when the command began stays so, as with ``nohup``. A SIGHUP after another signal is ignored:
a terminal that is closed sends several, and so do service managers. What a training does then is in
`giaann_dask.training.trainer`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from giaann_dask.cli.output import say

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def interrupt_on_signals() -> None:
    """Handle all of these signals as Ctrl-C: workers are stopped and temporary files removed."""
    for number in SIGNALS:
        if not _is_ignored(number):
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise KeyboardInterrupt


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
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        stop.set()
        say(f"{message}; send the signal again to exit immediately")

    if threading.current_thread() is not threading.main_thread():
        # Only the main thread may install handlers; in other threads there is nothing to handle.
        yield stop
        return
    before = {number: signal.signal(number, handle) for number in SIGNALS if not _is_ignored(number)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_ignored(number: int) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN
