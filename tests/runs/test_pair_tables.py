"""Tables of pairs: joined, split and summed in any order and division, they are the sums of a plain dictionary."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

import giaann_dask.runs.pair_tables as module
from giaann_dask.errors import StrengthOverflowError
from giaann_dask.keys import unpack_target
from giaann_dask.runs import device_sums
from giaann_dask.runs.device_sums import sum_pairs_on
from giaann_dask.runs.packing import pack, unpack
from giaann_dask.runs.pair_tables import PairRegionRun, PairRule, PairTable, join_pairs, narrow_targets, pair_run
from giaann_dask.runs.run import Run
from giaann_dask.runs.target_sets import run_of_blocks
from giaann_dask.training.tasks import add_increments, compact, find_pivot, split

CPU = torch.device("cpu")
COLUMNS, FEATURES, REACH = 3, 4, 5
Pair = tuple[int, int, int, int, int]
# Source, target, branch, column segment (the last one is none) and distance.
pairs = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3), st.integers(0, COLUMNS), st.integers(1, 7))


def make_rule(tree: bool = False, largest: int = 1 << 20) -> PairRule:
    return PairRule(3, 3, 5, 7, COLUMNS, FEATURES, REACH, tree, largest // np.arange(1, 9))


def make_table(rule: PairRule, found: list[Pair], neurons: int = 10) -> PairTable:
    """Return the table of some pairs, whose targets are those of the last ten neurons of so many."""
    found = sorted(found, key=lambda pair: pair[0])
    source, rows = np.unique(np.array([pair[0] for pair in found], np.int64), return_counts=True)
    keys = [((neurons - 10 + t) << 7) | (b << 5) | (c << 3) | d for _, t, b, c, d in found]
    pointer = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
    return narrow_targets(rule, source, pointer, np.arange(10 - neurons, 10) * 1_000_003, np.array(keys, np.uint64))


def read_literally(rule: PairRule, found: list[Pair]) -> dict[tuple[int, ...], int]:
    sums: dict[tuple[int, ...], int] = {}
    for source, target, branch, column, distance in found:
        feature = COLUMNS + FEATURES - min(distance, FEATURES)
        segments = [*([column] if column < COLUMNS else []), *([feature] if distance <= REACH else [])]
        for segment in segments:
            place = segment if segment < COLUMNS else segment - COLUMNS
            key = (source, segment, target * 1_000_003, branch >> place if rule.tree else branch)
            sums[key] = sums.get(key, 0) + int(rule.increments[distance])
    return sums


def as_dictionary(run: Run) -> dict[tuple[int, ...], int]:
    source = np.repeat(run.source, np.diff(run.pointer))
    keys = zip(*(part.tolist() for part in (source, *unpack_target(run.target))), strict=True)
    return dict(zip(keys, run.strength.tolist(), strict=True))


@examples(60)
@given(
    parts=st.lists(st.lists(pairs, min_size=1, max_size=40), min_size=1, max_size=5),
    tree=st.booleans(),
    # Strengths of more than 32 bits, keys of more than 32 bits, and blocks and pieces of few rows.
    largest=st.sampled_from([1 << 20, 1 << 40]),
    neurons=st.sampled_from([10, 1 << 20]),
    sizes=st.sampled_from([(1 << 16, 1 << 9), (7, 2)]),
    pivot=st.integers(0, 10),
)
def test_sums_do_not_depend_on_how_pairs_are_divided(
    parts: list[list[Pair]], tree: bool, largest: int, neurons: int, sizes: tuple[int, int], pivot: int
) -> None:
    rule, none = make_rule(tree, largest), Run.empty()
    expected = read_literally(rule, [pair for part in parts for pair in part])
    with pytest.MonkeyPatch.context() as patch:
        for name, size in zip(("BLOCK", "_PIECE"), sizes, strict=True):
            patch.setattr(module, name, size)
        tables = [make_table(rule, part, neurons) for part in parts]
        whole = pair_run(tables)
        assert as_dictionary(whole) == expected
        assert whole.strength.dtype == (np.int32 if max(expected.values(), default=0) < 1 << 31 else np.int64)
        joined = join_pairs(tables)
        assert len(joined.neurons) == len({pair[1] for part in parts for pair in part})
        assert as_dictionary(pair_run([joined])) == expected
        runs = [PairRegionRun(table, none) for table in tables]
        assert compact(*runs).connections.entries == compact(add_increments(runs)).connections.entries
        # Beside runs that are summed and packed already, too.
        mixed = compact(*runs[1:], compact(runs[0]))
        assert as_dictionary(unpack(mixed.connections)) == expected
        if len(expected) == len(whole) and not tree:
            assert compact(*runs).connections.entries == pack(whole).entries
        place = find_pivot(*runs)
        # A single row is divided by target.
        assert (place is None) == (joined.rows < 2 and len(joined.neurons) < 2)
        for where in ((pivot, 0), (pivot, 5 * 1_000_003), place or (pivot, 0)):
            halves = [split(PairRegionRun(joined, none), *where, upper) for upper in (False, True)]
            low, high = (as_dictionary(pair_run([half.connections])) for half in halves)
            assert {**low, **high} == expected
            assert len(low) + len(high) == len(expected)
            assert place != where or all(half.connections.rows for half in halves)


def _is_written(pair: Pair) -> bool:
    """Return whether a pair is in reach of one of its segments."""
    return pair[3] < COLUMNS or pair[4] <= REACH


@examples(60)
@given(
    parts=st.lists(st.lists(pairs.filter(_is_written), min_size=1, max_size=40), min_size=1, max_size=5),
    tree=st.booleans(),
    # Strengths of more than 32 bits, and those of which as many as there are pairs might not fit into 64.
    largest=st.sampled_from([1 << 20, 1 << 40, 1 << 59]),
    # Tables with keys of 32 and of 64 bits, together, too.
    kinds=st.lists(st.sampled_from([np.uint32, np.uint64]), min_size=5, max_size=5),
    sizes=st.sampled_from([(1 << 24, 1 << 16), (7, 2)]),
)
def test_devices_sum_as_a_processor_does(
    parts: list[list[Pair]],
    tree: bool,
    largest: int,
    kinds: list[type[np.unsignedinteger[Any]]],
    sizes: tuple[int, int],
) -> None:
    narrow = [make_table(make_rule(tree, largest), part) for part in parts]
    tables = [dataclasses.replace(one, keys=one.keys.astype(kind)) for one, kind in zip(narrow, kinds, strict=False)]
    runs = [PairRegionRun(table, Run.empty()) for table in tables]
    try:
        expected = compact(*runs)
    except StrengthOverflowError:
        with pytest.raises(StrengthOverflowError):
            sum_pairs_on(CPU, tables)
        return
    with pytest.MonkeyPatch.context() as patch:
        for name, size in zip(("_PIECE", "BLOCK"), sizes, strict=True):
            patch.setattr(device_sums, name, size)
        sums = sum_pairs_on(CPU, tables)
        assert compact(*runs, sums=sums).connections.entries == expected.connections.entries
        whole, same = pair_run(tables), run_of_blocks(list(sums.blocks()))
    for field in dataclasses.fields(Run):
        assert getattr(whole, field.name).dtype == getattr(same, field.name).dtype
        assert getattr(whole, field.name).tobytes() == getattr(same, field.name).tobytes()
    # Beside runs that are summed and packed already, too.
    first, *rest = runs
    mixed = compact(first, compact(*rest) if rest else first, sums=sum_pairs_on(CPU, tables[:1] * (1 + (not rest))))
    assert mixed.connections.entries == compact(*(runs if rest else runs * 2)).connections.entries


def test_a_device_sums_a_region_without_pairs() -> None:
    table = make_table(make_rule(), [(1, 2, 0, 0, 1)]).split(0, upper=False)
    assert len(run_of_blocks(list(sum_pairs_on(CPU, [table]).blocks()))) == 0 == table.rows


@pytest.mark.parametrize("summed", [pair_run, partial(sum_pairs_on, CPU)])
def test_a_sum_that_does_not_fit_is_an_error(summed: Callable[[list[PairTable]], object]) -> None:
    # Eight times as much wraps to 0, and twelve times to what looks like a sum that fits.
    table = make_table(make_rule(largest=1 << 62), [(1, 2, 0, 0, 1)] * 12)
    with pytest.raises(StrengthOverflowError, match="64 bits"):
        summed([table])
