"""Read exported tables of any format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr


def read_table(path: Path) -> dict[str, Any]:
    """Return the columns of an exported table by name."""
    if path.suffix == ".parquet":
        frame = pytest.importorskip("pyarrow.parquet").read_table(path)
        return {name: frame[name].to_numpy() for name in frame.column_names}
    if path.suffix == ".zarr":
        group = zarr.open_group(path, mode="r")
        return {name: group[name][:] for name in sorted(group.array_keys())}
    with np.load(path) as arrays:
        return dict(arrays)
