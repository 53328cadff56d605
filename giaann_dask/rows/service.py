"""Answer requests for the connections that leave neurons, from the regions that Dask holds on a worker.

A handler of every worker's server reads the results of tasks where Dask keeps them, decodes
the blocks of rows that are requested (`decoded`), and leaves out what the request excludes. It runs in a thread beside
the worker's tasks, and only reads runs, which never change. `rows.remote` makes the requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from distributed import Client, Worker

from giaann_dask.cluster.locality import ROWS_METRIC, RowServiceMetrics
from giaann_dask.cluster.memory_budget import RELEASE_FRACTION
from giaann_dask.cluster.worker_services import WorkerService, install_service
from giaann_dask.keys import SEGMENT_SHIFT, Integers
from giaann_dask.rows.cache import RowCache
from giaann_dask.rows.decoded import DecodedBlocks
from giaann_dask.rows.messages import NAME, OPERATION, Message, RowProjection, RowRequest, RowResponse
from giaann_dask.runs.packing import PackedRun
from giaann_dask.runs.run import Run

# Bytes of a row besides its connections: its source and where it ends.
_ROW_BYTES = 16
# So many rows of decoded blocks are taken at once: on the event loop, or in the task that wants them.
_FEW = 16
_NO_LIMIT = 1 << 62


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
    pointer = np.concatenate([[0], np.cumsum(end[there] - begin[there])])
    target = np.concatenate([run.target[b:e] for b, e in spans])
    if not projection.strengths:
        return Run(neurons[there], pointer, target, run.strength[:0])
    return Run(neurons[there], pointer, target, np.concatenate([run.strength[b:e] for b, e in spans]))
