"""Compose blocks into rounds of batches, and submit the tasks that select and count them.

Blocks are joined into batches, and batches into rounds, by the shares of the workers that count them. `regions` adds
the increments up, and `trainer` provides the blocks and decides when to commit.

Where sequences train one by one, as published, the concept columns of those that train at the same time are locked.
Increments are sums of integers, so no lock is needed for an exact network: locks are kept to measure what they cost.
They belong to the process that submits the tasks, and are held from before a sequence is counted until its increments
are in their regions. So a lock spans several tasks of several workers, and the loss of any of these neither releases
it early nor leaves it behind: Dask runs the lost tasks again, then it is released. `distributed.MultiLock` is held by
one task, and for ever where its worker is lost.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from distributed import Future

from giaann_dask.cluster import directed, results, task_key
from giaann_dask.encoding.stream import StreamedBlock
from giaann_dask.runs.column_placement import column_usage, place_columns
from giaann_dask.runs.placement import Placement
from giaann_dask.spec import Specification
from giaann_dask.training import tasks
from giaann_dask.training.regions import CountedRound, Regions
from giaann_dask.training.selection import join_touches, touches_of
from giaann_dask.training.slow_workers import Places, SlowWorkers
from giaann_dask.training.tasks import RoundPlan
from giaann_dask.training.training_options import TrainingOptions
from giaann_dask.training.training_report import measure_touches, report_round


class PlacedBatch(NamedTuple):
    """Whole blocks that one task counts.

    Attributes
    ----------
    blocks : list of StreamedBlock
        In order.
    worker : str
        Address of the worker that counts it; empty for any.
    """

    blocks: list[StreamedBlock]
    worker: str = ""


def compose(
    blocks: Iterable[StreamedBlock], batch_sequences: int, places: Callable[[], Places]
) -> Iterator[list[PlacedBatch]]:
    """Yield the batches of one round after another, each as near to its wanted size as whole blocks allow.

    Parameters
    ----------
    blocks : iterable of StreamedBlock
        In order.
    batch_sequences : int
        Wanted sequences of a batch of a worker with the share 1.
    places : callable
        Called at the beginning of each round, as workers may have joined, left, or become slower. A worker with a
        smaller share gets smaller batches, or, where a block is larger than these, one of them in some rounds.
    """
    credit: dict[str, float] = {}
    turns: deque[tuple[str, float]] = deque()
    batches: list[PlacedBatch] = []
    batch: list[StreamedBlock] = []
    full = float(batch_sequences)
    for block in blocks:
        if not turns:
            turns = _turns(places(), credit, batch_sequences, full)
        batch.append(block)
        worker, wanted = turns[0]
        size, last = sum(each.mapping.sequences for each in batch), block.mapping.sequences
        if size + last / 2 < wanted:
            continue
        batches.append(PlacedBatch(batch, worker))
        turns.popleft()
        if worker in credit:
            credit[worker] -= size
        else:
            full = size
        batch = []
        while turns and turns[0][0] in credit and turns[0][1] < last / 2:
            turns.popleft()
        if not turns:
            yield batches
            batches = []
    if batch:
        batches.append(PlacedBatch(batch, turns[0][0]))
    if batches:
        yield batches


def _turns(places: Places, credit: dict[str, float], batch_sequences: int, full: float) -> deque[tuple[str, float]]:
    """Return workers with the sequences that each is to count in a round; those of smaller shares are credited."""
    turns: deque[tuple[str, float]] = deque()
    for worker in credit.keys() - places.keys():
        del credit[worker]
    for worker, (count, share) in sorted(places.items(), key=lambda place: -place[1][1]):
        if share == 1:
            credit.pop(worker, None)
            turns.extend([(worker, batch_sequences)] * count)
        else:
            credit[worker] = credit.get(worker, 0.0) + share * count * full
            turns.append((worker, credit[worker]))
    return turns


class ColumnLocks:
    """Locks of concept columns, each held by one sequence at a time.

    Attributes
    ----------
    waits : int
        Sequences that had to wait for a column.
    seconds : float
        How long they waited, together.
    """

    def __init__(self) -> None:
        self._held: set[int] = set()
        self.waits = 0
        self.seconds = 0.0

    def __len__(self) -> int:
        """Return the number of columns that are locked."""
        return len(self._held)

    def acquire(self, columns: Iterable[int], finish_oldest: Callable[[], None]) -> None:
        """Lock all columns of a sequence at once, so that no two sequences can wait for each other.

        Parameters
        ----------
        columns : iterable of int
            Its concept columns.
        finish_oldest : callable
            Waits, with a timeout, for the oldest sequence that trains, and releases its columns.
        """
        wanted, started = frozenset(columns), time.perf_counter()
        waits = not self._held.isdisjoint(wanted)
        while not self._held.isdisjoint(wanted):
            finish_oldest()
        if waits:
            self.waits += 1
            self.seconds += time.perf_counter() - started
        self._held |= wanted

    def release(self, columns: Iterable[int]) -> None:
        """Release columns that a sequence has locked."""
        self._held.difference_update(columns)


@dataclass(frozen=True, eq=False)
class Round:
    """Submitted round.

    Attributes
    ----------
    blocks : tuple of StreamedBlock
        Blocks that are trained completely with it; empty before the last of several rounds of the same blocks.
    sequences : int
        Its share of the blocks' counted sequences.
    counted : CountedRound
        Its increments, and what they were added to.
    columns : frozenset of int
        Concept columns that are locked until it is integrated; none where sequences train in batches.
    """

    blocks: tuple[StreamedBlock, ...]
    sequences: int
    counted: CountedRound
    columns: frozenset[int] = frozenset()


class Rounds:
    """Submitter of rounds to the regions of a network.

    Parameters
    ----------
    regions : Regions
        Regions that the increments are added to.
    specification : Specification
        What a batch computes.
    options : TrainingOptions
        Its mode and selection, and how many batches are accumulated.
    slow : SlowWorkers
        Which workers count fewer batches.

    Attributes
    ----------
    locks : ColumnLocks
        Columns of the rounds in flight, where sequences train one by one.
    """

    def __init__(
        self, regions: Regions, specification: Specification, options: TrainingOptions, slow: SlowWorkers
    ) -> None:
        self._regions, self._slow = regions, slow
        self._specification = specification
        self._options = options
        self._selection = options.ordered_selection
        self.locks = ColumnLocks()

    def submit(
        self, batches: Sequence[PlacedBatch], plan: RoundPlan, finish_oldest: Callable[[], None]
    ) -> Iterator[Round]:
        """Submit the tasks of the rounds that some blocks are divided into, one per iteration.

        Parameters
        ----------
        batches : sequence of PlacedBatch
            Whole blocks joined into batches; in corpus order each is one ``count_batch`` task of a single round.
        plan : RoundPlan
            Rounds and batches.
        finish_oldest : callable
            Integrates the oldest round in flight and calls `finish`.

        Yields
        ------
        Round
            The regions hold whole blocks only after the last one.
        """
        blocks = tuple(block for batch in batches for block in batch.blocks)
        joined = self._selection.order == "corpus" and plan == RoundPlan(1, len(batches))
        self._regions.assign_owners()
        self._place([block.encoded for block in blocks])
        if self._options.published:
            yield from self._submit_single(blocks, plan, finish_oldest)
            return
        selection = None if joined else self._select(blocks, plan)[0]
        total = sum(block.mapping.sequences for block in blocks)
        for number in range(plan.rounds):
            if number:
                self._regions.assign_owners()
            trained = blocks if number == plan.rounds - 1 else ()
            share = total * (number + 1) // plan.rounds - total * number // plan.rounds
            with self._regions.tasks.submitter.together():
                self._count_again(
                    tasks.count_batch, [blocks[0].encoded], *self._arguments(), key_of=blocks[0].encoded.key
                )
                if selection is None:
                    increments = [self._count(batch) for batch in batches]
                else:
                    chosen = range(number * plan.width, (number + 1) * plan.width)
                    increments = [self._count_selected(blocks, selection, batch) for batch in chosen]
                submitted = self._finish(increments, trained, share)
            yield submitted

    def finish(self, done: Round) -> None:
        """Release the columns of a round that has been integrated."""
        self.locks.release(done.columns)

    def _submit_single(
        self, blocks: tuple[StreamedBlock, ...], plan: RoundPlan, finish_oldest: Callable[[], None]
    ) -> Iterator[Round]:
        """Submit a round for each trained sequence of some blocks, as soon as it has the locks of its columns."""
        selection, touches = self._select(blocks, plan)
        batch, *parts = results([selection, *touches])
        every, order = join_touches(parts), np.argsort(batch)
        # Sequences that are not trained are counted with the last one.
        rounds, total = max(1, len(order)), sum(block.mapping.sequences for block in blocks)
        for number in range(rounds):
            last = number == rounds - 1
            columns: frozenset[int] = frozenset()
            if len(order):
                columns = frozenset(every.column[slice(*every.offsets[order[number] : order[number] + 2])].tolist())
            self.locks.acquire(columns, finish_oldest)
            if number:
                self._regions.assign_owners()
            with self._regions.tasks.submitter.together():
                increment = self._count_dense(blocks, selection, number)
                submitted = self._finish([increment], blocks if last else (), total - number if last else 1)
            yield replace(submitted, columns=columns)

    def _count_dense(self, blocks: Sequence[StreamedBlock], selection: Future, number: int) -> Future:
        """Submit the training of one sequence in a dense tensor, on the compute worker whose turn it is."""
        part = ([block.encoded for block in blocks], selection, number, *self._arguments(), self._options.device)
        self._count_again(tasks.count_dense, *part, key_of=(selection.key, number))
        key = task_key("count_batch", "dense", selection.key, number, *self._rule())
        compute = self._regions.tasks.roles.compute
        # Dask alone would give them all to the worker that has the blocks.
        worker = self._slow.next_workers(compute)[0] or (compute[number % len(compute)] if compute else "")
        return self._regions.tasks.submitter.submit(key, tasks.count_dense, *part, **directed(worker))

    def _finish(self, increments: Sequence[Future], blocks: tuple[StreamedBlock, ...], sequences: int) -> Round:
        """Submit the tasks that add up and measure the increments of a round's batches."""
        accumulate = self._options.accumulate
        sums = [
            self._accumulate(increments[start : start + accumulate]) for start in range(0, len(increments), accumulate)
        ]
        touches = [self._compute("measure", measure_touches, part, key_of=(part.key,)) for part in sums]
        report = self._submit("report", report_round, *touches, key_of=[part.key for part in touches])
        return Round(blocks, sequences, self._regions.add_counted(sums, report))

    def _place(self, blocks: Sequence[Future]) -> None:
        """Choose regions for the columns that the round uses for the first time."""
        kind, columns = self._specification.placement, self._regions.columns
        if kind == "hash":
            return
        usages = [self._submit("count_column_usage", column_usage, block, key_of=block.key) for block in blocks]
        key = (_identity(columns), [usage.key for usage in usages], kind)
        self._regions.place_columns(self._submit("place", place_columns, columns, usages, kind, key_of=key))

    def _count(self, batch: PlacedBatch) -> Future:
        blocks = [block.encoded for block in batch.blocks]
        key = ([block.key for block in blocks], *self._rule())
        return self._compute(
            "count_batch", tasks.count_batch, blocks, *self._arguments(), key_of=key, worker=batch.worker
        )

    def _select(self, blocks: Sequence[StreamedBlock], plan: RoundPlan) -> tuple[Future, list[Future]]:
        """Submit the choice of the batch that each sequence of some blocks trains in, and what columns these have."""
        encoded, options = [block.encoded for block in blocks], self._selection
        touches = [self._submit("touch", touches_of, [block], key_of=(block.key,)) for block in encoded]
        identity = ([block.key for block in encoded], plan, options)
        return self._submit("select", tasks.select, touches, plan, options, key_of=identity), touches

    def _count_selected(self, blocks: Sequence[StreamedBlock], selection: Future, number: int) -> Future:
        """Submit the training of the sequences that are selected for one batch."""
        part = ([block.encoded for block in blocks], selection, number, *self._arguments())
        identity = (selection.key, number, *self._rule())
        worker = self._slow.next_workers(self._regions.tasks.roles.compute)[0]
        return self._compute("count_batch", tasks.count_selected, *part, key_of=identity, worker=worker)

    def _count_again(self, function: Callable[..., object], *arguments: object, key_of: object) -> None:
        """Let workers that get no batches count a part of the round, too, so that it is known when they recover."""
        submitter, number = self._regions.tasks.submitter, self._regions.rounds

        def submit(worker: str, peer: str) -> Future:
            key = task_key("count_again", worker, number, key_of, *self._rule())
            counted = submitter.pass_on(key, function, *arguments, **directed(worker))
            return submitter.submit(task_key("receive", key), tasks.receive, counted, **directed(peer))

        self._slow.measure(self._regions.tasks.roles.compute, submit)

    def _arguments(self) -> tuple[object, ...]:
        """Return what a task that counts takes in addition to the sequences."""
        return self._regions.columns, self._specification, self._regions.splits

    def _rule(self) -> tuple[object, ...]:
        """Return the inputs, in addition to the sequences, that determine the increments of a batch."""
        return _identity(self._regions.columns), self._specification, self._regions.splits

    def _accumulate(self, increments: Sequence[Future]) -> Future:
        if len(increments) == 1:
            return increments[0]
        return self._compute("accumulate", tasks.accumulate, *increments, key_of=[f.key for f in increments])

    def _compute(
        self, name: str, function: Callable[..., object], *arguments: object, key_of: object, worker: str = ""
    ) -> Future:
        """Submit a task that computes what other tasks of a round use, on one worker if it can."""
        # Without the role's resource: a task with both may be sent to a worker without it, which dies of it.
        computing = directed(worker) or self._regions.tasks.roles.computing()
        return self._regions.tasks.submitter.submit(task_key(name, key_of), function, *arguments, **computing)

    def _submit(self, name: str, function: Callable[..., object], *arguments: object, key_of: object) -> Future:
        """Submit a small task, which Dask runs on the worker that has its arguments."""
        return self._regions.tasks.submitter.submit(task_key(name, key_of), function, *arguments)


def _identity(columns: Placement | Future) -> object:
    return columns.key if isinstance(columns, Future) else columns
