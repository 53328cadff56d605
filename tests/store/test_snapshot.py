"""A network opened at a commit reads that commit, regardless of later training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import icechunk
import pytest
from support.village import write_village

import giaann_dask as gd
from giaann_dask import cli
from giaann_dask.errors import StoreMissingError
from giaann_dask.events import Event, SequencesEvaluated
from giaann_dask.models.columns.evaluation import evaluation
from giaann_dask.store.icechunk_library import create_repository

PROMPT = "the old miller carried the"


class Grown(NamedTuple):
    """A network of two commits, the text that it was asked about, and what the first one answered."""

    path: Path
    text: Path
    first: str
    second: str
    said: str
    share: dict[str, Any]


def figures(report: evaluation.AccuracyReport) -> dict[str, Any]:
    return {name: value for name, value in report.as_dict().items() if name not in ("seconds", "rows", "stages")}


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Grown:
    """The second commit is made while an evaluation of the first is running."""
    folder = tmp_path_factory.mktemp("snapshot")
    texts = [write_village(folder / f"{seed}.txt", 300, seed) for seed in (1, 2, 3)]
    with gd.connect(workers=0) as client:
        network = gd.train(texts[0], folder / "net", client=client)
        said = network.generate(PROMPT, client=client)
        undisturbed = network.evaluate(texts[2], client=client)
        grown_to: list[str] = []

        def train_on(event: Event) -> None:
            if isinstance(event, SequencesEvaluated) and not grown_to:
                grown_to.append(gd.train(texts[1], folder / "net", client=client).commit)

        report = network.evaluate(texts[2], client=client, observer=train_on)
        assert grown_to
        assert grown_to != [network.commit]
        assert figures(report) == figures(undisturbed)
        assert network.generate(PROMPT, client=client) == said
    return Grown(folder / "net", texts[2], network.commit, grown_to[0], said.text, figures(undisturbed))


def test_the_last_commit_is_another_network(grown: Grown) -> None:
    with gd.connect(workers=0) as client:
        last = gd.Network(grown.path)
        assert last.commit == grown.second
        report = last.evaluate(grown.text, client=client)
        assert report.commit == grown.second
        assert figures(report)["top1"] != grown.share["top1"]
        first = gd.Network(grown.path, commit=grown.first)
        assert figures(first.evaluate(grown.text, client=client)) == grown.share
    assert first.describe()["connections"] < last.describe()["connections"]
    assert len(first.table()) < len(last.table())


def answered(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert cli.run([*map(str, arguments), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert isinstance(values, dict)
    return values


@pytest.mark.slow
def test_every_command_takes_an_older_commit(grown: Grown, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, older = ("--workers", "0"), ("--ref", grown.first)
    commands: list[tuple[str | Path, ...]] = [
        ("evaluate", grown.path, grown.text, *here, "--rows-mode", "remote", "--rows-cache-bytes", "1MB"),
        ("generate", grown.path, PROMPT, *here, "--rows-mode", "remote"),
        ("inspect", grown.path),
        ("export", grown.path, "--out", tmp_path / "a.npz"),
        ("draw", grown.path, "--out", tmp_path / "a.svg"),
    ]
    for command in commands:
        found = answered(capsys, *command, *older)
        assert found["commit"] == grown.first, command
        if command[0] == "evaluate":
            assert found["top1"] == grown.share["top1"]
            assert found["rows"]["requests"] > 0
        if command[0] == "generate":
            assert found["text"] == grown.said
        assert cli.run([*map(str, command), "--ref", "P6NEKYF5EYHYAW829EAG"]) == cli.BAD_INPUT
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.count("\n") == 1
        assert "has no commit P6NEKYF5EYHYAW829EAG" in shown.err
    history = answered(capsys, "inspect", grown.path)["history"]
    assert [each["commit"] for each in history][:2] == [grown.second, grown.first]


@pytest.mark.parametrize("commit", ["", "nonsense", "A" * 20, "-1"])
def test_an_unknown_commit(grown: Grown, commit: str) -> None:
    with pytest.raises(StoreMissingError, match="no commit"):
        gd.Network(grown.path, commit=commit)


def test_a_network_before_its_first_commit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it is while it is being made: not there yet, and not damaged."""
    create_repository(icechunk.local_filesystem_storage(str(tmp_path / "net")), None)
    assert cli.run(["inspect", str(tmp_path / "net")]) == cli.BAD_INPUT
    assert "holds no commit yet" in capsys.readouterr().err


def test_a_commit_has_one_identity(grown: Grown) -> None:
    """The last letter of an identity has bits that mean nothing."""
    letters = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    last = letters.index(grown.first[-1])
    other = grown.first[:-1] + letters[last + 1 if last % 2 == 0 else last - 1]
    assert other != grown.first
    assert gd.Network(grown.path, commit=other).commit == grown.first


@pytest.mark.parametrize(
    "wrong", [("--rows-mode", "begged"), ("--rows-cache-bytes", "much"), ("--top-k", "1,two"), ("--top-k", "0")]
)
def test_options_of_evaluate_that_make_no_sense(
    grown: Grown, wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["evaluate", str(grown.path), str(grown.text), "--workers", "0", *wrong]) == cli.BAD_INPUT
    assert capsys.readouterr().err.count("\n") == 1


def test_a_report_that_cannot_be_written_is_refused_at_once(
    grown: Grown, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "infer", None)
    wrong = ["evaluate", str(grown.path), str(grown.text), "--report", "report.docx"]
    assert cli.run(wrong) == cli.BAD_INPUT
    assert "report.docx" in capsys.readouterr().err


def test_evaluate_writes_what_is_asked_for(grown: Grown, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "a.html", tmp_path / "a.png"]
    wanted = [part for file in files for part in ("--report", str(file))]
    common = ["evaluate", str(grown.path), str(grown.text), "--workers", "0", "--max-sequences", "20", "--top-k", "1,5"]
    assert cli.run([*common, *wanted]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("top-5", "part of speech", "NOUN", "10-11", "a.html"))
    assert all(file.stat().st_size > 1000 for file in files)
