"""Small texts are added to a network by the process that keeps it open, as training adds them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr
from support.village import write_village

import giaann_dask as gd
from giaann_dask.algebra.certificates import RemovalReport
from giaann_dask.algebra.removal import forget_few
from giaann_dask.api.text_options import TextOptions
from giaann_dask.api.texts import as_sources, commit_sources
from giaann_dask.errors import StoreDamagedError
from giaann_dask.runs.joined_tables import JOINED, JOINED_ENTRIES, join_tables, split_tables
from giaann_dask.runs.packed_arrays import Framing, encode_array
from giaann_dask.runs.packing import PackedRegionRun, pack
from giaann_dask.runs.run import Run
from giaann_dask.storage import seal_arrays
from giaann_dask.store import run_io
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.training.small_changes import SmallChanges

# What commits of small texts cost are regions.
_KINDS: tuple[dict[str, object], ...] = (
    {"profile": "v1", "regions": 2},
    {"profile": "v2", "regions": 2, "trace": True, "placement": "balanced"},
    {"profile": "contexts", "regions": 2, "trace": True},
)


def add(changes: SmallChanges, text: str) -> bool:
    inputs = as_sources([text])
    with changes.store.lock():
        reader = changes.opened().reader
        return changes.add(inputs, commit_sources(reader, TextOptions().fitting(inputs))) is not None


def forget(changes: SmallChanges, text: str) -> RemovalReport | None:
    inputs = as_sources([text])
    with changes.store.lock():
        return forget_few(changes, inputs, commit_sources(changes.opened().reader, TextOptions().fitting(inputs)))


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: str(kind["profile"]))
def test_small_texts_make_the_commits_of_training(tmp_path: Path, kind: dict[str, object]) -> None:
    texts = [write_village(tmp_path / f"{number}.txt", 6, number).read_text() for number in range(5)]
    with gd.connect(workers=0) as client:
        gd.train(write_village(tmp_path / "text.txt", 60, 9), tmp_path / "here", client=client, **kind)
        shutil.copytree(tmp_path / "here", tmp_path / "there")
        changes = SmallChanges(tmp_path / "here")
        for number, text in enumerate(texts):
            # Another process may commit between two changes.
            if number == 3 or not add(changes, text):
                gd.train([text], tmp_path / "here", client=client)
            gd.train([text], tmp_path / "there", client=client)
        found, expected = gd.open(tmp_path / "here"), gd.open(tmp_path / "there")
        assert found.digest() == expected.digest()
        for name in ("neurons", "connections", "exact", "by_status", "tokens", "last_trained", "rounds"):
            assert getattr(found.manifest, name) == getattr(expected.manifest, name), name
        assert len(found.manifest.runs) <= 4 * len(found.manifest.runs_by_region()), "runs are added up"
        digests = [gd.forget(each, [texts[2]], client=client).digest for each in (found, expected)]
        assert digests[0] == digests[1]


@pytest.mark.parametrize("kind", _KINDS[:2], ids=lambda kind: str(kind["profile"]))
def test_small_texts_are_subtracted_as_others_are(tmp_path: Path, kind: dict[str, object]) -> None:
    texts = [write_village(tmp_path / f"{number}.txt", 6, number).read_text() for number in range(4)]
    with gd.connect(workers=0) as client:
        gd.train(write_village(tmp_path / "text.txt", 60, 9), tmp_path / "here", client=client, **kind)
        changes = SmallChanges(tmp_path / "here")
        before = gd.open(tmp_path / "here")
        assert all(add(changes, text) for text in texts)
        shutil.copytree(tmp_path / "here", tmp_path / "there")
        expected = gd.forget(tmp_path / "there", [texts[2]], client=client)
        found = forget(changes, texts[2])
        assert found is not None
        same = replace(expected, network=found.network, commit=found.commit, digest="", digest_removed="")
        assert found == same
        assert gd.open(tmp_path / "here").digest() == expected.digest
        assert forget(changes, texts[2]) is None, "it is not held any more"
        for text in (texts[0], *texts[3:], texts[1]):
            assert forget(changes, text) is not None
        after = gd.open(tmp_path / "here")
        assert after.digest() == before.digest()
        assert after.manifest.neurons == before.manifest.neurons
        assert after.manifest.connections == before.manifest.connections


def test_what_is_held_and_what_is_long_is_left_to_training(tmp_path: Path) -> None:
    text = write_village(tmp_path / "text.txt", 60, 9)
    with gd.connect(workers=0) as client:
        gd.train(text, tmp_path / "net", client=client, regions=2)
    changes = SmallChanges(tmp_path / "net")
    head = changes.opened().reader.commit
    assert not add(changes, text.read_text() * 100), "a long text"
    assert not add(changes, "Yes."), "no sentence to train"
    assert changes.opened().reader.commit == head
    assert add(changes, write_village(tmp_path / "more.txt", 6, 1).read_text())
    assert not add(changes, (tmp_path / "more.txt").read_text()), "a text that it holds"


def test_what_a_small_text_costs_in_requests(tmp_path: Path) -> None:
    """An array of a run and Icechunk's manifest of it, and a few objects of the commit."""
    with gd.connect(workers=0) as client:
        gd.train(write_village(tmp_path / "text.txt", 60, 9), tmp_path / "net", client=client)
    changes = SmallChanges(tmp_path / "net")
    assert add(changes, "The fisherman sold a lantern to the captain. The captain hung the lantern on the old ship.")
    store = NetworkStore(tmp_path / "net")
    new = [run for run in store.open(store.head()).manifest().runs if not run.identity.endswith("-00000000")]
    assert 1 <= len(new) <= 4
    assert changes.store.written.requests <= 2 * len(new) + 20


@pytest.mark.parametrize("budget", [0, 60_000])
def test_what_is_kept_of_runs_is_within_a_budget(tmp_path: Path, budget: int) -> None:
    """The digest is the same with any budget; a budget of nothing keeps nothing between two changes."""
    texts = [write_village(tmp_path / f"{number}.txt", 6, number).read_text() for number in range(4)]
    with gd.connect(workers=0) as client:
        gd.train(write_village(tmp_path / "text.txt", 60, 9), tmp_path / "net", client=client, regions=2)
        shutil.copytree(tmp_path / "net", tmp_path / "kept")
    changes, kept = SmallChanges(tmp_path / "net", budget), SmallChanges(tmp_path / "kept")
    for text in texts:
        assert add(changes, text)
        assert add(kept, text)
        assert changes.runs.nbytes <= budget
    assert forget(changes, texts[1]) is not None
    assert forget(kept, texts[1]) is not None
    assert kept.runs.nbytes > max(budget, changes.runs.nbytes), "more would have been kept"
    assert gd.open(tmp_path / "net").digest() == gd.open(tmp_path / "kept").digest()


def test_what_a_change_reads_of_small_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The array of each is read and decoded once, for both of its tables, and is kept."""
    decoded: list[bytes] = []
    split = run_io.split_tables

    def split_tables(joined: Mapping[str, bytes]) -> dict[str, dict[str, bytes]]:
        decoded.append(joined["joined/c/0"])
        return split(joined)

    texts = [write_village(tmp_path / f"{number}.txt", 6, number).read_text() for number in range(3)]
    with gd.connect(workers=0) as client:
        gd.train(write_village(tmp_path / "text.txt", 60, 9), tmp_path / "net", client=client, regions=2, trace=True)
    assert add(SmallChanges(tmp_path / "net"), texts[0])
    monkeypatch.setattr(run_io, "split_tables", split_tables)
    changes = SmallChanges(tmp_path / "net")
    joined = changes.opened().reader.joined_runs
    assert add(changes, texts[1])
    assert 1 < len(decoded) == len(set(decoded)) <= len(joined)
    decoded.clear()
    assert add(changes, texts[2])
    assert not decoded


def test_tables_of_small_runs_are_one_array(tmp_path: Path) -> None:
    with gd.connect(workers=0) as client:
        gd.train(write_village(tmp_path / "text.txt", 60, 9), tmp_path / "net", client=client, regions=2, trace=True)
        changes = SmallChanges(tmp_path / "net")
        texts = [write_village(tmp_path / f"{number}.txt", 6, number).read_text() for number in range(3)]
        assert add(changes, texts[0])
        first = changes.opened().reader
        joined = {run.identity for run in first.manifest().runs}
        assert first.joined_runs == joined
        for identity in joined:
            run, entries = first.run(identity), first.entries(identity)
            assert run.postings is not None
            assert [each.read(["zarr.json"])["zarr.json"] for each in entries] == [
                table.entries["zarr.json"] for table in run[:2]
            ]
        # A training keeps some of them, and adds others up.
        gd.train([texts[1]], tmp_path / "net", client=client)
        second = changes.opened().reader
        assert second.joined_runs == {run.identity for run in second.manifest().runs}
        assert joined & second.joined_runs, "some are kept"
        assert add(changes, texts[2])
        assert second.fingerprint() != changes.opened().reader.fingerprint()
        gd.train(tmp_path / "text.txt", tmp_path / "once", client=client, regions=2, trace=True)
        once = gd.train(texts, tmp_path / "once", client=client)
        assert gd.open(tmp_path / "net").digest() == once.digest()


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: str(kind["profile"]))
def test_checksums_of_content_are_those_of_what_is_stored(tmp_path: Path, kind: dict[str, object]) -> None:
    """They are computed of what is written, without reading it: in additions, removals and trainings."""
    texts = [write_village(tmp_path / f"{number}.txt", 6, number).read_text() for number in range(3)]
    with gd.connect(workers=0) as client:
        gd.train(write_village(tmp_path / "text.txt", 60, 9), tmp_path / "net", client=client, **kind)
        changes = SmallChanges(tmp_path / "net")
        for number, text in enumerate(texts):
            if number == 1 or not add(changes, text):
                gd.train([text], tmp_path / "net", client=client)
        if kind["profile"] != "contexts":
            assert forget(changes, texts[2]) is not None
        gd.forget(tmp_path / "net", texts[:1], client=client)
    store = NetworkStore(tmp_path / "net")
    for commit, _ in store.commits():
        root = zarr.open_group(store.open(commit).zarr_store(), mode="r")
        assert root.attrs["checksums"] == seal_arrays(root)


def test_damaged_joined_tables_are_noticed() -> None:
    empty = pack(Run.empty())
    run = PackedRegionRun(empty, empty)
    joined = join_tables(run)
    assert split_tables(joined) == {"connections": empty.entries, "neurons": empty.entries}
    chunk = JOINED_ENTRIES[1]
    for wrong in (joined[chunk][:-1], joined[chunk][:40] + b"x" + joined[chunk][41:], b""):
        with pytest.raises(StoreDamagedError, match="checksum is wrong"):
            split_tables(joined | {chunk: wrong})
    for content in (b'{"a/b":2}\nx', b'{"a/b":-1,"a/c":2}\nx', b"[]\n", b"{}\n", b'{"a/b":"x"}\n', b""):
        entries = encode_array(JOINED, [np.frombuffer(content, np.uint8)], max(len(content), 1), Framing(1))
        with pytest.raises(StoreDamagedError, match="contradict"):
            split_tables(entries)
