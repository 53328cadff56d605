"""What the README, CONTRIBUTING and the reference of commands and modules say is there and works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from support.fences import fenced

from giaann_dask.cli import giaann_dask as command_line
from giaann_dask.cli import run
from giaann_dask.cli.click_ext import Command

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
INDEX = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
COMMANDS = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
MODULES = (ROOT / "docs" / "reference" / "modules.md").read_text(encoding="utf-8")


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= 1000


def test_make_has_every_target_that_is_named() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {page: set(re.findall(r"(?:^|`)make ([a-z][\w-]*)", page, re.MULTILINE)) for page in (README, CONTRIBUTING)}
    assert {"demo", "test", "docs"} <= named[README] <= targets
    # Whoever works on the package finds every benchmark.
    assert {target for target in targets if target.startswith("bench")} <= named[CONTRIBUTING] <= targets


def test_the_command_line_has_every_command_and_option_that_is_named() -> None:
    rows = re.findall(r"^\| `giaann-dask ([^`]+)`", COMMANDS, re.MULTILINE)
    assert {row.split()[0] for row in rows} == {*command_line.commands} - {"compile"}
    for row in rows:
        given = shlex.split(row)
        command: click.Command = command_line.commands[given.pop(0)]
        if isinstance(command, click.Group) and given[0] in command.commands:
            command = command.commands[given.pop(0)]
        known = {name for option in command.params for name in option.opts}
        assert {word for word in given if word.startswith("--")} <= known, row


def test_the_first_commands_run_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block = next(block for language, block in fenced(README) if language == "sh")
    assert block in INDEX
    install, compiles, assigned, *lines = (line.partition("   #")[0].strip() for line in block.strip().splitlines())
    assert install.startswith("pip install --constraint constraints.txt")
    # It is what `tests/cluster/test_compilation.py` runs.
    assert compiles == "giaann-dask compile v1"
    name, python = re.fullmatch(r"(\w+)=\$\(python -c '(.+)'\)", assigned).groups()  # type: ignore[union-attr]
    exec(python)
    value = capsys.readouterr().out.strip()
    monkeypatch.chdir(tmp_path)
    said: dict[str, list[str]] = {}
    for command in (command for line in lines for command in line.split(" && ")):
        program, *arguments = shlex.split(command.replace(f"${name}", value))
        if program == "echo":
            text, _, file = arguments
            Path(file).write_text(f"{text}\n", encoding="utf-8")
            continue
        assert program == "giaann-dask"
        # Processes of workers would take seconds longer and change nothing.
        workers = () if arguments[0] == "digest" else ("--workers", "0")
        assert run([*arguments, *workers]) == 0, capsys.readouterr().err
        said.setdefault(arguments[0], []).append(capsys.readouterr().out)
    assert said["generate"][0].startswith("on the ship.")
    assert "note.txt, character 0, sentence 1" in said["trace"][0]
    assert "sample.txt" in said["trace"][0]
    before, after = said["digest"]
    assert before == after != ""


def modules_of(layout: str) -> list[str]:
    """Return the modules that a layout names, as paths below its first line.

    A name that ends with a slash is a folder; what follows it, or stands on a line below that is indented more, is in
    it. What follows a ``#`` says what modules do.
    """
    modules: list[str] = []
    folders: list[tuple[int, str]] = []
    for line in layout.splitlines()[1:]:
        for found in re.finditer(r"\S+", line.partition("#")[0]):
            column, name = found.start(), found[0]
            while folders and folders[-1][0] >= column:
                folders.pop()
            path = "".join(folder for _, folder in folders) + name
            if name.endswith("/"):
                folders.append((column, name))
            else:
                modules.append(path)
    return modules


def layout_of(text: str) -> str:
    return next(block for language, block in fenced(text) if not language and block.startswith("giaann_dask/\n"))


def wrong_in(text: str) -> tuple[list[str], list[str]]:
    """Return the modules that a page names and that do not exist or are named twice, and those that it lacks."""
    package = ROOT / "giaann_dask"
    there = {str(path.relative_to(package).with_suffix("")) for path in package.rglob("*.py") if path.stem[:2] != "__"}
    named = modules_of(layout_of(text))
    return sorted(set(named) - there) + [name for name in named if named.count(name) > 1], sorted(there - set(named))


def test_the_layout_has_every_module_and_no_other() -> None:
    assert wrong_in(MODULES) == ([], [])


def test_a_module_that_is_missing_from_the_layout_or_does_not_exist_is_found() -> None:
    assert wrong_in(MODULES.replace(" ordered_connections", "")) == ([], ["store/ordered_connections"])
    assert wrong_in(MODULES.replace(" detokenizer", " retokenizer")) == (["text/retokenizer"], ["text/detokenizer"])
    assert wrong_in(MODULES.replace(" service source", " service")) == ([], ["rows/source"])
    assert fenced("```sh\na\n```\n```\nb\n```\n") == [("sh", "a"), ("", "b")]


def test_the_commands_that_take_a_cluster_are_those_that_the_pages_name() -> None:
    """The reference says: every command takes --json, and which of them take --scheduler and --workers."""
    taking = set()
    for path, command in leaves():
        options = {name for option in command.params for name in option.opts}
        assert {"--json", "-v", "--log-json"} <= options, path
        if {"--scheduler", "--scheduler-file", "--workers"} <= options:
            taking.add(path)
    jobs = {path for path in taking if path.startswith("job ")}
    assert jobs == {"job nightly", "job weekly", "job compare", "job research"}
    text = " ".join(COMMANDS.split())
    (said,) = re.findall(r"a log\. ((?:`[\w ]+`, )+`\w+`) and the jobs that train or evaluate take", text)
    assert set(re.findall(r"`([^`]+)`", said)) == taking - jobs


def leaves() -> list[tuple[str, click.Command]]:
    """Return every command that does work of its own, by what is typed for it."""
    found = []
    for name, command in command_line.commands.items():
        if isinstance(command, click.Group):
            found += [(f"{name} {each}", inner) for each, inner in command.commands.items()]
        if isinstance(command, Command) or not isinstance(command, click.Group):
            found.append((name, command))
    return found
