"""Errors of the system or a user's mistake: one line and exit code 2 before work begins, never an internal error."""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import socket
from pathlib import Path

import pytest
from rich.console import Console

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.cli.output import figures
from giaann_dask.cluster import ClusterOptions
from giaann_dask.diagnostics.progress import terminal_bars
from giaann_dask.errors import (
    ClusterError,
    InputFormatError,
    OptionError,
    StoreRefusedError,
    StoreWriteError,
)
from giaann_dask.storage import require_writable, writing
from giaann_dask.store.network_store import NetworkStore


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(errno.EACCES, "Permission denied"),
        NotADirectoryError(errno.ENOTDIR, "Not a directory"),
        FileExistsError(errno.EEXIST, "File exists"),
        RuntimeError("x object store error: Permission denied (os error 13)"),
    ],
)
def test_missing_write_permission_is_not_a_full_disk(error: Exception) -> None:
    with pytest.raises(StoreRefusedError, match="may be written"), writing("the network"):
        raise error


def test_a_full_disk_is_not_missing_permission() -> None:
    with pytest.raises(StoreWriteError, match="room"), writing("the network"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_that_cannot_be_written_is_reported_before_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    require_writable(tmp_path / "new" / "report.html")
    for refused in (tmp_path / "file" / "report.html", tmp_path):
        with pytest.raises(StoreRefusedError):
            require_writable(refused)


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "none", "--out", "file/report.html"),
        ("cluster", "--scheduler-file", "file/scheduler.json"),
        ("cluster", "--port", "99999"),
        ("train", "file", "--network", "net", "--dashboard", "nonsense"),
        ("train", "file", "--network", "net", "--scheduler-file", "file"),
        ("inspect", "s3://bucket/net"),
    ],
)
def test_one_line_and_exit_code_2(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("The old miller carried the flour to the baker before the storm.")
    assert run(arguments) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "TRACEBACK" not in said
    assert os.listdir() == ["file"]


def test_standard_output_that_is_full(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("giaann_dask.cli.giaann_dask.main", fail)
    assert run(["inspect"]) == 2
    assert "standard output: No space left" in capsys.readouterr().err


def test_a_place_in_an_object_store_needs_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OptionError, match="AWS_REGION"):
        NetworkStore("s3://bucket/net")
    with pytest.raises(OptionError, match="AWS_REGION"):
        gd.encode("The cat sat on the mat.", "s3://bucket/corpus")


def test_a_file_that_is_not_a_scheduler_file(tmp_path: Path) -> None:
    for content in ("", "text", "[]", "{}"):
        (tmp_path / "scheduler.json").write_text(content)
        with pytest.raises(InputFormatError, match="names no address"):
            gd.connect(options=ClusterOptions(scheduler_file=str(tmp_path / "scheduler.json")))


def test_an_invalid_dashboard_address() -> None:
    with pytest.raises(OptionError, match="dashboard"):
        ClusterOptions(dashboard="nonsense")
    with pytest.raises(ClusterError, match=r"no cluster could be started.*or dashboard"):
        gd.connect(options=ClusterOptions(workers=0, dashboard="nowhere.invalid:8787"))


def test_lists_are_shown_as_a_person_writes_them() -> None:
    assert figures({"new_files": ["a.txt", "b.txt"], "others": []}, "new_files", "others") == [
        "new files  a.txt, b.txt",
        "others     none",
    ]


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120])
def test_the_stage_and_its_rate_fit_on_any_terminal(width: int) -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=width)
    with terminal_bars(console) as bars:
        bars.add_task("train", total=405, completed=200, unit="", note="committed", rate="200 of ~405")
    assert re.search(r"train .*200 of ~405", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue()))


def test_a_dashboard_whose_port_is_taken_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    # A cluster in this process silences the handlers of the root logger, that of `caplog` too.
    logger = logging.getLogger("giaann_dask.cluster.connecting")
    monkeypatch.setattr(logger, "filters", [lambda record: said.append(record.getMessage())])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with gd.connect(options=ClusterOptions(workers=0, dashboard=f"127.0.0.1:{port}")) as client:
            found = client.cluster.scheduler_info["services"]["dashboard"]
    assert said == [f"port {port} is taken; the dashboard is at port {found} instead"]
