"""Regions while training: split, packed and placed in several ways, with the same exported bytes."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, Future
from support.examples import scaled
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cluster import ClusterOptions
from giaann_dask.errors import OptionError, SpecificationError
from giaann_dask.events import Event, MemoryMeasured
from giaann_dask.runs.packing import PackedRegionRun
from giaann_dask.runs.placement import UNASSIGNED, Placement
from giaann_dask.runs.run import RegionRun, Run
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.manifest import Manifest, StoredRun
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.training import tasks
from giaann_dask.training.maintenance import compact_network
from giaann_dask.training.regions import Regions
from giaann_dask.training.run_references import RunReference, Snapshot, StoredRuns, sizes_of
from giaann_dask.training.tasks import add_runs, compact, measure_run, pack_run
from giaann_dask.training.training_report import measure_touches, report_round

pytestmark = pytest.mark.cluster

SMALL = {"batch_sequences": 100, "block_characters": 6000}


@pytest.fixture(scope="module")
def village(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, bytes]:
    """Two texts, and the exported bytes of a network that is trained on both without any split."""
    folder = tmp_path_factory.mktemp("regions")
    first, second = write_village(folder / "a.txt", 300, 2), write_village(folder / "b.txt", 200, 3)
    return first, second, train([first, second], folder / "plain")[0]


def train(
    inputs: list[Path], path: Path, regions: int = 3, placement: str = "hash", tagger: str = "lexicon", **options: Any
) -> Any:
    """Train in this process; return the exported bytes, the network, the report and the events."""
    events: list[Event] = []
    with gd.connect(workers=0) as client:
        network = gd.train(
            inputs,
            path,
            client=client,
            specification=gd.Specification(regions=regions, placement=placement),
            text=gd.TextOptions(tagger=tagger, reading=ReadOptions(part_characters=6000)),
            options=gd.TrainingOptions(**{**SMALL, **options}),
            observer=events.append,
        )
        report = network.training_report
    return network.export(path.with_suffix(".npz")).connections.read_bytes(), network, report, events


@pytest.mark.parametrize(
    "placement", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("hash", "balanced")), "co-occurrence"]
)
def test_splits_change_no_exported_byte(tmp_path: Path, village: tuple[Path, Path, bytes], placement: str) -> None:
    first, second, expected = village
    small = {"region_bytes": 80_000, "hot_bytes": 0, "commit_sequences": 200, "placement": placement}
    train([first], tmp_path / "net", **small)
    before = NetworkStore(tmp_path / "net")
    earlier = before.open(before.head()).placement()
    assert len(earlier.splits) >= 3, "regions were split while training"
    # A second run goes on with the same regions, and splits some of them further.
    exported, network, report, _ = train([first, second], tmp_path / "net", **small)
    placement_now = NetworkStore(tmp_path / "net").open(network.commit).placement()
    assert placement_now.splits[: len(earlier.splits)] == earlier.splits
    assert exported == expected
    assert report.regions == len(placement_now.live()) == 3 + len(placement_now.splits)
    assert {run.region for run in network.manifest.runs} <= set(placement_now.live())
    if placement == "hash":
        assert len(placement_now.assigned) == 0
    else:
        assert (placement_now.assigned != UNASSIGNED).sum() == network.manifest.concepts
    with gd.connect(workers=0) as client:
        options = gd.EvaluationOptions(max_sequences=20)
        found = network.evaluate(str(first), client=client, options=options)
        plain = gd.Network(village[0].parent / "plain").evaluate(str(first), client=client, options=options)
    assert (found.prediction_matches, found.prediction_tokens) == (plain.prediction_matches, plain.prediction_tokens)


def test_a_giant_column_is_split_by_feature(tmp_path: Path) -> None:
    # Every sentence has the noun "miller" alone, so all of it is one column with many features.
    choose = np.random.default_rng(1)
    with (tmp_path / "one.conllu").open("w", encoding="utf-8") as file:
        for _ in range(80):
            words = [f"w{number}" for number in choose.integers(0, 200, 11)]
            for place, word in enumerate([*words, "miller"], 1):
                kind = ("NOUN", "NN") if word == "miller" else ("ADJ", "JJ")
                file.write("\t".join([str(place), word, word, *kind, *["_"] * 5]) + "\n")
            file.write("\n")
    text = tmp_path / "one.conllu"
    expected, _, _, _ = train([text], tmp_path / "plain", regions=1, tagger="gold")
    exported, network, _, _ = train([text], tmp_path / "net", regions=1, tagger="gold", region_bytes=8_000)
    assert network.manifest.concepts == 1
    splits = network.manifest.splits
    assert any(split.pivot & ((1 << 25) - 1) for split in splits), "some pivot lies inside a column"
    assert exported == expected


def test_cold_runs_are_packed(tmp_path: Path, village: tuple[Path, Path, bytes]) -> None:
    # Text that occurs again in the input counts again, and makes more rounds: not eight, which are one run.
    copies = [
        Path(shutil.copy(path, tmp_path / f"{number}.txt")) for number, path in enumerate(village[:2] + village[:1])
    ]
    texts = [*village[:2], *copies]
    expected, _, _, measured = train(texts, tmp_path / "hot")
    hot = [e for e in measured if isinstance(e, MemoryMeasured)]
    exported, network, report, events = train(texts, tmp_path / "cold", hot_bytes=0)
    cold = [e for e in events if isinstance(e, MemoryMeasured)]
    assert exported == expected
    assert report.packed_bytes == max(e.packed_bytes for e in cold) > 0
    # What was packed a round ago is cold; what the last rounds added may still be hot.
    assert sum(e.hot_bytes for e in cold) < sum(e.hot_bytes for e in hot) / 2
    assert len(network.manifest.runs) == len({run.region for run in network.manifest.runs}), "none is much smaller"


def test_resumed_training_reads_only_the_runs_it_needs(
    tmp_path: Path, village: tuple[Path, Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs stay in the store until something adds them up, and what they have together is counted all the same."""
    first, second, _ = village
    path, sentences = tmp_path / "net", second.read_text().splitlines()
    train([first], path, batch_sequences=50)
    store = NetworkStore(path)
    largest = {max(runs, key=lambda run: run.connections).identity for runs in runs_by_region(store)}
    opened, read = set[str](), CommitReader.stored_run
    monkeypatch.setattr(
        CommitReader, "stored_run", lambda self, identity: (opened.add(identity), read(self, identity))[1]
    )
    for number, (begin, end) in enumerate(((0, 40), (40, 41))):
        (tmp_path / f"{number}.txt").write_text("\n".join(sentences[begin:end]))
        with gd.connect(workers=0) as client:
            report = gd.train(tmp_path / f"{number}.txt", path, client=client).training_report
        assert not opened & largest
        manifest = store.open(store.head()).manifest()
        assert manifest.counts
        assert Manifest.from_dict(json.loads(json.dumps(manifest.as_dict()))) == manifest
        assert manifest.exact
        sums = [sum(getattr(run, name) for run in manifest.runs) for name in ("neurons", "connections")]
        twin = NetworkStore(shutil.copytree(path, tmp_path / f"twin-{number}"))
        with gd.connect(workers=0) as client:
            compact_network(client, twin)
        added = twin.open(twin.head()).manifest()
        assert (manifest.neurons, manifest.connections) == (added.neurons, added.connections)
        assert manifest.neurons < sums[0]
        assert report.connections == manifest.connections < sums[1]
        assert not added.counts
        assert opened > largest, "of the twin, this time"
        opened.clear()


def runs_by_region(store: NetworkStore) -> list[list[StoredRun]]:
    """Return the runs of the last commit."""
    found: dict[int, list[StoredRun]] = {}
    for run in store.open(store.head()).manifest().runs:
        found.setdefault(run.region, []).append(run)
    return list(found.values())


def increments(number: int) -> dict[int, RegionRun]:
    """What a round adds to a region: a connection that every round has, and one of its own; seldom to a second one."""
    target, strength = np.array([1, 2 + number]), np.array([1, 5], np.int32)
    run = RegionRun(Run(np.array([7]), np.array([0, 2]), target, strength), Run.empty())
    return {0: run, 1: run} if number % 16 == 0 else {0: run}


def add_round(regions: Regions, counted: Future) -> None:
    """Add the increments of a round."""
    client = counted.client
    regions.add_counted([counted], client.submit(report_round, client.submit(measure_touches, counted)))


def value_of(run: RunReference) -> Any:
    """Return the value of a run, also of one in a table."""
    value = run.future.result(30)
    return value.runs[run.region] if run.together else value


def rounds_behind(client: Client, regions: Regions) -> set[int]:
    """Return the rounds whose increments would be made again if all runs were lost."""
    futures = [run.future for runs in regions.runs.values() for run in runs]
    assert all(future.result(30) for future in futures), "the scheduler knows of them"
    left, seen = [client.cluster.scheduler.tasks[future.key] for future in futures], set()
    while left:
        task = left.pop()
        if task.key not in seen:
            seen.add(task.key)
            left.extend(task.dependencies)
    return {int(key.partition("-")[2]) for key in seen if key.startswith("count_batch-")}


@pytest.mark.parametrize("seed", [0, 3] if scaled(1) == 1 else range(4))
def test_the_lineage_of_runs_begins_at_the_last_commit(seed: int) -> None:
    """Whatever is under way when a commit ends, however many of them wait, and with one task for regions or several."""
    choose, awaited, commits = random.Random(seed), deque[Snapshot](), 0
    with gd.connect(workers=0) as client:
        regions = Regions(client, Placement(2), 0, exchange="tasks" if seed % 2 else "workers")
        regions.assign_owners()
        for number in range(48):
            add_round(regions, client.submit(increments, number, key=f"count_batch-{number}"))
            regions.integrate(leave=choose.randrange(3))
            if choose.random() < (0.2, 0.2, 0.6, 1.0)[seed]:
                awaited.append(regions.snapshot())
            if awaited and (len(awaited) > 4 or choose.random() < 0.2):
                snapshot = awaited.popleft()
                runs = regions.pending.with_stored(snapshot).references()
                empty = {run.identity for run, size in zip(runs, sizes_of(runs), strict=True) if size.empty}
                new = [run for run in runs if not run.stored and run.identity not in empty]
                stored = client.scatter([pack_run(value_of(run)) for run in new], hash=False)
                reads = {run.identity: lambda future=future: future for run, future in zip(new, stored, strict=True)}
                regions.pending.on_committed(snapshot, StoredRuns(reads), empty)
                commits += 1
                regions.integrate()
                assert rounds_behind(client, regions) == set(range(snapshot.rounds, number + 1))
                del stored, reads, runs, new
        assert commits > 5
        regions.integrate()
        for region, every in ((0, 1), (1, 16)):
            runs, own = regions.runs[region], range(0, 48, every)
            total = add_runs([value_of(run) for run in runs]).connections
            assert total.target.tolist() == [1, *(2 + number for number in own)]
            assert total.strength.tolist() == [len(own), *[5] * len(own)]
            assert len(runs) < 16, [run.rank for run in runs]


def test_a_round_has_tasks_for_the_regions_that_it_touches_alone() -> None:
    counts = []
    with gd.connect(workers=0) as client:
        for number in (8, 4096):
            regions = Regions(client, Placement(number), 0, exchange="tasks")
            regions.assign_owners()
            for touched in (16, 1):
                add_round(regions, client.submit(increments, touched, key=f"count_batch-{number}-{touched}"))
                regions.integrate()
                counts.append(regions.tasks.submitter.count)
            assert [len(regions.runs[region]) for region in range(8)] == [2, 1, *[0] * 6]
    # Two regions and one, and the measurement of the runs of an owner.
    assert counts == [3, 5, 3, 5]


def test_commits_do_not_wait_for_the_compaction_of_stored_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as their sum is not there a commit takes them as they are, and then their sum instead."""
    gate = tmp_path / "gate"

    def add_up_late(*runs: PackedRegionRun) -> PackedRegionRun:
        deadline = time.monotonic() + 60
        while not gate.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return compact(*runs)

    stored_runs = [pack_run(increments(16 * number + 16)[0]) for number in range(2)]
    monkeypatch.setattr(tasks, "compact", add_up_late)
    with gd.connect(options=ClusterOptions(workers=0, threads=2)) as client:
        regions = Regions(client, Placement(1), 2)
        for number, packed in enumerate(stored_runs):
            name, size = f"00000.{number:08d}-{number:08d}", measure_run(packed)
            run = StoredRun(name, 0, 0, size.neurons, size.connections, size.nbytes)
            (future,) = client.scatter([packed], hash=False)
            regions.continue_from(run, lambda future=future: future)
        regions.assign_owners()
        (together,) = regions.runs[0]
        add_round(regions, client.submit(increments, 5, key="count_batch-5"))
        regions.integrate()
        # What is new is not added to what is stored, so it waits for nothing.
        assert regions.runs[0][1].future.result(30).connections.target.tolist() == [1, 7]
        assert [run.rank for run in regions.runs[0]] == [1, 0]
        early = regions.snapshot()
        assert names_of(early) == ["00000.00000000-00000000", "00000.00000001-00000001", "00000.00000002-00000002"]
        assert [run.stored for run in early.references()] == [True, True, False]
        gate.touch()
        assert together.future.result(30).connections.connections == 3
        late = regions.snapshot()
        assert names_of(late) == ["00000.00000000-00000001", "00000.00000002-00000002"]
        assert [run.packed for run in late.references()] == [True, False]
        # A commit that awaits it takes its parts out of the store, so the next must not count on these if it is lost.
        gate.unlink()
        lost = client.submit(add_up_late, key="lost")
        newest = regions.runs[0][1:]
        regions.runs.put(0, (replace(together, value=lost), *newest))
        assert not lost.done()
        after = regions.snapshot()
        assert names_of(after) == names_of(late)
        gate.touch()
        # Stored in its turn, it is one of those that a commit takes.
        stored = {name: lambda: together.future for name in names_of(late)[:1]}
        for snapshot in (early, late, after):
            regions.pending.on_committed(snapshot, StoredRuns(stored), set())
        assert [(run.stored, run.inputs) for run in regions.runs[0]] == [(True, ()), (False, ())]


def names_of(snapshot: Snapshot) -> list[str]:
    """Return the identities of the runs of a snapshot."""
    return [run.identity for run in snapshot.references()]


@pytest.mark.slow
def test_old_commits_are_removed_during_training(tmp_path: Path, village: tuple[Path, Path, bytes]) -> None:
    first, second, expected = village
    _, every, _, _ = train([first, second], tmp_path / "all", commit_sequences=200)
    exported, kept, _, _ = train([first, second], tmp_path / "kept", commit_sequences=200, keep_commits=2)
    assert len(every.commits()) >= 4
    assert len(kept.commits()) <= 2
    assert exported == expected
    assert kept.describe()["bytes_on_disk"] < every.describe()["bytes_on_disk"]


def test_impossible_budgets_are_refused() -> None:
    for name in ("region_bytes", "commit_sequences", "keep_commits"):
        with pytest.raises(OptionError, match=name):
            gd.TrainingOptions(**{name: 0})
    with pytest.raises(OptionError, match="hot_bytes"):
        gd.TrainingOptions(hot_bytes=-1)
    with pytest.raises(SpecificationError, match="placement"):
        gd.Specification(placement="by-size")
