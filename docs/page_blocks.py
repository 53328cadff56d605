"""Running the code blocks of a documentation page, each by its language.

Covers: what a block is (a fence, with a mark before it where it is not run), and how Python, shell, console, YAML,
TOML and JSON blocks are run or parsed. Does not cover: finding pages and giving each a folder (`conftest`).

A page is run from top to bottom in a folder of its own; its Python blocks share their names. A block that cannot run
in a test has a comment before it, with the reason: ``<!-- not run: needs a Slurm cluster -->``. It is parsed still.
So is one with ``<!-- slow: starts four processes -->``, but where all are wanted.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import yaml
from sybil import Document, Example, Region
from sybil.evaluators.doctest import DocTestEvaluator
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.abstract.doctest import DocTestStringParser
from sybil.parsers.markdown.lexers import FencedCodeBlockLexer

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "page_folder"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
TIMEOUT_S = 240
# Prose, diagrams of characters, and files in languages that nothing here reads; no language where a mark says why.
SHOWN = ("text", "")
MARK = re.compile(r"<!-- (?P<kind>not run|slow): (?P<reason>[^\n]{10,}?) -->\s*\Z")
_SHELL_SIGNS = re.compile(r"[|&;<>$`()*]")
_python = PythonEvaluator()


class BlockParser:
    """A Sybil parser that makes a test of every fence of a page.

    Parameters
    ----------
    processes : bool
        Run slow blocks, too, and give every command to a shell; else those that are one call of ``giaann-dask`` run in
        this process, which saves seconds of imports each.
    """

    def __init__(self, processes: bool = False) -> None:
        self._processes = processes
        self._lexer = FencedCodeBlockLexer(r"[a-z]*", mapping={"language": "arguments", "source": "source"})
        self._doctests = DocTestStringParser(DocTestEvaluator(FLAGS))

    def __call__(self, document: Document) -> Iterable[Region]:
        """Yield the regions of a page, each with what evaluates it."""
        for region in self._lexer(document):
            language, source = region.lexemes["arguments"], region.lexemes["source"]
            region.parsed = source
            mark = MARK.search(document.text[: region.start])
            if mark is not None and (mark["kind"] == "not run" or not self._processes):
                region.evaluator = parse_block
            elif language == "python" and source.startswith(">>>"):
                for part in self._doctests(source, document.path):
                    part.adjust(region, source)
                    part.evaluator = in_folder(part.evaluator)
                    yield part
                continue
            else:
                region.evaluator = self._evaluate
            yield region

    def _evaluate(self, example: Example) -> str | None:
        language, source = example.region.lexemes["arguments"], str(example.parsed)
        if language == "python":
            return in_folder(_python)(example)
        if language in ("sh", "console"):
            return Shell(Path(example.namespace[FOLDER]), self._processes).run(language, source)
        return parse_block(example) if language else "a block without a language is not tested: name one, or text"


def in_folder(evaluator: Callable[[Example], str | None]) -> Callable[[Example], str | None]:
    """Return an evaluator that works in the folder of the page."""

    def evaluate(example: Example) -> str | None:
        with contextlib.chdir(example.namespace[FOLDER]):
            return evaluator(example)

    return evaluate


def parse_block(example: Example) -> str | None:
    """Return what is wrong with a block that is not run, None where it can be read."""
    language, source = example.region.lexemes["arguments"], str(example.parsed)
    if language == "python":
        ast.parse(source)
    elif language in ("sh", "console"):
        text = source if language == "sh" else "\n".join(command for command, _ in console_commands(source))
        done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, timeout=TIMEOUT_S)
        return done.stderr or None
    elif language == "yaml":
        list(yaml.safe_load_all(source))
    elif language == "toml":
        tomllib.loads(source)
    elif language == "json":
        json.loads(source)
    elif language == "dockerfile":
        starts = [line.split(" ")[0] for line in source.replace("\\\n", " ").splitlines() if line.strip()]
        wrong = [word for word in starts if word not in ("FROM", "COPY", "RUN")]
        return f"no instructions of a Dockerfile: {wrong}" if wrong else None
    elif language not in SHOWN:
        return f"a block of language {language!r} is not tested: name one that is, or text"
    return None


def console_commands(source: str) -> list[tuple[str, str]]:
    r"""Return the commands of a console block, each with the output that is shown of it.

    Examples
    --------
    >>> console_commands("$ echo a\na\n$ true\n")
    [('echo a', 'a\n'), ('true', '')]
    """
    found: list[tuple[str, str]] = []
    lines = source.splitlines()
    while lines:
        line = lines.pop(0)
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\") and lines:
                command += "\n" + lines.pop(0)
            found.append((command, ""))
        else:
            command, shown = found.pop()
            found.append((command, shown + line + "\n"))
    return found


def steady(output: str) -> str:
    """Return output without what differs from run to run: seconds, and the identities of commits."""
    seconds = r"^(seconds +)[\d.]+( without the start of workers, )[\d.]+( in all)$"
    return re.sub(r"\b[0-9A-Z]{20}\b", "COMMIT", re.sub(seconds, r"\1S\2S\3", output, flags=re.MULTILINE))


class Shell:
    """Runs the commands of a page in its folder.

    Parameters
    ----------
    folder : Path
        Where they run.
    processes : bool
        Whether each command gets a process of its own, always.
    """

    def __init__(self, folder: Path, processes: bool = False) -> None:
        self._folder = folder
        self._processes = processes

    def run(self, language: str, source: str) -> str | None:
        """Return what went otherwise than the block says, None where nothing did."""
        if language == "sh":
            lines = [line for line in source.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
            commands = lines if all(self._plain(line) for line in lines) else [source]
            for command in commands:
                status, output = self._call(command)
                if status:
                    return f"exit code {status} of:\n{command}\n{output}"
            return None
        return self._compare(console_commands(source))

    def _compare(self, commands: list[tuple[str, str]]) -> str | None:
        last = 0
        for place, (command, shown) in enumerate(commands):
            if command == "echo $?":
                status, output = 0, f"{last}\n"
            else:
                status, output = self._call(command)
            asked = place + 1 < len(commands) and commands[place + 1][0] == "echo $?"
            if status and not asked:
                return f"exit code {status} of:\n{command}\n{output}"
            if shown and not doctest.OutputChecker().check_output(steady(shown), steady(output), FLAGS):
                return f"shown of {command}:\n{shown}\ngot:\n{output}"
            last = status
        return None

    def _plain(self, command: str) -> bool:
        return command.startswith("giaann-dask ") and not _SHELL_SIGNS.search(command) and not self._processes

    def _call(self, command: str) -> tuple[int, str]:
        joined = command.replace("\\\n", " ")
        if self._plain(joined):
            return self._call_here(shlex.split(joined, comments=True)[1:])
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self._folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
        )
        return done.returncode, done.stdout

    def _call_here(self, arguments: list[str]) -> tuple[int, str]:
        from giaann_dask.cli import run

        output = io.StringIO()
        with contextlib.chdir(self._folder), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            status = run(arguments)
        return status, output.getvalue()
