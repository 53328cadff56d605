"""Sentences behind predictions: their shares add up, and their text is read where it is, or said to be gone."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from support.stored_networks import reader_of

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.data import sample_test_text, sample_text
from giaann_dask.errors import OptionError
from giaann_dask.models.results import ConnectionKey
from giaann_dask.predict.generation import Continuation
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.packing import unpack
from giaann_dask.serving.engine import CompletionOptions
from giaann_dask.serving.models import ModelSource, ServedModel, open_engine
from giaann_dask.serving.requests import HttpError
from giaann_dask.serving.serving_options import Limits
from giaann_dask.serving.traces import read_trace_request
from giaann_dask.tracing import TraceIndex, _open

PROMPT = "The old miller carried the flour"
TEXT = sample_text().read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=0) as made:
        yield made


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The sample text in a file, compressed, and in records, of which one is long."""
    folder = tmp_path_factory.mktemp("texts")
    paragraphs = TEXT.split("\n\n")
    with gzip.open(folder / "first.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n\n".join(paragraphs[::2]))
    records = [{"text": "Nothing of note."}, {"text": "\n\n".join(paragraphs[1::2])}]
    (folder / "second.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    return [folder / "first.txt.gz", folder / "second.jsonl"]


@pytest.fixture(scope="module")
def network(client: Client, files: list[Path]) -> gd.Network:
    rules = gd.Specification(trace=True, regions=2)
    return gd.train(files, files[0].parent / "net", client=client, specification=rules)


def test_shares_add_up_to_the_stored_strength(network: gd.Network, files: list[Path]) -> None:
    continuation = network.generate(PROMPT, max_tokens=2)
    trace = continuation.trace(sentences=10_000)
    reader = reader_of(network)
    runs = [unpack(reader.run(run.identity).connections) for run in network.manifest.runs]
    whole = merge_runs(runs)
    texts = {
        str(files[0]): {1: document(TEXT.split("\n\n")[::2])},
        str(files[1]): {2: document(TEXT.split("\n\n")[1::2])},
    }
    for token, found in zip(continuation.tokens, trace.tokens, strict=True):
        reasons = [reason for reason in token.reasons if reason.connection is not None]
        for reason, connection in zip(reasons, found.connections, strict=True):
            key = reason.connection
            assert key is not None
            row = whole.row(key.source)
            assert row is not None
            target = (key.segment << 58) | (key.target << 7) | key.branch
            stored = int(row.strength[np.searchsorted(row.target, target)])
            assert connection.units == stored == sum(sentence.units for sentence in connection.sentences)
            assert sum(sentence.share for sentence in connection.sentences) == pytest.approx(1)
            assert connection.sequences == len(connection.sentences)
            assert network.specification.strengths(np.array([stored]))[0] == pytest.approx(reason.strength)
            for sentence in connection.sentences:
                assert sentence.text is not None
                assert sentence.document is not None
                begin = texts[sentence.place][sentence.document][sentence.offset :]
                assert begin.replace("\n", " ").startswith(sentence.text)
    assert "old miller" in str(trace)
    assert "<table" in trace._repr_html_()
    assert len(trace.to_pandas()) == sum(len(c.sentences) for t in trace.tokens for c in t.connections)
    assert json.loads(json.dumps(trace.as_dict()))["commit"] == network.commit


def document(paragraphs: list[str]) -> str:
    """A document as it is read: lines joined by a space, paragraphs by a newline."""
    lines = ([line.strip() for line in paragraph.split("\n") if line.strip()] for paragraph in paragraphs)
    return "\n".join(" ".join(each) for each in lines if each)


def test_text_that_is_gone_is_named(client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book, network = tmp_path / "book.txt", str(tmp_path / "net")
    book.write_text(TEXT, encoding="utf-8")
    assert (
        run(["train", str(book), "--network", network, "--trace", "--set", "regions=1", "--workers", "0", "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["index_bytes_per_connection"] > 0

    def first(*options: str) -> dict[str, object]:
        _open.cache_clear()
        assert run(["trace", network, PROMPT, "--max-tokens", "1", "--json", *options]) == 0
        found: dict[str, object] = json.loads(capsys.readouterr().out)["tokens"][0]["connections"][0]["sentences"][0]
        return found

    there = first()
    assert str(there["text"]).startswith(PROMPT)
    moved = book.rename(tmp_path / "moved.txt")
    assert first()["text"] is None
    assert f"{book} cannot be read any more" in str(first()["missing"])
    assert first("--text", str(tmp_path / "moved.txt"))["text"] == there["text"]
    assert run(["trace", network, PROMPT, "--text", str(tmp_path / "none.txt")]) == 2
    assert f"{tmp_path / 'none.txt'}' does not exist" in capsys.readouterr().err
    other = tmp_path / "other.txt"
    other.write_text("A young cat sat on the grey mat in the cold hall.")
    assert f"neither {other} nor {book} holds this text" in str(first("--text", str(other))["missing"])
    book.write_text(TEXT.replace("miller", "farmer"), encoding="utf-8")
    assert f"{book} does not hold this text any more" in str(first()["missing"])
    moved.rename(book)
    corpus = gd.encode(book, tmp_path / "corpus", client=client)
    book.unlink()
    assert str(first("--text", str(corpus.path))["text"]).startswith("The old miller carried the flour to the baker")
    assert (
        run(
            [
                "train",
                str(sample_test_text()),
                "--network",
                str(tmp_path / "plain"),
                "--set",
                "regions=1",
                "--workers",
                "0",
            ]
        )
        == 0
    )
    capsys.readouterr()
    assert run(["trace", str(tmp_path / "plain"), PROMPT]) == 2
    assert f"giaann-dask index {tmp_path / 'plain'} TEXT..." in capsys.readouterr().err
    text = str(sample_test_text())
    assert run(["train", text, "--network", str(tmp_path / "plain"), "--trace", "--workers", "0"]) == 2
    assert f"giaann-dask index {tmp_path / 'plain'} TEXT..." in capsys.readouterr().err
    assert run(["index", str(tmp_path / "plain"), str(sample_test_text()), "--workers", "0"]) == 0
    assert "sequences    40" in capsys.readouterr().out
    assert run(["trace", str(tmp_path / "plain"), PROMPT, "--max-tokens", "1"]) == 0
    assert run(["index", str(tmp_path / "plain"), str(sample_test_text()), "--workers", "0"]) == 0
    assert "has an index already" in capsys.readouterr().out
    assert run(["trace", network, PROMPT, "--sentences", "-1"]) == 2
    assert "--sentences is -1" in capsys.readouterr().err


def test_engine_names_connections_and_traces_them(network: gd.Network, client: Client) -> None:
    from support.serving_engines import parts_of

    from giaann_dask.models.base import TokenEvent
    from giaann_dask.serving.completion_deltas import reason_as_dict

    reader = reader_of(network)
    engine = open_engine(client, reader)
    try:
        parts = parts_of(engine, PROMPT, CompletionOptions(tokens=1, connections=3))
        (token,) = [part.token for part in parts if isinstance(part, TokenEvent) and part.token is not None]
        named = [reason_as_dict(reason)["connection"] for reason in token.reasons]
        body = json.dumps({"connections": named, "sentences": 1}).encode()
        keys, sentences = read_trace_request(body, Limits())
        assert keys == [reason.connection for reason in token.reasons]
        expected = network.trace(PROMPT, max_tokens=1, sentences=1).tokens[0].connections[:3]
        source = ModelSource.of(reader, lambda: nullcontext(engine))
        found = ServedModel(source).trace(source, keys, sentences)
        assert [each.sentences for each in found] == [each.sentences for each in expected]
    finally:
        engine.close()
    for wrong in ({}, {"connections": [5]}, {"connections": [{"source": -1}]}, {"connections": named, "more": 1}):
        with pytest.raises(HttpError):
            read_trace_request(json.dumps(wrong).encode(), Limits())


def test_what_cannot_be_traced_is_refused(network: gd.Network) -> None:
    with pytest.raises(OptionError, match="without its reasons"):
        network.generate(PROMPT, max_tokens=1, explain=False).trace()
    with pytest.raises(OptionError, match="without its reasons"):
        Continuation(("a",), (), None, "commit").trace()
    nothing = list(TraceIndex(reader_of(network)).shares(ConnectionKey(12345, 54321, 0, 0)))
    assert [each.tolist() for shares in nothing for each in shares] == [[], []]


def test_tokens_that_no_connection_has_decided(client: Client, tmp_path: Path) -> None:
    """Their activation is nothing: the first of equal ones is taken."""
    rule = gd.Specification(trace=True, regions=2, flags="history")
    small = gd.train(sample_test_text(), tmp_path / "net", client=client, specification=rule)
    gated = gd.GenerationOptions(inference=gd.InferenceOptions(sequential=True))
    prompt = "The old miller carried the"
    assert not any(token.reasons for token in small.generate(prompt, options=gated, explain=True).tokens)
    assert [(token.word, token.connections) for token in small.trace(prompt, options=gated).tokens] == [
        ("miller", ()),
        ("carried", ()),
    ]
