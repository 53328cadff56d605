"""Batches whose rows are held by several workers: the golden files, and any division against each prompt alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from hypothesis import event, given
from hypothesis import strategies as st
from support.conformance import golden_run, inference_files
from support.examples import examples
from support.golden_steps import EWT_FOLDERS, SYN_FOLDER, BatchFollower, alone, follow
from support.held_networks import HeldNetwork
from support.prompts import run_prompts
from support.random_networks import FEATURES, OPTIONS, SPECIFICATIONS, assert_same, random_prompts, random_run

import giaann_dask as gd
from giaann_dask.keys import pack_neuron
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.columns.state.session import StepTrace
from giaann_dask.models.columns.v1.pull_batch import PullBatch
from giaann_dask.models.generation_options import BatchOptions
from giaann_dask.rows.remote import RemoteRows
from giaann_dask.rows.service import install
from giaann_dask.rows.source import RunRows
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification

FEW = BatchOptions(slots=7, held_bytes=20_000, ahead=False)


@pytest.fixture(scope="module")
def three_workers() -> Iterator[Client]:
    """Three workers in this process."""
    with Client(n_workers=3, threads_per_worker=1, processes=False, dashboard_address=None) as client:
        install(client)
        yield client


@examples(40)
@given(
    st.integers(0, 2**32),
    st.sampled_from(SPECIFICATIONS),
    st.sampled_from(OPTIONS),
    st.integers(3, 12),
    st.integers(1, 20),
    st.builds(
        BatchOptions, slots=st.integers(1, 5), held_bytes=st.sampled_from([0, 3000, 1 << 30]), ahead=st.booleans()
    ),
    st.sampled_from([100, 3000, 1 << 30]),
    st.integers(1, 3),
    st.sampled_from([0, 2000, 1 << 20]),
)
def test_the_same_steps_as_alone_however_divided(
    three_workers: Client,
    seed: int,
    specification: Specification,
    options: InferenceOptions,
    size: int,
    longest: int,
    batch: BatchOptions,
    region_bytes: int,
    workers: int,
    cache_bytes: int,
) -> None:
    rng = np.random.default_rng(seed)
    neurons = np.unique(pack_neuron(rng.integers(0, 3, size), rng.integers(0, FEATURES, size)))
    run = random_run(rng, specification, neurons, 0.3)
    prompts = random_prompts(rng, neurons, longest)
    present = sorted(three_workers.scheduler_info(n_workers=-1)["workers"])
    held = HeldNetwork(three_workers, run, region_bytes, present[:workers])
    one = PullBatch(specification, held.asked(cache_bytes=cache_bytes), options=options, batch=batch)
    found: dict[int, list[StepTrace]] = {}
    for advance in run_prompts(one, prompts):
        found.setdefault(advance.number, []).extend(advance.traces)
    event(f"regions {min(len(held.keys), 4)}")
    for number, prompt in enumerate(prompts):
        assert_same(alone(prompt, specification, RunRows([run], lambda _: 0), options), found[number])


# --- The golden files -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_processes() -> Iterator[Client]:
    with gd.connect(workers=2) as client:
        install(client)
        yield client


class HeldFollower(BatchFollower):
    """Follows all sentences of a golden file at once, with small regions in other processes and next to no cache."""

    held: HeldNetwork

    def __init__(self, path: Path, run: Run) -> None:
        super().__init__(path, run)
        self.rows = self.held.asked(cache_bytes=2000)
        self.batch = PullBatch(self.session.specification, self.rows, options=self.options, batch=FEW)


def follow_held(client: Client, paths: list[Path], region_bytes: int) -> None:
    run = golden_run(paths[0].parent)
    held = HeldNetwork(client, run, region_bytes)
    assert len(held.keys) > 4
    asked: list[RemoteRows] = []

    class Following(HeldFollower):
        def __init__(self, path: Path, run: Run) -> None:
            self.held = held
            super().__init__(path, run)
            asked.append(self.rows)

    for path in paths:
        follow(path, run, Following)
        figures = asked[-1].own_figures
        assert figures.rows > 0
        assert figures.misses + figures.awaited > figures.hits, "next to nothing is kept"


def test_synthetic_sample(three_workers: Client) -> None:
    follow_held(three_workers, inference_files(SYN_FOLDER)[::12], 100_000)


@pytest.mark.slow
@pytest.mark.cluster
def test_synthetic_files_from_two_processes(two_processes: Client) -> None:
    follow_held(two_processes, inference_files(SYN_FOLDER), 100_000)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("name", EWT_FOLDERS)
def test_ewt_files_from_two_processes(two_processes: Client, shared_folder: Path, name: str) -> None:
    folder = shared_folder / "golden" / "v1" / name
    follow_held(two_processes, inference_files(folder), 100_000)
