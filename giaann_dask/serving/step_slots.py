"""Limit how many threads do a step of inference simultaneously."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TypeVar

Step = TypeVar("Step")

# A thread that waits for a processor yields control after so many seconds, so that its prompt can be abandoned.
_POLL_S = 0.25


def with_step_slot(steps: Iterator[Step], processors: threading.Semaphore) -> Iterator[Step | None]:
    """Do each step when a processor is free for it; yield None if there is none for a while."""
    while True:
        if not processors.acquire(timeout=_POLL_S):
            yield None
            continue
        try:
            step = next(steps, None)
        finally:
            processors.release()
        if step is None:
            return
        yield step
