"""Rules that are compared on one slice of text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.processes import running_cluster

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.data import sample_test_text, sample_text
from giaann_dask.storage import read_json_lines
from giaann_dask.workflows import research

TEXT, UNSEEN = str(sample_text()), str(sample_test_text())
RULES = f"""
rules = [{{ name = "plain" }}, {{ name = "deep", train = {{ seed_tokens = 12 }} }}]
[train]
inputs = ["{TEXT}"]
max_sequences = 30
[evaluate]
inputs = ["{UNSEEN}"]
max_sequences = 8
[grid.evaluate]
timing = ["none", "biased"]
"""
FIGURES = (
    "top1",
    "protocol",
    "prediction_tokens",
    "network_bytes",
    "training_seconds",
    "peak_memory_bytes",
    "peak_device_bytes",
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(RULES, encoding="utf-8")
    return path


def job(config: Path, *arguments: str) -> int:
    return run(["job", "research", str(config), "--workers", "0", *arguments])


def rows(config: Path) -> list[dict[str, Any]]:
    return list(read_json_lines(config.with_suffix("") / "research.jsonl"))


def test_each_rule_is_tried_once(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert job(config) == 0
    lines, found = capsys.readouterr().out.splitlines(), rows(config)
    names = [f'{rule} timing="{timing}"' for rule in ("plain", "deep") for timing in ("none", "biased")]
    assert [row["rule"] for row in found] == names
    assert len(lines) == 6 * len(found)
    assert lines[::6] == [f"rule     {name}" for name in names]
    assert lines[1] == f"top-1    {found[0]['top1']:.4f} of {found[0]['prediction_tokens']} tokens, left-to-right"
    table = (config.with_suffix("") / "research.md").read_text(encoding="utf-8").splitlines()
    assert [row.split(" | ")[0] for row in table[2:]] == [f"| {name}" for name in names]
    assert job(config, "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == found, "nothing is tried again"
    with gd.connect(workers=0) as client:
        whole = gd.train(sample_text(), config.with_name("net"), client=client, max_sequences=30, seed_tokens=12)
        report = whole.evaluate(sample_test_text(), client=client, max_sequences=8, timing="biased")
        kept = gd.open(config.with_suffix("") / "network")
        assert kept.digest() == whole.digest(), "the last rule's network, without what earlier ones trained"
    assert (found[-1]["top1"], found[-1]["prediction_tokens"]) == (report.top1, report.prediction_tokens)
    assert found[-1]["network_bytes"] > 0
    assert 0 < found[-1]["training_seconds"] < found[-1]["seconds"]
    assert found[-1]["peak_memory_bytes"] > 1 << 20


def test_a_stopped_research_goes_on(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def stopping(rule: research.Rule, *arguments: Any) -> dict[str, Any]:
        tried.append(rule.name)
        if len(tried) == 2:
            (config.with_suffix("") / "network").mkdir()
            raise KeyboardInterrupt
        return dict.fromkeys(FIGURES, 1)

    monkeypatch.setattr(research, "try_rule", stopping)
    assert job(config) == 130
    assert [row["exit"] for row in rows(config)] == [0, 130]
    config.write_text(
        RULES.replace("rules = [", 'rules = [{ name = "first", train = { seed_tokens = 10 } }, '), encoding="utf-8"
    )
    assert job(config, "--dry-run") == 0
    assert job(config) == 0
    assert [name.split()[0] for name in tried[2:]] == ["first", "first", "plain", "deep", "deep"]


def test_rules_that_fail_are_tried_again(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = RULES.replace('{ name = "deep", train = { seed_tokens = 12 } }', '{ train = { profile = "v2" } }')
    config.write_text(text, encoding="utf-8")
    assert job(config) == 3
    failed = 'profile="v2" timing="none"'
    out, err = capsys.readouterr()
    assert err.startswith("giaann-dask: the rules ")
    assert [row["rule"] for row in rows(config) if row["exit"]] == ['profile="v2" timing="biased"']
    assert f"rule     {failed}" in out, "what means the defaults fits any profile"
    assert job(config) == 3
    assert [row["exit"] for row in rows(config)] == [0, 0, 0, 2, 2]
    assert "timing" in (config.with_suffix("") / "research.md").read_text(encoding="utf-8").splitlines()[-1]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("[evaluate]", "[evaluat]", "has 'evaluat'"),
        ("[grid.evaluate]", "[grid.generate]", "the grid has 'generate'"),
        ('timing = ["none", "biased"]', 'timing = "none"', "a list of values"),
        ('timing = ["none", "biased"]', 'timings = ["none"]', "no parameter 'timings'"),
        ('timing = ["none", "biased"]', "max_sequences = [1, 2]", "'max_sequences' of evaluate varies"),
        ("seed_tokens = 12", "seed_tokens = 1000", "seed_tokens"),
        ("seed_tokens = 12", 'network = "net"', "has 'network'"),
        ('name = "deep", train = { seed_tokens = 12 }', 'name = "plain"', "twice"),
        (f'inputs = ["{UNSEEN}"]', f'inputs = ["{TEXT}"]', "held-out text"),
        (f'inputs = ["{UNSEEN}"]', "", "no inputs to evaluate"),
    ],
)
def test_bad_input(config: Path, before: str, after: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(RULES.replace(before, after), encoding="utf-8")
    assert job(config) == 2
    err = capsys.readouterr().err
    assert expected in err
    assert err.count("\n") == 1
    assert not config.with_suffix("").exists()


def test_a_folder_of_others_is_not_removed(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (config.with_suffix("") / "network").mkdir(parents=True)
    assert job(config) == 2
    assert "was not written by this job" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.cluster
def test_two_workers_of_a_separate_cluster_have_the_same_figures(config: Path) -> None:
    rules = 'rules = [{ name = "plain" }, { name = "itself", train = { profile = "v2", self_transitions = true } }]'
    plain = RULES.splitlines()
    config.write_text("\n".join([rules, *(line for line in plain[2:] if "grid" not in line and "timing" not in line)]))
    one, two = config.with_name("one"), config.with_name("two")
    with running_cluster(config.parent) as (_, address):
        for output, where in ((one, ("--workers", "0")), (two, ("--scheduler", address))):
            assert run(["job", "research", str(config), "--output", str(output), *where]) == 0
    names = ("rule", "key", "top1", "prediction_tokens")
    both = [[[row[name] for name in names] for row in read_json_lines(each / "research.jsonl")] for each in (one, two)]
    assert both[0] == both[1]
    assert [row[0] for row in both[0]] == ["plain", "itself"]
    last, again = (gd.open(each / "network") for each in (one, two))
    assert last.digest() == again.digest()
    assert last.specification.self_transitions
