"""Jobs of a scheduler, run as it runs them; what they share is tested in `test_workflow_parts`."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cli import giaann_dask as command_line
from giaann_dask.cli import run as run_command
from giaann_dask.data import sample_test_text, sample_text
from giaann_dask.storage import read_json_lines
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.workflows.history import lock_of

UNSEEN = str(sample_test_text())
SCRIPTS = Path(__file__).resolve().parents[2] / "workflows"
COMMANDS = {
    "train_nightly": "nightly",
    "evaluate_weekly": "weekly",
    "backup": "backup",
    "compare_profiles": "compare",
    "research_rules": "research",
}


def here(name: str, *arguments: str | Path) -> int:
    """Run a job in this process, where one of its own would show nothing more."""
    return run_command(["job", COMMANDS[name], *map(str, arguments)])


def exported(network: Path, out: Path) -> bytes:
    return gd.Network(network).export(out).connections.read_bytes()


def settings(folder: Path, **tables: dict[str, Any]) -> Path:
    """A TOML file; JSON writes texts, numbers and lists as TOML does."""
    lines = []
    for table, values in tables.items():
        lines.append(f"[{table.replace('_', '-')}]")
        lines += [f"{name.replace('_', '-')} = {json.dumps(value)}" for name, value in values.items()]
    path = folder / "giaann.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_every_job_has_a_script_that_takes_the_same_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group = command_line.commands["job"]
    assert isinstance(group, click.Group)
    assert {path.stem for path in SCRIPTS.glob("*.py")} == {*COMMANDS}
    assert {*COMMANDS.values()} == {*group.commands}
    for name, command in COMMANDS.items():
        monkeypatch.setattr(sys, "argv", [name, "--help"])
        with pytest.raises(SystemExit, match="0"):
            runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
        assert capsys.readouterr().out.startswith(f"Usage: giaann-dask job {command} ")


def test_nights_weeks_and_backups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network, texts = tmp_path / "net", tmp_path / "texts"
    texts.mkdir()
    paragraphs = sample_text().read_text(encoding="utf-8").split("\n\n")
    paragraphs = paragraphs[: len(paragraphs) // 2]
    half = len(paragraphs) // 2
    (texts / "a.txt").write_text("\n\n".join(paragraphs[:half]), encoding="utf-8")
    file = settings(
        tmp_path,
        common={"network": str(network), "workers": 0, "evaluate": UNSEEN, "evaluate_sequences": 4},
        nightly={"text": str(texts), "settle-s": 0},
        backup={"to": str(tmp_path / "copy")},
    )
    common = ("--config", file, "--json")

    def run(name: str, *arguments: str | Path, code: int = 0) -> dict[str, Any]:
        assert here(name, *common, *arguments) == code
        shown = capsys.readouterr()
        assert shown.err.count("\n") == (code != 0), "one line where it failed, else nothing"
        return json.loads(shown.out) if code == 0 else {"error": shown.err}

    # A dry run leaves nothing behind, and a file that is being written is left alone.
    assert run("train_nightly", "--dry-run")["new_files"] == [str(texts / "a.txt")]
    assert {path.name for path in tmp_path.iterdir()} == {"texts", "giaann.toml"}
    assert "60 seconds" in run("train_nightly", "--settle-s", "60", code=75)["error"]
    first = run("train_nightly")
    assert first["training"]["sequences"] > 50
    assert first["evaluation"]["prediction_tokens"] > 0
    # Under another name and once more it is the same text; what follows it is new.
    (texts / "a.txt").rename(texts / "b.txt")
    (texts / "copy.txt").write_bytes((texts / "b.txt").read_bytes())
    assert run("train_nightly", "--dry-run")["new_files"] == []
    (texts / "c.txt").write_text("\n\n".join(paragraphs[half:]), encoding="utf-8")
    (texts / "bad.txt").write_bytes(b"\xff not UTF-8")
    assert "bad.txt" in run("train_nightly", code=2)["error"]
    second = run("train_nightly", "--skip-unreadable", "--keep-commits", "1")
    assert second["new_files"] == [str(texts / "c.txt")]
    assert second["unreadable_files"] == [str(texts / "bad.txt")]
    assert second["commits"] == 1
    (texts / "bad.txt").unlink()
    with gd.connect(workers=0) as client:
        gd.train([texts / "b.txt", texts / "c.txt"], tmp_path / "once", client=client)
    assert exported(network, tmp_path / "a.npz") == exported(tmp_path / "once", tmp_path / "b.npz")
    assert "top-1" in run("train_nightly", "--least-top1", "0.99", code=3)["error"]
    assert "held out" in run("train_nightly", "--evaluate", texts / "b.txt", code=2)["error"]

    # The first week has nothing to compare with, the second is compared with it.
    weekly = run("evaluate_weekly")
    assert Path(weekly["report"]).read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    history = tmp_path / "net.history.jsonl"
    better = {**weekly, "evaluation": {**weekly["evaluation"], "top1": weekly["evaluation"]["top1"] + 0.1}}
    with history.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(better) + "\n")
    assert "fell" in run("evaluate_weekly", code=3)["error"]
    assert run("evaluate_weekly", "--dry-run", "--tolerance", "0.2")["compared_with"] == weekly["commit"]
    assert run("evaluate_weekly", "--accept")["before"]["top1"] == better["evaluation"]["top1"]

    # The copy is a network like any other.
    copied = run("backup")["copied"]
    assert copied["connections"] == gd.Network(network).manifest.connections
    assert exported(tmp_path / "copy", tmp_path / "c.npz") == exported(network, tmp_path / "a.npz")
    assert run("backup", "--keep", "1")["copied"]["written"] == 0
    assert "no network" in run("backup", "--network", tmp_path / "none", code=2)["error"]
    assert [(line["job"], line["exit"]) for line in read_json_lines(history)] == [
        *(("nightly", code) for code in (75, 0, 2, 0, 3, 2)),
        *(("weekly", code) for code in (0, 0, 3, 0)),
        *(("backup", code) for code in (0, 0)),
    ]


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("sentences", [200, pytest.param(8000, marks=pytest.mark.slow)])
def test_a_killed_night_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str], sentences: int) -> None:
    network, text = tmp_path / "net", write_village(tmp_path / "village.txt", sentences)
    common = ("--text", text, "--network", network, "--workers", "0", "--settle-s", "0")
    arguments = (SCRIPTS / "train_nightly.py", *common, "--commit-seconds", "0.01")
    started = subprocess.Popen([sys.executable, *map(str, arguments)], stderr=subprocess.PIPE)

    def due() -> bool:
        """Whether the lock is held and, of the long text, something has been committed."""
        held = lock_of(network).exists() and lock_of(network).read_text(encoding="utf-8") != ""
        return held and (sentences < 1000 or ((network / "refs").exists() and len(NetworkStore(network).commits()) > 1))

    end = time.monotonic() + 120
    while not due():
        assert started.poll() is None, started.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.01)
    os.kill(started.pid, signal.SIGSTOP)
    assert here("train_nightly", *common) == 75
    assert f"'pid': {started.pid}" in capsys.readouterr().err
    os.kill(started.pid, signal.SIGKILL)
    started.communicate(timeout=30)
    assert here("train_nightly", *common, "--json") == 0
    entry = json.loads(capsys.readouterr().out)
    assert entry["took_over"] == started.pid
    with gd.connect(workers=0) as client:
        whole = gd.train(text, tmp_path / "undisturbed", client=client)
        report = whole.training_report
    assert exported(network, tmp_path / "a.npz") == whole.export(tmp_path / "b.npz").connections.read_bytes()
    if sentences > 1000:
        assert 0 < entry["training"]["sequences"] < report.sequences, "it went on in the middle"


@pytest.mark.slow
@pytest.mark.cluster
def test_a_process_without_a_cluster_says_try_again(tmp_path: Path) -> None:
    script = [sys.executable, str(SCRIPTS / "train_nightly.py"), "--settle-s", "0", "--network", str(tmp_path / "net")]
    environment = {**os.environ, "GIAANN_TEXT": str(sample_text()), "GIAANN_SCHEDULER_FILE": str(tmp_path / "s.json")}
    dead = json.dumps({"address": "tcp://127.0.0.1:1", "id": "s", "type": "Scheduler", "services": {}, "workers": {}})
    (tmp_path / "s.json").write_text(dead, encoding="utf-8")
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 75, done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("giaann-dask: no scheduler responds")
