"""Standard streams may be closed, unread or not writable, and what a text holds is shown, not obeyed, by a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.closed_streams import CLOSED, run_all
from support.training_commands import command

import giaann_dask as gd
from giaann_dask.cli.stopping import SIGNALS, interrupt_on_signals, stop_on_signals
from giaann_dask.data import sample_test_text

# Commands that print and that fail; all options of where they work are relative to a folder.
QUICK = (
    ["generate", "net", "The old miller", "--max-tokens", "2", "-v"],
    ["train", "-", "--network", "new", "--workers", "0"],
    ["nonsense"],
)
OTHERS = (
    *(["--help"], ["--version"], ["log", "net"], ["digest", "net"], ["doctor"], ["tag", "net"], ["branch", "net"]),
    ["evaluate", "net", str(sample_test_text()), "--workers", "0", "--events", "events.jsonl", "--log-json"],
    ["trace", "net", "The old miller"],
    ["export", "net", "--out", "net.npz"],
    ["draw", "net", "--out", "net.svg"],
    ["report", "net", "--out", "net.html"],
    ["diff", "net", "net"],
    ["prune", "net", "--keep", "0.5", "--out", "pruned"],
    ["compact", "net"],
    ["job", "weekly", "--network", "net", "--evaluate", str(sample_test_text()), "--workers", "0"],
    ["job", "backup", "--network", "net", "--to", "copies"],
    ["cluster", "stop", "--scheduler-file", "none.json"],
    ["tokenizer", "train", "-", "--out", "tokens.json"],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("streams")
    with gd.connect(workers=0) as client:
        gd.train(sample_test_text(), where / "net", client=client)
    return where


def _check(commands: Sequence[list[str]], choices: Sequence[tuple[int, ...]], where: Path) -> None:
    cases = [(each, closed) for each in commands for closed in ((), *choices)]
    found = run_all(cases, where)
    for i, (arguments, closed) in enumerate(cases):
        code, out, err = found[i]
        expected = found[i - i % (len(choices) + 1)]
        assert code == expected[0], (arguments, closed, out, err)
        assert "Traceback" not in err
        assert bool(out) == (bool(expected[1]) and 1 not in closed), (arguments, closed)
        assert bool(err) == (bool(expected[2]) and 2 not in closed), (arguments, closed)


def test_a_command_does_the_same_whichever_streams_are_closed(folder: Path) -> None:
    _check([["inspect", "net", "--json"]], CLOSED, folder)


def test_commands_do_the_same_when_all_streams_are_closed(folder: Path) -> None:
    _check(QUICK, CLOSED[-1:], folder)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_command_does_the_same_whichever_streams_are_closed(folder: Path) -> None:
    _check((*QUICK, *OTHERS), CLOSED, folder)


@pytest.mark.cluster
def test_workers_train_when_all_streams_are_closed(tmp_path: Path) -> None:
    script = 'exec "$@" 0<&- 1>&- 2>&-'
    arguments = command("train", sample_test_text(), "--network", tmp_path / "net", "--workers", "1")
    assert subprocess.run(["sh", "-c", script, "sh", *arguments], check=False, timeout=200).returncode == 0
    assert gd.open(tmp_path / "net").manifest.connections > 0


@pytest.mark.parametrize(
    "redirected",
    ["2>/dev/full", "2</dev/null", ">/dev/full", "1</dev/null"],
)
def test_streams_that_cannot_be_written_are_no_defect(redirected: str) -> None:
    arguments = [sys.executable, "-m", "giaann_dask", "nonsense" if "2" in redirected else "--version"]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirected}', "sh", *arguments], check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr == "" or done.stderr.startswith("giaann-dask: standard output: ")
    assert len(done.stderr.splitlines()) <= 1


def test_a_reader_that_has_ended_is_no_failure() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "giaann_dask", "--help"], stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_sets_the_event_and_a_sighup_after_it_does_nothing(
    number: signal.Signals, handlers: None, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_on_signals()
    with stop_on_signals("stopping") as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        assert stop.is_set()
        os.kill(os.getpid(), signal.SIGHUP)
    assert len(capsys.readouterr().err.splitlines()) == 1
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGHUP)


def test_a_signal_that_is_ignored_stays_ignored(handlers: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupt_on_signals()
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not stop.is_set()
    os.kill(os.getpid(), signal.SIGHUP)
