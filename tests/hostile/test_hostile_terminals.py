"""Standard streams may be closed, unread or not writable, and what a text holds is shown, not obeyed, by a terminal."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console
from support.closed_streams import CLOSED, run_all
from support.training_commands import command

import giaann_dask as gd
from giaann_dask.cli import INTERRUPTED, run
from giaann_dask.cli.machine import findings_table
from giaann_dask.cli.output import LOGGER, escape_warnings, quiet, set_logging, show
from giaann_dask.cli.process import SIGNALS, interrupt_on_signals, stop_on_signals
from giaann_dask.data import sample_test_text
from giaann_dask.diagnostics.checkup import Finding
from giaann_dask.errors import GiaannError
from giaann_dask.representations import xml_text
from giaann_dask.serving.models import Models

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
    ["prune", "net", "--keep", "0.5", "--out", "net"],
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
        signal.raise_signal(number)
        assert stop.is_set()
        signal.raise_signal(signal.SIGHUP)
    assert len(capsys.readouterr().err.splitlines()) == 1
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGHUP)


def test_a_signal_that_is_ignored_stays_ignored(handlers: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupt_on_signals()
    with stop_on_signals() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert not stop.is_set()
    signal.raise_signal(signal.SIGHUP)


def test_the_tests_hear_signals_that_were_ignored_when_they_began() -> None:
    """As under ``nohup``, or in the background of a shell; a process that a test starts hears them, too."""
    said = "import signal; print([signal.getsignal(each) == signal.SIG_IGN for each in (1, 2, 15)])"
    script = "import subprocess, sys; from support.signals import handle_ignored_signals; handle_ignored_signals(); "
    script += f"{said}; sys.stdout.flush(); subprocess.run([sys.executable, '-c', {said!r}])"
    ignoring = ["sh", "-c", 'trap "" HUP INT TERM; exec "$@"', "sh", sys.executable]
    where = {"env": os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}, "capture_output": True, "text": True}
    before = subprocess.run([*ignoring, "-c", said], check=True, **where)
    assert before.stdout == "[True, True, True]\n"
    found = subprocess.run([*ignoring, "-c", script], check=True, **where)
    assert found.stdout.splitlines() == ["[False, False, False]"] * 2


def test_a_signal_ends_a_server_that_opens_its_first_network(
    folder: Path, monkeypatch: pytest.MonkeyPatch, handlers: None
) -> None:
    def signalled(models: Models) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("the signal did not interrupt")

    monkeypatch.setattr(Models, "open_default", signalled)
    interrupt_on_signals()
    assert run(["serve", str(folder / "net"), "--port", "0", "--workers", "0"]) == INTERRUPTED


# A word that clears the screen, sets a title, colours, reverses and hides, in characters of one and of two bytes.
OBEYED = "\x1b[2J\x1b]0;a\x07\x9b31m\x7f\u202e\u2066\u200b\ue000\x08"
NAMES = (f"mil{OBEYED}ler", f"flo{OBEYED}ur", "mill\x1b")
PROMPT = f"The old {NAMES[0]} carried the"


@pytest.fixture(scope="module", params=["v1", "contexts"])
def obeyed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network whose words have control characters, and whose folder and text have some in their names."""
    where = tmp_path_factory.mktemp("obeyed")
    text = where / f"a{OBEYED}text.txt"
    lines = [f"The old {NAMES[0]} carried the {NAMES[1]} to the {NAMES[2]} and the baker on the hill .\n"] * 4
    text.write_text("".join(lines), encoding="utf-8")
    with gd.connect(workers=0) as client:
        specification = gd.Specification(profile=request.param, trace=True)
        gd.train(text, where / f"n{OBEYED}et", client=client, specification=specification)
    return where / f"n{OBEYED}et"


def shown_by(arguments: Sequence[str | Path], capsys: pytest.CaptureFixture[str], code: int | None = 0) -> str:
    """Run a command; return what it printed, in which a terminal obeys nothing."""
    capsys.readouterr()
    found = run([str(each) for each in arguments])
    out, err = capsys.readouterr()
    assert code is None or found == code, err
    assert [line for line in (out + err).split("\n") if not line.isprintable()] == []
    return out + err


def test_words_of_a_text_are_shown_and_not_obeyed(obeyed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = next(obeyed.parent.glob("a*"))
    for arguments in (
        ("generate", obeyed, PROMPT, "--explain"),
        ("trace", obeyed, PROMPT),
        ("inspect", obeyed, "--parts"),
        ("log", obeyed),
        ("diff", obeyed, obeyed),
        ("evaluate", obeyed, text, "--workers", "0"),
    ):
        assert "\\x1b" in shown_by(arguments, capsys) or arguments[0] in ("log", "diff", "evaluate")
    for arguments in (
        ("generate", obeyed, OBEYED),
        ("generate", obeyed, PROMPT, "--ref", OBEYED),
        ("tag", obeyed, OBEYED),
        ("train", f"{OBEYED}.txt", "--network", obeyed),
        ("train", text, "--network", obeyed, "--set", f"{OBEYED}=1"),
        ("forget", obeyed, "--document", f"{OBEYED}.txt"),
        (OBEYED,),
        ("log", f"--{OBEYED}"),
        ("job", "weekly", "--network", OBEYED, "--evaluate", OBEYED),
        ("draw", obeyed, "--out", obeyed.parent / f"{OBEYED}.svg", "--concepts", OBEYED),
    ):
        shown_by(arguments, capsys, None)


def test_pages_and_pictures_stay_well_formed(obeyed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = not gd.open(obeyed).specification.traits.columns
    pictures = [] if best else [("draw", obeyed, "--out", obeyed.parent / "net.svg")]
    pictures += [("diff", obeyed, obeyed, "--picture", obeyed.parent / "diff.svg")]
    for arguments in pictures:
        shown_by(arguments, capsys)
        ElementTree.parse(arguments[-1])
    page = obeyed.parent / "net.html"
    shown_by(("report", obeyed, "--out", page), capsys)
    content = page.read_text(encoding="utf-8")
    assert xml_text(content) == content
    assert "mil\\x1b" in content


def test_json_has_the_very_words(obeyed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(shown_by(("generate", obeyed, PROMPT, "--json"), capsys))
    assert found["text"] == gd.open(obeyed).generate(PROMPT).text
    assert OBEYED.lower() in "".join(found["prompt"]).lower()
    parts = json.loads(shown_by(("inspect", obeyed, "--parts", "--json"), capsys))["parts"]
    assert OBEYED in json.loads(parts[0]["place"])["name"]


def test_a_result_in_python_is_shown_and_not_obeyed(obeyed: Path) -> None:
    network = gd.open(obeyed)
    shown = network.generate(PROMPT, explain=True)
    for each in (repr(network), repr(shown), repr(network.trace(PROMPT))):
        assert all(line.isprintable() for line in each.split("\n"))
        assert "\\x1b" in each
    assert xml_text(shown._repr_html_()) == shown._repr_html_()
    with pytest.raises(GiaannError) as caught:
        gd.open(f"{OBEYED}\udcff")
    assert str(caught.value).isprintable()


def test_logs_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger(LOGGER)
    try:
        for as_json in (False, True):
            set_logging(1, as_json, Console(stderr=True))
            logger.warning("a file %s\nis left out", OBEYED, extra={"path": OBEYED})
            (line,) = capsys.readouterr().err.splitlines()
            assert line.isprintable()
            assert not as_json or json.loads(line)["path"] == OBEYED
        set_logging(1, False, Console(file=sys.stderr, force_terminal=True, no_color=True))
        logger.warning("%s", OBEYED)
        assert "\\x1b" in capsys.readouterr().err
    finally:
        quiet()
    escape_warnings()
    handler = logging.lastResort
    assert handler is not None
    handler.handle(logging.makeLogRecord({"msg": OBEYED, "levelno": logging.WARNING}))
    assert capsys.readouterr().err.rstrip("\n").isprintable()


def test_findings_of_the_doctor_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    found = Finding("check [/x]", "bad", f"[/] {OBEYED}", f"[bold]{OBEYED}")
    show(findings_table([found]))
    assert [line for line in capsys.readouterr().out.split("\n") if not line.isprintable()] == []
