"""Measure the rates of a cluster and of its links, describe it as hardware, and keep the rates in the user's cache.

What is counted and packed are sequences of the corpus. `giaann_dask.cluster.devices` keeps the rates of
devices.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from itertools import permutations
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from giaann_dask.cluster import query_scheduler, result, results, roles_of, task_key, wait_all
from giaann_dask.cluster.devices import describe_machine, read_measured, write_measured
from giaann_dask.cluster.memory_budget import trim_memory
from giaann_dask.cluster.roles import COMPUTE, STORAGE
from giaann_dask.cluster.stages import processor_times
from giaann_dask.cluster.waiting import ask_workers
from giaann_dask.encoding.stream import first_sequences
from giaann_dask.errors import GiaannError
from giaann_dask.models import model_of
from giaann_dask.models.base import ContinuationBatch
from giaann_dask.models.generation_options import BatchOptions, GenerationOptions
from giaann_dask.planning.growth import BATCH_SIZES
from giaann_dask.planning.hardware import Hardware, Link, Rates, Tier, WorkerKind
from giaann_dask.rows.protocol import RowOptions
from giaann_dask.runs.placement import Placement
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.blocks import CANDIDATE
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.training import tasks
from giaann_dask.training.training_options import ROUNDS_TOGETHER

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")

_FILE = "rates.json"
# Bytes of the messages whose times give bandwidth and latency of a link, and the time of one that is long enough.
_MESSAGES, _LONG_S = (1_000, 1 << 20, 1 << 24), 1.0
# Pairs of workers of a tier that are measured, times of each measurement, tasks without work.
_PAIRS, _TURNS, _TASKS, _CHAIN = 2, 3, 1_000, 50
# Times that the steps of prompts are measured.
_STEP_TURNS = 5


def describe_cluster(client: Client, rates: Rates | None = None) -> Hardware:
    """Return the workers of a connected cluster as hardware, with links and rates as given or built in.

    Workers are of one kind where they have the same role, memory and threads. Those on hosts of the same name share
    that host.
    """
    roles = roles_of(client)
    found = query_scheduler(client, "identity", n_workers=-1)["workers"]
    cores = ask_workers(client, os.cpu_count)
    kinds: dict[tuple[Any, ...], list[str]] = {}
    for address, each in found.items():
        stores, computes = address in roles.storage, address in roles.compute
        role = "both" if stores == computes else STORAGE if stores else COMPUTE
        kinds.setdefault((role, each["memory_limit"] or 1 << 50, each["nthreads"]), []).append(address)
    workers: list[WorkerKind] = []
    for (role, memory, threads), addresses in kinds.items():
        hosts = {found[address]["host"] for address in addresses}
        # A host's cores are those of all its workers.
        share = len(addresses) / max(sum(each["host"] in hosts for each in found.values()), 1)
        workers.append(
            WorkerKind(
                name=f"{role}-{len(workers)}",
                count=len(addresses),
                memory_bytes=int(memory),
                cores=threads,
                role=role,
                per_host=-(-len(addresses) // len(hosts)),
                host_cores=max(1, round(share * (cores.get(addresses[0]) or threads))),
            )
        )
    return Hardware(workers=tuple(workers), rates=rates or kept_rates() or Rates())


def kept_rates() -> Rates | None:
    """Return the rates that were measured on this machine with the present versions; None if there are none."""
    kept = read_measured(_FILE, describe_machine())
    if not kept:
        return None
    fields: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in kept.items()}
    try:
        return Rates(**fields)
    except (TypeError, GiaannError):
        # Of another version.
        return None


def keep_rates(rates: Rates) -> None:
    """Keep rates for this machine and the present versions."""
    write_measured(_FILE, describe_machine(), vars(rates))


def calibrate_cluster(
    client: Client, blocks: Sequence[EncodedBlock], specification: Specification, characters: int
) -> tuple[dict[str, Any], dict[Tier, Link]]:
    """Measure the rates of a worker's core, of the scheduler and of the links between workers.

    Parameters
    ----------
    client : Client
        Connected to an idle cluster.
    blocks : sequence of EncodedBlock
        Some sequences of the corpus.
    specification : Specification
        What training computes.
    characters : int
        Of the text of the blocks.

    Returns
    -------
    dict, dict
        Fields of `Rates`, and links by tier.
    """
    trained = np.concatenate([np.diff(block.offsets)[block.status == CANDIDATE] for block in blocks])
    worker = roles_of(client).compute[0]
    measured = results(
        [
            client.submit(
                measure_kernels, list(blocks), specification, key=task_key("calibrate", each, began), workers=[each]
            )
            for began in [time.time()]
            for each in _busy_workers(client)
        ]
    )
    found = {
        **{name: _median_of([each[name] for each in measured]) for name in measured[0]},
        **_measure_scheduler(client, worker),
        "sequence_pairs": float((trained * (trained - 1) // 2).mean()),
        "sequence_characters": characters / len(trained),
        "measured": f"{time.strftime('%Y-%m-%d')}, giaann-dask {version('giaann-dask')}, numpy {np.__version__}",
    }
    return found, _measure_links(client)


def _busy_workers(client: Client) -> list[str]:
    """Return compute workers that a training keeps busy at once: one for each core of the first of their hosts.

    Cores share caches and memory, and run slower together than alone.
    """
    found = query_scheduler(client, "identity", n_workers=-1)["workers"]
    compute = roles_of(client).compute
    first = [each for each in compute if found[each]["host"] == found[compute[0]]["host"]]
    return first[: max(1, ask_workers(client, os.cpu_count)[compute[0]] or 1)]


def _median_of(values: Sequence[Any]) -> Any:
    """Return the median of rates, or those of each batch size."""
    return tuple(map(median, zip(*values, strict=True))) if isinstance(values[0], tuple) else median(values)


def measure_kernels(blocks: Sequence[EncodedBlock], specification: Specification) -> dict[str, Any]:
    """Measure on a worker, as a task, how fast it counts batches and adds up, packs and merges increments."""
    trained = sum(int((block.status == CANDIDATE).sum()) for block in blocks)
    sizes = [size for size in BATCH_SIZES if size <= trained]
    counted = []
    for size in sizes:
        chosen = _first(blocks, size)
        seconds, _ = _timed(lambda chosen=chosen: tasks.count_batch(chosen, Placement(1), specification, ()))  # type: ignore[misc]
        counted.append(size / seconds)
    numbers = np.arange(trained) * ROUNDS_TOGETHER // trained
    increments = [
        tasks.count_selected(blocks, numbers, number, Placement(1), specification, ())
        for number in range(ROUNDS_TOGETHER)
    ]
    nbytes = sum(run.nbytes for each in increments for run in each.values())
    together_s, _ = _timed(lambda: tasks.integrate(0, *increments))
    packed_s, _ = _timed(lambda: tasks.compact(*(each[0] for each in increments)))
    packed = [tasks.compact(each[0]) for each in increments]
    merged_s, _ = _timed(lambda: tasks.compact(*packed))
    return {
        "batch_sizes": tuple(sizes),
        "counted_per_s": tuple(counted),
        "integrated_bytes_per_s": nbytes / together_s,
        "packed_bytes_per_s": nbytes / packed_s,
        "merged_bytes_per_s": sum(run.nbytes for run in packed) / merged_s,
    }


def forget_peak() -> None:
    """Let `peak_bytes` say what this process takes from now on, where Linux allows it; release free memory first."""
    trim_memory()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes() -> int:
    """Return the most bytes that this process has taken since `forget_peak`, or began; 0 where that is not known."""
    with suppress(OSError):
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
        return int(found[1]) << 10 if found else 0
    return 0


def measure_steps(path: str, commit: str, prompts: Sequence[str]) -> float:
    """Measure on a worker, as a task, how long it evaluates a step of a prompt; 0 where no prompt can be continued."""
    reader, options = NetworkStore(path).open(commit), GenerationOptions(reasons=0)
    return _step_seconds(reader, None, options, prompts, time.thread_time)


def measure_requests(client: Client, path: str, commit: str, prompts: Sequence[str]) -> float:
    """Measure in this process how long a step takes whose rows are requested from workers; 0 likewise."""
    rows = RowOptions(mode="remote", cache_bytes=0)
    reader, options = NetworkStore(path).open(commit), GenerationOptions(reasons=0, rows=rows)
    return _step_seconds(reader, client, options, prompts, time.perf_counter)


def _step_seconds(
    reader: CommitReader,
    client: Client | None,
    options: GenerationOptions,
    prompts: Sequence[str],
    clock: Callable[[], float],
) -> float:
    def open_batch() -> ContinuationBatch:
        opened = model_of(reader.manifest().specification).open(reader, client=client, options=options)
        return opened.open_batch(options, BatchOptions(slots=1))

    def seconds_of(batch: ContinuationBatch, prompt: str) -> list[float]:
        seconds = list[float]()
        with suppress(GiaannError):
            batch.prepare(prompt, options).enter()
        while len(batch):
            began = clock()
            batch.step()
            seconds.append(clock() - began)
        return seconds

    batch = open_batch()
    turns = list[list[float]]()
    for _ in range(_STEP_TURNS):
        # One that requests rows keeps them.
        batch = batch if client is None else open_batch()
        turns.append([each for prompt in prompts for each in seconds_of(batch, prompt)])
    # Steps are the same each time: the least time of each is that without other work on the machine, and without
    # loading compiled code and rows.
    least: list[float] = [min(each) for each in zip(*turns, strict=True)]
    return sum(least) / max(len(least), 1)


def make_message(nbytes: int, _turn: float) -> bytes:
    """Return a message of some bytes that nothing compresses, as a task."""
    return np.random.default_rng(0).bytes(nbytes)


def take_message(_message: object, turn: float) -> float:
    """Take a message that Dask has brought, as a task."""
    return turn


def _first(blocks: Sequence[EncodedBlock], size: int) -> list[EncodedBlock]:
    """Return blocks of which the first sequences are trained, without those that have none."""
    chosen, remaining = [], size
    for block in blocks:
        if remaining == 0:
            break
        trained = np.flatnonzero(block.status == CANDIDATE)
        end = int(trained[remaining - 1]) + 1 if remaining <= len(trained) else len(block.status)
        chosen.append(first_sequences(block, end))
        remaining -= min(remaining, len(trained))
    return chosen


def _timed(function: Callable[[], T]) -> tuple[float, T]:
    """Return the median processor time of some calls after a first one, and the result of the last one."""
    function()
    seconds = []
    for _ in range(_TURNS):
        began = time.thread_time()
        value = function()
        seconds.append(time.thread_time() - began)
    return median(seconds), value


def _measure_scheduler(client: Client, worker: str) -> dict[str, float]:
    """Return what tasks take: many at once, and one after another.

    Many at once take their time of the driver's and scheduler's processor. One after another, the least time counts,
    which other work on the machine disturbs least.
    """
    together, seconds = [], []
    for _ in range(_TURNS):
        began = processor_times(client)
        wait_all(client.map(take_message, [None] * _TASKS, [time.time()] * _TASKS, pure=False))
        together.append(processor_times(client).since(began).driver)
        at = time.perf_counter()
        last = client.submit(take_message, None, at, pure=False, workers=[worker])
        for _ in range(_CHAIN):
            last = client.submit(take_message, last, at, pure=False, workers=[worker])
        wait_all([last])
        seconds.append(time.perf_counter() - at)
    return {"tasks_per_s": _TASKS / median(together), "task_s": min(seconds) / _CHAIN}


def _measure_links(client: Client) -> dict[Tier, Link]:
    """Return the links between workers of one host, and of different hosts, by the times of messages of some sizes."""
    hosts = {
        address: each["host"] for address, each in query_scheduler(client, "identity", n_workers=-1)["workers"].items()
    }
    pairs = list(permutations(sorted(hosts), 2))
    by_tier: dict[Tier, list[tuple[str, str]]] = {
        "host": [pair for pair in pairs if hosts[pair[0]] == hosts[pair[1]]],
        "rack": [pair for pair in pairs if hosts[pair[0]] != hosts[pair[1]]],
    }
    return {
        tier: _link(client, those[:: max(1, len(those) // _PAIRS)][:_PAIRS]) for tier, those in by_tier.items() if those
    }


def _link(client: Client, pairs: Sequence[tuple[str, str]]) -> Link:
    """Return the link of some pairs of workers, of which the slowest counts."""
    found = [_link_of(client, *pair) for pair in pairs]
    return min(found, key=lambda link: link.bandwidth)


def message_times(send: Callable[[int], float]) -> dict[int, float]:
    """Return the median seconds of messages of some sizes, given what sends one, until one has taken long.

    Examples
    --------
    >>> message_times(lambda nbytes: nbytes / 500_000)
    {1000: 0.002, 1048576: 2.097152}
    """
    seconds: dict[int, float] = {}
    for nbytes in _MESSAGES:
        seconds[nbytes] = median(send(nbytes) for _ in range(_TURNS))
        if len(seconds) > 1 and seconds[nbytes] > _LONG_S:
            break
    return seconds


def _link_of(client: Client, sender: str, receiver: str) -> Link:
    seconds = message_times(lambda nbytes: _sent(client, sender, receiver, nbytes))
    own = median(_sent(client, sender, sender, _MESSAGES[0]) for _ in range(_TURNS))
    small, large = min(seconds), max(seconds)
    per_byte = max((seconds[large] - seconds[small]) / (large - small), 1e-12)
    return Link(bandwidth=1 / per_byte, latency=max(seconds[small] - own, 1e-5))


def _sent(client: Client, sender: str, receiver: str, nbytes: int) -> float:
    """Return the seconds of a task whose argument another worker has."""
    message = client.submit(make_message, nbytes, time.time(), pure=False, workers=[sender])
    wait_all([message])
    began = time.perf_counter()
    result(client.submit(take_message, message, began, pure=False, workers=[receiver]))
    return time.perf_counter() - began


def with_rates(hardware: Hardware, rates: Mapping[str, Any], links: Mapping[Tier, Link]) -> Hardware:
    """Return hardware with measured rates and links; others stay as they are."""
    return replace(hardware, rates=replace(hardware.rates, **rates), links={**hardware.links, **links})
