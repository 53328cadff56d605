"""Workers read the text themselves: what the driver sends, the same corpus, and files that a worker does not see."""

from __future__ import annotations

import gzip
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cluster.submitting import TaskSubmitter
from giaann_dask.encoding import sources
from giaann_dask.encoding.sources import WorkerReading, tag_contents
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import PartRange, read_parts
from giaann_dask.text.tokens import Part


@pytest.mark.cluster
def test_the_driver_sends_names_of_files_and_the_corpus_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_village(tmp_path / "village.txt", 12_000, 3)
    packed = tmp_path / "village.txt.gz"
    packed.write_bytes(gzip.compress(text.read_bytes()))
    sent: list[int] = []
    submit = TaskSubmitter.submit

    def counted(submitter: TaskSubmitter, key: str, function: Any, *arguments: Any, **where: Any) -> Any:
        if function is tag_contents:
            sent.append(len(pickle.dumps(arguments[0])))
        return submit(submitter, key, function, *arguments, **where)

    monkeypatch.setattr(TaskSubmitter, "submit", counted)
    corpora = []
    with gd.connect(workers=2) as client:
        for source in (text, packed):
            sent.clear()
            corpora.append(gd.encode(source, tmp_path / f"{source.name}.corpus", client=client))
            if source == text:
                assert 0 < sum(sent) < text.stat().st_size / 100
            else:
                assert sum(sent) > text.stat().st_size / 2
    for name, array in corpora[0].group.arrays():
        np.testing.assert_array_equal(array[:], corpora[1].group[name][:])


@pytest.mark.cluster
def test_the_first_blocks_are_given_to_a_worker_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write_village(tmp_path / "village.txt", 400, 3)
    given: list[list[str]] = []
    submit = TaskSubmitter.submit

    def noted(submitter: TaskSubmitter, key: str, function: Any, *arguments: Any, **where: Any) -> Any:
        if function is tag_contents:
            given.append(where.get("workers", []))
        return submit(submitter, key, function, *arguments, **where)

    monkeypatch.setattr(TaskSubmitter, "submit", noted)
    place = {"processes": False, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(n_workers=3, **place) as cluster, Client(cluster) as client:
        gd.train(text, tmp_path / "network", client=client, part_characters=2048, block_characters=2048)
        workers = [[worker] for worker in client.scheduler_info(n_workers=-1)["workers"]]
    assert len(given) > 3
    assert sorted(given[:3]) == sorted(workers), "one of them has the lexicon"
    assert not any(given[3:]), "later ones go where Dask sends them"


@pytest.mark.parametrize(("worker", "problem"), [("tcp://a", ""), ("tcp://a", "there is none"), ("inproc://a", "")])
def test_text_that_a_worker_does_not_see_is_sent(
    worker: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sources, "query_scheduler", lambda *_: {worker: 1})
    monkeypatch.setattr(sources, "ask_workers", lambda *_: {worker: problem})
    text = write_village(tmp_path / "village.txt", 200, 3)
    options = ReadOptions(part_characters=4000)
    reading: Any = WorkerReading(None, options)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, logger="giaann_dask"):
        contents = [reading.contents([part])[0] for part in read_parts([text], options)]
    assert len(contents) > 2
    ranges = worker == "tcp://a" and not problem
    assert {type(content) for content in contents[:-1]} == {PartRange if ranges else Part}
    assert len(caplog.records) == (1 if problem else 0), "one notice"
