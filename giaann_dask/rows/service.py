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
from distributed.protocol import to_serialize

from giaann_dask.cluster.heartbeat import ROWS_METRIC, RowServiceMetrics
from giaann_dask.cluster.memory_budget import RELEASE_FRACTION
from giaann_dask.cluster.worker_services import WorkerService, install_service
from giaann_dask.keys import SEGMENT_SHIFT, Integers
from giaann_dask.rows.cache import RowCache
from giaann_dask.rows.decoded import DecodedBlocks
from giaann_dask.rows.messages import NAME, OPERATION, RowProjection, RowRequest, RowResponse
from giaann_dask.runs.packing import PackedRegionRun
from giaann_dask.runs.run import Run

# An answer ends after the row that passes this; the rest is asked for again.
ANSWER_BYTES = 32 << 20


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
        self, questions: Sequence[RowRequest], projection: RowProjection
    ) -> dict[str, Any]:
        """Answer one request; called on the event loop.

        Parameters
        ----------
        questions : sequence of RowRequest
            For one run each.
        projection : RowProjection
            Which part of the rows is wanted.

        Returns
        -------
        dict
            ``answers``: a `RowResponse` for each question, or None where this worker does not have the run.
        """
        began = time.perf_counter()
        data = self._worker.data
        runs = [data.get(question.key) for question in questions]
        self.decoded.keep_only(data)
        answers = await asyncio.to_thread(self._answers, runs, questions, projection) if questions else []
        self._count([answer for answer in answers if answer is not None], time.perf_counter() - began)
        return {"answers": to_serialize(answers)}

    def _answers(
        self, runs: Sequence[PackedRegionRun | None], questions: Sequence[RowRequest], projection: RowProjection
    ) -> list[RowResponse | None]:
        answers: list[RowResponse | None] = []
        room = ANSWER_BYTES
        for run, question in zip(runs, questions, strict=True):
            if run is None:
                answers.append(None)
                continue
            blocks = self.decoded.blocks(question.key, run.connections, question.neurons)
            found = select_rows(blocks, question.neurons, projection, room)
            room -= found.rows.nbytes
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
    blocks: Iterable[tuple[int, Run]], neurons: Integers, projection: RowProjection, limit: int
) -> RowResponse:
    """Return the rows of some neurons in a run.

    Parameters
    ----------
    blocks : iterable of (int, Run)
        Blocks of the run, ascending, and how many of the neurons are behind none of them: `DecodedBlocks.blocks`.
    neurons : ndarray
        Neuron keys, strictly ascending, int64.
    projection : RowProjection
        Which part of the rows is wanted.
    limit : int
        Bytes after which no further row is added; one row is answered at least.

    Returns
    -------
    RowResponse

    Examples
    --------
    >>> run = Run(np.array([5]), np.array([0, 2]), np.array([1, 3]), np.array([10, 20], np.int32))
    >>> select_rows([(2, run)], np.array([4, 5]), RowProjection(), 1000).rows.strength
    array([10, 20], dtype=int32)
    """
    entry = 12 if projection.strengths else 8
    parts, answered, used = [], 0, 0
    for stop, run in blocks:
        begin, end = _places(run, neurons[answered:stop])
        total = np.cumsum(end - begin) * entry + used
        fitting = min(int(np.searchsorted(total, limit)) + 1, len(total))
        parts.append(_take(run, neurons[answered : answered + fitting], begin[:fitting], end[:fitting], projection))
        used, answered = int(total[fitting - 1]), answered + fitting
        if answered < stop or used >= limit:
            return RowResponse(answered, _join_blocks(parts))
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


def _places(run: Run, neurons: Integers) -> tuple[Integers, Integers]:
    """Return where each neuron's row begins and ends; the same place where it has none."""
    if not len(run.source):
        return np.zeros(len(neurons), np.int64), np.zeros(len(neurons), np.int64)
    at = np.minimum(np.searchsorted(run.source, neurons), len(run.source) - 1)
    begin = run.pointer[at]
    return begin, np.where(run.source[at] == neurons, run.pointer[at + 1], begin)


def _take(run: Run, neurons: Integers, begin: Integers, end: Integers, projection: RowProjection) -> Run:
    """Return the wanted part of some rows of a run as a run, copied, without those that are empty."""
    if projection.segments is not None:
        # The key after the last segment's may not fit into 64 bits; the one before it does.
        low, last = projection.segments[0] << SEGMENT_SHIFT, (projection.segments[1] << SEGMENT_SHIFT) - 1
        rows = [run.target[b:e] for b, e in zip(begin, end, strict=True)]
        end = begin + np.array([np.searchsorted(row, last, side="right") for row in rows], np.int64)
        begin = begin + np.array([np.searchsorted(row, low) for row in rows], np.int64)
    there = np.flatnonzero(end > begin)
    spans = list(zip(begin[there].tolist(), end[there].tolist(), strict=True))
    if not spans:
        return Run.empty()
    pointer = np.concatenate([[0], np.cumsum(end[there] - begin[there])])
    target = np.concatenate([run.target[b:e] for b, e in spans])
    if not projection.strengths:
        return Run(neurons[there], pointer, target, run.strength[:0])
    return Run(neurons[there], pointer, target, np.concatenate([run.strength[b:e] for b, e in spans]))
