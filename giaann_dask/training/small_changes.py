"""Change a network by a few sentences in this process, without a cluster, and commit each change in one go.

Tasks, and reading what a network has besides its runs, take many times as long as counting some sentences. So a
process that makes many small changes keeps the network open, counts by the functions of the tasks
(`giaann_dask.training.tasks`) and writes the new runs itself. The commits are those that training makes: whoever trains
the network next sees no difference. What is not small, or needs all of a region, is left to training.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from giaann_dask.cluster.regions import STORED_TOGETHER, sum_runs
from giaann_dask.encoding.sources import SourceOptions, UnitGroup, read_units
from giaann_dask.encoding.stream import StreamOptions, encode_here
from giaann_dask.models import model_of
from giaann_dask.runs.column_placement import column_usage, place_columns
from giaann_dask.runs.merging import plan_compaction
from giaann_dask.runs.packed_rows import KeptRowReader
from giaann_dask.runs.packing import PackedRegionRun
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import RunSize
from giaann_dask.runs.summing import count_added, count_added_neurons
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.manifest import Manifest, StoredRun
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.inputs import require_rereadable
from giaann_dask.text.ledger import Ledger
from giaann_dask.text.memory_inputs import Source
from giaann_dask.text.tokens import Part
from giaann_dask.training import tasks
from giaann_dask.training.committing import CommitContents, derives_tables, known_counts, rank_of
from giaann_dask.training.run_references import rounds_of, run_identity
from giaann_dask.training.tasks import Increment

# Characters of a small text: its tasks would take longer than counting it.
_CHARACTERS = StreamOptions().block_characters // 4
# Connections of stored runs that are added up with a new one; larger ones wait for a training.
_SUMMED = 1 << 18
# Connections of a run that is kept in memory as it is stored.
_KEPT = 1 << 16
RUN_CACHE_BYTES = 256 << 20
"""Bytes of stored runs that a process with small changes keeps between them, by default."""


class RegionChange(NamedTuple):
    """Change of the runs of a region.

    Attributes
    ----------
    kept : int
        Runs at the beginning that stay.
    run : PackedRegionRun or None
        What takes the place of the others; None for nothing.
    size : RunSize
        Distinct neurons and connections of the region afterwards.
    """

    kept: int
    run: PackedRegionRun | None
    size: RunSize


# A run by the commit that wrote it, and its identity.
_RunKey: TypeAlias = tuple[str, str]


def _bytes_of(tables: Sequence[KeptRowReader]) -> int:
    return sum(table.nbytes for table in tables)


class RunCache:
    """Stored runs of a network as a process reads them: their rows on demand, and small ones as a whole.

    What is beyond the budget is forgotten when the next run is used, what was used longest ago first, and read again
    when it is needed.

    Parameters
    ----------
    budget : int
        Bytes of source neurons, of decoded rows and of encoded runs that are kept, besides those of the runs in use.
    """

    def __init__(self, budget: int = RUN_CACHE_BYTES) -> None:
        self.budget = budget
        self._rows: OrderedDict[_RunKey, tuple[KeptRowReader, KeptRowReader]] = OrderedDict()
        self._runs: OrderedDict[_RunKey, PackedRegionRun] = OrderedDict()
        # Bytes of what is opened, as of its last use, and those that are in use.
        self._sizes: dict[_RunKey, int] = {}
        self._used: list[_RunKey] = []

    @property
    def nbytes(self) -> int:
        """Bytes that are kept now."""
        return sum(map(_bytes_of, self._rows.values())) + sum(run.nbytes for run in self._runs.values())

    def _shrink(self) -> None:
        """Forget what was used longest ago, until the rest is within the budget; rows first, which take more."""
        self._sizes |= {key: _bytes_of(self._rows[key]) for key in self._used if key in self._rows}
        self._used = []
        left = self.budget - sum(self._sizes.values()) - sum(run.nbytes for run in self._runs.values())
        while left < 0 and self._rows:
            left += self._sizes.pop(self._rows.popitem(last=False)[0])
        while left < 0 and self._runs:
            left += self._runs.popitem(last=False)[1].nbytes

    def rows(self, reader: CommitReader, runs: Sequence[StoredRun]) -> list[tuple[KeptRowReader, KeptRowReader]]:
        """Return readers of the connections and of the neurons of runs of a region, which are in use until the next."""
        self._shrink()
        self._used = [(reader.commit_of(run.identity), run.identity) for run in runs]
        for key in self._used:
            opened = self._rows.pop(key, None)
            if opened is None:
                if key not in self._runs and key[1] in reader.joined_runs:
                    # Both tables are in one array.
                    self._runs[key] = reader.run(key[1])
                tables = self._runs[key][:2] if key in self._runs else reader.entries(key[1])
                connections, neurons = (KeptRowReader(table.read) for table in tables)
                opened = connections, neurons
            self._rows[key] = opened
        return [self._rows[key] for key in self._used]

    def run(self, reader: CommitReader, identity: str) -> PackedRegionRun:
        """Return a run of a commit."""
        key = reader.commit_of(identity), identity
        if key not in self._runs:
            return reader.run(identity)
        self._runs.move_to_end(key)
        return self._runs[key]

    def keep(self, reader: CommitReader, written: Mapping[str, PackedRegionRun]) -> None:
        """Keep small runs that a commit has written, by identity; forget those that it does not have."""
        present = {(reader.commit_of(run.identity), run.identity) for run in reader.manifest().runs}
        small = {name: run for name, run in written.items() if run.connections.connections <= _KEPT}
        self._runs |= {(reader.commit, name): run for name, run in small.items()}
        self._rows = OrderedDict((key, its) for key, its in self._rows.items() if key in present)
        self._used = [key for key in self._used if key in present]
        self._sizes = {key: size for key, size in self._sizes.items() if key in present}
        self._runs = OrderedDict((key, its) for key, its in self._runs.items() if key in present)
        self._shrink()


@dataclass(frozen=True, eq=False)
class OpenedCommit:
    """Last commit of a network, as training continues it.

    Attributes
    ----------
    reader : CommitReader
        The commit.
    contents : CommitContents
        Its counts, dictionaries, ledger and origins.
    placement : Placement
        Where neurons belong.
    """

    reader: CommitReader
    contents: CommitContents
    placement: Placement

    @property
    def is_counted(self) -> bool:
        """Whether the distinct connections of all regions are known."""
        manifest = self.contents.manifest
        return not manifest.pruned_below and manifest.runs_by_region().keys() <= known_counts(manifest).keys()

    @classmethod
    def of(cls, reader: CommitReader) -> OpenedCommit:
        """Read what a commit has besides its runs."""
        contents = CommitContents(
            reader.manifest(), reader.vocabulary(), Ledger(reader.ledger()), origins=reader.origins()
        )
        return cls(reader, contents, reader.placement())


class SmallChanges:
    """Small changes of a network, which is kept open between them.

    Parameters
    ----------
    path : Path
        Folder of the network.
    budget : int
        Bytes of its runs that are kept; see `RunCache`.

    Attributes
    ----------
    store : NetworkStore
        The network.
    runs : RunCache
        Its runs.
    """

    def __init__(self, path: Path, budget: int = RUN_CACHE_BYTES) -> None:
        self.store, self.runs = NetworkStore(path), RunCache(budget)
        self._opened: OpenedCommit | None = None

    def opened(self) -> OpenedCommit:
        """Return the last commit, which is read again where another process has made it."""
        head = self.store.head()
        if self._opened is None or self._opened.reader.commit != head:
            self._opened = OpenedCommit.of(self.store.open(head))
            self.runs.keep(self._opened.reader, {})
        return self._opened

    def forget(self) -> None:
        """Read everything again at the next change."""
        self._opened, self.runs = None, RunCache(self.runs.budget)

    def add(self, inputs: Sequence[Source], sources: SourceOptions) -> CommitReader | None:
        """Add a text to the network; call it while holding the lock.

        Parameters
        ----------
        inputs : sequence of str or MemoryInput
            The text.
        sources : SourceOptions
            How it is read.

        Returns
        -------
        CommitReader or None
            The commit with it; None where training has to add it, or says why it cannot.
        """
        before = self.opened()
        group = small_parts(inputs, sources)
        ledger = before.contents.ledger
        if group is None or not before.is_counted or any(unit.identity in ledger for unit in group.units):
            return None
        # Dictionaries, ledger and origins grow from here on.
        self._opened = None
        specification = sources.specification
        block = encode_here(group, before.contents.vocabulary, sources)
        if block.statistics.last_trained < 0:
            return None
        contents, placement = before.contents.counted(block, block.statistics), before.placement
        columns = replace(placement, splits=())
        if specification.placement != "hash":
            columns = place_columns(columns, [column_usage(block.encoded)], specification.placement)
            placement = replace(columns, splits=placement.splits)
        increments = tasks.count_batch([block.encoded], columns, specification, placement.splits)
        changes = self._added(before.reader, increments)
        return self.commit(replace(before, contents=contents, placement=placement), changes)

    def _added(self, reader: CommitReader, increments: Mapping[int, Increment]) -> dict[int, RegionChange]:
        """Return the changes of regions that get increments."""
        known, stored = known_counts(reader.manifest()), reader.manifest().runs_by_region()
        changes = {}
        for region, increment in sorted(increments.items()):
            run, runs = tasks.compact(increment), stored.get(region, [])
            size = tasks.measure_run(run)
            if size.empty:
                continue
            before = known[region][1] if runs else RunSize(0, 0)
            tables = self.runs.rows(reader, runs)
            neurons = before.neurons + count_added_neurons([run.neurons], [its for _, its in tables])
            connections = before.connections + count_added([run.connections], [its for its, _ in tables])
            kept, run = self._summed(reader, runs, run)
            changes[region] = RegionChange(kept, run, RunSize(neurons, connections))
        return changes

    def _summed(
        self, reader: CommitReader, runs: Sequence[StoredRun], run: PackedRegionRun
    ) -> tuple[int, PackedRegionRun]:
        """Return how many runs of a region stay, and the sum of the others with a new one, as training plans it."""
        connections = run.connections.connections
        new = StoredRun("", 0, rank_of(connections), run.neurons.rows, connections, run.nbytes)
        plan = plan_compaction(tuple(runs), new, STORED_TOGETHER)
        others = plan.merged[:-1]
        if not others or sum(each.connections for each in others) > _SUMMED:
            return len(runs), run
        return len(plan.kept), sum_runs(*(self.runs.run(reader, each.identity) for each in others), run)

    def commit(self, after: OpenedCommit, changes: Mapping[int, RegionChange]) -> CommitReader | None:
        """Commit changes of regions; None where a commit has to derive tables from all counts, which training does.

        Parameters
        ----------
        after : OpenedCommit
            The commit that is continued, with the contents and the placement of the new one.
        changes : mapping of int to RegionChange
            By region.
        """
        before, contents, placement = after.reader, after.contents, after.placement
        manifest, written = _manifest(contents.manifest, before.manifest(), placement, changes)
        runs = [(run.region, run.connections) for run in manifest.runs]
        derived = model_of(manifest.specification).derived(manifest.specification)
        if derived is not None and derives_tables(manifest, runs, before.repeated_connections):
            return None
        self._opened = None
        session = self.store.begin(before.commit)
        self.store.write_content(session, before, contents.content(placement))
        self.store.write_runs(session, written)
        commit = self.store.commit(session, (), before, manifest, note=contents.note)
        reader = self.store.open(commit)
        kept = replace(contents, manifest=reader.manifest(), rewritten=False, note="")
        self._opened = OpenedCommit(reader, kept, placement)
        self.runs.keep(reader, written)
        return reader


def small_parts(inputs: Sequence[Source], sources: SourceOptions) -> UnitGroup | None:
    """Return the parts of a small text, each once, as if none of them had been counted; None of another one."""
    require_rereadable(inputs, "a small change")
    group, passed = UnitGroup(), set[bytes]()
    for unit in read_units(inputs, sources):
        if group.weight + unit.weight > _CHARACTERS or not isinstance(unit.content, Part):
            return None
        if unit.identity not in passed:
            passed.add(unit.identity)
            group.append(unit, 0, group.weight + unit.weight)
    return group if group.units else None


def _manifest(
    counted: Manifest, before: Manifest, placement: Placement, changes: Mapping[int, RegionChange]
) -> tuple[Manifest, dict[str, PackedRegionRun]]:
    """Return the manifest of a commit that changes regions, given its counts, and its new runs by identity."""
    counts = {region: size for region, (_, size) in known_counts(before).items()}
    stored, written = before.runs_by_region(), {}
    for region, change in changes.items():
        counts[region], runs = change.size, stored.get(region, [])
        stored[region] = runs[: change.kept]
        if change.run is None:
            continue
        replaced = runs[change.kept :]
        first = rounds_of(replaced[0].identity)[0] if replaced else before.rounds
        identity, size = run_identity(region, first, before.rounds), tasks.measure_run(change.run)
        written[identity] = change.run
        rank = rank_of(size.connections, max((run.rank for run in replaced), default=0))
        stored[region].append(StoredRun.of(identity, region, rank, size))
    runs = [run for region in sorted(stored) for run in stored[region]]
    several = Counter(run.region for run in runs)
    manifest = replace(
        counted,
        runs=tuple(runs),
        rounds=before.rounds + 1,
        neurons=sum(counts[region].neurons for region in several),
        connections=sum(counts[region].connections for region in several),
        exact=True,
        splits=placement.splits,
        load=tuple(placement.load.tolist()),
        counts={region: counts[region] for region in several if several[region] > 1},
    )
    return manifest, written
