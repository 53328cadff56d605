"""Sessions whose workers are killed or hang, or whose cluster is lost: the same tokens, or a clear error in time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Worker
from support.processes import until
from support.stored_networks import reader_of
from support.village import ADJECTIVES, NOUNS, VERBS, write_village

import giaann_dask as gd
from giaann_dask.cluster import roles_of, start_cluster
from giaann_dask.errors import ClusterError
from giaann_dask.events import SequencesEvaluated
from giaann_dask.models.base import TokenEvent
from giaann_dask.models.columns.evaluation import evaluation
from giaann_dask.models.columns.evaluation.evaluation import AccuracyReport
from giaann_dask.models.columns.predictor import open_columns
from giaann_dask.models.generation_options import BatchOptions, EvaluationOptions, GenerationOptions
from giaann_dask.predict.generation import Continuation, Sessions
from giaann_dask.rows.protocol import NAME, OPERATION, RowOptions
from giaann_dask.rows.remote import RemoteRows

PROMPTS = [f"the {a} {n} {v} the" for a, n, v in zip(ADJECTIVES * 2, NOUNS, VERBS * 2, strict=False)]
OPTIONS = GenerationOptions(max_tokens=12, reasons=0)
# Nothing is kept, so that every step asks for rows.
FEW = BatchOptions(slots=3, held_bytes=0)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[gd.Network, list[Continuation]]:
    """A network of many small regions, and what follows the prompts."""
    folder = tmp_path_factory.mktemp("village")
    small = gd.TrainingOptions(region_bytes=60_000, hot_bytes=0)
    with gd.connect(workers=0) as client:
        network = gd.train(write_village(folder / "a.txt", 600), folder / "net", client=client, options=small)
    assert len(reader_of(network).placement().live()) > 4
    return network, list(network.sessions(PROMPTS, options=OPTIONS).continuations())


def asked(**rows: Any) -> GenerationOptions:
    return replace(OPTIONS, rows=RowOptions(mode="remote", cache_bytes=0, **rows))


def disturbed(sessions: Sessions, disturb: Callable[[], None], after: int = 30) -> list[tuple[Any, ...]]:
    """The tokens of every prompt, when something happens after some of them."""
    tokens: list[list[Any]] = [[] for _ in PROMPTS]

    def take(piece: TokenEvent) -> None:
        assert piece.error is None
        if piece.token is not None:
            tokens[piece.number].append(piece.token)

    for _ in range(after):
        take(next(sessions))
    disturb()
    for piece in sessions:
        take(piece)
    return [tuple(each) for each in tokens]


def signal_holder(client: Client, number: signal.Signals) -> None:
    """Send a signal to the storage worker that holds most regions."""
    held = {worker: sum("open_run" in str(key) for key in keys) for worker, keys in client.has_what().items()}
    holder = max(held, key=held.__getitem__)
    assert held[holder] > 1
    assert holder in roles_of(client).storage
    os.kill(client.run(os.getpid, workers=[holder])[holder], number)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("number", "hang_timeout_s"), [(signal.SIGKILL, None), pytest.param(signal.SIGSTOP, 4, marks=pytest.mark.slow)]
)
def test_sessions_outlive_the_worker_that_holds_their_rows(
    known: tuple[gd.Network, list[Continuation]], number: signal.Signals, hang_timeout_s: float | None
) -> None:
    network, expected = known
    with gd.connect(options=gd.ClusterOptions(workers=2, hang_timeout_s=hang_timeout_s)) as client:
        opened = open_columns(reader_of(network), client=client, options=asked(request_s=1))
        with Sessions(opened, PROMPTS, options=asked(request_s=1), batch=FEW) as sessions:
            found = disturbed(sessions, lambda: signal_holder(client, number))
        assert found == [continuation.tokens for continuation in expected]
        assert isinstance(opened.rows, RemoteRows)
        assert opened.rows.own_figures.retries > 0


@pytest.mark.slow
@pytest.mark.cluster
def test_a_holder_that_hangs_is_an_error_in_time(known: tuple[gd.Network, list[Continuation]]) -> None:
    network, _ = known
    begun: list[float] = []
    with gd.connect(workers=2) as client:

        def stop() -> None:
            signal_holder(client, signal.SIGSTOP)
            begun.append(time.monotonic())

        # Before the worker is stopped, too, rows of a busy machine have to come in time.
        options = asked(request_s=2, timeout_s=10)
        with network.sessions(PROMPTS, client=client, options=options, batch=FEW) as sessions:
            with pytest.raises(ClusterError, match="within 10 seconds"):
                disturbed(sessions, stop)
            # The limit is 10 seconds; the others are for a busy machine, and far from the 2 minutes of a hung worker.
            assert time.monotonic() - begun[0] < 50
            assert list(sessions) == []


@pytest.mark.parametrize("lost", ["client", "connection"])
def test_a_lost_connection_is_an_error_at_once(known: tuple[gd.Network, list[Continuation]], lost: str) -> None:
    network, _ = known
    with gd.connect(workers=0) as client:

        def lose() -> None:
            if lost == "client":
                client.close()
                return
            # The client connects again, but its scheduler has forgotten what it wanted.
            client.sync(client.scheduler_comm.close)
            (worker,) = client.cluster.workers.values()
            until(lambda: not any("open_run" in str(key) for key in worker.data) and client.status == "running")

        opened = open_columns(reader_of(network), client=client, options=asked())
        with Sessions(opened, PROMPTS, options=asked(), batch=FEW) as sessions:
            assert opened.health(5) is None
            with pytest.raises(ClusterError, match="the connection to the cluster"):
                disturbed(sessions, lose)
            with pytest.raises(ClusterError, match="the connection to the cluster"):
                opened.rows.row(0)
            assert opened.health(5) == "the connection to the cluster is lost"


def evaluated_without_time(report: AccuracyReport) -> dict[str, Any]:
    return {name: value for name, value in report.as_dict().items() if name not in ("seconds", "rows", "stages")}


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize(("number", "hang_timeout_s"), [(signal.SIGKILL, None), (signal.SIGSTOP, 4)])
def test_an_evaluation_outlives_a_worker_that_computes(
    known: tuple[gd.Network, list[Continuation]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    hang_timeout_s: float | None,
) -> None:
    network, _ = known
    text = write_village(tmp_path / "b.txt", 160, seed=2)
    options = EvaluationOptions(rows=asked().rows, device="cpu")
    with gd.connect(workers=0) as client:
        expected = network.evaluate(text, client=client, options=options)
    monkeypatch.setattr(evaluation, "SEQUENCES_PER_TASK", 4)
    counts, chosen = {"storage": 1, "compute": 2}, gd.ClusterOptions(hang_timeout_s=hang_timeout_s)
    with start_cluster(counts, chosen) as started, Client(started) as client:
        lost: list[str] = []

        def lose(event: object) -> None:
            if isinstance(event, SequencesEvaluated) and not lost:
                busy = [worker for worker, keys in client.processing().items() if any("infer" in str(k) for k in keys)]
                assert set(busy) <= set(roles_of(client).compute)
                # At the time of an event there may be none; that of another task follows.
                if busy:
                    lost.append(busy[0])
                    os.kill(client.run(os.getpid, workers=lost)[lost[0]], number)

        report = network.evaluate(text, client=client, options=options, observer=lose)
        assert lost
        assert evaluated_without_time(report) == evaluated_without_time(expected)
        assert report.prediction_tokens > 500


def hold_back(dask_worker: Worker) -> None:
    """Let a worker answer no rows any more."""
    dask_worker.handlers[OPERATION] = lambda questions, projection: {"answers": [None] * len(questions)}


def answer_again(dask_worker: Worker) -> None:
    dask_worker.handlers[OPERATION] = dask_worker.extensions[NAME].answer


@pytest.mark.slow
@pytest.mark.cluster
def test_a_generation_outlives_the_worker_that_computes_it(known: tuple[gd.Network, list[Continuation]]) -> None:
    """Its rows come only after its worker was killed, so that it is killed in the middle."""
    network, expected = known
    counts = {"storage": 1, "compute": 2}
    with start_cluster(counts, gd.ClusterOptions()) as started, Client(started) as client, ThreadPoolExecutor(1) as one:
        kept = network.sessions(PROMPTS, client=client, options=asked())
        holders = list(roles_of(client).storage)
        client.run(hold_back, workers=holders)
        generated = one.submit(network.generate, PROMPTS[0], client=client, options=asked())
        first = computing(client)
        os.kill(client.run(os.getpid, workers=[first])[first], signal.SIGKILL)
        until(lambda: first not in client.processing())
        assert computing(client) != first
        client.run(answer_again, workers=holders)
        assert generated.result(60) == expected[0]
        kept.close()


def computing(client: Client) -> str:
    """Wait until a worker generates; return it."""
    found: list[str] = []

    def look() -> bool:
        found[:] = [worker for worker, keys in client.processing().items() if any("generate" in str(k) for k in keys)]
        return bool(found)

    until(look)
    return found[0]
