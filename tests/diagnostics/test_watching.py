"""Events add up to the figures of the board, whatever is lost or dies meanwhile, and histories stay bounded."""

from __future__ import annotations

import json
import math
import re
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from distributed import Client
from hypothesis import example, given
from hypothesis import strategies as st
from support.examples import examples
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.cluster import resilience
from giaann_dask.cluster.locality import (
    DEVICE_METRIC,
    ROW_BOUNDS_S,
    ROWS_METRIC,
    RowServiceMetrics,
    bucket_names,
    report_device_memory,
)
from giaann_dask.diagnostics.monitoring.board import (
    SILENT_S,
    Board,
    Histories,
    Sample,
    Span,
    holder_of,
    memory_of,
    plain_message,
    quantile,
    rates,
    rows_of,
    stages_of,
)
from giaann_dask.diagnostics.monitoring.reporter import (
    NAME,
    REGIONS_TOLD,
    Digest,
    MonitoringPlugin,
    Reporter,
    add_monitoring,
)
from giaann_dask.events import (
    BlockEncoded,
    Committed,
    Event,
    MemoryMeasured,
    PromptsAdvanced,
    RegionMeasured,
    RegionsMeasured,
    RoundIntegrated,
    WorkerJudged,
)
from giaann_dask.models.columns.predictor import open_columns
from giaann_dask.predict.generation import Sessions
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.read_options import ReadOptions

ROOT = Path(__file__).resolve().parents[2]
numbers = st.integers(0, 1 << 40)
happenings = st.one_of(
    st.builds(RoundIntegrated, numbers, numbers, numbers, numbers, connections=numbers, rounds_in_flight=numbers),
    st.builds(BlockEncoded, numbers, numbers),
    st.builds(PromptsAdvanced, st.integers(0, 9), st.integers(0, 9), numbers),
    st.builds(MemoryMeasured, numbers, numbers, numbers),
    st.builds(WorkerJudged, numbers, st.sampled_from("ab"), st.just(""), st.sampled_from(["", "link"]), st.just(0.5)),
    st.builds(Committed, st.text(max_size=20), numbers, st.floats(0, 1e6)),
)


def region(number: int, nbytes: int, touches: int, task: str = "") -> RegionMeasured:
    return RegionMeasured(number, nbytes // 12, nbytes // 64, nbytes, 1, touches, task)


@examples(25)
@given(st.lists(st.tuples(st.integers(0, 2), happenings, st.booleans()), max_size=30))
def test_lost_messages_cost_nothing(told: list[tuple[int, Event, bool]]) -> None:
    """Three processes tell of events, some messages are lost, the last ones arrive."""
    board, digests = Board(), [Digest(f"source {n}", "client") for n in range(3)]
    for number, event, arrives in told:
        digests[number].add(event)
        message = json.loads(json.dumps(digests[number].message()))
        if arrives:
            board.take(message, 0.0)
    for digest in digests:
        board.take(digest.message(), 0.0)
    events = [event for _, event, _ in told]
    rounds = [event for event in events if isinstance(event, RoundIntegrated)]
    assert board.totals["rounds"] == len(rounds)
    for name in ("sequences", "connections", "increment_bytes", "messages"):
        assert board.totals[name] == sum(getattr(event, name) for event in rounds)
    assert board.totals["encoded_characters"] == sum(e.characters for e in events if isinstance(e, BlockEncoded))
    assert board.totals["commits"] == sum(isinstance(event, Committed) for event in events)
    prompts = [event for event in events if isinstance(event, PromptsAdvanced)]
    assert board.gauges(0.0).get("prompts_in_flight", 0) == sum(e.entered - e.left for e in prompts)
    judged = {(n, e.worker): bool(e.cause) for n, e, _ in told if isinstance(e, WorkerJudged)}
    assert board.gauges(0.0).get("slow_workers", 0) == sum(judged.values())
    last = [[e for n, e, _ in told if n == number and isinstance(e, RoundIntegrated)][-1:] for number in range(3)]
    assert board.gauges(0.0).get("rounds_in_flight", 0) == sum(e.rounds_in_flight for es in last for e in es)


def test_what_was_done_stays_when_processes_end() -> None:
    board, digests = Board(), [Digest(name, f"client {name}") for name in "abc"]
    for digest in digests:
        digest.add(RoundIntegrated(5, rounds_in_flight=2))
    board.take(digests[0].message(), 0.0)
    board.take(digests[1].message(), 0.0)
    board.take(digests[2].message(), SILENT_S - 1)
    assert board.gauges(1.0)["rounds_in_flight"] == 6
    assert board.gauges(SILENT_S + 1)["rounds_in_flight"] == 2, "those that say nothing for long do not count"
    board.take(digests[0].message(ended=True), 1.0)
    board.forget("client b")
    assert board.gauges(1.0)["rounds_in_flight"] == 2
    assert board.totals["sequences"] == 15
    board.forget("client c")
    assert board.gauges(1.0) == {}


def test_a_worker_that_begins_anew_is_counted_on() -> None:
    board, times = Board(), RowServiceMetrics()
    times.answered(rows=7, nbytes=100, seconds=0.0004)
    times.answered(rows=1, nbytes=50, seconds=99.0)
    times.asked(0.5)
    board.take_rows({"a": dict(times.counts), "b": dict(times.counts)})
    board.take_rows({"a": dict(times.counts)})
    board.take_rows({"a": dict(RowServiceMetrics().counts)})
    board.take_rows({"a": dict(times.counts), "b": dict(times.counts)})
    assert board.totals["row_requests"] == 8
    assert board.totals["row_rows"] == 32
    assert [board.totals[name] for name in bucket_names()] == [4, *[0] * (len(ROW_BOUNDS_S) - 1), 4]
    assert board.totals["asked_seconds"] == 2


def test_regions_have_workers_and_shares_of_the_last_minute() -> None:
    board, digest = Board(), Digest("a", "client")
    digest.add(RegionsMeasured((region(0, 640, 30, "x"), region(3, 1280, 10, "y"))))
    board.take(digest.message(), 0.0, lambda task, owner: {"x": "storage-0", "y": "storage-1"}[task])
    assert [(r.region, r.nbytes, r.share, r.worker) for r in board.regions] == [
        (0, 640, 0.75, "storage-0"),
        (3, 1280, 0.25, "storage-1"),
    ]
    digest.add(RegionsMeasured((region(0, 640, 30, "x"), region(3, 1280, 10, "y"))))
    board.take(digest.message(), 0.0)
    assert [each.share for each in board.regions] == [0.75, 0.25], "a short training is told of as a whole"
    for minute in range(1, 20):
        digest.add(RegionsMeasured((region(0, 640, 30, "x"), region(3, 1280, 10 + 5 * minute, ""))))
        board.take(digest.message(), 0.0)
    assert [(r.share, r.worker) for r in board.regions] == [(0.0, "storage-0"), (1.0, "storage-1")]
    assert "regions" not in digest.message(), "regions are told once"


def test_of_many_regions_the_largest_and_the_busiest_are_told() -> None:
    many = tuple(region(n, nbytes=n, touches=10_000 - n) for n in range(10 * REGIONS_TOLD))
    board, digest = Board(), Digest("a", "client")
    digest.add(RegionsMeasured(many))
    board.take(digest.message(), 0.0)
    told = [each.region for each in board.regions]
    assert board.region_count == len(many)
    assert len(told) <= REGIONS_TOLD
    assert told[0] == 0, "the busiest"
    assert told[-1] == len(many) - 1, "the largest"


@given(st.lists(st.floats(0.1, 900), max_size=200))
def test_histories_are_bounded_and_reach_back(steps: list[float]) -> None:
    histories, now = Histories((Span("short", 2.0, 5), Span("long", 60.0, 5))), 0.0
    for step in steps:
        now += step
        histories.add(Sample(now, {"n": now}))
    for span in histories.spans:
        kept = histories.of(span.name)
        assert len(kept) <= span.samples
        assert all(b.time_s - a.time_s >= 0.9 * span.period_s for a, b in pairwise(kept))
        # A counter that grows by one a second does so over every span.
        assert all(rate == pytest.approx(1) for rate in rates(kept, "n")[1:])


def test_rates_of_long_rounds_do_not_jump() -> None:
    """Rounds of half a minute, looked at every two seconds, are no peaks with nothing between them."""
    samples = [Sample(2.0 * n, {"n": 600 * (n // 15), "rounds": n // 15, "bytes": 900 * (n // 15)}) for n in range(150)]
    settled = rates(samples, "n")[60:]
    assert min(settled) > 10
    assert max(settled) < 31
    assert set(rates(samples, "bytes", "rounds")[60:]) == {900}
    assert rates(samples[:1], "n") == [0]
    assert rates([], "n") == []


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.floats(0, 1))
@example([7, 0, 0, 18], 7 / 25)
@example([1, 0, 0, 1], 0.5 + 1e-10)
def test_quantiles_lie_in_their_bucket(counts: list[int], share: float) -> None:
    found = quantile(counts, (1.0, 2.0, 4.0), share)
    values = sorted(v for v, n in zip((0.5, 1.5, 3.0, 4.0), counts, strict=True) for _ in range(n))
    if values:
        # The least of the values that so many do not pass, by the same product: 7 / 25 * 25 is more than 7.
        assert abs(found - values[max(math.ceil(share * len(values)) - 1, 0)]) <= 1
    else:
        assert found == 0


def test_messages_of_others_are_left_alone() -> None:
    plugin = MonitoringPlugin()
    for message in (None, 3, "x", {}, {"source": "a"}):
        assert plain_message(message) is None
        plugin.log_event("giaann", message)
    plugin.log_event("another", Digest("a", "b").message())
    assert not plugin.board.totals


def test_memory_and_stages_are_those_of_the_cluster() -> None:
    """Read from what a scheduler holds: metrics of heartbeats, and states of tasks by prefix."""
    told = SimpleNamespace(metrics=dict[str, Any]())
    report_device_memory(told)
    assert told.metrics[DEVICE_METRIC](told) >= 0
    metrics = [
        {"memory": 100, "spilled_bytes": {"memory": 9, "disk": 5}, DEVICE_METRIC: 1 << 30},
        {"memory": 50, "spilled_bytes": 2, ROWS_METRIC: {"row_requests": 3}},
        {},
    ]
    workers = {f"tcp://{n}": SimpleNamespace(metrics=m, name=n) for n, m in enumerate(metrics)}
    states = {"waiting": 3, "queued": 2, "no-worker": 1, "processing": 4, "memory": 99}
    prefix = SimpleNamespace(states=states, all_durations={"compute": 1.5, "transfer": 7.0})
    tasks = {
        "big": SimpleNamespace(who_has=[workers["tcp://2"], workers["tcp://1"]]),
        "gone": SimpleNamespace(who_has=None),
    }
    scheduler = SimpleNamespace(workers=workers, task_prefixes={"count_batch": prefix, "other": prefix}, tasks=tasks)
    assert memory_of(scheduler) == {"process_bytes": 150, "spilled_bytes": 7, "device_bytes": 1 << 30}
    assert rows_of(scheduler) == {"tcp://1": {"row_requests": 3}}
    assert stages_of(scheduler) == [("count_batch", 6, 4, 1.5)]
    places = (("big", ""), ("big", "tcp://2"), ("gone", "tcp://2"), ("none", "tcp://1"), ("", "tcp://9"), ("none", ""))
    expected = ["worker 1", "worker 1", "worker 2", "worker 1", "", ""]
    assert [holder_of(scheduler, *place) for place in places] == expected


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A training that is watched, on a scheduler of this process without a dashboard."""
    folder = tmp_path_factory.mktemp("watched")
    text = write_village(folder / "village.txt", 240)
    parts = gd.TextOptions(reading=ReadOptions(part_characters=3000))
    options = gd.TrainingOptions(batch_sequences=40, block_characters=3000, commit_sequences=100)
    events: list[Event] = []
    with gd.connect(workers=0) as client:
        watched = {"client": client, "text": parts, "options": options, "observer": events.append}
        report = gd.train(text, folder / "net", **watched).training_report
        yield {"client": client, "report": report, "events": events, "path": folder / "net", "text": text}


def plugin_of(client: Client) -> MonitoringPlugin:
    found: MonitoringPlugin = client.cluster.scheduler.plugins[NAME]
    return found


@pytest.mark.cluster
def test_the_scheduler_knows_what_was_trained(trained: dict[str, Any]) -> None:
    board, report = plugin_of(trained["client"]).board, trained["report"]
    assert board.totals["sequences"] == board.totals["encoded_sequences"] == report.sequences == 240
    for name in ("increment_bytes", "messages", "column_touches", "shared_touches"):
        assert board.totals[name] == getattr(report, name), name
    assert board.commits[-1].commit == report.commit
    assert board.commits[-1].sequences == 240
    assert board.totals["commits"] == len(board.commits) > 1
    assert {each.worker for each in board.regions} == {"worker 0"}, "a short training told of no run in memory"
    # All runs of a region are one at the end, so connections are counted once.
    assert sum(each.connections for each in board.regions) >= report.connections
    assert board.gauges(0) == {}, "the training has ended"
    rounds = [event for event in trained["events"] if isinstance(event, RoundIntegrated)]
    assert board.totals["connections"] == sum(event.connections for event in rounds) > report.connections
    assert rounds[-1].rounds_in_flight == 0
    assert all(0 <= event.rounds_counting <= event.rounds_in_flight for event in rounds)


def metrics_text(client: Client) -> str:
    link = client.cluster.scheduler.http_server.port
    with urllib.request.urlopen(f"http://127.0.0.1:{link}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


@pytest.mark.cluster
def test_every_query_of_the_dashboard_for_grafana_names_a_metric_that_is_there(trained: dict[str, Any]) -> None:
    client = trained["client"]
    client.sync(sample_on_loop, plugin_of(client))
    text = metrics_text(client)
    values = dict(re.findall(r"^(giaann_[a-z_]+)(?:{[^}]*})? ([-+.e\d]+)$", text, re.MULTILINE))
    assert float(values["giaann_trained_sequences_total"]) == 240
    assert 'giaann_memory_bytes{tier="process"}' in text
    assert 'giaann_stage_seconds_total{stage="count_batch"}' in text
    assert 'giaann_region_bytes{region="0",worker="' in text
    dashboard = json.loads((ROOT / "workflows" / "monitoring" / "grafana_dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    named = {name for query in queries for name in re.findall(r"giaann_[a-z_]+", query)}
    assert len(queries) > 12
    assert named <= set(values), "a query would show nothing"
    page = (ROOT / "docs" / "how-to" / "monitoring.md").read_text()
    assert [name for name in values if not name.endswith("_bucket") and name.split("_seconds_")[0] not in page] == []


async def sample_on_loop(plugin: MonitoringPlugin) -> None:
    plugin.sample()


@pytest.mark.cluster
def test_without_a_dashboard_there_is_no_page_and_watching_twice_is_watching_once(trained: dict[str, Any]) -> None:
    client = trained["client"]
    assert client.cluster.scheduler.http_application.applications == []
    plugin = plugin_of(client)
    assert add_monitoring(client)
    with Client(client.cluster) as other:
        assert add_monitoring(other)
        assert plugin_of(client) is plugin
        notify_all = Reporter(other, period_s=0.01)
        notify_all(PromptsAdvanced(entered=3))
        notify_all.close()
        notify_all(PromptsAdvanced(entered=3))
        notify_all.close()
    assert "prompts_in_flight" not in plugin.board.gauges(0)


@pytest.mark.cluster
def test_prompts_are_told_of(trained: dict[str, Any]) -> None:
    store, told = NetworkStore(trained["path"]), list[Event]()
    opened = open_columns(store.open(store.head()), client=None, options=gd.GenerationOptions(), observer=told.append)
    first, _, rest = trained["text"].read_text().partition("\n")
    prompts = [" ".join(line.split()[:7]) for line in (first, rest)] + ["nothing here"]
    with Sessions(opened, prompts, options=gd.GenerationOptions(max_tokens=4, reasons=0)) as sessions:
        tokens = sum(piece.token is not None for piece in sessions)
    counted = Counter[str]()
    for event in told:
        assert isinstance(event, PromptsAdvanced)
        counted.update(vars(event))
    assert counted["entered"] == counted["left"] >= 2
    assert counted["tokens"] == tokens > 0
    told.clear()
    with Sessions(opened, prompts[:1], options=gd.GenerationOptions(max_tokens=4, reasons=0)) as given_up:
        next(given_up)
    assert sum(event.entered - event.left for event in told if isinstance(event, PromptsAdvanced)) == 0


@pytest.mark.cluster
def test_a_scheduler_without_this_package_trains_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write_village(tmp_path / "village.txt", 30)
    monkeypatch.setattr(resilience, "dumps", lambda plugin: b"cno_such_package\nWatchPlugin\n.")
    with gd.connect(workers=0) as client:
        assert not add_monitoring(client)
        assert NAME not in client.cluster.scheduler.plugins
        report = gd.train(text, tmp_path / "net", client=client).training_report
    assert report.sequences == 30


@pytest.mark.cluster
def test_events_go_to_a_file_as_documented(
    trained: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "events.jsonl"
    common = ("--workers", "0", "--events", str(log), "--json")
    assert run(["train", str(trained["text"]), "--network", str(tmp_path / "net"), *common]) == 0
    assert run(["evaluate", str(tmp_path / "net"), str(trained["text"]), "--max-sequences", "9", *common]) == 0
    made, measured = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    by_name: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_name.setdefault(line["event"], []).append(line)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]{12}\+00:00", line["time"])
        assert line["elapsed_s"] >= 0
    assert sum(line["sequences"] for line in by_name["RoundIntegrated"]) == made["sequences"]
    assert by_name["Committed"][-1]["commit"] == made["commit"]
    assert sum(line["steps"] for line in by_name["SequencesEvaluated"]) == measured["prediction_tokens"]
    assert sum(each["connections"] for each in by_name["RegionsMeasured"][-1]["regions"]) == made["connections"]
    page = (ROOT / "docs" / "how-to" / "monitoring.md").read_text()
    for event in (*get_args(Event), RegionMeasured):
        assert f"`{event.__name__}`" in page
        assert [field.name for field in fields(event) if f"`{field.name}`" not in page] == [], event.__name__
