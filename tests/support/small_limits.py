"""Lower limits with which small networks go the ways of large ones."""

from __future__ import annotations

import pytest

from giaann_dask.models.contexts import table_files
from giaann_dask.store import ordered_connections


def store_all_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tables of networks of any size be stored in files."""
    monkeypatch.setattr(table_files, "_LEAST_BYTES", 0)


def merge_small_ranges(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Let rows be merged in ranges of so many connections, in place of a hundred thousand."""
    for limit, size in (("_SAMPLED", 2), ("_GATHERED", rows)):
        monkeypatch.setattr(ordered_connections, limit, size)
