"""How fast this device sums the pairs of a batch, as shares of its sort and copy rates, and steps of inference.

Needs the checkout and the packages that the Makefile lists for ``gpu-check``: ``PYTHONPATH=. python
benchmarks/device.py``. With CUDA it uses the GPU, else the CPU. Prints one JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from giaann_dask.device import device_names, select_device
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


def tell(file: Path | None, result: str, **values: Any) -> None:
    """Print a result with the card and the date, and append it to a file."""
    card = ", ".join(device_names()) or "none"
    line = json.dumps({"card": card, "date": date.today().isoformat(), "result": result, **values})
    print(line, flush=True)
    if file is not None:
        with file.open("a", encoding="utf-8") as lines:
            lines.write(f"{line}\n")


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


def compare_sums(block: EncodedBlock, device: torch.device, runs: int) -> dict[str, Any]:
    """Return how fast pairs are summed by the device and by compiled code, beside copies and sorts of as many keys."""
    entries = len(block.column) * (TOKENS - 1)
    keys = torch.randint(0, 1 << 50, (entries,), dtype=torch.int64, device=device)
    pairs = pairs_of(*connect_batch([block], Specification(), Placement(1)).values())

    def sort() -> object:
        return np.sort(keys.numpy()) if device.type == "cpu" else torch.sort(keys)

    copy_s = median_seconds(keys.clone, device, runs)
    sort_s = median_seconds(sort, device, runs)
    sum_s = median_seconds(lambda: sum_pairs_on(device, pairs), device, runs)
    compiled_s = median_seconds(lambda: list(sum_pairs(pairs)), device, runs)
    return {
        "entries": entries,
        "copy_gigabytes_per_s": keys.nbytes * 2 / copy_s / 1e9,
        "sort_entries_per_s": entries / sort_s,
        "sum_entries_per_s": entries / sum_s,
        "sum_share_of_sort_rate": sort_s / sum_s,
        "sum_share_of_copy_rate": copy_s / sum_s,
        "compiled_sum_entries_per_s": entries / compiled_s,
    }


def timed_batches(
    block: EncodedBlock, sequences: int, device: torch.device | None, start: Callable[[], object] | None = None
) -> tuple[int, list[float]]:
    """Return how many tokens of as many sequences a batch predicts, compiled without a device, and seconds of two.

    The first one is for compiling, and for taking the rows to the device; `start` is called before the second.
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
    options, seconds = BatchOptions(slots=sequences), list[float]()
    for turn in range(2):
        if turn and start is not None:
            start()
        batch = PullBatch(specification, rows, batch=options, device=device, traced=False)
        started, predicted = time.perf_counter(), 0
        for prompt in prompts:
            batch.enter(prompt)
        while (table := batch.step_together()) is not None:
            predicted += int((~table.seed).sum())
        seconds.append(time.perf_counter() - started)
    return predicted, seconds


def compiled_together(sequences: int, prompts: int, processes: int) -> float:
    """Return how many tokens of as many prompts a second some processes predict at the same time, compiled."""
    with multiprocessing.get_context("spawn").Manager() as manager:
        barrier = manager.Barrier(processes)
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            share = -(-prompts // processes)
            return sum(pool.map(_compiled, [sequences] * processes, [share] * processes, [barrier] * processes))


def _compiled(sequences: int, prompts: int, barrier: Any) -> float:
    predicted, seconds = timed_batches(random_block(sequences), prompts, None, start=barrier.wait)
    return predicted / seconds[1]


def first_batch(sequences: int) -> float:
    """Return the seconds of the first batch of a new process on the device, its kernel and its rows included."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_first_batch, sequences).result()


def _first_batch(sequences: int) -> float:
    return timed_batches(random_block(sequences), 64, select_device())[1][0]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=8192)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--prompts", type=int, nargs="*", default=[64], help="that take a step together")
    parser.add_argument(
        "--processes", type=int, default=1, help="of the processor, among which the prompts are divided"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, help="file that the lines are appended to")
    arguments = parser.parse_args()
    device = select_device(arguments.device) or torch.device("cpu")
    torch.set_num_threads(1)
    block = random_block(arguments.sequences)
    found: dict[str, Any] = {"device": str(device), "torch": torch.__version__}
    tell(arguments.results, "sums", **found, **compare_sums(block, device, arguments.runs))
    if device.type != "cpu":
        # The first one compiles the kernel where no process has done so before.
        seconds = [first_batch(arguments.sequences) for _ in range(2)]
        tell(arguments.results, "first batch", **found, seconds_by_process=seconds)
    for prompts in arguments.prompts:
        found |= {"prompts": prompts, "processes": arguments.processes}
        found["compiled_tokens_per_s"] = compiled_together(arguments.sequences, prompts, arguments.processes)
        if device.type != "cpu":
            predicted, seconds = timed_batches(block, prompts, device)
            found["kernel_tokens_per_s"] = predicted / seconds[1]
        tell(arguments.results, "prompts", **found)
    if device.type == "cpu":
        print("PyTorch found no CUDA device: these are figures of the processor, and no test of a GPU ran.")


if __name__ == "__main__":
    main()
