"""Training on what is missed: which tokens those are, what they add, and that steps can be done again."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.village import write_village

import giaann_dask as gd
from giaann_dask.errors import OptionError
from giaann_dask.keys import pack_neuron, pack_target
from giaann_dask.models.columns.evaluation.predicting import missed
from giaann_dask.models.columns.state.inference_options import settings
from giaann_dask.models.columns.state.session import FlagTable
from giaann_dask.rows.source import RunRows
from giaann_dask.runs.run import Run
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.training.training_options import SelectionOptions, TrainingOptions

SECOND = gd.Specification(profile="v2", sentences_per_sequence=1, regions=1)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_village(tmp_path_factory.mktemp("misses") / "village.txt", 50)


def exported(network: gd.Network) -> list[bytes]:
    table = network.table()
    names = ("src_col", "src_feat", "branch", "seg", "tgt_col", "tgt_feat", "strength")
    return [getattr(table, name).tobytes() for name in names]


def test_steps_do_not_depend_on_division_and_interruption(text: Path, tmp_path: Path) -> None:
    ways: dict[str, list[dict[str, Any]]] = {
        "whole": [{}],
        "divided": [{"batch_sequences": 12, "block_characters": 900, "selection": SelectionOptions(order="random")}],
        # As after an interruption: a step that is not committed leaves nothing.
        "again": [{"max_sequences": 25}, {}],
        "all": [{"train_on": "all"}],
    }
    found = {}
    with gd.connect(workers=0) as client:
        for name, runs in ways.items():
            for options in runs:
                chosen = TrainingOptions(**{"train_on": "misses", "refresh_sequences": 25} | options)
                found[name] = gd.train(text, tmp_path / name, client=client, specification=SECOND, options=chosen)
    whole, every = found["whole"], found["all"]
    assert len(whole.commits()) >= 2
    assert exported(found["divided"]) == exported(found["again"]) == exported(whole)
    assert {network.manifest.sequences for network in found.values()} == {50}
    assert {network.manifest.trained for network in found.values()} == {every.manifest.trained}
    assert whole.table().strength.sum() < every.table().strength.sum()


def test_a_token_is_missed_unless_its_own_neuron_is_predicted() -> None:
    """Two neurons that always follow each other, and a third that nothing leads to."""
    neuron = pack_neuron([0, 0, 0], [0, 1, 2])
    run = Run(neuron[:2], np.arange(3), pack_target(8, neuron[1::-1], 0), np.full(2, 1 << 20, np.int32))
    sequence = np.array([0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 2, 1, 0])
    column, tokens = np.zeros(13, np.int32), np.zeros(13, np.uint8)
    block = EncodedBlock(
        offsets=np.array([0, 13]),
        status=np.zeros(1, np.uint8),
        column=column,
        feature=sequence.astype(np.int32),
        branch=tokens,
        occurrence=tokens.astype(np.uint16),
        flags=tokens,
        surface=column - 1,
        document=column[:1],
        sentence=column[:1],
        surfaces=(),
        first_sequence=0,
    )
    flags, rows = FlagTable(np.zeros(3, bool), np.full(3, -1)), RunRows([run], lambda neuron: 0)
    marks = missed(block, rows, flags, rules=settings("train"), network=gd.Specification(profile="v2"))
    # Eight seeds; the third neuron is not foreseen, and nothing follows it.
    assert marks.tolist() == [True] * 8 + [False, False, True, True, False]
    left_out = replace(block, status=np.ones(1, np.uint8))
    assert missed(left_out, rows, flags, rules=settings("train"), network=gd.Specification(profile="v2")).all()


@pytest.mark.parametrize("options", [{"train_on": "hits"}, {"refresh_sequences": 0}])
def test_options_of_what_is_trained_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        TrainingOptions(**options)


def test_a_model_that_marks_nothing_is_refused_before_anything_is_trained(text: Path, tmp_path: Path) -> None:
    options = TrainingOptions(train_on="misses", refresh_sequences=10)
    with gd.connect(workers=0) as client, pytest.raises(OptionError, match="train_on misses"):
        gd.train(text, tmp_path / "net", profile="contexts", client=client, options=options)
    assert not (tmp_path / "net").exists()


def test_the_commit_that_a_training_continues_is_opened_once(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    original = NetworkStore.open

    def count(self: NetworkStore, commit: str) -> CommitReader:
        # Tasks open commits in other threads.
        if threading.current_thread() is threading.main_thread():
            opened.append(commit)
        return original(self, commit)

    monkeypatch.setattr(NetworkStore, "open", count)
    with gd.connect(workers=0) as client:
        network = gd.train(text, tmp_path / "net", client=client, regions=2)
        opened.clear()
        after = gd.train(["The tired miller sang in the old mill by the river."], network.path, client=client)
    assert after.manifest.sequences == 51
    assert opened.count(network.commit) == 1
    # Its manifest is read when it is made, and the network that is returned opens it.
    assert opened.count(after.commit) == 2
