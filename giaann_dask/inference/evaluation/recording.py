"""Collecting in a task what was predicted for encoded sequences.

Covers: from the steps of sessions to `giaann_dask.inference.evaluation.matching.Predictions`: which steps count,
the words and parts of speech of their tokens, and the best few candidates where these are wanted.
Does not cover: making predictions (`steps`) and judging them (`evaluation.matching`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from giaann_dask.inference.evaluation.code_length import token_probability
from giaann_dask.inference.evaluation.matching import NO_PREDICTION, Predictions
from giaann_dask.inference.rows.cache import RowStatistics
from giaann_dask.inference.state.candidates import Candidates
from giaann_dask.inference.state.sequence import SequenceResult, StepResult, StepTrace
from giaann_dask.keys import pack_neuron
from giaann_dask.text.blocks import POS_SHIFT
from giaann_dask.text.segmentation import EncodedBlock


class StepRecords:
    """The completed steps of the prediction phase of some sequences of a block.

    Parameters
    ----------
    block : EncodedBlock
        Which holds the sequences.
    ranks : int
        How many of the best candidates of each step are kept, 1 or more.
    probability : bool
        Whether the probabilities of tokens are kept, too.
    """

    def __init__(self, block: EncodedBlock, ranks: int, *, probability: bool = False) -> None:
        self._block = block
        self._ranks = ranks
        self._shares: list[float] | None = [] if probability else None
        self._found: dict[int, Candidates] = {}
        self._best: dict[int, npt.NDArray[np.int64]] = {}
        # Of each step: sequence, position, predicted neuron, candidates.
        self._steps: list[tuple[int, int, int, int]] = []
        self._token: list[int] = []
        self._runners_up: list[npt.NDArray[np.int64]] = []
        self._tokens = self._stopped = 0

    @property
    def observing(self) -> bool:
        """Whether the candidates of steps are looked at."""
        return self._ranks > 1 or self._shares is not None

    def observe(self, trace: StepTrace) -> None:
        """Record the best candidates of a step of the current sequence; an observer of sessions.

        Where only the best one is kept, which results tell as well, there is nothing to observe.
        """
        if trace.candidates is not None:
            if self._shares is not None:
                self._found[trace.result.index] = trace.candidates
            self._best[trace.result.index] = trace.candidates.ranked(self._ranks)[0]

    def add(self, place: int, outcome: SequenceResult) -> None:
        """Add the steps of a sequence.

        Parameters
        ----------
        place : int
            Of the sequence in the block.
        outcome : SequenceResult
            Its steps.
        """
        low, high = int(self._block.offsets[place]), int(self._block.offsets[place + 1])
        number = self._block.first_sequence + place
        self._tokens += high - low
        self._stopped += outcome.stop is not None
        for step in outcome.steps:
            if step.seed or step.next is None:
                continue
            predicted = NO_PREDICTION if step.predicted is None else step.predicted
            self._steps.append((number, step.index, predicted, step.candidates))
            self._token.append(low + step.index)
            if self._ranks > 1:
                self._runners_up.append(self._others(step))
            if self._shares is not None:
                self._shares.append(self._share(step.index, low + step.index))
        self._best.clear()
        self._found.clear()

    def _others(self, step: StepResult) -> npt.NDArray[np.int64]:
        """Return the candidates after the predicted one; none where it was rejected, as all are then."""
        others = np.full(self._ranks - 1, NO_PREDICTION, np.int64)
        if step.predicted is not None:
            best = self._best[step.index]
            rest = best[best != step.predicted][: self._ranks - 1]
            others[: len(rest)] = rest
        return others

    def _share(self, index: int, token: int) -> float:
        """Return the probability of a token; 0 where a step had no candidates."""
        found, block = self._found.get(index), self._block
        return token_probability(found, _neuron(block, token)) if found is not None else 0.0

    def predictions(self, rows: RowStatistics | None = None) -> Predictions:
        """Return what was added, with the figures of the rows that it took."""
        block, token = self._block, np.array(self._token, np.int64)
        columns = np.array(self._steps, np.int64).reshape(-1, 4)
        words = block.surface[token].tolist()
        return Predictions(
            sequence=columns[:, 0].copy(),
            position=columns[:, 1].copy(),
            predicted=columns[:, 2].copy(),
            target=pack_neuron(block.column[token], block.feature[token]),
            surface=tuple(block.surfaces[word] if word >= 0 else "" for word in words),
            part=(block.flags[token] >> POS_SHIFT).astype(np.uint8),
            candidates=columns[:, 3].copy(),
            runners_up=np.array(self._runners_up, np.int64).reshape(len(token), self._ranks - 1),
            tokens=self._tokens,
            stopped=self._stopped,
            rows=rows,
            probability=None if self._shares is None else np.array(self._shares, np.float64),
        )


def _neuron(block: EncodedBlock, token: int) -> int:
    """Return the neuron key of a token of a block."""
    return int(pack_neuron(block.column[token : token + 1], block.feature[token : token + 1])[0])
