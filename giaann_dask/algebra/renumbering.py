"""Leave out the names that no text of a network has any more, and number the others anew in all runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from distributed import Future

from giaann_dask.algebra.differences import RECENT
from giaann_dask.algebra.parts import add_parts, divide_parts
from giaann_dask.cluster import results
from giaann_dask.cluster.submitting import Submitted
from giaann_dask.keys import Integers, word_keys
from giaann_dask.models import model_of
from giaann_dask.models.base import UsedNames
from giaann_dask.runs.packed_rows import RowReader
from giaann_dask.runs.packing import PackedRegionRun
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.renaming import Renaming, close_gaps
from giaann_dask.runs.run import RegionRun
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.vocabulary import Vocabulary
from giaann_dask.training import tasks
from giaann_dask.training.regions import LastRuns, Regions
from giaann_dask.training.run_references import RunReference, sizes_of
from giaann_dask.training.tasks import takes_runs

_NONE: Integers = np.zeros(0, np.int64)


def add_up_latest(regions: Regions) -> None:
    """Add up the latest runs of each region to one."""
    large = _large_runs(regions)
    several = {region: runs[large[region] :] for region, runs in regions.runs.items() if len(runs) - large[region] > 1}
    _put_sums(regions, {region: list(map(regions.tasks.alone, runs)) for region, runs in several.items()}, large)


def rename_runs(regions: Regions, reader: CommitReader, renaming: Renaming) -> tuple[Regions, Renaming]:
    """Return regions with new identifiers whose latest runs are one each, and the identifiers.

    Names that no text has any more are most often new ones: then larger runs, which have earlier names alone, stay.
    Else the names of larger runs come first, and these are added up apart from the latest ones. So nothing of the
    larger ones is computed again where later commits have only changed the latest ones.
    """
    large, names = _large_runs(regions), _names_of_runs(regions)
    larger = [run for region, runs in regions.runs.items() for run in runs[: large[region]]]
    first, ends = renaming, {identity: _last(each) for identity, each in names.items()}
    if not all(first.up_to(*ends[run.identity]).is_identity for run in larger):
        ahead = _named_by([names[run.identity] for run in larger], renaming)
        # No later names, so that the same runs are renamed by the same tasks.
        first = close_gaps(*ahead).up_to(*_last(map(np.flatnonzero, ahead)))
        renaming = close_gaps(*renaming.kept, first=ahead)
    kept = {}
    for region, runs in regions.runs.items():
        stays = [first.up_to(*ends[run.identity]).is_identity for run in runs[: large[region]]]
        kept[region] = stays.index(False) if False in stays else large[region]
    placement, renamed = reader.placement(), regions
    if reader.manifest().specification.placement != "hash" or not any(kept.values()):
        # Regions are chosen anew for all columns.
        placement, kept = Placement(placement.first_regions), dict.fromkeys(kept, 0)
        renamed = Regions(regions.tasks.client, placement, regions.rounds)
    older = [run for region, runs in regions.runs.items() for run in runs[kept[region] : large[region]]]
    latest = [run for region, runs in regions.runs.items() for run in runs[large[region] :]]
    renamed_runs = ((list(map(regions.tasks.alone, older)), first), (_few_sums(regions, latest), renaming))
    submitter, storing = renamed.tasks.submitter, renamed.tasks.roles.storing()
    for values, numbers in renamed_runs:
        if values:
            # One graph, at the place of the sums: of sums that the cluster has no parts are computed again.
            with submitter.together():
                _put_sums(renamed, divide_parts(submitter, values, placement, numbers, **storing), kept)
            kept = {region: len(present) for region, present in renamed.runs.items()}
    return renamed, renaming


def _few_sums(regions: Regions, runs: Sequence[RunReference]) -> list[Future]:
    """Add up small runs, those of several regions too, to few that are small."""
    groups, room = list[list[Future]](), 0
    for run, size in zip(runs, sizes_of(runs), strict=True):
        if not groups or size.connections > room:
            groups.append([])
            room = RECENT
        groups[-1].append(regions.tasks.alone(run))
        room -= size.connections
    return list(add_parts(regions, dict(enumerate(groups))).values())


def _last(identifiers: Iterable[Integers]) -> list[int]:
    """Return the last one of each of some ascending identifiers, -1 where there is none."""
    return [int(each[-1]) if len(each) else -1 for each in identifiers]


def _named_by(names: Sequence[UsedNames], renaming: Renaming) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which of the concepts and features that have new identifiers some runs have."""
    concepts, features = (np.zeros_like(kept) for kept in renaming.kept)
    features[0] = True
    for columns, words in names:
        concepts[columns] = features[words] = True
    return concepts & renaming.kept[0], features & renaming.kept[1]


def _put_sums(regions: Regions, parts: Mapping[int, Sequence[Submitted]], kept: Mapping[int, int]) -> None:
    """Put the sums of the parts of regions in the place of their runs after the first ones."""
    regions.replace_last(
        {
            region: LastRuns(kept.get(region, 0), value, regions.tasks.measure(value))
            for region, value in add_parts(regions, parts).items()
        }
    )


def submit_used_names(regions: Regions, reader: CommitReader) -> list[Future]:
    """Submit tasks that return the names which the counts of each run use; kept results are not computed again."""
    return _submit_for_runs(regions, "names", used_names, reader.manifest().specification)


def submit_all_names(regions: Regions) -> list[Future]:
    """Submit tasks that return all columns and features of each run; kept results are not computed again."""
    return _submit_for_runs(regions, "all_names", names_of_run)


def _submit_for_runs(
    regions: Regions, name: str, function: Callable[..., UsedNames], *arguments: object
) -> list[Future]:
    """Submit a task for each run, which is the last argument of its function."""
    submit = regions.tasks.submit
    with regions.tasks.submitter.together():
        return [submit(name, function, *arguments, run.argument, key_of=run.key) for run in regions.runs.all()]


def _names_of_runs(regions: Regions) -> dict[str, UsedNames]:
    """Return the columns and features of the connections and neurons of each run, by identity."""
    found = results(submit_all_names(regions))
    return dict(zip((run.identity for run in regions.runs.all()), found, strict=True))


def _large_runs(regions: Regions) -> dict[int, int]:
    """Return how many runs at the beginning of each region are large, or have later ones that are."""
    every = regions.runs.all()
    sizes = dict(zip((run.identity for run in every), sizes_of(every), strict=True))
    found = {}
    for region, runs in regions.runs.items():
        after = [sum(sizes[run.identity].connections for run in runs[place:]) for place in range(len(runs))]
        found[region] = sum(connections > RECENT for connections in after)
    return found


def names_in_use(
    regions: Regions, vocabulary: Vocabulary, reader: CommitReader
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which concepts and features of dictionaries the trained neurons of regions have."""
    used = results(submit_used_names(regions, reader))
    columns, features = (np.unique(np.concatenate([_NONE, *each])) for each in zip(*used, strict=True))
    if reader.manifest().specification.traits.columns:
        concepts = np.isin(np.arange(len(vocabulary.concepts)), columns)
        kept = np.isin(np.arange(len(vocabulary.features)), features)
    else:
        words = word_keys(vocabulary.features)
        concepts, kept = np.zeros(len(vocabulary.concepts), np.bool_), np.isin(words, features)
    kept[0] = True
    return concepts, kept


def select_names(vocabulary: Vocabulary, renaming: Renaming) -> Vocabulary:
    """Return the dictionaries with new identifiers, without the names that have none."""
    concepts, features = renaming.order()
    return Vocabulary(
        [vocabulary.concepts[concept] for concept in concepts],
        [vocabulary.features[feature] for feature in features],
        [vocabulary.delimiter[feature] for feature in features],
        [vocabulary.probable_since[feature] for feature in features],
    )


@takes_runs
def names_of_run(run: RegionRun | PackedRegionRun) -> UsedNames:
    """Return the columns and features of a run, those of targets too (a task)."""
    tables = [RowReader(table.read).names() for table in tasks.pack_run(run) if table is not None]
    columns, features = (np.unique(np.concatenate(each)) for each in zip(*tables, strict=True))
    return UsedNames(columns, features)


@takes_runs
def used_names(specification: Specification, run: RegionRun | PackedRegionRun) -> UsedNames:
    """Return the names that the counts of a run use (a task)."""
    return model_of(specification).find_used(run)
