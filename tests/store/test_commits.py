"""Fields of manifests, and commits of a network that were written without training."""

from __future__ import annotations

import json
import os
import resource
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import distributed
import icechunk
import numpy as np
import pytest
import zarr
from support.stored_networks import RUNS, commit_runs, create_network, edit_manifest

from giaann_dask.cluster.regions import open_run
from giaann_dask.errors import (
    GiaannError,
    StoreDamagedError,
    StoreFormatError,
    StoreFullError,
    StoreMissingError,
    StoreRefusedError,
    StoreUnsharedError,
)
from giaann_dask.runs.joined_tables import is_joined
from giaann_dask.runs.placement import FIRST_REGIONS, Split
from giaann_dask.runs.run import RegionRun, Run, RunSize
from giaann_dask.spec import Specification
from giaann_dask.storage import append_values, create_array, update_values, write_concurrently
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.manifest import Manifest, StoredRun
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.run_io import write_run
from giaann_dask.text.blocks import STATUS_NAMES
from giaann_dask.text.ledger import IDENTITY_BYTES, LedgerEntry
from giaann_dask.training.tasks import pack_run


def stored(region: int, name: str = "00000.00000000-00000000") -> StoredRun:
    return StoredRun(name, region, 0, 1, 2, 100)


# Region 0 was split into 2 and 3; 1, 2 and 3 are left.
SPLIT = Manifest(
    specification=Specification(regions=2),
    by_status=(3, 0, 0, 0, 0),
    runs=(stored(3), stored(1, "00001.00000000-00000000")),
    splits=(Split(0, 7),),
    last_trained=2,
)


def test_regions_of_a_manifest() -> None:
    assert Manifest.new(Specification(regions=FIRST_REGIONS)).begun_with is None
    assert (SPLIT.first_regions, SPLIT.regions) == (2, 3)
    assert list(SPLIT.runs_by_region()) == [1, 3]
    assert SPLIT.skipped() == dict.fromkeys(STATUS_NAMES[1:3], 0), "rare reasons only where they occur"


def test_all_fields_of_a_manifest_are_stored_and_needed() -> None:
    fields = SPLIT.as_dict()
    assert Manifest.from_dict(json.loads(json.dumps(fields))) == SPLIT
    for name in fields:
        with pytest.raises(StoreDamagedError, match=rf"without \['{name}'\]"):
            Manifest.from_dict({each: value for each, value in fields.items() if each != name})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tokens", True, "tokens in the manifest of the network is True; expected a whole number of at least 0"),
        ("by_status", [1, 2], "by_status .* expected 5 numbers"),
        ("pruned_below", -1, "pruned_below .* is -1"),
        ("trained_on_misses", 1, "trained_on_misses .* is 1; expected true or false"),
        ("tokens", 10**30, "tokens in the manifest .* is 1,000,.* a whole number of at most 281,474,976,710,656"),
        ("by_status", [1 << 63, 0, 0, 0, 0], "by_status in the manifest .* at most 281,474,976,710,656"),
        ("last_trained", 1 << 62, "last_trained in the manifest .* at most 281,474,976,710,656"),
        ("load", [1 << 64], "load in the manifest .* at most"),
        ("rounds", 1 << 60, "rounds in the manifest .* at most"),
        ("pruned_below", 1 << 63, "pruned_below in the manifest .* at most 9,223,372,036,854,775,807"),
        ("splits", [[0, 1 << 63]], "splits in the manifest .* at most 9,223,372,036,854,775,807"),
        ("counts", [{"region": 3, "neurons": 1 << 49, "connections": 1}], "neurons of an entry of counts .* at most"),
        ("begun_with", 1 << 60, "begun_with .* at most"),
        ("begun_with", 0, "begun_with .* is 0; expected a whole number of at least 1"),
        ("last_trained", -2, "last_trained .* is -2"),
        ("last_trained", 3, "last_trained .* is 3; expected less than 3"),
        ("load", "12", "load .* expected a list of numbers"),
        ("runs", [vars(stored(1)), vars(stored(1))], "more than once; expected each run once"),
        ("runs", [vars(stored(0))], r"of the regions \[0\]"),
        ("runs", [vars(stored(1, "00000.00000000-00000000/x"))], "an identity of runs"),
        ("runs", [{"identity": "00000.00000000-00000000"}], "an entry of runs .* expected the fields"),
        ("counts", [{"region": 0, "neurons": 1, "connections": 1}], r"counts .* of the regions \[0\]"),
    ],
)
def test_fields_that_contradict_each_other(name: str, value: object, message: str) -> None:
    with pytest.raises(StoreDamagedError, match=message):
        Manifest.from_dict({**SPLIT.as_dict(), name: value})


def test_a_message_shows_the_beginning_of_a_long_value() -> None:
    with pytest.raises(StoreDamagedError) as failure:
        Manifest.from_dict({**SPLIT.as_dict(), "tokens": "9" * 10_000})
    assert len(str(failure.value)) < 500


def test_counts_of_a_region_are_kept() -> None:
    fields = {**SPLIT.as_dict(), "counts": [{"region": 3, "neurons": 1, "connections": 2}]}
    assert Manifest.from_dict(fields).counts == {3: RunSize(1, 2)}


@pytest.mark.parametrize("changed", [[], [0], [5], [0, 5], [2, 4]])
def test_an_array_is_rewritten_from_the_first_difference_to_the_last(changed: list[int]) -> None:
    root = zarr.create_group({})
    create_array(root, "numbers", np.arange(6), chunk=4)
    wanted = np.arange(8)
    wanted[changed] += 10
    write_concurrently(root, [partial(update_values, name=name, values=wanted) for name in ("numbers", "new")])
    found: dict[str, Any] = {name: root[name] for name in ("numbers", "new")}
    assert found["numbers"][:].tolist() == found["new"][:].tolist() == wanted.tolist()


def test_rows_of_a_table_are_rewritten() -> None:
    root, rows = zarr.create_group({}), np.arange(12).reshape(4, 3)
    for wanted in (rows[:2], np.where(rows == 4, 40, rows)):
        write_concurrently(root, [partial(update_values, name="rows", values=wanted)])
        found: Any = root["rows"]
        assert found[:].tolist() == wanted.tolist()


def test_all_writes_end_before_the_first_error_is_raised() -> None:
    root = zarr.create_group({})

    async def refuse(group: zarr.AsyncGroup) -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        write_concurrently(root, [refuse, partial(append_values, name="numbers", values=np.arange(6))])
    written: Any = root["numbers"]
    assert written[:].tolist() == list(range(6))


def test_a_ledger_entry_that_grows_is_rewritten(tmp_path: Path) -> None:
    store = create_network(tmp_path / "net")
    ledgers = [
        [LedgerEntry(b"a" * IDENTITY_BYTES, 3, False)],
        [LedgerEntry(b"a" * IDENTITY_BYTES, 9, True), LedgerEntry(b"b" * IDENTITY_BYTES, 1, False)],
    ]
    commits = [commit_runs(store, RUNS[:2], ledger) for ledger in ledgers]
    assert [store.open(commit).ledger() for commit in commits] == ledgers


def test_commits_that_are_forgotten(tmp_path: Path) -> None:
    store = create_network(tmp_path / "net")
    for runs in (RUNS[:2], RUNS[1:], RUNS[:2]):
        commit_runs(store, runs)
    names = [name for name, _ in store.commits()]
    for keep in (9, 2, 1):
        with store.lock():
            store.collect(keep)
        assert [name for name, _ in NetworkStore(store.path).commits()] == names[:keep]
    assert store.open(names[0]).stored_runs() == set(RUNS[:2])


def test_tasks_open_a_commit_once_and_do_without_it_where_it_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = create_network(tmp_path / "net")
    first, second = (commit_runs(store, runs) for runs in (RUNS[:2], RUNS[1:]))
    opened: list[str] = []
    plain = NetworkStore.open

    def count(self: NetworkStore, commit: str) -> CommitReader:
        opened.append(commit)
        return plain(self, commit)

    monkeypatch.setattr(NetworkStore, "open", count)
    runs = [open_run(str(store.path), first, identity).connections.entries for identity in RUNS[:2]]
    assert opened == [first]
    with store.lock():
        store.collect(1)
    for path in (store.path, tmp_path / "net" / ".." / "net"):
        assert open_run(str(path), first, RUNS[1]).connections.entries == runs[1]
    with pytest.raises(GiaannError, match=RUNS[0]):
        open_run(str(store.path), second, RUNS[0])


def test_an_error_of_a_task_names_its_worker_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "get_worker", lambda: SimpleNamespace(address="tcp://a:1"))
    with pytest.raises(StoreUnsharedError, match="there is no network") as failure:
        open_run(str(tmp_path / "none"), "0" * 20, RUNS[0])
    assert failure.value.received.count("worker tcp://a:1") == 1


def test_a_commit_that_cannot_be_read_has_a_cause(tmp_path: Path) -> None:
    store = create_network(tmp_path / "net")
    commit = commit_runs(store, RUNS[:2])
    with pytest.raises(StoreMissingError, match="has no commit 0000") as missing:
        store.open("0" * 20)
    assert isinstance(missing.value.__cause__, icechunk.IcechunkError)
    assert commit in str(missing.value)
    entries, _ = store.open(commit).entries(RUNS[0])
    assert list(entries.read(["none/zarr.json"])) == [], "what is not there is left out"
    with pytest.raises(StoreDamagedError, match="no connections of run none") as damaged:
        store.open(commit).connections("none")
    assert "doctor" in damaged.value.remedy


def test_dictionaries_of_another_size_than_the_manifest_says(tmp_path: Path) -> None:
    store = create_network(tmp_path / "net")
    session = store.begin()
    root: Any = zarr.open_group(session.store, mode="a")
    edit_manifest(root, features=2)
    with pytest.raises(StoreDamagedError, match="have sizes"):
        store.open(session.commit("by hand")).vocabulary()


@pytest.mark.parametrize("wrong", [{"version": 5}, {"version": 9}, {"format": "another"}])
def test_another_format_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    store = create_network(tmp_path / "net")
    session = store.begin()
    zarr.open_group(session.store, mode="a").attrs.update(wrong)
    commit = session.commit("by hand")
    with pytest.raises(StoreFormatError, match=str(next(iter(wrong.values())))):
        store.open(commit)


def test_folders_that_are_no_place_of_a_network(tmp_path: Path) -> None:
    with pytest.raises(StoreMissingError, match="no network at"):
        NetworkStore(tmp_path)
    with pytest.raises(StoreRefusedError, match="a path in UTF-8"):
        create_network(tmp_path / os.fsdecode(b"\xff"))
    assert not list(tmp_path.iterdir())


def test_a_run_that_does_not_fit_on_the_disk(tmp_path: Path) -> None:
    store = create_network(tmp_path / "net")
    numbers = np.random.default_rng(1).integers(1, 1 << 30, 5000)
    run = Run(np.array([5]), np.array([0, 5000]), np.sort(numbers), numbers.astype(np.int32))
    packed = pack_run(RegionRun(run, Run.empty()))
    before, signals = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with store.lock():
        fork = store.fork(store.begin())
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            with pytest.raises(StoreFullError):
                write_run(fork, RUNS[0], packed)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, signals)


@pytest.mark.parametrize("size", [2, 200_000])
def test_two_tasks_that_have_written_one_run_are_refused_before_they_are_merged(tmp_path: Path, size: int) -> None:
    """Icechunk keeps the last of two forks that have written one chunk (`findings/icechunk_merge_one_chunk.sh`)."""
    store = create_network(tmp_path / "net")
    first = commit_runs(store, RUNS[:1])
    before, numbers = store.open(first), np.random.default_rng(1).permutation(size).astype(np.int32) + 1
    run = pack_run(RegionRun(Run(np.array([5]), np.array([0, size]), np.arange(size), numbers), Run.empty()))
    assert is_joined(run) == (size == 2), "small runs are one array"
    with store.lock():
        session = store.begin()
        forks = [write_run(store.fork(session), RUNS[1], run) for _ in range(2)]
        with pytest.raises(RuntimeError, match=f"two tasks have written runs/{RUNS[1]}"):
            store.commit(session, forks, before, before.manifest())
    assert store.head() == first
