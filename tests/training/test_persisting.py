"""A persisted network stays in the memory of its cluster's workers, where every client finds it."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from distributed import Client, LocalCluster, get_worker
from support.processes import until
from support.village import NOUNS, write_village

import giaann_dask as gd
from giaann_dask.cluster.persistence import OwnerBalance, PersistedCommit, is_published, published_commits
from giaann_dask.cluster.regions import region_holders
from giaann_dask.models.columns import predictor
from giaann_dask.predict import generation
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.network_store import NetworkStore

PROMPT = "The old miller carried the flour"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Identities of the runs that are read from stores in this process."""
    found: list[str] = []
    for name in ("run", "connections", "rows"):
        original = getattr(CommitReader, name)

        def count(self: CommitReader, identity: str, *kind: str, original: Any = original) -> Any:
            found.append(identity)
            return original(self, identity, *kind)

        monkeypatch.setattr(CommitReader, name, count)
    return found


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None, scheduler_port=0, memory_limit=0
    ) as started:
        yield started


def persisted(client: Client) -> PersistedCommit:
    (found,) = published_commits(client)
    return found


@pytest.mark.parametrize("profile", ["v1", "contexts"])
def test_nothing_is_read_of_a_persisted_network(
    tmp_path: Path, cluster: LocalCluster, read: list[str], profile: str
) -> None:
    texts = [write_village(tmp_path / f"{number}.txt", 200, number) for number in (1, 2)]
    path, few = tmp_path / "net", gd.EvaluationOptions(max_sequences=5)
    with gd.connect(workers=0) as client:
        gd.train(texts[0], path, specification=gd.Specification(profile=profile), client=client)
    alone = gd.open(path).generate(PROMPT, max_tokens=4)
    with Client(cluster) as first:
        network = gd.open(path).persist(first)
        assert set(read) == {run.identity for run in network.manifest.runs}
        assert persisted(first).commit == network.commit
        assert set(persisted(first).workers) == {worker.address for worker in cluster.workers.values()}
    gc.collect()
    read.clear()
    with Client(cluster) as client:
        network = gd.open(path)
        assert network.generate(PROMPT, client=client, max_tokens=4).text == alone.text
        network.evaluate(texts[1], client=client, options=few)
        assert len(network.to_dask_dataframe(names=False)) == network.manifest.connections
        trained = gd.train(texts[1], path, client=client)
        assert persisted(client).commit == trained.commit != network.commit
        trained.generate(PROMPT, client=client, max_tokens=4)
        assert read == []
        forgotten = gd.forget(path, texts[1], client=client)
        assert persisted(client).commit == forgotten.commit
        assert trained.unpersist(client)
        assert not trained.unpersist(client)
        assert published_commits(client) == []


def test_prompts_go_where_most_of_their_rows_are(
    tmp_path: Path, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them use one opening of the commit."""
    ran: list[str] = []
    opened: list[object] = []
    continued, opening = generation.continue_prompt, predictor.open_prompt_regions

    def continue_prompt(*arguments: Any) -> Any:
        ran.append(get_worker().address)
        return continued(*arguments)

    def open_prompt_regions(*arguments: Any) -> Any:
        opened.append(arguments)
        return opening(*arguments)

    monkeypatch.setattr(generation, "continue_prompt", continue_prompt)
    monkeypatch.setattr(predictor, "open_prompt_regions", open_prompt_regions)
    with Client(cluster) as client:
        text = write_village(tmp_path / "text.txt", 200, 1)
        network = gd.train(text, tmp_path / "net", client=client).persist(client)
        reader = NetworkStore(network.path).open(network.commit)
        columns = predictor.columns_from_store(str(reader.path), reader.commit)
        placement = reader.placement()
        holders = region_holders(reader, placement.live(), client)
        for noun in NOUNS[:8]:
            prompt = f"The old {noun} carried the {NOUNS[0]}"
            neurons = columns.prepare(prompt, "lexicon")[0].sequence.neuron
            rows = Counter(holders[region] for region in placement.regions_of(neurons).tolist())
            network.generate(prompt, client=client, max_tokens=2)
            assert rows[ran[-1]] == max(rows.values())
    assert len(set(ran)) == 2
    assert len(opened) == 1


@pytest.mark.cluster
def test_runs_follow_the_workers(tmp_path: Path) -> None:
    """A lost worker's runs are read by others, and a worker that joins gets its share of the regions."""
    text = write_village(tmp_path / "text.txt", 200, 1)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, scheduler_port=0) as cluster:
        with Client(cluster) as client:
            network = gd.train(text, tmp_path / "net", client=client).persist(client)
            before = persisted(client)
            assert len(before.workers) == 2
            (first, *_) = sorted(before.workers)
            pid = client.run(os.getpid, workers=[first])[first]
        gc.collect()
        os.kill(pid, signal.SIGKILL)
        with Client(cluster) as client:
            until(lambda: first not in persisted(client).workers and persisted(client).nbytes == before.nbytes)
            until(lambda: len(persisted(client).workers) == 2)
            cluster.scale(3)
            # For a moment two workers have a run that moves.
            until(lambda: len(persisted(client).workers) == 3 and persisted(client).nbytes == before.nbytes)
            assert is_published(client, str(network.path))


class Holder(NamedTuple):
    """Worker, as a scheduler knows it."""

    address: str


def test_owners_are_assigned_when_workers_or_runs_change() -> None:
    asked: list[int] = []
    workers = {address: Holder(address) for address in "ab"}

    def identity(n_workers: int) -> dict[str, Any]:
        asked.append(n_workers)
        return {"workers": {address: {} for address in workers}}

    runs = {f"run {number}": SimpleNamespace(nbytes=5, who_has={workers["a"]}) for number in range(4)}
    scheduler = SimpleNamespace(
        extensions={"publish": SimpleNamespace(datasets={"net"})}, tasks=runs, workers=workers, identity=identity
    )
    balance = OwnerBalance()
    balance.manager = SimpleNamespace(scheduler=scheduler)
    balance.regions = {"net": {key: number for number, key in enumerate(runs)}}

    def moved() -> set[str]:
        return {address for _, _, to in balance.run() for address in (each.address for each in to)}

    assert moved() == moved() == {"b"}, "until runs are where they belong"
    assert len(asked) == 1
    workers["c"] = Holder("c")
    assert moved() == {"b", "c"}
    assert len(asked) == 2
    balance.regions = {"net": dict.fromkeys(runs, 0)}
    list(balance.run())
    assert len(asked) == 3
