"""Connections in the order of their source neurons, block by block, and exports that are made of them."""

from __future__ import annotations

import resource
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from support.exported_tables import read_table
from support.small_limits import merge_small_ranges

from giaann_dask.errors import StoreDamagedError, StoreExistsError, StoreWriteError
from giaann_dask.events import Event, StageAdvanced
from giaann_dask.keys import pack_neuron, pack_target
from giaann_dask.models.columns.export import connection_columns
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.packed_rows import RowReader
from giaann_dask.runs.packing import pack
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification
from giaann_dask.storage import writing
from giaann_dask.store import export
from giaann_dask.store.export import SUFFIXES, ColumnArray, Compression, Table, computed_table, replacing_table
from giaann_dask.store.manifest import Manifest, StoredRun
from giaann_dask.store.ordered_connections import ordered_connections, read_blocks


def reader_of(regions: dict[int, list[Run]]) -> Any:
    """Stub of the reader of a commit."""
    runs = {f"{region}.{number}": pack(run) for region, parts in regions.items() for number, run in enumerate(parts)}
    stored = tuple(StoredRun(name, int(name.partition(".")[0]), 0, 0, len(run), 0) for name, run in runs.items())
    manifest = Manifest(specification=Specification(), runs=stored)

    def rows(identity: str, table: str) -> RowReader:
        entries = runs[identity].entries
        return RowReader(lambda names: {name: entries[name] for name in names if name in entries})

    placement = Placement(max(regions, default=0) + 1)
    return SimpleNamespace(path="network", manifest=lambda: manifest, placement=lambda: placement, rows=rows)


def random_regions(seed: int, neurons: int, regions: int, wide: bool) -> dict[int, list[Run]]:
    """Two runs in each of some regions, to which the neurons are assigned; some neurons have no connections."""
    rng = np.random.default_rng(seed)
    keys = pack_neuron(np.arange(neurons) // 3, np.arange(neurons) % 3)
    region = rng.integers(0, regions, neurons)
    found = {}
    for number in range(regions):
        found[number] = []
        for _ in range(2):
            source = keys[(region == number) & (rng.random(neurons) < 0.7)]
            counts = rng.integers(1, 9, len(source))
            rows = [np.sort(rng.choice(60, count, replace=False)) for count in counts]
            places = np.concatenate([np.zeros(0, np.int64), *rows])
            target = pack_target(places // 12, pack_neuron(places // 6 % 2, places // 2 % 3), places % 2)
            strength = rng.integers(1, 99, len(target)).astype(np.int32)
            if wide and number == 0 and len(strength):
                strength = strength.astype(np.int64) << 40
            found[number].append(Run(source, np.concatenate([[0], np.cumsum(counts)]), target, strength))
    return found


@given(st.integers(0, 2**32), st.integers(0, 30), st.integers(1, 4), st.booleans(), st.integers(1, 40))
def test_blocks_of_any_size_are_all_connections_in_order(
    tmp_path_factory: pytest.TempPathFactory, seed: int, neurons: int, regions: int, wide: bool, size: int
) -> None:
    runs = random_regions(seed, neurons, regions, wide)
    whole = merge_runs([run for parts in runs.values() for run in parts])
    folder = tmp_path_factory.mktemp("export")
    with ordered_connections(reader_of(runs), folder) as connections:
        assert len(connections) == len(whole)
        for _ in range(2):
            blocks = list(connections.blocks(size))
            assert all(0 < len(block) <= size for block in blocks)
            assert sum(map(len, blocks)) == len(whole)
            rows = [np.repeat(block.source, np.diff(block.pointer)) for block in blocks]
            assert np.array_equal(np.concatenate([np.zeros(0), *rows]), np.repeat(whole.source, np.diff(whole.pointer)))
            for name in ("target", "strength"):
                found = np.concatenate([np.zeros(0), *(getattr(block, name) for block in blocks)])
                assert np.array_equal(found, getattr(whole, name))
    assert list(folder.iterdir()) == []


@given(st.integers(0, 2**32), st.integers(0, 30), st.booleans(), st.integers(1, 40))
def test_regions_are_read_in_blocks_of_rows(seed: int, neurons: int, wide: bool, size: int) -> None:
    runs = random_regions(seed, neurons, 1, wide)
    reader = reader_of(runs)
    blocks = list(read_blocks(reader, reader.manifest().runs, "connections", size))
    whole = merge_runs(runs[0])
    # Every block has at most so many targets beyond its first row, of each run.
    assert all(block.rows == 1 or len(block) - block.pointer[1] <= 3 * 2 * (size + 16) for block in blocks)
    assert len(blocks) <= max(whole.rows, 1)
    assert np.array_equal(np.concatenate([whole.source[:0], *(block.source for block in blocks)]), whole.source)
    for name in ("target", "strength"):
        found = np.concatenate([np.zeros(0, np.int64), *(getattr(block, name) for block in blocks)])
        assert np.array_equal(found, getattr(whole, name))
    assert all(np.array_equal(np.diff(block.pointer) > 0, np.ones(block.rows, bool)) for block in blocks)


@pytest.mark.parametrize("compression", ["default", "none"])
def test_the_same_file_as_of_whole_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: Compression
) -> None:
    monkeypatch.setattr(export, "BLOCK", 6)
    monkeypatch.setattr(export, "CONVERTED", 3)
    # Rows are merged by many ranges of source neurons.
    merge_small_ranges(monkeypatch, 8)
    runs = random_regions(3, 40, 3, False)
    whole = merge_runs([run for parts in runs.values() for run in parts])
    columns = connection_columns(Specification())
    arrays = {name: column.of(whole).astype(column.dtype) for name, column in columns.items()}
    (np.savez if compression == "none" else np.savez_compressed)(tmp_path / "whole.npz", **arrays)
    events = list[Event]()
    with ordered_connections(reader_of(runs), tmp_path, events.append) as connections:
        table = computed_table(columns, len(connections), connections.blocks)
        with replacing_table(tmp_path / "blocks.npz") as file:
            file.write(table, compression, events.append)
    assert (tmp_path / "blocks.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["blocks.npz", "whole.npz"]
    total = len(columns) * len(whole)
    assert StageAdvanced("read", 6, 6, "runs") in events
    assert events[-1] == StageAdvanced("write", total, total, "values")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_that_is_not_complete_does_not_appear(tmp_path: Path, suffix: str) -> None:
    def fail(run: Run) -> Any:
        raise OSError(28, "No space left on device")

    columns = {"first": ColumnArray(np.int64, lambda run: run.target), "second": ColumnArray(np.int64, fail)}
    with (
        ordered_connections(reader_of(random_regions(3, 9, 2, False)), tmp_path) as connections,
        pytest.raises(OSError, match="No space"),
        replacing_table(tmp_path / f"new{suffix}") as file,
    ):
        file.write(computed_table(columns, len(connections), connections.blocks))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("compression", ["default", "none"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_has_the_same_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, compression: Compression
) -> None:
    monkeypatch.setattr(export, "BLOCK", 4)
    arrays = {"first": np.arange(10, dtype=np.int32), "second": np.linspace(0, 1, 10, dtype=np.float32)}
    for _ in range(2):
        # The second time it replaces what is there.
        with replacing_table(tmp_path / f"table{suffix}") as file:
            file.write(Table.of(arrays), compression)
    found = read_table(tmp_path / f"table{suffix}")
    assert list(found) == (sorted(arrays) if suffix == ".zarr" else list(arrays))
    for name, values in arrays.items():
        assert found[name].dtype == values.dtype
        assert np.array_equal(found[name], values)
    assert [each.name for each in tmp_path.iterdir()] == [f"table{suffix}"]


def test_a_folder_that_is_no_export_is_not_replaced(tmp_path: Path) -> None:
    for content in ("folder", "group"):
        place = tmp_path / f"{content}.zarr"
        place.mkdir()
        (place / "kept").touch()
        if content == "group":
            zarr.open_group(place, mode="a")
        with pytest.raises(StoreExistsError, match="is not an exported table"), replacing_table(place):
            pass
        assert (place / "kept").exists()


def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signals = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
    try:
        with (
            pytest.raises(StoreWriteError, match="room on the disk"),
            writing("the export"),
            ordered_connections(reader_of(random_regions(3, 900, 1, False)), tmp_path),
        ):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, signals)
    assert list(tmp_path.iterdir()) == []


def test_a_neuron_in_two_regions_is_damage(tmp_path: Path) -> None:
    run = random_regions(3, 9, 1, False)[0][0]
    with (
        pytest.raises(StoreDamagedError, match="two regions"),
        ordered_connections(reader_of({0: [run], 1: [run]}), tmp_path),
    ):
        pass
