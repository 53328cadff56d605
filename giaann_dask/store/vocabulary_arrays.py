"""Read and append the dictionaries of a network in its Zarr group.

New entries are appended and changed flags rewritten; `giaann_dask.text.vocabulary` defines what they mean.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import zarr

from giaann_dask.storage import append_values, create_array, read_array
from giaann_dask.text.strings import append_strings, read_strings
from giaann_dask.text.vocabulary import Vocabulary

# Of subwords alone: since when each is known as a delimiter.
_DELIMITER_SINCE = "delimiter_since"


def write_vocabulary(root: zarr.Group, vocabulary: Vocabulary, concepts: int, features: int) -> None:
    """Append what a vocabulary has beyond the stored sizes; old features may have new flags.

    Parameters
    ----------
    root : zarr.Group
        Of the network.
    vocabulary : Vocabulary
        As of the commit.
    concepts, features : int
        Stored sizes.
    """
    append_strings(root, "concepts", vocabulary.concepts[concepts:])
    append_strings(root, "features", vocabulary.features[features:])
    delimiter = np.array(vocabulary.delimiter, np.bool_)
    append_values(root, "delimiter", delimiter[features:])
    since = np.array(vocabulary.probable_since, np.int64)
    append_values(root, "probable_since", since[features:])
    rewrite_changed(root, "probable_since", since)
    if vocabulary.delimiter_since is None:
        return
    later = np.array(vocabulary.delimiter_since, np.int64)
    if _DELIMITER_SINCE in root:
        rewrite_changed(root, "delimiter", delimiter)
        rewrite_changed(root, _DELIMITER_SINCE, later)
    else:
        create_array(root, _DELIMITER_SINCE, later)


def read_vocabulary(root: zarr.Group, sequences: int) -> Vocabulary:
    """Return the stored dictionaries after so many counted sequences.

    Raises
    ------
    StoreDamagedError
        If one of their arrays is missing or cannot be read.
    """
    concepts, features = (read_strings(root, name) for name in ("concepts", "features"))
    delimiter = read_array(root, "delimiter").tolist()
    since = read_array(root, "probable_since").tolist()
    later = read_array(root, _DELIMITER_SINCE).tolist() if _DELIMITER_SINCE in root else None
    return Vocabulary(concepts, features, delimiter, since, sequences, later)


def rewrite_changed(root: zarr.Group, name: str, values: npt.NDArray[Any]) -> None:
    """Make an array that is as long equal to some values, from the first that differs to the last."""
    changed = np.flatnonzero(read_array(root, name) != values)
    if len(changed):
        first, last = int(changed[0]), int(changed[-1]) + 1
        cast(Any, root[name])[first:last] = values[first:last]
