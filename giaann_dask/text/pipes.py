"""Inputs that come as they are written and can be read only once: standard input, named pipes, sockets.

Covers: opening them without waiting for a writer, and waiting for bytes in a way that signals and a `threading.Event`
end. Does not cover: regular files, and decompressing and decoding (`lines`).

A blocking ``open`` or ``read`` of a pipe goes on after a signal whose handler returns (PEP 475). So a command that
handles the first SIGTERM itself would never come to look at what its handler has set.
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
# How long one wait takes before the event is looked at again.
_WAIT_MS = 100


@dataclass(frozen=True, slots=True)
class StandardInput:
    """Standard input, given as ``-``; it is plain text. A file of that name is given as ``./-``."""

    @property
    def name(self) -> str:
        """The input as it was given."""
        return STANDARD_INPUT

    def __str__(self) -> str:
        """Return the input in words."""
        return "standard input"


class ReadingStopped(KeyboardInterrupt):
    """The event that ends waiting for a pipe was set; where nothing handles that, the whole run is interrupted."""


def is_pipe(path: Path) -> bool:
    """Return whether a path is a pipe, a terminal or a socket, which can be read only once.

    Raises
    ------
    OSError
        If the system does not tell what it is.
    """
    mode = path.stat().st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


def open_pipe(path: Path, stop: Event | None = None) -> BinaryIO:
    """Open a pipe, at once even where nothing writes to it yet.

    Parameters
    ----------
    path : Path
        Where it is.
    stop : threading.Event, optional
        Waiting for bytes ends with `ReadingStopped` when it is set.

    Raises
    ------
    OSError
        If it cannot be opened.
    """
    return _buffered(_PipeBytes(os.open(path, os.O_RDONLY | os.O_NONBLOCK), stop, owned=True))


def open_standard_input(stop: Event | None = None) -> BinaryIO:
    """Open standard input; `stop` is that of `open_pipe`. Closing what is returned leaves it open.

    Raises
    ------
    InputMissingError
        If this process has none.
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
    """The bytes of a descriptor that is waited for a moment at a time."""

    def __init__(self, descriptor: int, stop: Event | None, *, owned: bool) -> None:
        self._descriptor, self._stop, self._owned = descriptor, stop, owned
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Wait for at least one byte; return how many were read, 0 at the end."""
        while self._stop is None or not self._stop.is_set():
            # Another reader of the same pipe may be quicker.
            with suppress(BlockingIOError):
                if self._poll.poll(_WAIT_MS):
                    return os.readv(self._descriptor, [buffer])
        raise ReadingStopped

    def close(self) -> None:
        """Close the descriptor where this has opened it."""
        if self._owned and not self.closed:
            os.close(self._descriptor)
        super().close()
