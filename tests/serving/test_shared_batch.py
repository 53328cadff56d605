"""Prompts of several threads in one batch: as alone, whoever comes, goes or fails meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from support.village import write_village

import giaann_dask as gd
from giaann_dask.errors import ClusterError
from giaann_dask.inference.batch import BatchOptions, Prompt, run_prompts
from giaann_dask.inference.handle import changed_flags
from giaann_dask.inference.sessions import NetworkHandle
from giaann_dask.inference.state.options import InferenceOptions
from giaann_dask.inference.state.sequence import StepResult
from giaann_dask.inference.v1.pull_batch import PullBatch
from giaann_dask.serving.shared_batch import SharedBatch
from giaann_dask.store.network_store import NetworkStore

PROMPTS = [f"The {adjective} {noun} carried the" for adjective in ("old", "grey") for noun in ("miller", "dog", "boat")]
TOKENS = 12


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> NetworkHandle:
    folder = tmp_path_factory.mktemp("shared")
    text = write_village(folder / "village.txt", 400)
    with gd.connect(workers=0) as client:
        gd.train(text, folder / "net", client=client)
    store = NetworkStore(folder / "net")
    return NetworkHandle(store.open(store.head()))


def new_batch(opened: NetworkHandle, slots: int) -> PullBatch:
    rules = InferenceOptions(feed="prediction")
    return PullBatch(opened.specification, opened.rows, options=rules, batch=BatchOptions(slots=slots))


def prepared(opened: NetworkHandle, prompt: str) -> Prompt:
    found, _ = opened.prepare(prompt, "lexicon")
    flags = changed_flags(opened.flags, found.change)
    return Prompt(sequence=found.sequence, flags=flags, tokens=TOKENS)


@pytest.fixture
def shared(opened: NetworkHandle) -> Iterator[SharedBatch]:
    # Fewer slots than prompts, so that some have to wait.
    with closing(SharedBatch(new_batch(opened, 3))) as batch:
        yield batch


def all_steps(shared: SharedBatch, prompt: Prompt) -> list[StepResult]:
    return [trace.result for trace in shared.run(prompt) if trace is not None]


def alone(opened: NetworkHandle, prompt: Prompt) -> list[StepResult]:
    advances = run_prompts(new_batch(opened, 1), [prompt])
    return [trace.result for advance in advances for trace in advance.traces]


def test_each_is_continued_as_alone(opened: NetworkHandle, shared: SharedBatch) -> None:
    prompts = [prepared(opened, text) for text in PROMPTS * 3]
    with ThreadPoolExecutor(len(prompts)) as threads:
        found = list(threads.map(lambda prompt: all_steps(shared, prompt), prompts))
    assert found == [alone(opened, prompt) for prompt in prompts]
    assert max(len(steps) for steps in found) > TOKENS


def test_who_leaves_makes_room(opened: NetworkHandle, shared: SharedBatch) -> None:
    prompts = [prepared(opened, text) for text in PROMPTS]
    for prompt in prompts * 2:
        steps = shared.run(prompt)
        assert next(step for step in steps if step is not None)
        steps.close()
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda prompt: all_steps(shared, prompt), prompts[:3]))
    assert found == [alone(opened, prompt) for prompt in prompts[:3]]


def test_a_failure_reaches_those_under_way_and_nobody_else(
    opened: NetworkHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = new_batch(opened, 2)
    step, failing = batch.step, threading.Event()

    def step_or_fail() -> object:
        if failing.is_set():
            failing.clear()
            raise ClusterError("no rows", "rows", "try again")
        return step()

    monkeypatch.setattr(batch, "step", step_or_fail)
    failing.set()
    prompt = prepared(opened, PROMPTS[0])
    with closing(SharedBatch(batch)) as shared:
        with pytest.raises(ClusterError, match="no rows"):
            all_steps(shared, prompt)
        assert all_steps(shared, prompt) == alone(opened, prompt)


def test_a_closed_batch_answers(opened: NetworkHandle) -> None:
    shared = SharedBatch(new_batch(opened, 2))
    shared.close()
    with pytest.raises(ClusterError, match="closed"):
        all_steps(shared, prepared(opened, PROMPTS[0]))
