"""Test auxiliary source neurons: attached features, their rows, and that they are off by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stored_networks import reader_of
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cli.click_ext import read_items
from giaann_dask.errors import OptionError
from giaann_dask.keys import pack_neuron, pack_target
from giaann_dask.models.columns.flags import flags_of, open_flags_with, submit_flags
from giaann_dask.models.columns.state.inference_options import V2Options, V2Settings
from giaann_dask.models.columns.state.session import FlagTable
from giaann_dask.models.columns.v2.session import V2Session
from giaann_dask.rows.source import AuxiliaryRows, RunRows
from giaann_dask.runs.run import Run
from giaann_dask.text.attachments import Attachments, attach, similar_spellings

EVERY = ("pos", "lemma", "neighbours")
WORDS = ["", "carries", "carried", "watched", "under", "over", "watch", "watcher", "."]


def joined(kinds: list[str]) -> set[tuple[tuple[str, ...], tuple[str, ...], float]]:
    """Return groups as (attached, members, weight)."""
    found = attach(WORDS, kinds, subwords=False)
    owners: dict[int, list[str]] = {}
    for feature, word in enumerate(WORDS):
        for group in found.groups_of(feature):
            owners.setdefault(group, []).append(word)
    assert found.groups_of(0) == found.groups_of(len(WORDS)) == []
    return {(tuple(owners[g]), tuple(WORDS[m] for m in found.members_of(g)), float(found.weight[g])) for g in owners}


def test_words_are_grouped_by_lemma_part_of_speech_and_spelling() -> None:
    assert (("carries", "carried"), ("carries", "carried"), 0.25) in joined(["lemma"])
    assert (("under", "over"), ("under", "over"), 0.05) in joined(["pos"])
    spelled = joined(["spelling"])
    assert (("watch",), ("watched", "watcher"), 0.25) in spelled
    assert (("carries",), ("carried",), 0.25) in spelled
    assert not any("over" in attached for attached, _, _ in spelled)
    every = ["lemma", "pos", "spelling"]
    assert len(joined(every)) == sum(len(joined([kind])) for kind in every)


def test_subwords_are_grouped_by_role() -> None:
    found = attach(["", " mill", "er", " ca", "rry", " ,"], ["role"], subwords=True)
    assert [found.members_of(g).tolist() for g in range(3)] == [[1, 3], [2, 4], [5]]
    assert found.weight.tolist() == [0.01] * 3


@given(st.lists(st.text("abc", min_size=1, max_size=6), max_size=12))
def test_similarity_is_symmetric_and_independent_of_order(words: list[str]) -> None:
    found = similar_spellings(words)
    assert all(one in found[other] for one, others in found.items() for other in others)
    turned = similar_spellings(words[::-1])
    last = len(words) - 1
    assert found == {last - one: sorted(last - other for other in others) for one, others in turned.items()}


@given(seed=st.integers(0, 1000))
def test_row_includes_the_weighted_sums_of_members(seed: int) -> None:
    random = np.random.default_rng(seed)
    table = {
        (int(pack_neuron(c, f)), int(pack_target(s, pack_neuron(t, 1), 0))): int(random.integers(1, 100))
        for c, f, s, t in random.integers(0, [2, 5, 3, 4], (40, 4))
    }
    keys = sorted(table)
    source, counts = np.unique([key[0] for key in keys], return_counts=True)
    targets, units = np.array([key[1] for key in keys]), np.array([table[key] for key in keys], np.int32)
    run = Run(source, np.concatenate([[0], np.cumsum(counts)]), targets, units)
    attachments = Attachments.of(5, [([1, 2], [1, 2], 0.25), ([2], [3, 4], 0.01), ([3], [0], 1.0)])
    for rows in (RunRows([run], lambda neuron: 0), RunRows([run], lambda neuron: 0, lambda n: np.zeros(len(n), int))):
        found = AuxiliaryRows(rows, attachments)
        for column in range(2):
            for feature in range(6):
                neuron = int(pack_neuron(column, feature))
                expected = {t: n for (s, t), n in table.items() if s == neuron}
                for group in attachments.groups_of(feature):
                    total: dict[int, int] = {}
                    for member in pack_neuron(column, attachments.members_of(group)).tolist():
                        for (s, t), n in table.items():
                            total[t] = total.get(t, 0) + n * (s == member)
                    for t, n in total.items():
                        expected[t] = expected.get(t, 0) + round(n * float(attachments.weight[group]))
                row = found.row(neuron)
                given_row = {} if row is None else dict(zip(row.target.tolist(), row.strength.tolist(), strict=True))
                assert given_row == {t: n for t, n in expected.items() if n}
                assert row is None or (np.diff(row.target) > 0).all()


def test_evaluation_task_and_session_use_auxiliary_neurons(tmp_path: Path) -> None:
    text, other = write_village(tmp_path / "a.txt", 36), write_village(tmp_path / "b.txt", 12, 2)
    rules: dict[str, Any] = {"plain": V2Settings(), "aided": V2Settings(auxiliary=EVERY)}
    prompt, found = "the old miller carried the bread to the river and the", {}
    with gd.connect(workers=0) as client:
        specification = gd.Specification(profile="v2", regions=2)
        network = gd.train(text, tmp_path / "net", client=client, specification=specification)
        for name, inference in rules.items():
            options = gd.EvaluationOptions(inference=inference)
            found[name] = network.evaluate(other, client=client, options=options)
        wanted = gd.GenerationOptions(max_tokens=4, inference=V2Settings(auxiliary=EVERY, feed="prediction"))
        task = network.generate(prompt, client=client, options=wanted)
        reader = reader_of(network)
        here = open_flags_with(reader, flags_of(reader.saved_vocabulary()), ("neighbours",)).auxiliary
        there = submit_flags(client, reader, ("neighbours",)).result(60).auxiliary
    assert here is not None
    assert len(here.weight) > 0, "words of the village have neighbours in common"
    assert here.group.tolist() == there.group.tolist()
    assert here.member.tolist() == there.member.tolist()
    assert found["aided"].prediction_tokens == found["plain"].prediction_tokens
    assert found["aided"].without_prediction < found["plain"].without_prediction
    assert tuple(network.session(prompt, options=wanted)) == task.tokens
    with pytest.raises(OptionError, match="subwords"):
        network.session(prompt, options=gd.GenerationOptions(inference=V2Settings(auxiliary=("role",))))


def test_inapplicable_kinds_are_rejected() -> None:
    for make in (
        lambda: V2Settings(auxiliary=("colour",)),
        lambda: V2Settings(settings="train", auxiliary=("pos",)),
        lambda: attach(["", "a"], ["pos"], subwords=True),
        lambda: V2Session(
            gd.Specification(profile="v2"),
            RunRows([Run.empty()], lambda neuron: 0),
            FlagTable(np.zeros(1, bool), np.zeros(1, int)),
            options=V2Options(auxiliary=("pos",)),
        ),
    ):
        with pytest.raises(OptionError):
            make()
    assert read_items("auxiliary", "pos, lemma", str) == ("pos", "lemma")
