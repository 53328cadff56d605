"""Decode rows of the packed runs that a worker holds, a block of rows at a time, and keep blocks within its memory.

A run stays in memory in its encoded form, of which training and every opened commit use the same bytes; what is decoded
of it is a cache. `service` answers requests from it. Blocks of a network that is alone on its workers fill the memory
that is free, so that each is decoded once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field

import numpy as np

from giaann_dask.keys import Integers
from giaann_dask.runs.packed_rows import RowReader
from giaann_dask.runs.packing import CHUNK, PackedRun
from giaann_dask.runs.run import Run

# Bytes of blocks that are kept however little memory is free.
LEAST_BYTES = 32 << 20


@dataclass(eq=False)
class _OpenRun:
    """Reader of a packed run, and its blocks of rows.

    Attributes
    ----------
    packed : PackedRun
        The run.
    reader : RowReader
        Reads its rows.
    first : ndarray
        First source neuron of each block, ascending; int64, shape ``(blocks,)``.
    ends : ndarray
        The first source neuron of the next block, or one more than the last source; int64, the same shape.
    """

    packed: PackedRun
    reader: RowReader
    first: Integers
    ends: Integers

    @classmethod
    def of(cls, packed: PackedRun, block_targets: int) -> _OpenRun:
        """Open a run; a block ends before the row that completes a multiple of so many targets."""
        reader = RowReader(packed.read)
        source, targets = reader.source, np.cumsum(reader.row_targets)
        chunk = (targets - 1) // block_targets
        begin = np.flatnonzero(np.diff(chunk, prepend=-1))
        first = source[begin]
        return cls(packed, reader, first, np.append(first[1:], source[-1:] + 1))

    def blocks_of(self, neurons: Integers) -> dict[int, int]:
        """Return the blocks that may have rows of ascending neurons, and how many of these come before the next one."""
        place = np.searchsorted(self.first, neurons, side="right") - 1
        blocks = np.unique(place[place >= 0])
        return dict(zip(blocks.tolist(), np.searchsorted(place, blocks, side="right").tolist(), strict=True))

    def decode(self, block: int) -> Run:
        """Decode a block."""
        return self.reader.between(int(self.first[block]), int(self.ends[block]))


@dataclass(eq=False)
class DecodedBlocks:
    """LRU cache of decoded blocks of packed runs; safe to use from several threads.

    Parameters
    ----------
    room : callable
        Returns whether the process has memory for more.
    block_targets : int
        Targets of a block, about; a larger row is a block of its own. By default as many as a frame of a chunk has, so
        that a row alone costs little.

    Attributes
    ----------
    nbytes : int
        Bytes of the blocks that are kept now.
    decoded : int
        Blocks that were decoded so far.
    """

    room: Callable[[], bool]
    block_targets: int = CHUNK // 4
    nbytes: int = 0
    decoded: int = 0
    _open: OrderedDict[str, _OpenRun] = field(default_factory=OrderedDict)
    _blocks: OrderedDict[tuple[str, int], Run] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    # The run decoded last, whose reader keeps frames that the next block needs as well.
    _last: _OpenRun | None = None

    def blocks(self, key: str, packed: PackedRun, neurons: Integers) -> Iterator[tuple[int, Run]]:
        """Yield the blocks of a run that may have rows of some neurons.

        Parameters
        ----------
        key : str
            Of the task whose result the run is.
        packed : PackedRun
            Its connections.
        neurons : ndarray
            Neuron keys, strictly ascending; int64.

        Yields
        ------
        int, Run
            How many of the neurons come before the block that follows, and the block.

        Raises
        ------
        StoreDamagedError
            If the run does not decode.
        """
        with self._lock:
            opened = self._opened(key, packed)
        for block, behind in opened.blocks_of(neurons).items():
            with self._lock:
                run = self._block(key, opened, block)
            yield behind, run

    def opened(self, key: str) -> PackedRun | None:
        """Return a run that has been opened, given the key of the task whose result it is; None for another one."""
        opened = self._open.get(key)
        return None if opened is None else opened.packed

    def has(self, key: str, neurons: Integers) -> bool:
        """Return whether the blocks of an opened run are there that `blocks` yields; False while one is decoded."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            opened = self._open.get(key)
            return opened is not None and all((key, block) in self._blocks for block in opened.blocks_of(neurons))
        finally:
            self._lock.release()

    def keep_only(self, held: Container[str]) -> None:
        """Forget what was decoded of runs that the worker does not hold any more, given the keys of its results."""
        with self._lock:
            for key in [key for key in self._open if key not in held]:
                self._forget(key)

    def _opened(self, key: str, packed: PackedRun) -> _OpenRun:
        opened = self._open.get(key)
        # A run that was spilled and read again is another object of the same content.
        if opened is None or opened.packed is not packed:
            if opened is not None:
                self._forget(key)
            opened = self._open[key] = _OpenRun.of(packed, self.block_targets)
        return opened

    def _block(self, key: str, opened: _OpenRun, block: int) -> Run:
        run = self._blocks.get((key, block))
        if run is not None:
            self._blocks.move_to_end((key, block))
            return run
        if self._last is not None and self._last is not opened:
            self._last.reader.release()
        self._last = opened
        run = opened.decode(block)
        self.decoded += 1
        self._blocks[key, block] = run
        self.nbytes += run.nbytes
        while self.nbytes > LEAST_BYTES and len(self._blocks) > 1 and not self.room():
            self.nbytes -= self._blocks.popitem(last=False)[1].nbytes
        return run

    def _forget(self, key: str) -> None:
        if self._open.pop(key) is self._last:
            self._last = None
        for name in [name for name in self._blocks if name[0] == key]:
            self.nbytes -= self._blocks.pop(name).nbytes
