"""An engine that is opened again after its cluster was lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest
from support.processes import until
from support.serving_engines import WORDS, ScriptedEngine, parts_of, source_of

from giaann_dask.errors import ClusterError
from giaann_dask.models.base import TokenEvent
from giaann_dask.serving.engine import CompletionEngine, CompletionOptions
from giaann_dask.serving.models import ServedModel

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


@contextmanager
def served(openings: Openings, **times: float) -> Iterator[ServedModel]:
    model = ServedModel(replace(source_of(ScriptedEngine()), opening=openings), check_s=0.01, **times)
    model.open()
    with closing(model):
        yield model


def words(model: ServedModel) -> list[str]:
    parts = parts_of(model, "the mill", CompletionOptions(tokens=8))
    return [part.token.word for part in parts if isinstance(part, TokenEvent) and part.token]


@pytest.mark.parametrize("failure", [NO_SCHEDULER, KeyError("unexpected")])
def test_a_lost_engine_is_replaced_as_soon_as_one_can_be_opened(failure: Exception) -> None:
    openings = Openings()
    with served(openings) as model:
        assert model.health() is None
        assert words(model) == WORDS
        openings.opened[0].network.reason = "a region is being read"
        assert model.health() == "a region is being read"
        openings.failing, openings.opened[0].network.is_lost = failure, True
        until(lambda: openings.attempts > 4)
        assert openings.closed == openings.opened, "a lost engine is closed once"
        assert model.health() == "the connection to the cluster is lost"
        with pytest.raises(ClusterError, match="retry when"):
            words(model)
        assert model.is_open
        openings.failing = None
        until(lambda: model.health() is None)
        assert words(model) == WORDS
    assert model.statistics().steps["server"] >= 2 * len(WORDS), "also those of the lost engine"
    assert len(openings.opened) == 2
    assert openings.closed == openings.opened
    attempts = openings.attempts
    time.sleep(0.1)
    assert openings.attempts == attempts, "no more attempts"


def test_an_engine_that_a_defect_has_stopped_is_replaced() -> None:
    openings = Openings()
    with served(openings) as model:
        with pytest.raises(KeyError, match="inconsistent"):
            parts_of(model, "stuck defect", CompletionOptions(tokens=8))
        until(lambda: len(openings.opened) == 2 and model.health() is None)
        assert words(model) == WORDS


def test_an_engine_that_recovers_is_kept() -> None:
    openings = Openings()
    with served(openings) as model:
        openings.opened[0].network.reason = "a region is being read"
        time.sleep(0.1)
        openings.opened[0].network.reason = None
        assert words(model) == WORDS
    assert openings.attempts == 1


def test_an_engine_that_is_opened_after_close_is_closed() -> None:
    openings = Openings()
    with served(openings, close_s=0.05) as model:
        openings.going_on.clear()
        openings.opened[0].network.is_lost = True
        until(lambda: openings.attempts == 2)
    assert not model.is_open
    # Opened again, the network has an engine of its own, which the late one does not replace.
    openings.going_on.set()
    model.open()
    until(lambda: len(openings.closed) == 2)
    assert words(model) == WORDS
    model.close()
    assert len(openings.closed) == 3


def test_the_first_opening_must_succeed() -> None:
    openings = Openings()
    openings.failing = NO_SCHEDULER
    with pytest.raises(ClusterError, match="no scheduler answers"), served(openings):
        raise AssertionError
