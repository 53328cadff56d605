"""The cluster that a call uses: the given one, the current one, or one that is started; training in the background."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster, default_client, get_client
from distributed.client import CancelledFuturesGroup, FutureCancelledError, FuturesCancelledError
from support.village import write_village

import giaann_dask as gd
from giaann_dask.api import cluster as api_cluster
from giaann_dask.api.cluster import use_client
from giaann_dask.cluster import current_client, find_client
from giaann_dask.cluster.waiting import lost_cluster
from giaann_dask.data import sample_test_text, sample_text
from giaann_dask.errors import ClusterError, EmptyInputError, OptionError, ReportMissingError
from giaann_dask.events import Committed, Event
from giaann_dask.models.columns.model import ColumnsModel
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.read_options import ReadOptions

PROMPT = "The old miller carried the flour"
# Two commits, of which the second waits until the first was seen.
SMALL = gd.TextOptions(reading=ReadOptions(part_characters=1000))
MANY = gd.TrainingOptions(batch_sequences=8, block_characters=1, commit_sequences=20, rounds_in_flight=1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster:
        yield cluster


def test_the_given_cluster_is_used(cluster: LocalCluster, tmp_path: Path) -> None:
    # Not the current one of this process, which has no client.
    network = gd.train(sample_test_text(), tmp_path / "net", client=cluster)
    assert current_client() is None
    with Client(cluster, set_as_default=False) as client:
        assert network.evaluate(sample_test_text(), client=client).top1 > 0
    assert network.evaluate(sample_test_text(), client=cluster.scheduler_address).top1 > 0
    assert cluster.status.name == "running"


def test_the_current_client_is_used(cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Client | None] = []
    open_model = ColumnsModel.open

    def count(model: ColumnsModel, reader: CommitReader, *, client: Client | None = None, **options: Any) -> Any:
        opened.append(client)
        return open_model(model, reader, client=client, **options)

    monkeypatch.setattr(ColumnsModel, "open", count)
    with Client(cluster) as client:
        with use_client() as used:
            assert used is client
        network = gd.train(sample_test_text(), tmp_path / "net")
        assert network.generate(PROMPT, max_tokens=1).text == "to"
        for given in (None, client):
            assert [*network.sessions([PROMPT], client=given, max_tokens=1)][-1].finished
        assert opened.count(client) == 1, "the network is opened once on the cluster"
    assert network.generate(PROMPT, max_tokens=1).text == "to"


def test_clients_of_tasks_are_not_used_when_their_cluster_is_closed(cluster: LocalCluster) -> None:
    # Dask closes clients of tasks with the last worker of a process; there is another one.
    assert len(cluster.workers) == 1
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as closed,
        Client(closed, set_as_default=False) as client,
    ):
        assert client.submit(lambda: get_client().status).result() == "running"
    left = default_client()
    assert left.status != "running"
    assert current_client() is None
    assert find_client() is None
    left.close(timeout=30)


def test_asynchronous_clients_are_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    async def train() -> None:
        async with Client(cluster.scheduler_address, asynchronous=True) as client:
            gd.train(sample_test_text(), tmp_path / "net", client=client)

    with pytest.raises(OptionError, match="client is asynchronous"):
        asyncio.run(train())

    async def look() -> None:
        async with Client(cluster.scheduler_address, asynchronous=True) as client:
            gd.roles_of(client)

    with pytest.raises(OptionError, match="client is asynchronous"):
        asyncio.run(look())

    async def start() -> None:
        async with LocalCluster(n_workers=0, processes=False, dashboard_address=None, asynchronous=True) as started:
            gd.train(sample_test_text(), tmp_path / "net", client=started)

    with pytest.raises(OptionError, match="client is asynchronous"):
        asyncio.run(start())
    with pytest.raises(OptionError, match="scheduler is of type LocalCluster; expected the address"):
        gd.connect(cluster)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="scheduler is ''; expected the address"):
        gd.connect("")
    with pytest.raises(OptionError, match="client is of type int"):
        gd.train(sample_test_text(), tmp_path / "net", client=7)  # type: ignore[call-overload]
    assert not (tmp_path / "net").exists()


def test_an_asynchronous_current_client_is_refused_and_no_workers_are_started(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_cluster, "connect", lambda: pytest.fail("workers are started"))

    async def call(work: Callable[[], object]) -> None:
        async with Client(cluster.scheduler_address, asynchronous=True):
            work()

    for work in (
        lambda: gd.train(sample_test_text(), tmp_path / "net"),
        lambda: gd.train(sample_test_text(), tmp_path / "net", wait=False),
        lambda: gd.encode(sample_test_text(), tmp_path / "corpus"),
    ):
        with pytest.raises(OptionError, match=r"^the current Dask client is asynchronous; expected a synchronous"):
            asyncio.run(call(work))
    assert not list(tmp_path.iterdir())


def train_and_evaluate(path: Path) -> tuple[float, str]:
    """Use a cluster from within one of its tasks."""
    network = gd.train(sample_test_text(), path)
    found = network.evaluate(sample_test_text()).top1, network.generate(PROMPT, max_tokens=1).text
    assert gd.train(sample_text(), path, wait=False).result(100).manifest.sequences > network.manifest.sequences
    with use_client() as used, use_client(used) as again:
        assert again is used
    return found


def test_a_task_uses_the_client_of_its_worker(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_cluster, "connect", lambda: pytest.fail("workers are started"))
    # Not the current one of this process, which is that of its worker, too. The worker has one thread.
    with Client(cluster, set_as_default=False) as client:
        tasks = [client.submit(train_and_evaluate, tmp_path / name) for name in ("one", "two")]
        found = client.gather(tasks)
        assert found[0] == found[1]
        assert found[0][1] == "to"
        with pytest.raises(OptionError, match="the current Dask client is asynchronous"):
            client.run(train_and_evaluate, tmp_path / "three")
        assert client.submit(sum, [1, 2]).result() == 3


def test_a_restart_of_the_workers_is_said_so(cluster: LocalCluster, tmp_path: Path) -> None:
    async def restarted(client: Client) -> None:
        # What the scheduler tells all of its clients when one of them restarts it.
        client._handle_restart()

    with Client(cluster, set_as_default=False) as client:

        def restart(event: Event) -> None:
            if isinstance(event, Committed):
                client.sync(restarted, client)

        with pytest.raises(ClusterError, match=r"^the workers were restarted; .*run the same command again"):
            gd.train(sample_text(), tmp_path / "net", client=client, text=SMALL, options=MANY, observer=restart)
    assert gd.Network(tmp_path / "net").manifest.sequences, "what was committed is kept"


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        (["scheduler-restart", "lost dependencies"], "^the workers were restarted"),
        (["lost dependencies"], "^tasks were cancelled, as where the workers were restarted"),
        (["scheduler-connection-lost"], "the connection to the scheduler is lost"),
        ([None], "the connection to the scheduler is lost"),
    ],
)
def test_why_tasks_were_cancelled(reasons: list[str | None], said: str) -> None:
    errors = [FutureCancelledError("a", reason) for reason in reasons]
    groups = [CancelledFuturesGroup([error], error.reason) for error in errors]
    for error in (FuturesCancelledError(groups), *errors[:1]):
        with pytest.raises(ClusterError, match=said), lost_cluster():
            raise error


@pytest.mark.cluster
def test_a_cluster_is_started_once_and_announced(tmp_path: Path) -> None:
    script = f"""
import giaann_dask as gd
texts = [f"The old miller carried the flour to the baker before light number {{n}}." for n in range(9)]
network = gd.train(texts, {str(tmp_path)!r} + "/net")
print(len(gd.connect.__module__) > 0, network.training_report.sequences)
again = gd.train([{PROMPT!r} + f" to the baker before light {{n}} came." for n in range(3)], network)
print(again.manifest.sequences)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["True 9", "12"]
    assert done.stderr.count("giaann_dask: started") == 1


def test_keywords_replace_fields_of_options(cluster: LocalCluster, tmp_path: Path) -> None:
    with Client(cluster):
        best = gd.train(sample_test_text(), tmp_path / "contexts", profile="contexts", regions=2)
        columns = gd.train(sample_test_text(), tmp_path / "v1", profile="v1", regions=2)
        drawn = best.generate(PROMPT, max_tokens=3, temperature=0.7, seed=5, explain=False)
        options = gd.GenerationOptions(max_tokens=3, reasons=0, sampling=gd.SamplingOptions(temperature=0.7, seed=5))
        assert drawn == best.generate(PROMPT, options=options)
        assert len(drawn.tokens) == 3
        assert columns.generate(PROMPT, explain=True, options=gd.GenerationOptions(reasons=0)).tokens[0].reasons
        with pytest.raises(OptionError, match=r"temperature 0\.7 for a network of profile v1"):
            columns.generate(PROMPT, temperature=0.7)
        with pytest.raises(OptionError, match="both specification and profile"):
            gd.train(sample_test_text(), tmp_path / "x", profile="v1", specification=gd.Specification())
        # Networks of every profile are evaluated by one method.
        for network in (best, columns):
            report = network.evaluate(sample_test_text(), top_k=(1, 5), max_sequences=10)
            assert report.sequences == 10
            assert 0 < report.top1 <= 1
            assert report.prediction_tokens > 0
        assert best.evaluate(sample_test_text()).top1 == best.score(sample_test_text()).top1
    with best.session(PROMPT, max_tokens=2) as session:
        assert [token.reasons for token in session] == [(), ()]


def test_by_default_a_network_of_columns_predicts_unseen_text_best(cluster: LocalCluster, tmp_path: Path) -> None:
    with Client(cluster):
        network = gd.train(sample_text(), tmp_path / "net")
        rules = [
            gd.InferenceOptions(timing=timing, sequential=sequential)  # type: ignore[arg-type]
            for timing in ("none", "biased", "exact")
            for sequential in (False, True)
        ]
        options = [gd.EvaluationOptions(inference=rule) for rule in rules]
        matches = [network.evaluate(sample_test_text(), options=each).prediction_matches for each in options]
        assert rules[matches.index(max(matches))] == gd.InferenceOptions(), matches
        assert network.evaluate(sample_test_text()).prediction_matches == max(matches)


def test_opening(cluster: LocalCluster, tmp_path: Path) -> None:
    trained = gd.train(sample_test_text(), tmp_path / "a net", client=cluster)
    opened = gd.open((tmp_path / "a net").as_uri())
    assert opened.commit == gd.open(trained).commit == trained.commit
    with pytest.raises(ReportMissingError, match=r"opened, not trained"):
        _ = opened.training_report
    assert not hasattr(opened, "training_report")
    with pytest.raises(FileNotFoundError):
        gd.open(tmp_path / "none")


class Gate:
    """Observer that holds training after its first commit until it is opened."""

    def __init__(self) -> None:
        self.committed, self.opened = threading.Event(), threading.Event()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Committed) and not self.committed.is_set():
            self.committed.set()
            assert self.opened.wait(60)


def test_training_in_the_background(cluster: LocalCluster, tmp_path: Path) -> None:
    text, gate = write_village(tmp_path / "village.txt", 60), Gate()
    with Client(cluster):
        training = gd.train(text, tmp_path / "net", text=SMALL, options=MANY, observer=gate, wait=False)
        assert gate.committed.wait(60)
        early = training.network
        assert early is not None
        assert 0 < early.manifest.sequences < 60
        assert early.generate(PROMPT, max_tokens=1).commit == early.commit
        assert not training.done()
        assert "running" in repr(training)
        with pytest.raises(TimeoutError):
            training.result(timeout=0.01)
        gate.opened.set()
        network = asyncio.run(_awaited(training))
        assert training.result() is network
        assert training.exception() is None
        assert network.training_report.sequences == training.sequences == network.manifest.sequences == 60
        assert training.network is network
        assert "done" in training._repr_html_()
        whole = gd.train(text, tmp_path / "whole", text=SMALL)
    assert (network.describe()["connections"], network.describe()["trained"]) == (
        whole.describe()["connections"],
        whole.describe()["trained"],
    )


async def _awaited(training: gd.Training) -> gd.Network:
    return await training


def test_stopping_a_training(cluster: LocalCluster, tmp_path: Path) -> None:
    text, gate = write_village(tmp_path / "village.txt", 100), Gate()
    with Client(cluster):
        training = gd.train(text, tmp_path / "net", text=SMALL, options=MANY, observer=gate, wait=False)
        assert gate.committed.wait(60)
        training.stop()
        gate.opened.set()
        network = training.result(60)
        assert network.training_report.stopped
        assert network.manifest.sequences < 100
        assert gd.train(text, tmp_path / "net", text=SMALL).manifest.sequences == 100


def test_a_training_that_fails(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("A miller.", encoding="utf-8")
    with Client(cluster):
        training = gd.train(tmp_path / "short.txt", tmp_path / "net", wait=False)
        with pytest.raises(EmptyInputError):
            training.result(60)
        assert "failed" in repr(training)
        assert isinstance(training.exception(), EmptyInputError)
        assert training.network is None


def test_a_process_that_ends_commits_first(tmp_path: Path) -> None:
    text = write_village(tmp_path / "village.txt", 600)
    script = f"""
import threading, giaann_dask as gd
from giaann_dask.events import RoundIntegrated
begun = threading.Event()
def observe(event):
    if isinstance(event, RoundIntegrated):
        begun.set()
client = gd.connect(workers=0)
from support.village import SMALL_PARTS
options = gd.TrainingOptions(batch_sequences=8, block_characters=1)
network = {str(tmp_path)!r} + "/net"
few = gd.Specification(regions=2)
training = gd.train(
    {str(text)!r}, network, text=SMALL_PARTS, specification=few, options=options, observer=observe, wait=False
)
assert begun.wait(60)
"""
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False, env=path
    )
    assert done.returncode == 0, done.stderr
    assert 0 < gd.open(tmp_path / "net").manifest.sequences < 600
