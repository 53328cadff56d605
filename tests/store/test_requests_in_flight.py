"""Requests to an object store that are under way at a time, counted by a server that answers when enough are there."""

from __future__ import annotations

import logging
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from support.stored_networks import RUNS, create_network

import giaann_dask as gd
from giaann_dask.data import sample_text
from giaann_dask.keys import pack_neuron, pack_target
from giaann_dask.object_urls import absolute_place
from giaann_dask.runs.packing import PackedRegionRun, pack, unpack
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitContent, CommitReader
from giaann_dask.store.corpus import EncodedCorpus
from giaann_dask.store.manifest import Manifest, StoredRun
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.store.run_io import write_run
from giaann_dask.text.vocabulary import Vocabulary

# Neither is imported where these tests are collected and run by another process.
for needed in ("moto", "obstore"):
    if find_spec(needed) is None:
        pytest.skip(f"needs {needed}", allow_module_level=True)

# Longer than it takes to send the other requests of a batch on a busy machine.
_PATIENCE_S = 5.0


class Gate:
    """Server that answers requests for chunks once so many of them are there at a time, or after some seconds.

    Attributes
    ----------
    method : str
        Of the requests that are counted.
    wanted : int
        How many of them open the gate.
    most : int
        How many there were at a time since `watch`.
    """

    def __init__(self, server: Callable[..., Iterable[bytes]]) -> None:
        self._server, self._changed, self._now = server, threading.Condition(), 0
        self.watch("", 0)

    def watch(self, method: str, wanted: int) -> None:
        with self._changed:
            self.method, self.wanted, self.most = method, wanted, 0

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != self.method or "/chunks/" not in environ["PATH_INFO"]:
            return self._server(environ, start_response)
        with self._changed:
            self._now += 1
            self.most = max(self.most, self._now)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= self.wanted, _PATIENCE_S)
        try:
            return self._server(environ, start_response)
        finally:
            with self._changed:
                self._now -= 1


@pytest.fixture(scope="module")
def gate() -> Iterator[Gate]:
    """A server with the bucket ``bucket``, whose address is in the environment."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    made = Gate(DomainDispatcherApplication(create_backend_app))
    level = logging.getLogger("werkzeug").level
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, made, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
            patch.setenv(name, "us-east-1")
        bucket = f"http://127.0.0.1:{server.server_port}/bucket"
        urllib.request.urlopen(urllib.request.Request(bucket, method="PUT"), timeout=30).close()
        yield made
    server.shutdown()
    thread.join(30)
    logging.getLogger("werkzeug").setLevel(level)


def random_run(rng: np.random.Generator) -> Run:
    """Return a run of 40,000 connections between neurons that are far apart, so that they are packed badly."""
    source = np.unique(rng.integers(0, 1 << 30, 400))
    neurons = pack_neuron(*rng.integers(0, 3000, (2, len(source), 100)))
    target = np.sort(pack_target(rng.integers(0, 5, neurons.shape), neurons, 0), axis=1).ravel()
    pointer = np.arange(0, len(target) + 1, 100)
    return Run(source, pointer, target, rng.integers(1, 1 << 20, len(target)).astype(np.int32))


@pytest.fixture(scope="module")
def written(gate: Gate) -> tuple[NetworkStore, int]:
    """A network with a run of many chunks and with many words, and the most requests at a time that wrote the run."""
    rng = np.random.default_rng(4)
    store = create_network(absolute_place("s3://bucket/net"))
    run, words = random_run(rng), [f"word{number}" for number in rng.integers(0, 1 << 40, 2000)]
    packed = PackedRegionRun(pack(run, 1000), pack(Run.empty()))
    since, flags = rng.integers(0, 1 << 40, 2000).tolist(), (rng.random(2000) < 0.5).tolist()
    stored = StoredRun(RUNS[0], 0, 0, run.rows, len(run), packed.nbytes)
    manifest = replace(
        Manifest(specification=Specification(regions=2), runs=(stored,), neurons=run.rows, connections=len(run)),
        concepts=2000, features=2000, saved_concepts=2000, saved_features=2000,
    )  # fmt: skip
    content = CommitContent(manifest, Vocabulary(words, words, flags, since, 0), [], Placement(2))
    before = store.open(store.head())
    with store.lock():
        session = store.begin()
        fork = store.fork(session)
        gate.watch("PUT", 16)
        fork = write_run(fork, RUNS[0], packed)
        most = gate.most
        store.write_content(session, before, content)
        store.commit(session, [fork], before, manifest)
    return store, most


def opened(store: NetworkStore) -> CommitReader:
    """Open a network again, with nothing remembered of it."""
    return NetworkStore(store.path).open(store.head())


def test_a_run_is_written_and_read_by_16_requests_or_more_at_a_time(
    gate: Gate, written: tuple[NetworkStore, int]
) -> None:
    network, most = written
    assert most >= 16
    reader = opened(network)
    gate.watch("GET", 16)
    assert len(unpack(reader.connections(RUNS[0]))) == reader.manifest().connections
    assert gate.most >= 16
    reader = opened(network)
    gate.watch("GET", 16)
    assert reader.rows(RUNS[0]).between(0, 1 << 62).rows == reader.manifest().neurons
    assert gate.most >= 16


def test_the_arrays_of_dictionaries_and_of_a_corpus_are_read_at_once(
    gate: Gate, written: tuple[NetworkStore, int]
) -> None:
    reader = opened(written[0])
    # Flags are small enough to be in Icechunk's manifests.
    gate.watch("GET", 4)
    assert len(reader.vocabulary().features) == 2000
    assert gate.most >= 4
    with gd.connect(workers=0) as client:
        corpus = EncodedCorpus(gd.encode(sample_text(), "s3://bucket/corpus", client=client).path)
    gate.watch("GET", 5)
    assert len(corpus.encoded().column) == corpus.tokens
    assert gate.most >= 5
