"""After a commit the runs of a region stay in the memory of its owner, and nothing is read from the store."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, Future, wait
from support.processes import until
from support.stored_networks import reader_of
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cluster import Roles, regions, roles_of
from giaann_dask.cluster.locality import COUNTS, locality_of
from giaann_dask.cluster.regions import WrittenRunCache
from giaann_dask.events import Committed, DataMoved, Event, RoundIntegrated, SequencesEvaluated
from giaann_dask.models.contexts.table_files import place_of, read_tables
from giaann_dask.runs.packing import PackedRegionRun
from giaann_dask.runs.run import RegionRun, Run
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.run_io import StoredEntries
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.training import region_tasks, slow_workers, trainer
from giaann_dask.training.regions import Regions
from giaann_dask.training.tasks import pack_run

OPTIONS = gd.TrainingOptions(batch_sequences=100, block_characters=6_000, commit_sequences=250)
ASKED = gd.EvaluationOptions(rows=gd.RowOptions(mode="remote"), device="cpu", max_sequences=40)
TEXT = gd.TextOptions(reading=ReadOptions(part_characters=6_000))


@pytest.fixture(autouse=True)
def no_stealing() -> Iterator[None]:
    """Keep an overloaded machine from moving tasks away from the owners of their regions, which is no error."""
    with dask.config.set({"distributed.scheduler.work-stealing": False}):
        yield


def small_run(strength: int) -> PackedRegionRun:
    run = Run(np.array([5]), np.array([0, 1]), np.array([7]), np.array([strength], np.int32))
    return pack_run(RegionRun(run, run))


def test_a_run_is_taken_over_once_and_only_in_the_attempt_that_wrote_it() -> None:
    kept, first, second = WrittenRunCache(), small_run(1), small_run(2)
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
    kept, run = WrittenRunCache(), small_run(1)
    nbytes = run.connections.nbytes + run.neurons.nbytes
    monkeypatch.setattr(regions.memory_budget, "worker_memory_limit", lambda: 1)
    monkeypatch.setattr(regions.memory_budget, "data_budget", lambda _: 4 * nbytes * 2)
    for name in ("1", "2", "3"):
        kept.keep("a", name, run)
    assert [kept.take("a", name) is run for name in ("1", "2", "3")] == [True, True, False]
    kept.keep("a", "3", run)
    assert kept.take("a", "3") is run, "what was taken over does not count"


def test_nothing_is_read_from_the_store_after_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = CommitReader.stored_run

    def count(self: CommitReader, identity: str) -> PackedRegionRun:
        read.append(identity)
        return original(self, identity)

    monkeypatch.setattr(CommitReader, "stored_run", count)
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

    def commit_and_look(store: Any, regions: Regions, *arguments: Any, last: bool = False, **options: Any) -> str:
        commit = original(store, regions, *arguments, last=last, **options)
        runs = [] if last else [run for run in regions.runs.all() if run.stored]
        wait([run.future for run in runs], timeout=60)
        places = client.who_has([run.future for run in runs])
        for run in runs:
            owner = regions.tasks.owners[run.region]
            seen.append((run.in_memory, owner in places[run.future.key]))
        return commit

    monkeypatch.setattr(trainer, "commit_regions", commit_and_look)
    # On a busy machine workers may answer late, and others steal tasks: a run that one of these writes is read.
    monkeypatch.setattr(slow_workers, "_PATIENCE_S", 60)
    texts = [write_village(tmp_path / f"{n}.txt", 900, n) for n in (1, 2)]
    client: Client
    moved: list[list[DataMoved]] = []
    with dask.config.set({"distributed.scheduler.work-stealing": False}), gd.connect(workers=2) as client:
        for text in texts:
            events: list[Event] = []
            network = gd.train(
                text, tmp_path / "net", client=client, specification=gd.Specification(regions=4), text=TEXT,
                options=OPTIONS, observer=events.append,
            )  # fmt: skip
            moved.append([event for event in events if isinstance(event, DataMoved)])
            received = sum(client.run(bytes_received).values())
            rounds = sum(isinstance(event, RoundIntegrated) for event in events)
            assert len(moved[-1]) == rounds + 1, "one for each round, and one for what was left"
            counted = ("increment_bytes", "stolen_bytes", "reassigned_bytes", "other_bytes")
            assert sum_of([event for each in moved for event in each], *counted) == received
            # The second training would choose other owners if no worker had the runs of the first one.
            monkeypatch.setattr(region_tasks, "roles_of", in_reverse)
        assert len(network.commits()) > 6
        assert len(seen) > 8
        assert all(in_memory and at_owner for in_memory, at_owner in seen)
        held = run_bytes(client)
        assert len(held) >= len(network.manifest.runs_by_region())
        assert all(len(workers) == 1 for key, workers in client.who_has().items() if key in held)
        during: list[dict[str, int]] = []
        report = network.evaluate(
            texts[1], client=client, options=ASKED, observer=lambda _: during.append(run_bytes(client))
        )
    for each in moved:
        assert sum_of(each, "stayed_bytes") > sum_of(each, "increment_bytes") > 0
        assert sum_of(each, "reassigned_bytes") == 0
    assert sum_of(moved[0], "read_bytes") == sum_of(moved[1], "read_bytes") == 0, "the second goes on with what is held"
    assert report.rows.requests > 0
    assert during
    assert all(each == held for each in during), "the owners hold the same bytes, once"


def in_reverse(client: Client) -> Roles:
    """Return the roles of workers, which are assigned regions in another order, as when one has more free memory."""
    roles = roles_of(client)
    return replace(roles, storage=roles.storage[::-1])


def bytes_received(dask_worker: Any) -> int:
    return sum(nbytes or 0 for each in dask_worker.transfer_incoming_log for nbytes in each["keys"].values())


def sum_of(events: list[DataMoved], *names: str) -> int:
    return sum(getattr(event, name) for event in events for name in names)


def test_causes_of_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is moved when workers have changed is moved because of that; later it is stolen or read."""
    counts = dict.fromkeys(COUNTS, 0)
    monkeypatch.setattr(slow_workers, "ask_workers", lambda *_, **__: {"a": dict(counts), "b": OSError("gone")})
    moves = slow_workers.DataMoves(None)  # type: ignore[arg-type]
    counts |= {"used_bytes": 100, "increment_bytes": 30, "run_bytes": 20, "read_bytes": 7, "spilled_bytes": 3}
    told = moves.since(4)
    assert told == DataMoved(4, 50, increment_bytes=30, stolen_bytes=20, read_bytes=7, spilled_bytes=3)
    moves.note_workers({"a"})
    counts["run_bytes"] += 5
    assert moves.since(5) == DataMoved(5, reassigned_bytes=5)
    counts["used_bytes"] += 5
    counts["read_bytes"] += 2
    assert moves.since(6) == DataMoved(6, reassigned_bytes=2)
    counts.clear()
    assert moves.since(7) == DataMoved(7), "a worker that begins again takes nothing back"


def run_bytes(client: Client) -> dict[str, int]:
    """Return the bytes of runs and regions in the memory of all workers, by key."""
    held = client.who_has()
    kept = {
        key: size for key, size in client.nbytes(summary=False).items() if str(key).startswith(("open_r", "compact"))
    }
    return {key: size * len(held[key]) for key, size in kept.items() if held.get(key)}


def later(client: Client) -> dict[str, int]:
    time.sleep(0.2)
    return run_bytes(client)


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the table of a run of every request to the store, in this process."""
    counted: list[str] = []
    original = StoredEntries.read

    def count(self: StoredEntries, names: list[str]) -> Any:
        counted.append(self._prefix)
        return original(self, names)

    monkeypatch.setattr(StoredEntries, "read", count)
    return counted


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Release nothing that only the garbage collector would: it may not run for minutes."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.usefixtures("uncollected")
def test_an_evaluation_uses_the_runs_of_a_training_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit is evaluated while later rounds are under way, and the last one after the training."""
    read, counted = list[str](), count_reads(monkeypatch)
    found: list[tuple[dict[str, int], dict[str, int]]] = []
    texts = [write_village(tmp_path / f"{n}.txt", 900, n) for n in (1, 2)]
    rule = gd.Specification(regions=3)
    with gd.connect(workers=0) as client:

        def evaluate(network: gd.Network) -> None:
            # Until stored runs are added up they are needed, and then their sum is there.
            until(lambda: not any(client.processing().values()) and run_bytes(client) == later(client))
            before, during = run_bytes(client), list[dict[str, int]]()
            counted.clear()
            look = lambda event: isinstance(event, SequencesEvaluated) and during.append(run_bytes(client))  # noqa: E731
            network.evaluate(texts[1], client=client, options=ASKED, observer=look)
            found.append((before, during[0]))
            read.extend(counted)

        def observe(event: object) -> None:
            if isinstance(event, Committed):
                evaluate(gd.Network(tmp_path / "net", event.commit))

        network = gd.train(
            texts[0], tmp_path / "net", client=client, specification=rule, text=TEXT, options=OPTIONS, observer=observe
        )
        evaluate(network)
        assert len(run_bytes(client)) >= len(network.manifest.runs_by_region())
        # They go with the network of the training.
        del network
        until(lambda: not run_bytes(client))
    assert len(found) > 3
    assert all(before and during == before for before, during in found), "the same bytes, and no others"
    assert not read, "and nothing of the store"


def table_keys(client: Client) -> set[str]:
    return {str(key) for key in client.who_has() if str(key).startswith(("tables", "text-"))}


@pytest.mark.usefixtures("uncollected")
def test_profile_best_builds_its_tables_from_the_runs_of_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a training and after it, runs are not read; scores are those of tables from the store, bit by bit."""
    counted = count_reads(monkeypatch)
    found: list[tuple[str, np.ndarray, list[str]]] = []
    text, asked = write_village(tmp_path / "a.txt", 900), gd.ScoringOptions(max_sequences=20)
    with gd.connect(workers=0) as client:

        def score(network: gd.Network) -> None:
            until(lambda: not any(client.processing().values()) and run_bytes(client) == later(client))
            before = run_bytes(client)
            counted.clear()
            report = network.score(text, client=client, options=asked)
            found.append((network.commit, report.scores.log_probability, [*counted]))
            until(lambda: run_bytes(client) == before)

        def observe(event: object) -> None:
            if isinstance(event, Committed):
                score(gd.Network(tmp_path / "net", event.commit))

        network = gd.train(
            text, tmp_path / "net", client=client, specification=gd.Specification(profile="contexts", regions=3),
            text=TEXT, options=OPTIONS, observer=observe,
        )  # fmt: skip
        assert len(run_bytes(client)) >= len(network.manifest.runs_by_region())
        score(network)
        # They go with the network of the training.
        del network
        until(lambda: not run_bytes(client) and not table_keys(client))
        beside = [*found]
        found.clear()
        for commit, _, _ in beside:
            score(gd.Network(tmp_path / "net", commit))
            until(lambda: not table_keys(client))
    assert len(beside) > 3
    for (commit, now, reads), (same, stored, stored_reads) in zip(beside, found, strict=True):
        assert commit == same
        assert not reads
        assert stored_reads
        assert now.tobytes() == stored.tobytes()


def bytes_read(dask_worker: Any) -> int:
    return locality_of(dask_worker)["read_bytes"]


@pytest.mark.cluster
def test_only_the_runs_of_a_lost_worker_are_read_and_each_once(tmp_path: Path) -> None:
    text = write_village(tmp_path / "a.txt", 600)
    with gd.connect(workers=2) as client:
        network = gd.train(
            text, tmp_path / "net", client=client, specification=gd.Specification(regions=4), text=TEXT, options=OPTIONS
        )
        # The scheduler may hear a moment later that nothing else is needed any more.
        until(lambda: len(run_bytes(client)) == len(network.manifest.runs))
        held = run_bytes(client)
        runs = [Future(key, client) for key in held]
        places = client.who_has(runs)
        sizes = {run.key: run.result().nbytes for run in runs}
        assert sum(client.run(bytes_read).values()) == 0
        lost = min(address for (address,) in places.values())
        gone = {key for key, (address,) in places.items() if address == lost}
        assert 0 < len(gone) < len(places)
        os.kill(client.run(os.getpid, workers=[lost])[lost], signal.SIGKILL)
        until(lambda: lost not in client.scheduler_info(n_workers=-1)["workers"] and run_bytes(client) == held)
        assert all(len(workers) == 1 for workers in client.who_has(runs).values())
        assert sum(client.run(bytes_read).values()) == sum(sizes[key] for key in gone)


def bytes_fetched(dask_worker: Any) -> int:
    return locality_of(dask_worker)["other_bytes"]


def close_store() -> None:
    """Let reading a table of a run fail in this process."""

    def read(self: StoredEntries, *names: Any) -> Any:
        raise AssertionError(f"{self._prefix} is read")

    StoredEntries.read = read  # type: ignore[method-assign]


@pytest.mark.cluster
def test_tables_are_built_on_one_worker_from_the_runs_of_all(tmp_path: Path) -> None:
    """Runs are sent past Dask and are kept nowhere else, and a run that no worker has is read."""
    rule, text = gd.Specification(profile="contexts", regions=4), write_village(tmp_path / "a.txt", 600)
    with gd.connect(workers=2) as client:
        network = gd.train(text, tmp_path / "net", client=client, specification=rule, text=TEXT, options=OPTIONS)
        client.run(close_store)
        before, held = sum(client.run(bytes_fetched).values()), run_bytes(client)
        places = {workers for key, workers in client.who_has().items() if key in held}
        assert len(places) == 2
        assert all(len(workers) == 1 for workers in places)
        scores = network.score(text, client=client).scores
        fetched = sum(client.run(bytes_fetched).values()) - before
        assert run_bytes(client) == held
    assert fetched > 0
    with gd.connect(workers=0) as client:
        assert network.score(text, client=client).scores.log_probability.tobytes() == scores.log_probability.tobytes()
        reader = reader_of(network)
        gone = dict.fromkeys(range(4), ("open_run-gone",))
        tables, stored = (read_tables(*place_of(reader), *held) for held in ((gone,), ()))
    assert tables.counts.packed.bits.tobytes() == stored.counts.packed.bits.tobytes()
    assert tables.discounts.tobytes() == stored.discounts.tobytes()
