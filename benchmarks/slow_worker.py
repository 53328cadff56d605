"""What a slow worker costs, by what training does about it: all workers but one have the same speed.

    python benchmarks/slow_worker.py NOVEL... --workers 4 --processor 0.05 --batch-sequences 256

Covers: seconds of training undisturbed, and with one worker that takes 1 / share times as long for
each task, for each of `TrainingOptions.slow_workers` (``report`` does nothing about it), against what is
left when only its own work is lost: (workers - 1 + share) / workers of the undisturbed rate. Where other
processes disturb these seconds, the work of each worker counts: its processor seconds of tasks, divided by its
speed, of the worker for which that is most, against the same if each worked for its speed. Does not
cover: workers that hang (`tests/training/test_fault_plans.py`), and slow links.

Every worker sleeps after its tasks as long as they took of the processor, so many times that it works
for ``--processor`` of the time; the slow one for a share of that. So workers need as many processors
together as there are workers, times ``--processor``, and one more for scheduler and driver.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from distributed import Client, Worker, WorkerPlugin
from distributed.threadpoolexecutor import ThreadPoolExecutor
from rich.console import Console
from rich.table import Table
from training import BOOKS

import giaann_dask as gd
from giaann_dask.cluster.worker_speeds import REACTIONS, Reaction
from giaann_dask.data import sample_text
from giaann_dask.training import tasks

Kind = Literal["undisturbed"] | Reaction
Runs = dict[Kind, list["Timing"]]
UNDISTURBED: Literal["undisturbed"] = "undisturbed"


class Timing(NamedTuple):
    """A training: its seconds, its division of work against that by speed, and what was said of the slow worker."""

    seconds: float
    division: float
    said: str


class Slowdown(WorkerPlugin):  # type: ignore[misc]
    """Let the tasks of each worker take longer, by the processor time that they use.

    Parameters
    ----------
    shares : dict of str to float
        Of the time in which a worker works, by its address.
    """

    name = "slowdown"

    def __init__(self, shares: Mapping[str, float]) -> None:
        self._shares = shares
        self.used = 0.0

    def setup(self, worker: Worker) -> None:
        """Let the threads of a worker sleep within counting, which is measured, and after tasks."""
        slept, share = threading.local(), self._shares[worker.address]

        def catch_up() -> None:
            used = time.thread_time() - slept.at
            slept.at = time.thread_time()
            self.used += used
            time.sleep(used * (1 / share - 1))

        original = tasks.divide_at_targets

        def divide(*arguments: Any) -> Any:
            divided = original(*arguments)
            catch_up()
            return divided

        # Dask tells by this name that tasks run in threads, and only then says which worker theirs is.
        class SleepingThreadPoolExecutor(ThreadPoolExecutor):  # type: ignore[misc]
            def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
                @functools.wraps(function)
                def run(*arguments: Any, **named: Any) -> Any:
                    slept.at = time.thread_time()
                    found = function(*arguments, **named)
                    catch_up()
                    return found

                return super().submit(run, *arguments, **named)

        tasks.divide_at_targets = divide  # type: ignore[assignment]
        worker.executors["default"] = SleepingThreadPoolExecutor(worker.state.nthreads)


def slow_down(client: Client, arguments: argparse.Namespace, share: float) -> dict[str, float]:
    """Let all workers work for a part of the time, the first for a share of that; return these by address."""
    slow, *others = sorted(map(str, client.scheduler_info(n_workers=-1)["workers"]))
    shares = {slow: arguments.processor * share} | dict.fromkeys(others, arguments.processor)
    client.register_plugin(Slowdown(shares))
    return shares


def work_of(dask_worker: Worker) -> float:
    """Return the processor seconds of the tasks of a worker that is slowed down."""
    used: float = dask_worker.plugins[Slowdown.name].used
    return used


def measure(corpus: Path, arguments: argparse.Namespace, reaction: Reaction, share: float) -> Timing:
    """Train on new workers."""
    options = gd.TrainingOptions(
        batch_sequences=arguments.batch_sequences,
        block_characters=arguments.block_characters,
        rounds_in_flight=arguments.rounds_in_flight,
        slow_workers=reaction,
    )
    with gd.connect(workers=arguments.workers) as client, tempfile.TemporaryDirectory() as folder:
        gd.train(sample_text(), Path(folder) / "warm", client=client)
        shares = slow_down(client, arguments, share)
        slow = next(iter(shares))
        report = gd.train(corpus, Path(folder) / "net", client=client, options=options).training_report
        used = client.run(work_of)
    longest = max(used[address] / shares[address] for address in used)
    said = "; ".join(
        f"{'the slow one' if worker == slow else 'another'}: {verdict}"
        for worker, verdict in report.slow_workers.items()
    )
    return Timing(report.seconds, longest * sum(shares.values()) / sum(used.values()), said)


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="*", type=Path, default=[BOOKS], help="text to read; the books by default")
    parser.add_argument("--workers", type=int, default=2, help="worker processes")
    parser.add_argument("--share", type=float, default=0.25, help="speed of the slow one")
    parser.add_argument("--processor", type=float, default=1.0, help="share of a processor that a worker has")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each kind, in turns")
    parser.add_argument("--batch-sequences", type=int, default=gd.TrainingOptions().batch_sequences)
    parser.add_argument("--block-characters", type=int, default=gd.TrainingOptions().block_characters)
    parser.add_argument("--rounds-in-flight", type=int, default=gd.TrainingOptions().rounds_in_flight)
    parser.add_argument("--reactions", nargs="*", choices=REACTIONS, default=REACTIONS)
    arguments = parser.parse_args()
    if arguments.text == [BOOKS] and not BOOKS.exists():
        arguments.text = [sample_text()]
    runs: Runs = {name: [] for name in (UNDISTURBED, *arguments.reactions)}
    with tempfile.TemporaryDirectory() as folder:
        with gd.connect(workers=arguments.workers) as client:
            corpus = gd.encode(arguments.text, Path(folder) / "corpus", client=client).path
        for _ in range(arguments.repeats):
            for name, found in runs.items():
                share = 1.0 if name == UNDISTURBED else arguments.share
                found.append(measure(corpus, arguments, "report" if name == UNDISTURBED else name, share))
                print(name, *found[-1], flush=True)
    show(runs, arguments)


def show(runs: Runs, arguments: argparse.Namespace) -> None:
    """Print seconds, and what they are of the undisturbed and of the ideal ones."""
    table = Table(title=f"{arguments.workers} workers, one at {arguments.share:.0%} of its speed")
    for column in ("run", "seconds", "median", "of undisturbed", "of ideal", "work of ideal"):
        table.add_column(column, justify="left" if column == "run" else "right")
    before = median(each.seconds for each in runs[UNDISTURBED])
    ideal = arguments.workers / (arguments.workers - 1 + arguments.share)
    for name, found in runs.items():
        after = median(each.seconds for each in found)
        times = after / before
        table.add_row(
            name,
            " ".join(f"{each.seconds:.1f}" for each in found),
            f"{after:.1f}",
            f"{times:.2f}",
            "" if name == UNDISTURBED else f"{times / ideal:.2f}",
            f"{median(each.division for each in found):.2f}",
        )
    console = Console(width=110)
    console.print(table)
    console.print(f"the slow worker's own share: {ideal:.2f} times as long")


if __name__ == "__main__":
    main()
