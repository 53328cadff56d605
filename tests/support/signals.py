"""Handle the signals that this process was told to ignore, so that tests of signals do the same wherever they run."""

from __future__ import annotations

import signal
from types import FrameType

# Of terminals and of those who stop a process: nohup ignores the last one, a shell the first one in the background.
INHERITED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def handle_ignored_signals() -> None:
    """Replace an inherited `SIG_IGN` by a handler that does nothing, Ctrl-C's by Python's own.

    Programs leave an ignored signal ignored, and their processes inherit that. A handler keeps this process running as
    well, and processes that it starts have the default.
    """
    for number in INHERITED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else _do_nothing)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    pass
