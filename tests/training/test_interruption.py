"""An interruption of `train`, as of a notebook's cell, commits what was trained, and says what is committed."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed.client import AllExit
from support.village import SMALL_PARTS, write_village

import giaann_dask as gd
from giaann_dask.events import Event, RoundIntegrated

CELL = """
import giaann_dask as gd
client = gd.connect(workers=0)
def said(event):
    print(type(event).__name__, flush=True)
gd.train("text.txt", "net", client=client, observer=said, batch_sequences=20)
"""


@pytest.fixture
def text(tmp_path: Path) -> Iterator[Path]:
    with gd.connect(workers=0):
        yield write_village(tmp_path / "text.txt", 400)
    # As it was: kernels, too, leave it so while a cell runs.
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_first_interruption_commits_what_was_trained(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = []

    def interrupt(event: Event) -> None:
        if isinstance(event, RoundIntegrated):
            rounds.append(event)
            if len(rounds) == 1:
                signal.raise_signal(signal.SIGINT)

    network = text.with_name("net")
    with pytest.raises(KeyboardInterrupt) as raised:
        gd.train(text, network, observer=interrupt, batch_sequences=20, text=SMALL_PARTS)
    trained = gd.open(network)
    assert trained.manifest.sequences > 0
    said = f"training was interrupted: commit {trained.commit} has what was trained; train again to continue"
    assert str(raised.value) == said
    assert capsys.readouterr().err.splitlines() == [
        "giaann-dask: committing rounds in progress; interrupt again to stop at once"
    ]
    resumed = gd.train(text, network, text=SMALL_PARTS)
    assert resumed.digest() == gd.train(text, text.with_name("whole"), text=SMALL_PARTS).digest()


def test_the_second_interruption_stops_at_once_and_says_that_nothing_was_committed(text: Path) -> None:
    def interrupt(event: Event) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match=r"nothing was committed; train again to continue"):
        gd.train(text, text.with_name("net"), observer=interrupt)
    assert not text.with_name("net").exists()


def test_waits_that_an_interruption_has_ended_are_not_logged(text: Path) -> None:
    """Asyncio would log a traceback for each: `Task exception was never retrieved`."""
    gd.train(text, text.with_name("net"), max_sequences=5)
    failure = (AllExit, AllExit(), None)
    record = logging.LogRecord("asyncio", logging.ERROR, "", 1, "never retrieved", (), failure)
    assert not logging.getLogger("asyncio").filter(record)


def test_handlers_of_a_program_are_left_alone(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []

    def interrupt(event: Event) -> None:
        if isinstance(event, RoundIntegrated) and not heard:
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        trained = gd.train(text, text.with_name("net"), observer=interrupt, batch_sequences=20)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]
    assert trained.manifest.sequences == 400


@pytest.mark.slow
def test_an_interrupted_cell_of_a_notebook(tmp_path: Path) -> None:
    manager: Any = pytest.importorskip("jupyter_client", reason="needs Jupyter").KernelManager(kernel_name="python3")
    write_village(tmp_path / "text.txt", 4_000)
    manager.start_kernel(cwd=str(tmp_path))
    kernel = manager.client()
    kernel.start_channels()
    try:
        kernel.wait_for_ready(60)
        cell, shown, error, interrupted = kernel.execute(CELL), "", "", False
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            message = kernel.get_iopub_msg(timeout=100)
            if message["parent_header"].get("msg_id") != cell:
                continue
            content = message["content"]
            shown += content.get("text", "")
            error = content.get("evalue", error)
            if "RoundIntegrated" in shown and not interrupted:
                interrupted = True
                manager.interrupt_kernel()
            if content.get("execution_state") == "idle":
                break
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel(now=True)
    assert error.startswith(f"training was interrupted: commit {gd.open(tmp_path / 'net').commit} has")
    assert "committing rounds in progress" in shown
    assert "Traceback" not in shown
