"""Notebooks are stored with the outputs of a whole run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted(Path(__file__).parents[1].joinpath("notebooks").glob("*.ipynb"))


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_those_of_one_run(path: Path) -> None:
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), "run make notebooks"
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    # The client, and at least one table or picture.
    shown = [output["data"] for output in outputs if "data" in output]
    assert any("dashboard" in "".join(data.get("text/html", "")).lower() for data in shown)
    assert sum("text/html" in data or "image/png" in data for data in shown) >= 2
    assert path.stat().st_size < 1_000_000
    # Pictures are stored as pictures, and no address is that of the machine that made them.
    assert not [data for data in shown if set(data) == {"text/plain"} and "<Figure" in "".join(data["text/plain"])]
    assert set(re.findall(r"\b\d+\.\d+\.\d+\.\d+\b", json.dumps(outputs))) <= {"127.0.0.1"}
