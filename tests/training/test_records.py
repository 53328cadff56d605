"""Each record of a list, a frame or a file of JSON lines is counted once, whatever else is read with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.bag
import pandas as pd
import pytest
from distributed import Client

import giaann_dask as gd

HERON = "The grey heron stood in the shallow water of the river and waited for a fish until the evening."
MILLER = "The old miller carried the flour to the baker of the village and drank a cup of tea with him."
SMITH = "The young smith mended the iron gate of the castle with a heavy hammer before the rain."
TEACHER = "The teacher read the letter to the children in the school."
TEXTS = [HERON, MILLER, SMITH]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=0) as client:
        yield client


def trained(client: Client, path: Path, texts: Any, **options: Any) -> tuple[int, int]:
    """Train texts, and return the sequences that were counted and the texts that were left out as repeated."""
    report = gd.train(texts, path, client=client, profile="contexts", **options).training_report
    return report.sequences, report.repeated


def write_lines(path: Path, texts: list[str]) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return str(path)


def test_order_and_additions_change_nothing(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "net"
    assert trained(client, path, TEXTS) == (3, 0)
    assert trained(client, path, TEXTS[::-1]) == (0, 0)
    assert trained(client, path, [*TEXTS, TEACHER]) == (1, 0)
    assert trained(client, path, [TEACHER, HERON, TEACHER, HERON, HERON]) == (0, 3)
    once = gd.train([TEACHER, *TEXTS], tmp_path / "once", client=client, profile="contexts")
    assert gd.open(path).digest() == once.digest()


FORMS: dict[str, Callable[[Path], Any]] = {
    "iterator": lambda folder: iter(TEXTS),
    "mappings": lambda folder: [{"text": text, "number": number} for number, text in enumerate(TEXTS)],
    "pandas": lambda folder: pd.DataFrame({"text": TEXTS, "stars": [1, 2, 3]}),
    "dask": lambda folder: pytest.importorskip("dask.dataframe").from_pandas(
        pd.DataFrame({"text": TEXTS[::-1]}), npartitions=3
    ),
    "bag": lambda folder: dask.bag.from_sequence(TEXTS, npartitions=2),
    "dataset": lambda folder: pytest.importorskip("datasets").Dataset.from_dict({"text": TEXTS}),
    "lines": lambda folder: write_lines(folder / "texts.jsonl", TEXTS[1:] + TEXTS[:1]),
    "files": lambda folder: gd.Files(_write(folder / f"{at}.txt", text) for at, text in enumerate(TEXTS)),
}


def _write(path: Path, text: str) -> Path:
    path.write_text(text + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def network(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forms") / "net"
    assert trained(client, path, TEXTS) == (3, 0)
    return path


@pytest.mark.parametrize("form", FORMS)
def test_the_same_texts_in_another_form_are_known(client: Client, network: Path, tmp_path: Path, form: str) -> None:
    assert trained(client, network, FORMS[form](tmp_path)) == (0, 0)


def test_repeats_are_counted_where_that_is_asked_for(client: Client, tmp_path: Path) -> None:
    path, texts = tmp_path / "net", [HERON, MILLER, HERON]
    for counted in (3, 0):
        assert trained(client, path, texts, count_repeats=True) == (counted, 0)
    assert trained(client, path, [HERON, HERON, HERON], count_repeats=True) == (1, 0)
    report = gd.forget(path, [HERON], client=client)
    assert (report.sequences, len(report.parts)) == (3, 3)
    assert report.digest == gd.train([MILLER], tmp_path / "rest", client=client, profile="contexts").digest()


def test_one_record_is_forgotten_by_its_text_or_its_identity(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "net"
    lines = write_lines(tmp_path / "texts.jsonl", [HERON, "", MILLER, HERON, SMITH, TEACHER])
    network = gd.train(lines, path, client=client, trace=True, profile="v2")
    assert network.training_report.repeated == 1
    assert gd.forget(path, [SMITH], client=client).sequences == 1
    found = gd.open(path).trace("The old miller carried the flour", max_tokens=1, client=client)
    sentence = found.tokens[0].connections[0].sentences[0]
    assert sentence.text is not None
    assert sentence.text.startswith("The old miller")
    report = gd.forget(path, gd.Files([sentence.part]), client=client, purge=True)
    rest = gd.train([TEACHER, HERON], tmp_path / "rest", client=client, profile="v2", trace=True)
    assert report.digest == rest.digest()


def test_a_corpus_holds_each_record_once(client: Client, tmp_path: Path) -> None:
    corpus = gd.encode([HERON, MILLER, HERON], tmp_path / "corpus", client=client)
    assert corpus.describe()["sequences"] == 2
    network = gd.train([MILLER], tmp_path / "net", client=client)
    assert gd.train(corpus, network.path, client=client).training_report.sequences == 1


def test_training_goes_on_in_the_middle_of_a_list(client: Client, tmp_path: Path) -> None:
    """As after a kill: the sequences of the last commit, which ends within a document, are not counted again."""
    texts = [f"{text} {text}" for text in TEXTS] + [TEACHER]
    path = tmp_path / "net"
    assert trained(client, path, texts, max_sequences=3) == (3, 0)
    assert trained(client, path, texts[::-1]) == (4, 0)
    once = gd.train(texts, tmp_path / "once", client=client, profile="contexts")
    assert gd.open(path).digest() == once.digest()
