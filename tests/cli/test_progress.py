"""Bars with the time left on a terminal, nothing elsewhere, and logs."""

from __future__ import annotations

import gzip
import json
import logging
import os
import re
import threading
from pathlib import Path
from typing import Any

import distributed
import pytest
from support.village import write_village

from giaann_dask.cli import run
from giaann_dask.cli.output import LOGGER
from giaann_dask.cli.shared_options import silence_dask
from giaann_dask.data import sample_test_text, sample_text
from giaann_dask.diagnostics.progress import SequenceEstimate
from giaann_dask.encoding.sources import estimate_characters
from giaann_dask.events import BlockEncoded


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> tuple[int, str]:
    """Run a command with a pseudo-terminal as standard error; return its exit code and what was shown."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    ours, theirs = os.openpty()
    shown: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 65536):
                shown.append(data)
        except OSError:
            # The other end has been closed.
            return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with open(theirs, "w", encoding="utf-8") as terminal, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", terminal)
        code = run(list(map(str, arguments)))
    reader.join(10)
    os.close(ours)
    return code, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(shown).decode())


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_village(tmp_path_factory.mktemp("progress") / "village.txt", 800)


def test_bars_with_time_left_on_a_terminal(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = tmp_path / "net"
    small = ("--batch-sequences", "50", "--workers", "0")
    code, shown = on_a_terminal(monkeypatch, "train", text, "--network", network, "-v", *small)
    assert code == 0
    assert re.search(r"train .* of ~?[78]\d\d sequences, [\d,]+/s +0:00:\d\d 0:00:\d\d left", shown)
    assert re.search(r"INFO +committed \w{20}: 800 sequences", shown), "logs stand above the bars"
    code, shown = on_a_terminal(monkeypatch, "evaluate", network, sample_test_text(), "--workers", "0")
    assert code == 0
    assert re.search(r"evaluate .* of ~\d\d sequences .* left +top-1 0\.\d{4}", shown)
    code, shown = on_a_terminal(monkeypatch, "export", network, "--out", tmp_path / "net.npz")
    assert code == 0
    assert re.search(r"read .* 4 of 4 runs", shown)
    for arguments in (("inspect", network), ("generate", network, "The old miller carried", "--workers", "0")):
        code, shown = on_a_terminal(monkeypatch, *arguments)
        assert code == 0
        assert str(arguments[0]) in shown


def test_only_the_result_without_a_terminal(text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    network = str(tmp_path / "net")
    for arguments in (
        ("encode", str(text), "--out", str(tmp_path / "corpus"), "--workers", "0"),
        ("train", str(text), "--network", network, "--workers", "0"),
        ("inspect", network),
        ("export", network, "--out", str(tmp_path / "net.npz")),
        ("compact", network, "--workers", "0"),
    ):
        assert run([*arguments, "--json"]) == 0
        shown = capfd.readouterr()
        assert shown.err == ""
        assert isinstance(json.loads(shown.out), dict)


def logged(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capfd.readouterr().err.splitlines()]


@pytest.mark.slow
def test_logs_are_lines_of_json(text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", str(text), "--network", str(tmp_path / "net"), "--workers", "0", "--log-json"]
    assert run(arguments) == 0
    lines = logged(capfd)
    assert {line["level"] for line in lines} == {"info"}
    assert lines[0]["message"].startswith("started the cluster at inproc://")
    assert [line["sequences"] for line in lines if "commit" in line] == [800]
    assert run([*arguments, "-vv"]) == 0
    lines = logged(capfd)
    assert any(line["message"] == "skipped 1 parts of text that are in the network already" for line in lines)
    assert run(["train", str(sample_text()), *arguments[2:], "-vv"]) == 0
    assert "debug" in {line["level"] for line in logged(capfd)}
    logger = logging.getLogger(LOGGER)
    assert (logger.handlers, logger.propagate) == ([], True), "the process is left as it was"


@pytest.mark.parametrize(
    ("limit", "blocks", "total"),
    [
        (None, [], None),
        (7, [], 7),
        (None, [(5, 100, 100)], 50),
        # Half of the text is in the network already.
        (None, [(5, 100, 600)], 25),
        (8, [(5, 100, 100)], 8),
        (None, [(5, 100, 100), (15, 100, 2000)], 20),
    ],
)
def test_estimate_of_sequences(limit: int | None, blocks: list[tuple[int, int, int]], total: int | None) -> None:
    estimate = SequenceEstimate(1000, limit)
    for block in blocks:
        estimate.add(BlockEncoded(*block))
    assert estimate.total == total


def test_estimate_of_characters(tmp_path: Path) -> None:
    content = sample_text().read_text(encoding="utf-8")
    greek = "α βήτα γάμμα.\n" * 500
    files = {"a.txt": content.encode(), "b.txt": greek.encode()}
    files["c.jsonl"] = b"".join(json.dumps({"id": "x" * 300, "text": "y" * 100}).encode() + b"\n" for _ in range(300))
    files["d.txt.gz"] = gzip.compress(content.encode())
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    expected = {"a.txt": len(content), "b.txt": len(greek), "c.jsonl": 30_000, "d.txt.gz": len(content)}
    for name, characters in expected.items():
        assert estimate_characters([str(tmp_path / name)]) == pytest.approx(characters, rel=0.03)
    assert estimate_characters([str(tmp_path)]) == pytest.approx(sum(expected.values()), rel=0.03)


def test_handlers_of_others_keep_their_level_where_dask_is_silenced(caplog: pytest.LogCaptureFixture) -> None:
    # Importing it makes its handlers anew.
    logger, own = logging.getLogger(distributed.client.__name__), logging.StreamHandler()
    for handler in (own, caplog.handler):
        logger.addHandler(handler)
    try:
        silence_dask()
        assert (own.level, caplog.handler.level) == (logging.CRITICAL, logging.NOTSET)
    finally:
        for handler in (own, caplog.handler):
            logger.removeHandler(handler)
