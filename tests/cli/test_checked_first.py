"""Options are checked before a cluster is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.cluster import connecting
from giaann_dask.data import sample_text

INFERENCE = (
    ("--settings train", "profile v1"),
    ("--settings train --timing exact", "leave one kind out"),
    ("--auxiliary nonsense", "nonsense"),
    ("--strict-reference --enforce-delimiter", "enforce-delimiter with"),
)
TEXT = (
    ("--tagger nonsense", "tagger is 'nonsense'"),
    ("--tagger spacy:", "tagger is 'spacy:'"),
    ("--text-field=", "text-field is empty"),
    ("--split=", "split is empty"),
)
ROWS = (
    ("--rows-cache-bytes much", "rows-cache-bytes is 'much'"),
    ("--rows-cache-bytes -5", "-5"),
    ("--rows-mode other", "--rows-mode"),
)
WHERE = (
    ("--threads 0", "threads is 0"),
    ("--memory-limit much", "memory-limit is 'much'"),
    ("--memory-limit 1kB", "memory-limit is '1kB'"),
    ("--dashboard somewhere", "dashboard is 'somewhere'"),
    ("--workers -1", "workers is -1"),
    ("--scheduler tcp://127.0.0.1:9", "leave the others out"),
)
DEVICE = (("--device cuda", "no GPU"),)
LEXICON = (
    ("--ever-pos none.json", "no file none.json"),
    ("--tokenizer none.json --profile v2", "none.json"),
    ("--tokenizer learn:many --profile v2", "learn:SIZE with a number"),
    ("--tokenizer learn:3 --profile v2", "size is 3"),
)
PROFILE = (
    ("--set seed_tokens=0", "--set seed_tokens is 0"),
    ("--set branches=many", "--set branches is 'many'; expected a whole number"),
    ("--set branches=0", "--set branches is 0"),
    ("--set branches", "expected FIELD=VALUE"),
    ("--set branchs=4", "did you mean 'branches'"),
    ("--set lif=maybe", "expected true or false"),
    ("--set contexts=nonsense", "nonsense"),
    ("--set segment_counts=4", "two numbers such as 4,4"),
    ("--specification none.toml", "none.toml cannot be read"),
)
NO_SEQUENCES = ("--max-sequences 0", "max-sequences is 0")
REFUSED: dict[str, tuple[tuple[str, str], ...]] = {
    "encode TEXT --out OUT": (
        *(NO_SEQUENCES, *TEXT, *WHERE, *LEXICON, *PROFILE),
        ("--profile contexts", "corpus of profile contexts"),
        ("--out TEXT", "exists already"),
        ("--events none/events", "none/events"),
    ),
    "train TEXT --network OUT": (
        *(NO_SEQUENCES, *TEXT, *WHERE, *DEVICE, *LEXICON, *PROFILE),
        ("--profile contexts --ever-pos corpus", "ever-pos with profile contexts"),
        ("--set regions=0", "regions"),
        ("--batch-sequences 0", "batch-sequences is 0"),
        ("--accumulate 0", "accumulate is 0"),
        ("--commit-seconds 0", "commit-seconds is 0"),
        ("--commit-sequences 0", "commit-sequences is 0"),
        ("--keep-commits 0", "keep-commits is 0"),
        ("--refresh-sequences 0", "refresh-sequences is 0"),
        ("--region-bytes much", "region-bytes is 'much'"),
        ("--region-bytes 0", "region-bytes is 0"),
        ("--hot-bytes much", "hot-bytes is 'much'"),
        ("--hot-bytes -1", "hot-bytes is -1"),
        ("--set strength_limit=-1", "--set strength_limit"),
        ("--set pos_factors=VERB=many", "--set pos_factors is 'VERB=many'"),
        ("--set permanence_growth=1", "permanence"),
        ("--set permanence_decay=1", "permanence"),
        ("--events none/events", "none/events"),
        ("--network WORDS --ever-pos corpus", "ever-pos with profile contexts"),
        ("--network WORDS --set regions=3", "as asked for"),
    ),
    "evaluate NET TEXT": (
        *(NO_SEQUENCES, *TEXT, *WHERE, *DEVICE, *INFERENCE, *ROWS),
        ("--first-sequence -1", "first-sequence is -1"),
        ("--top-k 0", "top-k has 0"),
        ("--top-k many", "top-k is 'many'"),
        ("--report out.txt", "out.txt"),
        ("--baseline ngram", "baseline-text is not given"),
        ("--baseline-text TEXT", "baseline-text is given"),
        ("--ref nonsense", "nonsense"),
        ("--events none/events", "none/events"),
    ),
    "evaluate WORDS TEXT": (
        *(NO_SEQUENCES, *TEXT),
        ("--first-sequence -1", "first-sequence is -1"),
        ("--top-k 0", "top-k has 0"),
        ("--timing exact", "timing for a network of profile contexts"),
        ("--settings train", "settings for a network of profile contexts"),
    ),
    "generate NET words": (
        *(*WHERE, *DEVICE, *INFERENCE, *ROWS, TEXT[0]),
        ("--max-tokens 0", "max-tokens is 0"),
        ("--beam-width 0", "width is 0"),
        ("--beam-depth 0", "depth is 0"),
        ("--temperature -1", "temperature is -1"),
        ("--temperature 1", "temperature 1.0 for a network of profile v1"),
        ("--temperature 1 --seed -1", "seed is -1"),
        ("--ref nonsense", "nonsense"),
    ),
    "generate WORDS words": (
        ("--beam-width 2 --beam-depth 2", "beam search or rules"),
        ("--timing exact", "beam search or rules"),
    ),
    "serve NET --port 0": (
        *(*WHERE, *DEVICE, *INFERENCE, *ROWS, TEXT[0]),
        ("--port 99999", "port is 99999"),
        ("--host 0.0.0.0", "without an API key"),
        ("--max-slots 0", "max-slots is 0"),
        ("--max-waiting -1", "max-waiting is -1"),
        ("--max-wait-s -1", "max-wait-s is -1"),
        ("--timeout-s 0", "timeout-s is 0"),
        ("--drain-s 0", "drain-s is 0"),
        ("--max-tokens 0", "tokens is 0"),
        ("--max-prompt-characters 0", "max-prompt-characters is 0"),
        ("--max-body-bytes 0", "max-body-bytes is 0"),
        ("--state-bytes much", "state-bytes is 'much'"),
        ("--state-bytes 0", "state-bytes is 0"),
        ("--ref nonsense", "nonsense"),
    ),
    "serve WORDS --port 0": (("--timing exact", "beam search or rules"),),
    "report NET --out OUT.html --evaluate TEXT": (
        *(NO_SEQUENCES, *TEXT, *WHERE, *DEVICE, *INFERENCE),
        ("--out out.txt", "out.txt"),
        ("--ref nonsense", "nonsense"),
    ),
    "train --network OUT": (("none.txt", "the input 'none.txt' does not exist"),),
    "evaluate NET": (("Hello", "the input 'Hello' does not exist"),),
    "encode --out OUT": (("TEXT none/a.txt", "the input 'none/a.txt' does not exist"),),
    "compact NET": (*WHERE, ("--keep-commits 0", "keep-commits is 0")),
    "cluster": (
        *WHERE[:4],
        ("--storage 0", "storage is 0"),
        ("--compute 0", "compute is 0"),
        ("--hang-timeout-s 0", "hang-timeout-s is 0"),
        ("--port 99999", "99999"),
        ("--scheduler-file TEXT/scheduler.json", "scheduler.json"),
    ),
}


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A network of profile v1 and one of profile contexts, by what stands for them above."""
    folder = tmp_path_factory.mktemp("checked")
    kinds = {"NET": gd.Specification(), "WORDS": gd.Specification(profile="contexts")}
    few = gd.TrainingOptions(max_sequences=5)
    with gd.connect(workers=0) as client:
        for name, kind in kinds.items():
            gd.train(sample_text(), folder / name, client=client, specification=kind, options=few)
    return {name: str(folder / name) for name in kinds}


@pytest.mark.parametrize("command", REFUSED)
def test_no_cluster_is_started_for_invalid_options(
    command: str,
    networks: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started: list[str] = []

    def start(*_: Any, **__: Any) -> None:
        started.append("a cluster")
        raise RuntimeError("a cluster was started")

    for name in ("Client", "OwningClient", "SpecCluster"):
        monkeypatch.setattr(connecting, name, start)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    named = {**networks, "TEXT": str(sample_text()), "OUT": "out", "OUT.html": "out.html"}
    named["TEXT/scheduler.json"] = f"{sample_text()}/scheduler.json"
    wrong = []
    for options, said in REFUSED[command]:
        here = () if command == "cluster" or "--workers" in options else ("--workers", "0")
        arguments = [named.get(part, part) for part in f"{command} {options}".split()]
        code = run([*arguments, *here])
        error = capsys.readouterr().err
        if code != 2 or started or said not in error or error.count("\n") != 1:
            wrong.append((options, code, list(started), error))
        started.clear()
    assert not wrong, "\n".join(map(str, wrong))
