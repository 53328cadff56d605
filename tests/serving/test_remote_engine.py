"""Prompts continued by the workers of a cluster: as in one process, also when a worker is killed in mid-stream."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from distributed import Client
from support.processes import until
from support.serving_engines import Collected
from support.village import ADJECTIVES, NOUNS, write_village

import giaann_dask as gd
from giaann_dask.errors import OptionError, PromptError
from giaann_dask.models.base import PromptWords, TokenEvent
from giaann_dask.models.generation_options import SamplingOptions
from giaann_dask.models.results import GeneratedToken
from giaann_dask.rows.protocol import RowOptions
from giaann_dask.serving.engine import CompletionOptions, PromptEvent
from giaann_dask.serving.models import open_engine
from giaann_dask.serving.remote_engine import RemoteEngine, RemoteSession
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.network_store import NetworkStore

pytestmark = pytest.mark.cluster
PROMPTS = [f"The {adjective} {noun} carried the" for adjective in ADJECTIVES[:4] for noun in NOUNS[:2]]
WANTED = CompletionOptions(tokens=12, candidates=2)
ONE_SLOT = gd.BatchOptions(slots=1)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=2) as client:
        yield client


@pytest.fixture(scope="module", params=["v1", "contexts"])
def reader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CommitReader:
    folder: Path = tmp_path_factory.mktemp("net")
    with gd.connect(workers=0) as client:
        specification = gd.Specification(profile=request.param, regions=3)
        gd.train(write_village(folder / "a.txt", 200), folder / "net", client=client, specification=specification)
    store = NetworkStore(folder / "net")
    return store.open(store.head())


def opened(
    client: Client, reader: CommitReader, *options: Any, workers: int | None = None, **batch: Any
) -> RemoteEngine:
    engine = open_engine(client, reader, *options, workers=workers, **batch)
    assert isinstance(engine, RemoteEngine)
    return engine


def comparable(parts: list[PromptEvent]) -> list[object]:
    """Return parts without the numbers of prompts, which each engine has its own of."""
    return [part if isinstance(part, PromptWords) else replace(part, number=0) for part in parts]


def options_of(reader: CommitReader) -> list[CompletionOptions]:
    """Return one request for each prompt: the first with columns, and of profile ``contexts`` drawn words."""
    if reader.manifest().specification.profile == "contexts":
        return [
            replace(WANTED, tokens=40, sampling=SamplingOptions(temperature=1.0, seed=n)) for n, _ in enumerate(PROMPTS)
        ]
    return [replace(WANTED, columns=3), *[WANTED] * (len(PROMPTS) - 1)]


@pytest.fixture(scope="module")
def known(reader: CommitReader) -> list[list[object]]:
    """Return what an engine in this process answers."""
    with gd.connect(workers=0) as local, closing(open_engine(local, reader, batch=gd.BatchOptions(slots=3))) as engine:
        running = [Collected(engine, *each) for each in zip(PROMPTS, options_of(reader), strict=True)]
        return [comparable(each.result()) for each in running]


def test_workers_answer_as_one_process(client: Client, reader: CommitReader, known: list[list[object]]) -> None:
    # Regions are replicated in the other test.
    options = gd.GenerationOptions(rows=RowOptions(mode="remote"))
    with closing(opened(client, reader, options)) as engine:
        assert engine.health() is None
        running = [Collected(engine, *each) for each in zip(PROMPTS, options_of(reader), strict=True)]
        assert [comparable(each.result()) for each in running] == known
        until(lambda: len(engine.statistics().steps) == 2)
        assert min(engine.statistics().steps.values()) > 0, "each worker has done steps"
        with pytest.raises(PromptError):
            Collected(engine, " ", WANTED).result()


def test_prompts_of_a_killed_worker_begin_again_on_another(
    client: Client, reader: CommitReader, known: list[list[object]]
) -> None:
    asked = [*zip(PROMPTS, options_of(reader), strict=True)]
    with closing(opened(client, reader, batch=ONE_SLOT)) as engine:
        pids = client.run(os.getpid)
        others: list[Collected] = []
        parts: SimpleQueue[PromptEvent | Exception | None] = SimpleQueue()
        started = threading.Event()

        def report(part: PromptEvent | Exception | None) -> None:
            """Start the other prompts at the first token, and kill the worker that this thread takes parts from."""
            parts.put(part)
            if isinstance(part, TokenEvent) and not others:
                others.extend(Collected(engine, *each) for each in asked[1:])
                started.wait(30)
                os.kill(pids[first.worker.address], signal.SIGKILL)

        first: Any = engine.start(*asked[0], report)
        started.set()
        found = [part for part in iter(lambda: parts.get(timeout=120), None) if not isinstance(part, Exception)]
        assert [comparable(each) for each in (found, *(each.result() for each in others))] == known
        assert engine.statistics().regenerated > 0
        # The worker that replaces it continues prompts, too.
        until(lambda: len(engine.present()) == 2 and all(worker.actor for worker in engine.present()))
        assert engine.health() is None


def test_parts_that_come_again_are_left_out_and_compared() -> None:
    passed: list[PromptEvent | Exception | None] = []
    session = RemoteSession(0, "the old", WANTED, passed.append)
    words = [PromptWords(("the", "old")), *(event_of(word) for word in ("miller", "carried", "flour"))]
    assert [session.receive(part) for part in words[:3]] == [True] * 3
    session.begin_again()
    assert [session.receive(part) for part in words] == [False, False, False, True]
    assert passed == words
    session.begin_again()
    assert not session.receive(words[0])
    with pytest.raises(gd.errors.ClusterError, match="differently"):
        session.receive(event_of("flour"))


def event_of(word: str) -> TokenEvent:
    return TokenEvent(0, GeneratedToken(word, word, (), 0, ()), False)


@pytest.mark.parametrize("reader", ["contexts"], indirect=True)
def test_cancelled_prompts_end_and_a_closed_engine_takes_none(client: Client, reader: CommitReader) -> None:
    engine = opened(client, reader, batch=ONE_SLOT, workers=1)
    running = [Collected(engine, prompt, replace(WANTED, tokens=1000)) for prompt in PROMPTS]
    for each in running:
        each.generation.cancel()
    for each in running:
        each.result()
    assert len(engine.present()) == 1
    engine.close()
    with pytest.raises(gd.errors.ClusterError, match="closed"):
        Collected(engine, PROMPTS[0], WANTED).result()
    with pytest.raises(OptionError, match="compute_workers is -1"):
        opened(client, reader, workers=-1)
