"""Pruned networks hold the strongest connections, say so, and refuse what needs the sum over a text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st
from support.stored_networks import reader_of

import giaann_dask as gd
from giaann_dask.algebra.pruning import count_strengths, lowest_strength, prune_runs
from giaann_dask.cli import run
from giaann_dask.data import sample_test_text, sample_text
from giaann_dask.errors import OptionError, SpecificationError, StoreDamagedError, StoreExistsError
from giaann_dask.keys import pack_target, unpack_target
from giaann_dask.models.words.counting import EXTENDS
from giaann_dask.runs.packing import PackedRegionRun, pack, unpack
from giaann_dask.runs.run import Run
from giaann_dask.store.export import read_whole
from giaann_dask.store.manifest import Manifest

RULES: dict[str, dict[str, object]] = {"v1": {"flags": "canonical", "regions": 2}, "contexts": {"regions": 2}}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=0) as made:
        yield made


@pytest.fixture(scope="module", params=list(RULES))
def whole(request: pytest.FixtureRequest, client: Client, tmp_path_factory: pytest.TempPathFactory) -> gd.Network:
    """A network of two commits, whose regions have several runs."""
    path = tmp_path_factory.mktemp("whole") / request.param
    specification = gd.Specification(profile=request.param, **RULES[request.param])  # type: ignore[arg-type]
    gd.train(sample_test_text(), path, client=client, specification=specification)
    return gd.train([sample_text().read_text(encoding="utf-8")[:2000]], path, client=client)


def connections(network: gd.Network) -> dict[tuple[int, int], int]:
    run = read_whole(reader_of(network))
    source = np.repeat(run.source, np.diff(run.pointer))
    return dict(zip(zip(source.tolist(), run.target.tolist(), strict=True), run.strength.tolist(), strict=True))


def test_the_strongest_connections_stay(whole: gd.Network, client: Client, tmp_path: Path) -> None:
    before = connections(whole)
    pruned = gd.prune(whole, tmp_path / "pruned", keep=0.25, client=client)
    minimum, after = pruned.manifest.pruned_below, connections(pruned)
    assert 0 < len(after) < len(before)
    if whole.specification.traits.columns:
        assert after == {key: strength for key, strength in before.items() if strength >= minimum}
        assert len(after) <= 0.25 * len(before)
        # A lower one would keep too many.
        lower = max(strength for strength in before.values() if strength < minimum)
        assert sum(strength >= lower for strength in before.values()) > 0.25 * len(before)
    else:
        kinds = unpack_target(np.array([target for _, target in before]))[0].tolist()
        words = {key: kind for key, kind in zip(before, kinds, strict=True) if kind != EXTENDS}
        expected = {key for key, kind in words.items() if kind == 0 or before[key] >= minimum}
        assert {key for key in after if key in words} == expected
        assert {source for source, _ in after} == {source for source, _ in expected}
        assert all(before[key] == strength for key, strength in after.items())
    assert len(after) == pruned.manifest.connections
    assert (pruned.manifest.neurons, pruned.manifest.sequences) == (whole.manifest.neurons, whole.manifest.sequences)
    # By strength, and again by another one, which is the same as at once.
    assert pruned.pruned_below is not None
    once = gd.prune(whole, tmp_path / "once", min_strength=2 * pruned.pruned_below, client=client)
    twice = gd.prune(pruned, tmp_path / "twice", min_strength=2 * pruned.pruned_below, client=client)
    assert once.digest() == twice.digest()
    assert gd.open(once.path).pruned_below == 2 * pruned.pruned_below
    difference = gd.diff(whole, pruned, client=client)
    assert difference.connections["gone"] == len(before) - len(after)
    assert pruned.evaluate(sample_test_text(), client=client, max_sequences=3).top1 >= 0


def test_a_pruned_network_is_no_sum_any_more(whole: gd.Network, client: Client, tmp_path: Path) -> None:
    pruned = gd.prune(whole, tmp_path / "pruned", keep=0.5, client=client)
    gd.create_island(whole, tmp_path / "island", {})
    for refused in (
        lambda: gd.train(["The grey heron stood in the cold water of the old river."], pruned.path, client=client),
        lambda: gd.add([pruned, whole], tmp_path / "sum", client=client),
        lambda: gd.forget(pruned, sample_test_text(), client=client),
        lambda: gd.create_island(pruned, tmp_path / "other", {}),
        lambda: gd.merge_bundles(pruned.path, [tmp_path / "bundle"], island=tmp_path / "island", client=client),
    ):
        with pytest.raises(SpecificationError, match="was pruned"):
            refused()
    assert gd.open(pruned.path).commit == pruned.commit
    assert not (tmp_path / "sum").exists()
    assert "pruned" in str(pruned)
    assert pruned.describe()["pruned_below"] == pruned.pruned_below
    assert "pruned_below" not in whole.describe()
    with pytest.raises(StoreExistsError):
        gd.prune(whole, pruned.path, keep=0.5, client=client)
    with pytest.raises(OptionError, match="no connection"):
        gd.prune(whole, tmp_path / "none", min_strength=1e9, client=client)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("options", [{}, {"keep": 0.5, "min_strength": 1}, {"keep": 0}, {"keep": 1.5},
                                     {"min_strength": 0}, {"min_strength": float("nan")}])  # fmt: skip
def test_options_that_choose_nothing_are_refused(options: dict[str, float], tmp_path: Path) -> None:
    with pytest.raises(OptionError):
        gd.prune(tmp_path / "none", tmp_path / "pruned", **options)  # type: ignore[arg-type]


def test_a_manifest_that_was_pruned_says_so() -> None:
    empty = Manifest.new(gd.Specification())
    pruned = replace(empty, pruned_below=7)
    for each in (empty, pruned):
        assert Manifest.from_dict(json.loads(json.dumps(each.as_dict()))) == each
    with pytest.raises(StoreDamagedError, match="pruned_below"):
        Manifest.from_dict({**pruned.as_dict(), "pruned_below": -1})


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(1, 10), st.floats(0.01, 0.99), st.booleans())
def test_regions_are_pruned_as_their_sum(strengths: list[int], minimum: int, keep: float, twice: bool) -> None:
    count = len(strengths)
    rows = np.split(np.arange(count), np.arange(4, count, 4))
    # Words after contexts, how often words occur, and what contexts extend, in rows of four.
    target = pack_target(np.array([1, 0, EXTENDS])[np.arange(count) % 3], np.arange(count), 0)
    target = np.concatenate([np.sort(target[row]) for row in rows])
    pointer = np.array([0, *np.cumsum([len(row) for row in rows])])
    run = Run(np.arange(len(rows)), pointer, target, np.array(strengths, np.int32))
    packed = [PackedRegionRun(pack(run), pack(Run.empty()))] * (1 + twice)
    total = np.array(strengths, np.int64) * (1 + twice)
    values, counts = count_strengths(gd.Specification(), *packed)
    assert dict(zip(values.tolist(), counts.tolist(), strict=True)) == {
        int(value): int((total == value).sum()) for value in total
    }
    lowest = lowest_strength(values, counts, keep)
    assert (total >= lowest).sum() <= round(keep * count)
    lower = values[values < lowest]
    assert not len(lower) or (total >= lower[-1]).sum() > round(keep * count)
    left = unpack(prune_runs(minimum, gd.Specification(), [], *packed).connections)
    assert left.target.tolist() == target[total >= minimum].tolist()
    kind, stays = unpack_target(target)[0], total >= minimum
    for row in rows:
        words = stays[row] | (kind[row] == 0)
        stays[row] = np.where(kind[row] == EXTENDS, words[kind[row] != EXTENDS].any(), words)
    assert (
        unpack(prune_runs(minimum, gd.Specification(profile="contexts"), [], *packed).connections).target.tolist()
        == target[stays].tolist()
    )


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = run([*map(str, arguments)])
        return code, *capsys.readouterr()

    whole, pruned = tmp_path / "whole", tmp_path / "pruned"
    options = ("--profile", "contexts", "--set", "regions=1", "--workers", "0")
    assert call("train", sample_text(), "--network", whole, *options)[0] == 0
    assert call("tag", whole, "first")[0] == 0
    code, out, _ = call("prune", whole, "--keep", "0.5", "--ref", "first", "--out", pruned, "--json")
    found = json.loads(out)
    assert (code, found["pruned_below"]) == (0, 2)
    assert found["bytes_kept"] < found["bytes_before"]
    assert "pruned below" in call("inspect", pruned)[1]
    code, _, err = call("prune", whole, "--out", tmp_path / "x")
    assert (code, err.count("\n"), "--keep" in err) == (2, 1, True)
    code, _, err = call("train", sample_test_text(), "--network", pruned, "--workers", "0")
    assert (code, "was pruned" in err) == (2, True)
