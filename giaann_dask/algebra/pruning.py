"""Prune a network: leave out its weakest connections, for a smaller and faster network that predicts almost as well.

What is left is no longer the sum over a text, so a pruned network says so in its manifest, and cannot be trained, added
or have documents forgotten. Regions are read and written in blocks of rows by the workers of a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, Future

from giaann_dask.algebra.algebra_options import PruningOptions
from giaann_dask.algebra.parts import submit_parts, write_network
from giaann_dask.cluster import attempt, results, task_key
from giaann_dask.errors import OptionError
from giaann_dask.events import Observer, StageAdvanced, ignore
from giaann_dask.keys import Integers
from giaann_dask.models import model_of
from giaann_dask.runs.packing import PackedRegionRun, pack, pack_blocks
from giaann_dask.runs.run import Run, select_connections
from giaann_dask.runs.summing import sum_in_blocks
from giaann_dask.runs.target_sets import run_of_blocks
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.ledger import Ledger
from giaann_dask.training import tasks
from giaann_dask.training.committing import CommitContents
from giaann_dask.training.regions import Regions


@attempt()
def prune_network(
    client: Client, reader: CommitReader, out: Path, options: PruningOptions, observer: Observer = ignore
) -> str:
    """Write the strongest connections of a network to a new network, and return the identity of its commit.

    Dictionaries, ledger, counts and the neurons' own strengths stay; in profile ``contexts`` also how often each word
    occurs, and which contexts extend which as far as these still have words.

    Parameters
    ----------
    client : Client
        Where regions are pruned.
    reader : CommitReader
        The network; it may be a pruned one.
    out : Path
        Folder of the new network, absolute.
    options : PruningOptions
        Which connections stay.
    observer : callable, optional
        Notified of every region.

    Raises
    ------
    OptionError
        If no connection would stay.
    StoreExistsError
        If there is a network at the path already.
    StoreWriteError, StoreUnsharedError
        If it cannot be written, or a worker cannot access it.
    """
    manifest = reader.manifest()
    unit = manifest.specification.strength_unit
    strengths, counts = _count_strengths(client, reader, observer)
    if options.min_strength is not None:
        minimum = math.ceil(options.min_strength * unit)
    else:
        assert options.keep is not None, "one of the two"
        minimum = lowest_strength(strengths, counts, options.keep)
    largest = int(strengths.max(initial=0))
    if minimum > largest:
        raise OptionError(
            f"pruning network {reader.path} below a strength of {minimum / unit:g} would leave no connection",
            f"a strength of at most {largest / unit:g}, which is the largest one",
            "give a smaller min_strength or a larger keep",
            names=("keep",),
        )
    pruned = replace(manifest, pruned_below=max(minimum, manifest.pruned_below))
    contents = CommitContents(pruned, reader.vocabulary(), Ledger(reader.ledger()), origins=reader.origins())

    def submit(regions: Regions) -> dict[int, Future]:
        placement, rule = reader.placement(), (minimum, manifest.specification)
        divided = np.array(sorted(placement.divided()), np.int64)
        parts, found = submit_parts(client, reader, placement), {}
        for group in placement.groups():
            each = {region: parts[region] for region in group if parts.get(region)}
            # A rule about whole rows asks what their other parts keep.
            kept = [
                regions.tasks.submit("keep", rows_kept, *rule, divided, *runs, key_of=(minimum, _keys(runs)))
                for runs in (each.values() if len(group) > 1 else ())
            ]
            for region, runs in each.items():
                key_of = (minimum, _keys([*kept, *runs]))
                found[region] = regions.tasks.submit("prune", prune_runs, *rule, kept, *runs, key_of=key_of)
        return found

    return write_network(client, out, reader, reader.placement(), contents, submit, observer)


def _count_strengths(client: Client, reader: CommitReader, observer: Observer) -> tuple[Integers, Integers]:
    """Return the distinct strengths of the connections that pruning may leave out, ascending, and how many have each.

    Returns
    -------
    tuple of (ndarray, ndarray)
        Strength units and counts, int64 each, of one shape.
    """
    specification = reader.manifest().specification
    counting = [
        client.submit(count_strengths, specification, *runs, key=task_key("strengths", _keys(runs)))
        for runs in submit_parts(client, reader, reader.placement()).values()
    ]
    found = []
    for done, task in enumerate(counting, 1):
        found.extend(results([task]))
        observer(StageAdvanced("count strengths", done, len(counting), "regions"))
    return _add_counts(found)


def lowest_strength(strengths: Integers, counts: Integers, keep: float) -> int:
    """Return the lowest strength that no more than a share of all connections reach.

    Parameters
    ----------
    strengths, counts : ndarray
        Distinct strength units, ascending, and the connections of each; int64.
    keep : float
        Share of the connections.

    Examples
    --------
    >>> lowest_strength(np.array([1, 2, 5]), np.array([6, 3, 1]), 0.5)
    2
    >>> lowest_strength(np.array([1, 2, 5]), np.array([6, 3, 1]), 0.05)
    6
    """
    reached = np.cumsum(counts[::-1])[::-1]
    few = np.flatnonzero(reached <= round(keep * int(counts.sum())))
    return int(strengths[few[0]]) if len(few) else int(strengths.max(initial=0)) + 1


def count_strengths(specification: Specification, *runs: PackedRegionRun) -> tuple[Integers, Integers]:
    """Return the distinct strengths of a region's connections that may be left out, and how many have each (a task)."""
    found, model = [], model_of(specification)
    for block in _blocks(runs):
        strength = block.strength[model.may_prune(block)]
        found.append(np.unique(strength.astype(np.int64), return_counts=True))
    return _add_counts(found)


def _blocks(runs: Sequence[PackedRegionRun]) -> Iterator[Run]:
    """Yield the sum of the connections of a region's runs in blocks of rows."""
    return (run_of_blocks([block]) for block in sum_in_blocks([run.connections for run in runs]))


def _add_counts(found: list[Any]) -> tuple[Integers, Integers]:
    """Return distinct values, ascending, with the sums of their counts."""
    none = np.zeros(0, np.int64)
    values, counts = (np.concatenate([none, *parts]) for parts in zip(*found, (none, none), strict=True))
    distinct, place = np.unique(values, return_inverse=True)
    total = np.zeros(len(distinct), np.int64)
    np.add.at(total, place, counts)
    return distinct, total


def rows_kept(minimum: int, specification: Specification, rows: Integers, *runs: PackedRegionRun) -> Integers:
    """Return which of some rows keep connections in a region below which others are left out (a task)."""
    model, found = model_of(specification), [np.zeros(0, np.int64)]
    for block in _blocks(runs):
        kept = select_connections(block, model.kept_by_pruning(block, minimum)).source
        found.append(kept[np.isin(kept, rows)])
    return np.concatenate(found)


def prune_runs(
    minimum: int, specification: Specification, kept: Sequence[Integers], *runs: PackedRegionRun
) -> PackedRegionRun:
    """Return the sum of a region's runs without the connections below a strength, in encoded form (a task).

    Parameters
    ----------
    minimum : int
        The strength, in units.
    specification : Specification
        Of the network.
    kept : sequence of ndarray
        Divided rows that keep connections, here or in other regions.
    *runs : PackedRegionRun
        Of the region.
    """
    model, elsewhere = model_of(specification), np.concatenate([np.zeros(0, np.int64), *kept])

    def pruned() -> Iterator[Run]:
        for block in _blocks(runs):
            yield select_connections(block, model.kept_by_pruning(block, minimum, elsewhere))

    none = pack(Run.empty())
    rest = tasks.compact(*(run._replace(connections=none) for run in runs))
    return rest._replace(connections=pack_blocks(pruned()))


def _keys(runs: list[Future]) -> list[str]:
    return [run.key for run in runs]
