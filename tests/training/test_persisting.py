"""A persisted network stays in the memory of its cluster's workers, where every client finds it."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx2
import pytest
from distributed import Client, LocalCluster, get_worker
from support.processes import until
from support.village import NOUNS, write_village

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.cluster import held_runs
from giaann_dask.cluster.held_runs import EntryService
from giaann_dask.cluster.persistence import (
    OwnerBalance,
    PersistedCommit,
    PublishedRuns,
    is_published,
    published_commits,
)
from giaann_dask.cluster.regions import region_holders
from giaann_dask.models.columns import predictor
from giaann_dask.predict import generation
from giaann_dask.store import commits
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.run_io import StoredEntries

PROMPT = "The old miller carried the flour"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Identities of the runs of which anything but metadata is read from stores in this process."""
    found: list[str] = []

    class Counted(StoredEntries):
        def __init__(self, store: Any, prefix: str) -> None:
            super().__init__(store, prefix)
            self.prefix = prefix

        def read(self, names: Sequence[str]) -> dict[str, bytes]:
            entries = super().read(names)
            paths = [f"{self.prefix}{name}" for name in entries if not name.endswith("zarr.json")]
            found.extend(path.split("/")[1] for path in paths if path.startswith("runs/"))
            return entries

    monkeypatch.setattr(commits, "StoredEntries", Counted)
    return found


def in_process_cluster(protocol: str | None = None) -> LocalCluster:
    return LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=False,
        dashboard_address=None,
        scheduler_port=0,
        memory_limit=0,
        protocol=protocol,
    )


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with in_process_cluster() as started:
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


@pytest.mark.cluster
def test_a_restart_of_the_workers_hides_no_persisted_network(tmp_path: Path) -> None:
    """Each is listed with the runs that workers have, until it is persisted again."""
    with gd.connect(workers=0):
        networks = [gd.train(write_village(tmp_path / name, 60), tmp_path / f"{name}.net") for name in "ab"]
    # Only workers with a nanny can be restarted.
    cluster = LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, scheduler_port=0)
    with cluster, Client(cluster) as client:
        for network in networks:
            network.persist(client)
        runs = [each.runs for each in published_commits(client)]
        client.restart()
        lost = published_commits(client)
        assert [(each.network, each.commit) for each in lost] == [(str(net.path), net.commit) for net in networks]
        assert [(each.runs, each.held, each.nbytes) for each in lost] == [(count, 0, 0) for count in runs]
        assert f"0 of {runs[0]} in memory; persist the network again" in repr(lost[0])
        assert networks[0].generate(PROMPT, client=client, max_tokens=1).tokens
        networks[0].persist(client)
        assert [each.held for each in published_commits(client)] == [runs[0], 0]
        assert all(network.unpersist(client) for network in networks)
        assert published_commits(client) == []


def test_a_network_is_unpersisted_by_any_of_its_names(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The scheduler logs no traceback, also where it is not persisted, and what is listed has lines."""
    with gd.connect(workers=0):
        network = gd.train(write_village(tmp_path / "text.txt", 60), tmp_path / "net")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("net")
    with in_process_cluster("tcp") as cluster, Client(cluster) as client:
        where = ["--scheduler", cluster.scheduler_address]
        for name in ("net", "./net/", "link", network.path.as_uri()):
            assert run(["persist", name, *where]) == 0
            said = capsys.readouterr().out.splitlines()
            assert said[:2] == [f"Persisted {network.path}", f"  commit{' ' * 17}{network.commit}"]
            assert run(["unpersist", name, *where]) == 0
            assert capsys.readouterr().out == "released\n"
            assert published_commits(client) == []
            assert run(["unpersist", name, *where]) == 0
            assert capsys.readouterr().out == "it was not persisted\n"
    assert not [record for record in caplog.records if record.exc_info]


class Kept(NamedTuple):
    """Network that a cluster keeps in memory, and what commands about it are given."""

    path: Path
    text: Path
    scheduler: str
    folder: Path

    def run(self, *arguments: object) -> None:
        """Run a command on the cluster."""
        assert run([*map(str, arguments), "--scheduler", self.scheduler]) == 0


def is_of_columns(kept: Kept) -> bool:
    return gd.open(kept.path).specification.traits.columns


def serve(kept: Kept) -> None:
    with Client(kept.scheduler) as client, gd.serve(kept.path, client=client) as server:
        asked = {"prompt": PROMPT, "max_tokens": 2, "connections": 3}
        with httpx2.Client(base_url=server.url, timeout=60) as http:
            (choice,) = http.post("/v1/completions", json=asked).raise_for_status().json()["choices"]
            traced = http.get("/v1/trace", params=asked).raise_for_status().json()["choices"][0]
    assert traced["text"] == choice["text"]
    assert any(each.get("sentences") for each in traced["giaann"]["tokens"][0]["connections"])


def read_columns(kept: Kept) -> None:
    with Client(kept.scheduler):
        network = gd.open(kept.path)
        assert len(network.to_dask_dataframe(names=False)) == network.manifest.connections
        if is_of_columns(kept):
            assert network[NOUNS[0]].connections
            assert len(network.table()) == network.manifest.connections
        assert network.digest()


def draw(kept: Kept) -> None:
    if is_of_columns(kept):
        kept.run("draw", kept.path, "--out", kept.folder / "columns.svg")
        kept.run("draw", kept.path, "--density", "--out", kept.folder / "density.svg")
        kept.run("draw", kept.path, "--prompt", PROMPT, "--out", kept.folder / "step.svg")


COMMANDS: dict[str, Callable[[Kept], None]] = {
    "generate": lambda kept: kept.run("generate", kept.path, PROMPT),
    "trace": lambda kept: kept.run("trace", kept.path, PROMPT),
    "evaluate": lambda kept: kept.run("evaluate", kept.path, kept.text, "--max-sequences", 5),
    "diff": lambda kept: kept.run("diff", kept.path, kept.path),
    "report": lambda kept: kept.run("report", kept.path, "--out", kept.folder / "report.html"),
    "weekly": lambda kept: kept.run("job", "weekly", "--network", kept.path, "--evaluate", kept.text),
    "serve": serve,
    "columns": read_columns,
    "train": lambda kept: kept.run("train", kept.text, "--network", kept.path),
    "draw": draw,
    "prune": lambda kept: kept.run("prune", kept.path, "--keep", 0.5, "--out", kept.folder / "pruned"),
    "nightly": lambda kept: kept.run(
        *("job", "nightly", "--network", kept.path, "--text", kept.text, "--settle-s", 0, "--wait-s", 0)
    ),
}


@pytest.fixture(scope="module", params=["v1", "contexts"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """Network of two commits with an index."""
    folder = tmp_path_factory.mktemp(request.param)
    first, second, third = (write_village(folder / f"{number}.txt", 60, number) for number in (1, 2, 3))
    with gd.connect(workers=0) as client:
        gd.train(first, folder / "net", client=client, profile=request.param, trace=True)
        gd.train(second, folder / "net", client=client)
    with in_process_cluster("tcp") as started:
        with Client(started) as client:
            gd.open(folder / "net").persist(client)
        yield Kept(folder / "net", third, started.scheduler_address, folder)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_read_no_run_of_a_persisted_network(
    kept: Kept, command: str, read: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Tables of commits are built, not found.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    COMMANDS[command](kept)
    assert read == []
    with Client(kept.scheduler) as client:
        assert persisted(client).commit == gd.open(kept.path).commit


def test_a_run_comes_in_bounded_messages_and_from_the_store_where_no_worker_has_it(
    tmp_path: Path, cluster: LocalCluster, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    answered = EntryService.answer

    async def answer(self: EntryService, **question: Any) -> dict[str, Any]:
        found = await answered(self, **question)
        sizes.extend(sum(map(len, entries.values())) for entries in [found["entries"]] if entries)
        return found

    monkeypatch.setattr(held_runs, "ANSWER_BYTES", 1_000)
    monkeypatch.setattr(EntryService, "answer", answer)
    with Client(cluster) as client:
        network = gd.train(write_village(tmp_path / "text.txt", 60, 1), tmp_path / "net", client=client).persist()
        reader = NetworkStore(network.path).open(network.commit)
        identity = network.manifest.runs[0].identity
        stored = reader.stored_run(identity)
        largest = max(len(entry) for table in stored[:2] for entry in table.entries.values())
        read.clear()
        assert [table.entries for table in reader.run(identity)[:2]] == [table.entries for table in stored[:2]]
        assert read == []
        assert len(sizes) > 2
        assert max(sizes) < 1_000 + largest
        network.unpersist()
        assert reader.run(identity).connections.entries == stored.connections.entries
        assert set(read) == {identity}


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
    balance.published = {"net": PublishedRuns("commit", {key: number for number, key in enumerate(runs)})}

    def moved() -> set[str]:
        return {address for _, _, to in balance.run() for address in (each.address for each in to)}

    assert moved() == moved() == {"b"}, "until runs are where they belong"
    assert len(asked) == 1
    workers["c"] = Holder("c")
    assert moved() == {"b", "c"}
    assert len(asked) == 2
    balance.published = {"net": PublishedRuns("commit", dict.fromkeys(runs, 0))}
    list(balance.run())
    assert len(asked) == 3
