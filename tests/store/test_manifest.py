"""What is damaged in a network's manifest, or missing beside it, is told by its name before anything is computed."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zarr
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.errors import StoreDamagedError
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import NetworkStore

pytestmark = pytest.mark.cluster

BEAM = ("--beam-width", "2", "--beam-depth", "2", "--max-tokens", "2")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> gd.Network:
    """A network of 20 regions, of which it has 16."""
    folder = tmp_path_factory.mktemp("manifest")
    with gd.connect(workers=0) as client:
        text, rule = write_village(folder / "a.txt", 60), gd.Specification(regions=20, placement="balanced")
        return gd.train(text, folder / "net", client=client, specification=rule)


def change(network: gd.Network, path: Path, changed: Callable[[zarr.Group], object]) -> Path:
    """A copy of a network whose last commit has been changed by hand."""
    shutil.copytree(network.path, path)
    session = NetworkStore(path).begin()
    changed(zarr.open_group(session.store, mode="a"))
    session.commit("by hand")
    return path


DAMAGE: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "negative count": (("connections",), -5, "connections in the manifest"),
    "negative status": (("by_status", 0), -1, "by_status"),
    "text": (("tokens",), "12", "tokens"),
    "no whole number": (("concepts",), 1.5, "concepts"),
    "too many connections": (("connections",), 10**9, "no more than the"),
    "more saved than there are": (("saved_features",), 10**6, "saved_features"),
    "trained later than counted": (("last_trained",), 10**6, "last_trained"),
    "a region that is none": (("runs", 0, "region"), 999, "of the regions [999]"),
    "a run of no name": (("runs", 0, "identity"), "../../x", "identity"),
    "a negative size": (("runs", 0, "nbytes"), -1, "nbytes of an entry of runs"),
    "runs that are none": (("runs",), 7, "runs in the manifest"),
    "a run that is none": (("runs", 0), [1, 2], "an entry of runs"),
    "a split of no region": (("splits",), [[500, 1]], "splits"),
    "a split of four": (("splits",), [[1, 1, 1, 1]], "2 numbers"),
    "a split at no target": (("splits",), [[1, 1, 0]], "2 numbers"),
    "load of other regions": (("load",), [1, 2, 3], "load"),
    "more than asked for": (("begun_with",), 21, "begun_with"),
    "no boolean": (("exact",), "yes", "exact"),
    "an unknown field": (("colour",), 1, "unknown fields ['colour']"),
    "specification": (("specification",), 3, "specification in the manifest"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_field_is_told_by_its_name(network: gd.Network, name: str) -> None:
    where, value, said = DAMAGE[name]
    fields = copy.deepcopy(network.manifest.as_dict())
    fields = {key: list(each) if isinstance(each, tuple) else each for key, each in fields.items()}
    assert Manifest.from_dict(fields) == network.manifest
    inner: Any = fields
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    with pytest.raises(StoreDamagedError) as failure:
        Manifest.from_dict(fields, "network my.network")
    message = str(failure.value)
    assert said in message
    assert "my.network" in message
    assert "giaann-dask doctor" in message


def test_a_field_that_is_missing(network: gd.Network) -> None:
    fields = network.manifest.as_dict()
    del fields["runs"]
    with pytest.raises(StoreDamagedError, match=r"without \['runs'\]"):
        Manifest.from_dict(fields)


def without(name: str) -> Callable[[zarr.Group], None]:
    def remove(root: zarr.Group) -> None:
        del root[name]

    return remove


def without_manifest(root: zarr.Group) -> None:
    root.attrs.put({name: value for name, value in root.attrs.asdict().items() if name != "manifest"})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (without_manifest, "the manifest of network"),
        (without("features_text"), "the array features_text is missing"),
        (without("first_region"), "the array first_region is missing"),
        (without("ledger_identity"), "the array ledger_identity is missing"),
        (without("runs/00003.00000000-00000000"), " of run 00003.00000000-00000000"),
    ],
)
def test_what_is_missing_is_one_line(
    network: gd.Network,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changed: Callable[[zarr.Group], None],
    said: str,
) -> None:
    path = change(network, tmp_path / "net", changed)
    text = str(write_village(tmp_path / "b.txt", 30, 3))
    commands = {
        "export": ("export", str(path), "--out", str(tmp_path / "x.npz")),
        # With a beam no kernel of prompts is needed, which the other Python would compile for 12 s.
        "generate": ("generate", str(path), "the old miller carried the flour", "--workers", "0", *BEAM),
        "train": ("train", text, "--network", str(path), "--workers", "0"),
    }
    told = 0
    for name, arguments in commands.items():
        code = run(arguments)
        error = capsys.readouterr().err
        assert code in (0, 2), (name, error)
        assert "object at 0x" not in error
        if code == 2:
            assert error.count("\n") == 1, error
            assert str(path) in error, error
            assert said in error, error
            assert "doctor" in error, error
            told += 1
    assert told, "some command needs it"
