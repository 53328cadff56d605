"""Networks that an earlier version wrote, on 2026-11-22 before the folders of the package were reorganised."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import giaann_dask as gd

FOLDER = Path(__file__).resolve().parent.parent / "data" / "earlier"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=0) as opened:
        yield opened


def digests(network: gd.Network, folder: Path) -> dict[str, str]:
    """Return the digests of an export, of the dictionaries without regions and placement, which were in them then."""
    files = network.export(folder / "exported.npz")
    values = json.loads(files.dictionaries.read_bytes())
    for name in ("regions", "placement"):
        values.get("specification", {}).pop(name, None)
    content = {
        "connections": files.connections.read_bytes(),
        "neurons": files.neurons.read_bytes(),
        "dictionaries": json.dumps(values, sort_keys=True).encode(),
    }
    return {name: hashlib.sha256(value).hexdigest() for name, value in content.items()}


@pytest.mark.parametrize("profile", ["v1", "v2", "best"])
def test_a_network_of_an_earlier_version_predicts_exports_and_trains_as_there(
    profile: str, client: Client, tmp_path: Path
) -> None:
    with tarfile.open(FOLDER / "networks.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    network = gd.Network(tmp_path / profile)
    expected = dict(EXPECTED[f"{profile}-a"])
    options = gd.GenerationOptions(tokens=5)
    assert network.generate("The old miller carried the flour", client=client, options=options).text == expected.pop(
        "text"
    )
    assert digests(network, tmp_path) == expected
    text = tmp_path / "b.txt"
    text.write_text(EXPECTED["text"], encoding="utf-8")
    later = gd.train(text, tmp_path / profile, client=client)
    report = later.training_report
    assert report.sequences > 0
    assert digests(later, tmp_path) == EXPECTED[f"{profile}-b"]
