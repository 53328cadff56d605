"""Test inputs that can be read only once (standard input, named pipes) and broken links in folders."""

from __future__ import annotations

import fcntl
import gzip
import json
import logging
import os
import re
import signal
import stat
import subprocess
import sys
import termios
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread, Timer

import pytest

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.data import sample_test_text
from giaann_dask.encoding.sources import estimate_characters
from giaann_dask.errors import EmptyInputError, InputMissingError, OptionError
from giaann_dask.text.input_files import ReadingStopped
from giaann_dask.text.inputs import require_rereadable, resolve_inputs
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import read_parts

TEXT = sample_test_text().read_bytes()


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe.txt")
    return tmp_path / "pipe.txt"


@contextmanager
def writing_to(path: Path, content: bytes) -> Iterator[None]:
    """Write to a named pipe as soon as something reads it."""
    writer = Thread(target=path.write_bytes, args=(content,), daemon=True)
    writer.start()
    yield
    writer.join(30)
    assert not writer.is_alive()


@pytest.fixture
def standard_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[bytes], None]]:
    """Return a function that replaces the standard input of this process."""
    opened = []

    def give(content: bytes) -> None:
        path = tmp_path / "given"
        path.write_bytes(content)
        opened.append(path.open("r"))
        monkeypatch.setattr(sys, "stdin", opened[-1])

    yield give
    for file in opened:
        file.close()


def passages(*inputs: str | Path, options: ReadOptions | None = None) -> list[str]:
    return [passage for part in read_parts(inputs, options) for passage in part.passages]


# Named pipes


@pytest.mark.parametrize("name", ["pipe.txt", "pipe.txt.gz"])
def test_a_pipe_is_read_to_its_end(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    content = "A mill.\n\nA baker.\n\n" * 20_000
    coded = gzip.compress(content.encode()) if name.endswith(".gz") else content.encode()
    with writing_to(tmp_path / name, coded):
        assert passages(tmp_path / name) == [line for line in content.split("\n") if line]


def test_waiting_for_a_pipe_ends_when_the_event_is_set(pipe: Path) -> None:
    stop = Event()
    Timer(0.2, stop.set).start()
    before = set(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else set()
    with pytest.raises(ReadingStopped):
        passages(pipe, options=ReadOptions(stop=stop))
    after = set(os.listdir("/proc/self/fd")) if before else set()
    assert len(after) <= len(before), "the pipe is closed"


def stop_when_read(pipe: int, stop: Event) -> None:
    """Set an event when a pipe has been read, so that its reader waits for more."""
    left = array("i", [1])
    while left[0]:
        time.sleep(0.05)
        fcntl.ioctl(pipe, termios.FIONREAD, left)
    stop.set()


def test_a_stopped_training_has_complete_parts_only_and_resumes(pipe: Path, tmp_path: Path) -> None:
    # The first part is complete when the second begins; the incomplete second one must not be counted.
    small = gd.TextOptions(reading=ReadOptions(part_characters=500))
    blocks = gd.TrainingOptions(block_characters=500)
    stop, writer = Event(), os.open(pipe, os.O_RDWR)
    os.write(writer, TEXT[: len(TEXT) * 2 // 3])
    Thread(target=stop_when_read, args=(writer, stop), daemon=True).start()
    with gd.connect(workers=0) as client:
        network = gd.train(pipe, tmp_path / "net", client=client, regions=2, text=small, options=blocks, stop=stop)
        report = network.training_report
        os.close(writer)
        assert report.stopped
        assert 0 < report.sequences < 40
        network = gd.train(sample_test_text(), tmp_path / "net", client=client, text=small, options=blocks)
        rest = network.training_report
    assert rest.sequences + report.sequences == network.manifest.sequences == 40


def test_an_estimate_consumes_nothing_of_a_pipe(pipe: Path) -> None:
    descriptor = os.open(pipe, os.O_RDWR)
    os.write(descriptor, b"A mill.")
    assert estimate_characters([str(pipe)]) is None
    assert os.read(descriptor, 100) == b"A mill."
    os.close(descriptor)


def test_commands_that_read_twice_reject_a_pipe(pipe: Path, tmp_path: Path) -> None:
    for given in (str(pipe), "-"):
        with pytest.raises(OptionError, match=r"reads the text more than once.*save the text to a file"):
            require_rereadable([str(tmp_path), given], "a lexicon of the text itself")
    require_rereadable([tmp_path, sample_test_text(), "missing", "hf:name"], "a lexicon of the text itself")
    options = gd.TrainingOptions(train_on="misses")
    with gd.connect(workers=0) as client, pytest.raises(OptionError, match="training on misses"):
        gd.train(pipe, tmp_path / "net", client=client, options=options)


def test_a_pipe_in_a_folder_is_skipped_with_a_warning(pipe: Path, caplog: pytest.LogCaptureFixture) -> None:
    # Commands that ran earlier in this process have disabled the handlers.
    caplog.set_level(logging.WARNING)
    (pipe.parent / "a.txt").write_text("Text.")
    for given in (pipe.parent, pipe.parent / "*.txt"):
        assert resolve_inputs([given]) == [pipe.parent / "a.txt"]
    assert [record.getMessage() for record in caplog.records] == [
        f"left out {pipe}: it is a pipe or a device; name it itself to read it"
    ]


def begin(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "giaann_dask", *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def target_of(link: Path) -> str:
    """Return what a link of ``/proc`` names; nothing where the process has closed it meanwhile."""
    try:
        return os.path.realpath(link)
    except FileNotFoundError:
        return ""


def await_reader(process: subprocess.Popen[str], pipe: Path) -> None:
    """Wait until a process has the pipe open, or waits for its open to return."""
    folder, deadline = Path(f"/proc/{process.pid}"), time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        links = [target_of(link) for link in (folder / "fd").iterdir()]
        if str(pipe) in links or "wait_for_partner" in (folder / "wchan").read_text():
            return
        time.sleep(0.05)
    pytest.fail("the pipe is not read")


@pytest.mark.skipif(not Path("/proc/self/wchan").exists(), reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_reading_a_pipe_without_writer_can_be_stopped(pipe: Path, tmp_path: Path, number: signal.Signals) -> None:
    process = begin("train", pipe, "--network", tmp_path / "net", "--workers", "0", "--json")
    await_reader(process, pipe)
    process.send_signal(number)
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        pytest.fail("one signal does not end it")
    assert process.returncode == 75, err
    assert json.loads(out)["stopped"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="no /dev/fd, so no process substitution")
def test_process_substitution(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.write(writing, TEXT)
    os.close(writing)
    assert run(["train", f"/dev/fd/{reading}", "--network", str(tmp_path / "net"), "--workers", "0", "--json"]) == 0
    os.close(reading)
    assert json.loads(capsys.readouterr().out)["sequences"] == 40


# Standard input


def test_standard_input_is_trained_once_and_equals_a_file_of_the_same_text(
    standard_input: Callable[[bytes], None], tmp_path: Path
) -> None:
    with gd.connect(workers=0) as client:
        counts = []
        for given in ("-", "-", sample_test_text()):
            standard_input(TEXT)
            network = gd.train(given, tmp_path / "net", client=client, regions=2)
            report = network.training_report
            counts.append(report.sequences)
        standard_input(TEXT)
        measured = network.evaluate("-", client=client)
        assert measured.top1 == network.evaluate(sample_test_text(), client=client).top1
        standard_input(TEXT)
        corpus = gd.encode("-", tmp_path / "corpus", client=client)
    assert counts == [40, 0, 0]
    assert len(corpus) == 40


def test_standard_input_of_a_command_with_workers(tmp_path: Path) -> None:
    process = begin("train", "-", "--network", tmp_path / "net", "--workers", "1", "--json")
    out, err = process.communicate(TEXT.decode(), timeout=120)
    assert process.returncode == 0, err
    assert json.loads(out)["sequences"] == 40


def test_standard_input_of_the_tokenizer(
    standard_input: Callable[[bytes], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tokenizers")
    standard_input(TEXT)
    assert run(["tokenizer", "train", "-", "--max-subwords", "300", "--out", str(tmp_path / "t.json")]) == 0
    assert "subwords" in capsys.readouterr().out


def test_the_content_of_standard_input_decides_how_it_is_read(standard_input: Callable[[bytes], None]) -> None:
    standard_input(b'{"text": "A mill."}\n')
    assert passages("-") == ["A mill."]
    standard_input(b'{"text": "A mill."}\n')
    assert [part.passages for part in read_parts(["-"], ReadOptions(read_as="text"))] == [('{"text": "A mill."}',)]
    standard_input(b"id;text\n1;A mill.\n")
    assert [part.passages for part in read_parts(["-"], ReadOptions(read_as="csv"))] == [("A mill.",)]


def test_a_file_named_like_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-").write_text("A mill.")
    assert passages("./-") == ["A mill."]


@pytest.mark.parametrize("content", [b"", b" \n\n"])
def test_empty_standard_input(
    standard_input: Callable[[bytes], None], tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    standard_input(content)
    with pytest.raises(EmptyInputError):
        passages("-")
    standard_input(content)
    assert run(["train", "-", "--network", str(tmp_path / "net"), "--workers", "0"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "net").exists()


def test_closed_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputMissingError, match="standard input"):
        passages("-")
    with pytest.raises(InputMissingError, match="twice"):
        passages("-", "-")


# Broken links


def test_a_broken_link_is_named_as_such(tmp_path: Path) -> None:
    link = tmp_path / "b.txt"
    link.symlink_to("gone.txt")
    with pytest.raises(InputMissingError, match=r"b\.txt' is a link to 'gone\.txt', which does not exist"):
        resolve_inputs([link])


def test_a_loop_of_links_is_named_as_such(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / "texts").mkdir()
    for link, target in (("a", "b"), ("b", "a"), ("to", "a"), ("texts/c.txt", "d.txt"), ("texts/d.txt", "c.txt")):
        (tmp_path / link).symlink_to(target)
    (tmp_path / "texts" / "e.txt").write_text("Text.")
    (tmp_path / "list").write_text(f"{tmp_path}/texts\n{tmp_path}/to\n")
    for given, said in (
        ("a", "a' is a link to 'b', in a loop of links"),
        ("a/t.txt", "a/t.txt' leads through a loop of links"),
        ("to/t.txt", "to/t.txt' leads through a loop of links"),
    ):
        for prefix, kind in (("", "input"), ("@", "list")):
            with pytest.raises(InputMissingError, match=f"the {kind} '{tmp_path}/{re.escape(said)}"):
                resolve_inputs([f"{prefix}{tmp_path}/{given}"])
    with pytest.raises(InputMissingError, match="to' is a link to 'a', in a loop of links"):
        resolve_inputs([f"@{tmp_path}/list"])
    assert resolve_inputs([f"{tmp_path}/**/*.txt"]) == [tmp_path / "texts" / "e.txt"]
    assert [record.getMessage() for record in caplog.records if "d.txt:" in record.getMessage()] == [
        f"left out {tmp_path}/texts/d.txt: it is a link to 'c.txt', in a loop of links"
    ]


def test_a_broken_link_in_a_folder_is_skipped_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / "a.txt").write_text("Text.")
    (tmp_path / "b.txt").symlink_to("gone.txt")
    (tmp_path / "c.txt").symlink_to("a.txt")
    for given in (tmp_path, str(tmp_path / "?.txt"), tmp_path):
        assert [path.name for path in resolve_inputs([given]) if isinstance(path, Path)] == ["a.txt"]
    assert [record.getMessage() for record in caplog.records] == [
        f"left out {tmp_path / 'b.txt'}: it is a link to 'gone.txt', which does not exist"
    ]
