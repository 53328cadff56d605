"""Pack string tables into two arrays for Zarr, and check that strings are valid UTF-8 text.

A table is stored as the UTF-8 bytes of all strings and their end offsets, so that it can be extended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from giaann_dask.errors import StoreDamagedError
from giaann_dask.storage import append_values, read_arrays

_INVALID = re.compile("[\0\ud800-\udfff]")


def text_fault(string: str) -> str | None:
    r"""Return the defect of a string that is not valid UTF-8 text, or None for a valid one.

    Parameters
    ----------
    string : str
        May contain NUL characters and halves of surrogate pairs: JSON can escape these, and Python creates them
        from command-line arguments that are not UTF-8.

    Examples
    --------
    >>> text_fault("caf\u00e9"), text_fault("a\0b")
    (None, 'a NUL character at character 1')
    >>> text_fault("a \ud83d")
    'half a surrogate pair at character 2'
    >>> text_fault("caf\udce9")
    'half a surrogate pair, or a byte that is not UTF-8, at character 3'
    """
    found = _INVALID.search(string)
    if found is None:
        return None
    if found[0] == "\0":
        return f"a NUL character at character {found.start()}"
    # Python's "surrogateescape" maps bytes from 0x80 on to these.
    byte = ", or a byte that is not UTF-8," if "\udc80" <= found[0] <= "\udcff" else ""
    return f"half a surrogate pair{byte} at character {found.start()}"


def escaped(string: str) -> str:
    r"""Return a string that can be encoded in UTF-8: replace halves of surrogate pairs by escapes.

    Examples
    --------
    >>> escaped("caf\u00e9 \ud83d")
    'café \\ud83d'
    """
    return string.encode("utf-8", "backslashreplace").decode("utf-8")


def pack_strings(strings: Sequence[str]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the UTF-8 bytes of all strings and the end offset of each.

    Examples
    --------
    >>> text, ends = pack_strings(["ab", "", "c"])
    >>> bytes(text), ends.tolist()
    (b'abc', [2, 2, 3])
    """
    encoded = [s.encode("utf-8") for s in strings]
    ends = np.cumsum(np.array([len(e) for e in encoded], np.int64), dtype=np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), ends


def unpack_strings(text: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> list[str]:
    """Return the strings of a packed table.

    Raises
    ------
    StoreDamagedError
        If the arrays are inconsistent or not UTF-8.
    """
    if len(ends) and (int(ends[-1]) != len(text) or bool((np.diff(ends) < 0).any())):
        raise StoreDamagedError(
            f"a string table ends at byte {int(ends[-1])} of {len(text)}", "offsets that rise to the end"
        )
    raw = text.tobytes()
    edges = [0, *ends.tolist()]
    try:
        return [raw[a:b].decode("utf-8") for a, b in pairwise(edges)]
    except UnicodeDecodeError as error:
        raise StoreDamagedError(f"a string table is not UTF-8 at byte {error.start}") from error


async def append_strings(group: zarr.AsyncGroup, name: str, strings: Sequence[str]) -> None:
    """Append strings to a table in a group; create the table if it does not exist."""
    text, ends = pack_strings(strings)
    text_array, end_array = string_arrays(name)
    offset = await append_values(group, text_array, text)
    await append_values(group, end_array, ends + offset)


def read_strings(group: zarr.Group, name: str) -> list[str]:
    """Return the strings of a table in a group.

    Raises
    ------
    StoreDamagedError
        If the table is missing or inconsistent.
    """
    return strings_of(read_arrays(group, string_arrays(name)), name)


def string_arrays(name: str) -> tuple[str, str]:
    """Return the names of the arrays of a table of strings."""
    return f"{name}_text", f"{name}_end"


def strings_of(arrays: Mapping[str, npt.NDArray[Any]], name: str) -> list[str]:
    """Return the strings of a table whose arrays have been read; see `read_strings`."""
    text, end = (arrays[each] for each in string_arrays(name))
    return unpack_strings(text, end)
