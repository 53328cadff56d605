"""The row service: rows asked from the workers that hold regions are those of the whole network."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from distributed.protocol.pickle import dumps
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.processes import until
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cluster import roles_of, start_cluster
from giaann_dask.cluster.worker_services import remove_service, service_plugin
from giaann_dask.errors import ClusterError, OptionError
from giaann_dask.events import SequencesEvaluated
from giaann_dask.keys import SEGMENT_SHIFT, pack_neuron, pack_target
from giaann_dask.models.columns.evaluation import evaluation
from giaann_dask.models.columns.evaluation.evaluation import AccuracyReport
from giaann_dask.models.generation_options import EvaluationOptions, GenerationOptions
from giaann_dask.rows import service as row_service
from giaann_dask.rows.protocol import OPERATION, RowOptions, RowProjection, RowRequest, RowResponse
from giaann_dask.rows.regions import opened_bytes, rows_are_remote
from giaann_dask.rows.remote import RegionKeys, RemoteRows
from giaann_dask.rows.service import DecodedBlocks, install, select_rows
from giaann_dask.rows.source import RowCache, RowStatistics, RunRows, sum_rows
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.packing import PackedRegionRun, pack
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import RegionRun, Row, Run, divide_rows
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.training.tasks import divide_at_targets

ALL = st.none()
GIANT = pack_neuron([11], 0).tolist()
SEGMENTS = st.tuples(st.integers(0, 31), st.integers(0, 32)).map(lambda pair: (min(pair), max(pair)))
TABLES = st.dictionaries(
    st.tuples(st.integers(0, 12), st.integers(0, 31), st.integers(0, 5)), st.integers(1, 1 << 20), max_size=60
)


def table_run(table: dict[tuple[int, int, int], int]) -> Run:
    """A run of (source column, segment, target column) with strengths."""
    rows = sorted(
        (int(pack_neuron(a, 0)), int(pack_target(s, pack_neuron(b, 0), 0)), n) for (a, s, b), n in table.items()
    )
    sources, counts = np.unique(np.array([row[0] for row in rows], np.int64), return_counts=True)
    target, strength = np.array([row[1] for row in rows], np.int64), np.array([row[2] for row in rows], np.int32)
    return Run(sources, np.concatenate([[0], np.cumsum(counts)]), target, strength)


def packed_run(run: Run) -> PackedRegionRun:
    return PackedRegionRun(pack(run), pack(Run.empty()))


def same(one: Row | None, other: Row | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one.target, other.target) and np.array_equal(one.strength, other.strength)


def trimmed(row: Row | None, projection: RowProjection) -> Row | None:
    """The wanted part of a row, the plain way."""
    if row is None:
        return None
    segment = row.target >> SEGMENT_SHIFT
    low, high = projection.segments or (0, 32)
    kept = (segment >= low) & (segment < high)
    if not kept.any():
        return None
    return Row(row.target[kept], row.strength[kept] if projection.strengths else row.strength[:0])


@settings(deadline=None)
@given(TABLES, st.one_of(ALL, SEGMENTS), st.booleans(), st.integers(64, 400), st.integers(1, 9))
def test_an_answer_is_a_part_of_a_run(
    table: dict[tuple[int, int, int], int],
    segments: tuple[int, int] | None,
    strengths: bool,
    limit: int,
    block: int,
) -> None:
    # Blocks of a run: its sources are divided at some of them.
    whole, neurons = table_run(table), pack_neuron(np.arange(13), 0)
    projection = RowProjection(segments, strengths)
    packed, decoded = pack(whole, 4), DecodedBlocks(lambda: False, block)
    question: RowRequest | None = RowRequest("run", neurons)
    answers: list[RowResponse] = []
    while question is not None:
        blocks = decoded.blocks("run", packed, question.neurons)
        answer = select_rows(blocks, question, projection, limit)
        assert answer.rows.nbytes - Run.empty().nbytes <= limit
        assert answer.answered or len(answer.rows), "something comes with each"
        question = question.after(answer)
        answers.append(answer)
    together = sum_rows([answer.rows for answer in answers])
    assert sum(len(answer.rows) for answer in answers) == len(together), "each once"
    for neuron in neurons.tolist():
        assert same(together.row(neuron), trimmed(whole.row(neuron), projection))


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), max_size=40), st.integers(0, 3000))
def test_the_cache_keeps_what_was_used_last_within_its_budget(uses: list[int], budget: int) -> None:
    hot = RowCache(budget)
    for neuron in uses:
        found, coming = hot.look_up("a", [neuron], ahead=False)
        assert not coming
        assert not hot.look_up("another commit", [neuron], ahead=True)[0]
        if neuron in found:
            assert len(found[neuron].target) == neuron  # type: ignore[union-attr]
            continue
        answer: Future[Any] = Future()
        hot.expect("a", [neuron], answer)
        assert hot.look_up("a", [neuron], ahead=True)[1] == {neuron: answer}
        answer.set_result({neuron: Row(np.zeros(neuron, np.int64), np.zeros(0, np.int32))})
        assert hot.nbytes <= budget
        kept = 256 + 8 * neuron <= budget
        assert (neuron in hot.look_up("a", [neuron], ahead=True)[0]) == kept
    assert hot.counter.figures.hits + hot.counter.figures.misses == len(uses)


def test_an_answer_that_fails_is_asked_for_again() -> None:
    hot, answer = RowCache(1000), Future[Any]()
    hot.expect("a", [1], answer)
    answer.set_exception(ClusterError("gone"))
    assert hot.look_up("a", [1], ahead=False) == ({}, {})


@pytest.mark.parametrize(
    "wrong", [{"mode": "copied"}, {"replicated_share": 0}, {"cache_bytes": -1}, {"timeout_s": 0}, {"answer_bytes": 63}]
)
def test_impossible_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        RowOptions(**wrong)


class Regions:
    """Some regions held as tasks of a cluster, and the same in this process."""

    def __init__(self, client: Client) -> None:
        self.client = client
        # A row is divided among three regions.
        (giant, *_), placement = GIANT, Placement(3).split(1, int(pack_neuron(7, 0)))
        for target in (20, 35):
            last = placement.divided().get(giant, (placement.region_of(giant),))[-1]
            placement = placement.split(last, giant, int(pack_neuron(target, 0)))
        self.placement = placement
        tables = np.random.default_rng(5).integers(0, [40, 30, 50, 1000], (2, 4000, 4))
        halves = [{(a, s, b): n + 1 for a, s, b, n in half.tolist()} for half in tables]
        runs = [[self._part(table_run(half), region) for half in halves] for region in self.placement.live()]
        self.futures = [
            client.scatter([packed_run(run) for run in pair], hash=False, workers=[a])
            for pair, a in zip(runs, self._workers(), strict=True)
        ]
        self.keys = {r: tuple(f.key for f in held) for r, held in zip(self.placement.live(), self.futures, strict=True)}
        self.rows = RunRows.placed(self.placement, [merge_runs(pair) for pair in runs])
        self.neurons = pack_neuron(np.arange(45), 0).tolist()

    def _workers(self) -> list[str]:
        present = sorted(self.client.scheduler_info(n_workers=-1)["workers"])
        return [present[place % len(present)] for place in range(len(self.placement.live()))]

    def _part(self, run: Run, region: int) -> Run:
        own = divide_rows(run, self.placement.regions_of(run.source))
        parts = divide_at_targets({r: RegionRun(its, Run.empty()) for r, its in own.items()}, self.placement)
        return parts[region].connections if region in parts else Run.empty()

    def asked(self, snapshot: str, **options: Any) -> RegionKeys:
        return RegionKeys(snapshot, self.keys, RowOptions(**options))


@pytest.fixture(scope="module")
def regions() -> Iterator[Regions]:
    with gd.connect(workers=0) as client:
        install(client)
        install(client)
        yield Regions(client)


@examples(25)
@given(
    wanted=st.lists(st.lists(st.integers(0, 44), max_size=12), min_size=1, max_size=5),
    ahead=st.lists(st.integers(0, 44), max_size=12),
    projection=st.builds(RowProjection, st.one_of(ALL, SEGMENTS), st.booleans()),
    cache=st.sampled_from([0, 2000, 1 << 20]),
)
def test_any_asking_gets_the_same_rows(
    regions: Regions, wanted: list[list[int]], ahead: list[int], projection: RowProjection, cache: int
) -> None:
    asked = regions.asked("any", cache_bytes=cache)
    rows = RemoteRows.of_client(regions.client, regions.placement, asked, projection=projection)
    rows.prefetch(regions.neurons[place] for place in ahead)
    for places in wanted:
        neurons = [regions.neurons[place] for place in places]
        found = rows.rows(neurons)
        assert set(found) == set(neurons)
        assert all(same(row, trimmed(regions.rows.row(neuron), projection)) for neuron, row in found.items())
    assert rows.figures.hits + rows.figures.awaited + rows.figures.misses == sum(len(set(w)) for w in wanted)


@pytest.mark.parametrize("limit", [256, 20_000])
def test_long_answers_come_in_parts(regions: Regions, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """No message has more than the limit, whichever rows are asked for, and no more messages are sent than needed."""
    sizes: list[tuple[int, int]] = []
    (worker,) = regions.client.cluster.workers.values()
    answer = worker.handlers[OPERATION]

    async def measured(questions: Any, **more: Any) -> Any:
        reply = await answer(questions, **more)
        asked = [RowRequest.of_message(question) for question in questions]
        found = [RowResponse.of_message(each) for each in reply["answers"]]
        sizes.append((sum(each.neurons.nbytes for each in asked), sum(each.rows.nbytes for each in found)))
        return reply

    monkeypatch.setitem(worker.handlers, OPERATION, measured)
    rows = RemoteRows.of_client(regions.client, regions.placement, regions.asked(f"parts {limit}", answer_bytes=limit))
    found = rows.rows(regions.neurons)
    assert all(same(row, regions.rows.row(neuron)) for neuron, row in found.items())
    assert rows.figures.requests == len(sizes)
    assert max(max(pair) for pair in sizes) <= limit
    assert rows.figures.received_bytes == sum(nbytes for _, nbytes in sizes)
    # Of two runs each, and of the divided row two more parts.
    assert rows.figures.rows == 2 * (len(regions.neurons) + 2)
    # A connection takes 12 bytes.
    least = rows.figures.received_bytes // limit
    assert max(least, 2) <= rows.figures.requests <= 1.5 * least + 2


def test_one_request_to_an_owner_however_many_rows(regions: Regions) -> None:
    rows = RemoteRows.of_client(regions.client, regions.placement, regions.asked("one"))
    for _ in range(2):
        assert rows.row(regions.neurons[44]) is None
        rows.rows(regions.neurons)
    figures = rows.figures
    assert (figures.requests, figures.rows, figures.retries) == (2, 94, 0), "of two runs each"
    assert (figures.misses, figures.hits) == (45, 47)
    assert figures.hit_rate == pytest.approx(47 / 92)
    assert figures.received_bytes > sum(len(r.target) * 8 for n in regions.neurons if (r := regions.rows.row(n)))


def test_regions_that_nobody_has_are_an_error_in_time(regions: Regions) -> None:
    gone = RegionKeys("gone", dict.fromkeys(regions.keys, ("nobody",)), RowOptions(timeout_s=0.2))
    rows = RemoteRows.of_client(regions.client, regions.placement, gone)
    with pytest.raises(ClusterError, match="answered"):
        rows.rows(regions.neurons)


def test_a_region_that_moved_is_found_again(regions: Regions, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = RemoteRows.of_client(regions.client, regions.placement, regions.asked("moved", cache_bytes=0))
    ask, asked = regions.client.scheduler.who_has, []

    async def answer_with_former_owners_first(keys: list[str]) -> dict[str, Any]:
        found = await ask(keys=keys)
        asked.extend(keys)
        moved = {key: [each.rsplit("/", 1)[0] + "/99999" for each in owners] for key, owners in found.items()}
        return found if len(asked) > len(set(asked)) else moved

    monkeypatch.setattr(regions.client.scheduler, "who_has", answer_with_former_owners_first, raising=False)
    found = rows.rows(regions.neurons)
    assert all(same(row, regions.rows.row(neuron)) for neuron, row in found.items())
    assert rows.figures.retries == sum(map(len, regions.keys.values()))


def test_an_owner_that_hangs_is_asked_again(regions: Regions, monkeypatch: pytest.MonkeyPatch) -> None:
    hung = threading.Event()
    (worker,) = regions.client.cluster.workers.values()
    answer = worker.handlers[row_service.OPERATION]

    async def hang_once(**question: Any) -> Any:
        if not hung.is_set():
            hung.set()
            await asyncio.sleep(60)
        return await answer(**question)

    monkeypatch.setitem(worker.handlers, row_service.OPERATION, hang_once)
    rows = RemoteRows.of_client(regions.client, regions.placement, regions.asked("hung", request_s=0.3))
    assert same(rows.row(regions.neurons[3]), regions.rows.row(regions.neurons[3]))
    assert hung.is_set()
    assert rows.figures.retries == 2


def test_the_service_ends_with_its_last_user() -> None:
    with gd.connect(workers=0) as client:
        (worker,) = client.cluster.workers.values()
        plugins = client.cluster.scheduler.worker_plugins
        users = [install(client), install(client)]
        assert set(users) == worker.extensions[row_service.NAME].users == {name for name in plugins if "rows" in name}
        remove_service(client, users[0])
        until(lambda: worker.extensions[row_service.NAME].users == {users[1]})
        assert row_service.OPERATION in worker.handlers
        remove_service(client, users[1])
        until(lambda: row_service.NAME not in worker.extensions)
        assert row_service.OPERATION not in worker.handlers
        # Workers that join later do not get it either.
        assert not set(users) & set(plugins)
    remove_service(client, users[1])


def test_workers_without_this_package_load_the_plugin() -> None:
    plugin = dumps(service_plugin("somebody", "giaann_dask.rows.service", "RowService"))
    script = f"""
import sys, types
sys.modules["giaann_dask"] = None
from distributed.protocol.pickle import loads
plugin = loads({plugin!r})
plugin.setup(types.SimpleNamespace(extensions={{}}))
plugin.teardown(types.SimpleNamespace(extensions={{}}))
print(plugin.name)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "somebody\n", done.stderr


def ask_in_task(placement: Placement, regions: RegionKeys, neurons: list[int]) -> dict[int, Row | None]:
    return RemoteRows.of_task(placement, regions).rows(neurons)


def test_a_task_that_waits_lets_the_region_be_read(regions: Regions) -> None:
    """One thread only: the task that asks has to leave it to the task that reads."""
    with gd.connect(options=gd.ClusterOptions(workers=0, threads=1)) as client:
        install(client)
        asking = client.submit(ask_in_task, Placement(1), RegionKeys("late", {0: ("late",)}), [0], pure=False)
        time.sleep(0.3)
        reading = client.submit(lambda: packed_run(table_run({(0, 3, 1): 7})), key="late")
        assert asking.result(30)[0].strength.tolist() == [7]
        del reading


# --- A whole evaluation, both ways ----------------------------------------------------------------


@pytest.fixture(scope="module")
def village(tmp_path_factory: pytest.TempPathFactory) -> tuple[gd.Network, Path, AccuracyReport]:
    """A network, text to evaluate and the report of evaluating it in one process, on copies."""
    folder = tmp_path_factory.mktemp("village")
    text, other = write_village(folder / "a.txt", 1000), write_village(folder / "b.txt", 160, seed=2)
    with gd.connect(workers=0) as client:
        network = gd.train(text, folder / "net", client=client)
        return network, other, network.evaluate(other, client=client, options=evaluated("replicated"))


def evaluated(way: Any, **rows: Any) -> EvaluationOptions:
    return EvaluationOptions(rows=RowOptions(mode=way, **rows), device="cpu", top_k=(1, 3))


def figures(report: AccuracyReport) -> dict[str, Any]:
    """Everything that does not depend on the cluster."""
    return {name: value for name, value in report.as_dict().items() if name not in ("seconds", "rows", "stages")}


def test_rows_are_asked_for_where_copies_are_large(village: tuple[gd.Network, Path, AccuracyReport]) -> None:
    reader = NetworkStore(village[0].path).open(village[2].commit)
    connections = reader.manifest().connections
    assert 12 * connections < opened_bytes(reader) < 50 * connections
    with gd.connect(workers=0) as client:
        assert not rows_are_remote(client, reader, RowOptions(replicated_share=1e-9))
        assert rows_are_remote(client, reader, RowOptions(mode="remote"))


def test_in_one_process_the_evaluation_is_the_same(village: tuple[gd.Network, Path, AccuracyReport]) -> None:
    network, text, expected = village
    with gd.connect(workers=0) as client:
        # Kept for its counts; an evaluation removes what it has installed.
        install(client)
        report = network.evaluate(text, client=client, options=evaluated("remote"))
        (counted,) = client.run(
            lambda dask_worker: dask_worker.extensions[row_service.NAME].hot.counter.figures
        ).values()
    assert figures(report) == figures(expected)
    assert expected.rows is None
    assert report.rows == counted
    assert report.rows.requests > 0
    assert report.as_dict()["rows"]["hit_rate"] == counted.hit_rate > 0


def test_rows_that_were_opened_without_strengths_are_not_used_where_paths_are_scored_by_them(
    village: tuple[gd.Network, Path, AccuracyReport],
) -> None:
    network, prompt = village[0], "the old miller carried the"
    plain = GenerationOptions(max_tokens=4, reasons=0, rows=RowOptions(mode="remote"))
    search = replace(plain, beam=gd.BeamOptions(width=3, depth=3, score="connection"))
    expected = network.generate(prompt, options=replace(search, rows=RowOptions()))
    with gd.connect(workers=0) as client:
        for options in (plain, search):
            with network.sessions([prompt], client=client, options=options) as stream:
                (found,) = stream.continuations()
    assert expected.tokens
    assert found.tokens == expected.tokens


@pytest.mark.cluster
def test_two_processes_predict_the_same_both_ways(village: tuple[gd.Network, Path, AccuracyReport]) -> None:
    network, text, expected = village
    reader = NetworkStore(network.path).open(expected.commit)
    with gd.connect(workers=2) as client:
        install(client)
        assert rows_are_remote(client, reader, RowOptions(replicated_share=1e-9))
        assert not rows_are_remote(client, reader, RowOptions())
        total = RowStatistics()
        for options in (evaluated("replicated"), evaluated("remote"), evaluated("remote", cache_bytes=50_000)):
            report = network.evaluate(text, client=client, options=options)
            assert figures(report) == figures(expected)
            total += report.rows or RowStatistics()
        counted = client.run(lambda dask_worker: dask_worker.extensions[row_service.NAME].hot.counter.figures)
        assert sum(counted.values(), RowStatistics()) == total
        assert total.rows > 100
        prompt = "the old miller carried the"
        ways = [GenerationOptions(max_tokens=8, rows=RowOptions(mode=way)) for way in ("replicated", "remote")]  # type: ignore[arg-type]
        one, other = (network.generate(prompt, client=client, options=way).as_dict() for way in ways)
        assert one["tokens"]
        asked = other.pop("rows")
        assert one == other
        assert asked["local_bytes"] + asked["moved_bytes"] == asked["received_bytes"] > 0


@pytest.mark.slow
@pytest.mark.cluster
def test_an_evaluation_outlives_the_worker_that_holds_regions(
    village: tuple[gd.Network, Path, AccuracyReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, text, expected = village
    # Many tasks, so that most of them are left when the first event comes, also on a busy machine.
    monkeypatch.setattr(evaluation, "SEQUENCES_PER_TASK", 2)
    one_each = {"storage": 1, "compute": 1}
    with start_cluster(one_each, gd.ClusterOptions(threads=1)) as cluster, Client(cluster) as client:
        killed: list[int] = []
        install(client)
        (computing,) = roles_of(client).compute

        def requests() -> int:
            asked = client.run(
                lambda dask_worker: dask_worker.extensions[row_service.NAME].hot.counter.figures, workers=[computing]
            )
            return asked[computing].requests

        before: list[int] = []

        def kill_once(event: object) -> None:
            if isinstance(event, SequencesEvaluated) and not killed:
                (holder,) = roles_of(client).storage
                before.append(requests())
                held = client.has_what()
                assert {worker for worker in held if "open_run" in str(held[worker])} == {holder}
                killed.append(client.run(os.getpid, workers=[holder])[holder])
                os.kill(killed[0], signal.SIGKILL)

        options = evaluated("remote", cache_bytes=20_000)
        report = network.evaluate(text, client=client, options=options, observer=kill_once)
        assert killed
        assert requests() > before[0] > 0, "rows were wanted before and after"
        assert figures(report) == figures(expected)
        assert all(
            row_service.NAME in names for names in client.run(lambda dask_worker: list(dask_worker.extensions)).values()
        )
