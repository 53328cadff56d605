"""The training rule in plain torch, sentence by sentence, as one would write it in an afternoon.

A yardstick for the engine: one process, all pairs of a sentence at once, a dictionary that grows.
It reads encoded sequences, so that neither side pays for tagging. `check_equal` compares what it
trained with a network of ours; run as a script, it does so with the sample text.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

import giaann_dask as gd
from giaann_dask.spec import Specification
from giaann_dask.text.blocks import CANDIDATE
from giaann_dask.text.segmentation import EncodedBlock

# Strengths of ours are whole units of 2 ** -20; the smallest increment is 10 / 80, so this is the bound.
RELATIVE_TOLERANCE = 4e-6

# A key holds (branch, segment) below the target and the target below the source.
PLACES = 1 << 10
NEURONS = 1 << 26


@dataclass
class PlainNetwork:
    """A network as dictionaries.

    Attributes
    ----------
    numbers : dict of (int, int) to int
        Number of each (column, feature) neuron.
    connections : dict of int to float
        Strengths by source, target, segment and branch packed into one integer.
    neurons : dict of int to float
        Strengths of the neurons themselves by neuron, segment and branch.
    """

    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    connections: dict[int, float] = field(default_factory=dict)
    neurons: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Sentence:
    """One sequence: column, feature, branch and column occurrence of each token."""

    column: list[int]
    feature: list[int]
    branch: torch.Tensor
    occurrence: torch.Tensor


def sentences(block: EncodedBlock, first: int = 0) -> Iterator[Sentence | None]:
    """Yield the sequences of a block from one on, None for those that train nothing."""
    for sequence in range(first, len(block)):
        low, high = int(block.offsets[sequence]), int(block.offsets[sequence + 1])
        if block.status[sequence] != CANDIDATE:
            yield None
            continue
        yield Sentence(
            block.column[low:high].tolist(),
            block.feature[low:high].tolist(),
            torch.from_numpy(block.branch[low:high].astype(np.int64)),
            torch.from_numpy(block.occurrence[low:high].astype(np.int64)),
        )


def train_sentence(network: PlainNetwork, sentence: Sentence, specification: Specification) -> None:
    """Add what one sentence trains."""
    numbers = network.numbers
    pairs = zip(sentence.column, sentence.feature, strict=True)
    neuron = torch.tensor([numbers.setdefault(pair, len(numbers)) for pair in pairs])
    keys, strength = connect(neuron, sentence.branch, sentence.occurrence, specification)
    add(network.connections, keys, strength)
    noun = torch.tensor([feature == 0 for feature in sentence.feature])
    position = noun.nonzero().squeeze(1)[sentence.occurrence]
    keys = strengthen(neuron, sentence.branch, sentence.occurrence, position, specification)
    add(network.neurons, keys, torch.ones(len(keys)))


def connect(
    neuron: torch.Tensor, branch: torch.Tensor, occurrence: torch.Tensor, specification: Specification
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return key and increment for both segments of every ordered pair of tokens."""
    source, target = torch.triu_indices(len(neuron), len(neuron), offset=1)
    distance = target - source
    column_segments, feature_segments = specification.column_segments, specification.feature_segments
    column_segment = (column_segments - 1 - (occurrence[target] - occurrence[source])).clamp(min=0)
    feature_segment = column_segments + feature_segments - distance.clamp(max=feature_segments)
    pair = (neuron[source] * NEURONS + neuron[target]) * PLACES + branch[target]
    segments = torch.cat([column_segment, feature_segment]) * specification.branches
    increment = 1.0 / (distance + 1).to(torch.float32) * specification.proximity_scale
    return pair.repeat(2) + segments, increment.repeat(2)


def strengthen(
    neuron: torch.Tensor,
    branch: torch.Tensor,
    occurrence: torch.Tensor,
    position: torch.Tensor,
    specification: Specification,
) -> torch.Tensor:
    """Return a key for each segment of its own neuron that each token strengthens by one."""
    segment = torch.arange(specification.segments)
    column_segments = specification.column_segments
    in_column = (segment < column_segments) & (segment <= occurrence[:, None])
    in_feature = (segment >= column_segments) & (segment - column_segments <= position[:, None])
    token, chosen = (in_column | in_feature).nonzero(as_tuple=True)
    return neuron[token] * PLACES + chosen * specification.branches + branch[token]


def add(strengths: dict[int, float], keys: torch.Tensor, increments: torch.Tensor) -> None:
    """Add increments to a dictionary, which is faster than coalescing them as a sparse tensor first."""
    for key, increment in zip(keys.tolist(), increments.tolist(), strict=True):
        strengths[key] = strengths.get(key, 0.0) + increment


def train(block: EncodedBlock, specification: Specification, seconds: float = float("inf")) -> tuple[PlainNetwork, int]:
    """Train the sequences of a block for a bounded time; return the network and how many there were."""
    network, counted, started = PlainNetwork(), 0, time.perf_counter()
    for sentence in sentences(block):
        counted += 1
        if sentence is not None:
            train_sentence(network, sentence, specification)
        if time.perf_counter() - started > seconds:
            break
    return network, counted


def check_equal(plain: PlainNetwork, path: Path) -> tuple[int, int]:
    """Compare with a network of ours, trained on the same corpus and nothing else.

    Returns
    -------
    tuple of int
        Number of connections and of neurons' segments that are equal.

    Raises
    ------
    AssertionError
        If a connection is missing or too many, or a strength differs by more than the tolerance.
    """
    network = gd.Network(path)
    with tempfile.TemporaryDirectory() as folder:
        network.export(Path(folder) / "net.npz")
        own = dict(np.load(Path(folder) / "net.neurons.npz"))
    table, branches = network.table(), network.specification.branches
    source, target = _numbered(plain, table.src_col, table.src_feat), _numbered(plain, table.tgt_col, table.tgt_feat)
    place = table.seg.astype(np.int64) * branches + table.branch
    _check("connections", plain.connections, (source * NEURONS + target) * PLACES + place, table.strength)
    neuron, place = _numbered(plain, own["col"], own["feat"]), own["seg"].astype(np.int64) * branches + own["branch"]
    _check("neurons", plain.neurons, neuron * PLACES + place, own["strength"])
    return len(plain.connections), len(plain.neurons)


def _numbered(plain: PlainNetwork, column: np.ndarray, feature: np.ndarray) -> np.ndarray:
    pairs = zip(column.tolist(), feature.tolist(), strict=True)
    return np.array([plain.numbers.get(pair, -1) for pair in pairs], np.int64)


def _check(what: str, plain: dict[int, float], keys: np.ndarray, strength: np.ndarray) -> None:
    expected = np.array(sorted(plain), np.int64)
    order = np.argsort(keys)
    assert np.array_equal(expected, keys[order]), f"{what}: {len(expected)} here, {len(keys)} in the network"
    values = np.array([plain[key] for key in expected.tolist()])
    np.testing.assert_allclose(strength[order], values, rtol=RELATIVE_TOLERANCE, err_msg=what)


def compare(text: str | Path, sequences: int | None = None) -> tuple[int, int]:
    """Train a text's first sequences with both and compare the results; see `check_equal`."""
    with tempfile.TemporaryDirectory() as folder, gd.connect(workers=0) as client:
        corpus = gd.encode(text, Path(folder) / "corpus", client=client, max_sequences=sequences)
        network = gd.train(corpus.path, Path(folder) / "network", client=client)
        plain, _ = train(corpus.encoded(), network.specification)
        return check_equal(plain, network.path)


def main() -> None:
    """Compare the two on a small text and say that they are equal."""
    from giaann_dask.data import sample_text

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", default=str(sample_text()), help="text to train with both")
    parser.add_argument("--sequences", type=int, help="train only so many")
    arguments = parser.parse_args()
    connections, neurons = compare(arguments.text, arguments.sequences)
    print(f"equal: {connections:,} connections, {neurons:,} strengths of neurons' own segments")


if __name__ == "__main__":
    main()
