"""Segment layouts, reach and branches: both kernels against the rule read literally."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.plain_training import arrays
from support.summed_increments import connect_summed

from giaann_dask.errors import SpecificationError
from giaann_dask.keys import unpack_neuron, unpack_target
from giaann_dask.models.columns.dense import count_dense
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import Run
from giaann_dask.spec import MAXIMUM_TOKENS, Specification
from giaann_dask.text.blocks import CANDIDATE, NO_DELIMITER
from giaann_dask.text.segmentation import EncodedBlock, hash_branches, number_branches
from giaann_dask.training.tasks import accumulate

Key = tuple[int, ...]


@st.composite
def specifications(draw: st.DrawFn) -> Specification:
    counts = draw(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(any))
    tree = counts[1] > 0 and draw(st.booleans())
    return Specification(
        profile="v2",
        regions=3,
        lif=tree or draw(st.booleans()),
        branches=draw(st.sampled_from([2, 4][: counts[1]])) if tree else draw(st.integers(1, 3)),
        branch_tree=tree,
        own_strengths=draw(st.sampled_from(["tokens", "segments"])),
        segment_counts=counts,
        column_catch_all=counts[0] > 0 and draw(st.booleans()),
        feature_catch_all=counts[1] > 0 and draw(st.booleans()),
        proximity_exponent=draw(st.sampled_from([1.0, 0.5, 2.0])),
        self_transitions=draw(st.booleans()),
        pos_factors=draw(st.sampled_from([(), (("VERB", 3.0),)])),
        pos_scope="external",
    )


@st.composite
def encoded(draw: st.DrawFn) -> EncodedBlock:
    lengths = draw(st.lists(st.integers(1, 25), min_size=1, max_size=4))
    return random_block(lengths, draw(st.integers(0, 1000)), draw(st.booleans()))


def random_block(lengths: list[int], seed: int, whole: bool) -> EncodedBlock:
    """Some sequences of few columns and features, as encoding makes them, trained whole or not."""
    random = np.random.default_rng(seed)
    column, feature, occurrence = [], [], []
    for length in lengths:
        turns = np.flatnonzero(random.random(length) < 0.3)
        of = np.searchsorted(turns[turns > 0], np.arange(length), side="right")
        column.append(random.integers(0, 4, of[-1] + 1)[of])
        occurrence.append(of)
        # Exactly one noun in each occurrence.
        starts = np.flatnonzero(np.diff(of, prepend=-1))
        noun = starts + random.integers(0, np.diff(np.append(starts, length)))
        feature.append(random.integers(1, 5, length))
        feature[-1][noun] = 0
    tokens = sum(lengths)
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    neuron = (np.concatenate(column) << 25) | np.concatenate(feature)
    return EncodedBlock(
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        status=np.zeros(len(lengths), np.uint8),
        column=np.concatenate(column).astype(np.int32),
        feature=np.concatenate(feature).astype(np.int32),
        branch=number_branches(neuron, sequence, 4),
        occurrence=np.concatenate(occurrence).astype(np.uint16),
        # VERB is the 16th part of speech, NOUN the 8th.
        flags=(random.choice([16, 8], tokens) << 3).astype(np.uint8),
        surface=np.full(tokens, -1, np.int32),
        document=np.zeros(len(lengths), np.int32),
        sentence=np.zeros(len(lengths), np.int32),
        surfaces=(),
        first_sequence=0,
        train_mask=None if whole else random.random(tokens) < 0.3,
    )


def read_literally(block: EncodedBlock, specification: Specification) -> dict[Key, int]:
    columns, found = specification.column_segments, dict[Key, int]()
    reach = specification.feature_segments + specification.lif
    factor = dict(specification.pos_factors).get("VERB", 1.0)
    plain, scaled = specification.increments().tolist(), specification.increments(factor).tolist()
    for begin, end in zip(block.offsets[:-1].tolist(), block.offsets[1:].tolist(), strict=True):
        for i in range(begin, end):
            for j in range(i + (not specification.self_transitions), end):
                if block.train_mask is not None and not block.train_mask[j]:
                    continue
                distance, gap = j - i, int(block.occurrence[j]) - int(block.occurrence[i])
                segments = []
                if gap < columns or specification.column_catch_all:
                    segments.append(max(columns - 1 - gap, 0))
                # A token is as near to itself as to its neighbour.
                if max(distance, 1) <= reach or specification.feature_catch_all:
                    segments.append(columns + reach - min(max(distance, 1), reach))
                gain = (scaled if gap and block.flags[i] >> 3 == 16 else plain)[distance]
                for segment in segments:
                    ends = (block.column[i], block.feature[i], segment, block.column[j], block.feature[j])
                    branch = min(int(block.branch[j]), specification.branches - 1)
                    if specification.branch_tree:
                        branch //= 2 ** (segment - columns * (segment >= columns))
                    key = (*map(int, ends), branch)
                    found[key] = found.get(key, 0) + gain
    return found


def table_of(runs: list[Run]) -> dict[Key, int]:
    found: dict[Key, int] = {}
    for run in runs:
        source = unpack_neuron(np.repeat(run.source, np.diff(run.pointer)))
        segment, neuron, branch = unpack_target(run.target)
        columns = [each.tolist() for each in (*source, segment, *unpack_neuron(neuron), branch)]
        found.update(zip(zip(*columns, strict=True), run.strength.tolist(), strict=True))
    return found


@examples(100)
@given(block=encoded(), specification=specifications())
def test_kernels_follow_the_rule(block: EncodedBlock, specification: Specification) -> None:
    limited = np.minimum(block.branch, specification.branches - 1).astype(np.uint8)
    block = EncodedBlock(**{name: getattr(block, name) for name in block.__slots__} | {"branch": limited})
    placement = Placement(specification.regions)
    runs = list(connect_summed([block], specification, placement).values())
    summed = connect_summed([block], specification, placement, torch.device("cpu"))
    dense = [run.connections for run in summed.values()]
    expected = read_literally(block, specification)
    assert table_of([run.connections for run in runs]) == expected
    assert table_of(dense) == expected
    own = table_of([run.neurons for run in runs])
    if specification.own_strengths == "tokens":
        assert sum(own.values()) == len(block.column), "a token counts once"
    if specification.branch_tree:
        soma = specification.last_segment
        assert all(key[-1] == 0 for key in (*expected, *own) if key[2] == soma), "all branches end in one"


@pytest.mark.parametrize("catch_all", [False, True])
def test_kernels_follow_the_rule_over_long_windows(catch_all: bool) -> None:
    options = {"column_catch_all": catch_all, "feature_catch_all": catch_all}
    specification = Specification(profile="v2", maximum_tokens=1000, sentences_per_sequence=0, **options)  # type: ignore[arg-type]
    block = replace(random_block([600], 7, True), branch=np.zeros(600, np.uint8))
    expected = read_literally(block, specification)
    for device in (None, torch.device("cpu")):
        runs = connect_summed([block], specification, Placement(3), device).values()
        assert table_of([run.connections for run in runs]) == expected


def test_a_token_follows_itself() -> None:
    """By hand: tokens 0, 1, 1 of one column, of which 1 follows itself, and each is as near to itself as that."""
    block = EncodedBlock(
        offsets=np.array([0, 3]),
        status=np.zeros(1, np.uint8),
        column=np.full(3, 7, np.int32),
        feature=np.array([0, 5, 5], np.int32),
        branch=np.zeros(3, np.uint8),
        occurrence=np.zeros(3, np.uint16),
        flags=np.zeros(3, np.uint8),
        surface=np.full(3, -1, np.int32),
        document=np.zeros(1, np.int32),
        sentence=np.zeros(1, np.int32),
        surfaces=(),
        first_sequence=0,
    )
    strengths = {}
    for chosen in (False, True):
        specification = Specification(profile="v2", self_transitions=chosen, strength_bits=4)
        runs = connect_summed([block], specification, Placement(1)).values()
        strengths[chosen] = {
            key[1:3] + key[4:5]: gain / 16 for key, gain in table_of([r.connections for r in runs]).items()
        }
    # Source feature, segment (3: the same column; 7 and 8: two tokens and one token ago) and target feature.
    repeats = {(0, 3, 5): 5 + 3.3125, (0, 8, 5): 5, (0, 7, 5): 3.3125, (5, 3, 5): 5, (5, 8, 5): 5}
    assert strengths[False] == repeats
    assert strengths[True] == repeats | {(0, 3, 0): 10, (0, 8, 0): 10, (5, 3, 5): 5 + 2 * 10, (5, 8, 5): 5 + 2 * 10}


@examples(100)
@given(block=encoded(), specification=specifications())
def test_dense_tensors_have_the_bytes_of_other_batches(block: EncodedBlock, specification: Specification) -> None:
    limited = np.minimum(block.branch, specification.branches - 1).astype(np.uint8)
    number = np.arange(len(block))
    alone = [
        replace(block, branch=limited, status=np.where(number == one, CANDIDATE, NO_DELIMITER).astype(np.uint8))
        for one in number
    ]
    placement = Placement(specification.regions).split(0, 1 << 25).split(1, 2 << 25 | 2)
    found = accumulate(*(count_dense([each], specification, placement) for each in alone))
    expected = connect_summed([replace(block, branch=limited)], specification, placement)
    assert found.keys() == expected.keys()
    for region, run in found.items():
        for mine, other in zip(run, expected[region], strict=True):
            assert arrays(mine) == arrays(other)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"lif": True}, "profile v2"),
        ({"sentences_per_sequence": 0}, "its only value in profile v1"),
        ({"profile": "v2", "sentences_per_sequence": -1}, "0 for windows"),
        ({"profile": "v2", "maximum_tokens": 4097}, "at most 4096"),
        ({"sentences_per_sequence": 3}, "its only value in profile v1"),
        ({"profile": "v3"}, "v1, v2, contexts"),
        ({"profile": "v2", "segment_counts": (0, 0)}, "column segments, feature segments or both"),
        ({"profile": "v2", "segment_counts": (4,)}, "a number of column segments"),
        ({"profile": "v2", "segment_counts": (28, 4)}, "32 in all"),
        ({"profile": "v2", "segment_counts": (0, 4), "column_catch_all": True}, "column segments"),
        ({"profile": "v2", "segment_counts": (4, 0), "feature_catch_all": True}, "feature segments"),
        ({"profile": "v2", "branch_order": "random"}, "more than one branch"),
        ({"profile": "v2", "maximum_subwords": 100}, "subwords as tokens"),
        ({"profile": "v2", "column_names": "span"}, "subwords as tokens"),
        ({"profile": "v2", "tokens": "subwords", "maximum_subwords": MAXIMUM_TOKENS + 1}, "at most 4096"),
        ({"profile": "v2", "proximity_exponent": 8.0}, "a unit or more for every pair"),
        ({"profile": "v2", "lif": 1}, "True or False"),
        ({"profile": "v2", "self_transitions": 1}, "True or False"),
        ({"profile": "contexts", "self_transitions": True}, "its only value in profile contexts"),
        ({"profile": "v2", "branch_tree": True}, "2, 4, 8"),
        ({"profile": "v2", "branch_tree": True, "branches": 32}, "at most 16"),
        ({"profile": "v2", "branch_tree": True, "lif": False}, "leaky"),
        ({"branch_tree": True}, "profile v2"),
    ],
)
def test_what_has_no_meaning_is_refused(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(SpecificationError, match=expected):
        Specification(**fields)


@examples(50)
@given(text=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=9), min_size=1, max_size=8), at=st.integers(0, 7))
def test_random_branches_depend_on_their_sequence_alone(text: list[list[int]], at: int) -> None:
    neuron = np.concatenate(text)
    branch = hash_branches(neuron, np.repeat(np.arange(len(text)), [len(each) for each in text]), 5)
    begin = sum(map(len, text[: at % len(text)]))
    alone = np.array(text[at % len(text)])
    assert (
        hash_branches(alone, np.zeros(len(alone), np.int64), 5).tolist() == branch[begin : begin + len(alone)].tolist()
    )


def test_random_branches_are_used_alike() -> None:
    neuron = np.repeat(np.arange(1000), 20)
    used = np.bincount(hash_branches(neuron, np.arange(20_000) // 20, 4), minlength=4)
    assert used.min() > 4700
    assert used.max() < 5300
