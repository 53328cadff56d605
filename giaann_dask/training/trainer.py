"""The trainer: from inputs to a committed network.

Covers: composing rounds from the encoded stream, keeping a bounded number of them in flight,
committing in time and at the end, and going on where the last commit was. Does not cover: the
tasks of a round (`rounds`) and how inputs are read (`giaann_dask.encoding`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

import numpy as np
from distributed import Client

from giaann_dask.cluster import ask_scheduler, result, results, wait_all
from giaann_dask.encoding.sources import SourceOptions
from giaann_dask.encoding.stream import BlockStatistics, EncodingStream, StreamedBlock, StreamOptions
from giaann_dask.errors import EmptyInputError
from giaann_dask.events import BlockEncoded, Committed, Observer, RoundIntegrated, ignore
from giaann_dask.training.committing import Progress, commit_regions, load_regions
from giaann_dask.training.options import TrainingOptions
from giaann_dask.training.rounds import Regions, Round, Snapshot
from giaann_dask.training.selection import BatchOverlap
from giaann_dask.training.target import NetworkTarget

# A region's small runs are added to its largest one at the end when they are not much smaller.
COMPACT_FRACTION = 1 / 2


@dataclass(frozen=True)
class TrainingReport:
    """What a training run did.

    Attributes
    ----------
    sequences, trained, tokens : int
        Counted sequences, those that were trained, and their merged tokens.
    skipped : dict of str to int
        Sequences that were counted and not trained, by reason.
    connections : int
        Distinct connections of the network.
    seconds : float
        Time from the first read to the last commit, without the start of the cluster.
    commit : str
        Identity of the last commit.
    stopped : bool
        Whether it was asked to stop before the end of the inputs.
    tasks : int
        Training tasks that were submitted.
    messages : int
        Increments that were sent to a region, one for each region and batch (or accumulated batches).
    increment_bytes : int
        Bytes of all increments before they were routed.
    column_touches, shared_touches : int
        Columns touched by batches and how many of these touches overlap within a round; 0 in corpus
        order, where they are not counted.
    """

    sequences: int
    trained: int
    skipped: dict[str, int]
    tokens: int
    connections: int
    seconds: float
    commit: str
    stopped: bool = field(default=False)
    tasks: int = field(default=0)
    messages: int = field(default=0)
    increment_bytes: int = field(default=0)
    column_touches: int = field(default=0)
    shared_touches: int = field(default=0)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return dict(vars(self))


class Trainer:
    """Trains one network on one cluster; use it once.

    Parameters
    ----------
    client : Client
        Where tasks run.
    target : NetworkTarget
        The network, existing or to be made.
    options : TrainingOptions
        Sizes and times.
    observer : callable, optional
        Told of every block, round and commit.
    stop : threading.Event, optional
        When it is set, training commits what is under way and returns.
    """

    def __init__(
        self,
        client: Client,
        target: NetworkTarget,
        options: TrainingOptions,
        observer: Observer = ignore,
        stop: Event | None = None,
    ) -> None:
        self._client = client
        self._target = target
        self._options = options
        self._observer = observer
        self._stop = stop or Event()
        self._manifest, self._vocabulary, self._ledger = target.load()
        self._before = self._manifest
        self._regions = Regions(client, target.specification, options.device, self._manifest.rounds, options.selection)
        if target.store is not None:
            load_regions(client, target.store, target.store.head(), self._regions)
        self._flying: deque[Round] = deque()
        self._integrated = self._regions.snapshot()
        self._uncommitted = 0
        self._increment_bytes = 0
        self._touches = np.zeros(2, np.int64)

    def train(self, inputs: Sequence[str], sources: SourceOptions) -> TrainingReport:
        """Train on everything of the inputs that the network does not hold yet.

        Parameters
        ----------
        inputs : sequence of str
            Files, folders, globs, datasets or corpora.
        sources : SourceOptions
            How they are read.

        Returns
        -------
        TrainingReport

        Raises
        ------
        GiaannError
            Whatever is wrong with inputs, cluster or store; what was committed stays.
        """
        started = last_commit = time.perf_counter()
        stream = EncodingStream(self._client, self._vocabulary, sources, self._stream_options(), self._ledger)
        commit = ""
        for batches in self._rounds(stream.blocks(inputs)):
            self._flying.append(self._regions.submit_round(batches, self._options.accumulate))
            while len(self._flying) > self._options.rounds_in_flight:
                self._integrate()
            if self._uncommitted and time.perf_counter() - last_commit > self._options.commit_seconds:
                commit = self._commit(self._integrated)
                last_commit = time.perf_counter()
            if self._stop.is_set():
                break
        self._drain()
        if not self._stop.is_set():
            self._check_trained(sources, stream.counted)
        if self._uncommitted:
            self._compact_small_runs()
            commit = self._commit(self._regions.snapshot())
        # A run that was stopped at once has nothing to commit; its network exists all the same.
        return self._report(commit or self._target.ensure().head(), time.perf_counter() - started)

    def _check_trained(self, sources: SourceOptions, counted: int) -> None:
        """Raise an `EmptyInputError` when the whole input gave nothing to train."""
        new = self._manifest.sequences - self._before.sequences
        if new and self._manifest.trained == self._before.trained:
            raise EmptyInputError(
                f"none of the {new} sequences can be trained",
                "sentences with nouns that verbs, prepositions or conjunctions divide",
                "look at the text and at --tagger; the network is unchanged",
            )
        if counted == 0:
            low = sources.filter.seed_tokens + 1
            raise EmptyInputError(
                "no sentence is long enough",
                f"sentences of {low} to {sources.filter.maximum_tokens} tokens",
                "look at the text, or train a new network with fewer --seed-tokens",
            )

    def _stream_options(self) -> StreamOptions:
        return StreamOptions(
            branches=self._target.specification.branches,
            maximum_sequences=self._options.maximum_sequences,
            block_characters=self._options.block_characters,
        )

    def _rounds(self, blocks: Iterator[StreamedBlock]) -> Iterator[list[list[StreamedBlock]]]:
        """Join blocks into batches, and as many batches as workers take at once into a round."""
        width = self._width()
        batches: list[list[StreamedBlock]] = []
        batch: list[StreamedBlock] = []
        for block in blocks:
            self._observer(BlockEncoded(block.mapping.sequences, block.characters))
            batch.append(block)
            if sum(b.mapping.sequences for b in batch) >= self._options.batch_sequences:
                batches.append(batch)
                batch = []
            if len(batches) == width:
                yield batches
                # Workers may have come or gone.
                batches, width = [], self._width()
        if batch:
            batches.append(batch)
        if batches:
            yield batches

    def _width(self) -> int:
        """Return how many batches a round has with the workers that are there now."""
        return max(1, len(ask_scheduler(self._client, "ncores"))) * self._options.accumulate

    def _integrate(self) -> None:
        """Wait for the oldest round and count what it trained."""
        done = self._flying.popleft()
        self._integrated = done.snapshot
        wait_all(done.integrated)
        moved = sum(size.nbytes for size in results(done.sizes))
        self._increment_bytes += moved
        statistics = results([block.statistics for block in done.blocks])
        for block, counts in zip(done.blocks, statistics, strict=True):
            self._count(block, counts)
        self._uncommitted += 1
        sequences = sum(block.mapping.sequences for block in done.blocks)
        if done.overlap is None:
            self._observer(RoundIntegrated(sequences, moved))
            return
        overlap: BatchOverlap = result(done.overlap)
        self._touches += np.array([overlap.touches, overlap.shared_touches])
        self._observer(
            RoundIntegrated(sequences, moved, overlap.touches, overlap.shared_touches, overlap.busiest_region_share)
        )

    def _count(self, block: StreamedBlock, counts: BlockStatistics) -> None:
        manifest = self._manifest
        by_status = tuple(a + b for a, b in zip(manifest.by_status, counts.by_status, strict=True))
        changes: dict[str, Any] = {}
        if counts.last_trained >= 0:
            saved_concepts, saved_features = block.sizes_after(counts.last_trained)
            changes = {
                "saved_concepts": saved_concepts,
                "saved_features": saved_features,
                "last_trained": block.mapping.first_sequence + counts.last_trained,
            }
        self._manifest = replace(
            manifest,
            by_status=by_status,
            tokens=manifest.tokens + counts.trained_tokens,
            concepts=block.sizes[0],
            features=block.sizes[1],
            **changes,
        )
        for position, entry in block.ledger:
            self._ledger.record(position, entry)

    def _drain(self) -> None:
        while self._flying:
            self._integrate()

    def _compact_small_runs(self) -> None:
        """Leave each region with one run where that costs little."""
        for region, runs in enumerate(self._regions.runs):
            # Ranks stand for sizes: a run of rank r sums up about 2 ** r rounds.
            weights = [1 << min(run.rank, 62) for run in runs]
            if len(runs) > 1 and sum(weights) - max(weights) >= COMPACT_FRACTION * max(weights):
                self._regions.compact_all(region)

    def _commit(self, snapshot: Snapshot) -> str:
        """Commit what has been integrated; rounds in flight go on meanwhile."""
        started = time.perf_counter()
        store = self._target.ensure()
        progress = Progress(self._manifest, self._vocabulary, self._ledger)
        commit = commit_regions(self._client, store, self._regions, snapshot, progress)
        self._manifest = store.open(commit).manifest()
        self._uncommitted = 0
        self._observer(Committed(commit, self._manifest.sequences, time.perf_counter() - started))
        return commit

    def _report(self, commit: str, seconds: float) -> TrainingReport:
        now, before = self._manifest, self._before
        skipped = before.skipped()
        return TrainingReport(
            sequences=now.sequences - before.sequences,
            trained=now.trained - before.trained,
            skipped={reason: count - skipped[reason] for reason, count in now.skipped().items()},
            tokens=now.tokens - before.tokens,
            connections=now.connections,
            seconds=seconds,
            commit=commit,
            stopped=self._stop.is_set(),
            tasks=self._regions.tasks,
            messages=self._regions.messages,
            increment_bytes=self._increment_bytes,
            column_touches=int(self._touches[0]),
            shared_touches=int(self._touches[1]),
        )
