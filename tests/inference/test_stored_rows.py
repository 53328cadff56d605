"""Rows that are read from the store when they are requested: those of decoded regions, with few chunks read."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cluster.regions import open_region, region_places
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.errors import ClusterError
from giaann_dask.models.columns import predictor
from giaann_dask.models.generation_options import GenerationOptions
from giaann_dask.predict.generation import Sessions, generate
from giaann_dask.rows import stored
from giaann_dask.rows.protocol import RowOptions
from giaann_dask.rows.source import RunRows
from giaann_dask.rows.stored import OpeningRows, StoredRows
from giaann_dask.runs.packing import PackedRun
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.run_io import StoredEntries
from giaann_dask.training.training_options import TrainingOptions


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> CommitReader:
    """A network of two commits, whose regions have several runs."""
    folder = tmp_path_factory.mktemp("rows")
    text = write_village(folder / "text.txt", 120)
    options = TrainingOptions(max_sequences=60)
    gd.train(text, folder / "net", options=options)
    network = gd.train(text, folder / "net")
    return open_commit(str(network.path), network.commit)


@pytest.mark.parametrize("whole", [False, True])
def test_rows_are_those_of_the_decoded_regions(
    reader: CommitReader, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[object] = []
    monkeypatch.setattr(stored, "open_region", lambda *place: decoded.append(place) or open_region(*place))
    runs = [open_region(*place) for _, place in region_places(reader)]
    expected_rows, rows = RunRows.placed(reader.placement(), runs), StoredRows(reader, whole=whole, region_rows=2)
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
    monkeypatch.setattr(PackedRun, "read_from", lambda read: pytest.fail("a whole run is read"))
    prompt = " ".join((reader.path.parent / "text.txt").read_text(encoding="utf-8").split()[:7])
    assert generate(None, reader, prompt, GenerationOptions(max_tokens=2)).tokens
    assert asked
    assert not decoded


def test_a_prompt_on_a_cluster_opens_no_region(reader: CommitReader, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = " ".join((reader.path.parent / "text.txt").read_text(encoding="utf-8").split()[:7])
    expected = generate(None, reader, prompt, GenerationOptions(max_tokens=2))
    monkeypatch.setattr(predictor, "CommitHandle", lambda *_: pytest.fail("all regions are opened"))
    with gd.connect(workers=0) as client:
        assert generate(client, reader, prompt, GenerationOptions(max_tokens=2)) == expected
        rows = predictor.opened_from_store(str(reader.path), reader.commit).rows
        assert isinstance(rows, StoredRows)
        monkeypatch.setattr(predictor, "open_commit", lambda *_: pytest.fail("the commit is opened again"))
        monkeypatch.setattr(predictor, "KEPT_BYTES", 0)
        again = generate(client, reader, prompt, GenerationOptions(max_tokens=3))
        assert again.tokens[:2] == expected.tokens
        assert rows.kept_bytes == 0, "frames are let go"
        replicated = GenerationOptions(max_tokens=2, rows=RowOptions(mode="replicated"))
        monkeypatch.undo()
        assert generate(client, reader, prompt, replicated) == expected


@pytest.mark.parametrize("opens", [True, False])
def test_rows_are_answered_while_regions_are_opened(reader: CommitReader, opens: bool) -> None:
    runs = [open_region(*place) for _, place in region_places(reader)]
    whole, released = RunRows.placed(reader.placement(), runs), threading.Event()

    def open_regions() -> RunRows:
        assert released.wait(60)
        if not opens:
            raise ClusterError("the cluster is gone", "", "")
        return whole

    rows = OpeningRows(StoredRows(reader, whole=False), open_regions)
    neurons = [int(run.source[0]) for run in runs]
    before = rows.rows(neurons)
    released.set()
    rows.opening.join(60)
    assert (rows.source is whole) == opens
    for neuron, row in before.items():
        after, expected = rows.row(neuron), whole.row(neuron)
        assert row is not None
        assert after is not None
        assert expected is not None
        for found in (row, after):
            assert np.array_equal(found.target, expected.target)
            assert np.array_equal(found.strength, expected.strength)


def test_a_prompt_does_not_wait_for_regions(reader: CommitReader, monkeypatch: pytest.MonkeyPatch) -> None:
    # With a client that is in this process regions are opened as a whole.
    released = threading.Event()
    opened = predictor.results
    monkeypatch.setattr(predictor, "results", lambda futures: released.wait(60) and opened(futures))
    prompt = " ".join((reader.path.parent / "text.txt").read_text(encoding="utf-8").split()[:7])
    options = GenerationOptions(max_tokens=3, reasons=0)
    with gd.connect(workers=0) as client:
        handle = predictor.open_columns(reader, client=client, options=options)
        first = [event.token for event in Sessions(handle, [prompt], options=options)]
        released.set()
        assert isinstance(handle.rows, OpeningRows)
        handle.rows.opening.join(60)
        assert isinstance(handle.rows.source, RunRows)
        assert first == [event.token for event in Sessions(handle, [prompt], options=options)]
