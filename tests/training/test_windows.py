"""Sequences that are windows of words, wherever sentences begin and end, and longer than 256 words.

How windows divide a text is tested in `test_blocks`, what their pairs add in `test_segment_layouts`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import giaann_dask as gd
from giaann_dask.data import sample_test_text, sample_text

WINDOWS = gd.Specification(profile="v2", sentences_per_sequence=0, maximum_tokens=400, regions=2, trace=True)
PARAGRAPHS = sample_text().read_text(encoding="utf-8").split("\n\n")
DOCUMENTS = ["\n\n".join(PARAGRAPHS[at::9]) for at in range(3)]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=0) as made:
        yield made


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("documents")
    found = [folder / f"{at}.txt" for at in range(len(DOCUMENTS))]
    for file, document in zip(found, DOCUMENTS, strict=True):
        file.write_text(document, encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def network(client: Client, files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> gd.Network:
    return gd.train(files, tmp_path_factory.mktemp("windows") / "net", client=client, specification=WINDOWS)


def test_windows_are_predicted_and_traced(network: gd.Network, files: list[Path], client: Client) -> None:
    report = network.evaluate(sample_test_text(), client=client, max_sequences=1)
    assert (report.sequences, report.as_dict()["by_position"][-1]["name"]) == (1, "264-519")
    traced = network.trace("The old miller carried the flour to the", client=client, max_tokens=1, texts=files)
    (token,) = traced.tokens
    texts = [str(one.text) for connection in token.connections for one in connection.sentences]
    assert max(len(text.split()) for text in texts) > 256
    prompt = " ".join(PARAGRAPHS[0].split() * 9)
    assert len(network.generate(prompt, client=client, max_tokens=1, explain=False).prompt) > 256


@pytest.mark.parametrize("options", [{"batch_sequences": 1}, {"block_characters": 900, "order": "random"}])
def test_any_division_has_the_same_bytes(
    network: gd.Network, files: list[Path], client: Client, tmp_path: Path, options: dict[str, Any]
) -> None:
    other = gd.train(files, tmp_path / "net", client=client, specification=WINDOWS, **options)
    assert other.digest() == network.digest()


@pytest.mark.slow
@pytest.mark.cluster
def test_two_workers_have_the_same_bytes(network: gd.Network, files: list[Path], tmp_path: Path) -> None:
    with gd.connect(workers=2) as workers:
        other = gd.train(files, tmp_path / "net", client=workers, specification=WINDOWS)
        assert other.digest() == network.digest()


def test_a_document_is_forgotten_exactly(
    network: gd.Network, files: list[Path], client: Client, tmp_path: Path
) -> None:
    left = gd.open(shutil.copytree(network.path, tmp_path / "net"))
    gd.forget(left.path, files[1], client=client, renumber=True)
    rest = gd.train([files[0], files[2]], tmp_path / "rest", client=client, specification=WINDOWS)
    assert gd.open(left.path).digest() == rest.digest()
