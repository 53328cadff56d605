"""Rows larger than the budget of a region are divided by target, and nothing that is computed of them changes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from distributed import Client
from support.stored_networks import reader_of

import giaann_dask as gd
from giaann_dask.diagnostics.network_report.gathering import gather
from giaann_dask.keys import unpack_neuron
from giaann_dask.models.contexts.specification import CHAIN_NAMES
from giaann_dask.rows.row_options import RowOptions
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import NetworkStore

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
    for name, nbytes in (("plain", 1 << 28), ("divided", SMALL[request.param])):
        options = gd.TrainingOptions(region_bytes=nbytes)
        # The second training counts for rows that the first one has divided.
        for text in texts:
            network = gd.train(text, folder / name, client=client, specification=rules, options=options)
        found.append(network)
    return Pair(*found, texts[1])


def test_exports_are_the_same(networks: Pair, client: Client, tmp_path: Path) -> None:
    plain, divided = networks.readers()
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
    files = [each.export(tmp_path / f"{each.path.name}.npz") for each in networks[:2]]
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


@pytest.mark.slow
def test_what_is_made_of_whole_rows_is_the_same(networks: Pair, client: Client, tmp_path: Path) -> None:
    plain, divided = networks.readers()
    figures = [gather(NetworkStore(reader.path), reader, client).figures for reader in (plain, divided)]
    assert all(each is not None for each in figures)
    assert figures[0].out_degrees.degree.tolist() == figures[1].out_degrees.degree.tolist()  # type: ignore[union-attr]
    if plain.manifest().specification.traits.columns:
        column = unpack_neuron(next(iter(divided.placement().divided())))[0]
        name = plain.saved_vocabulary().concepts[int(column)]
        one, other = (each[name].connections for each in networks[:2])
        assert one.strength.tolist() == other.strength.tolist()
    pruned = [gd.prune(each.path, tmp_path / each.path.name, client=client, keep=0.3) for each in networks[:2]]
    assert pruned[0].digest() == pruned[1].digest()
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
