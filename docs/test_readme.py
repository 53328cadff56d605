"""What the README says is there and works."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import click
import pytest

from giaann_dask.cli import giaann_dask as command_line
from giaann_dask.data import sample_test_text, sample_text

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_python_block_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "books").mkdir()
    shutil.copy(sample_text(), tmp_path / "books" / "village.txt")
    shutil.copy(sample_test_text(), tmp_path / "other.txt")
    (source,) = blocks("python")
    exec(compile(source, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "top-1" in shown
    assert shown.splitlines()[-1].strip(), "the prompt goes on"


def test_make_has_every_target_that_is_named() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z][\w-]*)", README))
    assert {"demo", "test", "docs"} <= named
    assert named <= targets


def test_the_command_line_has_every_command_and_option_that_is_named() -> None:
    rows = re.findall(r"^\| `giaann-dask ([^`]+)`", README, re.MULTILINE)
    assert {row.split()[0] for row in rows} == {*command_line.commands} - {"compile"}
    for row in rows:
        given = shlex.split(row)
        command: click.Command = command_line.commands[given.pop(0)]
        if isinstance(command, click.Group):
            command = command.commands[given.pop(0)]
        known = {name for option in command.params for name in option.opts}
        assert {word for word in given if word.startswith("--")} <= known, row


def test_the_house_has_every_module_that_is_named() -> None:
    house = next(block for block in re.findall(r"^```\n(.*?)^```$", README, re.MULTILINE | re.DOTALL))
    folder, missing = ROOT / "giaann_dask", []
    for line in house.splitlines()[1:]:
        # Names, then perhaps two spaces or more and what they do.
        for part in re.split(r"\s{2,}|->", line.strip()):
            names = part.split()
            if not names or not all(re.fullmatch(r"[a-z_0-9]+/?", name) for name in names):
                continue
            for name in names:
                if name.endswith("/"):
                    places = [folder, *(f for f in folder.rglob("*") if f.is_dir())]
                    missing += [name] * (not any((place / name).is_dir() for place in places))
    assert missing == []
