"""Train a network from inputs: compose rounds, keep a bounded number of them in flight, and commit.

`rounds` submits the tasks of a round, and `giaann_dask.encoding` reads the inputs.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Event
from typing import NamedTuple

from distributed import Client
from distributed.spans import span

from giaann_dask.cluster import Roles, driver_allocator, results, roles_of, trim_memory, wait_all
from giaann_dask.cluster.devices import DeviceShare, declare_roles
from giaann_dask.cluster.resilience import shortest_lifetime_s
from giaann_dask.cluster.stages import SUM, StageClock
from giaann_dask.encoding.sources import SourceOptions, estimate_characters
from giaann_dask.encoding.stream import JOINED, EncodingStream, StreamedBlock, StreamOptions
from giaann_dask.errors import (
    EmptyInputError,
    GiaannError,
    OptionError,
    StoreConflictError,
    StoreFullError,
    StoreUnsharedError,
    StoreWriteError,
)
from giaann_dask.events import BlockEncoded, Committed, MemoryMeasured, Observer, RegionsMeasured, ignore
from giaann_dask.models import model_of
from giaann_dask.models.base import ErrorMask
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.memory_inputs import Source
from giaann_dask.training.committing import CommitContents, commit_regions, load_regions, stored_regions
from giaann_dask.training.region_budgets import BudgetPolicy
from giaann_dask.training.regions import Regions
from giaann_dask.training.rounds import PlacedBatch, Round, Rounds, compose
from giaann_dask.training.run_references import Snapshot
from giaann_dask.training.slow_workers import DataMoves, Places, SlowWorkers, describe, retire_worker
from giaann_dask.training.target import NetworkTarget
from giaann_dask.training.tasks import RoundPlan, plan_rounds
from giaann_dask.training.training_options import TrainingOptions
from giaann_dask.training.training_report import TrainingFigures, TrainingReport

_LOG = logging.getLogger(__name__)
# A block of a corpus makes a few batches and gives selection something to choose from. Only whole blocks are
# committed: larger ones make commits late, and lose more when a worker is lost.
_BLOCK_BATCHES = 4
_WINDOW = 2048
# Name of the span of training in Dask's reports.
_SPAN = "giaann-dask training"
# Commits in the life of a worker, where its end would come before the next one.
_LIFE_COMMITS = 4


class UncommittedState(NamedTuple):
    """State of a training that could not be committed, because another process has committed.

    Attributes
    ----------
    store : NetworkStore
        The network.
    before : CommitReader
        Commit that the state continues.
    regions : Regions
        With the runs.
    snapshot : Snapshot
        The runs that were to be committed.
    contents : CommitContents
        Counts, dictionaries and ledger as of them.
    """

    store: NetworkStore
    before: CommitReader
    regions: Regions
    snapshot: Snapshot
    contents: CommitContents


class UncommittedError(StoreConflictError):
    """A training could not commit, because another process has committed or has the lease.

    Attributes
    ----------
    state : UncommittedState
        What the commit would have had.
    """

    def __init__(self, error: GiaannError, state: UncommittedState) -> None:
        super().__init__(error.received, error.expected, error.remedy)
        self.state = state


class CommitSchedule:
    """Decide after which rounds to commit, by time and by sequences since the last commit.

    Parameters
    ----------
    options : TrainingOptions
        Its `commit_seconds` and `commit_sequences`.
    lifetime_s : float
        Seconds after which the first of the workers ends: what it holds is in a commit before that, where the others
        end with it.

    Attributes
    ----------
    uncommitted : int
        Integrated rounds of whole blocks that no commit has.
    """

    def __init__(self, options: TrainingOptions, lifetime_s: float = math.inf) -> None:
        self._seconds, self._enough = min(options.commit_seconds, lifetime_s / _LIFE_COMMITS), options.commit_sequences
        if self._seconds < options.commit_seconds:
            _LOG.warning(
                "a worker ends after %.0f s, so commits are made every %.1f s, and not every %.0f s; a block or batch "
                "that takes longer is begun again: give workers a longer lifetime, or choose smaller block_characters "
                "and batch_sequences",
                *(lifetime_s, self._seconds, options.commit_seconds),
            )
        self._sequences, self._moment = 0, time.perf_counter()
        self._took_s = 0.0
        self.uncommitted = 0

    def is_due(self, submitted: Round) -> bool:
        """Return whether to commit after a round that has just been submitted; only whole blocks are committed."""
        self._sequences += sum(block.mapping.sequences for block in submitted.blocks)
        late = time.perf_counter() - self._moment > max(self._seconds, self._took_s)
        if not submitted.blocks or not (late or (self._enough is not None and self._sequences >= self._enough)):
            return False
        self._sequences, self._moment = 0, time.perf_counter()
        return True

    def committed(self, took_s: float) -> None:
        """Begin to wait for the next commit, at least as long as this one took.

        So a network of many small regions spends no more time on commits than on what they hold.
        """
        self._took_s = took_s
        self._moment, self.uncommitted = time.perf_counter(), 0


class Trainer:
    """Training of one network on one cluster; use it once.

    Parameters
    ----------
    client : Client
        Where tasks run.
    target : NetworkTarget
        The network, existing or to be made.
    options : TrainingOptions
        Sizes and times.
    observer : callable, optional
        Called with an event for every block, round and commit.
    stop : threading.Event, optional
        When it is set, training commits the rounds in flight and returns.
    mask : ErrorMask, optional
        Marks which tokens are trained; all by default.

    Attributes
    ----------
    counted : int
        Sequences of the inputs that the network has been trained on, earlier ones included.
    """

    def __init__(
        self,
        client: Client,
        target: NetworkTarget,
        options: TrainingOptions,
        observer: Observer = ignore,
        stop: Event | None = None,
        mask: ErrorMask | None = None,
    ) -> None:
        model = model_of(target.specification)
        if options.published and not model.counts_dense:
            raise OptionError(
                f"mode published with a network of profile {target.specification.profile}",
                "a model of columns and features, such as v2",
                "leave mode out",
                names=("mode",),
            )
        # Dense tensors hold sums already.
        summed = options.device if model.sums_pairs and not options.published else "cpu"
        summing = DeviceShare.of(client, SUM, summed, declare_roles(client))
        self._client, self._target, self._options = client, target, options
        self._observer, self._stop, self._mask = observer, stop or Event(), mask
        # Replaced by each round, besides the dictionaries and the ledger, which grow.
        self._contents, placement = target.load()
        self._before = self._contents.manifest
        self._regions = Regions(client, placement, self._before.rounds, summing, options.exchange)
        self._budgets = BudgetPolicy(self._regions, target.specification, options)
        if target.reader is not None:
            load_regions(target.reader, self._regions)
        self._slow = SlowWorkers(options.slow_workers, partial(retire_worker, client))
        self._rounds = Rounds(self._regions, target.specification, options, self._slow)
        self._in_flight: deque[tuple[Round, Snapshot | None]] = deque()
        self._schedule = CommitSchedule(options, shortest_lifetime_s(client))
        # Of the input; 0 where its size is unknown.
        self._characters = 0
        self._figures = TrainingFigures()
        self._moves = DataMoves(client, self._regions.tasks.roles.every)
        self.counted = 0

    def train(self, inputs: Sequence[Source], sources: SourceOptions, *, check: bool = True) -> TrainingReport:
        """Train on everything of the inputs that the network does not hold yet.

        Parameters
        ----------
        inputs : sequence of str or MemoryInput
            Files, folders, globs, datasets or corpora.
        sources : SourceOptions
            How they are read.
        check : bool
            Whether input that gives nothing to train is an error.

        Returns
        -------
        TrainingReport

        Raises
        ------
        GiaannError
            If inputs, cluster or store have an error; commits remain.
        """
        # Dask opens a new span whenever a cluster was idle unless one is named, and scheduler and workers keep
        # statistics of every span permanently.
        with span(_SPAN), driver_allocator(self._client):
            return self._train(inputs, sources, check=check)

    def _train(self, inputs: Sequence[Source], sources: SourceOptions, *, check: bool) -> TrainingReport:
        started, clock = time.perf_counter(), StageClock(self._client)
        # Errors of inputs are those of reading them.
        with suppress(GiaannError, OSError):
            self._characters = estimate_characters(inputs, sources.reading) or 0
        self._regions.single_block = 0 < self._characters <= self._options.block_characters
        sources = replace(sources, reading=replace(sources.reading, stop=self._stop))
        stream = EncodingStream(
            self._client, self._contents.vocabulary, sources, self._stream_options(), self._contents.ledger
        )
        for batches in compose(self._told(stream.blocks(inputs)), self._options.batch_sequences, self._places):
            for submitted in self._rounds.submit(batches, self._plan_rounds(batches), self._integrate):
                self._regions.integrate(leave=max(1, self._rounds_in_flight()) if self._options.published else 1)
                # Other rounds keep no references, so that runs are released as soon as compaction has added them up.
                snapshot = self._regions.snapshot() if self._schedule.is_due(submitted) else None
                self._in_flight.append((submitted, snapshot))
                while len(self._in_flight) > self._rounds_in_flight():
                    self._integrate()
            if self._stop.is_set():
                break
        while self._in_flight:
            self._integrate()
        self.counted = stream.counted
        if check and not self._stop.is_set():
            self._check_trained(sources, stream.counted)
        manifest = self._contents.manifest
        if manifest.sequences != self._before.sequences and not self._stop.is_set():
            self._budgets.split_all()
        # The last commit counts distinct neurons and connections of each region, which earlier ones did not, and has
        # the regions that were split since.
        if self._schedule.uncommitted or not manifest.exact or self._regions.splits != manifest.splits:
            with self._regions.tasks.submitter.together():
                self._budgets.compact_small_runs()
            self._commit_runs(self._regions.snapshot(whole=True), last=True)
            self._observer(self._moves.since(max(self._regions.rounds - 1, 0)))
            self._observer(self._memory())
            touches = self._figures.moved.region_touches
            regions = stored_regions(self._contents.manifest, touches, self._regions.tasks.owners)
            self._observer(RegionsMeasured(regions))
        # A run that was stopped immediately has nothing to commit; its network is created nevertheless.
        report = self._figures.report(
            (self._before, self._contents.manifest),
            commit=self._target.ensure()[1].commit,
            seconds=time.perf_counter() - started,
            stopped=self._stop.is_set(),
            tasks=self._regions.tasks.submitter.count,
            stages=clock.times(),
            lock_waits=self._rounds.locks.waits,
            lock_seconds=self._rounds.locks.seconds,
            slow_workers=self._slow.named(),
            repeated=stream.repeated,
        )
        self._regions.release()
        return report

    def _masked(self, block: StreamedBlock) -> StreamedBlock:
        """Return a block in which the tokens to train are marked; call it before the dictionaries have later ones."""
        if self._mask is None:
            return block
        return replace(block, encoded=self._mask.submit(block.encoded, self._contents.vocabulary))

    def _check_trained(self, sources: SourceOptions, counted: int) -> None:
        """Raise an `EmptyInputError` when the whole input gave nothing to train."""
        manifest = self._contents.manifest
        new = manifest.sequences - self._before.sequences
        if new and manifest.trained == self._before.trained:
            raise EmptyInputError(
                f"none of the {new} sequences can be trained",
                "sentences with nouns that verbs, prepositions or conjunctions divide",
                "check the text and tagger; the network is unchanged",
                names=("tagger",),
            )
        if counted == 0:
            low = sources.filter.seed_tokens + 1
            raise EmptyInputError(
                "no sentence is long enough",
                f"sentences of {low} to {sources.filter.maximum_tokens} tokens",
                "check the text, or train a new network with fewer seed_tokens",
            )

    def _stream_options(self) -> StreamOptions:
        return StreamOptions(
            max_sequences=self._options.max_sequences,
            block_characters=self._options.block_characters,
            block_sequences=max(_BLOCK_BATCHES * self._options.batch_sequences, _WINDOW),
            joined=JOINED,
            words=False,
        )

    def _plan_rounds(self, batches: Sequence[PlacedBatch]) -> RoundPlan:
        sequences = sum(block.mapping.sequences for batch in batches for block in batch.blocks)
        return plan_rounds(sequences, len(batches), self._width(), self._options.batch_sequences)

    def _told(self, blocks: Iterator[StreamedBlock]) -> Iterator[StreamedBlock]:
        """Yield blocks whose tokens to train are marked, and tell observers of them."""
        for block in map(self._masked, blocks):
            if self._characters:
                self._budgets.expect(min(block.read / self._characters, 1.0))
            self._observer(BlockEncoded(block.mapping.sequences, block.characters, block.read))
            yield block

    def _places(self) -> Places:
        """Return the batches of a round for each worker, and its share."""
        # One block has choice enough where sequences train one by one, and only whole ones are committed.
        if self._options.published:
            return {"": (1, 1.0)}
        return self._slow.places(self._regions.tasks.roles.compute, self._options.accumulate)

    def _width(self) -> int:
        """Return how many batches a round has with the present workers."""
        return self._slow.width(self._regions.tasks.roles.compute) * self._options.accumulate

    def _integrate(self) -> None:
        """Wait for the oldest round, count its sequences, and commit if that was due when it was submitted."""
        done, snapshot = self._in_flight.popleft()
        self._regions.integrate(leave=len(self._in_flight))
        wait_all(done.counted.added)
        done.counted.release()
        self._rounds.finish(done)
        report, number = done.counted.figures, done.counted.number
        # In the rounds before the last one of some blocks, the regions have only some of their sequences.
        statistics = results([block.statistics for block in done.blocks])
        self._figures.add_round(report)
        if done.blocks:
            for block, counts in zip(done.blocks, statistics, strict=True):
                self._contents = self._contents.counted(block, counts, misses=self._mask is not None)
            self._schedule.uncommitted += 1
        self._budgets.apply()
        # A round's report is made of all its increments.
        counting = sum(not submitted.counted.report.done() for submitted, _ in self._in_flight)
        self._observer(report.event(number, done.sequences, len(self._in_flight), counting))
        self._observer(self._moves.since(number))
        self._observer(self._memory())
        self._judge_workers(number)
        if self._figures.shows_regions():
            touches, owners = self._figures.moved.region_touches, self._regions.tasks.owners
            self._observer(RegionsMeasured(self._regions.runs.measured(touches, owners)))
        if snapshot is not None:
            self._commit_runs(snapshot)

    def _judge_workers(self, number: int) -> None:
        """Judge the workers that count and store by their work until the end of a round."""
        roles, owners = self._regions.tasks.roles, self._regions.tasks.owners.values()
        present, needed = {*roles.storage, *roles.compute}, {*roles.sole, *owners}
        for event in self._slow.review(number, self._moves.work, present, needed):
            _LOG.log(logging.WARNING if event.cause else logging.INFO, describe(event, self._options.slow_workers))
            self._observer(event)
        self._regions.shares = self._slow.region_shares()

    def _rounds_in_flight(self) -> int:
        """Return how many rounds may be in flight beside the next one: as many as asked for, or memory allows."""
        if self._options.published:
            return self._width() - 1
        return self._budgets.rounds_in_flight(self._figures.largest_round)

    def _memory(self) -> MemoryMeasured:
        """Measure the memory of the storage workers, and record the maximum."""
        workers = self._roles().memory.values()
        hot, packed = self._regions.runs.sizes.hot_and_packed(self._regions.runs.all())
        return self._figures.add_memory(
            regions=len(self._regions.runs),
            hot_bytes=hot,
            packed_bytes=packed,
            process_bytes=sum(memory.process for memory in workers),
            spilled_bytes=sum(memory.spilled for memory in workers),
        )

    def _roles(self) -> Roles:
        """Return the present workers; retire those without access to the network."""
        roles = roles_of(self._client)
        self._target.place.retire_blind(roles.every)
        self._moves.note_workers(roles.every)
        return roles

    def _commit_runs(self, snapshot: Snapshot, last: bool = False) -> None:
        """Commit a snapshot; rounds in flight continue meanwhile."""
        started = time.perf_counter()
        self._roles()
        store, before = self._target.ensure(finished=False)
        contents, opens = self._contents, self._budgets.stay_in_memory()
        try:
            try:
                commit = commit_regions(store, self._regions, snapshot, contents, last=last, before=before, opens=opens)
            except StoreUnsharedError:
                # Workers refuse to write because the lease has another token, or because they see another place.
                if not self._target.place.held.is_held():
                    self._target.place.held.mark()
                raise
        except StoreFullError:
            # What this commit has written would keep the disk full.
            with suppress(StoreWriteError):
                store.collect()
            raise
        except StoreConflictError as error:
            raise UncommittedError(error, UncommittedState(store, before, self._regions, snapshot, contents)) from error
        if last and opens:
            runs = (run for run in self._regions.runs.all() if run.stored and run.in_memory)
            self._target.held = tuple(run.future for run in runs)
            wait_all(self._target.held)
        if self._options.keep_commits is not None:
            store.collect(self._options.keep_commits)
        self._target.reader = store.open(commit)
        manifest = self._target.reader.manifest()
        self._contents = replace(contents, manifest=manifest)
        trim_memory()
        took_s = time.perf_counter() - started
        self._schedule.committed(took_s)
        self._figures.written = self._figures.written.plus(store.written)
        self._observer(Committed(commit, manifest.sequences, took_s, store.written.requests, store.written.nbytes))
