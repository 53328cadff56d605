"""Placement of neurons in regions: tables, splits, and the assignment of regions to workers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from giaann_dask.cluster import Roles, WorkerMemory, assign_regions
from giaann_dask.keys import pack_neuron, pack_target, unpack_neuron
from giaann_dask.runs.column_placement import ColumnUsage, place_columns
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.packing import PackedRegionRun, pack
from giaann_dask.runs.pair_tables import PairRegionRun, PairRule, PairTable, pair_run
from giaann_dask.runs.placement import (
    UNASSIGNED,
    Placement,
    choose_pivot,
    choose_target,
    row_weights,
    split_packed,
    split_run,
)
from giaann_dask.runs.postings import Postings, make_postings, read_postings
from giaann_dask.runs.run import RegionRun, Run
from giaann_dask.spec import PlacementKind
from giaann_dask.training.tasks import AnyRun, decode, divide_at_targets

neurons = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40)), min_size=1, max_size=40).map(
    lambda pairs: np.unique(pack_neuron([c for c, _ in pairs], [f for _, f in pairs]))
)


def naive_region(placement: Placement, neuron: int, target: int = 0) -> int:
    """Follow the splits one by one."""
    column = int(unpack_neuron(neuron)[0])
    region = int(placement.first_regions_of([column])[0])
    for number, split in enumerate(placement.splits):
        if split.region == region:
            region = placement.first_regions + 2 * number + int((neuron, target) >= (split.pivot, split.target))
    return region


@given(data=st.data(), keys=neurons, first=st.integers(1, 4))
def test_splits_are_followed(data: st.DataObject, keys: np.ndarray, first: int) -> None:
    placement = Placement(first, np.array([0, UNASSIGNED, first - 1], np.int32))
    for _ in range(data.draw(st.integers(0, 6))):
        region = data.draw(st.sampled_from(placement.live()))
        inside = [int(key) for key in keys if naive_region(placement, key) == region]
        if len(inside) > 1:
            placement = placement.split(region, data.draw(st.sampled_from(inside[1:])))
    found = placement.regions_of(keys)
    assert found.tolist() == [naive_region(placement, key) for key in keys]
    assert set(found.tolist()) <= set(placement.live())
    assert len(placement.live()) == first + len(placement.splits)
    assert placement.region_of(int(keys[0])) == found[0]
    for column in np.unique(unpack_neuron(keys)[0]).tolist():
        ends = pack_neuron([column, column + 1], 0).tolist()
        begins = [ends[0], *sorted(split.pivot for split in placement.splits if ends[0] < split.pivot < ends[1])]
        # Every region begins in the column at its first key or at a pivot.
        expected = dict.fromkeys(naive_region(placement, key) for key in begins)
        assert placement.regions_of_column(column) == tuple(expected)


POINTS = st.sets(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 6)), min_size=1, max_size=40)
RULE = PairRule(3, 3, 5, 6, 2, 2, 4, False, np.arange(1, 9))


def tables_of(points: list[tuple[int, int]]) -> tuple[PairTable, Run]:
    """Connections of neurons to targets as pairs, two of each, and their sum."""
    neuron, target = np.array(points).T
    source, lengths = np.unique(neuron, return_counts=True)
    known, place = np.unique(target, return_inverse=True)
    keys = (np.repeat(place, 2) << RULE.target_shift | np.tile([1, 2], len(place))).astype(np.uint32)
    table = PairTable(RULE, source, np.concatenate([[0], np.cumsum(2 * lengths)]), known, keys)
    return table, pair_run([table])


def postings_of(neurons: np.ndarray, sequences: np.ndarray) -> Run:
    """Places of neurons, of which each is in all of some sequences."""
    sequence = np.tile(sequences, len(neurons))
    return make_postings(np.repeat(neurons, len(sequences)), Postings(sequence, sequence % 7, sequence * 0))


def connections_of(run: Run) -> list[tuple[int, ...]]:
    source = np.repeat(run.source, np.diff(run.pointer))
    return list(zip(source.tolist(), run.target.tolist(), run.strength.tolist(), strict=True))


@examples(40)
@given(data=st.data(), points=POINTS, first=st.integers(1, 3))
def test_giant_rows_are_divided_by_target(data: st.DataObject, points: set[tuple[int, int, int]], first: int) -> None:
    """Any splits, at neurons and at targets: every form of a run is divided as the splits say, one by one."""
    placement = Placement(first)
    ends = sorted((int(pack_neuron(column, feature)), target) for column, feature, target in points)
    for _ in range(data.draw(st.integers(0, 6))):
        region = data.draw(st.sampled_from(placement.live()))
        inside = [end for end in ends if naive_region(placement, *end) == region]
        if len(inside) > 1:
            before, (neuron, target) = data.draw(st.sampled_from(list(pairwise(inside))))
            within = before[0] == neuron or data.draw(st.booleans())
            placement = placement.split(region, neuron, target if within else 0)
    neurons = np.unique([neuron for neuron, _ in ends])
    assert placement.regions_of(neurons).tolist() == [naive_region(placement, key) for key in neurons.tolist()]
    group_of = {region: group for group in placement.groups() for region in group}
    assert sorted(group_of) == list(placement.live())
    assert placement.groups_of(neurons).tolist() == [
        group_of[region][0] for region in placement.regions_of(neurons).tolist()
    ]
    for neuron in neurons.tolist():
        regions = dict.fromkeys(naive_region(placement, neuron, target) for target in range(8))
        assert placement.divided().get(neuron, (placement.region_of(neuron),)) == tuple(regions)
        assert set(regions) <= set(group_of[placement.region_of(neuron)])
        assert set(regions) <= set(placement.regions_of_column(int(unpack_neuron(neuron)[0])))
    own: dict[int, list[tuple[int, int]]] = {}
    for end in ends:
        own.setdefault(placement.region_of(end[0]), []).append(end)
    tables, run = {region: tables_of(its) for region, its in own.items()}, tables_of(ends)[1]
    # Each neuron is in so many sequences.
    sequences = np.arange(40) << 10
    postings = {region: postings_of(its.source, sequences) for region, (_, its) in tables.items()}
    parts_of = placement.sequence_parts()
    assert parts_of.keys() == placement.divided().keys()
    forms: tuple[Callable[[PairTable, Run, Run], AnyRun], ...] = (
        lambda _, its, places: RegionRun(its, its, places),
        lambda _, its, places: PackedRegionRun(pack(its), pack(its), pack(places, gaps=True)),
        lambda pairs, its, places: PairRegionRun(pairs, its, places),
    )
    for form in forms:
        runs = {region: form(*both, postings[region]) for region, both in tables.items()}
        divided = {region: decode(part) for region, part in divide_at_targets(runs, placement).items()}
        for region, part in divided.items():
            for source, target, _ in connections_of(part.connections):
                assert naive_region(placement, source, target >> 7 & (1 << 51) - 1) == region
            assert set(placement.regions_of(part.neurons.source).tolist()) <= {region}, "all else is in its own region"
            assert part.postings is not None
            for source in part.postings.source.tolist():
                row = part.postings.row(source)
                assert row is not None
                found = read_postings(row.target, row.strength).sequence
                if source in parts_of:
                    assert parts_of[source][region].has(found).all()
                else:
                    assert placement.region_of(source) == region
        every = [part.postings for part in divided.values() if part.postings is not None]
        assert connections_of(merge_runs(every)) == connections_of(postings_of(run.source, sequences))
        assert sum(map(len, every)) == len(run.source) * len(sequences), "each once"
        for tables_of_one in zip(*(part[:2] for part in divided.values()), strict=True):
            assert connections_of(merge_runs(tables_of_one)) == connections_of(run)
            assert sum(map(len, tables_of_one)) == len(run), "each once"


@given(st.lists(st.integers(0, 5), max_size=12))
def test_a_target_leaves_connections_on_both_sides(targets: list[int]) -> None:
    found = choose_target(np.array(targets, np.int64))
    assert (found is None) == (len(set(targets)) < 2)
    assert found is None or min(targets) < found <= max(targets)


def make_run(keys: np.ndarray, sizes: list[int]) -> Run:
    pointer = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    target = np.concatenate([np.arange(size) for size in sizes] or [[]]).astype(np.int64)
    return Run(keys, pointer, target, np.arange(1, len(target) + 1, dtype=np.int32))


@given(data=st.data(), keys=neurons)
def test_the_parts_of_a_run_are_the_run(data: st.DataObject, keys: np.ndarray) -> None:
    run = make_run(keys, data.draw(st.lists(st.integers(1, 5), min_size=len(keys), max_size=len(keys))))
    pivot = data.draw(st.sampled_from([int(key) for key in keys])) + data.draw(st.integers(0, 1))
    low, high = (split_run(run, pivot, upper) for upper in (False, True))
    assert (low.source < pivot).all()
    assert (high.source >= pivot).all()
    whole = merge_runs([low, high])
    for name in ("source", "pointer", "target", "strength"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(run, name))


connections = st.dictionaries(
    st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 9), st.integers(0, 1)),
    st.sampled_from([1, 7, 1 << 40]),
    max_size=60,
)


@given(connections, st.integers(0, 4), st.integers(0, 9), st.booleans(), st.integers(1, 5))
def test_a_packed_run_is_split_as_a_decoded_one(
    strengths: dict[tuple[int, int, int, int], int], pivot: int, target: int, gaps: bool, chunk: int
) -> None:
    found = sorted((source, int(pack_target(*end)), strengths[source, *end]) for source, *end in strengths)
    columns = np.array(found, np.int64).reshape(-1, 3).T
    source, counts = np.unique(columns[0], return_counts=True)
    pointer = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    run = Run(source, pointer, columns[1], columns[2])
    for upper in (False, True):
        part = split_packed(pack(run, chunk, gaps=gaps), pivot, upper, target)
        expected = split_run(run, pivot, upper, target)
        assert part.entries == pack(expected if expected.rows else Run.empty(), gaps=gaps).entries


@given(data=st.data(), keys=neurons)
def test_a_pivot_leaves_something_on_both_sides(data: st.DataObject, keys: np.ndarray) -> None:
    sizes = data.draw(st.lists(st.integers(1, 50), min_size=len(keys), max_size=len(keys)))
    pivot = choose_pivot([row_weights(make_run(keys, sizes)), row_weights(make_run(keys[:1], [3]))])
    if len(keys) == 1:
        assert pivot is None
    else:
        assert keys[0] < pivot <= keys[-1]


def test_regions_are_divided_between_columns_and_giant_columns_by_feature() -> None:
    even = pack_neuron([0, 0, 1, 2, 3], [0, 1, 0, 0, 0])
    assert choose_pivot([row_weights(make_run(even, [10, 10, 20, 20, 20]))]) == pack_neuron(2, 0)
    giant = pack_neuron([0, 5, 5, 5, 5, 9], [0, 0, 1, 2, 3, 0])
    assert choose_pivot([row_weights(make_run(giant, [1, 30, 30, 30, 30, 1]))]) == pack_neuron(5, 2)


def test_packed_runs_weigh_their_distinct_targets() -> None:
    run = make_run(pack_neuron([1, 2], [0, 3]), [4, 2])
    source, weight = row_weights(pack(run))
    np.testing.assert_array_equal(source, run.source)
    assert weight.tolist() == [4, 2]


def usage(pairs: dict[int, int], edges: dict[tuple[int, int], int] | None = None) -> ColumnUsage:
    edges = edges or {}
    return ColumnUsage(
        np.array(sorted(pairs), np.int64),
        np.array([pairs[c] for c in sorted(pairs)], np.int64),
        np.array([a << 26 | b for a, b in sorted(edges)], np.int64),
        np.array([edges[e] for e in sorted(edges)], np.int64),
    )


def test_hash_placement_has_nothing_to_choose() -> None:
    placement = Placement(4)
    assert place_columns(placement, [usage({3: 5})], "hash") is placement


def test_balanced_placement_evens_out_what_the_hash_leaves_to_chance() -> None:
    weights = {c: int(1e6 / (c + 1)) for c in range(2000)}
    placement = place_columns(Placement(8), [usage(weights)], "balanced")
    load = np.bincount(placement.assigned, list(weights.values()))
    np.testing.assert_array_equal(placement.load, load)
    assert load.max() < 1.01 * load.mean()
    hashed = np.bincount(Placement(8).first_regions_of(np.arange(2000)), list(weights.values()))
    assert hashed.max() > 1.2 * hashed.mean()


def test_columns_that_occur_together_share_a_region() -> None:
    # Eight themes of 20 columns; each column occurs with those of its theme.
    pairs, edges = {}, {}
    for column in range(160):
        pairs[column] = 100
        for other in range(column + 1, 160):
            if column % 8 == other % 8:
                edges[column, other] = 3
    placement = place_columns(Placement(4), [usage(pairs, edges)], "co-occurrence")
    together = [placement.assigned[a] == placement.assigned[b] for a, b in edges]
    assert np.mean(together) > 0.9
    assert placement.load.max() <= 1.2 * placement.load.mean()


@examples(50)
@given(data=st.data(), kind=st.sampled_from(["balanced", "co-occurrence"]))
def test_a_column_stays_where_it_is(data: st.DataObject, kind: PlacementKind) -> None:
    def draw() -> ColumnUsage:
        pairs = data.draw(st.dictionaries(st.integers(0, 20), st.integers(0, 9), min_size=1))
        edge = st.tuples(st.sampled_from(sorted(pairs)), st.sampled_from(sorted(pairs)))
        return usage(pairs, data.draw(st.dictionaries(edge.filter(lambda e: e[0] < e[1]), st.integers(1, 3))))

    first, second = draw(), draw()
    before = place_columns(Placement(3), [first], kind)
    after = place_columns(before, [second], kind)
    assigned = before.assigned != UNASSIGNED
    np.testing.assert_array_equal(after.assigned[: len(before.assigned)][assigned], before.assigned[assigned])
    assert (after.assigned[second.column] != UNASSIGNED).all()
    assert after.load.sum() == first.pairs.sum() + second.pairs.sum()


def roles(**gigabytes: int) -> Roles:
    memory = {name: WorkerMemory(limit=(g + 1) << 30, process=1 << 30) for name, g in gigabytes.items()}
    return Roles(tuple(gigabytes), (), frozenset(), memory)


def test_regions_are_assigned_by_free_memory() -> None:
    owners = assign_regions({}, dict.fromkeys(range(12), 0), roles(small=4, large=8))
    assert sorted(owners.values()).count("large") == 8


def test_regions_stay_and_few_move() -> None:
    weights = dict.fromkeys(range(12), 1)
    owners = assign_regions({}, weights, roles(a=4, b=4))
    assert assign_regions(owners, weights, roles(a=4, b=4)) == owners
    more = assign_regions(owners, weights, roles(a=4, b=4, c=4))
    assert sum(more[r] != owners[r] for r in weights) == 4
    assert sorted(more.values()) == ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    lost = assign_regions(more, weights, roles(b=4, c=4))
    assert all(lost[r] == more[r] for r in weights if more[r] != "a")
    assert set(lost.values()) == {"b", "c"}


@pytest.mark.parametrize("count", [1, 5, 64])
def test_workers_without_limits_share_evenly(count: int) -> None:
    owners = assign_regions({}, dict.fromkeys(range(count), 7), Roles(("a", "b", "c"), ()))
    shares = [sum(owner == name for owner in owners.values()) for name in "abc"]
    assert max(shares) - min(shares) <= 1
    assert assign_regions({}, {1: 1}, Roles((), ())) == {}
