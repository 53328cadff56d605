"""The report on a network: what is counted region by region, and the page."""

from __future__ import annotations

import functools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stored_networks import reader_of
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cli import run as run_command
from giaann_dask.dask_types import register
from giaann_dask.diagnostics.network_report.gathering import (
    Degrees,
    Figures,
    add_figures,
    count_connections,
    count_region,
    gather,
)
from giaann_dask.diagnostics.network_report.page import as_svg, short_count
from giaann_dask.errors import OptionError
from giaann_dask.keys import pack_neuron, pack_target
from giaann_dask.runs.run import Run, cut_rows
from giaann_dask.spec import Specification
from giaann_dask.store.export import read_whole
from giaann_dask.store.network_store import NetworkStore

COLUMNS = 5
PROFILES = ["v1", pytest.param("v2", marks=pytest.mark.slow), "contexts"]


class Networks:
    """Small networks by profile, each trained when it is first asked for; that of profile v1 in two commits."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._found = folder, dict[str, gd.Network]()

    def __getitem__(self, profile: str) -> gd.Network:
        if profile not in self._found:
            texts = [write_village(self._folder / "village.txt", 60)]
            if profile == "v1":
                texts.append(write_village(self._folder / "more.txt", 20, seed=2))
            with gd.connect(workers=0) as client:
                for text in texts:
                    chosen = gd.Specification(profile=profile)
                    network = gd.train(text, self._folder / profile, client=client, specification=chosen)
            self._found[profile] = network
        return self._found[profile]


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Networks:
    return Networks(tmp_path_factory.mktemp("reports"))


@pytest.fixture(scope="module")
def pages(networks: Networks) -> Any:
    """The report of a network by profile, made once: drawing takes seconds."""
    return functools.cache(lambda profile: networks[profile].report())


def made_up(connections: list[tuple[int, int, int, int]]) -> Run:
    """Connections of (source column, target column, segment, units), each pair of neurons once."""
    rows: dict[int, dict[int, int]] = {}
    for source, target, segment, units in connections:
        key = int(pack_target(segment, pack_neuron(target, 1), 0))
        rows.setdefault(int(pack_neuron(source, 1)), {})[key] = units
    targets = [sorted(rows[source].items()) for source in sorted(rows)]
    flat = [item for row in targets for item in row]
    pointer = np.cumsum([0, *map(len, targets)])
    keys, units = (np.array([item[end] for item in flat], np.int64) for end in (0, 1))
    return Run(np.array(sorted(rows), np.int64), pointer, keys, units.astype(np.int32))


def values(figures: Figures | None) -> dict[str, Any]:
    assert figures is not None
    shown = {name: getattr(figures, name) for name in figures.__slots__}
    for name in ("senders", "receivers", "divided"):
        shown[name] = [getattr(shown[name], part).tolist() for part in ("neuron", "connections", "strength")]
    return {name: np.asarray(value).tolist() for name, value in shown.items()}


columns = st.integers(0, COLUMNS - 1)


@given(st.lists(st.tuples(columns, columns, st.integers(0, 7), st.integers(1, 1 << 24)), min_size=1, max_size=30))
def test_regions_add_up_to_the_whole(connections: list[tuple[int, int, int, int]]) -> None:
    whole = count_connections(made_up(connections), Specification(), COLUMNS)
    # A source belongs to one region.
    regions = [[c for c in connections if c[0] % 2 == half] for half in (0, 1)]
    parts = [count_connections(made_up(part), Specification(), COLUMNS) for part in regions if part]
    found, expected = values(add_figures(parts)), values(whole)
    for name in found:
        assert found[name] == (pytest.approx(expected[name]) if name == "strength_sum" else expected[name]), name
    assert add_figures([]) is None


@given(st.lists(st.tuples(columns, columns, st.integers(0, 7), st.integers(1, 1 << 24)), min_size=1, max_size=30))
def test_parts_of_rows_add_up_to_the_whole(connections: list[tuple[int, int, int, int]]) -> None:
    whole = made_up(connections)
    expected = values(add_figures([count_connections(whole, Specification(), COLUMNS)]))
    for size in (1, 4):
        parts = list(cut_rows(whole, size))
        assert max(map(len, parts)) <= size
        found = values(
            add_figures(count_connections(part, Specification(), COLUMNS, whole.source.tolist()) for part in parts)
        )
        for name in found:
            assert found[name] == (pytest.approx(expected[name]) if "strength" in name else expected[name]), name


def test_what_is_counted() -> None:
    unit = 1 << 20
    run = made_up([(0, 1, 7, 4 * unit), (0, 1, 2, unit), (0, 0, 2, unit), (3, 1, 7, 8 * unit)])
    figures = count_connections(run, Specification(), COLUMNS)
    assert figures.connections == 4
    assert figures.inside == 1
    assert figures.strength_sum == 14.0
    assert dict(zip(*figures.out_degrees, strict=True)) == {1: 1, 3: 1}
    assert dict(zip(*figures.in_degrees, strict=True)) == {1: 1, 3: 1}
    assert (figures.out_degrees.mean, figures.out_degrees.median) == (2.0, 1)
    assert figures.by_segment.tolist() == [0, 0, 2, 0, 0, 0, 0, 2]
    assert figures.sent.tolist() == [[3, 0, 0, 1, 0], [6.0, 0, 0, 8.0, 0]]
    assert figures.received.tolist() == [[1, 3, 0, 0, 0], [1.0, 13.0, 0, 0, 0]]
    assert figures.receivers.strongest(1).strength.tolist() == [13.0]
    assert figures.density[1].tolist() == [2, 0, 0, 1, 0]
    # A bin begins at each power of two.
    assert figures.quantile(0.5) == pytest.approx(2**0.5)


def test_degrees_of_nothing() -> None:
    none = Degrees.of(np.zeros(0, np.int64))
    assert (none.mean, none.median) == (0.0, 0)


@pytest.mark.parametrize("profile", PROFILES)
def test_figures_are_those_of_the_whole_network(networks: Networks, profile: str) -> None:
    network = networks[profile]
    store = NetworkStore(network.path)
    reader = store.open(network.commit)
    gathered = gather(store, reader)
    run = read_whole(reader)
    assert gathered.figures is not None
    assert gathered.figures.connections == len(run) == network.manifest.connections
    assert sum(region.connections for region in gathered.regions) == len(run)
    assert gathered.figures.out_degrees.neurons.sum() == len(run.source)
    best = profile == "contexts"
    assert bool(gathered.columns) == bool(gathered.senders) == (not best)
    assert gathered.receivers
    assert all(hub.name != "?" for hub in gathered.receivers)
    assert [hub.strength for hub in gathered.receivers] == sorted(
        (h.strength for h in gathered.receivers), reverse=True
    )
    if best:
        assert gathered.receivers[0].name == "the"
    else:
        table = network.table()
        ends = (table.src_col, table.tgt_col)
        total = sum(np.bincount(end, table.strength, len(table.concepts)) for end in ends)
        assert gathered.columns[0].name == table.concepts[int(np.argmax(total))]


def test_a_network_without_columns_is_not_drawn(networks: Networks) -> None:
    pictures = networks["contexts"].pictures
    for refused in (pictures.draw, pictures.draw_density, lambda: pictures.predict("the old mill")):
        with pytest.raises(OptionError, match="profile contexts"):
            refused()


def test_a_task_counts_what_is_counted_here(networks: Networks) -> None:
    register()
    network = networks["v1"]
    reader = reader_of(network)
    parts = [count_region(str(network.path), network.commit, region) for region in reader.placement().live()]
    assert values(add_figures(parts)) == values(gather(NetworkStore(network.path), reader).figures)


class Parts(HTMLParser):
    """What a page refers to, and the anchors and identifiers that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []
        self.names: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "xlink:href") and value:
                self.references.append(value)
            if name == "id" and value:
                self.names.append(value)


def parse(page: str) -> Parts:
    parts = Parts()
    parts.feed(page)
    return parts


@pytest.mark.parametrize("profile", PROFILES)
def test_a_page_has_what_applies_and_needs_nothing_else(networks: Networks, pages: Any, profile: str) -> None:
    report = pages(profile)
    parts = parse(report.html)
    assert all(reference.startswith(("#", "data:")) for reference in parts.references)
    assert {name[1:] for name in parts.references if name.startswith("#")} <= set(parts.names)
    assert len(parts.names) == len(set(parts.names))
    assert not {"script", "link", "iframe"} & set(parts.tags)
    sections = re.findall(r'<section id="(\w+)">', report.html)
    assert sections[:5] == ["growth", "degrees", "strengths", "hubs", "regions"]
    assert ("density" in sections) == (profile != "contexts")
    if profile == "contexts":
        assert "no columns and neurons to draw" in report.html
    assert f"{networks[profile].manifest.connections:,}" in report.html
    assert "prefers-color-scheme: dark" in report.html
    assert "@media print" in report.html


def test_growth_shows_every_commit_but_that_of_nothing(networks: Networks, pages: Any) -> None:
    assert "Each dot is a commit; 2 of 3 are shown." in pages("v1").html
    assert "All of it was counted in one commit" in pages("contexts").html
    store = NetworkStore(networks["v1"].path)
    commits = [name for name, _ in store.commits()]
    # Of an older commit, what came after it is not told.
    older = gather(store, store.open(commits[1]))
    assert [manifest.sequences for manifest in older.growth] == [0, 60]


@pytest.mark.parametrize("profile", [pytest.param("v1", marks=pytest.mark.slow), "contexts"])
def test_the_accuracy_is_that_of_evaluate(networks: Networks, tmp_path: Path, capsys: Any, profile: str) -> None:
    text, path = write_village(tmp_path / "test.txt", 6, seed=3), tmp_path / "a.html"
    network = str(networks[profile].path)
    assert run_command(["report", network, "--out", str(path), "--evaluate", str(text), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    with gd.connect(workers=0) as client:
        measured = networks[profile].score if profile == "contexts" else networks[profile].evaluate
        assert made["top1"] == measured(text, client=client).top1
    page = path.read_text(encoding="utf-8")
    assert f"{made['top1']:.4f}" in page
    assert "Accuracy" in page
    assert run_command(["report", str(networks["v1"].path), "--out", str(tmp_path / "a.pdf")]) == 2
    assert "ends in .html" in capsys.readouterr().err


@pytest.mark.slow
def test_the_same_network_gives_the_same_page(networks: Networks, pages: Any, tmp_path: Path) -> None:
    first = pages("contexts").save(tmp_path / "deep" / "a.html").read_bytes()
    assert networks["contexts"].report().html.encode() == first
    with pytest.raises(OptionError, match=r"\.html"):
        pages("contexts").save(tmp_path / "a.svg")


def test_charts_take_the_colours_of_the_page() -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot([0, 1], color="#d9731a")
    svg = as_svg(figure, "one", 'A "chart"')
    assert svg.startswith("<svg viewBox=")
    assert "var(--external)" in svg
    assert "#d9731a" not in svg
    assert 'aria-label="A &quot;chart&quot;"' in svg
    names = set(re.findall(r' id="([^"]+)"', svg))
    assert all(name.startswith("one-") for name in names)
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) <= names


def test_counts_are_written_short() -> None:
    assert [short_count(n) for n in (0, 12, 999, 1_000, 12_345, 2_500_000, 3e9)] == [
        *("0", "12", "999", "1k", "12.3k", "2.5M", "3G"),
    ]


@pytest.mark.slow
@pytest.mark.cluster
def test_regions_are_tasks_of_a_cluster(networks: Networks) -> None:
    here = networks["v1"].report()
    with gd.connect(workers=2) as client:
        there = networks["v1"].report(client=client)
    assert there.html == here.html
