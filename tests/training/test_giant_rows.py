"""Rows larger than the budget of a region are divided by target, and nothing that is computed of them changes."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from distributed import Client
from support.processes import until
from support.small_limits import merge_small_ranges
from support.stored_networks import reader_of

import giaann_dask as gd
from giaann_dask import tracing
from giaann_dask.algebra import pruning
from giaann_dask.cluster.regions import region_holders
from giaann_dask.diagnostics.network_report import gathering
from giaann_dask.diagnostics.network_report.gathering import Figures, gather
from giaann_dask.events import Event, RoundIntegrated
from giaann_dask.keys import unpack_neuron
from giaann_dask.models.contexts.context_rows import RowCollector
from giaann_dask.models.contexts.specification import CHAIN_NAMES
from giaann_dask.models.contexts.table_files import read_tables
from giaann_dask.rows.protocol import RowOptions
from giaann_dask.runs import placement
from giaann_dask.runs.packed_rows import RowPart, RowReader
from giaann_dask.runs.packing import unpack
from giaann_dask.runs.postings import Postings
from giaann_dask.runs.run import Run
from giaann_dask.store import ordered_connections
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.tracing import TraceIndex

pytestmark = pytest.mark.cluster

# Bytes of a region, by profile, which some rows of the text exceed.
SMALL = {"v1": 6_000, "v2": 6_000, "contexts": 400, "skip-bigrams": 300}
PROMPT = "The old miller saw the"


class Pair(NamedTuple):
    """Networks of the same text, and a later part of it: without divided rows, and with them."""

    plain: gd.Network
    divided: gd.Network
    more: Path

    def readers(self) -> list[CommitReader]:
        return [reader_of(each) for each in self[:2]]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=0) as opened:
        yield opened


@pytest.fixture(scope="module", params=["v1", pytest.param("v2", marks=pytest.mark.slow), "contexts", "skip-bigrams"])
def networks(request: pytest.FixtureRequest, client: Client, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """One noun alone, and many words after the same ones: few rows, which are large."""
    folder, choose = tmp_path_factory.mktemp("giant"), random.Random(4)
    texts = [folder / "a.txt", folder / "b.txt"]
    for text, sentences in zip(texts, (24, 12), strict=True):
        lines = [f"The old miller saw the w{choose.randrange(90)} as she went far away." for _ in range(sentences)]
        text.write_text("\n".join(lines), encoding="utf-8")
    fewer = {"contexts": CHAIN_NAMES} if request.param == "contexts" else {}
    rules = gd.Specification(profile=request.param, regions=2, trace=True, **fewer)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        # Postings are divided by sequences instead of groups of a thousand.
        patch.setattr(placement, "GROUP_BITS", 0)
        for name, nbytes in (("plain", 1 << 28), ("divided", SMALL[request.param])):
            options = gd.TrainingOptions(region_bytes=nbytes)
            # The second training counts for rows that the first one has divided.
            for text in texts:
                network = gd.train(text, folder / name, client=client, specification=rules, options=options)
            found.append(network)
    return Pair(*found, texts[1])


def largest_rows(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[int]:
    """Return a list that gets the largest row of every block that a function of a module returns or is given."""
    sizes, original = list[int](), getattr(module, name)

    def spy(*arguments: Any, **keywords: Any) -> Any:
        found = original(*arguments, **keywords)
        if isinstance(found, Run):
            sizes.append(int(np.diff(arguments[0].pointer).max(initial=0)))
            return found

        def seen() -> Iterator[Run]:
            for block in found:
                sizes.append(int(np.diff(block.pointer).max(initial=0)))
                yield block

        return seen()

    monkeypatch.setattr(module, name, spy)
    return sizes


def test_exports_are_the_same(networks: Pair, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, divided = networks.readers()
    # Ranges of rows are merged that are much smaller than a row.
    merge_small_ranges(monkeypatch, 6)
    sizes = largest_rows(monkeypatch, ordered_connections, "read_blocks")
    manifest, placement = divided.manifest(), divided.placement()
    assert not plain.placement().divided()
    assert len(placement.divided()) > 2
    assert Manifest.from_dict(manifest.as_dict()) == manifest
    for count in ("neurons", "connections", "tokens"):
        assert getattr(manifest, count) == getattr(plain.manifest(), count)
    largest = {region: sum(12 * run.connections for run in runs) for region, runs in manifest.runs_by_region().items()}
    profile = manifest.specification.profile
    # A region of a neuron that cannot be divided further has some segments of a few branches.
    assert max(largest.values()) < 2 * SMALL[profile], "no region has a whole row"
    assert networks.plain.digest() == networks.divided.digest()
    files, most = [], []
    for each in networks[:2]:
        sizes.clear()
        files.append(each.export(tmp_path / f"{each.path.name}.npz"))
        most.append(max(sizes))
    assert most[1] < most[0], "no row is read as a whole"
    for name in ("connections", "neurons", "dictionaries"):
        one, other = (getattr(each, name).read_bytes() for each in files)
        assert one == other, name
    assert gd.diff(networks.plain.path, networks.divided.path, client=client).is_empty


def test_predictions_and_explanations_are_the_same(networks: Pair, client: Client) -> None:
    options = gd.GenerationOptions(max_tokens=3)
    expected = networks.plain.generate(PROMPT, options=options).as_dict() | {"commit": networks.divided.commit}
    assert expected["tokens"]
    assert networks.divided.generate(PROMPT, options=options).as_dict() == expected
    ways: list[dict[str, Any]] = [{"mode": "replicated"}, {"mode": "remote", "answer_bytes": 64, "cache_bytes": 0}]
    for way in ways:
        options = gd.GenerationOptions(max_tokens=3, rows=RowOptions(**way))
        found = networks.divided.generate(PROMPT, client=client, options=options).as_dict()
        found.pop("rows", None)
        assert found == expected, way
    traced = [each.trace(PROMPT, client=client, max_tokens=2).as_dict() for each in networks[:2]]
    for each in traced:
        del each["commit"]
    assert traced[0] == traced[1]


@pytest.mark.parametrize("which", [0, 1])
def test_postings_are_decoded_in_parts(networks: Pair, which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, decoded = networks.readers()[which], list[int]()
    tokens = networks[which].generate(PROMPT, max_tokens=3, explain=True).tokens
    connections = [reason.connection for token in tokens for reason in token.reasons if reason.connection is not None]
    read, join = RowReader.part, tracing.join_postings

    def count_part(self: RowReader, neuron: int, part: RowPart) -> Run:
        run = read(self, neuron, part)
        decoded[-1] += run.target.nbytes
        return run

    def count_parts(*arguments: Any) -> Postings:
        decoded.append(0)
        return join(*arguments)

    monkeypatch.setattr(RowReader, "part", count_part)
    monkeypatch.setattr(tracing, "join_postings", count_parts)
    found, most = [], []
    for limit, size in ((1 << 20, 1 << 16), (4, 2)):
        monkeypatch.setattr(tracing, "POSTINGS_TOGETHER", limit)
        monkeypatch.setattr(tracing, "POSTINGS_PART", size)
        decoded.clear()
        index = TraceIndex(reader)
        shares = [list(index.shares(each)) for each in connections]
        found.append([np.concatenate(each).tolist() for ranges in shares for each in zip(*ranges, strict=True)])
        most.append(max(decoded))
    assert found[0] == found[1]
    assert any(found[0])
    if not which:
        # Four targets, and the parts of each run in which a range begins or ends.
        runs = max(map(len, reader.manifest().runs_by_region().values()))
        assert most[1] <= 8 * (4 + 2 * 2 * runs) < most[0]


def test_tables_are_built_of_parts_of_rows(networks: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    if networks.plain.manifest.specification.profile != "contexts":
        return
    sizes, add = list[int](), RowCollector.add

    def count_rows(self: RowCollector, run: Run) -> None:
        sizes.append(int(np.diff(run.pointer).max(initial=0)))
        add(self, run)

    monkeypatch.setattr(RowCollector, "add", count_rows)
    found, most = [], []
    for reader in networks.readers():
        sizes.clear()
        tables = read_tables(str(reader.path), reader.commit)
        most.append(max(sizes))
        arrays = [tables.words.base, tables.words.share, tables.discounts, *astuple(tables.counts)]
        found.append([list(tables.words.words), *(each.tolist() for each in arrays)])
    assert found[0] == found[1]
    assert most[1] < most[0], "no row is read as a whole"


def test_pruned_networks_are_the_same(
    networks: Pair, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, most, pruned = largest_rows(monkeypatch, pruning, "select_connections"), [], []
    for each in networks[:2]:
        sizes.clear()
        pruned.append(gd.prune(each.path, tmp_path / each.path.name, client=client, keep=0.3))
        most.append(max(sizes))
    assert most[1] < most[0], "no row is read as a whole"
    assert pruned[0].digest() == pruned[1].digest()


def test_figures_of_reports_are_the_same(networks: Pair, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    count = gathering.count_connections

    def count_few(run: Run, *arguments: Any) -> Figures:
        counted.append(run.target.nbytes)
        return count(run, *arguments)

    monkeypatch.setattr(gathering, "count_connections", count_few)
    blocks = largest_rows(monkeypatch, gathering, "read_blocks")
    found, most = [], []
    for reader, together in zip(networks.readers(), (1 << 19, 16), strict=True):
        monkeypatch.setattr(gathering, "COUNTED", together)
        counted.clear()
        blocks.clear()
        figures = gather(NetworkStore(reader.path), reader, client).figures
        assert figures is not None
        most.append((max(counted), max(blocks)))
        senders = figures.senders.neuron.tolist(), figures.senders.connections.tolist()
        received = figures.receivers.neuron.tolist(), figures.receivers.connections.tolist()
        others = figures.by_strength, figures.by_segment, figures.by_branch, figures.density, *figures.out_degrees
        found.append((*senders, *received, *(each.tolist() for each in others), figures.inside))
    assert found[0] == found[1]
    assert most[1][0] <= 8 * 16 < most[0][0], "some connections are counted at a time"
    assert most[1][1] < most[0][1], "no row is read as a whole"


def test_postings_of_a_row_are_divided_by_sequence(networks: Pair) -> None:
    plain, divided = networks.readers()
    held: list[dict[int, dict[int, int]]] = []
    for reader in (plain, divided):
        rows: dict[int, dict[int, int]] = {}
        for run in reader.manifest().runs:
            postings = reader.postings(run.identity)
            places = Run.empty() if postings is None else unpack(postings)
            for neuron, count in zip(places.source.tolist(), np.diff(places.pointer).tolist(), strict=True):
                regions = rows.setdefault(neuron, {})
                regions[run.region] = regions.get(run.region, 0) + count
        held.append(rows)
    whole, parts = ({neuron: sum(its.values()) for neuron, its in rows.items()} for rows in held)
    assert whole == parts
    rows = divided.placement().divided()
    assert all(set(its) <= set(rows.get(neuron, its)) for neuron, its in held[1].items())
    many = [neuron for neuron in rows if whole.get(neuron, 0) >= 24]
    # The postings of models of words belong to words, whose rows are those of other neurons.
    assert many or not divided.manifest().specification.traits.columns
    # Of sequences in any order, halves are about halves: 24 and more are never on one side.
    assert all(max(held[1][neuron].values()) < whole[neuron] for neuron in many)


@pytest.mark.slow
def test_what_is_made_of_whole_rows_is_the_same(networks: Pair, client: Client, tmp_path: Path) -> None:
    plain, divided = networks.readers()
    if plain.manifest().specification.traits.columns:
        column = unpack_neuron(next(iter(divided.placement().divided())))[0]
        name = plain.saved_vocabulary().concepts[int(column)]
        one, other = (each[name].connections for each in networks[:2])
        assert one.strength.tolist() == other.strength.tolist()
    options = gd.EvaluationOptions(max_sequences=5)
    text = networks.more.read_text(encoding="utf-8")
    found = [each.evaluate([text], client=client, options=options).as_dict() for each in networks[:2]]
    for each in found:
        for other in ("commit", "seconds", "stages", "tokens_per_second"):
            each.pop(other, None)
    assert found[0] == found[1]
    gd.forget(networks.divided.path, networks.more, client=client)
    gd.forget(networks.plain.path, networks.more, client=client)
    assert networks.plain.digest() == networks.divided.digest()


@pytest.mark.slow
def test_a_worker_that_has_a_part_of_a_divided_row_may_be_lost(tmp_path: Path) -> None:
    choose, texts = random.Random(5), [tmp_path / "a.txt", tmp_path / "b.txt"]
    for text, sentences in zip(texts, (24, 90), strict=True):
        lines = [f"The old miller saw the w{choose.randrange(90)} as she went far away." for _ in range(sentences)]
        text.write_text("\n".join(lines), encoding="utf-8")
    rules, reading = gd.Specification(regions=2), gd.TextOptions(reading=ReadOptions(part_characters=600))
    options = gd.TrainingOptions(region_bytes=6_000, batch_sequences=8, block_characters=600, commit_sequences=32)
    rounds: list[int] = []
    lost: list[str] = []
    with gd.connect(workers=2) as client:
        divided = gd.train(texts[0], tmp_path / "divided", client=client, specification=rules, options=options)
        reader = reader_of(divided)
        parts = [region for regions in reader.placement().divided().values() for region in regions]
        holders = region_holders(reader, parts, client)
        assert holders

        def kill(event: Event) -> None:
            if isinstance(event, RoundIntegrated):
                rounds.append(event.sequences)
                if len(rounds) == 2:
                    lost.append(min(holders.values()))
                    os.kill(client.run(os.getpid, workers=lost)[lost[0]], signal.SIGKILL)

        divided = gd.train(texts[1], divided.path, client=client, text=reading, options=options, observer=kill)
        until(lambda: lost[0] not in client.scheduler_info(n_workers=-1)["workers"])
    assert len(rounds) > 3, "rounds went on without it"
    with gd.connect(workers=0) as client:
        for text in texts:
            plain = gd.train(text, tmp_path / "plain", client=client, specification=rules)
    assert len(reader_of(divided).placement().divided()) > 2
    assert divided.digest() == plain.digest()
