"""Strings that UTF-8 can hold, and tables of them as two arrays, so that Zarr can hold and extend them.

Covers: what keeps a string from being text, packing strings into UTF-8 bytes and end offsets, and keeping
such a table in a Zarr group. Does not cover: what the strings mean (`vocabulary`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import zarr

from giaann_dask.errors import StoreDamagedError
from giaann_dask.storage import append_values, read_array

_NO_TEXT = re.compile("[\0\ud800-\udfff]")


def text_fault(string: str) -> str | None:
    r"""Return what keeps a string from being text, None where it is text that UTF-8 can hold.

    Parameters
    ----------
    string : str
        May hold NUL characters and halves of surrogate pairs: JSON can name these, and Python makes them of
        command-line arguments that are not UTF-8.

    Examples
    --------
    >>> text_fault("caf\u00e9"), text_fault("a\0b")
    (None, 'a NUL character at character 1')
    >>> text_fault("a \ud83d")
    'half a surrogate pair at character 2'
    >>> text_fault("caf\udce9")
    'half a surrogate pair, or a byte that is not UTF-8, at character 3'
    """
    found = _NO_TEXT.search(string)
    if found is None:
        return None
    if found[0] == "\0":
        return f"a NUL character at character {found.start()}"
    # Python's "surrogateescape" stands for bytes from 0x80 on.
    byte = ", or a byte that is not UTF-8," if "\udc80" <= found[0] <= "\udcff" else ""
    return f"half a surrogate pair{byte} at character {found.start()}"


def escaped(string: str) -> str:
    r"""Return a string that UTF-8 can hold: halves of surrogate pairs become escapes.

    Examples
    --------
    >>> escaped("caf\u00e9 \ud83d")
    'café \\ud83d'
    """
    return string.encode("utf-8", "backslashreplace").decode("utf-8")


def pack_strings(strings: Sequence[str]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the UTF-8 bytes of all strings and the end of each in them.

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
        If the arrays contradict each other or are not UTF-8.
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


def append_strings(group: zarr.Group, name: str, strings: Sequence[str]) -> None:
    """Append strings to the table of that name in a group, creating it when it is not there."""
    text, ends = pack_strings(strings)
    stored = group.get(f"{name}_text")
    offset = stored.shape[0] if isinstance(stored, zarr.Array) else 0
    append_values(group, f"{name}_text", text)
    append_values(group, f"{name}_end", ends + offset)


def read_strings(group: zarr.Group, name: str) -> list[str]:
    """Return the strings of the table of that name in a group.

    Raises
    ------
    StoreDamagedError
        If the table is missing or contradicts itself.
    """
    return unpack_strings(read_array(group, f"{name}_text"), read_array(group, f"{name}_end"))
