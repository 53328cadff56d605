"""How fast this device sums the pairs of a batch, as shares of its sort and copy rates, and steps of inference.

Needs the checkout and the packages that the Makefile lists for ``gpu-check``: ``PYTHONPATH=. python
benchmarks/device.py``. With CUDA it uses the GPU, else the CPU.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import torch

from giaann_dask.device import select_device
from giaann_dask.keys import pack_neuron
from giaann_dask.models.columns.batch import Prompt
from giaann_dask.models.columns.connections import connect_batch
from giaann_dask.models.columns.state.session import FlagTable, PreparedSequence
from giaann_dask.models.columns.v1.pull_batch import PullBatch
from giaann_dask.models.generation_options import BatchOptions
from giaann_dask.rows.source import RunRows
from giaann_dask.runs.device_sums import sum_pairs_on
from giaann_dask.runs.pair_tables import sum_pairs
from giaann_dask.runs.placement import Placement
from giaann_dask.spec import Specification
from giaann_dask.text.segmentation import TOKENS, EncodedBlock, random_block
from giaann_dask.training.tasks import add_runs, pairs_of


def median_seconds(function: Callable[[], object], device: torch.device, runs: int) -> float:
    """Return the median time of a function whose work on the device is waited for."""
    seconds = []
    for _ in range(runs + 1):
        started = time.perf_counter()
        function()
        if device.type != "cpu":
            torch.zeros(1, device=device).item()
        seconds.append(time.perf_counter() - started)
    return sorted(seconds[1:])[runs // 2]


def tokens_per_s(
    block: EncodedBlock, sequences: int, device: torch.device | None, start: Callable[[], object] | None = None
) -> float:
    """Return how many tokens of as many sequences a batch predicts in a second, compiled without a device.

    `start` is called before what is timed.
    """
    specification = Specification()
    parts = connect_batch([block], specification, Placement(1))
    rows, vocabulary = RunRows([add_runs([part]).connections for part in parts.values()], lambda _: 0), 20_001
    flags = FlagTable(np.zeros(vocabulary, bool), np.full(vocabulary, -1))
    neuron = pack_neuron(block.column, block.feature).reshape(-1, TOKENS)[:sequences]
    prompts = [
        Prompt(sequence=PreparedSequence(neuron=line, noun=(line & 0x1FFFFFF) == 0, number=0), flags=flags)
        for line in neuron
    ]
    options = BatchOptions(slots=sequences)
    # The first time is for compiling, and for taking the rows to the device.
    for turn in range(2):
        if turn and start is not None:
            start()
        batch = PullBatch(specification, rows, batch=options, device=device, traced=False)
        started, predicted = time.perf_counter(), 0
        for prompt in prompts:
            batch.enter(prompt)
        while (table := batch.step_together()) is not None:
            predicted += int((~table.seed).sum())
        seconds = time.perf_counter() - started
    return predicted / seconds


def compiled_together(sequences: int, prompts: int, processes: int) -> float:
    """Return how many tokens of as many prompts a second some processes predict at the same time, compiled."""
    with multiprocessing.get_context("spawn").Manager() as manager:
        barrier = manager.Barrier(processes)
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            share = -(-prompts // processes)
            return sum(pool.map(_compiled, [sequences] * processes, [share] * processes, [barrier] * processes))


def _compiled(sequences: int, prompts: int, barrier: Any) -> float:
    block = random_block(sequences)
    return tokens_per_s(block, prompts, None, start=barrier.wait)


def main() -> None:
    """Run the benchmark and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=8192)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=64, help="that take a step together")
    parser.add_argument(
        "--processes", type=int, default=1, help="of the processor, among which the prompts are divided"
    )
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    device = select_device(arguments.device) or torch.device("cpu")
    torch.set_num_threads(1)
    block, specification = random_block(arguments.sequences), Specification()
    entries = arguments.sequences * TOKENS * (TOKENS - 1)
    keys = torch.randint(0, 1 << 50, (entries,), dtype=torch.int64, device=device)

    def sort() -> object:
        return np.sort(keys.numpy()) if device.type == "cpu" else torch.sort(keys)

    pairs = pairs_of(*connect_batch([block], specification, Placement(1)).values())

    copy_s = median_seconds(keys.clone, device, arguments.runs)
    sort_s = median_seconds(sort, device, arguments.runs)
    sum_s = median_seconds(lambda: sum_pairs_on(device, pairs), device, arguments.runs)
    compiled_s = median_seconds(lambda: list(sum_pairs(pairs)), device, arguments.runs)
    print(
        json.dumps(
            {
                "device": str(device),
                "torch": torch.__version__,
                "entries": entries,
                "copy_gigabytes_per_s": keys.nbytes * 2 / copy_s / 1e9,
                "sort_entries_per_s": entries / sort_s,
                "sum_entries_per_s": entries / sum_s,
                "sum_share_of_sort_rate": sort_s / sum_s,
                "sum_share_of_copy_rate": copy_s / sum_s,
                "compiled_sum_entries_per_s": entries / compiled_s,
                "prompts": arguments.prompts,
                "processes": arguments.processes,
                "compiled_tokens_per_s": compiled_together(arguments.sequences, arguments.prompts, arguments.processes),
                "kernel_tokens_per_s": None if device.type == "cpu" else tokens_per_s(block, arguments.prompts, device),
            },
            indent=2,
        )
    )
    if device.type == "cpu":
        print("PyTorch found no CUDA device: these are figures of the processor, and no test of a GPU ran.")


if __name__ == "__main__":
    main()
