"""Search ahead with a beam before a token is generated.

The contracts say little of it (that of profile ``v2``, in its section 12: each beam clones the state and repeats steps
h, i and b to d), and no golden file tests it. These are the rules here:

1. At every token to be generated, the most active candidates, at most `BeamOptions.width`, each begin a path. They are
   ranked by their values as in any step, however paths are scored. Those that the mode of the step would reject begin
   none. With `BeamOptions.prefer`, the best columns, at most `BeamOptions.width`, each begin a path instead, with their
   most active candidate that is not rejected (see `_column_scores`).
2. A path is continued as generation would: its last token is the source of the next step, which is taken in a state of
   the path's own, and whose candidates, again at most `width`, each continue it. Of all continued paths, the `width`
   with the largest scores are kept. This is repeated until paths have `BeamOptions.depth` tokens. A path that cannot be
   continued, because its last token has no connections or no candidates, ends with its score.
3. The score of a path is a sum over its tokens, chosen by `BeamOptions.score`: ``"activation"``, a token's value as a
   candidate; ``"connection"``, the trained strength from the token before it, summed over the connections of the last
   segment, which stand for adjacent tokens, on all branches; or ``"both"``, the sum of the two. Values and strengths
   are added as double precision numbers, in the order of the tokens.
4. The first token of the path with the largest score, ended ones included, is generated, and only that one; the next
   token is searched for anew. Of equal scores, the path wins whose tokens come first in the order of
   neurons (`giaann_dask.models.columns.state.name_order`), compared one by one, the shorter first.

So width 1 is plain generation at any depth, and so is depth 1 scored by activation, both without preferences. The depth
does not depend on the number of tokens to generate, so generating more changes none before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import FEATURE_MASK, NEURON_MASK, SEGMENT_SHIFT, Integers, feature_of
from giaann_dask.models.columns.state.activation import Candidates, TokenTimes
from giaann_dask.models.columns.state.inference_options import CandidateSelection
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.models.columns.state.session import DecodingStrategy, FlagTable, SequenceSession, StepResult, Token
from giaann_dask.models.columns.v1.session import Session
from giaann_dask.models.columns.v2.dynamics import Clock
from giaann_dask.models.columns.v2.session import V2Session, passing
from giaann_dask.models.generation_options import BeamOptions
from giaann_dask.rows.source import RowSource
from giaann_dask.spec import BRANCH_BITS, FEATURE_BITS, Specification

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class _BeamPath:
    """Tokens that could follow, and the state from which they are continued.

    `token` tells the times of the last of `neurons`, `source` is the one before it, and `state` is the one in which it
    was a candidate.
    """

    score: float
    neurons: tuple[int, ...]
    state: Any
    source: int
    token: Token

    def rank(self, order: NameOrder) -> tuple[float, tuple[object, ...]]:
        """Return the sort key of paths, the best first, equal ones in the order of their neurons."""
        return -self.score, tuple(order.key(neuron) for neuron in self.neurons)


class _BeamSearch(SequenceSession[Any, Any]):
    """A session that looks ahead before it chooses a generated token; the other base is that of its profile.

    Sequences whose tokens are given (`run_sequence`) are treated as by that.

    Parameters
    ----------
    specification : Specification
        Of the network.
    rows : RowSource
        Outgoing connections by neuron key, with strengths where paths are scored by them.
    flags : FlagTable
        Stored delimiter flags of every feature that the rows or the sequences name.
    beam : BeamOptions
        Width, depth, score and preferences.
    options : InferenceOptions or V2Options, optional
        Rules of inference.
    """

    def __init__(
        self,
        specification: Specification,
        rows: RowSource,
        flags: FlagTable,
        *,
        beam: BeamOptions,
        options: Any = None,
    ) -> None:
        super().__init__(specification, rows, flags, options=options)
        self.beam = beam

    @property
    def _selection(self) -> CandidateSelection:
        """Rules by which the mode of a step rejects candidates."""
        return CandidateSelection.reference()

    def _settled(self, path: _BeamPath) -> Any:
        """Return a copy of the state of a path after the end of its last step."""
        return path.state.copy()

    def _kept(self, state: Any) -> Any:
        """Return the state of a step at which candidates are known, as it stays when the step ends."""
        return state

    def _advance(
        self, state: Any, source: int, token: Token, decoding: DecodingStrategy
    ) -> tuple[StepResult, Candidates | None]:
        """Do one step; where a token is generated, choose it by looking ahead."""
        if not token.seed and token.target is None and self.beam.searches:
            decoding = replace(
                decoding, choose=lambda _, found: self._search(_BeamPath(0.0, (), state, source, token), found)
            )
        return super()._advance(state, source, token, decoding)  # type: ignore[safe-super]

    def _search(self, root: _BeamPath, found: Candidates) -> int:
        """Return the place of the first neuron of the best path, of the best candidate where all are rejected."""
        paths = self._continued(root, root.source, found)
        ended: list[_BeamPath] = []
        for _ in range(self.beam.depth - 1):
            longer: list[_BeamPath] = []
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
        if not ended:
            return found.best
        first = min(ended, key=lambda path: path.rank(self.flags.order)).neurons[0]
        return int(np.searchsorted(found.neuron, first))

    def _following(self, path: _BeamPath) -> list[_BeamPath]:
        """Return the paths that go on with a path by one token."""
        last, times = path.neurons[-1], path.token.times
        concepts = times.column_time + (feature_of(last) == 0)
        times = TokenTimes(feature_time=times.feature_time + 1, column_time=concepts, open_noun=True)
        token = replace(path.token, times=times, source_column=concepts)
        longer: list[_BeamPath] = []

        def look(_: int, found: Candidates) -> int:
            longer.extend(self._continued(replace(path, state=self._kept(state), token=token), last, found))
            return found.best

        # Several paths go on from one state.
        state = self._settled(path)
        super()._advance(state, last, token, DecodingStrategy(feed="prediction", choose=look))  # type: ignore[safe-super]
        return longer

    def _continued(self, path: _BeamPath, source: int, found: Candidates) -> list[_BeamPath]:
        """Return a path with each of the best candidates of its next step, the mode allowing."""
        number = path.token.number
        if self.beam.prefer:
            neurons, values = self._of_best_columns(source, number, found.neuron, found.value)
        else:
            neurons, values = found.ranked(self.beam.width)
            allowed = self._allowed(source, number, neurons)
            neurons, values = neurons[allowed], values[allowed]
        scores = np.zeros(len(neurons))
        if self.beam.score != "connection":
            scores += values
        if self.beam.score != "activation":
            scores += self._strengths(source, neurons)
        pairs = zip(scores.tolist(), neurons.tolist(), strict=True)
        return [replace(path, score=path.score + gain, neurons=(*path.neurons, n), source=source) for gain, n in pairs]

    def _allowed(self, source: int, number: int, neurons: Integers) -> npt.NDArray[np.bool_]:
        """Return which neurons the mode of a source lets follow."""
        mode = self.flags.mode(feature_of(source), number)
        passes = passing(neurons, source, mode, self.flags, number, self._selection)
        return np.ones(len(neurons), np.bool_) if passes is None else passes

    def _of_best_columns(
        self, source: int, number: int, neuron: Integers, value: npt.NDArray[np.float32]
    ) -> tuple[Integers, npt.NDArray[np.float32]]:
        """Return the most active candidate of each of the best columns, the mode allowing, the best column first.

        Equal columns are in the order of these candidates.
        """
        order, allowed = self.flags.order, self._allowed(source, number, neuron)
        columns, of = np.unique(neuron >> FEATURE_BITS, return_inverse=True)
        scores, best = self._column_scores(source, neuron, value, of), []
        for at in range(len(columns)):
            here = np.flatnonzero((of == at) & allowed)
            if len(here):
                best.append(int(here[order.first(neuron[here], value[here])]))
        best.sort(key=lambda place: (-scores[of[place]], order.key(int(neuron[place]))))
        places = best[: self.beam.width]
        return neuron[places], value[places]

    def _column_scores(self, source: int, neuron: Integers, value: npt.NDArray[np.float32], of: Integers) -> Scores:
        """Return the score of each column of candidates, whose columns `of` names from 0 on; float64.

        It is the largest value of its candidates and, for each preference: ``"active"``, the number of its active
        candidates, those of a value above 0; ``"connected"``, the mean strength with which the source leads to these;
        ``"shared"``, the number of their features that the active candidates of the source's own column have, too, and
        for that column itself the largest such number.
        """
        scores = np.full(int(of.max(initial=-1)) + 1, -np.inf)
        np.maximum.at(scores, of, value)
        active = value > 0
        counts = np.bincount(of[active], minlength=len(scores))
        if "active" in self.beam.prefer:
            scores += counts
        if "connected" in self.beam.prefer:
            strengths = self._strengths(source, neuron[active])
            scores += np.bincount(of[active], strengths, len(scores)) / np.maximum(counts, 1)
        if "shared" in self.beam.prefer:
            own, feature = neuron >> FEATURE_BITS == source >> FEATURE_BITS, neuron & FEATURE_MASK
            both = active & ~own & np.isin(feature, feature[active & own])
            shared = np.bincount(of[both], minlength=len(scores))
            shared[of[own]] = shared.max(initial=0)
            scores += shared
        return scores

    def _strengths(self, source: int, neurons: Integers) -> Scores:
        """Return the strengths from a source to each of some neurons in the last segment, float64."""
        total = np.zeros(len(neurons))
        row = self.rows.row(source)
        if row is None or not len(neurons):
            return total
        begin = int(np.searchsorted(row.target, self.specification.last_segment << SEGMENT_SHIFT))
        target = (row.target[begin:] >> BRANCH_BITS) & NEURON_MASK
        order = np.argsort(neurons)
        place = np.minimum(np.searchsorted(neurons, target, sorter=order), len(neurons) - 1)
        here = neurons[order[place]] == target
        np.add.at(total, order[place[here]], self.specification.strengths(row.strength[begin:][here]))
        return total


class BeamSession(_BeamSearch, Session):
    """A session of profile ``v1`` that looks ahead; the parameters are those of `_BeamSearch`."""


class BeamV2Session(_BeamSearch, V2Session):
    """A session of profile ``v2`` that looks ahead; the parameters are those of `_BeamSearch`."""

    @property
    def _selection(self) -> CandidateSelection:
        selection: CandidateSelection = self.options.selection
        return selection

    def _settled(self, path: _BeamPath) -> Any:
        state, times = path.state.copy(), path.token.times
        clock = Clock(times.feature_time, times.column_time, path.token.source_column, times.open_noun)
        state.settle(path.source, path.neurons[-1], clock)
        return state

    def _kept(self, state: Any) -> Any:
        # The step goes on with the best candidate.
        return state.copy()
