"""The sum of runs against a plain dictionary."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from giaann_dask.errors import StoreDamagedError, StrengthOverflowError
from giaann_dask.keys import pack_target
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.packed_rows import ReadEntries
from giaann_dask.runs.packing import PackedRun, pack, pack_targets, unpack
from giaann_dask.runs.run import Run, RunSize, narrow_strength
from giaann_dask.runs.summing import count_added, count_added_neurons, count_union, sum_in_blocks

Plain = dict[tuple[int, int], int]

NARROWEST_WIDE = 1 << 31
KEYS = st.one_of(st.integers(0, 5), st.integers(0, (1 << 51) - 1))
# Many segments of few neurons, which the packed form stores as one mask of bits.
SAME_NEURONS = st.builds(
    lambda segment, neuron, branch: int(pack_target(segment, neuron, branch)),
    st.integers(0, 31),
    st.integers(0, 1),
    st.integers(0, 1),
)
TARGETS = st.one_of(st.integers(0, 9), SAME_NEURONS, st.integers(0, (1 << 63) - 1))
# A test adds at most 18 runs: 9, each of them twice. The sum of their strengths fits into 64 bits.
STRENGTHS = st.one_of(st.integers(1, 100), st.integers(1, NARROWEST_WIDE), st.integers(1, ((1 << 63) - 1) // 18))
PLAIN_RUNS = st.dictionaries(st.tuples(KEYS, TARGETS), STRENGTHS, max_size=40)


def to_run(plain: Plain) -> Run:
    """Build a run from a dictionary of (source, target) to strength; its arrays are read-only."""
    pairs = sorted(plain)
    source, counts = np.unique(np.array([s for s, _ in pairs], np.int64), return_counts=True)
    pointer = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    target = np.array([t for _, t in pairs], np.int64)
    strength = narrow_strength(np.array([plain[pair] for pair in pairs], np.int64))
    for array in (source, pointer, target, strength):
        array.flags.writeable = False
    return Run(source, pointer, target, strength)


def to_plain(run: Run) -> Plain:
    source = np.repeat(run.source, np.diff(run.pointer))
    pairs = zip(source.tolist(), run.target.tolist(), strict=True)
    return dict(zip(pairs, run.strength.tolist(), strict=True))


def added(plains: list[Plain]) -> Plain:
    total: Plain = {}
    for plain in plains:
        for pair, strength in plain.items():
            total[pair] = total.get(pair, 0) + strength
    return total


def entries_of(entries: Mapping[str, bytes]) -> ReadEntries:
    """Return what reads entries of a run, as from a store."""
    return lambda names: {name: entries[name] for name in names if name in entries}


def parts(run: Run) -> list[tuple[str, bytes]]:
    return [(str(a.dtype), a.tobytes()) for a in (run.source, run.pointer, run.target, run.strength)]


@given(st.lists(PLAIN_RUNS, max_size=9), st.integers(1, 40), st.integers(0, 9))
def test_blocks_are_the_sum_however_long_they_are(plains: list[Plain], block: int, packed: int) -> None:
    """Rows are never divided, forms of the runs do not matter, and the packed bytes are those of the whole sum."""
    runs: list[Run | PackedRun] = [to_run(plain) for plain in plains]
    forms = [pack(run) if number < packed else run for number, run in enumerate(runs) if isinstance(run, Run)]
    blocks = list(sum_in_blocks(forms, block=block))
    less = list(sum_in_blocks([*forms, *runs], forms, block=block))
    total = merge_runs(forms, block=block)
    expected = to_run(added(plains))
    assert parts(total) == parts(expected)
    assert np.concatenate([part.source for part in blocks]).tolist() == expected.source.tolist()
    longest = max(Counter(source for plain in plains for source, _ in plain).values(), default=0)
    assert all(part.connections < block + max(longest, 1) for part in blocks)
    assert pack_targets(blocks, 3).entries == pack_targets(less, 3).entries == pack(expected, 3).entries


def test_blocks_do_not_become_negative_or_too_large() -> None:
    one, other, huge = to_run({(1, 2): 3, (1, 4): 1}), to_run({(1, 2): 4, (1, 5): 1}), to_run({(1, 2): (1 << 63) - 4})
    with pytest.raises(StoreDamagedError, match="2 connections would have a negative strength"):
        list(sum_in_blocks([one], [pack(other)]))
    with pytest.raises(StrengthOverflowError, match="more than 64 bits"):
        list(sum_in_blocks([huge, other]))
    assert [len(block.source) for block in sum_in_blocks([one], [one])] == [0]


def test_damaged_runs_are_not_added() -> None:
    """Also those whose chunks are intact but contradict each other."""
    run, less = pack(to_run({(1, 2): 3, (1, 4): 1})), pack(to_run({(1, 2): 3}))
    for changed in (
        {**run.entries, "strength/c/0": b""},
        {**run.entries, "more": b""},
        {name: entry for name, entry in run.entries.items() if name != "row_targets/zarr.json"},
        {**run.entries, **{name: entry for name, entry in less.entries.items() if name.startswith("strength/")}},
        {**run.entries, **{name: entry for name, entry in less.entries.items() if name.startswith("row_targets/")}},
    ):
        with pytest.raises(StoreDamagedError):
            list(sum_in_blocks([PackedRun(changed, 1, 2, 0), less]))


def decoded(run: Run | PackedRun) -> Run:
    return unpack(run) if isinstance(run, PackedRun) else run


@given(st.lists(PLAIN_RUNS, max_size=7))
def test_sum_is_that_of_a_dictionary(plains: list[Plain]) -> None:
    runs = [to_run(plain) for plain in plains]
    before = [parts(run) for run in runs]
    total = merge_runs(runs)
    assert parts(total) == parts(to_run(added(plains)))
    assert to_plain(total) == added(plains)
    assert count_union([pack(run) for run in runs]) == len(total)
    assert [parts(run) for run in runs] == before


@given(st.lists(PLAIN_RUNS, max_size=4), st.lists(PLAIN_RUNS, max_size=3), st.sampled_from([1, 2, 7, 1000]))
def test_count_of_connections_added_to_stored_runs(plains: list[Plain], before: list[Plain], chunk: int) -> None:
    runs, stored = (
        [pack(to_run(plain)) for plain in plains],
        [entries_of(pack(to_run(p), chunk).entries) for p in before],
    )
    new, old = added(plains).keys(), added(before).keys()
    assert count_added(runs, stored) == len(new - old)
    assert count_added_neurons(runs, stored) == len({source for source, _ in new} - {source for source, _ in old})


def test_segments_of_the_same_neurons_are_counted_one_by_one() -> None:
    """All 32 segments of two neurons, half of them in both runs, of which every fourth source has one more."""
    first = {(source, int(pack_target(segment, 1, 0))): 1 for source in range(5) for segment in range(32)}
    second = {(source, int(pack_target(segment, neuron, 0))): 1 for source in (0, 2, 4) for segment in range(16, 32)
              for neuron in (1, 2)}  # fmt: skip
    runs = [pack(to_run(plain)) for plain in (first, second)]
    assert count_union(runs) == len(first.keys() | second.keys()) == 160 + 48
    for new, old, expected in ((0, 1, 160 - 48), (1, 0, 48)):
        stored = [entries_of(pack(to_run((first, second)[old])).entries)]
        assert count_added([runs[new]], stored) == expected


def test_sizes_of_a_run() -> None:
    run = to_run({(1, 2): 3, (1, 4): 1 << 40, (5, 0): 1})
    assert run.nbytes == sum(len(data) for _, data in parts(run)) == 8 * (2 + 3 + 3 + 3)
    assert RunSize(0, 0).empty
    assert not RunSize(0, 1).empty, "counts of profile contexts are not of neurons"
    assert not RunSize(1, 0).empty


def test_only_chunks_that_are_needed_are_read() -> None:
    """Of 100 rows in chunks of ten targets, those of two rows; damage elsewhere is not read."""
    plain = {(source, target): 1 for source in range(100) for target in range(10)}
    packed, new = pack(to_run(plain), 10), [pack(to_run({(17, 3): 1, (17, 11): 1, (60, 9): 2, (200, 1): 1}))]
    chunks = [name for name in packed.entries if name.startswith("target_") and "/c/" in name]
    needless = [name for name in chunks if int(name.rpartition("/")[2]) not in (17, 60)]
    assert len(needless) == len(chunks) - 8 > 300
    for name in chunks:
        read = entries_of({**packed.entries, name: b"damaged"})
        if name in needless:
            assert count_added(new, [read]) == 2
        else:
            with pytest.raises(StoreDamagedError, match="checksum"):
                count_added(new, [read])


@given(st.lists(PLAIN_RUNS, min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_any_order_and_grouping_gives_the_same_bytes(plains: list[Plain], random: object) -> None:
    assert hasattr(random, "shuffle")
    assert hasattr(random, "randrange")
    runs = [to_run(plain) for plain in plains]
    expected = parts(merge_runs(runs))
    random.shuffle(runs)
    while len(runs) > 1:
        size = random.randrange(2, len(runs) + 1)
        runs = [*runs[size:], merge_runs(runs[:size])]
    assert parts(runs[0]) == expected


@given(PLAIN_RUNS, PLAIN_RUNS, PLAIN_RUNS)
def test_associative_and_commutative(one: Plain, two: Plain, three: Plain) -> None:
    a, b, c = to_run(one), to_run(two), to_run(three)
    left = merge_runs([merge_runs([a, b]), c])
    right = merge_runs([a, merge_runs([b, c])])
    assert parts(left) == parts(right) == parts(merge_runs([c, b, a]))


def test_nothing_to_add() -> None:
    run = to_run({(1, 2): 3})
    assert merge_runs([run]) is run
    assert merge_runs([Run.empty(), run, Run.empty()]) is run
    assert parts(merge_runs([])) == parts(merge_runs([Run.empty()] * 3)) == parts(Run.empty())
    empty, packed = pack(Run.empty()), pack(run)
    assert count_union([]) == count_union([empty]) == 0
    assert count_union([packed]) == count_union([packed, packed, empty]) == count_union([packed] * 3) == 1


def test_strength_is_as_narrow_as_it_may_be() -> None:
    largest = np.iinfo(np.int32).max
    fits = merge_runs([to_run({(1, 2): largest - 1}), to_run({(1, 2): 1})])
    assert fits.strength.dtype == np.int32
    assert fits.strength.tolist() == [largest]
    wide = merge_runs([fits, to_run({(1, 2): 1})])
    assert wide.strength.dtype == np.int64
    assert wide.strength.tolist() == [largest + 1]
    assert merge_runs([wide, to_run({(1, 3): 1})]).strength.tolist() == [largest + 1, 1]


def test_overflow_is_refused_in_any_order() -> None:
    largest = np.iinfo(np.int64).max
    runs = [to_run({(1, 2): 5, (1, 9): 1}), to_run({(1, 2): largest - 9}), to_run({(1, 2): 5, (3, 3): 1})]
    for order in itertools.permutations(runs):
        with pytest.raises(StrengthOverflowError):
            merge_runs(order)
    assert merge_runs(runs[:2]).strength.tolist() == [largest - 4, 1]


def test_overflow_before_the_end_of_a_row_is_not_forgotten() -> None:
    huge = {(1, 2): np.iinfo(np.int64).max, **{(s, t): 1 for s in range(1, 4) for t in range(3, 9)}}
    with pytest.raises(StrengthOverflowError):
        merge_runs([to_run(huge), to_run(huge)])


def test_rows_of_one_side_and_of_both() -> None:
    rng = np.random.default_rng(3)
    plains: list[Plain] = []
    for part in range(4):
        sources, targets = rng.integers(0, 300, 5000) * (part + 1), rng.integers(0, 400, 5000)
        plains.append({(int(s), int(t)): part + 1 for s, t in zip(sources, targets, strict=True)})
    runs = [to_run(plain) for plain in plains]
    total = merge_runs(runs)
    assert to_plain(total) == added(plains)
    assert count_union([pack(run) for run in runs]) == len(total)


def test_unaligned_arrays_and_views() -> None:
    run = to_run({(s, t): s + t + 1 for s in range(5) for t in range(7)})
    raw = b"x" + run.target.tobytes()
    target = np.frombuffer(raw, np.int64, offset=1)
    assert not target.flags.aligned
    shifted = Run(run.source, run.pointer, target, run.strength)
    assert parts(merge_runs([shifted, run])) == parts(merge_runs([run, run]))


def test_result_keeps_no_larger_buffer_alive() -> None:
    run = to_run({(s, t): 1 << 40 for s in range(5) for t in range(7)})
    total = merge_runs([run, run])
    for array in (total.source, total.pointer, total.target, total.strength):
        base = array if array.base is None else array.base
        assert base.nbytes == array.nbytes


@examples(30)
@given(st.lists(st.tuples(PLAIN_RUNS, st.booleans()), min_size=1, max_size=5))
def test_runs_that_may_be_written_are_not(items: list[tuple[Plain, bool]]) -> None:
    runs = []
    for plain, writeable in items:
        run = to_run(plain)
        runs.append(Run(*(a.copy() for a in (run.source, run.pointer, run.target, run.strength))))
        runs[-1].target.flags.writeable = writeable
    before = [parts(run) for run in runs]
    merge_runs(runs)
    assert [parts(run) for run in runs] == before
