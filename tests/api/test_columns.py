"""Concept columns as objects, and connections as data frames and arrays that are computed where the rows are."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import networkx as nx
import numpy as np
import pandas as pd
import pytest
import zarr
from distributed import Client, futures_of, wait
from support.stored_networks import reader_of

import giaann_dask as gd
from giaann_dask.cluster.regions import region_holders
from giaann_dask.errors import (
    ConceptMissingError,
    MissingDependencyError,
    OptionError,
    StoreExistsError,
)
from giaann_dask.keys import pack_neuron
from giaann_dask.models.columns.connection_table import COORDINATES, ConnectionTable
from giaann_dask.models.columns.export import read_column, select_column
from giaann_dask.rows.regions import open_regions
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.packed_rows import RowReader
from giaann_dask.runs.packing import pack, unpack
from giaann_dask.runs.placement import Placement, split_run
from giaann_dask.runs.run import RegionRun, Run
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.export import read_whole
from giaann_dask.store.manifest import Manifest, StoredRun
from giaann_dask.store.run_io import StoredEntries
from giaann_dask.text.names import Names
from giaann_dask.text.vocabulary import Vocabulary

FIELDS = (*COORDINATES, "strength")


@pytest.fixture(scope="module", autouse=True)
def here() -> Iterator[None]:
    """Compute without a cluster, one task after the other, where a test starts none."""
    with dask.config.set(scheduler="sync"):
        yield


def write_text(path: Path) -> Path:
    """Write sentences in which a concept has more connections than a region may hold."""
    words = "old young tall kind tired happy small quiet", "walked slept worked waited laughed sang stood ran"
    adjectives, verbs = (each.split() for each in words)
    pairs = product(adjectives, pairwise(verbs))
    lines = [f"The {adjective} miller {one} and {other} in the village ." for adjective, (one, other) in pairs]
    lines += ["The miller carried the flour to the baker .", "The baker sold the bread to the old farmer ."] * 4
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, gd.Network]:
    """A network of each profile; that of v1 has a column that is divided among regions."""
    folder = tmp_path_factory.mktemp("columns")
    text, options = write_text(folder / "text.txt"), {}
    options["v1"] = gd.TrainingOptions(region_bytes=4_000, commit_sequences=16, batch_sequences=8)
    with gd.connect(workers=0) as client:
        for profile in ("v1", "v2", "contexts"):
            chosen = gd.Specification(profile=profile, regions=2)
            gd.train(text, folder / profile, client=client, specification=chosen, options=options.get(profile))
    return {profile: gd.Network(folder / profile) for profile in ("v1", "v2", "contexts")}


@pytest.fixture(scope="module")
def network(networks: dict[str, gd.Network]) -> gd.Network:
    return networks["v1"]


@pytest.fixture(scope="module")
def table(network: gd.Network) -> ConnectionTable:
    return network.table()


def fields_of(values: Any, chosen: Any = slice(None)) -> dict[str, tuple[np.dtype[Any], bytes]]:
    """Return type and bytes of each field, of a table, a frame, records or a group."""
    found = {}
    for name in FIELDS:
        array = np.asarray(getattr(values, name) if isinstance(values, ConnectionTable) else values[name])[chosen]
        found[name] = (array.dtype, array.tobytes())
    return found


def in_order(values: Any) -> Any:
    """Return the order of the connections of a table, whatever regions they come from."""
    keys = ("branch", "tgt_feat", "tgt_col", "seg", "src_feat", "src_col")
    return np.lexsort([np.asarray(values[name]) for name in keys])


@pytest.mark.parametrize("profile", ["v1", "v2"])
def test_all_connections_by_region_are_those_of_the_table(networks: dict[str, gd.Network], profile: str) -> None:
    network = networks[profile]
    table, reader = network.table(), reader_of(network)
    lazy = network.to_dask_dataframe()
    parts = [part.compute() for part in lazy.partitions]
    live = reader.placement().live()
    assert lazy.npartitions == len(parts) == len(live) >= 2
    for region, part in zip(live, parts, strict=True):
        keys = part["src_col"].to_numpy(np.int64) << 25 | part["src_feat"].to_numpy()
        assert set(reader.placement().regions_of(keys).tolist()) <= {region}
        assert np.array_equal(in_order(part), np.arange(len(part)))
    whole = pd.concat(parts)
    pd.testing.assert_frame_equal(lazy.compute().reset_index(drop=True), whole.reset_index(drop=True))
    assert fields_of(whole, in_order(whole)) == fields_of(table)
    assert lazy.dtypes.astype(str).to_dict() == whole.dtypes.astype(str).to_dict()
    for end in ("src", "tgt"):
        columns, features = whole[f"{end}_col"], whole[f"{end}_feat"]
        nouns = [table.concepts[column] for column in columns]
        words = [table.features[feature] if feature else noun for feature, noun in zip(features, nouns, strict=True)]
        assert whole[f"{end}_col_name"].tolist() == nouns
        assert whole[f"{end}_feat_name"].tolist() == words
    assert sorted(network.to_dask_dataframe(names=False).columns) == sorted(FIELDS)


@pytest.mark.parametrize("profile", ["v1", "v2"])
def test_an_array_of_all_connections(networks: dict[str, gd.Network], profile: str) -> None:
    network = networks[profile]
    lazy, table = network.to_dask_array(), network.table()
    found = lazy.compute()
    assert lazy.dtype == found.dtype
    assert fields_of(found, in_order(found)) == fields_of(table)
    known = [length for length in lazy.chunks[0] if not np.isnan(length)]
    measured = lazy.compute_chunk_sizes()
    assert measured.shape == (len(table),)
    assert set(known) <= set(measured.chunks[0])
    assert float(lazy["strength"].sum().compute()) == pytest.approx(float(table.strength.sum()), rel=1e-6)


def test_each_column_is_its_rows_of_the_table(network: gd.Network, table: ConnectionTable) -> None:
    divided = 0
    for name, column in network.columns.items():
        assert (column.name, column.index) == (name, table.concepts.index(name))
        assert fields_of(column.connections) == fields_of(table, table.src_col == column.index)
        divided += len(column.regions) > 1
        assert column.region == column.regions[0]
    assert divided, "some column is divided among regions"


def test_a_column_is_the_sum_of_the_runs_of_its_regions(network: gd.Network) -> None:
    whole = read_whole(reader_of(network))
    column = network["miller"].index
    pivot = int(whole.source[np.searchsorted(whole.source, pack_neuron(column, 3))])
    halves = [split_run(whole, pivot, upper) for upper in (False, True)]
    # Regions 1 and 2 are those of the split, of which the second has two runs.
    runs = {
        "1.0": pack(halves[0], 64),
        "2.0": pack(halves[1], 64),
        "2.1": pack(split_run(halves[1], pivot + 2, True), 64),
    }

    def rows(name: str, table: str) -> RowReader:
        entries = runs[name].entries
        return RowReader(lambda names: {each: entries[each] for each in names if each in entries})

    stored = tuple(StoredRun(name, int(name[0]), 0, 0, len(run), 0) for name, run in runs.items())
    reader: Any = SimpleNamespace(
        path="network",
        manifest=lambda: Manifest(specification=network.specification, runs=stored),
        placement=lambda: Placement(1).split(0, pivot),
        rows=rows,
    )
    expected = select_column(merge_runs([unpack(run) for run in runs.values()]), column)
    found, *_ = read_column(reader, column)
    assert len(expected) > len(select_column(halves[1], column)) > 0
    for name in ("source", "pointer", "target", "strength"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))
    (first, *_), (second, *_) = (read_column(reader, column, [region]) for region in (1, 2))
    assert np.array_equal(np.concatenate([first.target, second.target]), expected.target)


def test_forms_of_a_column_have_the_same_values(network: gd.Network, tmp_path: Path) -> None:
    column = max(network.columns.values(), key=lambda each: (len(each.regions), len(each.connections)))
    expected = fields_of(column.connections)
    frame = column.to_pandas()
    assert fields_of(frame) == fields_of(column.to_pandas(names=False)) == expected
    lazy = column.to_dask_dataframe()
    assert lazy.npartitions == len(column.regions) > 1
    pd.testing.assert_frame_equal(lazy.compute().reset_index(drop=True), frame)
    assert lazy.dtypes.astype(str).to_dict() == frame.dtypes.astype(str).to_dict()
    array = column.to_dask_array()
    assert np.isnan(array.shape[0])
    assert fields_of(array.compute()) == expected
    assert column.to_zarr(tmp_path / "column").info_complete()
    group = zarr.open(tmp_path / "column", mode="r")
    assert isinstance(group, zarr.Group)
    assert fields_of({name: group[name][:] for name in FIELDS}) == expected
    assert group.attrs["concept"] == column.name
    names = group.attrs["features"]
    assert {int(at) for at in names} == {*frame["src_feat"], *frame["tgt_feat"]}
    assert all(names[str(at)] == column.connections.features[at] for at in frame["tgt_feat"])
    assert all(group[name].attrs["meaning"] for name in FIELDS)
    with pytest.raises(StoreExistsError, match="a Zarr group"):
        column.to_zarr(str(tmp_path / "column"))
    memory = zarr.storage.MemoryStore()
    column.to_zarr(memory)
    assert fields_of({name: zarr.open(memory, mode="r")[name][:] for name in FIELDS}) == expected


def test_a_graph_has_an_edge_for_every_connection(network: gd.Network) -> None:
    column = network["miller"]
    graph, table = column.to_networkx(), column.connections
    assert isinstance(graph, nx.MultiDiGraph)
    rows = zip(*(getattr(table, name).tolist() for name in FIELDS), strict=True)
    segments = network.specification.segments
    expected = {((a, b), (c, d), branch * segments + seg): strength for a, b, branch, seg, c, d, strength in rows}
    edges = list(graph.edges(keys=True, data=True))
    assert {(s, t, key): data["strength"] for s, t, key, data in edges} == expected
    assert all(data["branch"] * segments + data["segment"] == key for *_, key, data in edges)
    assert graph.nodes[column.index, 0] == {"concept": "miller", "feature": "miller"}
    assert {data["feature"] for _, data in graph.nodes(data=True)} >= {"old", "the", "flour"}


@pytest.mark.parametrize("form", ["gexf", "graphml", "gml", "node_link", "cytoscape", "adjacency"])
def test_networkx_writes_and_reads_a_graph(
    network: gd.Network, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_vocabulary = CommitReader.vocabulary

    def renamed(reader: CommitReader) -> Vocabulary:
        # What XML does not have, what its markup is made of, and an apostrophe (`findings/pajek_apostrophe.sh`).
        found = read_vocabulary(reader)
        found.concepts = Names("mi\x1b<&'\ufffe" if each == "miller" else each for each in found.concepts)
        return found

    monkeypatch.setattr(CommitReader, "vocabulary", renamed)
    column = gd.Network(network.path).columns["mi\x1b<&'\ufffe"]
    graph = column.to_networkx()
    if hasattr(nx, f"write_{form}"):
        getattr(nx, f"write_{form}")(graph, tmp_path / "graph")
        read = getattr(nx, f"read_{form}")(tmp_path / "graph")
    else:
        document = getattr(nx, f"{form}_data")(graph)
        assert json.dumps(document, allow_nan=False)
        read = getattr(nx, f"{form}_graph")(document)
    assert read.is_directed()
    assert read.number_of_edges() == graph.number_of_edges()
    for field, kind in (("branch", int), ("segment", int), ("strength", float)):
        before, after = (sorted(each[field] for *_, each in one.edges(data=True)) for one in (graph, read))
        assert before == pytest.approx(after)
        assert {type(value) for value in before} == {kind}, "readers refuse an attribute of two types"
    names = {each["concept"] for _, each in read.nodes(data=True)}
    assert r"mi\x1b<&'\ufffe" in names


def test_features_branches_segments_and_targets(network: gd.Network) -> None:
    column = network["miller"]
    table = column.connections
    counts = Counter(table.src_feat.tolist())
    assert {feature.number: feature.connections for feature in column.features if feature.connections} == counts
    assert [feature.number for feature in column.features] == sorted({feature.number for feature in column.features})
    names = {feature.number: feature.name for feature in column.features}
    assert names.pop(0) == "miller"
    assert all(table.features[number] == name for number, name in names.items())
    sums: dict[tuple[int, int], float] = defaultdict(float)
    for c, f, strength in zip(table.tgt_col.tolist(), table.tgt_feat.tolist(), table.strength.tolist(), strict=True):
        sums[c, f] += strength
    best = sorted(sums, key=lambda end: (-sums[end], end))[:12]
    words = [(table.concepts[c], table.features[f] if f else table.concepts[c], sums[c, f]) for c, f in best]
    assert [tuple(target) for target in column.strongest(12)] == words
    shape = network.specification.branches, network.specification.segments
    assert column.connection_counts.shape == shape
    for branch, segment in np.ndindex(shape):
        kept = (table.branch == branch) & (table.seg == segment)
        assert column.connection_counts[branch, segment] == kept.sum()
        assert fields_of(column.select(branch=branch, segment=segment)) == fields_of(table, kept)
    assert fields_of(column.select(segment=0)) == fields_of(table, table.seg == 0)
    for wrong in ({"branch": shape[0]}, {"segment": -1}):
        with pytest.raises(OptionError, match=r"expected 0 to \d+; set it"):
            column.select(**wrong)
    with pytest.raises(OptionError, match="count is 0"):
        column.strongest(0)


def test_features_without_connections_are_features(network: gd.Network, table: ConnectionTable) -> None:
    columns = network.columns.values()
    silent = [(column, f) for column in columns for f in column.features if not f.connections]
    assert silent, "the last word of a text sends nothing"
    neurons = {key for column, f in silent for key in [(column.index, f.number)]}
    assert not neurons & set(zip(table.src_col.tolist(), table.src_feat.tolist(), strict=True))


def test_columns_are_a_mapping(network: gd.Network, table: ConnectionTable) -> None:
    columns = network.columns
    assert columns is network.columns
    assert list(columns) == list(table.concepts)
    assert len(columns) == len(table.concepts)
    assert "miller" in columns
    assert "Miller" not in columns
    assert network["miller"].index == columns["miller"].index
    assert columns.get("Miller") is None
    for wrong, named in (("Miller", "miller"), ("millers", "miller"), ("bakr", "baker")):
        with pytest.raises(ConceptMissingError, match=f"^no concept '{wrong}' .* did you mean {named}"):
            network[wrong]
    with pytest.raises(KeyError):
        columns["xyzzy"]
    assert f"concepts  {len(columns)}" in repr(columns)


def test_a_network_is_the_mapping_of_its_columns(network: gd.Network) -> None:
    columns = network.columns
    assert isinstance(network, Mapping)
    assert (list(network), len(network)) == (list(columns), len(columns))
    assert [concept in network for concept in ("miller", "Miller", 0, None)] == [True, False, False, False]
    assert [column.index for column in network.values()] == list(range(len(network)))
    assert network.get("Miller") is None
    for wrong in (0, -1, None, ("miller", "mill"), slice(0, 2), ["miller"], b"miller"):
        with pytest.raises(ConceptMissingError, match=r"expected the name of one concept; .* such as '\w+'$"):
            network[wrong]  # type: ignore[index]
        with pytest.raises(KeyError):
            columns[wrong]  # type: ignore[index]
    # It is an object, nevertheless, that is not compared by its content.
    assert network
    assert network == network
    assert network != gd.Network(network.path)
    assert {network: 1}[network] == 1


def test_a_column_shows_itself_with_a_picture(network: gd.Network) -> None:
    column = network["miller"]
    assert re.search(r"in memory of +no worker\n +connections +\d", repr(column))
    page = column._repr_html_()
    (picture,) = re.findall(r'<img [^>]*src="data:image/svg\+xml;base64,[\w+/=]+">', page)
    assert page.startswith("<div")
    assert len(picture) < 100_000
    assert page == network["miller"]._repr_html_()
    silent = network["miller"]
    vars(silent)["_stored"] = RegionRun(Run.empty(), Run.empty())
    assert "<img" not in silent._repr_html_()
    assert re.search(r"strongest +none", repr(silent))


def test_of_a_column_only_runs_of_its_region_are_read(network: gd.Network, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()
    rows = CommitReader.rows
    monkeypatch.setattr(CommitReader, "connections", None)
    monkeypatch.setattr(CommitReader, "rows", lambda self, *names: read.add(names[0]) or rows(self, *names))
    column = network["miller"]
    assert not read
    assert len(column.connections) > 0
    regions = {run.region for run in network.manifest.runs if run.identity in read}
    assert regions == set(column.regions) < {run.region for run in network.manifest.runs}
    read.clear()
    assert column.features
    assert column.strongest()
    assert not read, "read once"


@pytest.mark.parametrize("profile", ["v1", "contexts"])
def test_nothing_is_read_before_it_is_computed(
    networks: dict[str, gd.Network], profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, read = networks[profile], set()
    monkeypatch.setattr(StoredEntries, "read", lambda self, _: read.add(self._prefix))
    made = [network.to_dask_dataframe(), network.to_dask_array()]
    if profile == "v1":
        made += [network["miller"].to_dask_dataframe(), network["miller"].to_dask_array(), network.columns]
    assert not read
    monkeypatch.undo()
    # The keys name what is computed, so that the same collection is the same tasks.
    assert network.to_dask_dataframe().__dask_keys__() == made[0].__dask_keys__()
    opened = [key for key in made[0].optimize().dask if str(key).startswith("open_region")]
    assert len(opened) == made[0].npartitions


def test_counts_of_contexts_of_profile_best(networks: dict[str, gd.Network], tmp_path: Path) -> None:
    network = networks["contexts"]
    exported = network.export(tmp_path / "contexts")
    with np.load(exported.connections) as arrays, np.load(exported.neurons) as words:
        frame = network.to_dask_dataframe().compute()
        order = np.lexsort([frame[name] for name in ("target", "kind", "context")])
        records = network.to_dask_array().compute()
        assert set(arrays) == set(records.dtype.names)
        for name, expected in arrays.items():
            for values in (frame[name].to_numpy()[order], records[name][order]):
                assert (values.dtype, values.tobytes()) == (expected.dtype, expected.tobytes())
        assert set(frame["target"][frame["target_name"].notna()]) >= set(words["key"])
    nameless = frame[frame["target_name"].isna()]
    assert set(nameless["kind_name"]) == {"extends"}
    assert frame["count"][frame["target_name"] == "miller"].sum() > 0
    for use in (lambda: network["miller"], lambda: network.columns):
        with pytest.raises(OptionError, match="columns of a network of profile contexts"):
            use()


def test_the_zarr_store_of_a_commit(network: gd.Network) -> None:
    root = zarr.open(network.zarr_store(), mode="r")
    assert isinstance(root, zarr.Group)
    assert root.attrs["format"] == "giaann-dask network"
    assert set(root["runs"].group_keys()) == {run.identity for run in network.manifest.runs}
    with pytest.raises(Exception, match="read-only"):
        zarr.open(network.zarr_store(), mode="a").attrs["format"] = "changed"


def test_without_pandas_an_error_names_the_extra(network: gd.Network, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pandas", "dask.dataframe"):
        monkeypatch.setitem(sys.modules, name, None)
    for use in (network["miller"].to_pandas, network["miller"].to_dask_dataframe, network.to_dask_dataframe):
        with pytest.raises(MissingDependencyError, match=r"giaann-dask\[dataframe\]"):
            use()
    assert network.to_dask_array().shape


@pytest.fixture
def workers() -> Iterator[Client]:
    """Two workers in this process, which do not steal each other's tasks."""
    with (
        dask.config.set({"distributed.scheduler.work-stealing": False, "scheduler": None}),
        Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as client,
    ):
        yield client


def test_parts_are_computed_by_the_worker_that_has_the_region(
    network: gd.Network, table: ConnectionTable, workers: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    column, reader = copy.copy(network["miller"]), reader_of(network)
    assert column.worker is None
    handles = open_regions(workers, reader, gd.RowOptions(mode="remote"))
    live = reader.placement().live()
    owners = region_holders(reader, live)
    assert set(owners) == set(live)
    assert len(set(owners.values())) == 2
    assert column.workers == {region: owners[region] for region in column.regions}
    assert column.worker == owners[column.region]
    assert re.search(rf"in memory of +{len(set(column.workers.values()))} worker", repr(column))
    # From here on nothing of a run may be read: the workers are in this process.
    monkeypatch.setattr(StoredEntries, "read", None)
    for lazy in (network.to_dask_dataframe(), column.to_dask_dataframe(), network.to_dask_array()):
        kept = lazy.persist()
        wait(kept)
        places = workers.who_has()
        regions = live if kept.npartitions == len(live) else column.regions
        found = [places[future.key][0] for future in futures_of(kept)]
        assert found == [owners[region] for region in regions]
    frame = network.to_dask_dataframe(names=False).compute()
    assert fields_of(frame, in_order(frame)) == fields_of(table)
    del handles
