"""Which addresses processes listen at."""

from __future__ import annotations

from contextlib import suppress

import psutil


def listening(pid: int | None = None) -> set[str]:
    """Return the addresses at which a process and all of its children listen."""
    root = psutil.Process(pid)
    found: set[str] = set()
    for process in (root, *root.children(recursive=True)):
        # A child may be gone by now.
        with suppress(psutil.NoSuchProcess):
            found |= {c.laddr.ip for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    return found
