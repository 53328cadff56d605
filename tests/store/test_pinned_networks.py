"""Networks of parts of the sample text have the content, bit by bit, that they had on 2026-11-22."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import giaann_dask as gd
from giaann_dask.data import sample_text
from giaann_dask.registry import PROFILES, Profile

EXPECTED: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parent.parent / "data" / "pinned_networks.json").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=0) as opened:
        yield opened


def digests(network: gd.Network, folder: Path) -> dict[str, str]:
    """Return the digests of an export, of the dictionaries."""
    files = network.export(folder / "exported.npz")
    values = json.loads(files.dictionaries.read_bytes())
    content = {
        "connections": files.connections.read_bytes(),
        "neurons": files.neurons.read_bytes(),
        "dictionaries": json.dumps(values, sort_keys=True).encode(),
    }
    return {name: hashlib.sha256(value).hexdigest() for name, value in content.items()}


@pytest.mark.parametrize("profile", PROFILES)
def test_training_predicting_and_training_more(profile: Profile, client: Client, tmp_path: Path) -> None:
    text = sample_text().read_text(encoding="utf-8")
    rules = gd.Specification(profile=profile, regions=2, flags="history")
    network = gd.train([text[:1302]], tmp_path / "net", client=client, specification=rules)
    expected = dict(EXPECTED[f"{profile}-a"])
    options = gd.GenerationOptions(max_tokens=5)
    said = network.generate("The old miller carried the flour", client=client, options=options)
    assert said.text == expected.pop("text")
    assert digests(network, tmp_path) == expected
    more = gd.train([text[-1200:]], network.path, client=client)
    assert digests(more, tmp_path) == EXPECTED[f"{profile}-b"]
