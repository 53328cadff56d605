"""Answer requests for the connections that leave neurons, from the regions that Dask holds on a worker.

A handler of every worker's server reads the results of tasks where Dask keeps them, decodes the blocks of rows that
are requested, and leaves out what the request excludes. It runs in a thread beside the worker's tasks, and only reads
runs, which never change. A run stays in memory in its encoded form, of which training and every opened commit use the
same bytes; what is decoded of it is a cache. Blocks of a network that is alone on its workers fill the memory that is
free, so that each is decoded once. `rows.remote` makes the requests.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from distributed import Client, Worker

from giaann_dask.cluster.locality import ROWS_METRIC, RowServiceMetrics
from giaann_dask.cluster.memory_budget import RELEASE_FRACTION
from giaann_dask.cluster.worker_services import WorkerService, install_service
from giaann_dask.keys import SEGMENT_SHIFT, Integers
from giaann_dask.rows.protocol import NAME, OPERATION, Message, RowProjection, RowRequest, RowResponse
from giaann_dask.rows.source import RowCache
from giaann_dask.runs.packed_rows import RowReader
from giaann_dask.runs.packing import CHUNK, PackedRun
from giaann_dask.runs.run import Run, pointer_of

# Bytes of a row besides its connections: its source and where it ends.
_ROW_BYTES = 16
# So many rows of decoded blocks are taken at once: on the event loop, or in the task that wants them.
_FEW = 16
_NO_LIMIT = 1 << 62
# Bytes of blocks that are kept however little memory is free.
LEAST_KEPT = 32 << 20


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
        source, targets = reader.rows()
        chunk = (np.cumsum(targets) - 1) // block_targets
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
        while self.nbytes > LEAST_KEPT and len(self._blocks) > 1 and not self.room():
            self.nbytes -= self._blocks.popitem(last=False)[1].nbytes
        return run

    def _forget(self, key: str) -> None:
        if self._open.pop(key) is self._last:
            self._last = None
        for name in [name for name in self._blocks if name[0] == key]:
            self.nbytes -= self._blocks.pop(name).nbytes


class RowService(WorkerService):
    """Answers requests for rows on a worker, as long as a plugin of `install` is there.

    Parameters
    ----------
    worker : Worker
        Whose regions are read.

    Attributes
    ----------
    hot : RowCache
        Rows that tasks of this worker have asked from others.
    decoded : DecodedBlocks
        What is decoded of the runs that this worker holds.
    times : RowServiceMetrics
        What was answered and asked so far, and how long it took; told with heartbeats.
    """

    name = NAME
    operation = OPERATION

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.hot = RowCache()
        self.decoded = DecodedBlocks(self._memory_is_free)
        self.times = times = RowServiceMetrics()
        worker.metrics[ROWS_METRIC] = lambda _: dict(times.counts)

    def close(self) -> None:
        """Stop the service."""
        super().close()
        self._worker.metrics.pop(ROWS_METRIC, None)

    async def answer(  # type: ignore[override]
        self, questions: Sequence[Message], projection: Message, limit: int
    ) -> dict[str, Any]:
        """Answer the message of another process; see `respond`."""
        asked = [RowRequest.of_message(question) for question in questions]
        answers = await self.respond(asked, RowProjection(*projection), limit)
        return {"answers": [None if answer is None else answer.as_message() for answer in answers]}

    async def respond(
        self, questions: Sequence[RowRequest], projection: RowProjection, limit: int
    ) -> list[RowResponse | None]:
        """Answer one request; called on the event loop.

        Parameters
        ----------
        questions : sequence of RowRequest
            For one run each.
        projection : RowProjection
            Which part of the rows is wanted.
        limit : int
            Bytes of rows in all answers together, `LEAST_BYTES` or more for each question.

        Returns
        -------
        list of RowResponse or None
            One for each question, None where this worker does not have the run.
        """
        began = time.perf_counter()
        data = self._worker.data
        runs = [data.get(question.key) for question in questions]
        self.decoded.keep_only(data)
        tables = [None if run is None else run.connections for run in runs]
        if self._is_quick(questions):
            # Another thread would take longer to begin than this takes.
            answers = self._answers(tables, questions, projection, limit)
        else:
            answers = await asyncio.to_thread(self._answers, tables, questions, projection, limit)
        self._count([answer for answer in answers if answer is not None], time.perf_counter() - began)
        return answers

    def read(self, questions: Sequence[RowRequest], projection: RowProjection) -> list[RowResponse] | None:
        """Return the rows that a task of this worker asks for; None where it has not decoded them, or they are many."""
        # A run may be opened or forgotten meanwhile: its table counts, which stays.
        tables = [self.decoded.opened(question.key) for question in questions]
        here = all(table is not None for table in tables) and all(q.key in self._worker.data for q in questions)
        if not here or not self._is_quick(questions):
            return None
        began = time.perf_counter()
        answers = [each for each in self._answers(tables, questions, projection, _NO_LIMIT) if each is not None]
        self._count(answers, time.perf_counter() - began)
        return answers

    def _is_quick(self, questions: Sequence[RowRequest]) -> bool:
        few = sum(len(question.neurons) for question in questions) <= _FEW
        return few and all(self.decoded.has(question.key, question.neurons) for question in questions)

    def _answers(
        self,
        runs: Sequence[PackedRun | None],
        questions: Sequence[RowRequest],
        projection: RowProjection,
        limit: int,
    ) -> list[RowResponse | None]:
        answers: list[RowResponse | None] = []
        # Even a run without rows has a pointer.
        none = Run.empty().nbytes
        room = limit - none * len(questions)
        for run, question in zip(runs, questions, strict=True):
            if run is None:
                answers.append(None)
                continue
            blocks = self.decoded.blocks(question.key, run, question.neurons)
            found = select_rows(blocks, question, projection, room)
            room -= found.rows.nbytes - none
            answers.append(found)
        return answers

    def _memory_is_free(self) -> bool:
        """Return whether this process has memory for more decoded blocks."""
        limit = self._worker.memory_manager.memory_limit
        return not limit or self._worker.monitor.get_process_memory() < RELEASE_FRACTION * limit

    def _count(self, answers: Sequence[RowResponse], seconds: float) -> None:
        rows, nbytes = sum(answer.answered for answer in answers), sum(answer.rows.nbytes for answer in answers)
        if answers:
            # Those that only ask whether anybody is there have no questions.
            self.times.answered(rows=rows, nbytes=nbytes, seconds=seconds)


def install(client: Client, user: str = "") -> str:
    """Install the row service on all workers; see `giaann_dask.cluster.worker_services.install_service`."""
    return install_service(client, RowService, user)


def select_rows(
    blocks: Iterable[tuple[int, Run]], question: RowRequest, projection: RowProjection, limit: int
) -> RowResponse:
    """Return the rows of some neurons in a run.

    Parameters
    ----------
    blocks : iterable of (int, Run)
        Blocks of the run, ascending, and how many of the neurons are behind none of them: `DecodedBlocks.blocks`.
    question : RowRequest
        The neurons.
    projection : RowProjection
        Which part of the rows is wanted.
    limit : int
        Bytes that no more rows than these have; the last one may be there in part.

    Returns
    -------
    RowResponse

    Examples
    --------
    >>> run = Run(np.array([5]), np.array([0, 2]), np.array([1, 3]), np.array([10, 20], np.int32))
    >>> found = select_rows([(2, run)], RowRequest("run", np.array([4, 5])), RowProjection(), 1000)
    >>> found.answered, found.rows.strength
    (2, array([10, 20], dtype=int32))
    >>> found = select_rows([(2, run)], RowRequest("run", np.array([4, 5])), RowProjection(), 30)
    >>> found.answered, found.begun, found.rows.strength
    (1, 1, array([10], dtype=int32))
    """
    neurons, begun = question.neurons, question.begun
    parts: list[Run] = []
    answered = 0
    for stop, run in blocks:
        entry = 8 + (run.strength.itemsize if projection.strengths else 0)
        begin, end = _places(run, neurons[answered:stop], projection)
        if not answered:
            begin[:1] += begun
        sizes = np.cumsum((end - begin) * entry + _ROW_BYTES * (end > begin))
        whole = int(np.searchsorted(sizes, limit, side="right"))
        if whole == len(sizes):
            parts.append(_take(run, neurons[answered:stop], begin, end, projection))
            limit -= int(sizes[-1]) if len(sizes) else 0
            answered = stop
            continue
        # The beginning of the first row that does not fit.
        room = limit - (int(sizes[whole - 1]) if whole else 0) - _ROW_BYTES
        more = max(room // entry, 0)
        end[whole] = begin[whole] + more
        some = slice(answered, answered + whole + 1)
        parts.append(_take(run, neurons[some], begin[: whole + 1], end[: whole + 1], projection))
        had = 0 if answered + whole else begun
        return RowResponse(answered + whole, _join_blocks(parts), had + more)
    return RowResponse(len(neurons), _join_blocks(parts))


def _join_blocks(parts: Sequence[Run]) -> Run:
    """Return rows of ascending source neurons as one run."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Run.empty()
    ends = np.cumsum([0, *(int(part.pointer[-1]) for part in parts)])
    pointers = [part.pointer[1:] + end for part, end in zip(parts, ends[:-1], strict=True)]
    return Run(
        np.concatenate([part.source for part in parts]),
        np.concatenate([np.zeros(1, np.int64), *pointers]),
        np.concatenate([part.target for part in parts]),
        np.concatenate([part.strength for part in parts]),
    )


def _places(run: Run, neurons: Integers, projection: RowProjection) -> tuple[Integers, Integers]:
    """Return where the wanted part of each neuron's row begins and ends; the same place where it has none."""
    if not len(run.source):
        return np.zeros(len(neurons), np.int64), np.zeros(len(neurons), np.int64)
    at = np.minimum(np.searchsorted(run.source, neurons), len(run.source) - 1)
    begin = run.pointer[at]
    end = np.where(run.source[at] == neurons, run.pointer[at + 1], begin)
    if projection.segments is not None:
        # The key after the last segment's may not fit into 64 bits; the one before it does.
        low, last = projection.segments[0] << SEGMENT_SHIFT, (projection.segments[1] << SEGMENT_SHIFT) - 1
        rows = [run.target[b:e] for b, e in zip(begin, end, strict=True)]
        end = begin + np.array([np.searchsorted(row, last, side="right") for row in rows], np.int64)
        begin = begin + np.array([np.searchsorted(row, low) for row in rows], np.int64)
    return begin, end


def _take(run: Run, neurons: Integers, begin: Integers, end: Integers, projection: RowProjection) -> Run:
    """Return some connections of each row of a run as a run, copied, without rows that have none."""
    there = np.flatnonzero(end > begin)
    spans = list(zip(begin[there].tolist(), end[there].tolist(), strict=True))
    if not spans:
        return Run.empty()
    pointer = pointer_of(end[there] - begin[there])
    target = np.concatenate([run.target[b:e] for b, e in spans])
    if not projection.strengths:
        return Run(neurons[there], pointer, target, run.strength[:0])
    return Run(neurons[there], pointer, target, np.concatenate([run.strength[b:e] for b, e in spans]))
