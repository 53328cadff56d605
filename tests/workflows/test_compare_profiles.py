"""The table of profiles."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from giaann_dask.cli import run

DATA = Path(__file__).resolve().parents[1] / "data" / "synthetic"
COMPARE = ["job", "compare"]


def test_table_csv_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, unseen = str(DATA / "train.conllu.gz"), str(DATA / "test.conllu.gz")
    common = ["--train", train, "--evaluate", unseen, "--profiles", "contexts", "--output", str(tmp_path)]
    common += ["--workers", "0"]
    assert run([*COMPARE, *common, "--sizes", "30,100000"]) == 0
    assert capsys.readouterr().out == (tmp_path / "profiles.md").read_text(encoding="utf-8")
    with (tmp_path / "profiles.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["profile"], row["sentences"] == "30") for row in rows] == [
        (profile, size) for size in (True, False) for profile in ("contexts", "kneser-ney", "backoff")
    ]
    assert len({row["tokens"] for row in rows}) == 1, "all are scored on the same tokens"
    top1 = {(row["profile"], row["sentences"] == "30"): float(row["top1"]) for row in rows}
    assert top1["contexts", False] > top1["backoff", True]
    assert float(rows[3]["perplexity"]) < float(rows[0]["perplexity"]), "more text, less surprise"
    assert (tmp_path / "profiles.png").stat().st_size > 1000
    assert run([*COMPARE, *common[:1], str(tmp_path / "none.txt"), *common[2:]]) == 2


@pytest.mark.slow
@pytest.mark.cluster
def test_v1_has_a_row(tmp_path: Path) -> None:
    train, unseen = str(DATA / "train.conllu.gz"), str(DATA / "test.conllu.gz")
    common = ["--train", train, "--evaluate", unseen, "--profiles", "v1", "--output", str(tmp_path)]
    assert run([*COMPARE, *common, "--sizes", "60"]) == 0
    assert "| v1 | 60 |" in (tmp_path / "profiles.md").read_text(encoding="utf-8")
