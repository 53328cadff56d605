"""Tables of profile best in files: equal to the built ones, built again where files are damaged, and bounded."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from giaann_dask.increments.context_counts import count_contexts
from giaann_dask.increments.contexts import TokenStream
from giaann_dask.inference.best import table_files
from giaann_dask.inference.best.scores import BEST, PooledModel
from giaann_dask.inference.best.table_files import open_tables
from giaann_dask.inference.best.tables import PooledTables, build_tables

TEXT = [
    [["the", "miller", "carries", "the", "flour", "."], ["the", "baker", "bakes", "the", "bread", "."]],
    [["the", "miller", "sees", "the", "river", "."], ["Zoë", "bakes", "."]],
]


@pytest.fixture(scope="module")
def tables() -> PooledTables:
    """Tables of a short text."""
    counts = count_contexts(TokenStream.from_documents(TEXT))
    return build_tables([counts.run], counts.words)


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: PooledTables) -> Path:
    """Folder of the stored tables of commit ``A``."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(table_files, "_LEAST_BYTES", 0)
    assert open_tables("A", lambda: tables).words == tables.words
    (folder,) = (tmp_path / "giaann_dask" / "tables").iterdir()
    return folder


def test_mapped_tables_are_those_that_were_stored(stored: Path, tables: PooledTables) -> None:
    found = open_tables("A", lambda: pytest.fail("built again"))
    for field in fields(PooledTables):
        one, other = getattr(found, field.name), getattr(tables, field.name)
        if isinstance(other, np.ndarray):
            assert one.dtype == other.dtype
            assert one.flags.writeable
            assert np.array_equal(one, other)
        elif field.name != "spelling":
            assert one == other
    stream = TokenStream.from_documents(TEXT[:1])
    models = [PooledModel(each, BEST) for each in (found, tables)]
    first, second = (model.distribution(stream, 4) for model in models)
    assert first == second


@pytest.mark.parametrize("name", ["word.npy", "pointer.npy", "tables.json", "words_text.npy"])
def test_files_that_are_cut_short_are_replaced(stored: Path, tables: PooledTables, name: str) -> None:
    file = stored / name
    file.write_bytes(file.read_bytes()[:-3])
    built = []
    assert open_tables("A", lambda: built.append(1) or tables).words == tables.words
    assert built
    open_tables("A", lambda: pytest.fail("built again"))


def test_tables_used_last_are_kept(stored: Path, tables: PooledTables, monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(file.stat().st_size for file in stored.glob("*.npy"))
    monkeypatch.setattr(table_files, "_MOST_BYTES", 2 * size + 1)
    open_tables("B", lambda: tables)
    os.utime(stored.with_name("B-1"), (1, 1))
    open_tables("C", lambda: tables)
    assert sorted(path.name[0] for path in stored.parent.iterdir()) == ["A", "C"]


def test_small_tables_and_full_disks_store_nothing(
    tmp_path: Path, tables: PooledTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    open_tables("A", lambda: tables)
    monkeypatch.setattr(table_files, "_LEAST_BYTES", 0)
    monkeypatch.setattr(table_files, "_DISK_SHARE", 0.0)
    assert open_tables("A", lambda: tables).words == tables.words
    assert not list((tmp_path / "giaann_dask" / "tables").iterdir())
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert open_tables("A", lambda: tables).words == tables.words
