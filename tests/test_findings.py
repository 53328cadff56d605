"""Check the form of the scripts in `findings/` (CONTRIBUTING.md), which CI does not run."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "findings"
SCRIPTS = sorted(FOLDER.glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_finding_says_what_is_expected_and_seen_of_pinned_versions(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    head, body = text.split("set -euo pipefail\n", 1)
    assert head.startswith("#!/usr/bin/env bash\n# ")
    assert re.findall(r"^# (\w+):", head, re.M)[-3:] == ["Versions", "Expected", "Seen"]
    assert body.startswith("folder=$(mktemp -d)\ntrap 'rm -rf \"$folder\"' EXIT\npython3 -m venv")
    (packages,) = re.findall(r"pip\" install --quiet (.*)", body)
    assert all("==" in each for each in packages.split())
    assert 'print("expected' in body or 'print(f"expected' in body
    assert 'print("seen:' in body or 'print(f"seen:' in body
    assert "assert " in body
    assert os.access(script, os.X_OK)
    assert "giaann" not in text


def test_the_table_has_every_finding() -> None:
    rows = re.findall(r"^\| `(\w+)\.sh` \|", (FOLDER / "README.md").read_text(encoding="utf-8"), re.M)
    assert sorted(rows) == [path.stem for path in SCRIPTS]
