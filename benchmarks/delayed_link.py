"""Join a namespace to a bridge by a link with a delay, for kernels without netem: frames wait in this process.

    python delayed_link.py NAMESPACE OUTSIDE INSIDE DELAY_FILE

OUTSIDE and INSIDE are names of the two interfaces that it makes. DELAY_FILE has the delay in seconds as a double, which
may change at any time.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import select
import struct
import sys
import time
from collections import deque
from pathlib import Path

SET_INTERFACE, TAP, NO_HEADER, NEW_NETWORK = 0x400454CA, 0x0002, 0x1000, 0x40000000
FRAME = 1 << 16


def open_tap(name: str) -> int:
    """Make an interface in the present namespace; return what its frames are read from and written to."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, SET_INTERFACE, struct.pack("16sH22x", name.encode(), TAP | NO_HEADER))
    return tap


def main() -> None:
    """Pass frames on until this process is ended."""
    namespace, outside, inside, file = sys.argv[1:]
    taps = [open_tap(outside)]
    with Path(f"/run/netns/{namespace}").open("rb") as other:
        if ctypes.CDLL(None, use_errno=True).setns(other.fileno(), NEW_NETWORK):
            sys.exit(f"delayed_link: {namespace}: {os.strerror(ctypes.get_errno())}")
    taps.append(open_tap(inside))
    with Path(file).open("rb") as opened:
        shared = mmap.mmap(opened.fileno(), 8, prot=mmap.PROT_READ)
    waiting: dict[int, deque[tuple[float, bytes]]] = {tap: deque() for tap in taps}
    while True:
        firsts = [frames[0][0] for frames in waiting.values() if frames]
        pause = max(0.0, min(firsts) - time.monotonic()) if firsts else None
        for tap in select.select(taps, [], [], pause)[0]:
            due = time.monotonic() + struct.unpack("d", shared[:])[0]
            waiting[tap].append((due, os.read(tap, FRAME)))
        for tap, frames in waiting.items():
            while frames and frames[0][0] <= time.monotonic():
                frame = frames.popleft()[1]
                try:
                    os.write(taps[tap == taps[0]], frame)
                except OSError:
                    # The other end is not up yet, or full: lost, as on any link.
                    continue


if __name__ == "__main__":
    main()
