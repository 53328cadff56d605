"""What the scheduled scripts share: settings, locks, histories, plans, and copies of commits."""

from __future__ import annotations

import json
import re
import resource
import signal
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import icechunk
import pytest

import giaann_dask as gd
from giaann_dask import new_inputs
from giaann_dask.cli import run
from giaann_dask.cli.jobs import COMMON, JobCommand, job, job_command
from giaann_dask.data import sample_text
from giaann_dask.errors import (
    OptionError,
    StoreDamagedError,
    StoreExistsError,
    StoreMissingError,
    StoreUnreachableError,
    StoreWriteError,
)
from giaann_dask.storage import read_json_lines
from giaann_dask.store.backup import StorePlace, copy_commit
from giaann_dask.workflows.exits import CheckFailedError, TryAgainError, status_of
from giaann_dask.workflows.history import append_line, lock_of, only_one, recorded


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, Any]]:
    """A job that keeps what it was given."""
    given: dict[str, Any] = {}

    @job_command("told")
    @click.option("--keep", type=int, default=1)
    @click.option("--some-text", multiple=True)
    @click.option("--json", "as_json", is_flag=True)
    def command(**values: Any) -> None:
        given.update(values)

    monkeypatch.setitem(job.commands, "told", command)
    return "told", given


def test_flag_then_environment_then_file(
    told: tuple[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, given = told
    file = tmp_path / "s.toml"
    file.write_text('[common]\nkeep = 2\nworkers = 3\n[told]\nkeep = 3\nsome-text = ["a b", 5]\njson = 1\n')
    assert run(["job", command, "--config", str(file)]) == 0
    assert given == {"keep": 3, "some_text": ("a b", "5"), "as_json": True, "dry_run": False}
    monkeypatch.setenv("GIAANN_CONFIG", str(file))
    monkeypatch.setenv("GIAANN_KEEP", "4")
    monkeypatch.setenv("GIAANN_JSON", "0")
    monkeypatch.setenv("GIAANN_SOME_TEXT", "d e")
    assert run(["job", command]) == 0
    assert (given["keep"], given["some_text"], given["as_json"]) == (4, ("d", "e"), False)
    assert run(["job", command, "--keep", "5"]) == 0
    assert given["keep"] == 5


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[told]\nkepe = 1", "such as keep"),
        ("[backups]\nkeep = 1", "name it [backup]"),
        ("[train-nightly]\nkeep = 1", "name it [nightly]"),
        ("[xyz]\nkeep = 1", "tables common, nightly, weekly, backup, compare, research, told; name it as its job"),
        ("keep = 1", "tables common"),
        ("[told]\nkeep = [1, 2]", "has a list for keep; expected a text or a number"),
        ("[told]\nkeep = true", "has true for keep"),
        ("[told]\nkeep = 1.5", "Invalid value for 'keep': '1.5' is not a valid int"),
        ("[told]\nsome-text = [['a']]", "has a list for some-text"),
        ("[told]\nsome-text = {a = 1}", "has a table for some-text"),
        ("[told]\nsome-text = 1979-05-27", "has a time for some-text"),
        ("[told]\njson = 7", "Invalid value for 'json': '7' is not a valid bool"),
        ("[told]\nkeep = 'x'", "Invalid value for 'keep': 'x' is not a valid int"),
        ("keep = ", "is not TOML"),
    ],
)
def test_wrong_settings_are_one_line(
    told: tuple[str, dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str,
    said: str,
) -> None:
    file = tmp_path / "s.toml"
    file.write_text(content)
    assert run(["job", told[0], "--config", str(file)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_settings_of_the_documentation_are_settings() -> None:
    root = Path(__file__).resolve().parents[2]
    example = (
        (root / "docs" / "how-to" / "workflows.md")
        .read_text(encoding="utf-8")
        .partition("```toml\n")[2]
        .partition("```")[0]
    )
    tables = tomllib.loads(example)
    jobs = {name: each for name, each in job.commands.items() if isinstance(each, JobCommand)}
    assert set(tables) < {COMMON, *jobs}
    for table in set(tables) - {COMMON}:
        options = {flag.lstrip("-") for option in jobs[table].params for flag in option.opts}
        assert set(tables[table]) <= options
        assert {"network", "config", "dry-run", "verbose", "json", "history"} <= options


@pytest.mark.parametrize(
    ("job_name", "key", "value"),
    [
        *(("nightly", key, "-1") for key in ("settle-s", "max-seconds", "least-top1", "evaluate-sequences")),
        *(("nightly", key, "0") for key in ("batch-sequences", "keep-commits")),
        *(("weekly", key, "-1") for key in ("tolerance", "evaluate-sequences")),
        ("nightly", "threads", "many"),
        ("nightly", "device", "none"),
    ],
)
def test_an_error_names_a_setting_as_it_was_given(
    job_name: str,
    key: str,
    value: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = str(sample_text())
    options = ["--network", str(tmp_path / "net"), "--evaluate", text, "--workers", "0"]
    begun = ["job", job_name, *options, *(["--text", text] if job_name == "nightly" else [])]
    file = tmp_path / "s.toml"
    file.write_text(f"[{job_name}]\n{key} = {value if value[-1].isdigit() else repr(value)}\n")
    variable = "GIAANN_" + key.replace("-", "_").upper()

    def said(*arguments: str) -> str:
        assert run([*begun, *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line.removeprefix("giaann-dask: ").removeprefix("Invalid value for ").replace("'", "")

    assert re.match(rf"--{key}( is|:) ", on_command_line := said(f"--{key}={value}"))
    assert re.match(rf"{key}( is|:) ", in_file := said("--config", str(file)))
    monkeypatch.setenv(variable, value)
    assert re.match(rf"{variable}( is|:) ", in_environment := said())
    assert on_command_line.replace(f"--{key}", key) == in_file == in_environment.replace(variable, key)


def test_an_error_about_a_file_of_the_specification_names_its_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.toml"
    begun = ["train", str(sample_text()), "--network", str(tmp_path / "net"), "--workers", "0"]
    for value in ("0", "'few'"):
        file.write_text(f"seed-tokens = {value}\n")
        assert run([*begun, "--specification", str(file)]) == 2
        assert capsys.readouterr().err.startswith("giaann-dask: seed_tokens is ")
        assert run([*begun, "--specification", str(file), "--set", "seed_tokens=0"]) == 2
        assert "--set seed_tokens is 0" in capsys.readouterr().err or value == "'few'"


def test_exit_codes() -> None:
    errors = [CheckFailedError("x"), TryAgainError("x"), StoreWriteError("x"), OptionError("x"), KeyError("x")]
    assert [status_of(error) for error in errors] == [3, 75, 75, 2, 1]


def test_one_at_a_time_and_a_killed_holder(tmp_path: Path) -> None:
    network = tmp_path / "net"
    with only_one(network) as before:
        assert before is None
        with pytest.raises(TryAgainError, match="working on network"), only_one(network, wait_s=0.3):
            pass
    with only_one(network) as before:
        assert before is None, "the last one ended in order"
    # What a process that was killed leaves: its name, and no lock.
    lock_of(network).write_text(json.dumps({"pid": 7, "since": "then"}))
    with only_one(network) as before:
        assert before == 7
    assert lock_of(network).read_text() == ""


def test_history_has_a_line_for_each_end(tmp_path: Path) -> None:
    network, history = tmp_path / "net", tmp_path / "history.jsonl"
    with recorded("a", network, history) as entry:
        entry["found"] = 1
    with pytest.raises(CheckFailedError), recorded("b", network, history):
        raise CheckFailedError("fell")
    with history.open("a") as file:
        file.write('{"job": "cut sh')
    append_line(history, {"job": "c"})
    lines = read_json_lines(history)
    assert [(line["job"], line.get("exit")) for line in lines] == [("a", 0), ("b", 3), ("c", None)]
    assert lines[0]["found"] == 1
    assert lines[1]["error"] == "fell"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network of two commits."""
    path = tmp_path_factory.mktemp("copied") / "net"
    with gd.connect(workers=0) as client:
        for sequences in (20, 40):
            options = gd.TrainingOptions(max_sequences=sequences)
            gd.train(sample_text(), path, client=client, options=options)
    return path


def test_new_inputs_are_in_neither_network_nor_earlier_inputs(network: Path, tmp_path: Path) -> None:
    paragraphs = sample_text().read_text(encoding="utf-8").split("\n\n")
    files = {"a": paragraphs[:2], "b": paragraphs[:2], "c": paragraphs[2:4], "empty": []}
    for name, content in files.items():
        (tmp_path / f"{name}.txt").write_text("\n\n".join(content), encoding="utf-8")
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    names = [str(tmp_path / f"{name}.txt") for name in (*files, "bad")]
    news = {Path(each.name).stem: each for each in new_inputs(gd.Files(names), tmp_path / "none")}
    assert news["a"].new_characters == news["a"].characters > 0
    assert (news["b"].characters, news["b"].new_characters) == (news["a"].characters, 0)
    assert news["c"].new_characters > 0
    assert news["empty"].characters == 0
    assert "UTF-8" in news["bad"].problem
    begun = new_inputs(str(sample_text()), network)[0]
    assert begun.new_characters == begun.characters, "a part that was begun is not known"


@pytest.mark.slow
def test_copies_of_commits(network: Path, tmp_path: Path) -> None:
    source, place = StorePlace(str(network)), StorePlace(str(tmp_path / "copy"))
    newest, older = (commit for commit, _ in gd.Network(network).commits()[:2])
    for commit in (older, newest, older, newest):
        report = copy_commit(source, place, commit, keep=2)
        copied, original = gd.Network(tmp_path / "copy"), gd.Network(network, commit)
        assert copied.commit == report.copy
        assert copied.manifest == original.manifest
        one, other = (each.export(tmp_path / "x.npz") for each in (copied, original))
        assert one.connections.read_bytes() == other.connections.read_bytes()
    assert len(copied.commits()) <= 2
    again = copy_commit(source, place)
    assert (again.written, again.copy) == (0, report.copy), "what is there is not written again"
    with pytest.raises(StoreExistsError, match="not a copy"):
        copy_commit(place, source)
    for wrong in ("ftp://somewhere", "ftp://some/where", "s3://", "s3://bucket", "s3://bucket/", "s3:///prefix"):
        with pytest.raises(OptionError, match="s3://BUCKET"):
            StorePlace(wrong)
    with pytest.raises(StoreExistsError, match="not a network"):
        copy_commit(source, StorePlace(str(tmp_path)))


@pytest.mark.slow
def test_a_bucket_that_does_not_answer(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "nowhere")
    with pytest.raises(StoreUnreachableError) as caught:
        copy_commit(StorePlace(str(network)), StorePlace("s3://bucket/village"))
    assert status_of(caught.value) == 75


def test_a_full_disk_is_reported(network: Path, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signals = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
    try:
        with pytest.raises(StoreWriteError, match="could not be written"):
            copy_commit(StorePlace(str(network)), StorePlace(str(tmp_path / "copy")))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, signals)
    assert copy_commit(StorePlace(str(network)), StorePlace(str(tmp_path / "copy"))).connections > 0


class ReopenedPlace(StorePlace):
    """A place where something happens between the writing of a copy and its verification."""

    def __init__(self, folder: Path, happens: Callable[[], object]) -> None:
        super().__init__(str(folder))
        self._happens = happens

    def repository(self, *, make: bool = False) -> icechunk.Repository:
        if not make:
            self._happens()
        return super().repository(make=make)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_an_incomplete_or_wrong_copy_is_not_visible(network: Path, tmp_path: Path) -> None:
    source, folder = StorePlace(str(network)), tmp_path / "copy"
    older = gd.Network(network).commits()[1][0]
    with pytest.raises(KeyboardInterrupt):
        copy_commit(source, ReopenedPlace(folder, interrupt))
    with pytest.raises(StoreMissingError, match="no commit yet"):
        gd.Network(folder)
    first = copy_commit(source, StorePlace(str(folder)), older)
    before = set((folder / "chunks").iterdir())

    def damage() -> None:
        chunk = max(set((folder / "chunks").iterdir()) - before)
        content = chunk.read_bytes()
        chunk.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    with pytest.raises(StoreDamagedError, match="that of the network"):
        copy_commit(source, ReopenedPlace(folder, damage))
    assert gd.Network(folder).commit == first.copy, "the earlier copy stays"
