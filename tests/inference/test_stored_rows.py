"""Rows that are read from the store when they are requested: those of decoded regions, with few chunks read."""

from __future__ import annotations

import numpy as np
import pytest
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cluster.regions import open_region, region_places
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.inference.continuation import GenerationOptions
from giaann_dask.inference.generation import generate_text
from giaann_dask.inference.rows import stored
from giaann_dask.inference.rows.source import RunRows
from giaann_dask.inference.rows.stored import StoredRows
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.run_io import StoredEntries
from giaann_dask.training.options import TrainingOptions


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> CommitReader:
    """A network of two commits, whose regions have several runs."""
    folder = tmp_path_factory.mktemp("rows")
    text = write_village(folder / "text.txt", 120)
    options = TrainingOptions(maximum_sequences=60)
    gd.train(text, folder / "net", options=options)
    network = gd.train(text, folder / "net")
    return open_commit(str(network.path), network.commit)


@pytest.mark.parametrize("whole", [False, True])
def test_rows_are_those_of_the_decoded_regions(
    reader: CommitReader, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[object] = []
    monkeypatch.setattr(stored, "open_region", lambda *place: decoded.append(place) or open_region(*place))
    monkeypatch.setattr(stored, "_REGION_ROWS", 2)
    runs = [open_region(*place) for _, place in region_places(reader)]
    expected_rows, rows = RunRows.placed(reader.placement(), runs), StoredRows(reader, whole=whole)
    neurons = [neuron for run in runs for neuron in run.source[:: max(run.rows // 9, 1)].tolist()]
    assert neurons
    unknown = max(neurons) + 1
    found = rows.rows([*neurons, unknown])
    for neuron, row in found.items():
        expected = expected_rows.row(neuron)
        assert (row is None) == (expected is None)
        if row is not None and expected is not None:
            assert np.array_equal(row.target, expected.target)
            assert np.array_equal(row.strength, expected.strength)
    assert bool(decoded) == whole


def test_a_prompt_decodes_no_region(reader: CommitReader, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[object] = []
    monkeypatch.setattr(stored, "open_region", lambda *place: decoded.append(place) or open_region(*place))
    asked: list[str] = []
    read = StoredEntries.read

    def counted(self: StoredEntries, names: list[str]) -> dict[str, bytes]:
        asked.extend(names)
        return read(self, names)

    monkeypatch.setattr(StoredEntries, "read", counted)
    monkeypatch.setattr(StoredEntries, "read_all", lambda self: pytest.fail("a whole run is read"))
    prompt = " ".join((reader.path.parent / "text.txt").read_text(encoding="utf-8").split()[:7])
    assert generate_text(None, reader, prompt, GenerationOptions(tokens=2)).tokens
    assert asked
    assert not decoded
