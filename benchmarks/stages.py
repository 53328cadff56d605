"""Time each stage of the engine by itself, then all of them on a cluster, on real text.

Prints a table: what a stage does in a second on one core, tasks and bytes moved, bytes per
connection on disk and in memory, milliseconds a token of inference, and the peak memory of each
process. Figures of one run are comparable with each other; machines differ.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import giaann_dask as gd
from giaann_dask.models.columns.connections import connect_batch
from giaann_dask.models.columns.evaluation.predicting import PredictionRule, infer
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.columns.state.session import FlagTable
from giaann_dask.runs.packing import PackedRun, unpack
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification
from giaann_dask.text.block_building import BlockBuilder
from giaann_dask.text.blocks import CANDIDATE, FilterOptions, TaggedBlock
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.reading import read_parts
from giaann_dask.text.segmentation import EncodedBlock, encode_block
from giaann_dask.text.splitting import split_text
from giaann_dask.text.tagging import make_tagger, tag_text
from giaann_dask.text.tokens import TaggedText
from giaann_dask.text.vocabulary import Vocabulary, summarise
from giaann_dask.training.tasks import Increment, compact

Value = TypeVar("Value")
BOOK = Path(__file__).resolve().parents[2] / "shared" / "data" / "books" / "war-and-peace.txt.gz"
BATCH = 8192


class Stopwatch:
    """Adds up seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, stage: str, function: Callable[..., Value], *arguments: Any) -> Value:
        """Call a function and add the time it takes to a stage."""
        started = time.perf_counter()
        value = function(*arguments)
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - started
        return value


def encode_text(text: str, watch: Stopwatch) -> tuple[Vocabulary, list[EncodedBlock], int]:
    """Read, split, tag and encode in this process."""
    specification = Specification()
    limits = FilterOptions(seed_tokens=specification.seed_tokens, maximum_tokens=specification.maximum_tokens)
    ever_pos, vocabulary = EverPos.from_lemminflect(), Vocabulary()
    make_tagger("lexicon")
    blocks, words = [], 0
    for part in read_parts([text]):
        split = watch.time("split and tokenise", split_text, part.passages)
        words += len(split.type_of)
        tagged = watch.time("tag", tag_text, "lexicon", split, np.zeros(len(split.ends), np.int64))

        def collect(tagged: TaggedText = tagged) -> TaggedBlock:
            builder = BlockBuilder(ever_pos, limits)
            builder.add_part(tagged)
            return builder.build()

        block = watch.time("collect", collect)
        mapping = watch.time("merge vocabulary", lambda block=block: vocabulary.extend(summarise(block)))
        blocks.append(watch.time("encode", encode_block, block, mapping, specification))
    return vocabulary, blocks, words


def train_here(blocks: list[EncodedBlock], watch: Stopwatch) -> tuple[list[PackedRun], int]:
    """Connect, and sum and pack the increments of each region in this process, as one compaction of a cluster does."""
    specification = Specification()
    placement = Placement(specification.regions)
    regions: dict[int, list[Increment]] = {}
    increments = 0
    for batch in batches(blocks):
        touched = watch.time("connect", connect_batch, batch, specification, placement)
        increments += sum(table.nbytes for run in touched.values() for table in run if table is not None)
        for region, run in touched.items():
            regions.setdefault(region, []).append(run)
    return [watch.time("sum and pack", compact, *runs).connections for runs in regions.values()], increments


def batches(blocks: list[EncodedBlock]) -> list[list[EncodedBlock]]:
    """Join blocks into batches of at least BATCH sequences."""
    found: list[list[EncodedBlock]] = [[]]
    for block in blocks:
        if sum(map(len, found[-1])) >= BATCH:
            found.append([])
        found[-1].append(block)
    return found


def infer_here(
    vocabulary: Vocabulary, blocks: list[EncodedBlock], regions: list[Run], sentences: int, options: InferenceOptions
) -> tuple[float, int]:
    """Return milliseconds a token, seed tokens included, and how many tokens there were."""
    flags = FlagTable(np.array(vocabulary.delimiter), np.array(vocabulary.probable_since))
    middle = blocks[len(blocks) // 2]
    span = (0, min(sentences, len(middle)))
    specification = Specification()
    rule = PredictionRule(specification=specification, options=options)
    arguments = (flags, Placement(specification.regions), regions, rule)
    infer(middle, (0, 2), *arguments)
    started = time.perf_counter()
    tokens = infer(middle, span, *arguments).tokens
    return (time.perf_counter() - started) * 1000 / tokens, tokens


def on_cluster(text: str, workers: int, folder: Path) -> dict[str, Any]:
    """Encode, then train from the corpus, on a cluster of processes; return the figures."""
    with gd.connect(workers=workers) as client:
        client.run(os.getpid)
        started = time.perf_counter()
        corpus = gd.encode(text, folder / "corpus", client=client)
        encoded = time.perf_counter()
        commits: list[float] = []

        def observe(event: Any) -> None:
            if hasattr(event, "commit"):
                commits.append(event.seconds)

        network = gd.train(folder / "corpus", folder / "net", client=client, observer=observe)
        report = network.training_report
        described = network.describe()
        peaks = client.run(peak_memory)
        return {
            "encode": len(corpus) / (encoded - started),
            "train": report.sequences / report.seconds,
            "commit": sum(commits),
            "tasks": report.tasks,
            "moved": report.increment_bytes,
            "disk": described["bytes_on_disk"] / described["connections"],
            "packed": described["bytes_in_memory"] / described["connections"],
            "peaks": [peak_memory(), *peaks.values()],
        }


def peak_memory() -> int:
    """Return the largest resident size of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", default=str(BOOK), help="text to read")
    parser.add_argument("--workers", type=int, default=2, help="worker processes")
    parser.add_argument("--sentences", type=int, default=100, help="sentences of the inference stage")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not Path(arguments.text).exists():
        from giaann_dask.data import sample_text

        Console(stderr=True).print(f"{arguments.text} is not here; reading the sample text, which is small")
        arguments.text = str(sample_text())
    watch = Stopwatch()
    vocabulary, blocks, words = encode_text(arguments.text, watch)
    regions, increments = train_here(blocks, watch)
    show(arguments, watch, (vocabulary, blocks, words, regions, increments))


def show(arguments: argparse.Namespace, watch: Stopwatch, made: tuple[Any, ...]) -> None:
    """Print what was measured."""
    vocabulary, blocks, words, regions, increments = made
    sequences = sum(map(len, blocks))
    trained = sum(int((b.status == CANDIDATE).sum()) for b in blocks)
    tokens = sum(int(np.diff(b.offsets)[b.status == CANDIDATE].sum()) for b in blocks)
    connections = sum(map(len, regions))
    decoded = [watch.time("unpack", unpack, run) for run in regions]
    table = Table("stage", "seconds", "a second", title=f"one core: {Path(arguments.text).name}")
    for stage, seconds in watch.seconds.items():
        amount, unit = {
            "split and tokenise": (words, "tokens"),
            "tag": (words, "tokens"),
            "sum and pack": (connections, "connections"),
            "unpack": (connections, "connections"),
        }.get(stage, (sequences, "sequences"))
        table.add_row(stage, f"{seconds:.2f}", f"{amount / seconds:,.0f} {unit}")
    both = watch.seconds["connect"] + watch.seconds["sum and pack"]
    table.add_row("connect + sum and pack", f"{both:.2f}", f"{sequences / both:,.0f} sequences")
    for timing in ("none", "biased"):
        options = InferenceOptions(timing=timing)
        per_token, count = infer_here(vocabulary, blocks, decoded, arguments.sentences, options)
        table.add_row(f"inference, {timing}", "", f"{per_token:.3f} ms a token ({count} tokens)")
    console = Console()
    console.print(table)
    console.print(
        f"{sequences:,} sequences ({trained:,} trained, {tokens:,} merged tokens, {tokens / trained:.1f} each), "
        f"{len(vocabulary.concepts):,} concepts, {connections:,} connections; increments {increments:,} bytes; "
        f"decoded {sum(r.nbytes for r in decoded) / connections:.2f} bytes a connection, "
        f"packed {sum(p.nbytes for p in regions) / connections:.2f}"
    )
    with tempfile.TemporaryDirectory() as folder:
        found = on_cluster(arguments.text, arguments.workers, Path(folder))
    console.print(
        f"{arguments.workers} worker processes: encode {found['encode']:,.0f} sequences/s with tagging; "
        f"train {found['train']:,.0f} sequences/s from the corpus, commit {found['commit']:.2f} s of it, "
        f"{found['tasks']} tasks, {found['moved']:,} bytes of increments; {found['disk']:.2f} bytes a connection "
        f"on disk, {found['packed']:.2f} in memory as packed runs; peak MiB of client and workers {found['peaks']}"
    )


if __name__ == "__main__":
    main()
