"""Measure how the network of a text grows, by training groups of a sample, and extrapolate it with an interval.

Connections are repeated as text grows. Of T strengthened connections V are distinct. ``T / V - 1`` follows a power of T
whose exponent falls as the sample grows, and the local exponent of V (Heaps' law) falls, too: the power law of the
first underestimates V, and that of the second overestimates it. The estimate lies between both, and their distance is
part of the interval, as is the difference between the groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import giaann_dask as gd
from giaann_dask.errors import EmptyInputError
from giaann_dask.events import Event, RoundIntegrated
from giaann_dask.planning.sampling import PIECE, TextSample, write_pieces
from giaann_dask.text.blocks import CANDIDATE

GROUPS = 8
"""Groups of a sample."""
# Of Student's distribution with as many degrees of freedom as there are groups less one: 80 % of it are between.
_QUANTILE = 1.415
# Weight of the upper law in the estimate, most of the exponent of the lower one, part of their distance that is one
# standard error of the estimate, and the least such error for each unit of the logarithm of the extrapolation.
_UPPER, _MOST_EXPONENT, _DISTANCE, _LEAST_ERROR = 2 / 3, 0.7, 1 / 4, 0.02
_LEAST_SEQUENCES = 64
# Places of an encoded corpus at which pairs are counted, and sequences at each, at most.
_SLICE = 64
Floats: TypeAlias = npt.NDArray[np.float64]
# Small batches, so that repeated connections are counted for text of one place.
_SMALL = gd.TrainingOptions(batch_sequences=64, block_characters=PIECE, commit_seconds=3600.0)


class _GroupPart(NamedTuple):
    """Inputs to be trained, their size, and the number of sequences to stop at."""

    inputs: Any
    size: float
    most: int | None = None


class Interval(NamedTuple):
    """Estimate with an interval of 80 %."""

    low: float
    likely: float
    high: float

    @classmethod
    def around(cls, likely: float, error: float) -> Interval:
        """Return the interval of a value whose logarithm has a standard error."""
        factor = math.exp(_QUANTILE * error)
        return cls(float(likely / factor), float(likely), float(likely * factor))

    def widened(self, error: float) -> Interval:
        """Return the interval of a product with a factor near 1 that has a standard error."""
        own = math.log(self.high / self.likely) / _QUANTILE if self.likely else 0.0
        return Interval.around(self.likely, math.hypot(own, error))

    def times(self, factor: float) -> Interval:
        """Return the interval of a multiple."""
        return Interval(*(factor * each for each in self))


class Growth(NamedTuple):
    """Measured growth of the network of a sample; arrays have a value for each of its groups.

    Attributes
    ----------
    size : ndarray
        Characters of text, or pairs of tokens of encoded corpora.
    sequences, strengthened, increment_bytes : ndarray
        Sequences of the text, connections that they strengthened, and bytes of their increments.
    connections, words : ndarray
        Distinct connections and dictionary entries after each group.
    connection_bytes : float
        Bytes of a stored connection.
    """

    size: Floats
    sequences: Floats
    strengthened: Floats
    increment_bytes: Floats
    connections: Floats
    words: Floats
    connection_bytes: float

    def total(self, values: Floats, size: float) -> Interval:
        """Return what a text of some size has of a figure of the groups (ratio estimator)."""
        groups, rate = len(values), values.sum() / self.size.sum()
        if groups < 2 or size <= self.size.sum():
            return Interval.around(rate * size, 0.0)
        rest = values - rate * self.size
        error = math.sqrt(groups * float(rest @ rest) / (groups - 1)) / max(values.sum(), 1e-9)
        return Interval.around(rate * size, error)

    def distinct(self, size: float) -> Interval:
        """Return the distinct connections of a text of some size."""
        known, far = self.connections[-1], math.log(max(size / self.size.sum(), 1.0))
        if far == 0.0 or len(self.size) < 4:
            return Interval.around(known * math.exp(far), 0.5 * far)
        at = [len(self.size) // 4 - 1, len(self.size) // 2 - 1, len(self.size) - 1]
        steps, found = self.strengthened.cumsum()[at], self.connections[at]
        repeated = np.maximum(steps / found - 1, 1e-9)
        exponent = float(np.clip(np.polyfit(np.log(steps), np.log(repeated), 1)[0], 0.05, _MOST_EXPONENT))
        lower = math.log(steps[-1]) + far - math.log1p(repeated[-1] * math.exp(exponent * far))
        heaps = math.log(found[2] / found[1]) / math.log(steps[2] / steps[1])
        upper = math.log(known) + min(heaps, 1.0) * far
        distance = max(upper - lower, 0.0)
        _, likely, high = self.total(self.strengthened, size)
        groups = math.log(high / likely) / _QUANTILE
        error = math.hypot(groups, _DISTANCE * distance, _LEAST_ERROR * far)
        return Interval.around(math.exp(upper - (1 - _UPPER) * distance), error)

    def dictionary(self, size: float) -> float:
        """Return the dictionary entries of a text of some size, by the law of the second half of the sample."""
        half, whole = self.words[len(self.words) // 2 - 1], self.words[-1]
        exponent = min(math.log2(max(whole / max(half, 1.0), 1.0)), 1.0)
        return float(whole * max(size / self.size.sum(), 1.0) ** exponent)


def measure_text(sample: TextSample, specification: gd.Specification, text: gd.TextOptions) -> Growth:
    """Train the groups of a sample of text, one after another, and return how the network grew.

    Raises
    ------
    EmptyInputError
        If the sample has fewer than 64 sequences that can be trained.
    """
    with TemporaryDirectory(prefix="giaann-plan-") as folder:
        groups = []
        for group in sample.groups:
            inputs = filter(None, write_pieces(group, Path(folder)))
            # The size of a group is counted once.
            sizes = chain([float(sum(piece.size for piece in group))], repeat(0.0))
            groups.append([_GroupPart(each, size) for each, size in zip(inputs, sizes, strict=False)])
        return _measure(groups, specification=specification, text=text)


def measure_corpora(
    corpora: Sequence[gd.EncodedCorpus], sequences: int, specification: gd.Specification | None
) -> tuple[Growth, float]:
    """Train the beginnings of encoded corpora in steps; return how the network grew, and the size of the corpora.

    The size is the number of pairs of tokens, each of which strengthens a connection; that of the rest of a corpus is
    estimated from sequences that are spread over it.
    """
    share = min(1.0, sequences / max(sum(map(len, corpora)), 1))
    ends = [[round(share * len(corpus) * number / GROUPS) for number in range(GROUPS + 1)] for corpus in corpora]
    groups = [
        [
            _GroupPart(corpus, _pairs(corpus, *end[number : number + 2]), end[number + 1])
            for corpus, end in zip(corpora, ends, strict=True)
            if end[number] < end[number + 1]
        ]
        for number in range(GROUPS)
    ]
    growth = _measure(groups, specification=specification)
    rest = sum(_spread_pairs(corpus, end[-1]) for corpus, end in zip(corpora, ends, strict=True))
    return growth, float(growth.size.sum()) + rest


def _measure(groups: Iterable[Iterable[_GroupPart]], **given: Any) -> Growth:
    """Train groups one after another into one network in this process; those without a sequence are left out."""
    rows = list[Floats]()
    trained = 0
    with TemporaryDirectory(prefix="giaann-plan-") as folder, gd.connect(workers=0) as client:
        given |= {"client": client, "progress": False}
        for group in groups:
            row = np.zeros(len(Growth._fields) - 1)
            for inputs, size, most in group:
                options = replace(_SMALL, max_sequences=most)
                observe = partial(_add_strengthened, row)
                try:
                    network = gd.train(inputs, Path(folder) / "network", options=options, observer=observe, **given)
                except EmptyInputError:
                    # Nothing of a small group can be trained.
                    continue
                report, manifest = network.training_report, network.manifest
                if "text" in given:
                    # The network has its lexicon and tokenizer now.
                    given["text"] = replace(given["text"], ever_pos=None, tokenizer=None)
                trained += report.trained
                row[[0, 1, 3]] += size, report.sequences, report.increment_bytes
                row[4:] = report.connections, manifest.concepts + manifest.features
            rows += [row] if row[1] else []
    if trained < _LEAST_SEQUENCES:
        raise EmptyInputError(
            f"a sample of {trained} sequences that can be trained",
            f"{_LEAST_SEQUENCES} or more",
            "give a longer text, or a larger sample",
        )
    nbytes, connections = (sum(getattr(run, name) for run in manifest.runs) for name in ("nbytes", "connections"))
    size, sequences, strengthened, increment_bytes, found, words = np.array(rows).T
    return Growth(size, sequences, strengthened, increment_bytes, found, words, nbytes / max(connections, 1))


def _add_strengthened(row: Floats, event: Event) -> None:
    if isinstance(event, RoundIntegrated):
        row[2] += event.connections


def _pairs(corpus: gd.EncodedCorpus, begin: int, end: int) -> float:
    """Return the pairs of tokens of the trained sequences of a range of a corpus."""
    block = corpus.encoded(begin, end)
    lengths = np.diff(block.offsets)[block.status == CANDIDATE].astype(np.float64)
    return float((lengths * (lengths - 1) / 2).sum())


def _spread_pairs(corpus: gd.EncodedCorpus, begin: int) -> float:
    """Return an estimate of the pairs of tokens of a corpus from a sequence on."""
    left = len(corpus) - begin
    if left == 0:
        return 0.0
    starts = np.unique(np.linspace(begin, max(len(corpus) - _SLICE, begin), _SLICE).astype(np.int64)).tolist()
    ranges = [(start, min(start + _SLICE, len(corpus))) for start in starts]
    counted: int = sum(end - start for start, end in ranges)
    return sum(_pairs(corpus, *each) for each in ranges) * left / counted
