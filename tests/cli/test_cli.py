"""The commands as a user runs them: real processes, real files, one JSON object, exit codes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.exported_tables import read_table
from support.golden_training import check_connections, check_dictionaries, synthetic_set

from giaann_dask.cli import run as run_here

pytestmark = pytest.mark.cluster


def run(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "giaann_dask", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def answer(*arguments: str | Path) -> dict[str, Any]:
    """Run a command in this process, where one of its own would show nothing more: its imports take seconds."""
    with redirect_stdout(io.StringIO()) as said:
        assert run_here([*map(str, arguments), "--json"]) == 0
    return read_answer(said.getvalue())


def read_answer(text: str) -> dict[str, Any]:
    assert text.count("\n") == 1, "one object on standard output"
    value = json.loads(text)
    assert isinstance(value, dict)
    return value


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, data_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    golden = synthetic_set(data_folder)
    done = run(
        "train", golden.text, "--network", folder / "net", "--tagger", "gold", "--ever-pos", golden.ever_pos,
        "--max-sequences", "200", "--workers", "2", "--json", "--flags", "history",
    )  # fmt: skip
    made = read_answer(done.stdout)
    assert {k: made[k] for k in ("sequences", "trained", "tokens", "connections")} == {
        "sequences": 200,
        "trained": 173,
        "tokens": 3294,
        "connections": 48590,
    }
    assert made["skipped"] == {"no_concept": 0, "no_delimiter": 27}
    assert 0 < made["seconds"] < made["command_seconds"]
    assert made["commit"]
    return folder


def test_export_equals_the_golden_files(trained: Path, data_folder: Path) -> None:
    golden = synthetic_set(data_folder)
    made = answer("export", trained / "net", "--out", trained / "net.npz")
    assert made["connections"] == 48590
    assert check_connections(trained / "net.npz", golden.folder / "connections.npz") == 48590
    check_dictionaries(Path(made["dictionaries"]), golden.folder / "dictionary.json.gz")


@pytest.mark.parametrize("suffix", [".parquet", ".zarr"])
def test_other_formats_hold_the_same_export(trained: Path, suffix: str) -> None:
    answer("export", trained / "net", "--out", trained / "reference.npz")
    files = answer("export", trained / "net", "--out", trained / f"other{suffix}", "--compression", "none")["files"]
    for ending in ("", ".neurons"):
        with np.load(trained / f"reference{ending}.npz") as reference:
            found = read_table(trained / f"other{ending}{suffix}")
            assert sorted(found) == sorted(reference)
            for name, values in reference.items():
                assert np.array_equal(found[name], values)
    assert {Path(file).name for file in files} == {f"other{suffix}", f"other.neurons{suffix}", "other.json"}
    assert (trained / "other.json").read_bytes() == (trained / "reference.json").read_bytes()


def test_evaluate(trained: Path, data_folder: Path) -> None:
    made = answer(
        "evaluate", trained / "net", synthetic_set(data_folder).test_text, "--tagger", "gold",
        "--timing", "biased", "--sequential", "--feed", "prediction", "--max-sequences", "40", "--workers", "0",
        "--protocol", "published",
    )  # fmt: skip
    assert made["protocol"] == "published"
    assert (made["prediction_tokens"], made["prediction_matches"]) == (177, 6)
    assert made["top1"] == pytest.approx(6 / 177)
    assert made["sequences"] == 40
    assert made["tokens"] == 662


def test_first_sequence_skips_without_changing_dictionaries(trained: Path, data_folder: Path) -> None:
    text = synthetic_set(data_folder).test_text
    common = ("evaluate", trained / "net", text, "--tagger", "gold", "--workers", "0")
    limit = ("--max-sequences", "10")
    parts = [answer(*common, "--first-sequence", str(first), *limit) for first in (0, 10, 20)]
    whole = answer(*common, "--max-sequences", "30")
    assert sum(part["sequences"] for part in parts) == whole["sequences"] == 30
    # No word of this text is new to the network, so passing over a part changes nothing here.
    assert sum(part["prediction_tokens"] for part in parts) == whole["prediction_tokens"]


def test_generate_and_explain(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = answer("generate", trained / "net", "the red river eats the stone in the", "--max-tokens", "4")
    assert 0 < len(made["tokens"]) <= 4
    assert made["text"]
    again = ["generate", str(trained / "net"), "the red river eats the stone in the", "--max-tokens", "4", "--explain"]
    assert run_here(again) == 0
    shown = capsys.readouterr().out
    assert "candidates" in shown
    assert "strength" in shown


def test_a_prompt_that_nothing_follows_says_what_can_be_done(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(["generate", str(trained / "net"), "the red rivver"]) == 0
    shown = capsys.readouterr().out
    assert "No trained sentence goes on after 'rivver'" in shown
    assert "--profile contexts" in shown
    assert "'rivver' is not known; similar words are: river" in shown


def test_inspect(trained: Path, data_folder: Path) -> None:
    made = answer("inspect", trained / "net")
    expected = {"concepts": 113, "features": 25, "connections": 48590, "sequences": 200, "tokens": 3294}
    assert {name: made[name] for name in expected} == expected
    assert made["bytes_on_disk"] > 0
    assert made["bytes_in_memory"] > 0
    with np.load(data_folder / "syn_seed8" / "neurons.npz") as arrays:
        assert made["neurons"] == np.unique(np.stack([arrays["col"], arrays["feat"]]), axis=1).shape[1]


def test_draw(trained: Path) -> None:
    made = answer("draw", trained / "net", "--out", trained / "net.svg", "--concepts", "river,dog")
    picture = Path(made["picture"]).read_text(encoding="utf-8")
    assert picture.startswith("<?xml")
    assert "river" in picture


def test_encode_then_train_gives_the_same_bytes(trained: Path, data_folder: Path) -> None:
    golden = synthetic_set(data_folder)
    made = answer(
        "encode", golden.text, "--out", trained / "corpus", "--tagger", "gold", "--ever-pos", golden.ever_pos,
        "--max-sequences", "200", "--workers", "2", "--flags", "history",
    )  # fmt: skip
    assert (made["sequences"], made["trained"], made["no_delimiter"]) == (200, 173, 27)
    answer("train", trained / "corpus", "--network", trained / "from_corpus", "--workers", "0")
    for network in ("net", "from_corpus"):
        answer("export", trained / network, "--out", trained / f"{network}_bytes.npz")
    files = [(trained / f"{network}_bytes.npz").read_bytes() for network in ("net", "from_corpus")]
    assert files[0] == files[1]
    again = answer(
        "train", golden.text, "--network", trained / "from_corpus", "--tagger", "gold",
        "--max-sequences", "200", "--workers", "0",
    )  # fmt: skip
    assert again["sequences"] == 0, "a corpus and the text it was made from are the same text"


@pytest.mark.slow
def test_regions_split_and_packed_from_the_command_line(trained: Path, data_folder: Path) -> None:
    golden, network = synthetic_set(data_folder), trained / "placed"
    common = ("--tagger", "gold", "--ever-pos", golden.ever_pos, "--workers", "1", "--flags", "history")
    sizes = ("--set", "regions=2", "--region-bytes", "60kB", "--hot-bytes", "0", "--commit-sequences", "40")
    sizes = (*sizes, "--set", "placement=balanced")
    rest = ("--keep-commits", "2", "--batch-sequences", "20", "--events", trained / "events.jsonl")
    limit = ("--max-sequences", "200")
    made = answer("train", golden.text, "--network", network, *common, *sizes, *rest, *limit)
    assert made["connections"] == 48590
    assert made["regions"] > 2
    events = [json.loads(line) for line in (trained / "events.jsonl").read_text().splitlines()]
    rounds = [each for each in events if each["event"] == "RoundIntegrated"]
    assert len(rounds) >= 5
    assert sum(each["messages"] for each in rounds) == made["messages"]
    shown = answer("inspect", network)
    assert shown["exact"] is True
    assert shown["regions"] == made["regions"]
    assert shown["specification"]["placement"] == "balanced"
    assert shown["commits"] <= 2
    for name in ("net", "placed"):
        answer("export", trained / name, "--out", trained / f"{name}_placed.npz")
    assert (trained / "net_placed.npz").read_bytes() == (trained / "placed_placed.npz").read_bytes()
    wrong = run("train", golden.text, "--network", network, "--set", "placement=hash", code=2)
    assert wrong.stderr.count("\n") == 1
    assert "placement balanced" in wrong.stderr
    wrong = run("train", golden.text, "--network", trained / "other", "--region-bytes", "many", code=2)
    assert "region-bytes" in wrong.stderr


def test_a_running_scheduler_is_used(trained: Path, data_folder: Path) -> None:
    from distributed import LocalCluster

    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        made = answer(
            "evaluate", trained / "net", synthetic_set(data_folder).test_text, "--tagger", "gold",
            "--max-sequences", "5", "--scheduler", cluster.scheduler_address,
        )  # fmt: skip
    assert made["sequences"] == 5


def test_compile_ahead() -> None:
    assert list(answer("compile", "contexts")["seconds"]) == ["contexts"]


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in ("encode", "train", "evaluate", "generate", "inspect", "export", "draw"):
        assert command in shown
        assert run_here([command, "--help"]) == 0
        assert "--json" in capsys.readouterr().out
