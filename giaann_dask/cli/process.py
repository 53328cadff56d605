"""Handle the signals and the standard streams of a command's process.

The first Ctrl-C, SIGTERM or SIGHUP sets an event, by which a command stops in order, the second one ends the process. A
signal that was ignored when the command began stays so, as with ``nohup``. A SIGHUP after another signal is ignored: a
terminal that is closed sends several, and so do service managers. What a training does then is in
`giaann_dask.training.trainer`.

Standard streams may be closed, unread or not writable. Closed ones are opened on the null device, before anything else
is opened: what a library writes to descriptor 2 would otherwise be written to whatever file has that number. Workers
inherit the descriptors. A reader of the output that has ended, a terminal that was closed and a full disk behind
standard error end no command. What is printed is in `output`.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

from giaann_dask.cli.output import say

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# The file name of an error of standard output.
OUTPUT = "standard output"


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


def provide_streams() -> None:
    """Open the standard streams that are closed, and drop what cannot be written to the others."""
    closed = [number for number in range(3) if not _is_open(number)]
    for number in closed:
        # The lowest free descriptor, which is this one; workers inherit it only if they are told to.
        opened = os.open(os.devnull, os.O_RDWR)
        os.dup2(opened, number)
        if opened > 2:
            os.close(opened)
        os.set_inheritable(number, True)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open as long as the process
    sys.stdout = _provided(sys.stdout, 1, _Output)
    sys.stderr = _provided(sys.stderr, 2, _Messages)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _provided(stream: TextIO | None, number: int, kind: Callable[..., TextIO]) -> TextIO:
    """Return a stream of a kind that writes where another one does, or to a descriptor."""
    if stream is None:
        raw = open(number, "wb", closefd=False)  # noqa: SIM115 - open as long as the process
        return kind(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
    if type(stream) is not io.TextIOWrapper:
        # A test or a notebook has replaced it.
        return stream
    same: dict[str, Any] = {name: getattr(stream, name) for name in ("encoding", "errors", "line_buffering")}
    return kind(stream.buffer, **same, write_through=stream.write_through)


class _Stream(io.TextIOWrapper):
    """Text stream with its own handling of errors."""

    def write(self, text: str, /) -> int:
        """Write text."""
        try:
            return super().write(text)
        except OSError as error:
            self._handle(error)
            return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            super().flush()
        except OSError as error:
            self._handle(error)

    def _handle(self, error: OSError) -> None:
        """Return where what cannot be written is dropped, else raise the error."""
        raise NotImplementedError


class _Output(_Stream):
    """Standard output: the null device from when its reader has ended; other errors name it."""

    def _handle(self, error: OSError) -> None:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return
        error.filename = OUTPUT
        raise error


class _Messages(_Stream):
    """Standard error: what cannot be written is dropped, as nothing could be said about it."""

    def _handle(self, error: OSError) -> None:
        pass
