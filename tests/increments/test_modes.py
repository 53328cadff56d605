"""Limits and scaling by part of speech are sums, permanence is refused, and none of them changes profile v1."""

from __future__ import annotations

import json
from functools import reduce
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.plain_training import arrays, naive_connections, sentences
from support.summed_increments import connect_summed
from support.tagged_tokens import EVER
from support.village import write_village

import giaann_dask as gd
from giaann_dask import cli
from giaann_dask.errors import SpecificationError
from giaann_dask.keys import unpack_neuron, unpack_target
from giaann_dask.models.columns.connections import gather_batch, pair_rule
from giaann_dask.models.columns.scaling import (
    PUBLISHED_FACTORS,
    class_bits,
    increment_table,
    require_sums,
    token_classes,
)
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import Run
from giaann_dask.spec import PARTS_OF_SPEECH, Specification
from giaann_dask.store.manifest import Manifest
from giaann_dask.text.block_building import BlockBuilder
from giaann_dask.text.blocks import CANDIDATE, POS_SHIFT, FilterOptions
from giaann_dask.text.segmentation import EncodedBlock, encode_block
from giaann_dask.text.tokens import TaggedSentence, TaggedText
from giaann_dask.text.vocabulary import Vocabulary, summarise

PLAIN = Specification(seed_tokens=6)
FACTORS = {"NOUN": 10.0, "VERB": 2.5, "ADJ": 0.5, "PUNCT": 2.5}
scopes = st.sampled_from(["external", "all"])
limits = st.one_of(st.none(), st.floats(0.5, 8.0, width=32))


def encode(text: list[TaggedSentence], parts_of_speech: bool = True, cuts: tuple[int, ...] = ()) -> list[EncodedBlock]:
    vocabulary, blocks = Vocabulary(), []
    options = FilterOptions(seed_tokens=6, maximum_tokens=12, parts_of_speech=parts_of_speech)
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    for low, high in pairwise(edges):
        builder = BlockBuilder(EVER, options)
        builder.add_part(TaggedText.of(text[low:high]))
        block = builder.build()
        blocks.append(encode_block(block, vocabulary.extend(summarise(block)), Specification()))
    return blocks


def scaled(scope: str, limit: float | None = None) -> Specification:
    return Specification(
        seed_tokens=6,
        pos_factors=FACTORS,
        pos_scope=scope,
        strength_limit=limit,
        limit_scope="connection" if limit is None else "pair",
    )


def joined(parts: list[dict[int, Any]], table: str) -> list[bytes]:
    return arrays(merge_runs([getattr(run, table) for part in parts for run in part.values()]))


def literally(block: EncodedBlock, specification: Specification) -> dict[tuple[int, ...], int]:
    """Rule 6 with factors and the limit of pairs, read literally: pair after pair, in real numbers."""
    found: dict[tuple[int, ...], int] = {}
    columns, features = specification.column_segments, specification.feature_segments
    factors, limit = dict(specification.pos_factors), specification.strength_limit
    for q in np.flatnonzero(block.status == CANDIDATE):
        low, high = block.offsets[q], block.offsets[q + 1]
        for i in range(low, high):
            code = int(block.flags[i]) >> POS_SHIFT
            name = PARTS_OF_SPEECH[code - 1] if code else ""
            for j in range(i + 1, high):
                gap = int(block.occurrence[j]) - int(block.occurrence[i])
                real = np.float32(1 / (j - i + 1)) * np.float32(10)
                if gap or specification.pos_scope == "all":
                    real = real * np.float32(factors.get(name, 1.0))
                real = float(real) if limit is None else min(float(real), limit)
                for segment in (max(columns - 1 - gap, 0), columns + features - min(j - i, features)):
                    ends = (block.column[i], block.feature[i], segment, block.column[j], block.feature[j])
                    key = (*ends, block.branch[j])
                    found[key] = found.get(key, 0) + round(real * 2**20)
    return found


def table_of(runs: dict[int, Any]) -> dict[tuple[int, ...], int]:
    found = {}
    for run, *_ in runs.values():
        source = unpack_neuron(np.repeat(run.source, np.diff(run.pointer)))
        segment, neuron, branch = unpack_target(run.target)
        keys = zip(*source, segment, *unpack_neuron(neuron), branch, strict=True)
        found.update(zip(keys, run.strength.tolist(), strict=True))
    return found


def test_a_specification_without_modes_is_stored_as_it_always_was() -> None:
    stored = {
        "profile": "v1", "seed_tokens": 8, "branches": 2, "maximum_tokens": 80, "proximity_scale": 10.0,
        "strength_bits": 20, "regions": 8, "placement": "hash",
    }  # fmt: skip
    plain = Specification(flags="history")
    assert plain.as_dict() == stored
    assert Manifest(specification=plain).as_dict()["specification"] == stored
    assert Specification.from_dict(stored) == plain
    assert Specification().as_dict() == {**stored, "flags": "canonical"}
    assert Specification(pos_factors={"VERB": 1}) == Specification()


def test_modes_survive_json() -> None:
    chosen = Specification(
        pos_factors=PUBLISHED_FACTORS, pos_scope="all", strength_limit=1, strength_squash="tanh", limit_scope="pair"
    )
    stored = json.loads(json.dumps(Manifest(specification=chosen).as_dict()))
    assert Manifest.from_dict(stored).specification == chosen
    assert hash(Manifest.from_dict(stored).specification) == hash(chosen)
    assert stored["specification"]["pos_factors"][0] == ["ADJ", 3.0]


@pytest.mark.parametrize(
    "fields",
    [
        {"strength_limit": 0.0},
        {"strength_limit": float("nan")},
        {"strength_limit": float("inf")},
        {"strength_squash": "tanh"},
        {"strength_squash": "sigmoid", "strength_limit": 1.0},
        {"limit_scope": "pair"},
        {"limit_scope": "neuron", "strength_limit": 1.0},
        {"pos_factors": {"verb": 2.0}},
        {"pos_factors": {"VERB": 0.0}},
        {"pos_factors": {"VERB": float("nan")}},
        {"pos_factors": [("VERB", 2.0), ("VERB", 3.0)]},
        {"pos_factors": {"VERB": 1e-7}},
        {"pos_factors": {"VERB": 999_999.0}},
        {"pos_scope": "all"},
        {"pos_scope": "internal", "pos_factors": {"VERB": 2.0}},
        {"permanence_growth": -1},
        {"permanence_decay": -1},
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(SpecificationError):
        Specification(**fields)


def test_permanence_depends_on_the_order_and_is_refused() -> None:
    ends = set()
    for events in permutations(("growth", "decay", "decay")):
        permanence = 0
        for event in events:
            permanence = permanence + 1 if event == "growth" else max(permanence - 1, 0)
        ends.add(permanence)
    assert len(ends) > 1, "were it a sum, it could be trained"
    for fields in ({"permanence_growth": 3}, {"permanence_growth": 3, "permanence_decay": 1}):
        with pytest.raises(
            SpecificationError, match=r"permanence_growth 3 .*expected 0 for both.*pos_factors are sums"
        ):
            require_sums(Specification(**fields))
    require_sums(scaled("all", 2.0))


@examples(200)
@given(
    pairs=st.lists(st.tuples(st.integers(1, 79), st.sampled_from([0.5, 1.0, 10.0])), min_size=1, max_size=60),
    limit=st.floats(2.0**-20, 200.0),
    cuts=st.lists(st.integers(0, 60), max_size=4),
)
def test_limiting_the_sum_equals_limiting_after_every_pair(
    pairs: list[tuple[int, float]], limit: float, cuts: list[int]
) -> None:
    specification = Specification(strength_limit=limit)
    units = [int(specification.increments(factor)[distance]) for distance, factor in pairs]
    after_every_pair = 0.0
    for gain in units:
        after_every_pair = min(after_every_pair + gain / 2**20, limit)
    edges = [0, *sorted(min(cut, len(units)) for cut in cuts), len(units)]
    one = np.zeros(1, np.int64)
    parts = [sum(units[low:high]) for low, high in pairwise(edges)]
    runs = [Run(one, np.array([0, 1]), one, np.array([part])) for part in parts if part]
    merged = merge_runs(runs[::-1])
    assert specification.strengths(merged.strength).tolist() == [after_every_pair]


def test_the_squash_rises_to_the_limit_and_leaves_the_sums_alone() -> None:
    squashed = Specification(strength_limit=3.0, strength_squash="tanh")
    assert squashed.increments().tolist() == Specification().increments().tolist()
    units = np.array([1, 1 << 20, 3 << 20, 6 << 20], np.int32)
    assert squashed.strengths(units) == pytest.approx(3 * np.tanh(units / 2**20 / 3))
    assert np.all(np.diff(squashed.strengths(units)) > 0)
    per_pair = Specification(strength_limit=1.0, strength_squash="tanh", limit_scope="pair")
    assert per_pair.increments()[[1, 9, 79]] / 2**20 == pytest.approx(np.tanh([5.0, 1.0, 0.125]), abs=2**-20)
    assert per_pair.strengths(units).tolist() == (units / 2**20).tolist()


@examples(60)
@given(text=sentences, scope=scopes, limit=limits)
def test_scaling_equals_the_rule_read_literally(text: list[TaggedSentence], scope: str, limit: float | None) -> None:
    specification, (block,) = scaled(scope, limit), encode(text)
    assert table_of(connect_summed([block], specification, Placement(4))) == literally(block, specification)


@examples(60)
@given(text=sentences, scope=scopes, cuts=st.tuples(st.integers(0, 14), st.integers(0, 14)), regions=st.integers(1, 8))
def test_batches_and_regions_do_not_matter_to_scaling(
    text: list[TaggedSentence], scope: str, cuts: tuple[int, int], regions: int
) -> None:
    specification, blocks = scaled(scope), encode(text, cuts=cuts)
    once = connect_summed(encode(text), specification, Placement(1))
    parts = [connect_summed([block], specification, Placement(regions)) for block in reversed(blocks)]
    for table in ("connections", "neurons"):
        if once:
            assert joined([once], table) == joined(parts, table)


@examples(30)
@given(text=sentences, scope=scopes)
def test_the_operations_of_a_device_agree(text: list[TaggedSentence], scope: str) -> None:
    specification, blocks = scaled(scope), encode(text)
    compiled = connect_summed(blocks, specification, Placement(3))
    by_torch = connect_summed(blocks, specification, Placement(3), torch.device("cpu"))
    assert compiled.keys() == by_torch.keys()
    for region, run in compiled.items():
        for first, second in zip(run, by_torch[region], strict=True):
            assert arrays(first) == arrays(second)


@examples(40)
@given(text=sentences)
def test_without_factors_nothing_changes(text: list[TaggedSentence]) -> None:
    (plain,), (tagged,) = encode(text, parts_of_speech=False), encode(text)
    assert int(plain.flags.max(initial=0)) < 1 << POS_SHIFT
    assert (tagged.flags & ((1 << POS_SHIFT) - 1)).tolist() == plain.flags.tolist()
    assert class_bits(PLAIN) == 0
    assert increment_table(PLAIN).tolist() == PLAIN.increments().tolist()
    assert pair_rule(PLAIN).class_shift == 7, "bits of distance for up to 80 tokens"
    runs = [connect_summed([block], PLAIN, Placement(1)) for block in (plain, tagged)]
    assert table_of(runs[0]) == table_of(runs[1]) == reduce(lambda a, b: {**a, **b}, [naive_connections(plain, PLAIN)])
    unnamed = Specification(seed_tokens=6, pos_factors={"SYM": 7.0}, pos_scope="all")
    assert table_of(connect_summed([tagged], unnamed, Placement(1))) == table_of(runs[0])


def test_classes_follow_the_source_tokens() -> None:
    rows = [("Old", "ADJ"), ("mill", "PROPN"), ("wheel", "NOUN"), ("ran", "VERB"), ("on", "ADP"), ("dogs", "NOUN")]
    words, upos = zip(*rows, ("!", "_"), (".", "PUNCT"), strict=True)
    blocks = encode([TaggedSentence(words, words, upos, upos)])
    codes = [int(flag) >> POS_SHIFT for flag in blocks[0].flags]
    names = [PARTS_OF_SPEECH[code - 1] if code else "" for code in codes]
    assert names == ["ADJ", "PROPN", "VERB", "ADP", "NOUN", "", "PUNCT"], "a merged noun is what its first noun is"
    classes = token_classes(blocks, scaled("all"))
    assert classes.tolist() == [1, 0, 2, 0, 3, 0, 2], "class 0 is the factor 1, then rising factors"
    assert len(classes) == len(gather_batch(blocks).neuron)
    assert class_bits(scaled("all")) == 2


MODES = {"pos_factors": {"VERB": 2.0, "NOUN": 10.0}, "strength_limit": 30.0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text with its networks: without modes, with them, and with them in other batches and regions."""
    folder = tmp_path_factory.mktemp("modes")
    text = write_village(folder / "village.txt", 400)
    with gd.connect(workers=0) as client:
        for name, fields, options in (
            ("plain", {}, {}),
            ("once", MODES, {}),
            ("parts", {**MODES, "regions": 3}, {"batch_sequences": 37, "block_characters": 3000, "accumulate": 2}),
        ):
            network = gd.train(
                text,
                folder / name,
                client=client,
                specification=gd.Specification(**fields),
                options=gd.TrainingOptions(**options),
            )
            network.export(folder / f"{name}.npz")
        for kept in (False, True):
            chosen = gd.TextOptions(parts_of_speech=kept)
            gd.encode(text, folder / f"corpus-{kept}", client=client, text=chosen)
    return folder


@pytest.mark.cluster
def test_a_network_with_modes_is_the_same_however_it_is_trained(trained: Path) -> None:
    assert (trained / "once.npz").read_bytes() == (trained / "parts.npz").read_bytes()
    network = gd.Network(trained / "once")
    assert network.describe()["specification"]["pos_factors"] == (("NOUN", 10.0), ("VERB", 2.0))
    with np.load(trained / "once.npz") as modes, np.load(trained / "plain.npz") as plain:
        for name in ("src_col", "src_feat", "branch", "seg", "tgt_col", "tgt_feat"):
            assert modes[name].tobytes() == plain[name].tobytes(), "modes add no connection and remove none"
        assert modes["strength"].max() == 30
        # Between columns, what begins at a noun is tenfold; inside one, nothing is scaled.
        column_segment = plain["seg"] < Specification().column_segments
        inside = plain["seg"] == Specification().column_segments - 1
        for chosen, factor in ((inside, 1), (column_segment & ~inside & (plain["src_feat"] == 0), 10)):
            assert chosen.sum() > 100
            wanted = np.minimum(plain["strength"][chosen].astype(np.float64) * factor, 30)
            assert modes["strength"][chosen] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.cluster
def test_corpora_with_parts_of_speech(trained: Path, tmp_path: Path) -> None:
    without, kept = (gd.EncodedCorpus(trained / f"corpus-{kept}") for kept in (False, True))
    assert not without.attributes["parts_of_speech"]
    assert int(without.encoded().flags.max()) < 1 << POS_SHIFT <= int(kept.encoded().flags.max())
    assert (without.encoded().flags == kept.encoded().flags & 7).all()
    with gd.connect(workers=0) as client:
        network = gd.train(kept.path, tmp_path / "kept", client=client, specification=gd.Specification(**MODES))
        network.export(tmp_path / "kept.npz")
        plain = gd.train(kept.path, tmp_path / "plain", client=client)
        plain.export(tmp_path / "plain.npz")
        with pytest.raises(SpecificationError, match=r"without parts of speech.*parts_of_speech"):
            gd.train(without.path, tmp_path / "none", client=client, specification=gd.Specification(**MODES))
    assert not (tmp_path / "none").exists()
    for name, same in (("kept", "once"), ("plain", "plain")):
        assert (tmp_path / f"{name}.npz").read_bytes() == (trained / f"{same}.npz").read_bytes()


@pytest.mark.cluster
def test_commands(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, net = str(trained / "village.txt"), str(tmp_path / "net")
    modes = ["--set", "pos_factors=VERB=2,NOUN=10", "--set", "strength_limit=30"]
    assert cli.run(["train", text, "--network", net, "--workers", "0", *modes]) == 0
    assert cli.run(["inspect", net]) == 0
    shown = capsys.readouterr().out
    assert "strength_limit 30" in shown
    assert "VERB" in shown
    assert cli.run(["export", net, "--out", f"{net}.npz"]) == 0
    assert (tmp_path / "net.npz").read_bytes() == (trained / "once.npz").read_bytes()
    capsys.readouterr()
    refusals = {
        "has --set strength_limit 30": ["--network", net, "--set", "strength_limit=31"],
        "has --set pos_factors": ["--network", net, "--set", "pos_factors=published"],
        "permanence_growth 3": ["--network", f"{net}2", "--set", "permanence_growth=3"],
        "--set pos_factors is 'VERB:3'": ["--network", f"{net}2", "--set", "pos_factors=VERB:3"],
        "expected --set strength_limit with it": ["--network", f"{net}2", "--set", "limit_scope=pair"],
    }
    for message, options in refusals.items():
        assert cli.run(["train", text, *options, "--workers", "0"]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert not Path(f"{net}2").exists()
    assert cli.run(["train", text, "--network", net, "--workers", "0", *modes]) == 0
