"""What a slow worker costs: training with one of the workers throttled to a share of its speed.

    python benchmarks/slow_worker.py --workers 4 --share 0.25

Covers: the rate of training undisturbed and with one worker that runs for a share of the time only
(it is stopped and continued many times a second), against the rate that is left when only its own
work is lost: (workers - 1 + share) / workers of the undisturbed one. Does not cover: workers
that hang (`tests/training/test_fault_plans.py`).

Needs a processor for every worker, and one more: with fewer, the others run on what the slow one
leaves, and it seems to cost less than it does. On a machine with fewer, ``--processor 0.35`` gives
every worker that share of one, throttled in the same way, so that what one leaves is of no use to another.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median

from distributed import get_task_stream
from rich.console import Console
from rich.table import Table
from task_stream import idle_shares
from training import BOOKS

import giaann_dask as gd
from giaann_dask.data import sample_text


@contextmanager
def throttled(pid: int, share: float, period_s: float = 0.1) -> Iterator[None]:
    """Let a process run for a share of the time only."""
    over = threading.Event()

    def throttle() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(period_s * (1 - share))
            os.kill(pid, signal.SIGCONT)
            time.sleep(period_s * share)

    thread = threading.Thread(target=throttle, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def measure(corpus: Path, arguments: argparse.Namespace) -> dict[str, list[tuple[float, float, dict[str, int]]]]:
    """Train undisturbed and disturbed in turns; return seconds, share of idle time and tasks of the slow worker."""
    figures: dict[str, list[tuple[float, float, dict[str, int]]]] = {"undisturbed": [], "one slow": []}
    options = gd.TrainingOptions(batch_sequences=arguments.batch_sequences, rounds_in_flight=arguments.rounds_in_flight)
    with gd.connect(workers=arguments.workers) as client, tempfile.TemporaryDirectory() as folder:
        pids = client.run(os.getpid)
        slow = min(pids)
        gd.train(corpus, Path(folder) / "warm", client=client, options=options)
        for turn in range(arguments.repeats):
            for name in figures:
                started = time.time()
                shares = dict.fromkeys(pids, arguments.processor)
                if name == "one slow":
                    shares[slow] *= arguments.share
                with get_task_stream(client) as stream, ExitStack() as throttles:
                    for worker, share in shares.items():
                        if share < 1:
                            throttles.enter_context(throttled(pids[worker], share))
                    report = gd.train(
                        corpus, Path(folder) / f"{name}-{turn}", client=client, options=options
                    ).training_report
                span = (started, time.time())
                idle = idle_shares(stream.data, span, arguments.workers)
                tasks = {"slow": sum(task["worker"] == slow for task in stream.data), "all": len(stream.data)}
                figures[name].append((report.seconds, sum(idle) / len(idle), tasks))
    return figures


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="*", type=Path, default=[BOOKS], help="text to read; the books by default")
    parser.add_argument("--corpus", type=Path, help="read a corpus that was encoded before instead of text")
    parser.add_argument("--workers", type=int, default=2, help="worker processes")
    parser.add_argument("--share", type=float, default=0.25, help="speed of the slow one")
    parser.add_argument("--processor", type=float, default=1.0, help="share of a processor that a worker has")
    parser.add_argument("--repeats", type=int, default=3, help="undisturbed and disturbed runs, in turns")
    parser.add_argument("--batch-sequences", type=int, default=gd.TrainingOptions().batch_sequences)
    parser.add_argument("--rounds-in-flight", type=int, default=gd.TrainingOptions().rounds_in_flight)
    arguments = parser.parse_args()
    if arguments.text == [BOOKS] and not BOOKS.exists():
        arguments.text = [sample_text()]
    with tempfile.TemporaryDirectory() as folder:
        corpus = arguments.corpus
        if corpus is None:
            with gd.connect(workers=arguments.workers) as client:
                corpus = gd.encode(arguments.text, Path(folder) / "corpus", client=client).path
        show(measure(corpus, arguments), arguments)


def show(figures: dict[str, list[tuple[float, float, dict[str, int]]]], arguments: argparse.Namespace) -> None:
    """Print seconds, idle time and the slow worker's part."""
    table = Table(title=f"{arguments.workers} workers, one at {arguments.share:.0%} of its speed")
    for column in ("run", "seconds", "median", "time without computing", "tasks of the slow worker"):
        table.add_column(column, justify="left" if column == "run" else "right")
    for name, runs in figures.items():
        table.add_row(
            name,
            " ".join(f"{seconds:.1f}" for seconds, _, _ in runs),
            f"{median(seconds for seconds, _, _ in runs):.2f}",
            f"{median(idle for _, idle, _ in runs):.0%}",
            " ".join(f"{tasks['slow']}/{tasks['all']}" for _, _, tasks in runs),
        )
    console = Console(width=110)
    console.print(table)
    before, after = (median(seconds for seconds, _, _ in figures[name]) for name in ("undisturbed", "one slow"))
    ideal = arguments.workers / (arguments.workers - 1 + arguments.share)
    console.print(
        f"{after / before:.2f} times as long; the slow worker's own share: {ideal:.2f}; "
        f"beyond it: {after / before / ideal:.2f}"
    )


if __name__ == "__main__":
    main()
