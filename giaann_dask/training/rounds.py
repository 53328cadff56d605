"""Rounds: batches of sequences become increments, and increments become runs of regions.

Covers: which tasks a round has and where they are directed, and the runs that every region has
after it. Does not cover: where the blocks come from and when to commit (`trainer`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from distributed import Client, Future

from giaann_dask.cluster import Roles, roles_of, task_key
from giaann_dask.encoding.stream import StreamedBlock
from giaann_dask.network.region import RankedRun, plan_compaction
from giaann_dask.spec import Specification
from giaann_dask.training import tasks
from giaann_dask.training.division import Division
from giaann_dask.training.round_report import measure_touches, report_round
from giaann_dask.training.selection import SelectionOptions


@dataclass(frozen=True, eq=False)
class RunHandle:
    """A run of a region on the cluster.

    Attributes
    ----------
    identity : str
        Name in the store: region and the rounds it sums up.
    future : Future
        Its value, a `Run` or a `PackedRun`.
    first_round, last_round : int
        The rounds it sums up.
    stored : bool
        Whether a commit holds it.
    """

    identity: str
    future: Future
    first_round: int
    last_round: int
    stored: bool = False


Runs = tuple[RankedRun[RunHandle], ...]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The runs of all regions as of some round.

    Attributes
    ----------
    runs : tuple of Runs
        By region.
    rounds : int
        Rounds that the network has seen by then.
    """

    runs: tuple[Runs, ...]
    rounds: int

    def handles(self) -> list[tuple[int, RankedRun[RunHandle]]]:
        """Return region and run of every run."""
        return [(region, run) for region, runs in enumerate(self.runs) for run in runs]


@dataclass(frozen=True, eq=False)
class Round:
    """A round that has been submitted.

    Attributes
    ----------
    blocks : tuple of StreamedBlock
        What is trained with it; none before the last of several rounds of the same blocks.
    number, sequences : int
        Its number in the network, and its share of the blocks' counted sequences.
    report : Future
        Its `RoundReport`.
    integrated : tuple of Future
        The newest run of each region.
    snapshot : Snapshot
        The regions after the round.
    """

    blocks: tuple[StreamedBlock, ...]
    number: int
    sequences: int
    report: Future
    integrated: tuple[Future, ...]
    snapshot: Snapshot


class Regions:
    """The runs of all regions, and the tasks that add to them.

    Parameters
    ----------
    client : Client
        Where tasks run.
    specification : Specification
        Number of regions, and what a batch computes.
    device : str
        Device of the dense step.
    rounds : int
        Rounds that the network has seen.
    selection : SelectionOptions, optional
        Which sequences of a round train in one batch.
    """

    def __init__(
        self,
        client: Client,
        specification: Specification,
        device: str,
        rounds: int,
        selection: SelectionOptions | None = None,
    ) -> None:
        self._client = client
        self._specification = specification
        self._device = device
        self._selection = selection or SelectionOptions()
        self.rounds = rounds
        self.tasks = 0
        self.runs: list[Runs] = [() for _ in range(specification.regions)]

    def submit_rounds(
        self, batches: Sequence[Sequence[StreamedBlock]], division: Division, accumulate: int = 1
    ) -> Iterator[Round]:
        """Submit the tasks of the rounds that some blocks are divided into, each when it is asked for.

        Parameters
        ----------
        batches : sequence of sequence of StreamedBlock
            Whole blocks joined into batches; in corpus order each is one ``connect`` task of a single round.
        division : Division
            Rounds and batches.
        accumulate : int
            So many consecutive batches are added up before their increments travel.

        Yields
        ------
        Round
            The regions hold whole blocks only after the last one.
        """
        blocks = tuple(block for batch in batches for block in batch)
        joined = self._selection.order == "corpus" and division == Division(1, len(batches))
        selection = None if joined else self._select(blocks, division)
        total = sum(block.mapping.sequences for block in blocks)
        for number in range(division.rounds):
            roles = roles_of(self._client)
            if selection is None:
                increments = [self._connect([block.encoded for block in batch], roles) for batch in batches]
            else:
                chosen = range(number * division.width, (number + 1) * division.width)
                increments = [self._connect_selected(blocks, selection, batch, roles) for batch in chosen]
            trained = blocks if number == division.rounds - 1 else ()
            share = total * (number + 1) // division.rounds - total * number // division.rounds
            yield self._submit_round(increments, accumulate, trained, share)

    def _submit_round(
        self, increments: Sequence[Future], accumulate: int, blocks: tuple[StreamedBlock, ...], sequences: int
    ) -> Round:
        """Submit everything of a round that follows the increments of its batches."""
        roles = roles_of(self._client)
        travelling = [
            self._accumulate(increments[start : start + accumulate], roles)
            for start in range(0, len(increments), accumulate)
        ]
        touches = [
            self._submit("measure", measure_touches, part, key_of=(part.key,), **roles.computing())
            for part in travelling
        ]
        report = self._submit("report", report_round, *touches, key_of=[part.key for part in touches])
        integrated = [self._integrate(region, travelling, roles) for region in range(self._specification.regions)]
        number = self.rounds
        self.rounds += 1
        return Round(blocks, number, sequences, report, tuple(integrated), self.snapshot())

    def snapshot(self) -> Snapshot:
        """Return the runs of all regions as of now; later rounds do not change it."""
        return Snapshot(tuple(self.runs), self.rounds)

    def compact_all(self, region: int) -> None:
        """Add up all runs of a region into one."""
        runs = self.runs[region]
        if len(runs) > 1:
            rank = max(run.rank for run in runs) + 1
            self.runs[region] = (RankedRun(rank, self._compact(region, [run.handle for run in runs])),)

    def replace_runs(self, stored: Mapping[str, Future]) -> None:
        """Let runs that have been stored, where they still are runs of their own, continue from other futures."""
        for region, runs in enumerate(self.runs):
            self.runs[region] = tuple(
                RankedRun(run.rank, replace(run.handle, future=stored[run.handle.identity], stored=True))
                if run.handle.identity in stored
                else run
                for run in runs
            )

    def _connect(self, blocks: list[Future], roles: Roles) -> Future:
        key = task_key("connect", [block.key for block in blocks], self._specification, self._device)
        arguments = (blocks, self._specification, self._device)
        self.tasks += 1
        return self._client.submit(tasks.connect, *arguments, key=key, **roles.computing())

    def _select(self, blocks: Sequence[StreamedBlock], division: Division) -> Future:
        """Submit the choice of the batch that each sequence of some blocks trains in."""
        encoded = [block.encoded for block in blocks]
        touches = [self._submit("touch", tasks.touch, block, key_of=(block.key,)) for block in encoded]
        identity = ([block.key for block in encoded], division, self._selection)
        return self._submit("select", tasks.select, touches, division, self._selection, key_of=identity)

    def _connect_selected(
        self, blocks: Sequence[StreamedBlock], selection: Future, number: int, roles: Roles
    ) -> Future:
        """Submit the training of the sequences that are selected for one batch."""
        key = task_key("connect", selection.key, number, self._specification, self._device)
        part = ([block.encoded for block in blocks], selection, number, self._specification, self._device)
        self.tasks += 1
        return self._client.submit(tasks.connect_selected, *part, key=key, **roles.computing())

    def _accumulate(self, increments: Sequence[Future], roles: Roles) -> Future:
        if len(increments) == 1:
            return increments[0]
        keys = [increment.key for increment in increments]
        return self._submit("accumulate", tasks.accumulate, *increments, key_of=keys, **roles.computing())

    def _integrate(self, region: int, increments: Sequence[Future], roles: Roles) -> Future:
        # Where increments were computed, or idle storage workers would fetch all of one to pick their part.
        routed = [
            self._submit("route", tasks.route, increment, region, key_of=(increment.key, region), **roles.computing())
            for increment in increments
        ]
        key = task_key("integrate", [part.key for part in routed])
        self.tasks += 1
        # Directed to the region's owner, because Dask would follow the larger increments.
        future = self._client.submit(tasks.integrate, *routed, key=key, **roles.holding(region))
        added = RunHandle(_identity(region, self.rounds, self.rounds), future, self.rounds, self.rounds)
        plan = plan_compaction(self.runs[region], added)
        merged = plan.merged[0] if len(plan.merged) == 1 else self._compact(region, plan.merged)
        self.runs[region] = (*plan.kept, RankedRun(plan.rank, merged))
        return merged.future

    def _compact(self, region: int, handles: Sequence[RunHandle]) -> RunHandle:
        first, last = handles[0].first_round, handles[-1].last_round
        futures = [handle.future for handle in handles]
        future = self._submit("compact", tasks.compact, *futures, key_of=[f.key for f in futures])
        return RunHandle(_identity(region, first, last), future, first, last)

    def _submit(self, name: str, function: object, *arguments: object, key_of: object, **where: object) -> Future:
        self.tasks += 1
        return self._client.submit(function, *arguments, key=task_key(name, key_of), **where)


def _identity(region: int, first_round: int, last_round: int) -> str:
    return f"{region:05d}.{first_round:08d}-{last_round:08d}"
