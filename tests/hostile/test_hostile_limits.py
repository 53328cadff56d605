"""Low limits of the system, and paths whose links lead in a circle: one line, exit code 2, and nothing is left."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from giaann_dask.cli import giaann_dask as commands
from giaann_dask.cli import run
from giaann_dask.errors import GiaannError, OptionError, ResourceLimitError, StoreRefusedError
from giaann_dask.object_urls import absolute_place
from giaann_dask.storage import reading, replacing, require_writable, writing


def one_line(said: str) -> bool:
    return said.count("\n") == 1 and said.startswith("giaann-dask: ") and "Traceback" not in said


@pytest.mark.parametrize(
    ("number", "limit", "said"),
    [
        (resource.RLIMIT_NOFILE, 16, "may open 16 files; expected 64 or more; set ulimit -n 1024"),
        (resource.RLIMIT_AS, 1 << 30, "1.0 GiB of address space; expected 2 GiB or more"),
    ],
)
def test_a_low_limit_is_said_before_libraries_abort(tmp_path: Path, number: int, limit: int, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "giaann_dask", "train", "text.txt", "--network", "net"],
        preexec_fn=lambda: resource.setrlimit(number, (limit, limit)),
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert one_line(done.stderr)
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_low_limit_that_may_be_raised_is_raised(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        run(["inspect", str(tmp_path / "none")])
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 1024
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


class Panic(BaseException):
    """As that of Icechunk, which is no exception."""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EMFILE, "Too many open files", "a"), "open no more files; expected a higher limit"),
        (Panic('Unable to build Tokio runtime: Os { code: 24, message: "Too many open files" }'), "open no more files"),
        (RuntimeError("can't start new thread"), "start no more threads"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "have no more memory"),
        (MemoryError(), "the memory is not enough"),
        (OSError(errno.ELOOP, "Too many levels of symbolic links", "a"), "a: Too many levels of symbolic links"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "a"), "a: File name too long"),
    ],
)
def test_a_limit_that_is_reached_is_said_in_one_line(
    error: BaseException, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(commands, "main", fail)
    assert run(["inspect", "net"]) == 2
    shown = capsys.readouterr().err
    assert one_line(shown)
    assert said in shown


def fail_at(error: Exception) -> None:
    raise error


def test_a_limit_is_no_damage() -> None:
    for translated in (reading("network"), writing("network")):
        with pytest.raises(ResourceLimitError, match="start no more threads"), translated:
            fail_at(RuntimeError("can't start new thread"))


@pytest.fixture
def circles(tmp_path: Path) -> list[Path]:
    """Make paths that lead in a circle: a link to itself, two to each other, and below and beyond such links."""
    for name, target in (("self", "self"), ("one", "two"), ("two", "one"), ("folder/up", "../folder/up")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(target)
    (tmp_path / "to").symlink_to("one")
    return [tmp_path / name for name in ("self", "one", "folder/up", "folder/up/up", "self/net", "to", "to/a/b")]


def test_paths_that_lead_in_a_circle(circles: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The old dog slept in the warm sun all day long.")
    before = sorted(tmp_path.rglob("*"))
    for path in circles:
        with pytest.raises(OptionError, match=r"leads nowhere \(Too many levels of symbolic links\)"):
            absolute_place(path)
        with pytest.raises(StoreRefusedError, match="Too many levels"):
            require_writable(path)
        with pytest.raises(StoreRefusedError, match="Too many levels"), writing("a"), replacing(path):
            pytest.fail("a link is replaced")
        for command in (
            ["encode", str(text), "--out", str(path), "--workers", "0"],
            ["train", str(text), "--network", str(path), "--workers", "0"],
            ["inspect", str(path)],
            ["job", "nightly", "--network", str(path), "--input", str(text), "--workers", "0"],
        ):
            assert run(command) == 2, command
            assert one_line(capsys.readouterr().err), command
    assert sorted(tmp_path.rglob("*")) == before


def test_a_name_that_is_too_long_leads_nowhere(tmp_path: Path) -> None:
    for path in (tmp_path / ("a" * 300), Path("/" + "a/" * 3000)):
        with pytest.raises(GiaannError, match="leads nowhere"):
            absolute_place(path)
    assert os.listdir(tmp_path) == []
