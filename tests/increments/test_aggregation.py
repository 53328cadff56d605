"""Summing sorted keys: the torch operations and a plain dictionary agree."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from giaann_dask.increments.aggregation import KeyLayout, sum_on_device
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
def test_torch_sums_as_a_dictionary_does(found: list[tuple[int, int, int, int, int]]) -> None:
    expected: dict[tuple[int, int, int, int], int] = {}
    keys = []
    for source, segment, target, branch, distance in found:
        key = (source << LAYOUT.source_shift) | (segment << LAYOUT.segment_shift)
        keys.append(key | (target << LAYOUT.target_shift) | (branch << LAYOUT.branch_shift) | distance)
        name = (source, segment, int(NEURONS[target]), branch)
        expected[name] = expected.get(name, 0) + int(INCREMENTS[distance])
    array = np.sort(np.array(keys, np.int64))
    summed = sum_on_device(torch.from_numpy(array), NEURONS, INCREMENTS, LAYOUT)
    assert {part.dtype for part in summed} == {np.dtype(np.int64)}
    source = np.repeat(summed.source, np.diff(summed.pointer)).tolist()
    segment, neuron, branch = (part.tolist() for part in unpack_target(summed.target))
    names = list(zip(source, segment, neuron, branch, strict=True))
    assert dict(zip(names, summed.strength.tolist(), strict=True)) == expected
    assert names == sorted(expected)
