"""Open and read streams that can be read only once: standard input, named pipes, sockets.

They are opened without waiting for a writer, and waiting for bytes ends on signals and on a `threading.Event`.
A blocking ``open`` or ``read`` of a pipe resumes after a signal whose handler returns (PEP 475), so a command with
its own handler of SIGTERM would block until the next byte and never check the flag that its handler has set.

Does not cover: regular files, and decompressing and decoding (`lines`).
"""

from __future__ import annotations

import io
import os
import select
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import BinaryIO, cast

from giaann_dask.errors import InputMissingError

STANDARD_INPUT = "-"
# Timeout of one poll, after which the event is checked.
_WAIT_MS = 100


@dataclass(frozen=True, slots=True)
class StandardInput:
    """Standard input, named ``-`` and read as plain text. A file of that name is named ``./-``."""

    @property
    def name(self) -> str:
        """Name of the input on the command line."""
        return STANDARD_INPUT

    def __str__(self) -> str:
        """Return the description for messages."""
        return "standard input"


class ReadingStopped(KeyboardInterrupt):
    """Raised when the stop event is set while waiting for a pipe; unhandled, it interrupts the run like Ctrl-C."""


def is_pipe(path: Path) -> bool:
    """Return whether a path is a pipe, a terminal or a socket, which can be read only once.

    Raises
    ------
    OSError
        If the path cannot be examined.
    """
    mode = path.stat().st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


def open_pipe(path: Path, stop: Event | None = None) -> BinaryIO:
    """Open a pipe without waiting for a writer.

    Parameters
    ----------
    path : Path
        Path of the pipe.
    stop : threading.Event, optional
        When it is set, waiting for bytes ends with `ReadingStopped`.

    Raises
    ------
    OSError
        If it cannot be opened.
    """
    return _buffered(_PipeBytes(os.open(path, os.O_RDONLY | os.O_NONBLOCK), stop, owned=True))


def open_standard_input(stop: Event | None = None) -> BinaryIO:
    """Open standard input; see `open_pipe` for `stop`. Closing the result leaves standard input open.

    Raises
    ------
    InputMissingError
        If standard input is closed.
    """
    try:
        descriptor = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError) as error:
        raise InputMissingError(
            "standard input ('-') is closed", "text from a pipe or a file", "name a file"
        ) from error
    return _buffered(_PipeBytes(descriptor, stop, owned=False))


def _buffered(raw: io.RawIOBase) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(raw))


class _PipeBytes(io.RawIOBase):
    """Raw stream of a file descriptor that polls with a timeout, so that it can be stopped."""

    def __init__(self, descriptor: int, stop: Event | None, *, owned: bool) -> None:
        self._descriptor, self._stop, self._owned = descriptor, stop, owned
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Wait for at least one byte; return the number of bytes read, 0 at the end."""
        while self._stop is None or not self._stop.is_set():
            # Another reader of the same pipe may have taken the bytes since the poll.
            with suppress(BlockingIOError):
                if self._poll.poll(_WAIT_MS):
                    return os.readv(self._descriptor, [buffer])
        raise ReadingStopped

    def close(self) -> None:
        """Close the descriptor if this object owns it."""
        if self._owned and not self.closed:
            os.close(self._descriptor)
        super().close()
