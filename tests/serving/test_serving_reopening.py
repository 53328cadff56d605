"""An engine that is opened again after its cluster was lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.processes import until
from support.serving_engines import WORDS, ScriptedEngine, parts_of

from giaann_dask.errors import ClusterError
from giaann_dask.models.base import TokenEvent
from giaann_dask.serving.engine import CompletionEngine, CompletionOptions
from giaann_dask.serving.reopening import ReopenedEngine

NO_SCHEDULER = ClusterError("no scheduler answers", "one that does")


class Openings:
    """Opens scripted engines, or fails."""

    def __init__(self) -> None:
        self.opened: list[ScriptedEngine] = []
        self.closed: list[ScriptedEngine] = []
        self.failing: Exception | None = None
        self.attempts = 0
        self.going_on = threading.Event()
        self.going_on.set()

    @contextmanager
    def __call__(self) -> Iterator[CompletionEngine]:
        self.attempts += 1
        if self.failing is not None:
            raise self.failing
        self.going_on.wait(10)
        engine = ScriptedEngine()
        self.opened.append(engine)
        yield engine
        engine.close()
        self.closed.append(engine)


def words(engine: CompletionEngine) -> list[str]:
    parts = parts_of(engine, "the mill", CompletionOptions(tokens=8))
    return [part.token.word for part in parts if isinstance(part, TokenEvent) and part.token]


@pytest.mark.parametrize("failure", [NO_SCHEDULER, KeyError("unexpected")])
def test_a_lost_engine_is_replaced_as_soon_as_one_can_be_opened(failure: Exception) -> None:
    openings = Openings()
    engine = ReopenedEngine(openings, check_s=0.01)
    assert (engine.name, engine.commit, engine.has_probabilities, engine.health()) == (
        "scripted",
        "COMMIT",
        False,
        None,
    )
    assert words(engine) == WORDS
    openings.opened[0].network.reason = "a region is being read"
    assert engine.health() == "a region is being read"
    openings.failing, openings.opened[0].network.is_lost = failure, True
    until(lambda: openings.attempts > 4)
    assert openings.closed == openings.opened, "a lost engine is closed once"
    assert engine.health() == "the connection to the cluster is lost"
    with pytest.raises(ClusterError, match="ask again when"):
        words(engine)
    assert engine.failure() is None
    openings.failing = None
    until(lambda: engine.health() is None)
    assert words(engine) == WORDS
    engine.close()
    assert len(openings.opened) == 2
    assert openings.closed == openings.opened
    attempts = openings.attempts
    time.sleep(0.1)
    assert openings.attempts == attempts, "no more attempts"


def test_an_engine_that_a_defect_has_stopped_is_replaced() -> None:
    openings = Openings()
    engine = ReopenedEngine(openings, check_s=0.01)
    with pytest.raises(KeyError, match="inconsistent"):
        parts_of(engine, "stuck defect", CompletionOptions(tokens=8))
    until(lambda: len(openings.opened) == 2 and engine.health() is None)
    assert words(engine) == WORDS
    engine.close()


def test_an_engine_that_recovers_is_kept() -> None:
    openings = Openings()
    engine = ReopenedEngine(openings, check_s=0.01)
    openings.opened[0].network.reason = "a region is being read"
    time.sleep(0.1)
    openings.opened[0].network.reason = None
    assert words(engine) == WORDS
    engine.close()
    assert openings.attempts == 1


def test_an_engine_that_is_opened_after_close_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("giaann_dask.serving.reopening._CLOSE_S", 0.05)
    openings = Openings()
    engine = ReopenedEngine(openings, check_s=0.01)
    openings.going_on.clear()
    openings.opened[0].network.is_lost = True
    until(lambda: openings.attempts == 2)
    engine.close()
    openings.going_on.set()
    until(lambda: len(openings.closed) == 2)
    assert engine.health() is not None


def test_the_first_opening_must_succeed() -> None:
    openings = Openings()
    openings.failing = NO_SCHEDULER
    with pytest.raises(ClusterError, match="no scheduler answers"):
        ReopenedEngine(openings)
