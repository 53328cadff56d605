"""What batches of the sequences of each owner's columns save against batches in corpus order.

    python benchmarks/owner_batches.py --workers 2 4 --repeats 7 TEXT

Covers: training from an encoded corpus on workers that both count and store. With ``owner`` each round is composed
anew: a sequence is counted by the worker that owns most of its columns, as far as batches cost the same.
Bytes that crossed between workers (increments, and blocks of text, which have to move where sequences do), processor
seconds of all processes, and wall seconds, in turns; all digests have to be the same. Does not cover: links that are
slower than memory (`links`), and workers that only count, which own nothing.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import psutil
from distributed import Client, Future
from rich.console import Console
from rich.table import Table
from training import BOOKS

import giaann_dask as gd
from giaann_dask.data import sample_text
from giaann_dask.events import DataMoved
from giaann_dask.keys import Integers, pack_neuron
from giaann_dask.runs.placement import Placement
from giaann_dask.spec import PlacementKind
from giaann_dask.training import tasks, trainer
from giaann_dask.training.rounds import PlacedBatch, Round, Rounds
from giaann_dask.training.selection import BALANCE_SLACK, ColumnTouches, join_touches, touches_of
from giaann_dask.training.tasks import RoundPlan

ORDERS = ("corpus", "owner")


class Run(NamedTuple):
    """Figures of a training: bytes between workers, seconds, and the digest."""

    increments: int
    text: int
    processor: float
    wall: float
    digest: str


def by_owner(parts: Sequence[ColumnTouches], columns: Placement, owners: dict[int, int], workers: int) -> Integers:
    """Return the worker of each sequence: of most of its columns, those with the most to gain first (a task)."""
    touches = join_touches(parts)
    count, cost = len(touches), touches.cost
    owner = np.zeros(max(owners, default=0) + 1, np.int64)
    owner[list(owners)] = list(owners.values())
    sequence = np.repeat(np.arange(count), np.diff(touches.offsets))
    touched = owner[columns.regions_of(pack_neuron(touches.column, np.zeros_like(touches.column)))]
    share = np.bincount(sequence * workers + touched, minlength=count * workers).reshape(count, workers)
    ordered = np.sort(share, axis=1)
    gain = (ordered[:, -1] - ordered[:, -2]) * touches.length
    left = np.full(workers, cost.sum() * (1 + BALANCE_SLACK) / workers)
    found = np.zeros(count, np.int64)
    for each in np.argsort(-gain, kind="stable").tolist():
        wanted = np.where(left >= cost[each], share[each], -1)
        found[each] = np.lexsort((left, wanted))[-1]
        left[found[each]] -= cost[each]
    return found


class OwnerRounds(Rounds):
    """Rounds in which each worker counts the sequences of its columns."""

    def submit(
        self, batches: Sequence[PlacedBatch], plan: RoundPlan, finish_oldest: Callable[[], None]
    ) -> Iterator[Round]:
        """Submit the tasks of one round of whole blocks."""
        blocks, regions = tuple(block for batch in batches for block in batch.blocks), self._regions
        regions.assign_owners()
        encoded = [block.encoded for block in blocks]
        self._place(encoded)
        workers = sorted(regions.tasks.roles.storage)
        owners = {region: workers.index(address) for region, address in regions.tasks.owners.items()}
        columns, splits = regions.columns, regions.splits
        touches = [self._submit("touch", touches_of, [block], key_of=block.key) for block in encoded]
        rule = (self._rule(), sorted(owners.items()), len(workers), [part.key for part in touches])
        with regions.tasks.submitter.together():
            chosen = self._submit("select", select, touches, columns, splits, owners, len(workers), key_of=rule)
            increments = [self._count_own(encoded, chosen, number, at) for number, at in enumerate(workers)]
            submitted = self._finish(increments, blocks, sum(block.mapping.sequences for block in blocks))
        yield submitted

    def _count_own(self, encoded: Sequence[Future], chosen: Future, number: int, worker: str) -> Future:
        part = (encoded, chosen, number, *self._arguments())
        key = (chosen.key, number)
        return self._compute("count_batch", tasks.count_selected, *part, key_of=key, worker=worker)


def select(
    parts: Sequence[ColumnTouches], columns: Placement, splits: Any, owners: dict[int, int], workers: int
) -> Integers:
    """Return the worker of each sequence, given where columns are (a task)."""
    return by_owner(parts, replace(columns, splits=splits), owners, workers)


def processor_seconds() -> float:
    """Return the processor time of this process and of its children."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(each.cpu_times()[:2]) for each in processes)


def measure(client: Client, corpus: Path, order: str, placement: PlacementKind, options: gd.TrainingOptions) -> Run:
    """Train once."""
    vars(trainer)["Rounds"] = OwnerRounds if order == "owner" else Rounds
    moved: list[DataMoved] = []

    def observe(event: object) -> None:
        if isinstance(event, DataMoved):
            moved.append(event)

    with tempfile.TemporaryDirectory() as folder:
        before = processor_seconds()
        network = gd.train(
            corpus,
            Path(folder) / "net",
            specification=gd.Specification(placement=placement),
            client=client,
            options=options,
            observer=observe,
            progress=False,
        )
        processor, wall = processor_seconds() - before, network.training_report.seconds
        increments, text = sum(each.increment_bytes for each in moved), sum(each.other_bytes for each in moved)
        return Run(increments, text, processor, wall, network.digest())


def figures(runs: Sequence[Run]) -> list[str]:
    """Return the cells of a row: medians, of times also the least."""
    moved = [median(each) / 1e6 for each in ([run.increments for run in runs], [run.text for run in runs])]
    times = [[run.processor for run in runs], [run.wall for run in runs]]
    return [*(f"{each:.1f}" for each in moved), *(f"{pick(each):.2f}" for each in times for pick in (median, min))]


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="*", type=Path, default=[BOOKS], help="text to read; the books by default")
    parser.add_argument("--workers", nargs="*", type=int, default=[2, 4], help="worker processes")
    parser.add_argument("--placements", nargs="*", default=["hash", "co-occurrence"])
    parser.add_argument("--batch-sequences", type=int, default=gd.TrainingOptions().batch_sequences)
    parser.add_argument("--repeats", type=int, default=7, help="runs of each kind, in turns")
    arguments = parser.parse_args()
    if arguments.text == [BOOKS] and not BOOKS.exists():
        arguments.text = [sample_text()]
    table = Table(
        "workers", "placement", "order", "increments MB", "text MB", "processor s", "least", "wall s", "least"
    )
    options = gd.TrainingOptions(batch_sequences=arguments.batch_sequences)
    digests = set()
    with tempfile.TemporaryDirectory() as folder:
        with gd.connect(workers=2) as client:
            corpus = gd.encode(arguments.text, Path(folder) / "corpus", client=client).path
        for workers in arguments.workers:
            with gd.connect(workers=workers) as client:
                measure(client, corpus, "corpus", "hash", options)
                for placement in arguments.placements:
                    runs: dict[str, list[Run]] = {order: [] for order in ORDERS}
                    for turn in range(arguments.repeats):
                        for order in ORDERS[:: 1 if turn % 2 else -1]:
                            runs[order].append(measure(client, corpus, order, placement, options))
                    for order, each in runs.items():
                        digests |= {run.digest for run in each}
                        table.add_row(str(workers), placement, order, *figures(each))
    Console(width=120).print(table)
    print("one digest" if len(digests) == 1 else f"DIFFERENT DIGESTS {sorted(digests)}")


if __name__ == "__main__":
    main()
