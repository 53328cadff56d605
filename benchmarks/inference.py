"""Time inference: one prompt with local and with remote columns, batches, and growth with the network.

Prints one JSON object: milliseconds a token (median and 99th percentile) for one prompt, tokens a second
in batches, rows and bytes a token, hit rate of the cache, and how the cost grows from a tenth of the
sequences to all of them. With `--state-entries 1e5 1e6 1e7` it measures the activation states of the profiles alone
instead: milliseconds of processor time for pushing a row of random targets while they grow from each of these numbers
of entries to the next: median, 99th percentile and longest. Prompts are the first words of the text's own sentences;
prompts count in the time of batches, not among the tokens. What is compared is run in turns. Figures of one run are
comparable with each other; machines differ.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import giaann_dask as gd
from giaann_dask.cluster import result
from giaann_dask.cluster.regions import open_region, region_places
from giaann_dask.encoding.sources import SourceOptions
from giaann_dask.encoding.stream import EncodingStream, StreamOptions
from giaann_dask.keys import NEURON_MASK, Integers, pack_neuron, pack_target
from giaann_dask.models.columns.batch import Prompt
from giaann_dask.models.columns.predictor import ColumnsPredictor, open_columns
from giaann_dask.models.columns.state.activation import ActivationState, Layout, Pulse
from giaann_dask.models.columns.state.inference_options import InferenceOptions, LifOptions
from giaann_dask.models.columns.state.session import FlagTable, PreparedSequence, StepTrace
from giaann_dask.models.columns.v1.pull_batch import PullBatch
from giaann_dask.models.columns.v1.session import Session
from giaann_dask.models.columns.v2.dynamics import Clock, SegmentLayout
from giaann_dask.models.columns.v2.session import LifState
from giaann_dask.models.generation_options import BatchOptions, GenerationOptions
from giaann_dask.rows.protocol import RowOptions, RowProjection
from giaann_dask.rows.regions import open_regions
from giaann_dask.rows.remote import RemoteRows
from giaann_dask.rows.source import RowSource, RunRows
from giaann_dask.spec import BRANCH_BITS, Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.blocks import CANDIDATE
from giaann_dask.text.read_options import ReadOptions

BOOKS = Path(__file__).resolve().parents[2] / "shared" / "data" / "books"
OPTIONS = InferenceOptions(feed="prediction")
RULES = GenerationOptions(reasons=0)
SEGMENTS = SegmentLayout()


def read_prompts(reader: CommitReader, text: str, wanted: int, words: int) -> list[PreparedSequence]:
    """Return the first words of sentences of a text, from its first on."""
    found = list[PreparedSequence]()
    sources = SourceOptions.of(
        reader.manifest().specification,
        tagger="lexicon",
        lexicon=reader.ever_pos(),
        reading=ReadOptions(),
        drop_short=True,
    )
    options = StreamOptions(max_sequences=2 * wanted)
    vocabulary = reader.saved_vocabulary()
    features = len(vocabulary.features)
    with gd.connect(workers=0) as client:
        stream = EncodingStream(client, vocabulary, sources, options)
        for streamed in stream.blocks([text]):
            block = result(streamed.encoded)
            for q in np.flatnonzero(block.status[: streamed.mapping.sequences] == CANDIDATE).tolist():
                begin, end = (int(edge) for edge in block.offsets[q : q + 2])
                part = slice(begin, min(begin + words, end))
                # Of words that no trained sequence had, the network knows no flags.
                if block.feature[part].max() < features:
                    neuron = pack_neuron(block.column[part], block.feature[part])
                    number = reader.manifest().sequences
                    found.append(PreparedSequence(neuron=neuron, noun=block.feature[part] == 0, number=number))
    return found[:wanted]


Stream: TypeAlias = Callable[[PreparedSequence, int], Iterator[StepTrace]]


def batch_of_one(specification: Specification, rows: RowSource, flags: FlagTable) -> Stream:
    """Return how a prompt is continued in a batch by itself."""

    def stream(prompt: PreparedSequence, tokens: int) -> Iterator[StepTrace]:
        batch = PullBatch(specification, rows, options=OPTIONS, batch=BatchOptions(slots=1))
        batch.enter(Prompt(sequence=prompt, flags=flags, tokens=tokens))
        while len(batch):
            for found in batch.step():
                yield from found.traces

    return stream


def one_by_one(stream: Stream, prompts: Sequence[PreparedSequence], tokens: int) -> list[float]:
    """Return the milliseconds of every token generated after the prompts."""
    taken = []
    for prompt in prompts:
        before = time.perf_counter()
        for trace in stream(prompt, tokens):
            now = time.perf_counter()
            if trace.result.predicted is not None:
                taken.append((now - before) * 1000)
            before = now
    return taken


def in_batches(opened: ColumnsPredictor, rows: RowSource, prompts: list[Prompt], slots: int) -> dict[str, float]:
    """Return tokens a second of wall and of processor time, and rows and bytes a token."""
    batch = PullBatch(opened.specification, rows, options=OPTIONS, batch=BatchOptions(slots=slots))
    begun, used = time.perf_counter(), time.process_time()
    tokens, waiting = 0, list(reversed(prompts))
    while waiting or len(batch):
        while waiting and batch.free_slots:
            batch.enter(waiting.pop())
        tokens += sum(step.predicted is not None for advance in batch.step() for step in advance.results)
    wall, used = time.perf_counter() - begun, time.process_time() - used
    held = batch.held
    return {
        "tokens": tokens,
        "tokens_per_s": tokens / wall,
        "tokens_per_processor_s": tokens / used,
        "rows_per_token": held.fetched / tokens,
        "held_rate": 1 - held.fetched / held.wanted,
    }


def on_cores(opened: ColumnsPredictor, rows: RunRows, prompts: list[Prompt], slots: int, cores: int) -> float:
    """Return tokens a second of some processes that share this one's memory, each with a batch of its own."""
    context = multiprocessing.get_context("fork")
    gates = [context.Pipe() for _ in range(cores)]

    def work(gate: Any, part: list[Prompt]) -> None:
        gate.send(None)
        gate.recv()
        gate.send(in_batches(opened, rows, part, slots)["tokens"])

    workers = [context.Process(target=work, args=(gates[i][1], prompts[i::cores])) for i in range(cores)]
    for worker in workers:
        worker.start()
    for gate, _ in gates:
        gate.recv()
    begun = time.perf_counter()
    for gate, _ in gates:
        gate.send(None)
    tokens = sum(gate.recv() for gate, _ in gates)
    seconds = time.perf_counter() - begun
    for worker in workers:
        worker.join(60)
    return float(tokens / seconds)


def spread(milliseconds: Sequence[float]) -> dict[str, float]:
    """Return median, 99th percentile and mean."""
    p50, p99 = np.percentile(milliseconds, [50, 99])
    return {"p50_ms": float(p50), "p99_ms": float(p99), "mean_ms": float(np.mean(milliseconds))}


def measure_local(
    reader: CommitReader, opened: ColumnsPredictor, prompts: list[PreparedSequence], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return the figures with all columns in this process."""
    # Regions as a whole: nothing is left to be read, which a process that is forked could not do.
    rows = RunRows.placed(reader.placement(), [open_region(*place) for _, place in region_places(reader)])
    basis = (opened.specification, rows, opened.flags)
    pushed, replayed = Session(*basis, options=OPTIONS).stream, batch_of_one(*basis)
    one_by_one(replayed, prompts[:2], 2)
    single: dict[str, list[float]] = {"replayed": [], "pushed": []}
    few = prompts[:: max(1, len(prompts) // arguments.single)][: arguments.single]
    for _ in range(arguments.turns):
        single["replayed"] += one_by_one(replayed, few, arguments.tokens)
        single["pushed"] += one_by_one(pushed, few[::4], arguments.tokens)
    every = [Prompt(sequence=prompt, flags=opened.flags, tokens=arguments.tokens) for prompt in prompts]
    batches: dict[int, list[dict[str, float]]] = {slots: [] for slots in arguments.slots}
    for _ in range(arguments.turns):
        for slots in batches:
            batches[slots].append(in_batches(opened, rows, every if slots > 1 else every[:64], slots))
    return {
        "one_prompt": {name: spread(taken) for name, taken in single.items()},
        "batches": {
            slots: {name: float(np.median([turn[name] for turn in turns])) for name in turns[0]}
            for slots, turns in batches.items()
        },
        "tokens_per_s_on_cores": {
            arguments.cores: max(
                on_cores(opened, rows, every * 2, max(arguments.slots), arguments.cores) for _ in range(arguments.turns)
            )
        },
    }


def measure_remote(
    reader: CommitReader, prompts: list[PreparedSequence], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return the figures with the columns on worker processes, asked from this one."""
    options = RowOptions(mode="remote")
    with gd.connect(workers=arguments.workers) as client:
        regions = open_regions(client, reader, options)
        assert regions.keys is not None
        opened = open_columns(reader, client=client, options=GenerationOptions(rows=options, reasons=0))
        found: dict[str, Any] = {}
        for name, cache in (("cold_cache", 0), ("cache", options.cache_bytes)):
            keys = replace(regions.keys, options=replace(options, cache_bytes=cache))
            rows = RemoteRows.of_client(client, reader.placement(), keys, projection=RowProjection(strengths=False))
            stream = batch_of_one(opened.specification, rows, opened.flags)
            taken = one_by_one(stream, prompts[: arguments.single], arguments.tokens)
            figures = rows.figures
            found[name] = spread(taken) | {
                "hit_rate": figures.hit_rate,
                "rows_per_token": figures.rows / len(taken),
                "bytes_per_token": figures.received_bytes / len(taken),
            }
            every = [Prompt(sequence=prompt, flags=opened.flags, tokens=arguments.tokens) for prompt in prompts]
            found[name]["batch"] = in_batches(opened, rows, every, max(arguments.slots))
        return found


def fill_state(push: Callable[[Integers], int], sizes: Sequence[int], row: int) -> Iterator[dict[str, float]]:
    """Yield the times of all rows of random targets that are pushed until a state has grown to each of some sizes.

    `push` pushes a row and returns the number of entries.
    """
    rng, entries = np.random.default_rng(0), 0
    for size in sizes:
        taken = []
        while entries < size:
            neuron = np.unique(pack_neuron(rng.integers(0, 1 << 20, row // 2), rng.integers(0, 1 << 12, row // 2)))
            target = np.concatenate([pack_target(0, neuron, 0), pack_target(SEGMENTS.columns, neuron, 0)])
            before = time.process_time()
            entries = push(target)
            taken.append(1000 * (time.process_time() - before))
        some = np.quantile(taken, [0.5, 0.99, 1.0]).round(3).tolist()
        yield {"entries": entries, "rows": len(taken)} | dict(
            zip(("p50_ms", "p99_ms", "longest_ms"), some, strict=True)
        )


def push_v1() -> Callable[[Integers], int]:
    """Return a function that pushes a row of random targets into a new state of profile v1; see `fill_state`."""
    layout, steps = Layout.of(Specification()), itertools.count(1)
    state = ActivationState(layout, OPTIONS)

    def push(target: Integers) -> int:
        source = int(target[0] >> BRANCH_BITS) & NEURON_MASK
        state.propagate(target, Pulse(source=source, drive=layout.drives[1], column_time=1, feature_time=next(steps)))
        state.deactivate(source)
        state.burst(source)
        return len(state)

    return push


def push_v2() -> Callable[[Integers], int]:
    """Return the same for profile v2."""
    state, steps = LifState(SEGMENTS, LifOptions()), itertools.count(1)

    def push(target: Integers) -> int:
        source, token = int(target[0] >> BRANCH_BITS) & NEURON_MASK, next(steps)
        state.settle(source, source, Clock(token - 1, 0, 0, False))
        state.advance(source, (target, np.zeros(0, np.float32)), Clock(token, 0, 0, False))
        # Two targets make a neuron's entries.
        return 2 * state.neurons

    return push


def measure_states(sizes: Sequence[int], row: int) -> dict[str, Any]:
    """Return the figures of the states of both profiles, which nothing but memory bounds."""
    profiles: dict[str, Callable[[], Callable[[Integers], int]]] = {
        "v1": push_v1,
        "v2": push_v2,
    }
    found: dict[str, Any] = {}
    for name, new in profiles.items():
        # Compiles.
        assert [*fill_state(new(), [4 * row], row)]
        found[name] = [*fill_state(new(), sizes, row)]
    return found


def networks(arguments: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and path of the networks to measure, training those that are not given."""
    if arguments.network:
        yield from ((path.name, path) for path in arguments.network)
        return
    texts = [str(book) for book in arguments.books]
    with gd.connect(workers=arguments.workers) as client:
        whole = gd.train(texts, folder / "whole", client=client)
        report = whole.training_report
        tenth = gd.TrainingOptions(max_sequences=max(1, report.sequences // 10))
        gd.train(texts, folder / "tenth", client=client, options=tenth)
    yield from (("tenth", folder / "tenth"), ("whole", whole.path))


def main() -> None:
    """Run the benchmark and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("books", nargs="*", type=Path, default=[BOOKS / "pride-and-prejudice.txt.gz"])
    parser.add_argument("--all-books", action="store_true", help="train on all books; takes minutes")
    parser.add_argument("--network", type=Path, action="append", help="measure this one instead; may be repeated")
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--words", type=int, default=8, help="words of a prompt")
    parser.add_argument("--tokens", type=int, default=20, help="tokens generated after a prompt at most")
    parser.add_argument("--single", type=int, default=48, help="prompts for the times of one prompt")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--state-entries", type=float, nargs="+", help="sizes at which states alone are measured")
    parser.add_argument("--row", type=int, default=2000, help="targets of a row that is pushed into a state")
    arguments = parser.parse_args()
    if arguments.state_entries:
        print(json.dumps(measure_states([*map(int, arguments.state_entries)], arguments.row), indent=1))
        return
    if arguments.all_books:
        arguments.books = sorted(BOOKS.glob("*.txt.gz"))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, path in networks(arguments, Path(folder)):
            store = NetworkStore(path)
            reader = store.open(store.head())
            prompts = read_prompts(reader, str(arguments.books[0]), arguments.prompts, arguments.words)
            remote = measure_remote(reader, prompts, arguments)
            local = measure_local(reader, open_columns(reader, client=None, options=RULES), prompts, arguments)
            found[name] = {"connections": reader.manifest().connections, "local": local, "remote": remote}
    if len(found) > 1:
        first, *_, last = found.values()
        one = [figures["local"]["one_prompt"]["replayed"]["mean_ms"] for figures in (first, last)]
        found["growth"] = {
            "connections": last["connections"] / first["connections"],
            "mean_ms_of_one_prompt": one[1] / one[0],
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
