"""Define the metadata documents of Zarr arrays that are written without Zarr's own functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Names of types of one byte, whose values have no order of bytes.
_ONE_BYTE = ("bool", "int8", "uint8")


def array_metadata(
    shape: Sequence[int], chunk: Sequence[int], kind: str, codec: Mapping[str, Any], attributes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the metadata document of an array, as Zarr v3 defines it.

    Parameters
    ----------
    shape, chunk : sequence of int
        Of the array, and of each of its chunks.
    kind : str
        Name of the data type.
    codec : mapping of str to Any
        What compresses the bytes of a chunk, which a CRC-32C checksum then closes.
    attributes : mapping of str to Any
        Of the array.
    """
    order = {} if kind in _ONE_BYTE else {"configuration": {"endian": "little"}}
    return {
        "shape": [*shape],
        "data_type": kind,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [*chunk]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": False if kind == "bool" else 0,
        "codecs": [{"name": "bytes", **order}, codec, {"name": "crc32c"}],
        "attributes": dict(attributes),
        "zarr_format": 3,
        "node_type": "array",
    }
