"""Search ahead with a beam before a token is generated.

The contract does not define it, and the reference's specification says little. These are the rules here:

1. At every token to be generated, the most active candidates, at most `BeamOptions.width`, each begin a path. They are
   ranked by their values as in any step, however paths are scored. Those that the mode of the step would reject begin
   none.
2. A path is continued as generation would: its last token is the source of the next step, which propagates and
   deactivates in a state of the path's own, and whose most active candidates, again at most `width`, each continue it.
   Of all continued paths, the `width` with the largest scores are kept. This is repeated until paths have
   `BeamOptions.depth` tokens. A path that cannot be continued, because its last token has no connections or no
   candidates, ends with its score.
3. The score of a path is a sum over its tokens, chosen by `BeamOptions.score`: ``"activation"``, a token's value as a
   candidate; ``"connection"``, the trained strength from the token before it, summed over the connections of the last
   segment, which stand for adjacent tokens, on all branches; or ``"both"``, the sum of the two. Values and strengths
   are added as double precision numbers, in the order of the tokens.
4. The first token of the path with the largest score, ended ones included, is generated, and only that one; the next
   token is searched for anew. Of equal scores, the path wins whose tokens come first in the order of
   neurons (`giaann_dask.models.columns.state.name_order`), compared one by one, the shorter first.

So width 1 is plain generation at any depth, and so is depth 1 scored by activation. The depth does not depend on the
number of tokens to generate, so generating more changes none before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import NEURON_MASK, SEGMENT_SHIFT, feature_of
from giaann_dask.models.columns.state.activation import ActivationState
from giaann_dask.models.columns.state.candidates import Candidates, TokenTimes
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.models.columns.state.sequence import FlagTable, StepResult
from giaann_dask.models.columns.state.session import DecodingStrategy, Token
from giaann_dask.models.columns.v1.session import Session
from giaann_dask.models.generation_options import BeamOptions
from giaann_dask.rows.source import RowSource
from giaann_dask.spec import BRANCH_BITS, FEATURE_BITS, Specification


@dataclass(frozen=True, eq=False, slots=True)
class _Path:
    """Tokens that could follow, and the state from which they are continued.

    `token` tells the times of the last of `neurons`, and `state` is the one in which it was a candidate.
    """

    score: float
    neurons: tuple[int, ...]
    state: ActivationState
    token: Token

    def rank(self, order: NameOrder) -> tuple[float, tuple[object, ...]]:
        """Return the sort key of paths, the best first, equal ones in the order of their neurons."""
        return -self.score, tuple(order.key(neuron) for neuron in self.neurons)


class BeamSession(Session):
    """A `Session` that looks ahead before it chooses a generated token.

    Sequences whose tokens are given (`run_sequence`) are treated as by `Session`.

    Parameters
    ----------
    specification : Specification
        Of the network.
    rows : RowSource
        Outgoing connections by neuron key, with strengths where paths are scored by them.
    flags : FlagTable
        Stored delimiter flags of every feature that the rows or the sequences name.
    beam : BeamOptions
        Width, depth and score.
    options : InferenceOptions, optional
        Rules of inference.
    """

    def __init__(
        self,
        specification: Specification,
        rows: RowSource,
        flags: FlagTable,
        *,
        beam: BeamOptions,
        options: InferenceOptions | None = None,
    ) -> None:
        super().__init__(specification, rows, flags, options=options)
        self.beam = beam

    def _advance(
        self, state: ActivationState, source: int, token: Token, decoding: DecodingStrategy
    ) -> tuple[StepResult, Candidates | None]:
        """Do one step; where a token is generated, choose it by looking ahead."""
        result, found = super()._advance(state, source, token, decoding)
        if found is None or token.seed or token.target is not None or not self.beam.searches:
            return result, found
        first = self._search(_Path(0.0, (), state, token), result, found)
        if first is None:
            return result, found
        place = int(np.searchsorted(found.arrays[0], first))
        undecided = replace(result, predicted=None, stop=None, next=None)
        chosen = replace(decoding, choose=lambda index, candidates: place)
        return self._predict(undecided, found, token, chosen), found

    def _search(self, root: _Path, result: StepResult, found: Candidates) -> int | None:
        """Return the first neuron of the best path, or None where every candidate is rejected."""
        paths = self._continued(root, result, found)
        ended: list[_Path] = []
        for _ in range(self.beam.depth - 1):
            longer: list[_Path] = []
            for path in paths:
                following = self._following(path)
                longer += following
                if not following:
                    ended.append(path)
            if not longer:
                break
            paths = sorted(longer, key=lambda path: path.rank(self.flags.order))[: self.beam.width]
        else:
            ended += paths
        return min(ended, key=lambda path: path.rank(self.flags.order)).neurons[0] if ended else None

    def _following(self, path: _Path) -> list[_Path]:
        """Return the paths that go on with a path by one token."""
        last, times = path.neurons[-1], path.token.times
        concepts = times.column_time + (feature_of(last) == 0)
        times = TokenTimes(feature_time=times.feature_time + 1, column_time=concepts, open_noun=True)
        token = replace(path.token, times=times, source_column=concepts)
        # Several paths go on from one state.
        state = path.state.copy()
        result, found = super()._advance(state, last, token, DecodingStrategy(feed="prediction"))
        if found is None:
            return []
        return self._continued(_Path(path.score, path.neurons, state, token), result, found)

    def _continued(self, path: _Path, result: StepResult, found: Candidates) -> list[_Path]:
        """Return a path with each of the most active candidates of its next step, the mode allowing."""
        neurons, values = found.ranked(self.beam.width)
        if result.mode == "internal":
            kept = (neurons >> FEATURE_BITS) == result.source >> FEATURE_BITS
            neurons, values = neurons[kept], values[kept]
        scores = np.zeros(len(neurons))
        if self.beam.score != "connection":
            scores += values
        if self.beam.score != "activation":
            scores += self._strengths(result.source, neurons)
        pairs = zip(scores.tolist(), neurons.tolist(), strict=True)
        return [_Path(path.score + gain, (*path.neurons, n), path.state, path.token) for gain, n in pairs]

    def _strengths(self, source: int, neurons: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the strength from a source to each of some neurons in the last segment, float64."""
        total = np.zeros(len(neurons))
        row = self.rows.row(source)
        if row is None or not len(neurons):
            return total
        begin = int(np.searchsorted(row.target, self._layout.last_segment << SEGMENT_SHIFT))
        target = (row.target[begin:] >> BRANCH_BITS) & NEURON_MASK
        order = np.argsort(neurons)
        place = np.minimum(np.searchsorted(neurons, target, sorter=order), len(neurons) - 1)
        here = neurons[order[place]] == target
        np.add.at(total, order[place[here]], self.specification.strengths(row.strength[begin:][here]))
        return total
