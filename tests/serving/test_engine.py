"""Prompts of all profiles in the one batch of an engine: as alone, whatever enters, leaves or fails meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.serving_engines import Collected, ScriptedEngine, parts_of
from support.village import write_village

import giaann_dask as gd
from giaann_dask.errors import ClusterError, PromptError
from giaann_dask.models import model_of
from giaann_dask.models.base import Predictor, PromptWords, TokenEvent
from giaann_dask.models.results import GeneratedToken
from giaann_dask.serving.engine import CompletionOptions, Engine, PromptEvent
from giaann_dask.store.network_store import NetworkStore

PROMPTS = [f"The {adjective} {noun} carried the" for adjective in ("old", "grey") for noun in ("miller", "dog", "boat")]
WANTED = CompletionOptions(tokens=12, candidates=2)
OPTIONS = gd.GenerationOptions(max_tokens=12, runners_up=2, reasons=0)


@pytest.fixture(scope="module", params=["v1", "v2", "contexts"])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    folder: Path = tmp_path_factory.mktemp("engine")
    text = write_village(folder / "village.txt", 200)
    with gd.connect(workers=0) as client:
        gd.train(text, folder / "net", client=client, specification=gd.Specification(profile=request.param, regions=2))
    store = NetworkStore(folder / "net")
    reader = store.open(store.head())
    return model_of(reader.manifest().specification).open(reader, options=OPTIONS)


@pytest.fixture
def engine(opened: Predictor) -> Iterator[Engine]:
    # Fewer slots than prompts, so that some have to wait.
    with closing(Engine(opened, OPTIONS, gd.BatchOptions(slots=3))) as engine:
        yield engine


def tokens_of(parts: list[PromptEvent]) -> list[GeneratedToken]:
    assert isinstance(parts[0], PromptWords)
    assert isinstance(parts[-1], TokenEvent)
    assert parts[-1].finished
    return [part.token for part in parts if isinstance(part, TokenEvent) and part.token]


def alone(opened: Predictor, prompt: str) -> list[GeneratedToken]:
    batch = opened.open_batch(OPTIONS, gd.BatchOptions(slots=1))
    batch.prepare(prompt, OPTIONS).enter()
    found = []
    while len(batch):
        found += [event.token for event in batch.step() if event.token]
    return found


def test_each_prompt_is_continued_as_alone(opened: Predictor, engine: Engine) -> None:
    running = [Collected(engine, prompt, WANTED) for prompt in PROMPTS * 3]
    found = [tokens_of(each.result()) for each in running]
    assert found == [alone(opened, prompt) for prompt in PROMPTS] * 3
    assert max(map(len, found)) > 2


def test_cancelled_prompts_free_their_slots(opened: Predictor, engine: Engine) -> None:
    for prompt in PROMPTS * 2:
        running = Collected(engine, prompt, CompletionOptions(tokens=1000))
        running.generation.cancel()
        running.result()
    running = [Collected(engine, prompt, WANTED) for prompt in PROMPTS[:3]]
    assert [tokens_of(each.result()) for each in running] == [alone(opened, prompt) for prompt in PROMPTS[:3]]


def test_prompts_with_columns_have_the_same_tokens(opened: Predictor, engine: Engine) -> None:
    with_columns = parts_of(engine, PROMPTS[0], CompletionOptions(tokens=12, candidates=2, columns=3))
    assert tokens_of(with_columns) == alone(opened, PROMPTS[0])
    columns = [part.columns for part in with_columns if isinstance(part, TokenEvent) and part.token]
    assert all(columns) != opened.has_probabilities, "networks whose words have probabilities have no columns"


def test_a_failed_step_reaches_running_prompts_only(opened: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, failing = opened.open_batch(OPTIONS, gd.BatchOptions(slots=2)), threading.Event()
    step = batch.step

    def step_or_fail() -> list[TokenEvent]:
        if failing.is_set():
            failing.clear()
            raise ClusterError("no rows", "rows", "try again")
        return step()

    monkeypatch.setattr(batch, "step", step_or_fail)
    monkeypatch.setattr(opened, "open_batch", lambda options, slots: batch)
    failing.set()
    with closing(Engine(opened, OPTIONS)) as engine:
        with pytest.raises(ClusterError, match="no rows"):
            parts_of(engine, PROMPTS[0], WANTED)
        with pytest.raises(PromptError):
            parts_of(engine, " ", WANTED)
        monkeypatch.undo()
        assert tokens_of(parts_of(engine, PROMPTS[0], WANTED)) == alone(opened, PROMPTS[0])
        assert engine.health() is None


@pytest.mark.parametrize(("columns", "lost"), [(0, False), (1, False), (0, True)])
def test_closing_an_engine_fails_running_and_later_prompts(columns: int, lost: bool) -> None:
    """With the reason: who asked for a prompt cannot know that the engine of a lost cluster is closed."""
    engine = ScriptedEngine()
    running = Collected(engine, "slow mill", CompletionOptions(columns=columns))
    assert engine.network.begun.acquire(timeout=30)
    engine.network.is_lost = lost
    Engine.close(engine)
    for each in (running, Collected(engine, "the mill", WANTED)):
        with pytest.raises(ClusterError, match="connection to the cluster is lost" if lost else "engine is closed"):
            each.result()
    assert engine.health() is not None
    assert (engine.failure() is None) != lost
