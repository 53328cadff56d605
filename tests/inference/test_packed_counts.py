"""Counts packed into bits: the rows that were packed, number by number, whatever their lengths and counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from giaann_dask.errors import StoreDamagedError
from giaann_dask.keys import Integers
from giaann_dask.models.contexts.context_rows import Rows
from giaann_dask.models.contexts.kinds import CHAIN, CONTEXTS
from giaann_dask.models.contexts.packed_counts import MOST_COUNT, PackedCounts, code_lengths
from giaann_dask.models.words.stream import NONE
from giaann_dask.spec import NEURON_BITS


def random_rows(rng: np.random.Generator, rows: int, longest: int) -> Rows:
    """Return rows of random keys, lengths, words and counts, small ones and large ones."""
    keys = np.unique(rng.integers(0, 1 << NEURON_BITS, rows))
    lengths = np.minimum(rng.zipf(1.5, len(keys)), longest)
    words = [np.sort(rng.choice(3 * longest, length, replace=False)) for length in lengths.tolist()]
    counts = np.minimum(rng.zipf(1.3, int(lengths.sum())), MOST_COUNT)
    pointer = np.append(0, np.cumsum(lengths))
    return Rows(keys, pointer, np.concatenate([np.zeros(0, np.int64), *words]).astype(np.int32), counts)


def require_same(found: Rows, expected: Rows) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.tolist()) == (other.dtype, other.tolist())


@examples(30)
@given(st.integers(0, 1 << 32), st.sampled_from([0, 1, 7, 300]), st.sampled_from([1, 40, 2000]))
def test_rows_are_those_that_were_packed(seed: int, rows: int, longest: int) -> None:
    rng = np.random.default_rng(seed)
    contexts = [random_rows(rng, rows if kind % 2 else rows // 3, longest) for kind in range(1, len(CONTEXTS))]
    # No longer contexts than counts, as a word that was counted once after a context came after one.
    links = [each._replace(counts=rng.integers(1, each.counts + 1)) for each in contexts[: CHAIN - 1]]
    packed = PackedCounts.pack(contexts, [*links, contexts[CHAIN - 1]])
    for kind, expected in enumerate(contexts, 1):
        others: Integers = rng.integers(0, 1 << NEURON_BITS, 50)
        wanted = np.unique(np.concatenate([[-1], expected.keys, others[~np.isin(others, expected.keys)]]))
        found, longer, row_of = packed.rows(kind, wanted)
        require_same(found, expected)
        assert row_of.tolist() == [
            expected.keys.tolist().index(key) if key in expected.keys else NONE for key in wanted
        ]
        assert longer.tolist() == (links[kind - 1].counts if kind < CHAIN else expected.counts).tolist()
        if len(expected.keys):
            row = int(rng.integers(len(expected.keys)))
            entries = slice(int(expected.pointer[row]), int(expected.pointer[row + 1]))
            one, _, _ = packed.rows(kind, expected.keys[row : row + 1])
            assert (one.word.tolist(), one.counts.tolist()) == (
                expected.word[entries].tolist(),
                expected.counts[entries].tolist(),
            )


def test_codes_are_short_and_can_be_told_apart() -> None:
    lengths = code_lengths(np.array([2**at for at in range(30)]))
    assert int(lengths.max()) < 12
    assert float((0.5 ** lengths.astype(float)).sum()) <= 1


def test_counts_that_cannot_be_are_refused() -> None:
    rng = np.random.default_rng(1)
    contexts = [random_rows(rng, 5, 3) for _ in range(1, len(CONTEXTS))]
    for count in (0, MOST_COUNT + 1):
        forged = contexts[4]._replace(counts=np.full(len(contexts[4].word), count))
        with pytest.raises(StoreDamagedError, match=str(count)):
            PackedCounts.pack([*contexts[:4], forged, *contexts[5:]], contexts[:CHAIN])
