"""Summing sorted keys: the compiled pass, the torch operations and a plain dictionary agree."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from giaann_dask.increments.aggregation import KeyLayout, sum_connections, sum_on_device
from giaann_dask.keys import unpack_target

LAYOUT = KeyLayout(neuron_bits=3, segment_bits=3, branch_bits=1, distance_bits=4)
NEURONS = np.arange(8) * 1_000_003
INCREMENTS = np.arange(16) ** 3 * 7919
entries = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 7), st.integers(0, 1), st.integers(1, 15)),
    max_size=200,
)


@examples(200)
@given(found=entries)
def test_three_ways_agree(found: list[tuple[int, int, int, int, int]]) -> None:
    expected: dict[tuple[int, int, int, int], int] = {}
    keys = []
    for source, segment, target, branch, distance in found:
        key = (source << LAYOUT.source_shift) | (segment << LAYOUT.segment_shift)
        keys.append(key | (target << LAYOUT.target_shift) | (branch << LAYOUT.branch_shift) | distance)
        name = (source, segment, int(NEURONS[target]), branch)
        expected[name] = expected.get(name, 0) + int(INCREMENTS[distance])
    array = np.sort(np.array(keys, np.int64))
    compiled = sum_connections(array, NEURONS, INCREMENTS, LAYOUT)
    for ours, theirs in zip(compiled, sum_on_device(torch.from_numpy(array), NEURONS, INCREMENTS, LAYOUT), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.tolist() == theirs.tolist()
    source = np.repeat(compiled.source, np.diff(compiled.pointer)).tolist()
    segment, neuron, branch = (part.tolist() for part in unpack_target(compiled.target))
    names = list(zip(source, segment, neuron, branch, strict=True))
    assert dict(zip(names, compiled.strength.tolist(), strict=True)) == expected
    assert names == sorted(expected)
