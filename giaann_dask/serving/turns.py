"""Let the changes of a network go one after the other, and before steps of work in the background."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

# A step waits for changes that follow each other without a pause no longer than that.
_LONGEST_S = 30.0


class Turns:
    """Turns of the threads that change something: one at a time, and changes before steps in the background.

    Attributes
    ----------
    waiting : int
        Changes that wait for their turn.

    Examples
    --------
    >>> turns = Turns()
    >>> with turns.change():
    ...     turns.waiting
    0
    """

    def __init__(self) -> None:
        self.waiting = 0
        self._taken, self._ends = False, threading.Condition()

    @contextmanager
    def change(self) -> Iterator[None]:
        """Take the next turn."""
        with self._ends:
            self.waiting += 1
            try:
                self._ends.wait_for(lambda: not self._taken)
            finally:
                self.waiting -= 1
            self._taken = True
        with self._ending():
            yield

    @contextmanager
    def step(self) -> Iterator[None]:
        """Take a turn when no change waits, or after half a minute."""
        with self._ends:
            self._ends.wait_for(lambda: not self._taken and not self.waiting, _LONGEST_S)
            self._ends.wait_for(lambda: not self._taken)
            self._taken = True
        with self._ending():
            yield

    @contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self._ends:
                self._taken = False
                self._ends.notify_all()
