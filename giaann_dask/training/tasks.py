"""Define the tasks of training: pure functions of immutable values, with the names that the dashboard shows.

Each may run more than once and then returns the same bytes. `rounds` and `regions` submit them. The sequences of
blocks are divided into the batches of rounds here, as tasks, too.

Runs of many regions may be in one value (`RunTable`), so that a stage has a task for each owner, not for each region:
tasks about one run take runs of tables as well, and there is a task about whole tables for each of those about one run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster.locality import count_used, count_work
from giaann_dask.cluster.regions import WRITTEN, open_any_commit, open_run, read_commit, sum_runs
from giaann_dask.cluster.sharing import naming_worker
from giaann_dask.dask_types import register, register_arrays
from giaann_dask.device import DeviceName, select_device
from giaann_dask.keys import Integers, unpack_target
from giaann_dask.models import model_of
from giaann_dask.models.base import DerivedTables
from giaann_dask.runs.device_sums import PairSums, sum_pairs_on
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.packing import PackedRegionRun, PackedRun, pack_targets, unpack
from giaann_dask.runs.pair_tables import PairRegionRun, PairTable, join_pairs, pair_run, sum_pairs
from giaann_dask.runs.placement import (
    Placement,
    SequencePart,
    Split,
    choose_pivot,
    choose_target,
    row_weights,
    split_packed,
    split_run,
)
from giaann_dask.runs.run import RegionRun, Run, RunSize
from giaann_dask.runs.summing import count_added, count_added_neurons, count_union, decode_blocks, sum_in_blocks
from giaann_dask.runs.target_sets import run_of_blocks
from giaann_dask.spec import Specification
from giaann_dask.storage import reading
from giaann_dask.store.commits import REPEATS, CommitReader
from giaann_dask.store.run_io import write_run, write_runs, write_tables
from giaann_dask.text.blocks import CANDIDATE, NO_DELIMITER
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.training.selection import ColumnTouches, assign_batches, choose_rounds, join_touches
from giaann_dask.training.training_options import SelectionOptions

# Increments of a region, or sums of these that are not packed yet.
Increment: TypeAlias = RegionRun | PairRegionRun
AnyRun: TypeAlias = Increment | PackedRegionRun
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_Form = TypeVar("_Form", bound=AnyRun)
_ALL = SequencePart()
# A run with so many times the connections of the others of a region is not read as a whole to count these.
_MUCH_LARGER = 8


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class RunTable:
    """Runs of several regions.

    Attributes
    ----------
    runs : dict of int to RegionRun, PairRegionRun or PackedRegionRun
        By region.
    """

    runs: dict[int, AnyRun]


class InTable(NamedTuple):
    """Run of a region in a table, as an argument of a task.

    Attributes
    ----------
    table : RunTable
        The table; a future of it where the task is submitted.
    region : int
        The region.
    """

    table: RunTable
    region: int

    def run(self) -> AnyRun:
        """Return the run."""
        return self.table.runs[self.region]


def takes_runs(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let a task take runs of tables (`InTable`) in place of runs; use it as a decorator.

    Examples
    --------
    >>> takes_runs(lambda *runs: runs)(InTable(RunTable({3: "a run"}), 3), "another")
    ('a run', 'another')
    """

    @wraps(function)
    def called(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        found = (each.run() if isinstance(each, InTable) else each for each in arguments)
        return function(*found, **named)  # type: ignore[arg-type]

    return called


@dataclass(frozen=True)
class RoundPlan:
    """Rounds of some blocks.

    Attributes
    ----------
    rounds : int
        Rounds, one after another.
    width : int
        Batches of each, trained at the same time.
    single : bool
        Whether a batch is one sequence.
    """

    rounds: int
    width: int
    single: bool = False

    @property
    def batches(self) -> int:
        """Batches of all rounds; round r has the numbers from ``r * width`` on."""
        return self.rounds * self.width


def plan_rounds(sequences: int, joined: int, width: int, batch_sequences: int) -> RoundPlan:
    """Return the rounds that some blocks are divided into.

    Parameters
    ----------
    sequences : int
        Counted sequences of the blocks; those that are not trained leave places empty.
    joined : int
        Batches of whole blocks.
    width : int
        Batches that are trained at the same time.
    batch_sequences : int
        Sequences of a batch as asked for.

    Returns
    -------
    RoundPlan
        One round of the batches as they are joined, unless batches half as large or smaller are asked
        for.

    Examples
    --------
    >>> plan_rounds(18_000, 2, 2, 8192), plan_rounds(1_800, 1, 2, 300), plan_rounds(9, 1, 2, 1)
    (RoundPlan(rounds=1, width=2, single=False), RoundPlan(rounds=3, width=2, single=False), \
RoundPlan(rounds=5, width=2, single=True))
    """
    if batch_sequences == 1:
        return RoundPlan(max(1, -(-sequences // width)), width, single=True)
    wanted = sequences // batch_sequences
    if wanted < 2 * joined:
        return RoundPlan(1, joined)
    return RoundPlan(-(-wanted // width), min(width, wanted))


def assign(touches: ColumnTouches, plan: RoundPlan, options: SelectionOptions) -> npt.NDArray[np.int64]:
    """Return the batch of each sequence, numbered through the rounds.

    Parameters
    ----------
    touches : ColumnTouches
        Columns and lengths of the trained sequences.
    plan : RoundPlan
        Rounds and batches; single ones have a place for each sequence.
    options : SelectionOptions
        Order, window and seed.
    """
    if not plan.single:
        return assign_batches(touches, plan.batches, options)
    batch = np.empty(len(touches), np.int64)
    batch[choose_rounds(touches, plan.width, options)] = np.arange(len(touches))
    return batch


register()


def count_batch(
    blocks: Sequence[EncodedBlock], columns: Placement, specification: Specification, splits: tuple[Split, ...]
) -> dict[int, Increment]:
    """Return the increments of a batch of sequences by region."""
    placement, began = replace(columns, splits=splits), time.perf_counter()
    increments = divide_at_targets(dict(model_of(specification).count(blocks, specification, placement)), placement)
    count_work(increments.values(), time.perf_counter() - began)
    return increments


def receive(increments: dict[int, Increment]) -> None:
    """Receive increments that are not used, so that the link they come over is measured."""


def divide_at_targets(runs: dict[int, _Form], placement: Placement) -> dict[int, _Form]:
    """Divide the rows that have several regions, given runs by the own region of each row.

    Parameters
    ----------
    runs : dict of int to RegionRun, PairRegionRun or PackedRegionRun
        By region; not changed.
    placement : Placement
        Where connections belong.

    Returns
    -------
    dict of int to RegionRun, PairRegionRun or PackedRegionRun
        The same connections, each in its region.
    """
    for cut in placement.cuts():
        if cut.region not in runs:
            continue
        runs = dict(runs)
        whole = runs.pop(cut.region)
        for region, upper in ((cut.region, False), (cut.following, True)):
            part = split(whole, cut.pivot, cut.target, upper, cut.part)
            if not measure_run(part).empty:
                runs[region] = cast(_Form, _add_alike(runs[region], part) if region in runs else part)
    return runs


def _add_alike(*runs: AnyRun) -> AnyRun:
    """Return the sum of runs in their form; they are all packed, or none is."""
    packed = [run for run in runs if isinstance(run, PackedRegionRun)]
    return (
        sum_runs(*packed) if packed else add_increments([run for run in runs if not isinstance(run, PackedRegionRun)])
    )


def select(parts: Sequence[ColumnTouches], plan: RoundPlan, options: SelectionOptions) -> npt.NDArray[np.int64]:
    """Return the batch of each trained sequence of some blocks, in order."""
    return assign(join_touches(parts), plan, options)


def count_selected(
    blocks: Sequence[EncodedBlock],
    batch: npt.NDArray[np.int64],
    number: int,
    columns: Placement,
    specification: Specification,
    splits: tuple[Split, ...],
) -> dict[int, Increment]:
    """Return the increments of the sequences of some blocks that were selected for one batch."""
    return count_batch(_selected(blocks, batch, number), columns, specification, splits)


def count_dense(
    blocks: Sequence[EncodedBlock],
    batch: npt.NDArray[np.int64],
    number: int,
    columns: Placement,
    specification: Specification,
    splits: tuple[Split, ...],
    device: DeviceName,
) -> dict[int, Increment]:
    """Return what `count_selected` returns for a batch of one sequence, from a dense tensor on a device."""
    chosen, placement = _selected(blocks, batch, number), replace(columns, splits=splits)
    began = time.perf_counter()
    increments: dict[int, Increment] = dict(
        model_of(specification).count_dense(chosen, specification, placement, device)
    )
    count_work(increments.values(), time.perf_counter() - began)
    return divide_at_targets(increments, placement)


def _selected(blocks: Sequence[EncodedBlock], batch: npt.NDArray[np.int64], number: int) -> list[EncodedBlock]:
    """Return blocks in which the sequences of all other batches are not trained."""
    chosen, start = [], 0
    for block in blocks:
        trained = np.flatnonzero(block.status == CANDIDATE)
        others = batch[start : start + len(trained)] != number
        start += len(trained)
        status = block.status.copy()
        status[trained[others]] = NO_DELIMITER
        chosen.append(replace(block, status=status))
    return chosen


def accumulate(*increments: dict[int, Increment]) -> dict[int, Increment]:
    """Add up the increments of several batches where they were computed, before they are sent to other workers."""
    regions = sorted({region for part in increments for region in part})
    return {region: integrate(region, *increments) for region in regions}


def route(increments: dict[int, Increment], regions: Sequence[int]) -> dict[int, Increment]:
    """Return a batch's increments for the regions of one owner."""
    return {region: increments[region] for region in regions if region in increments}


def owner_anchor(region: int) -> int:
    """Return a value that is kept at the owner of a region, so that tasks that depend on it run there."""
    return region


def integrate(region: int, *increments: dict[int, Increment], owner_anchor: int | None = None) -> Increment:
    """Add up the increments for one region."""
    return add_increments([part[region] for part in increments if region in part])


def add_increments(increments: Sequence[Increment]) -> Increment:
    """Add up increments of one region; pairs are put together, to be summed later."""
    count_used(increments)
    tables = [part.connections for part in increments if part.connections.rows]
    pairs = [table for table in tables if isinstance(table, PairTable)]
    if not pairs or len(pairs) < len(tables):
        return add_runs(increments)
    postings = [part.postings for part in increments if part.postings is not None]
    return PairRegionRun(
        join_pairs(pairs),
        merge_runs([part.neurons for part in increments]),
        merge_runs(postings) if postings else None,
    )


@takes_runs
def pairs_of(*runs: AnyRun) -> tuple[PairTable, ...]:
    """Return the pairs of runs of one region, which a device is to sum."""
    return tuple(run.connections for run in runs if isinstance(run.connections, PairTable) and run.connections.rows)


def sum_on_device(pairs: Sequence[PairTable]) -> PairSums | None:
    """Sum pairs of one region on the device of this worker, None for no pairs."""
    device = select_device("cuda")
    assert device is not None, "a device that is asked for is there"
    return sum_pairs_on(device, pairs) if pairs else None


@takes_runs
def compact(*runs: AnyRun, sums: PairSums | None = None) -> PackedRegionRun:
    """Add up runs of one region into one in encoded form, which is never decoded as a whole.

    Parameters
    ----------
    *runs : RegionRun, PairRegionRun or PackedRegionRun
        What is added up.
    sums : PairSums, optional
        Sums of all pairs of the runs, where a device has summed them.
    """
    stored = [run for run in runs if isinstance(run, PackedRegionRun)]
    if len(stored) == len(runs):
        return sum_runs(*stored)
    count_used(runs)
    tables = [run.connections for run in runs if run.connections.rows]
    pairs = [table for table in tables if isinstance(table, PairTable)]
    others = [table for table in tables if not isinstance(table, PairTable)]
    summed = (sum_pairs(pairs) if sums is None else sums.blocks()) if pairs else iter(())
    if pairs and not others:
        connections = pack_targets(summed)
    else:
        connections = pack_targets(sum_in_blocks([*others, run_of_blocks(list(summed))] if pairs else others))
    postings = [run.postings for run in runs if run.postings is not None]
    return PackedRegionRun(
        connections,
        pack_targets(sum_in_blocks([run.neurons for run in runs])),
        pack_targets(sum_in_blocks(postings), gaps=True) if postings else None,
    )


def add_runs(runs: Sequence[AnyRun]) -> RegionRun:
    """Return the sum of runs of one region."""
    postings = [run.postings for run in runs if run.postings is not None]
    return RegionRun(
        merge_runs(_with_pairs_summed([run.connections for run in runs])),
        merge_runs([run.neurons for run in runs]),
        merge_runs(postings) if postings else None,
    )


def _with_pairs_summed(tables: Sequence[Run | PackedRun | PairTable]) -> list[Run | PackedRun]:
    """Return tables of the same sum, none of which has pairs."""
    pairs = [table for table in tables if isinstance(table, PairTable)]
    others = [table for table in tables if not isinstance(table, PairTable)]
    return [*others, pair_run(pairs)] if pairs else others


def decode_table(run: Run | PackedRun | PairTable) -> Run:
    """Return the decoded form of the connections or neurons of a run."""
    if isinstance(run, PairTable):
        return pair_run([run])
    return unpack(run) if isinstance(run, PackedRun) else run


def decode(run: AnyRun) -> RegionRun:
    """Return the decoded form of a run."""
    postings = None if run.postings is None else decode_table(run.postings)
    return RegionRun(decode_table(run.connections), decode_table(run.neurons), postings)


@takes_runs
def find_pivot(*runs: AnyRun) -> tuple[int, int] | None:
    """Return the neuron, and the target of a region of a single row or 0, at which a region is to be split.

    None for one that cannot be: all its connections lead from one neuron to one other.
    """
    tables = [run.connections for run in runs] + [run.neurons for run in runs]
    weights = [row_weights(table) for table in tables]
    pivot = choose_pivot(weights)
    if pivot is not None:
        return pivot, 0
    target = choose_target(np.concatenate([_targets(run.connections) for run in runs]))
    return None if target is None else (int(np.concatenate([source for source, _ in weights])[0]), target)


def _targets(table: Run | PackedRun | PairTable) -> Integers:
    """Return the neuron keys of the targets of connections or pairs."""
    return table.targets() if isinstance(table, PairTable) else unpack_target(decode_table(table).target)[1]


@takes_runs
def split(run: AnyRun, pivot: int, target: int, upper: bool, part: SequencePart = _ALL) -> AnyRun:
    """Return the part of a run below a neuron, or the part from it on, in the form of the run.

    With a target other than 0, the connections of the neuron itself are divided there, and its postings by sequences,
    of which `part` are in the part below; all else of it is in the part below.
    """
    count_used([run])
    neuron = pivot + (target > 0)
    if isinstance(run, PairRegionRun):
        return PairRegionRun(
            run.connections.split(pivot, upper, target),
            split_run(run.neurons, neuron, upper),
            None if run.postings is None else split_run(run.postings, pivot, upper, target, part),
        )
    if isinstance(run, PackedRegionRun):
        return PackedRegionRun(
            split_packed(run.connections, pivot, upper, target),
            split_packed(run.neurons, neuron, upper),
            None if run.postings is None else split_packed(run.postings, pivot, upper, target, part),
        )
    return RegionRun(
        split_run(run.connections, pivot, upper, target),
        split_run(run.neurons, neuron, upper),
        None if run.postings is None else split_run(run.postings, pivot, upper, target, part),
    )


@takes_runs
def pack_run(run: AnyRun, sums: PairSums | None = None) -> PackedRegionRun:
    """Return the encoded form of a run, as it is kept in memory and stored; `compact` has the parameters."""
    if isinstance(run, PackedRegionRun):
        return run
    return compact(run, sums=sums)


def measure_run(run: AnyRun) -> RunSize:
    """Return the size of a run."""
    return RunSize(run.neurons.rows, len(run.connections), run.nbytes, run.index_bytes)


@takes_runs
def measure_runs(*runs: AnyRun, owner_anchor: int | None = None) -> tuple[RunSize, ...]:
    """Return the sizes of runs, on the owner of their regions."""
    return tuple(map(measure_run, runs))


@takes_runs
def count_region(*runs: PackedRegionRun) -> RunSize:
    """Return how many distinct neurons and connections a region's runs have together, and their bytes."""
    largest, *others = sorted(runs, key=lambda run: -len(run.connections))
    whole = measure_run(largest)
    if not others:
        return whole
    neurons = count_added_neurons([run.neurons for run in others], [largest.neurons.read])
    if _MUCH_LARGER * sum(len(run.connections) for run in others) < len(largest.connections):
        # Of the largest, no more is read than the rows that others have, too.
        added = count_added([run.connections for run in others], [largest.connections.read])
    else:
        added = count_union([run.connections for run in runs]) - whole.connections
    nbytes = sum(measure_run(run).nbytes for run in runs)
    return RunSize(whole.neurons + neurons, whole.connections + added, nbytes)


@takes_runs
def count_more(path: str, commit: str, stored: Sequence[str], *runs: PackedRegionRun) -> RunSize:
    """Return how many distinct neurons and connections runs of a region add to its stored ones, and their bytes."""

    def count(reader: CommitReader) -> RunSize:
        tables = [reader.entries(identity) for identity in stored]
        with reading(f"network {path}"):
            return RunSize(
                count_added_neurons([run.neurons for run in runs], [neurons.read for _, neurons in tables]),
                count_added([run.connections for run in runs], [connections.read for connections, _ in tables]),
                sum(measure_run(run).nbytes for run in runs),
            )

    return read_commit(path, commit, stored, count)


@takes_runs
def write_stored(fork: bytes, identity: str, attempt: str, packed: PackedRegionRun) -> bytes:
    """Write a run, unless it is empty, on the worker that has it (`giaann_dask.store.run_io.write_run`)."""
    if measure_run(packed).empty:
        return b""
    count_used([packed])
    with naming_worker():
        written = write_run(fork, identity, packed)
    WRITTEN.keep(attempt, identity, packed)
    return written


@takes_runs
def collect_derived(
    derived: DerivedTables, placement: Placement, regions: Sequence[int], *runs: PackedRegionRun
) -> Any:
    """Return what the counts of a region say, for the derived tables of all regions.

    Parameters
    ----------
    derived : DerivedTables
        Rules of the tables.
    placement : Placement
        Where counts belong.
    regions : sequence of int
        Region of each run; those of several have rows in common.
    *runs : PackedRegionRun
        Which are never decoded as a whole.
    """
    tables: dict[int, list[PackedRun]] = {}
    for region, run in zip(regions, runs, strict=True):
        tables.setdefault(region, []).append(run.connections)
    return derived.collect([partial(decode_blocks, its) for its in tables.values()], placement)


def write_derived(
    derived: DerivedTables, fork: bytes, path: str, region: int, own: Any, parts: Sequence[Any]
) -> tuple[bytes, npt.NDArray[np.int64]] | None:
    """Write the derived table of a region into the store, and return it with its figures; None without."""
    joined = derived.join(region, parts, own)
    if joined is None:
        return None
    with naming_worker():
        return write_tables(fork, {path: {REPEATS: joined[0]}}), joined[1]


def open_columns(path: str, commit: str) -> Placement:
    """Read where columns belong, without splits of regions."""
    return replace(open_any_commit(path, commit).placement(), splits=())


def integrate_table(
    regions: Sequence[int], *increments: dict[int, Increment], owner_anchor: int | None = None
) -> RunTable:
    """Add up the increments for the regions of one owner."""
    return RunTable({region: integrate(region, *increments) for region in regions})


def measure_table(regions: Sequence[int], table: RunTable, owner_anchor: int | None = None) -> tuple[RunSize, ...]:
    """Return the sizes of the runs of some regions of a table."""
    return tuple(measure_run(table.runs[region]) for region in regions)


def compact_table(places: Mapping[int, Sequence[int]], *values: AnyRun | RunTable) -> RunTable:
    """Add up runs of several regions, in encoded form.

    Parameters
    ----------
    places : mapping of int to sequence of int
        By region, which of the values have its runs.
    *values
        Tables, and runs.
    """

    def run_of(place: int, region: int) -> AnyRun:
        value = values[place]
        return value.runs[region] if isinstance(value, RunTable) else value

    return RunTable({region: compact(*(run_of(at, region) for at in its)) for region, its in places.items()})


def pack_table(regions: Sequence[int], table: RunTable) -> RunTable:
    """Return the encoded form of the runs of some regions of a table."""
    return RunTable({region: pack_run(table.runs[region]) for region in regions})


def write_table(fork: bytes, identities: Mapping[int, str], attempt: str, table: RunTable) -> bytes:
    """Write the runs of some regions of a table that are not empty, in one go, as `write_stored` writes one."""
    found: dict[str, PackedRegionRun] = {}
    for region, identity in identities.items():
        run = table.runs[region]
        assert isinstance(run, PackedRegionRun), "runs are written in their packed form"
        if not measure_run(run).empty:
            found[identity] = run
    if not found:
        return b""
    count_used(list(found.values()))
    with naming_worker():
        written = write_runs(fork, found)
    for identity, packed in found.items():
        WRITTEN.keep(attempt, identity, packed)
    return written


def open_table(
    path: str, commit: str, identities: Mapping[int, str], attempt: str, owner_anchor: int | None = None
) -> RunTable:
    """Read runs of a commit, or take over what this process has written; see `giaann_dask.cluster.regions.open_run`."""
    return RunTable({region: open_run(path, commit, name, attempt) for region, name in identities.items()})
