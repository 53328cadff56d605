"""Compiling ahead on the hosts of workers."""

from __future__ import annotations

import asyncio
import io
import re
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, LocalCluster
from rich.console import Console

from giaann_dask import lazy
from giaann_dask.cli.machine import compile_ahead
from giaann_dask.cluster import ClusterOptions, compilation, connect
from giaann_dask.cluster.compilation import compile_beside, compile_here, compile_on_workers, dask_setup
from giaann_dask.diagnostics.progress import StageProgress, TerminalBars, terminal_bars
from giaann_dask.errors import ClusterError
from giaann_dask.local_files import code_cache

run = subprocess.run
ROOT = Path(__file__).resolve().parents[2]


def run_instead(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a script run in place of ``giaann-dask compile``, with its profiles as arguments."""

    def start(command: Sequence[str], **options: Any) -> Any:
        if "compile" not in command:
            # The first worker of a process asks for the kind of processor.
            return run(command, **options)
        return run([sys.executable, "-S", "-c", script, *command[command.index("compile") + 1 :]], **options)

    monkeypatch.setattr(compilation.subprocess, "run", start)


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File with a line for every time that something was compiled into a private cache."""
    ran = tmp_path / "ran"
    script = f"import sys; open({str(ran)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    run_instead(monkeypatch, script)

    def load() -> None:
        with ran.open("a") as file:
            file.write("loaded\n")

    monkeypatch.setattr(compilation, "load_compiled", load)
    return ran


def test_each_cache_is_filled_once(compiled: Path) -> None:
    local: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "processes": False}
    with LocalCluster(**local, dashboard_address=None, silence_logs=50) as cluster, Client(cluster) as client:
        caches = compile_on_workers(client, ["v1"])
        assert [place.partition(":")[2] for place in caches.values()] == [str(code_cache())]
        compile_on_workers(client, ["v1"])
    assert compiled.read_text() == "v1\n"
    # A worker that starts later compiles for the other profiles, too, and does not wait for one that is done.
    asyncio.run(dask_setup(None))  # type: ignore[arg-type]
    assert not compile_here()
    assert compiled.read_text() == "v1\n\nloaded\n"


def test_a_host_that_cannot_compile_is_named(
    compiled: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run_instead(monkeypatch, "raise SystemExit('no room')")
    with pytest.raises(ClusterError, match=r"compiling on host .* failed: no room"):
        compile_here(["contexts"])
    # A worker joins its cluster nevertheless.
    asyncio.run(dask_setup(None))  # type: ignore[arg-type]
    assert "nothing was compiled ahead" in caplog.messages[0]


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "notebook"])
def test_compiling_is_said_once_where_code_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("giaann_dask.lazy._COMPILED", {})
    monkeypatch.setattr("giaann_dask.lazy.COMPILE_TIMES", [])
    source = tmp_path / "kernels_of_a_test.py"
    names = ("first", "second")
    functions = (f"@compiled('int64(int64)')\ndef {name}(a):\n    return a + 1\n" for name in names)
    source.write_text("from giaann_dask.lazy import compiled\n" + "\n".join(functions), encoding="utf-8")

    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    def said() -> str:
        module, stream = runpy.run_path(str(source), run_name=source.stem), Stream()
        for name in ("stderr", "__stderr__"):
            monkeypatch.setattr(sys, name, stream)
        assert [module[name](1) for name in names] == [2, 2]
        assert capsys.readouterr().out == ""
        return stream.getvalue()

    line, _, line_left = said().partition("\n")
    assert "giaann-dask compile" in line
    shown = [
        f"compiling {'-' * 30} at most 2 functions left",
        f"compiling {'#' * 15}{'-' * 15} at most 1 function left",
    ]
    # How long that takes is known once a function is compiled.
    drawn = re.sub(r"(at most 1 function left), about \d+ s", r"\1", line_left).split("\r\033[K")
    assert (", about " in line_left) == terminal
    assert drawn == (["", shown[0], "", shown[1], ""] if terminal else [""])
    for mark in (tmp_path / "cache").glob(f"{lazy.MARK}*"):
        mark.unlink()
    assert said() == "", "the code is cached"


def test_the_time_of_compiling_is_one_sentence() -> None:
    """In the notice, the help of the command and on all pages."""
    spoken = [" ".join(compile_ahead.help.split()) if compile_ahead.help else "", lazy.NOTICE]
    pages = {page: page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]}
    spoken += [pages[ROOT / name] for name in ("README.md", "docs/index.md", "docs/install.md")]
    assert [lazy.COMPILING_TIME in " ".join(text.split()) for text in spoken] == [True] * 5
    other = re.compile(r"(half|about|less than) a minute|\b[\d.]+ (s|seconds|minutes?)\b")
    # Tables of measurements have figures.
    said = {
        f"{page.name}: {found[0]}"
        for page, text in pages.items()
        for line in text.splitlines()
        if "giaann-dask compile" in line and (found := other.search(line))
    }
    assert not said


def test_functions_with_compiled_code_are_counted() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "giaann_dask").rglob("*.py"))
    marks = re.findall(r"^@(?:lazy\.)?(compiled\(|jit$|jit\()", text, re.MULTILINE)
    assert lazy.count_compilable() == len(marks) > 50


def test_workers_say_it_once_in_their_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert [lazy.is_first_to_compile() for _ in range(2)] == [True, False]
    monkeypatch.setattr(lazy, "parent_process", lambda: object())
    assert [lazy.is_first_to_compile() for _ in range(2)] == [True, False]


def test_who_starts_workers_says_that_they_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook the workers' own lines are not seen."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    for _ in range(2):
        lazy.announce_compiling()
    assert stream.getvalue().count("giaann-dask compile") == 1
    monkeypatch.setattr(lazy, "parent_process", lambda: object())
    assert not lazy.is_first_to_compile(), "a worker does not say it again"
    for mark in tmp_path.iterdir():
        mark.unlink()
    (tmp_path / "kernel.nbi").touch()
    monkeypatch.undo()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    lazy.announce_compiling()
    assert stream.getvalue() == ""


@pytest.mark.parametrize(("processors", "cached"), [(2, 0), (1, 0), (2, 1)])
def test_two_processes_compile_from_both_ends(monkeypatch: pytest.MonkeyPatch, processors: int, cached: int) -> None:
    """Where nothing is compiled yet and there are two processors; what one has compiled is loaded by the other."""
    done: list[str] = []
    monkeypatch.setattr("dask.system.CPU_COUNT", processors)
    for name in ("announce_compiling", "load_modules"):
        monkeypatch.setattr(compilation, name, lambda: None)
    monkeypatch.setattr(compilation, "count_compiled", lambda: cached)

    def load(*, last_first: bool = False) -> None:
        done.append("last first" if last_first else "first first")

    monkeypatch.setattr(compilation, "load_compiled", load)

    class Process:
        def __init__(self, target: Callable[[], None], daemon: bool) -> None:
            self.start, self.join = target, lambda: done.append("joined")

    monkeypatch.setattr(compilation, "get_context", lambda method: SimpleNamespace(Process=Process))
    compile_beside(lambda: done.append("steps"))
    beside = ["last first", "steps", "first first", "joined"]
    assert done == (beside if processors > 1 and not cached else [])


_THREADS_LOAD = """
import sys, threading
from giaann_dask.models.columns import connections
from giaann_dask.lazy import _COMPILED
from giaann_dask.runs import merging, summing
from giaann_dask.text import english_tokenizer, splitting

sys.setswitchinterval(1e-6)
begin, failed = threading.Barrier(6), []

def load(function):
    begin.wait()
    try:
        function()
    except Exception as error:
        failed.append(repr(error))

threads = [threading.Thread(target=load, args=(function,)) for function in [*_COMPILED][:6]]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(threads) == 6
sys.exit("; ".join(failed) or 0)
"""


def test_threads_load_compiled_functions_simultaneously() -> None:
    ended = subprocess.run([sys.executable, "-c", _THREADS_LOAD], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.cluster
def test_a_scheduler_imports_tasks_before_it_receives_any(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    options = ("--port", "0", "--no-dashboard", "--scheduler-file", str(file))
    with subprocess.Popen([sys.executable, "-m", "distributed.cli.dask_scheduler", *options]) as process:
        try:
            until(file.exists)
            client = connect(options=ClusterOptions(scheduler_file=str(file)))
            with client:
                # The scheduler cannot import this module, so that the function is sent as a whole.
                until(lambda: client.run_on_scheduler(lambda: "giaann_dask.training.tasks" in sys.modules))
        finally:
            process.terminate()


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, a minute at most."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("cold", [True, False], ids=["compile", "start"])
def test_a_terminal_shows_a_bar_before_the_first_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: bool
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    if not cold:
        (tmp_path / "kernel.nbi").touch()
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with terminal_bars(console) as bars:
        shown = TerminalBars(bars, count_period_s=0.0)
        if cold:
            (tmp_path / "kernel.nbi").touch()

        def drawn() -> str:
            with console.capture() as captured:
                console.print(bars.get_renderable())
            return captured.get()

        left = f"at most {lazy.count_compilable() - 1} functions left, about "
        assert ("compile" in drawn(), left in drawn(), "start" in drawn()) == (cold, cold, not cold)
        shown.show(StageProgress("encode", "sequences", 3))
        assert ("compile" in drawn(), "start" in drawn(), "encode" in drawn()) == (cold, False, True)
