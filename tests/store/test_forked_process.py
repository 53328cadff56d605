"""A network in a process that was forked from one that had used a network: an error, not an endless wait."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable

import pytest

import giaann_dask as gd
from giaann_dask.data import sample_text
from giaann_dask.errors import StoreForkedError
from giaann_dask.store.backup import StorePlace
from giaann_dask.store.network_store import NetworkStore

pytestmark = [
    pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs processes that fork"),
    # What is tested here is what Python warns of.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> gd.Network:
    path = tmp_path_factory.mktemp("forked") / "net"
    with gd.connect(workers=0) as client:
        options = gd.TrainingOptions(max_sequences=20)
        return gd.train(sample_text(), path, client=client, options=options)


USES: dict[str, Callable[[gd.Network], object]] = {
    "describe": lambda network: network.describe(),
    "commits": lambda network: network.commits(),
    "table": lambda network: network.table(),
    "generate": lambda network: network.generate("The old miller carried the flour"),
    "open another": lambda network: gd.Network(network.path),
    "open a commit": lambda network: NetworkStore(network.path).open(network.commit),
    "copy": lambda network: StorePlace(str(network.path)).repository(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_forked_process_fails_immediately(network: gd.Network, use: Callable[[gd.Network], object]) -> None:
    def run() -> None:
        try:
            use(network)
        except BaseException as error:
            answers.put(error)

    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=run)
    process.start()
    process.join(60)
    hung = process.is_alive()
    process.kill()
    process.join()
    assert not hung
    assert not answers.empty()
    error = answers.get()
    assert isinstance(error, StoreForkedError)
    assert "spawn" in error.remedy
    # Here it goes on working.
    assert network.commits()
