"""Compare two networks, or two commits of one: which connections are new, gone, stronger and weaker.

Names are compared, not numbers, so that networks with other dictionaries and regions can be compared. The workers of a
cluster compare region by region and return counts and the largest changes only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from distributed import Client, Future

from giaann_dask.algebra.parts import require_same_rules, submit_parts
from giaann_dask.cluster import attempt, results, task_key
from giaann_dask.errors import require_option
from giaann_dask.events import Observer, StageAdvanced, ignore
from giaann_dask.keys import Integers, unpack_target
from giaann_dask.models import model_of
from giaann_dask.models.base import ConnectionNames
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.packing import PackedRegionRun
from giaann_dask.runs.renaming import Renaming, append_names
from giaann_dask.runs.run import Run
from giaann_dask.store.commits import CommitReader

if TYPE_CHECKING:
    import pandas as pd

KINDS = ("new", "gone", "stronger", "weaker")
_GONE, _NEW, _BOTH = 1, 2, 3


class ChangedConnection(NamedTuple):
    """One connection that differs.

    Attributes
    ----------
    kind : {"new", "gone", "stronger", "weaker"}
        How it differs.
    source, target : str
        Names of the neurons, as ``column/feature``; in models of words the kind of the context with its word,
        or with its key where it has several, and the word.
    segment, branch : int
        Where the target receives it.
    change : float
        Strength in the second network minus strength in the first one; counts in models of words.
    """

    kind: str
    source: str
    target: str
    segment: int
    branch: int
    change: float


class ChangedPrediction(NamedTuple):
    """Prompt that two networks continue differently.

    Attributes
    ----------
    prompt, old, new : str
        The prompt, and its continuation by each of them.
    """

    prompt: str
    old: str
    new: str


@dataclass(frozen=True)
class NetworkDifference:
    """Difference of two networks.

    Attributes
    ----------
    old, new : str
        Path and commit of each.
    columns, features : dict of str to int
        Names that are ``new`` and ``gone`` in the dictionaries.
    connections : dict of str to int
        Connections that are ``new``, ``gone``, ``stronger``, ``weaker`` and ``equal``.
    largest : tuple of ChangedConnection
        Those with the largest changes of each kind, the largest first.
    prompts : int
        Prompts that both networks have continued.
    predictions : tuple of ChangedPrediction
        Those that they continue differently, in the order in which they were given.
    """

    old: str
    new: str
    columns: dict[str, int]
    features: dict[str, int]
    connections: dict[str, int]
    largest: tuple[ChangedConnection, ...]
    prompts: int = 0
    predictions: tuple[ChangedPrediction, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the connections are the same."""
        return not any(self.connections[kind] for kind in KINDS)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        rows = {name: [each._asdict() for each in getattr(self, name)] for name in ("largest", "predictions")}
        return {**vars(self), **rows}

    def to_pandas(self) -> pd.DataFrame:
        """Return the largest changes as a data frame with a row for each connection."""
        from giaann_dask.lazy import import_optional

        return import_optional("pandas", "dataframe").DataFrame(self.largest, columns=ChangedConnection._fields)


class RegionDifference(NamedTuple):
    """Difference of a region: counts in the order of `KINDS` and of equal ones, and the largest changes.

    Attributes
    ----------
    counts : tuple of int
        Five counts.
    kind, source, target, change : ndarray
        Place in `KINDS`, neuron key, target key and change in strength units of each of the largest changes; int64.
    """

    counts: tuple[int, ...]
    kind: Integers
    source: Integers
    target: Integers
    change: Integers


@attempt()
def compare_networks(
    client: Client, old: CommitReader, new: CommitReader, *, largest: int = 10, observer: Observer = ignore
) -> NetworkDifference:
    """Compare two networks of the same specification.

    Parameters
    ----------
    client : Client
        Where regions are compared.
    old, new : CommitReader
        The networks, or two commits of one.
    largest : int
        Number of connections of each kind to list.
    observer : callable, optional
        Notified of every region.

    Raises
    ------
    SpecificationError
        If the networks do not count alike.
    OptionError
        If the number of named connections is none.
    """
    require_option(type(largest) is int and largest >= 0, "largest", largest, "a whole number, 0 or more")
    require_same_rules(old, new)
    whole, specification = old.vocabulary(), old.manifest().specification
    model = model_of(specification)
    before = len(whole.concepts), len(whole.features)
    renaming = append_names(whole, new.vocabulary())
    tasks = _submit_differences(client, old, new, renaming if specification.traits.columns else None, largest)
    found: list[RegionDifference] = []
    for done, task in enumerate(tasks, 1):
        found.extend(results([task]))
        observer(StageAdvanced("compare", done, len(tasks), "regions"))
    # Names of the old network that the new one lacks are those that none of its names was mapped to.
    columns, features = (
        {"new": len(names) - count, "gone": count - int(np.count_nonzero(np.unique(ids) < count))}
        for names, count, ids in (
            (whole.concepts, before[0], renaming.concepts),
            (whole.features, before[1], renaming.features),
        )
    )
    counts = np.sum([[0] * (len(KINDS) + 1), *map(list, (each.counts for each in found))], axis=0).tolist()
    return NetworkDifference(
        old=f"{old.path}@{old.commit}",
        new=f"{new.path}@{new.commit}",
        columns=columns,
        features=features,
        connections=dict(zip((*KINDS, "equal"), counts, strict=True)),
        largest=tuple(_named(found, largest, model.names(specification, whole), specification.strength_unit)),
    )


def _submit_differences(
    client: Client, old: CommitReader, new: CommitReader, renaming: Renaming | None, largest: int
) -> list[Future]:
    """Submit tasks that compare the regions of two networks; runs stay in memory until these have read them."""
    placement, specification = old.placement(), old.manifest().specification
    # Of counts that the others imply none is named.
    unnamed = model_of(specification).implied_segment
    olds, news = submit_parts(client, old, placement), submit_parts(client, new, placement, renaming)
    tasks = []
    for region in sorted({*olds, *news}):
        runs = [*olds.get(region, []), *news.get(region, [])]
        key = task_key("compare", len(olds.get(region, [])), largest, unnamed, [run.key for run in runs])
        tasks.append(client.submit(compare_region, len(olds.get(region, [])), largest, unnamed, *runs, key=key))
    return tasks


def compare_region(olds: int, largest: int, unnamed: int, *runs: PackedRegionRun) -> RegionDifference:
    """Compare the sum of the first runs of a region with the sum of the others (a task).

    Parameters
    ----------
    olds : int
        How many of the runs come first.
    largest : int
        How many changes of each kind are named.
    unnamed : int
        Segment whose connections are counted and never named.
    *runs : PackedRegionRun
        The runs.
    """
    old, new = (merge_runs([run.connections for run in part]) for part in (runs[:olds], runs[olds:]))
    # The union of both, first with which of them has each connection, then with the change of its strength.
    has = merge_runs([_weighed(old, np.full(len(old), _GONE)), _weighed(new, np.full(len(new), _NEW))])
    changed = merge_runs([_weighed(old, -old.strength.astype(np.int64)), _weighed(new, new.strength)])
    if not len(has):
        none = np.zeros(0, np.int64)
        return RegionDifference((0,) * (len(KINDS) + 1), none, none, none, none)
    change = changed.strength.astype(np.int64)
    both = has.strength == _BOTH
    masks = (has.strength == _NEW, has.strength == _GONE, both & (change > 0), both & (change < 0))
    counts = [int(mask.sum()) for mask in masks]
    source = np.repeat(has.source, np.diff(has.pointer))
    named = unpack_target(has.target)[0] != unnamed
    chosen = [_largest(np.flatnonzero(mask & named), change, largest) for mask in masks]
    at = np.concatenate(chosen)
    kind = np.repeat(np.arange(len(KINDS)), [len(each) for each in chosen])
    return RegionDifference((*counts, len(has) - sum(counts)), kind, source[at], has.target[at], change[at])


def _weighed(run: Run, strength: Any) -> Run:
    return replace(run, strength=np.asarray(strength, np.int64))


def _largest(places: Integers, change: Integers, count: int) -> Integers:
    """Return the places with the largest changes, the largest first."""
    size = np.abs(change[places])
    if len(places) > count:
        if not count:
            return places[:0]
        # Of equal changes the first ones, so that the choice does not depend on the direction of the comparison.
        least = -np.partition(-size, count - 1)[count - 1]
        above, equal = np.flatnonzero(size > least), np.flatnonzero(size == least)
        chosen = np.concatenate([above, equal[: count - len(above)]])
        places, size = places[chosen], size[chosen]
    return places[np.lexsort((places, -size))]


def _named(
    found: Sequence[RegionDifference], largest: int, names: ConnectionNames, unit: int
) -> list[ChangedConnection]:
    """Return the largest changes of all regions by name."""
    kind, source, target, change = (
        np.concatenate([np.zeros(0, np.int64), *(getattr(each, field) for each in found)])
        for field in ("kind", "source", "target", "change")
    )
    # Strengths as sums, before any limit of the specification.
    named = []
    for place, name in enumerate(KINDS):
        at = np.flatnonzero(kind == place)
        for each in at[np.lexsort((target[at], source[at], -np.abs(change[at])))][:largest].tolist():
            segment, neuron, branch = (int(part) for part in unpack_target(target[each]))
            of_source, of_target = names.source(segment, int(source[each])), names.target(neuron)
            named.append(ChangedConnection(name, of_source, of_target, segment, branch, int(change[each]) / unit))
    return named
