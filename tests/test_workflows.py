"""The scheduled scripts, run as a scheduler runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from giaann_dask.data import sample_test_text, sample_text

pytestmark = pytest.mark.cluster
SCRIPT = Path(__file__).resolve().parent.parent / "workflows" / "train_and_evaluate.py"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments), "--workers", "1"]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def test_train_and_evaluate_is_resumable(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    common = ("--train", sample_text(), "--evaluate", sample_test_text(), "--network", tmp_path / "net")
    first = run(*common, "--max-sequences", "200", "--report", report)
    assert first.returncode == 0, first.stderr
    assert "top-1" in first.stdout
    assert json.loads(report.read_text())["training"]["sequences"] == 200
    second = run(*common, "--report", report, "--least-top1", "0.99")
    assert second.returncode == 3, "a check that fails has its own exit code"
    figures = json.loads(report.read_text())
    assert figures["training"]["sequences"] > 0
    assert figures["evaluation"]["prediction_tokens"] > 0
    third = run(*common, "--report", report)
    assert third.returncode == 0
    assert json.loads(report.read_text())["training"]["sequences"] == 0


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    done = run("--train", tmp_path / "none.txt", "--evaluate", sample_test_text(), "--network", tmp_path / "net")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert "none.txt" in done.stderr
