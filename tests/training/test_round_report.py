"""What a round moved is what its increments hold, in every order; blocks are divided as asked for."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from threading import Event
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.overlap import measure_overlap, overlap_share
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.events import Event as Happening
from giaann_dask.events import RoundIntegrated
from giaann_dask.keys import pack_neuron
from giaann_dask.models.columns.connections import connect_batch
from giaann_dask.runs.placement import Placement
from giaann_dask.spec import Specification
from giaann_dask.text.block_building import BlockBuilder
from giaann_dask.text.blocks import CANDIDATE, NO_DELIMITER, FilterOptions
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import read_parts
from giaann_dask.text.segmentation import EncodedBlock, encode_block
from giaann_dask.text.tagging import tag_part
from giaann_dask.text.vocabulary import Vocabulary, summarise
from giaann_dask.training.selection import touches_of
from giaann_dask.training.tasks import RoundPlan, assign, plan_rounds
from giaann_dask.training.training_options import Order, SelectionOptions
from giaann_dask.training.training_report import RoundReport, measure_touches, report_round

ORDERS = get_args(Order)


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> EncodedBlock:
    path = write_village(tmp_path_factory.mktemp("village") / "village.txt", 120)
    (part,) = read_parts([str(path)], ReadOptions())
    builder = BlockBuilder(EverPos.from_lemminflect(), FilterOptions(seed_tokens=8, maximum_tokens=80))
    builder.add_part(tag_part(part, "lexicon"))
    built = builder.build()
    return encode_block(built, Vocabulary().extend(summarise(built)), Specification())


@examples(25)
@given(st.integers(0, 9), st.integers(1, 5), st.integers(1, 9))
def test_figures_are_those_of_the_selected_sequences(
    block: EncodedBlock, seed: int, batches: int, regions: int
) -> None:
    specification = Specification(regions=regions)
    placement = Placement(specification.regions)
    trained = np.flatnonzero(block.status == CANDIDATE)
    batch = np.random.default_rng(seed).integers(0, batches, len(trained))
    increments = []
    for number in range(batches):
        status = block.status.copy()
        status[trained[batch != number]] = NO_DELIMITER
        part = replace(block, status=status)
        increments.append(connect_batch([part], specification, placement))
    report = report_round(*map(measure_touches, increments))
    expected = measure_overlap(touches_of([block]), batch, lambda c: placement.regions_of(pack_neuron(c, 0)))
    assert report.column_touches == expected.touches
    assert report.shared_touches == expected.shared_touches
    assert report.messages == expected.messages
    assert report.busiest_region_share == expected.busiest_region_share
    runs = [table for increment in increments for run in increment.values() for table in run if table is not None]
    arrays = [getattr(table, field.name) for table in runs for field in fields(table)]
    assert report.increment_bytes == sum(a.nbytes for a in arrays if isinstance(a, np.ndarray))


def test_an_empty_round_report() -> None:
    report = report_round(measure_touches({}), measure_touches({}))
    assert report == RoundReport(touched=((), ()))
    assert (report.column_touches, report.busiest_region_share) == (0, 0)
    assert report_round() == RoundReport() == report.plus(RoundReport())


@given(st.integers(0, 20_000), st.integers(1, 8), st.integers(1, 8), st.integers(1, 9_000))
def test_divisions_fit_all_sequences_in_batches_of_about_the_requested_size(
    sequences: int, joined: int, width: int, batch_sequences: int
) -> None:
    plan = plan_rounds(sequences, min(joined, width), width, batch_sequences)
    assert plan.single == (batch_sequences == 1)
    assert 1 <= plan.width <= width
    assert plan.batches >= sequences or not plan.single
    if sequences >= width * batch_sequences:
        assert sequences / plan.batches < 2 * batch_sequences


@pytest.mark.parametrize("order", ORDERS)
def test_single_batches_hold_one_sequence_and_overlap_as_measured(block: EncodedBlock, order: Order) -> None:
    touches, options = touches_of([block]), SelectionOptions(order=order)
    plan = plan_rounds(len(touches) + 3, 1, 4, 1)
    batch = assign(touches, plan, options)
    assert sorted(batch.tolist()) == list(range(len(touches)))
    found = sum(
        measure_overlap(part, np.arange(len(part)), lambda columns: columns).shared_touches
        for part in (touches_of([only(block, batch // 4 == number)]) for number in range(plan.rounds))
    )
    assert found == pytest.approx(overlap_share(touches, np.argsort(batch), 4) * len(touches.column))


def only(block: EncodedBlock, kept: np.ndarray) -> EncodedBlock:
    """The block with fewer trained sequences."""
    status = block.status.copy()
    status[np.flatnonzero(status == CANDIDATE)[~kept]] = NO_DELIMITER
    return replace(block, status=status)


@pytest.mark.parametrize("order", ORDERS)
def test_larger_batches_are_those_of_the_order(block: EncodedBlock, order: Order) -> None:
    touches = touches_of([block])
    batch = assign(touches, RoundPlan(3, 2), SelectionOptions(order=order))
    assert set(batch.tolist()) == set(range(6))


@pytest.mark.cluster
@pytest.mark.parametrize(
    "order", [order if order == "least-overlap" else pytest.param(order, marks=pytest.mark.slow) for order in ORDERS]
)
def test_the_published_scheme_trains_the_same(tmp_path: Path, order: Order) -> None:
    """One sequence a batch, stopped within a block that many rounds divide, then gone on with."""
    text, stop = write_village(tmp_path / "village.txt", 24), Event()
    rounds: list[RoundIntegrated] = []

    def observe(event: Happening) -> None:
        if isinstance(event, RoundIntegrated):
            rounds.append(event)
            stop.set()

    single = gd.TrainingOptions(batch_sequences=1, rounds_in_flight=1, selection=SelectionOptions(order=order))
    reading = gd.TextOptions(reading=ReadOptions(part_characters=1_000))
    small = replace(single, block_characters=1_000)
    with gd.connect(workers=0) as client:
        once = gd.train(text, tmp_path / "once", client=client, text=reading)
        options = {"client": client, "text": reading, "options": small, "observer": observe}
        first = gd.train(text, tmp_path / "single", **options, stop=stop).training_report
        network = gd.train(text, tmp_path / "single", **options)
        second = network.training_report
    assert first.stopped
    assert first.sequences > 1
    assert second.sequences > 1
    assert first.sequences + second.sequences == 24
    assert len(rounds) == 24
    assert all(event.sequences == 1 and event.shared_touches == 0 for event in rounds)
    assert [event.round for event in rounds] == list(range(24))
    for name in ("messages", "increment_bytes", "column_touches", "shared_touches"):
        assert sum(getattr(event, name) for event in rounds) == getattr(first, name) + getattr(second, name), name
    exports = [n.export(tmp_path / f"{n.path.name}.npz")[0].read_bytes() for n in (once, network)]
    assert exports[0] == exports[1]


@pytest.mark.cluster
def test_the_command_writes_an_event_for_every_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, log = write_village(tmp_path / "village.txt", 300), tmp_path / "events.jsonl"
    command = ["train", str(text), "--network", str(tmp_path / "net"), "--workers", "0", "--batch-sequences", "60"]
    assert run([*command, "--events", str(log), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    rounds = [each for each in events if each["event"] == "RoundIntegrated"]
    assert len(rounds) == 5
    total = Counter[str]()
    for line in rounds:
        total.update({name: value for name, value in line.items() if not isinstance(value, str)})
        assert 1 / 8 <= line["busiest_region_share"] <= 1
    for name in ("sequences", "messages", "increment_bytes", "column_touches", "shared_touches"):
        assert total[name] == report[name], name
    assert report["messages"] <= 5 * 8
    assert run([*command, "--events", str(tmp_path / "no" / "file")]) == 2
    assert "no/file" in capsys.readouterr().err
