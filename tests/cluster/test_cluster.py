"""Clusters, roles and the options that name them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import pytest
from dask.utils import key_split
from distributed import Client, Scheduler, Status, Worker, get_task_stream
from distributed.nanny import WorkerProcess
from support.listening import listening
from support.processes import until
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cluster import ClusterOptions, directed, result, results, roles_of, start_cluster, wait_all
from giaann_dask.cluster.connecting import wants_cuda
from giaann_dask.cluster.resilience import scheduler_arguments, set_defaults
from giaann_dask.data import sample_text
from giaann_dask.errors import ClusterError, GiaannError, InputMissingError, OptionError
from giaann_dask.events import Event, RoundIntegrated
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.training.maintenance import compact_network

SHORT = gd.TrainingOptions(max_sequences=20)


@pytest.mark.parametrize(
    "wrong",
    [
        {"scheduler": "tcp://127.0.0.1:1", "workers": 2},
        {"scheduler": "tcp://127.0.0.1:1", "scheduler_file": "x.json"},
        {"workers": -1},
        {"threads": 0},
        {"memory_limit": "much"},
        {"memory_limit": "1MiB"},
        {"protocol": "pigeon"},
        {"device": "abacus"},
        {"hang_timeout_s": 0.1},
    ],
)
def test_impossible_options(wrong: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        ClusterOptions(**wrong)  # type: ignore[arg-type]


def test_no_scheduler_responds(tmp_path: Path) -> None:
    """Nor is anything left of who has tried, as a server that waits for its scheduler tries again and again."""
    before = set(threading.enumerate())
    for address, said in (("tcp://127.0.0.1:9", r"127\.0\.0\.1:9"), ("tls://127.0.0.1:9", "needs certificates")):
        with pytest.raises(ClusterError, match=said):
            gd.connect(options=ClusterOptions(scheduler=address, connect_timeout_s=1))
    assert [each.name for each in threading.enumerate() if each not in before and each.name == "IO loop"] == []
    with pytest.raises(InputMissingError, match=r"none\.json"):
        gd.connect(options=ClusterOptions(scheduler_file=str(tmp_path / "none.json")))


def test_a_cluster_at_a_port_that_is_taken_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ClusterError, match=r"already in use; expected addresses and ports .* choose another port"):
            start_cluster({"storage": 1, "compute": 1}, ClusterOptions(), port)


def test_cuda_where_there_is_none() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    assert not wants_cuda(ClusterOptions())
    with pytest.raises(OptionError, match="CUDA"):
        wants_cuda(ClusterOptions(device="cuda"))


def test_the_users_configuration_takes_precedence() -> None:
    set_defaults()
    assert dask.config.get("distributed.scheduler.allowed-failures") > 3
    script = (
        "import dask; from giaann_dask.cluster.resilience import scheduler_arguments, set_defaults; set_defaults();"
        "print(dask.config.get('distributed.scheduler.worker-ttl'), list(scheduler_arguments()))"
    )
    environment = {**os.environ, "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "77s"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "77s ['plugins']\n"
    assert scheduler_arguments(5.0)["worker_ttl"] == 5.0


def test_the_error_of_a_closed_client_says_to_connect_again(tmp_path: Path) -> None:
    with gd.connect(workers=0) as client:
        network = gd.train(sample_text(), tmp_path / "net", client=client, options=SHORT)
    uses: list[Callable[[], object]] = [
        lambda: gd.train(sample_text(), tmp_path / "other", client=client),
        lambda: gd.train(sample_text(), network.path, client=client),
        lambda: gd.encode(sample_text(), tmp_path / "corpus", client=client),
        lambda: network.evaluate(sample_text(), client=client),
        lambda: network.generate("The old miller", client=client),
        lambda: network.report(client=client),
        lambda: compact_network(client, NetworkStore(network.path)),
    ]
    for use in uses:
        with pytest.raises(ClusterError, match=r"the client is closed; .*connect again"):
            use()
    assert [path.name for path in tmp_path.iterdir()] == ["net"]


@pytest.mark.cluster
def test_a_finished_task_resets_its_count_of_lost_workers() -> None:
    with gd.connect(options=ClusterOptions(workers=1, hang_timeout_s=30)) as client:
        scheduler = client.cluster.scheduler
        assert scheduler.worker_ttl == 30
        # Dask's profiler can hang a process of Python 3.11.
        profiled = client.run(dask.config.get, "distributed.worker.profile.enabled")
        assert set(profiled.values()) == {sys.version_info >= (3, 12)}
        assert scheduler.allowed_failures == dask.config.get("distributed.scheduler.allowed-failures")
        future = client.submit(time.sleep, 0, key="innocent")
        future.result(timeout=60)
        for _ in range(2):
            client.run_on_scheduler(blame, "innocent")
            (pid,) = client.run(os.getpid).values()
            os.kill(pid, signal.SIGKILL)
            # Its result went with the worker, and is computed again.
            until(lambda: scheduler.tasks["innocent"].suspicious == 0)
            future.result(timeout=60)


def blame(key: str, dask_scheduler: Scheduler) -> None:
    dask_scheduler.tasks[key].suspicious = 30


def test_preferred_workers() -> None:
    assert directed("a") == {"workers": ["a"], "allow_other_workers": True}


@pytest.mark.cluster
def test_every_local_worker_has_both_roles() -> None:
    with gd.connect(options=ClusterOptions(workers=2, memory_limit="1GiB", threads=2)) as client:
        roles = roles_of(client)
        limits = {w["memory_limit"] for w in client.scheduler_info()["workers"].values()}
        threads = set(client.nthreads().values())
    assert len(roles.storage) == 2
    assert roles.storage == roles.compute
    assert roles.computing() == {}
    assert (limits, threads) == ({1 << 30}, {2})


@pytest.mark.cluster
def test_tasks_run_on_workers_of_their_role(tmp_path: Path) -> None:
    text = write_village(tmp_path / "village.txt", 2000)
    with gd.connect(workers=0) as client:
        plain = gd.train(text, tmp_path / "plain", client=client)
    with start_cluster({"storage": 2, "compute": 1}, ClusterOptions()) as cluster, Client(cluster) as client:
        roles = roles_of(client)
        assert (len(roles.storage), len(roles.compute)) == (2, 1)
        client.get_task_stream()
        network = gd.train(text, tmp_path / "roles", client=client)
        ran: dict[str, set[str]] = {}
        for task in client.get_task_stream():
            ran.setdefault(str(task["key"]).split("-")[0], set()).add(task["worker"])
    assert ran["count_batch"] == set(roles.compute)
    for name in ("integrate", "compact", "pack", "commit"):
        assert ran.get(name, set()) <= set(roles.storage), name
    assert ran["integrate"] == set(roles.storage), "regions are dealt to all that hold columns"
    exports = [n.export(tmp_path / f"{n.path.name}.npz") for n in (plain, network)]
    assert exports[0].connections.read_bytes() == exports[1].connections.read_bytes()


@pytest.mark.cluster
def test_a_cluster_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    arguments = [sys.executable, "-m", "giaann_dask", "cluster", "--storage", "1", "--compute", "1"]
    arguments += ["--scheduler-file", str(file), "--json"]
    # It ends without a connection to the scheduler that has ended.
    patient = {**os.environ, "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "300s"}
    process = subprocess.Popen(arguments, env=patient, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: file.exists() or process.poll() is not None)
        with gd.connect(options=ClusterOptions(scheduler_file=str(file))) as client:
            client.wait_for_workers(2, timeout=120)
            assert listening(process.pid) == {"127.0.0.1"}
            roles = roles_of(client)
            assert set(roles.storage).isdisjoint(roles.compute)
            text = write_village(tmp_path / "village.txt", 40)
            report = gd.train(text, tmp_path / "net", client=client).training_report
        assert report.trained > 0
        stop = [sys.executable, "-m", "giaann_dask", "cluster", "stop", "--scheduler-file", str(file), "--json"]
        stopped = subprocess.run(stop, capture_output=True, text=True, timeout=120)
        assert json.loads(stopped.stdout)["workers"] == 2, stopped.stderr
        # The command that started it sees that, and ends.
        process.wait(90)
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out)["scheduler"].startswith("tcp://127.0.0.1")
    assert not file.exists()


@pytest.mark.cluster
def test_increments_are_divided_where_they_were_computed(tmp_path: Path) -> None:
    """A storage worker fetches its regions' parts, never a whole increment to pick one part of it."""
    text = write_village(tmp_path / "village.txt", 500)
    options = gd.TrainingOptions(batch_sequences=50, block_characters=5_000, accumulate=2)
    small = gd.TextOptions(reading=ReadOptions(part_characters=5_000))
    with start_cluster({"storage": 2, "compute": 1}, ClusterOptions()) as cluster, Client(cluster) as client:
        client.wait_for_workers(3, timeout=60)
        compute = set(roles_of(client).compute)
        with get_task_stream(client) as stream:
            gd.train(text, tmp_path / "net", client=client, options=options, text=small)
    where: dict[str, set[str]] = {}
    for task in stream.data:
        where.setdefault(str(task["key"]).rsplit("-", 1)[0], set()).add(task["worker"])
    for name in ("count_batch", "accumulate", "route"):
        assert where[name] == compute, name
    assert where["integrate"] - compute


@pytest.mark.slow
@pytest.mark.cluster
def test_compaction_changes_no_exported_byte(tmp_path: Path) -> None:
    first, second = write_village(tmp_path / "a.txt", 3000, 2), write_village(tmp_path / "b.txt", 60, 3)
    with gd.connect(workers=0) as client:
        small = gd.TextOptions(reading=ReadOptions(part_characters=10_000))
        many = gd.TrainingOptions(batch_sequences=100, block_characters=10_000)
        gd.train(first, tmp_path / "net", client=client, options=many, text=small)
        network = gd.train(second, tmp_path / "net", client=client)
        before = network.export(tmp_path / "before.npz").connections.read_bytes()
        size = network.describe()
        kept = compact_network(client, NetworkStore(tmp_path / "net"))
        assert len(gd.Network(tmp_path / "net", network.commit).manifest.runs) == kept.runs_before
        forgotten = compact_network(client, NetworkStore(tmp_path / "net"), keep_commits=1)
        compacted = gd.Network(tmp_path / "net")
        with pytest.raises(GiaannError):
            compact_network(client, NetworkStore(tmp_path / "net"), keep_commits=0)
        again = gd.train(first, tmp_path / "net", client=client, text=small)
        report = again.training_report
    reader = NetworkStore(tmp_path / "net").open(compacted.commit)
    assert reader.stored_runs() == {run.identity for run in compacted.manifest.runs}
    assert kept.runs < kept.runs_before
    assert forgotten.freed_bytes > 0
    assert compacted.describe()["bytes_on_disk"] < size["bytes_on_disk"]
    assert compacted.export(tmp_path / "after.npz").connections.read_bytes() == before
    assert report.sequences == 0
    assert again.commit == compacted.commit
    with pytest.raises(GiaannError):
        gd.Network(tmp_path / "net", network.commit)


@pytest.mark.cluster
def test_the_restart_of_a_worker_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    started, failures = WorkerProcess.start, [2]

    async def fail_twice(process: WorkerProcess) -> object:
        if failures[0] > 0:
            failures[0] -= 1
            raise RuntimeError("no room to start")
        return await started(process)

    with gd.connect(workers=1) as client:
        (pid,) = client.run(os.getpid).values()
        monkeypatch.setattr(WorkerProcess, "start", fail_twice)
        os.kill(pid, signal.SIGKILL)
        assert client.submit(pow, 2, 10).result(timeout=90) == 1024
        assert next(iter(client.run(os.getpid).values())) != pid
    assert failures == [0]


def take_none(dask_worker: Worker) -> None:
    """Let a worker pause for want of memory, for good."""
    dask_worker.memory_manager.memory_pause_fraction = 1e-9
    dask_worker.status = Status.paused


@pytest.mark.cluster
def test_the_error_of_a_timeout_names_paused_workers() -> None:
    with gd.connect(workers=1) as client, dask.config.set({"giaann.timeout-s": 0.5}):
        with pytest.raises(ClusterError, match=r"not finished within 0\.5 seconds; expected an answer in time"):
            result(client.submit(time.sleep, 2))
        client.run(take_none)
        for wait in (result, lambda future: wait_all([future])):
            with pytest.raises(ClusterError, match=r"1 of 1 workers take none.*memory_limit"):
                wait(client.submit(time.sleep, 0.1))


@pytest.mark.cluster
def test_results_are_fetched_in_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with gd.connect(workers=0) as client:
        handlers, asked = client.cluster.scheduler.handlers, []

        async def gather(*arguments: Any, **options: Any) -> Any:
            asked.append(options["keys"])
            return await answer(*arguments, **options)

        answer = handlers["gather"]
        monkeypatch.setitem(handlers, "gather", gather)
        futures = [client.submit(pow, number, 2) for number in range(5)]
        assert results([*futures, futures[1]]) == [0, 1, 4, 9, 16, 1]
        assert len(asked) == 1
        with pytest.raises(ZeroDivisionError):
            results([futures[0], client.submit(divmod, 1, 0)])
        assert results([]) == []


@pytest.mark.cluster
def test_the_history_of_a_scheduler_is_limited() -> None:
    with gd.connect(options=ClusterOptions(workers=1, threads=2)) as client:
        scheduler = client.cluster.scheduler
        # As long as anything is under way, all that is asked for counts as one piece of work.
        under_way = client.submit(time.sleep, 20)
        for number in range(300):
            client.submit(pow, number, 2).release()
        client.submit(pow, 7, 7).result(timeout=60)
        spans = scheduler.extensions["spans"].spans.values()
        assert max(len(span.metadata["collections"]) for span in spans) > 200
        forgetting = scheduler.periodic_callbacks["giaann-history-pruning"]
        assert forgetting.is_running()
        named = key_split.cache_info().currsize
        forgetting.callback()
        # Others may be named meanwhile.
        assert key_split.cache_info().currsize < named / 2 > 100
        assert max(len(span.metadata["collections"]) for span in spans) == 100
        under_way.cancel()


@pytest.mark.cluster
def test_a_training_is_one_span_of_work_however_often_the_cluster_is_idle(tmp_path: Path) -> None:
    text, pauses = write_village(tmp_path / "a.txt", 300), 0

    def pause(event: Event) -> None:
        nonlocal pauses
        pauses += isinstance(event, RoundIntegrated)
        time.sleep(0.05)

    options = gd.TrainingOptions(batch_sequences=40, block_characters=1500, rounds_in_flight=1, commit_seconds=0.01)
    with gd.connect(workers=1) as client:
        gd.train(text, tmp_path / "net", client=client, options=options, observer=pause)
        names = Counter(span.name for span in client.cluster.scheduler.extensions["spans"].spans.values())
    assert pauses > 4
    assert names["giaann-dask training",] == 1
    # Of whoever connects, and of what is read afterwards.
    assert sum(names.values()) <= 3
