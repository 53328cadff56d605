"""Encoding in any number of blocks and connecting in any batches gives the same values; no cluster."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.plain_training import arrays, naive_connections, sentences
from support.summed_increments import connect_summed
from support.tagged_tokens import EVER, OPTIONS

from giaann_dask.keys import unpack_neuron, unpack_target
from giaann_dask.models.columns.connections import BatchTokens, gather_batch, pair_rule, tabulate_pairs
from giaann_dask.runs.device_sums import sum_pairs_on
from giaann_dask.runs.merging import merge_runs, plan_compaction
from giaann_dask.runs.pair_tables import key_type
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.target_sets import run_of_blocks
from giaann_dask.spec import Specification
from giaann_dask.text.block_building import BlockBuilder
from giaann_dask.text.blocks import CANDIDATE
from giaann_dask.text.segmentation import EncodedBlock, encode_block
from giaann_dask.text.tokens import TaggedSentence, TaggedText
from giaann_dask.text.vocabulary import Vocabulary, summarise
from giaann_dask.training.tasks import decode_table


def encode(
    text: list[TaggedSentence], cuts: list[int], limit: int | None = None
) -> tuple[Vocabulary, list[EncodedBlock]]:
    vocabulary, blocks, left = Vocabulary(), [], limit
    edges = [0, *sorted(cuts), len(text)]
    for low, high in pairwise(edges):
        builder = BlockBuilder(EVER, OPTIONS)
        builder.add_part(TaggedText.of(text[low:high]))
        block = builder.build()
        blocks.append(encode_block(block, vocabulary.extend(summarise(block), left), Specification()))
        left = None if left is None else left - len(blocks[-1])
    return vocabulary, blocks


def flat(blocks: list[EncodedBlock]) -> dict[str, list[int]]:
    names = ("status", "column", "feature", "branch", "occurrence", "flags")
    values = {name: [x for b in blocks for x in getattr(b, name).tolist()] for name in names}
    values["lengths"] = [x for b in blocks for x in np.diff(b.offsets).tolist()]
    values["surface"] = [b.surfaces[x] for b in blocks for x in b.surface if x >= 0]
    return values


def state(vocabulary: Vocabulary) -> tuple[object, ...]:
    v = vocabulary
    return v.concepts, v.features, v.delimiter, v.probable_since, v.sequences


@examples(150)
@given(text=sentences, cuts=st.lists(st.integers(0, 14), max_size=5))
def test_encoding_does_not_depend_on_blocks(text: list[TaggedSentence], cuts: list[int]) -> None:
    cuts = [min(cut, len(text)) for cut in cuts]
    once, cut = encode(text, []), encode(text, cuts)
    assert state(once[0]) == state(cut[0])
    assert flat(once[1]) == flat(cut[1])


@examples(40)
@given(text=sentences, cuts=st.lists(st.integers(0, 14), max_size=3), limit=st.integers(1, 14))
def test_a_limit_equals_a_shorter_text(text: list[TaggedSentence], cuts: list[int], limit: int) -> None:
    cuts = [min(cut, len(text)) for cut in cuts]
    limited = encode(text, cuts, limit)
    counted = [s for s in text if 7 <= len(s.forms) <= 12][:limit]
    short = encode(counted, [])
    assert state(limited[0]) == state(short[0])
    assert flat(limited[1]) == flat(short[1])


def sequential_boundaries(text: list[TaggedSentence]) -> list[list[int] | None]:
    """Rule 4 read literally, sentence by sentence, as an oracle for the vectorised form."""
    vocabulary, found = Vocabulary(), []
    for sentence in text:
        builder = BlockBuilder(EVER, OPTIONS)
        builder.add_part(TaggedText.of([sentence]))
        block = builder.build()
        if len(block) == 0:
            continue
        vocabulary.extend(summarise(block))
        words = [block.features[s] if not n else "" for s, n in zip(block.symbol, block.noun, strict=True)]
        nouns = np.flatnonzero(block.noun).tolist()
        occurrence, failed = [0] * len(words), False
        for left, right in pairwise(nouns):
            ids = {i: vocabulary.feature(words[i]) for i in range(left + 1, right)}
            sure = [i for i, f in ids.items() if f is not None and vocabulary.delimiter[f]]
            maybe = [i for i, f in ids.items() if f is not None and vocabulary.probable_since[f] >= 0]
            boundary = max(sure) if sure else max(maybe) if maybe else None
            failed = failed or boundary is None
            for i in range((boundary or 0) + 1, len(words)):
                occurrence[i] += 1
        found.append(None if failed or not nouns else occurrence)
    return found


@examples(150)
@given(text=sentences)
def test_segmentation_equals_the_rule_read_literally(text: list[TaggedSentence]) -> None:
    _, blocks = encode(text, [])
    expected = sequential_boundaries(text)
    for q, oracle in enumerate(expected):
        block = blocks[0]
        if oracle is None:
            assert block.status[q] != CANDIDATE
        else:
            assert block.occurrence[slice(*block.offsets[q : q + 2])].tolist() == oracle


@examples(60)
@given(text=sentences, cuts=st.lists(st.integers(0, 14), max_size=4), regions=st.sampled_from([1, 2, 3, 8]))
def test_connections_do_not_depend_on_batches_and_regions(
    text: list[TaggedSentence], cuts: list[int], regions: int
) -> None:
    specification = Specification(seed_tokens=6)
    _, blocks = encode(text, [min(cut, len(text)) for cut in cuts])
    once = connect_summed(blocks, specification, Placement(1))
    parts = [run for b in blocks for run in connect_summed([b], specification, Placement(regions)).values()]
    for table in ("connections", "neurons"):
        whole, summed = ([getattr(run, table) for run in runs] for runs in (once.values(), parts))
        assert arrays(merge_runs(whole)) == arrays(merge_runs(summed))


@examples(60)
@given(text=sentences)
def test_connections_equal_the_rule_read_literally(text: list[TaggedSentence]) -> None:
    specification = Specification(seed_tokens=6)
    _, blocks = encode(text, [])
    runs = connect_summed(blocks, specification, Placement(4))
    expected = reduce(lambda a, b: {**a, **b}, [naive_connections(b, specification) for b in blocks], {})
    found = {}
    for run, *_ in runs.values():
        source = unpack_neuron(np.repeat(run.source, np.diff(run.pointer)))
        segment, neuron, branch = unpack_target(run.target)
        keys = zip(*source, segment, *unpack_neuron(neuron), branch, strict=True)
        found.update(zip(keys, run.strength.tolist(), strict=True))
    assert found == expected


@examples(40)
@given(
    text=sentences,
    seed=st.integers(6, 40),
    branches=st.sampled_from([2, 128]),
    # Strengths of more than 32 bits, and so many neurons that keys have more.
    scale=st.sampled_from([10.0, 1e5]),
    others=st.sampled_from([0, 1 << 20]),
)
def test_processor_and_device_sum_the_same_pairs(
    text: list[TaggedSentence], seed: int, branches: int, scale: float, others: int
) -> None:
    specification = Specification(seed_tokens=seed, branches=branches, proximity_scale=scale, regions=3)
    batch = gather_batch(encode(text, [])[1])
    if len(batch.neuron) == 0:
        return
    neurons, target = np.unique(batch.neuron, return_inverse=True)
    region = Placement(specification.regions).regions_of(neurons)
    by_region = np.argsort(region, kind="stable")
    tokens = BatchTokens(
        np.argsort(by_region)[target], target + others, batch.branch, batch.occurrence, batch.remaining
    )
    ordered = (neurons[by_region], region[by_region])
    numbered = (tokens, np.concatenate([np.arange(-others, 0), neurons]), ordered, specification)
    for table in tabulate_pairs(*numbered).values():
        one = decode_table(table)
        other = run_of_blocks(list(sum_pairs_on(torch.device("cpu"), [table]).blocks()))
        assert one.strength.dtype == other.strength.dtype == (np.int64 if scale > 10 else np.int32)
        assert arrays(one) == arrays(other)


def test_keys_are_as_narrow_as_their_targets_allow() -> None:
    rule = pair_rule(Specification())
    assert rule.target_shift == 10
    assert [key_type(rule, neurons) for neurons in (1 << 22, (1 << 22) + 1)] == [np.uint32, np.uint64]


@examples(60)
@given(text=sentences)
def test_neurons_equal_the_rule_read_literally(text: list[TaggedSentence]) -> None:
    specification = Specification(seed_tokens=6)
    (block,) = encode(text, [])[1]
    runs = connect_summed([block], specification, Placement(4))
    expected: dict[tuple[int, ...], int] = {}
    columns, features = specification.column_segments, specification.feature_segments
    for q in np.flatnonzero(block.status == CANDIDATE):
        low, high = block.offsets[q], block.offsets[q + 1]
        nouns = [i - low for i in range(low, high) if block.feature[i] == 0]
        for i in range(low, high):
            k = int(block.occurrence[i])
            segments = [*range(min(columns, k + 1)), *range(columns, columns + min(features, nouns[k] + 1))]
            for s in segments:
                key = (int(block.column[i]), int(block.feature[i]), s, int(block.branch[i]))
                expected[key] = expected.get(key, 0) + 1
    found = {}
    for _, run, _ in runs.values():
        column, feature = unpack_neuron(np.repeat(run.source, np.diff(run.pointer)))
        segment, _, branch = unpack_target(run.target)
        keys = zip(*(x.tolist() for x in (column, feature, segment, branch)), strict=True)
        found.update(zip(keys, run.strength.tolist(), strict=True))
    assert found == expected


class RankedRun(NamedTuple):
    """A run by the rounds that it sums up."""

    rank: int
    rounds: tuple[int, ...]


@given(choices=st.lists(st.sampled_from([(2, None), (4, 2), (8, 16), (8, None)]), min_size=1, max_size=300))
def test_compaction_by_any_numbers_keeps_everything_in_few_runs(choices: list[tuple[int, int | None]]) -> None:
    runs: tuple[RankedRun, ...] = ()
    for number, (together, sums_together) in enumerate(choices):
        plan = plan_compaction(runs, RankedRun(0, (number,)), together, sums_together)
        runs = (*plan.kept, RankedRun(plan.rank, tuple(x for part in plan.merged for x in part.rounds)))
    assert [x for run in runs for x in run.rounds] == list(range(len(choices)))
    ranks = [run.rank for run in runs]
    assert ranks == sorted(ranks, reverse=True)
    assert max(ranks.count(rank) for rank in ranks) < max(max(each[0], each[1] or 0) for each in choices)
    assert ranks[0] <= len(choices).bit_length() + 3


@pytest.mark.parametrize(
    ("together", "sums_together", "rewritten", "ranks"),
    [(2, 2, 3.5, [6]), (4, 4, 2.5, [6]), (8, 8, 1.875, [6]), (8, 16, 1.0, [3] * 8)],
)
def test_how_often_connections_are_rewritten(
    together: int, sums_together: int, rewritten: float, ranks: list[int]
) -> None:
    runs: tuple[RankedRun, ...] = ()
    moved = 0
    for _ in range(64):
        plan = plan_compaction(runs, RankedRun(0, (1,)), together, sums_together)
        added = sum((run.rounds for run in plan.merged), ())
        moved += len(added) if len(plan.merged) > 1 else 0
        runs = (*plan.kept, RankedRun(plan.rank, added))
    assert ([run.rank for run in runs], moved / 64) == (ranks, rewritten)
    assert sum((run.rounds for run in runs), ()) == (1,) * 64


@given(rounds=st.integers(1, 200))
def test_compaction_keeps_everything_in_few_runs(rounds: int) -> None:
    runs: tuple[RankedRun, ...] = ()
    for number in range(rounds):
        plan = plan_compaction(runs, RankedRun(0, (number,)))
        runs = (*plan.kept, RankedRun(plan.rank, tuple(x for part in plan.merged for x in part.rounds)))
    assert [x for run in runs for x in run.rounds] == list(range(rounds))
    assert len(runs) <= rounds.bit_length()
    assert [run.rank for run in runs] == sorted({run.rank for run in runs}, reverse=True)
