"""A network that does not fit, decoded, into the memory of its only worker."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import giaann_dask as gd
from giaann_dask.events import Event, MemoryMeasured
from giaann_dask.models.columns.connection_table import COORDINATES
from giaann_dask.runs.packing import pack
from giaann_dask.runs.run import RegionRun, Run
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.training import tasks

LIMIT = 700 << 20


def write_random(path: Path, sentences: int, tokens: int = 78) -> Path:
    """Write sentences of random words, so that nearly every connection is a new one."""
    choose = np.random.default_rng(7)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(sentences):
            for place, number in enumerate(choose.integers(60_000, size=tokens), 1):
                word, kind = (f"n{number % 5000}", "NOUN\tNN") if place % 8 == 0 else (f"w{number}", "ADJ\tJJ")
                word, kind = ("of", "ADP\tIN") if place % 8 == 1 else (word, kind)
                file.write(f"{place}\t{word}\t{word}\t{kind}" + 5 * "\t_" + "\n")
            file.write("\n")
    return path


def train(text: Path, network: Path, limit: int | None) -> dict[str, Any]:
    """Train on one worker; return the network's columns, the report, and what was measured."""
    seen: list[Event] = []
    rule = gd.Specification(regions=16, placement="balanced")
    options = gd.TrainingOptions(batch_sequences=500, block_characters=1 << 20, commit_seconds=5)
    reading = gd.TextOptions(tagger="gold", reading=ReadOptions(part_characters=1 << 20))
    cluster = gd.ClusterOptions(workers=1, memory_limit=None if limit is None else str(limit))
    with gd.connect(options=cluster) as client:
        before = client.run(os.getpid)
        trained = gd.train(
            text, network, client=client, specification=rule, text=reading, options=options, observer=seen.append
        )
        report = trained.training_report
        alive = client.run(os.getpid) == before
    table = trained.table()
    columns = {name: hashlib.sha256(getattr(table, name)).hexdigest() for name in (*COORDINATES, "strength")}
    return {"columns": columns, "report": report, "alive": alive, "memory": seen}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.cluster
def test_a_network_larger_than_all_memory_is_trained_without_losing_a_worker(tmp_path: Path) -> None:
    text = write_random(tmp_path / "random.conllu", 13_000)
    narrow = train(text, tmp_path / "narrow", LIMIT)
    assert narrow["report"].connections * 12 > LIMIT, "decoded, it does not fit"
    assert narrow["alive"], "its nanny would have killed a worker beyond its limit"
    measured = [event for event in narrow["memory"] if isinstance(event, MemoryMeasured)]
    assert max(event.process_bytes for event in measured) < 0.95 * LIMIT
    assert max(event.spilled_bytes for event in measured) < LIMIT, "runs are not decoded all at once"
    assert narrow["report"].regions > 16, "a region that a worker cannot add up is split"
    assert narrow["columns"] == train(text, tmp_path / "wide", None)["columns"]


@pytest.mark.parametrize("packed", range(4))
def test_runs_are_added_up_in_any_form_and_packed_at_once(packed: int) -> None:
    choose = np.random.default_rng(packed)
    plain = [some_run(choose, size) for size in (0, 40, 200, 1000)]
    mixed = [tasks.pack_run(run) if number < packed else run for number, run in enumerate(plain)]
    added, at_once = tasks.add_runs(mixed), tasks.compact(*mixed)
    for table in ("connections", "neurons"):
        expected = getattr(tasks.add_runs(plain), table)
        for array in ("source", "pointer", "target", "strength"):
            assert getattr(getattr(added, table), array).tolist() == getattr(expected, array).tolist()
        assert getattr(at_once, table).entries == pack(expected).entries


def some_run(choose: np.random.Generator, size: int) -> RegionRun:
    """Return a run of some connections and of the neurons that they start from."""
    pairs = np.unique(choose.integers([50, 300], size=(size, 2)), axis=0)
    source, counts = np.unique(pairs[:, 0], return_counts=True)
    pointer = np.concatenate([[0], np.cumsum(counts)])
    strength = choose.integers(1, 1 << 20, len(pairs)).astype(np.int32)
    neurons = Run(source, np.arange(len(source) + 1), np.zeros(len(source), np.int64), counts.astype(np.int32))
    return RegionRun(Run(source, pointer, pairs[:, 1].copy(), strength), neurons)
