"""Join the tables of a small run into one array, and take them apart again.

A table has two entries for each of its nine arrays (`packing`). Of a small run each entry costs as much time and as
many requests as one of a large run. So a small run is stored as one array of bytes. It holds a JSON object with the
bytes of each entry by name, sorted and closed by a newline, then the entries one after the other. Compression and
checksums are those of the arrays of a run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from giaann_dask.runs.packed_arrays import Framing, decode_array, encode_array, read_layout, require_intact
from giaann_dask.runs.packing import PackedRegionRun

JOINED = "joined"
"""Name of the array."""
JOINED_METADATA = f"{JOINED}/zarr.json"
JOINED_ENTRIES = (JOINED_METADATA, f"{JOINED}/c/0")
# Bytes of a run at most: it is read as a whole. Larger ones are arrays, which other programs read, too.
_MOST_BYTES = 1 << 15


def is_joined(run: PackedRegionRun) -> bool:
    """Return whether a run is small enough for one array."""
    return run.nbytes <= _MOST_BYTES


def join_tables(run: PackedRegionRun) -> dict[str, bytes]:
    """Return the entries of an array that holds all tables of a run.

    Examples
    --------
    >>> from giaann_dask.runs.packing import pack
    >>> from giaann_dask.runs.run import Run
    >>> empty = pack(Run.empty())
    >>> joined = join_tables(PackedRegionRun(empty, empty))
    >>> sorted(joined) == sorted(JOINED_ENTRIES), split_tables(joined)["neurons"] == empty.entries
    (True, True)
    """
    tables = {name: table.entries for name, table in run._asdict().items() if table is not None}
    entries = {f"{name}/{key}": value for name, table in tables.items() for key, value in sorted(table.items())}
    index = json.dumps({name: len(value) for name, value in entries.items()}, separators=(",", ":"))
    content = np.frombuffer(b"".join([index.encode(), b"\n", *entries.values()]), np.uint8)
    return encode_array(JOINED, [content], len(content), Framing(1))


def split_tables(joined: Mapping[str, bytes]) -> dict[str, dict[str, bytes]]:
    """Return the entries of each table of a run, given those of the array that holds them.

    Raises
    ------
    StoreDamagedError
        If they are not what was written.
    """
    content = decode_array(read_layout(JOINED, joined), joined).tobytes()
    index, _, rest = content.partition(b"\n")
    try:
        sizes = {str(name): int(size) for name, size in json.loads(index).items()}
    except (AttributeError, TypeError, ValueError):
        sizes = {}
    intact = bool(sizes) and min(sizes.values()) >= 0 and sum(sizes.values()) == len(rest)
    require_intact(intact, "the joined tables of a run contradict their sizes")
    tables: dict[str, dict[str, bytes]] = {}
    begin = 0
    for path, size in sizes.items():
        table, _, name = path.partition("/")
        tables.setdefault(table, {})[name] = rest[begin : begin + size]
        begin += size
    return tables
