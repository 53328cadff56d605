"""Steps that need a processor of their own, one at a time for each.

Covers: waiting for it, bounded, so that whoever asked may leave. Does not cover: the steps.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TypeVar

Step = TypeVar("Step")

# Whoever waits for a processor looks after so many seconds whether its prompt is still wanted.
_TURN_S = 0.25


def with_step_slot(steps: Iterator[Step], processors: threading.Semaphore) -> Iterator[Step | None]:
    """Do each step when a processor is free for it; yield None whenever there is none for a while."""
    while True:
        if not processors.acquire(timeout=_TURN_S):
            yield None
            continue
        try:
            step = next(steps, None)
        finally:
            processors.release()
        if step is None:
            return
        yield step
