"""The published scheme: single sequences in dense tensors, locked columns, and the bytes of ordinary training."""

from __future__ import annotations

import os
import signal
from collections import deque
from itertools import pairwise
from pathlib import Path

import pytest
from distributed import Client, LocalCluster
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cluster import roles_of
from giaann_dask.data import sample_test_text
from giaann_dask.errors import OptionError
from giaann_dask.events import RoundIntegrated
from giaann_dask.store.corpus import EncodedCorpus
from giaann_dask.training import rounds
from giaann_dask.training.rounds import ColumnLocks
from giaann_dask.training.selection import choose_rounds, touches_of
from giaann_dask.training.training_options import Order, SelectionOptions, TrainingOptions

WORKERS = 3


@pytest.fixture
def made_locks(monkeypatch: pytest.MonkeyPatch) -> list[ColumnLocks]:
    """The locks of the trainings of a test, in order."""
    made: list[ColumnLocks] = []

    class Recorded(ColumnLocks):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(rounds, "ColumnLocks", Recorded)
    return made


def exported(network: gd.Network) -> list[bytes]:
    return [path.read_bytes() for path in network.export(network.path.with_suffix(".npz")) if path.suffix == ".npz"]


def expected_waits(corpus: EncodedCorpus, order: Order) -> int:
    """Sequences that share a column with one of the two before them that have not been waited for."""
    touches, waits = touches_of([corpus.encoded()]), 0
    sets = [set(touches.column[low:high].tolist()) for low, high in pairwise(touches.offsets.tolist())]
    training: deque[set[int]] = deque()
    for number in choose_rounds(touches, WORKERS, SelectionOptions(order=order)).tolist():
        waits += any(held & sets[number] for held in training)
        while any(held & sets[number] for held in training):
            training.popleft()
        training.append(sets[number])
        if len(training) == WORKERS:
            training.popleft()
    return waits


@pytest.mark.parametrize(("profile", "sentences", "orders"), [("v1", 16, [None, "corpus"]), ("v2", 18, [None])])
def test_published_training_makes_the_network_of_batches(
    profile: str, sentences: int, orders: list[Order | None], tmp_path: Path, made_locks: list[ColumnLocks]
) -> None:
    specification = gd.Specification(profile=profile, regions=4, trace=True)
    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        text = write_village(tmp_path / "village.txt", sentences)
        corpus = gd.encode(text, tmp_path / "corpus", specification=specification)
        expected = exported(gd.train(corpus.path, tmp_path / "batches", client=client, specification=specification))
        waits = {}
        for order in orders:
            options = TrainingOptions(mode="published", selection=SelectionOptions(order=order))
            path = tmp_path / f"in order {order}"
            network = gd.train(corpus.path, path, client=client, specification=specification, options=options)
            assert exported(network) == expected
            assert network.training_report.messages >= network.training_report.trained > 4
            waits[order] = network.training_report.lock_waits
    assert waits == {order: expected_waits(corpus, order or "least-overlap") for order in orders}
    assert waits[None] < waits.get("corpus", len(corpus))
    assert [len(each) for each in made_locks] == [0] * (1 + len(orders))


@pytest.mark.cluster
def test_locks_of_a_killed_worker_are_released(tmp_path: Path, made_locks: list[ColumnLocks]) -> None:
    with gd.connect(workers=2) as client:
        text = write_village(tmp_path / "village.txt", 12)
        expected = exported(gd.train(text, tmp_path / "batches", client=client))
        pids, killed = client.run(os.getpid), []

        def kill(event: object) -> None:
            if isinstance(event, RoundIntegrated) and event.round == 5:
                # The other sequence trains, and its columns are locked.
                assert len(made_locks[-1]) > 0
                killed.append(pids[roles_of(client).compute[(event.round + 1) % 2]])
                os.kill(killed[0], signal.SIGKILL)

        path = tmp_path / "killed"
        network = gd.train(text, path, client=client, mode="published", observer=kill)
    assert len(killed) == 1
    assert exported(network) == expected
    assert len(made_locks[-1]) == 0


def test_all_columns_of_a_sequence_are_locked_at_once() -> None:
    locks, training = ColumnLocks(), deque([[1, 2], [3], [4]])
    for columns in training:
        locks.acquire(columns, pytest.fail)
    locks.acquire([3, 9], lambda: locks.release(training.popleft()))
    assert (list(training), len(locks), locks.waits) == ([[4]], 3, 1)
    locks.release([4])
    locks.release([3, 9])
    assert len(locks) == 0


@pytest.mark.parametrize(
    "wrong", [{"batch_sequences": 300}, {"accumulate": 2}, {"rounds_in_flight": 2}, {"mode": "dense"}]
)
def test_what_contradicts_the_mode_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=f"^{next(iter(wrong))}"):
        TrainingOptions(**{"mode": "published", **wrong})  # type: ignore[arg-type]
    assert TrainingOptions(mode="published").batch_sequences == 1


def test_a_model_without_columns_refuses_the_mode(tmp_path: Path) -> None:
    with gd.connect(workers=0) as client, pytest.raises(OptionError, match="model of columns and features"):
        gd.train(sample_test_text(), tmp_path / "net", client=client, profile="contexts", mode="published")
    assert not (tmp_path / "net").exists()
