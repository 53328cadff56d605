"""After a commit the runs of a region stay in the memory of its owner, and nothing is read from the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, wait
from support.village import write_village

import giaann_dask as gd
from giaann_dask.runs.packing import PackedRegionRun
from giaann_dask.runs.run import RegionRun, Run
from giaann_dask.store.network_store import CommitReader
from giaann_dask.text.reading import ReadOptions
from giaann_dask.training import kept_runs, trainer
from giaann_dask.training.kept_runs import KeptRuns
from giaann_dask.training.regions import Regions
from giaann_dask.training.tasks import pack_run

OPTIONS = gd.TrainingOptions(batch_sequences=100, block_characters=6_000, commit_sequences=250)
TEXT = gd.TextOptions(reading=ReadOptions(part_characters=6_000))


def small_run(strength: int) -> PackedRegionRun:
    run = Run(np.array([5]), np.array([0, 1]), np.array([7]), np.array([strength], np.int32))
    return pack_run(RegionRun(run, run))


def test_a_run_is_taken_over_once_and_only_in_the_attempt_that_wrote_it() -> None:
    kept, first, second = KeptRuns(), small_run(1), small_run(2)
    kept.keep("a", "00001.0-1", first)
    assert kept.take("b", "00001.0-1") is None, "another attempt may have written another run of that name"
    assert kept.take("", "00001.0-1") is None
    assert kept.take("a", "00001.0-1") is first
    assert kept.take("a", "00001.0-1") is None
    kept.keep("a", "00001.0-1", first)
    kept.keep("b", "00001.0-1", second)
    assert kept.take("a", "00001.0-1") is None, "those of an earlier attempt are forgotten"
    assert kept.take("b", "00001.0-1") is second
    kept.keep("c", "00001.0-1", first)
    kept.keep("", "00002.0-1", second)
    assert kept.take("c", "00001.0-1") is None, "the last commit forgets all, and keeps nothing"
    assert (kept.taken, kept.missed) == (2, 5)


def test_no_more_is_kept_than_the_memory_limit_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, run = KeptRuns(), small_run(1)
    nbytes = run.connections.nbytes + run.neurons.nbytes
    monkeypatch.setattr(kept_runs, "worker_memory_limit", lambda: 1)
    monkeypatch.setattr(kept_runs, "data_budget", lambda _: 4 * nbytes * 2)
    for name in ("1", "2", "3"):
        kept.keep("a", name, run)
    assert [kept.take("a", name) is run for name in ("1", "2", "3")] == [True, True, False]
    kept.keep("a", "3", run)
    assert kept.take("a", "3") is run, "what was taken over does not count"


def test_nothing_is_read_from_the_store_after_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = CommitReader.run

    def count(self: CommitReader, identity: str) -> PackedRegionRun:
        read.append(identity)
        return original(self, identity)

    monkeypatch.setattr(CommitReader, "run", count)
    rule, texts = gd.Specification(regions=3), [write_village(tmp_path / f"{n}.txt", 900, n) for n in (1, 2)]
    with gd.connect(workers=0) as client:
        network = gd.train(texts[0], tmp_path / "net", client=client, specification=rule, text=TEXT, options=OPTIONS)
        assert len(network.commits()) > 3
        assert read == []
        stored = {run.identity for run in network.manifest.runs}
        gd.train(texts[1], tmp_path / "net", client=client, text=TEXT, options=OPTIONS)
    assert len(read) == len(set(read)), "each at most once"
    assert set(read) <= stored, "only what an earlier training has written"


@pytest.mark.cluster
def test_runs_are_on_the_owners_of_their_regions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, bool]] = []
    original = trainer.commit_regions

    def commit_and_look(store: Any, regions: Regions, *arguments: Any, last: bool = False) -> str:
        commit = original(store, regions, *arguments, last=last)
        runs = [] if last else [(region, run) for region, run in regions.now().references() if run.stored]
        wait([run.future for _, run in runs], timeout=60)
        places = client.who_has([run.future for _, run in runs])
        for region, run in runs:
            owner = regions._owners._owners[region]
            seen.append((run.in_memory, owner in places[run.future.key]))
        return commit

    monkeypatch.setattr(trainer, "commit_regions", commit_and_look)
    texts = [write_village(tmp_path / f"{n}.txt", 1_500, n) for n in (1, 2)]
    client: Client
    with gd.connect(workers=2) as client:
        for text in texts:
            network = gd.train(
                text, tmp_path / "net", client=client, specification=gd.Specification(regions=4), text=TEXT,
                options=OPTIONS,
            )  # fmt: skip
    assert len(network.commits()) > 6
    assert len(seen) > 8
    assert all(in_memory and at_owner for in_memory, at_owner in seen)
