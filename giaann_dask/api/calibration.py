"""Measure once which stages a cluster's devices compute faster than the processor's workers (``device`` auto).

Each stage is tried with a task like those of real work, whose data are on a worker of the processor before and after.
The result is kept in the user's cache (`giaann_dask.cluster.devices`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from giaann_dask.cluster import result, task_key, wait_all
from giaann_dask.cluster.devices import declare_roles, machine_of, read_speeds, write_speeds
from giaann_dask.cluster.stages import INFER_TOGETHER, SUM
from giaann_dask.device import DeviceName
from giaann_dask.models.columns.connections import connect_batch
from giaann_dask.models.columns.evaluation.evaluation import SEQUENCES_PER_TASK, TASKS_ON_DEVICE
from giaann_dask.models.columns.evaluation.predicting import PredictionRule, infer
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.columns.state.session import FlagTable
from giaann_dask.runs.device_sums import PairSums
from giaann_dask.runs.pair_tables import PairTable, pair_run, sum_pairs
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification
from giaann_dask.text.segmentation import FEATURES, EncodedBlock, random_block
from giaann_dask.training import tasks

if TYPE_CHECKING:
    from distributed import Client

_LOG = logging.getLogger(__name__)
# Once for compiling and for the first use of a device, then so many times.
_TURNS = 3
# Of a region, as eight rounds leave it: a million pairs.
_ROUNDS, _SEQUENCES = 8, 450


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A task of a stage, computed by the processor and by a device.

    Attributes
    ----------
    stage : str
        Name of the stage.
    make : callable
        Return what is computed from, of a number.
    here, there : callable
        Compute it on the processor, and on a device.
    back : callable
        Take what a device has computed, on the processor.
    sent : bool
        Whether it is sent to the device for each task; else it stays there, as the regions of a network.
    tasks : int
        How many tasks of the processor the device does as one.
    """

    stage: str
    make: Callable[[int], Any]
    here: Callable[[Any], None]
    there: Callable[[Any], Any]
    back: Callable[[Any], None]
    sent: bool
    tasks: int = 1


def calibrate(client: Client, device: DeviceName) -> None:
    """Measure the stages that devices may compute, where that is asked for and has not been done yet.

    Parameters
    ----------
    client : Client
        Connected to a cluster.
    device : {"auto", "cpu", "cuda"}
        As given; nothing is done unless it is ``auto``, and workers declare a GPU.
    """
    roles = declare_roles(client) if device == "auto" else None
    if roles is None or not roles.devices:
        return
    machine = machine_of(client, roles)
    if {trial.stage for trial in TRIALS} <= read_speeds(machine).keys():
        return
    started = time.perf_counter()
    speeds = {trial.stage: _measure(client, trial, roles.anywhere(), roles.on_device()) for trial in TRIALS}
    write_speeds(machine, speeds)
    told = ", ".join(f"{stage} {speed:.2g} times" for stage, speed in speeds.items())
    _LOG.info("measured in %.1f s how fast the device is: %s a worker", time.perf_counter() - started, told)


def _measure(client: Client, trial: Trial, others: dict[str, Any], device: dict[str, Any]) -> float:
    """Return how many tasks a device finishes while a worker of the processor finishes one."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(_TURNS + 1):
        number = turn if trial.sent else 0
        given = client.submit(trial.make, number, key=task_key("make", trial.stage, number), **others)
        wait_all([given])
        began = time.perf_counter()
        result(client.submit(trial.here, given, pure=False, **others))
        between = time.perf_counter()
        found = client.submit(trial.there, given, pure=False, **device)
        result(client.submit(trial.back, found, pure=False, **others))
        for taken, spent in zip(seconds, (between - began, time.perf_counter() - between), strict=True):
            taken.append(spent)
    return trial.tasks * median(seconds[0][1:]) / median(seconds[1][1:])


def random_pairs(seed: int) -> tuple[PairTable, ...]:
    """Return the pairs of a region of some rounds, as a task."""
    blocks = [random_block(_SEQUENCES, _ROUNDS * seed + turn) for turn in range(_ROUNDS)]
    return tasks.pairs_of(*(connect_batch([block], Specification(), Placement(1))[0] for block in blocks))


def sum_here(pairs: Sequence[PairTable]) -> None:
    """Sum pairs as a processor does, as a task."""
    for _ in sum_pairs(pairs):
        pass


def take_sums(sums: PairSums) -> None:
    """Widen sums as their packing does, as a task."""
    for _ in sums.blocks():
        pass


def random_network(seed: int) -> tuple[EncodedBlock, Run]:
    """Return sequences and a network that was trained on them, as a task."""
    block = random_block(SEQUENCES_PER_TASK * TASKS_ON_DEVICE, seed)
    (table,) = tasks.pairs_of(*connect_batch([block], Specification(), Placement(1)).values())
    return block, pair_run([table])


def predict_here(network: tuple[EncodedBlock, Run]) -> None:
    """Predict sequences as a task of an evaluation does."""
    _predict(network, SEQUENCES_PER_TASK, "cpu")


def predict_there(network: tuple[EncodedBlock, Run]) -> None:
    """Predict sequences as a task of an evaluation does on a device."""
    _predict(network, SEQUENCES_PER_TASK * TASKS_ON_DEVICE, "cuda")


def _predict(network: tuple[EncodedBlock, Run], sequences: int, device: DeviceName) -> None:
    block, run = network
    flags = FlagTable(np.zeros(FEATURES + 1, np.bool_), np.full(FEATURES + 1, -1, np.int64))
    rule = PredictionRule(specification=Specification(), options=InferenceOptions(), device=device)
    infer(block, (0, sequences), flags, Placement(1), [run], rule)


def forget(_: object) -> None:
    """Take nothing, as a task."""


TRIALS = (
    Trial(stage=SUM, make=random_pairs, here=sum_here, there=tasks.sum_on_device, back=take_sums, sent=True),
    Trial(
        stage=INFER_TOGETHER,
        make=random_network,
        here=predict_here,
        there=predict_there,
        back=forget,
        sent=False,
        tasks=TASKS_ON_DEVICE,
    ),
)
