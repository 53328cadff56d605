"""Pack columns and features into neuron keys, and connections' targets into target keys.

A neuron key has 26 bits of column and 25 bits of feature. A target key has, from the top, 5 bits of segment, the
51 bits of the neuron key and 7 bits of branch: 63 bits, never negative. Sorting such keys sorts connections in the
order in which the engine reads them: the last segment of a row is a slice, and a candidate is found by bisection.
`giaann_dask.runs.run` has the tables of such keys. Models of words have hashes of words and of contexts instead of
columns and features.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from giaann_dask.spec import BRANCH_BITS, COLUMN_BITS, FEATURE_BITS, NEURON_BITS

Integers: TypeAlias = npt.NDArray[np.int64]

SEGMENT_SHIFT = NEURON_BITS + BRANCH_BITS

COLUMN_MASK = (1 << COLUMN_BITS) - 1
FEATURE_MASK = (1 << FEATURE_BITS) - 1
NEURON_MASK = (1 << NEURON_BITS) - 1
BRANCH_MASK = (1 << BRANCH_BITS) - 1


def pack_neuron(column: npt.ArrayLike, feature: npt.ArrayLike) -> Integers:
    """Pack columns and features into neuron keys.

    Parameters
    ----------
    column, feature : array_like of int
        Identifiers, broadcast against each other.

    Returns
    -------
    ndarray of int64
        ``column << 25 | feature``.

    Examples
    --------
    >>> unpack_neuron(pack_neuron([3], [7]))
    (array([3]), array([7]))
    """
    return (np.asarray(column, dtype=np.int64) << FEATURE_BITS) | np.asarray(feature, dtype=np.int64)


def unpack_neuron(neuron: npt.ArrayLike) -> tuple[Integers, Integers]:
    """Return the columns and the features of neuron keys, int64 each."""
    keys = np.asarray(neuron, dtype=np.int64)
    return keys >> FEATURE_BITS, keys & FEATURE_MASK


def column_of(neuron: int) -> int:
    """Return the column of one neuron key, without an array.

    Examples
    --------
    >>> column_of(3 << 25 | 7), feature_of(3 << 25 | 7)
    (3, 7)
    """
    return neuron >> FEATURE_BITS


def feature_of(neuron: int) -> int:
    """Return the feature of one neuron key, without an array; 0 is the prime concept neuron."""
    return neuron & FEATURE_MASK


def pack_target(segment: npt.ArrayLike, neuron: npt.ArrayLike, branch: npt.ArrayLike) -> Integers:
    """Pack segments, neuron keys and branches into target keys, int64."""
    high = (np.asarray(segment, dtype=np.int64) << NEURON_BITS) | np.asarray(neuron, dtype=np.int64)
    return (high << BRANCH_BITS) | np.asarray(branch, dtype=np.int64)


def unpack_target(target: npt.ArrayLike) -> tuple[Integers, Integers, Integers]:
    """Return the segments, neuron keys and branches of target keys, int64 each."""
    keys = np.asarray(target, dtype=np.int64)
    neuron = (keys >> BRANCH_BITS) & NEURON_MASK
    return keys >> SEGMENT_SHIFT, neuron, keys & BRANCH_MASK


def source_key(kind: int, parts: Sequence[Integers]) -> Integers:
    """Return the source keys of contexts of words.

    Parameters
    ----------
    kind : int
        Segment that the kind of context is counted on.
    parts : sequence of ndarray
        Keys of what each part of such contexts sees, int64, all of one shape.

    Returns
    -------
    ndarray
        int64, of that shape; of shape ``(1,)`` for a kind without parts.
    """
    key = _mixed(np.array([kind + 1], np.uint64)) if not parts else np.full(parts[0].shape, kind + 1, np.uint64)
    for part in parts:
        key = _mixed(key ^ part.astype(np.uint64))
    return (key >> np.uint64(64 - NEURON_BITS)).astype(np.int64)


def word_key(word: str) -> int:
    """Return the key of a word, 51 bits of a hash of its UTF-8 bytes."""
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") & NEURON_MASK


def encode_words(words: Sequence[str], errors: str = "surrogatepass") -> tuple[bytes, Integers]:
    """Return the UTF-8 bytes of all words, and where those of each end; int64.

    Parameters
    ----------
    words : sequence of str
        Any number of them.
    errors : str
        How half characters are encoded, as ``str.encode`` takes it.

    Examples
    --------
    >>> encoded, ends = encode_words(["a", "", "é"])
    >>> len(encoded), ends.tolist()
    (3, [1, 1, 3])
    """
    encoded = "".join(words).encode("utf-8", errors)
    # Every letter begins with one byte that is no continuation.
    begins = np.flatnonzero((np.frombuffer(encoded, np.uint8) & 0xC0) != 0x80)
    letters = np.cumsum(np.fromiter(map(len, words), np.int64, len(words)))
    return encoded, np.append(begins, len(encoded))[letters]


def word_keys(words: Sequence[str]) -> Integers:
    """Return the key of each of some words, as `word_key` does; int64."""
    encoded, ends = encode_words(words)
    edges = pairwise([0, *ends.tolist()])
    digests = b"".join([hashlib.blake2b(encoded[begin:end], digest_size=8).digest() for begin, end in edges])
    return np.frombuffer(digests, "<u8").astype(np.int64) & NEURON_MASK


def _mixed(key: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Spread the bits of keys over all 64 (the finaliser of SplitMix64)."""
    # Multiplication is meant to lose what does not fit.
    with np.errstate(over="ignore"):
        key = key * np.uint64(0x9E3779B97F4A7C15)
        key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = key ^ (key >> np.uint64(31))
    return mixed
