"""Keep the state of one sequence under the dynamics of profile ``v2``, or the part of it that some neurons have.

Each of the two dynamics has one class, which owns the memory of the compiled steps
(`giaann_dask.models.columns.v2.dynamics`) and looks up where neurons are in it. All that a step does to a neuron's
entries depends on the step's source and on these entries; so several states of which each is given its neurons' targets
have together the entries of one that is given all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import OptionError
from giaann_dask.keys import NEURON_MASK, SEGMENT_SHIFT, Integers, feature_of, pack_target, unpack_neuron, unpack_target
from giaann_dask.models.columns.state.activation import Candidates, StateEntries, TokenTimes
from giaann_dask.models.columns.state.inference_options import CandidateSelection, LegacyOptions, LifOptions, V2Options
from giaann_dask.models.columns.state.keyed_arrays import KeyedArrays
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.models.columns.state.session import (
    Contribution,
    DecodingStrategy,
    FlagTable,
    Mode,
    Observer,
    PrefixColumns,
    SequenceSession,
    StepResult,
    StepTrace,
    Token,
    revise,
)
from giaann_dask.models.columns.v2 import dynamics
from giaann_dask.models.columns.v2.dynamics import (
    ABSENT,
    NEVER,
    Clock,
    EntryTable,
    Floats,
    LegacyRules,
    LifRules,
    SegmentLayout,
    squashed,
)
from giaann_dask.rows.source import AuxiliaryRows, RowSource, require_layout
from giaann_dask.runs.run import Row
from giaann_dask.spec import BRANCH_BITS, FEATURE_BITS, Specification

_FIRST_STEPS = 1 << 8
# Beyond it the weight of an entry has long been 0 in float32.
_LONGEST_TIME = 1 << 12


class SequenceState(ABC):
    """Entries of one sequence in this process.

    Parameters
    ----------
    layout : SegmentLayout
        Of the network.
    branches : int
        For how many branches entries are kept apart.
    """

    def __init__(self, layout: SegmentLayout, branches: int) -> None:
        self._layout, self._branches = layout, branches
        row = branches, layout.segments
        # Stamps, values, and without a soma also marks of entries and times: the columns of an `EntryTable`.
        first: list[npt.NDArray[Any] | np.generic] = [np.int64(0), np.zeros(row, np.float32)]
        if not layout.soma:
            first += [np.zeros(row, np.bool_), np.full(row, NEVER, np.int32)]
        self._arrays, self._moment = KeyedArrays(*first), 1
        self._advanced = np.zeros(_FIRST_STEPS if layout.soma else 0, np.bool_)

    def advance(self, source: int, row: tuple[Integers, Floats], clock: Clock) -> tuple[int, Integers, Floats]:
        """Send along a source's row; return the gate and the candidates.

        Parameters
        ----------
        source : int
            Neuron key.
        row : tuple of ndarray
            Its target keys, ascending, and their strengths, float32.
        clock : Clock
            Of the token to be predicted; not the first one.

        Returns
        -------
        gate : int
            1 if the source is active enough to send, else 0.
        neuron, score : ndarray
            Candidates, ascending, and their values; int64 and float32.
        """
        gate = self._gate(source, clock)
        # Arrays from Dask may be read-only, for which steps are not compiled.
        writable = np.require(row[0], requirements="W"), np.require(row[1], requirements="W")
        return gate, *self._send(writable, source, gate, clock)

    @abstractmethod
    def _gate(self, source: int, clock: Clock) -> int:
        """Return 1 if a source is active enough to send, else 0; the parameters are those of `advance`."""

    @abstractmethod
    def _send(self, row: tuple[Integers, Floats], source: int, gate: int, clock: Clock) -> tuple[Integers, Floats]:
        """Send along a source's row; return the candidates."""

    @abstractmethod
    def settle(self, source: int, following: int, clock: Clock) -> None:
        """End a step; `following` is the next source."""

    @abstractmethod
    def entries(self) -> StateEntries:
        """Return a copy of the entries as they are after the last step, sorted."""

    @property
    def neurons(self) -> int:
        """Number of neurons with entries."""
        return len(self._arrays)

    @property
    def neuron(self) -> Integers:
        """Keys of these neurons, int64, in the order in which they were reached."""
        return self._columns[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the entries."""
        return sum(each.nbytes for each in self._columns)

    @property
    def _columns(self) -> list[npt.NDArray[Any]]:
        """The used part of the arrays of the `EntryTable`."""
        return [each[: self.neurons] for each in (self._arrays.keys, *self._arrays.columns)]

    def copy(self) -> Self:
        """Return a state with the same entries that is changed independently."""
        other = copy(self)
        other._arrays, other._advanced = self._arrays.copy(), self._advanced.copy()
        return other

    @property
    def _table(self) -> EntryTable:
        """The entries for compiled steps."""
        columns = [self._arrays.keys, *self._arrays.columns]
        if self._layout.soma:
            columns += [np.zeros((1, 1, 1), np.bool_), np.zeros((1, 1, 1), np.int32)]
        return EntryTable(*columns)

    def _find(self, neurons: Integers) -> Integers:
        """Return the places of neurons, `ABSENT` for those without entries."""
        return self._arrays.find(neurons)

    def _place(self, neuron: int) -> int:
        return int(self._find(np.array([neuron], np.int64))[0])

    def _take(self, neurons: Integers) -> Integers:
        """Return the places of neurons, after appending those without entries, which begin at the present moment."""
        before, place = self.neurons, self._arrays.take(neurons)
        self._columns[1][before:] = self._moment
        return place

    def _take_one(self, neuron: int) -> int:
        return int(self._take(np.array([neuron], np.int64))[0])

    def _ending(self, target: Integers) -> Integers:
        """Return the neurons of the target keys in the segment of adjacent tokens, ascending."""
        return _neurons_of(target[int(np.searchsorted(target, self._layout.last << SEGMENT_SHIFT)) :])

    def _sorted(self, there: npt.NDArray[np.bool_], time: npt.NDArray[np.int32]) -> StateEntries:
        """Return the entries where `there` is true, with these times; both by neuron, branch and segment."""
        flat = np.flatnonzero(there)
        slot, place = np.divmod(flat, self._branches * self._layout.segments)
        branch, segment = np.divmod(place, self._layout.segments)
        key = pack_target(segment, self.neuron[slot], branch)
        order = np.argsort(key)
        taken = flat[order]
        return StateEntries(key[order], self._columns[2].reshape(-1)[taken], time.reshape(-1)[taken])


def _neurons_of(target: Integers) -> Integers:
    neurons: Integers = (target >> BRANCH_BITS) & NEURON_MASK
    return neurons


class LifState(SequenceState):
    """Entries under leaky integrate-and-fire (contract, section 7).

    Parameters
    ----------
    layout : SegmentLayout
        Of the network, with a soma.
    options : LifOptions
        Constants.
    """

    def __init__(self, layout: SegmentLayout, options: LifOptions) -> None:
        # Connections of all branches add up at their segment: the soma is one.
        super().__init__(layout, 1)
        one = np.float32(1)
        self._rules = LifRules(
            columns=layout.columns,
            threshold=np.float32(options.threshold),
            keep_soma=one - np.float32(options.soma_decay),
            keep_column=one - np.float32(options.column_decay),
            burst=np.float32(options.burst),
            strengths=options.strengths,
            squash=options.squash,
            clear_source=options.clear_source,
        )

    def _gate(self, source: int, clock: Clock) -> int:
        """See `SequenceState._gate`."""
        self._moment = 2 * clock.token
        own = self._take_one(source)
        return int(dynamics.lif_gate(self._table, own, clock.token, self._advanced, self._rules))

    def _send(self, row: tuple[Integers, Floats], source: int, gate: int, clock: Clock) -> tuple[Integers, Floats]:
        target, _ = row
        self._moment = 2 * clock.token
        history = clock.token, self._advanced, self._rules
        if gate:
            slots = self._take(_neurons_of(target))
            dynamics.lif_send(self._table, slots, row, *history)
        neuron, score = dynamics.lif_scores(
            self._table, self._place(source), self._find(self._ending(target)), *history
        )
        return neuron, score

    def settle(self, source: int, following: int, clock: Clock) -> None:
        """Let columns move on where the next source is in another one, and burst it."""
        if clock.token == len(self._advanced):
            self._advanced = np.concatenate([self._advanced, np.zeros_like(self._advanced)])
        self._advanced[clock.token] = source >> FEATURE_BITS != following >> FEATURE_BITS
        self._moment = 2 * clock.token + 1
        slot = self._take_one(following)
        dynamics.lif_burst(self._table, slot, clock.token, self._advanced, self._rules)

    def entries(self) -> StateEntries:
        """Return the positive entries."""
        dynamics.lif_catch_up_all(self._table, self.neurons, self._moment, self._advanced, self._rules)
        positive = self._columns[2] > 0
        return self._sorted(positive, np.broadcast_to(np.int32(NEVER), positive.shape))


class LegacyState(SequenceState):
    """Entries without a soma (contract, section 8).

    Parameters
    ----------
    layout : SegmentLayout
        Of the network, without a soma.
    options : LegacyOptions
        Constants.
    """

    def __init__(self, layout: SegmentLayout, options: LegacyOptions) -> None:
        super().__init__(layout, layout.branches)
        self._rules = LegacyRules(
            columns=layout.columns,
            decay=np.float32(options.decay),
            scale=np.float32(options.scale),
            burst=np.float32(options.burst),
            exact=options.timing == "exact",
            strengths=options.strengths,
            boolean=options.boolean,
            burst_all=options.burst_all,
        )
        # The power in float32, of the float32 factor.
        distances = np.arange(_LONGEST_TIME if options.timing == "biased" else 1, dtype=np.float64)
        self._powers = (np.float64(np.float32(options.penalty)) ** distances).astype(np.float32)

    def _gate(self, source: int, clock: Clock) -> int:
        """See `SequenceState._gate`."""
        self._moment = 2 * clock.token
        own = self._place(source)
        return 0 if own == ABSENT else int(dynamics.legacy_gate(self._table, own, clock.token, self._rules))

    def _send(self, row: tuple[Integers, Floats], source: int, gate: int, clock: Clock) -> tuple[Integers, Floats]:
        target, _ = row
        self._moment = 2 * clock.token
        slots = self._take(_neurons_of(target))
        dynamics.legacy_send(self._table, slots, row, gate, clock, self._rules)
        self._moment = 2 * clock.token + 1
        own = self._place(source)
        if own != ABSENT:
            dynamics.legacy_clear(self._table, own, self._moment, self._rules)
        connected = self._find(np.unique(self._ending(target)))
        neuron, score = dynamics.legacy_scores(self._table, connected, clock, self._rules, self._powers)
        return neuron, score

    def settle(self, source: int, following: int, clock: Clock) -> None:
        """Burst the next source; before the first step the source itself was burst, and silenced."""
        self._moment = 2 * clock.token + 1
        if clock.token == 0:
            slot = self._take_one(source)
            dynamics.legacy_burst(self._table, slot, self._moment, self._rules)
            dynamics.legacy_clear(self._table, slot, self._moment, self._rules)
        dynamics.legacy_burst(self._table, self._take_one(following), self._moment, self._rules)

    def entries(self) -> StateEntries:
        """Return all entries, those of value 0 too."""
        dynamics.legacy_catch_up_all(self._table, self.neurons, self._moment, self._rules)
        return self._sorted(*self._columns[3:])


def new_state(layout: SegmentLayout, dynamics: LifOptions | LegacyOptions) -> SequenceState:
    """Return the state before the first step.

    Raises
    ------
    OptionError
        If the dynamics are not those that the network was trained for.
    """
    layout.require_soma(isinstance(dynamics, LifOptions))
    if isinstance(dynamics, LifOptions):
        return LifState(layout, dynamics)
    return LegacyState(layout, dynamics)


class Selected(NamedTuple):
    """The candidates that were left, and the best of them.

    Attributes
    ----------
    neuron, score : ndarray
        Neuron keys, ascending, int64, and their values, float32. There may be none.
    best : int or None
        Place of the one to predict; None where there is none, or it does not pass.
    """

    neuron: Integers
    score: Floats
    best: int | None


def passing(
    neuron: Integers, source: int, mode: Mode | None, flags: FlagTable, number: int, options: CandidateSelection
) -> npt.NDArray[np.bool_] | None:
    """Return which neurons a mode lets follow a source, None for all.

    Parameters
    ----------
    neuron : ndarray
        Neuron keys, int64.
    source : int
        Neuron key of the source.
    mode : {"delimiter", "internal"} or None
        What the source's feature asks for.
    flags : FlagTable
        Stored flags, read where delimiters are enforced.
    number : int
        Of the sequence.
    options : CandidateSelection
        Which test.
    """
    if not len(neuron) or mode is None or (mode == "delimiter" and not options.enforce_delimiter):
        return None
    column, feature = unpack_neuron(neuron)
    own: npt.NDArray[np.bool_] = column == source >> FEATURE_BITS
    if mode == "delimiter":
        return ~own | flags.delimit(feature, number)
    return own if options.test == "column" else own | (feature == 0)


def select(
    neuron: Integers,
    score: Floats,
    passes: npt.NDArray[np.bool_] | None,
    options: CandidateSelection,
    order: NameOrder,
) -> Selected:
    """Return the best of the candidates that pass the test of the options, if there is one.

    Examples
    --------
    >>> neuron, score, passes = np.array([3, 5, 7]), np.float32([1, 2, 2]), np.array([True, False, True])
    >>> select(neuron, score, passes, CandidateSelection(), NameOrder()).best, select(
    ...     neuron, score, passes, CandidateSelection.reference(), NameOrder()
    ... ).best
    (1, None)
    """
    if options.filtered and passes is not None:
        neuron, score = neuron[passes], score[passes]
    if not len(neuron):
        return Selected(neuron, score, None)
    best = order.first(neuron, score)
    return Selected(neuron, score, best if options.filtered or passes is None or passes[best] else None)


# Target keys of a source and its strengths, float32.
RowOf = Callable[[int], tuple[Integers, Floats]]


@dataclass(frozen=True)
class _Sent:
    """Signal of a connection, its present location and its remaining value."""

    origin: Contribution
    segment: int
    value: float


def explain_lif(
    steps: Sequence[StepResult], neuron: int, row_of: RowOf, *, layout: SegmentLayout, options: LifOptions
) -> tuple[Contribution, ...]:
    """Return the connections that a neuron's value consists of after some steps of a sequence.

    Parameters
    ----------
    steps : sequence of StepResult
        From the first one to the one that predicted.
    neuron : int
        Neuron key.
    row_of : callable
        Returns target keys and strengths of a source.
    layout : SegmentLayout
        Of the network.
    options : LifOptions
        Constants.

    Returns
    -------
    tuple of Contribution
        In the order of the steps, each with the segment that it ends at and what is left of what it sent.
    """
    last, top = layout.last, layout.columns - 1
    sent: list[_Sent] = []
    for step in steps:
        # Nothing comes out of the last column segment but by a change of columns.
        sent = [replace(s, segment=min(s.segment + (s.segment > top), last)) for s in sent]
        if step.activity:
            for segment, branch, strength in _links(row_of(step.source), neuron):
                value = _drive(strength if options.strengths else 1.0, options.squash)
                origin = Contribution(step.index, step.source, segment, branch, strength, value)
                sent.append(_Sent(origin, segment, value))
        if step.source == neuron:
            cleared = (last, top) if options.clear_source else (last,)
            sent = [s for s in sent if s.segment not in cleared]
        if step is not steps[-1] and step.next is not None:
            advanced = step.source >> FEATURE_BITS != step.next >> FEATURE_BITS
            sent = [kept for s in sent if (kept := _decayed(s, advanced, layout, options)).value > 0]
    return tuple(replace(s.origin, contribution=s.value) for s in sent if s.segment in (last, top))


def _decayed(sent: _Sent, advanced: bool, layout: SegmentLayout, options: LifOptions) -> _Sent:
    """Return a signal at the end of a step: its remaining value and its segment."""
    if sent.segment == layout.last:
        return replace(sent, value=sent.value * (1 - options.soma_decay))
    if not advanced or sent.segment >= layout.columns:
        return sent
    if sent.segment == layout.columns - 1:
        return replace(sent, value=sent.value * (1 - options.column_decay))
    return replace(sent, segment=sent.segment + 1)


def explain_legacy(
    steps: Sequence[StepResult], neuron: int, row_of: RowOf, *, layout: SegmentLayout, options: LegacyOptions
) -> tuple[Contribution, ...]:
    """Return the connections that raised a neuron without a soma; the parameters are those of `explain_lif`.

    What was raised is the value at the time; a connection to an entry that is boolean and was 1 already
    raised nothing and is left out, and so is one to a branch that was silenced later.
    """
    value = np.zeros((layout.branches, layout.segments), np.float32)
    time = np.full(value.shape, NEVER)
    found: list[Contribution] = []
    for step in steps:
        if step.index:
            value *= np.float32(options.decay)
            before = value.copy()
            for segment, branch, strength in _links(row_of(step.source), neuron):
                # Times of columns are read by no test.
                if segment > layout.columns and options.timing == "exact":
                    age = step.index - 1 - time[branch, segment - 1]
                    if age != 1 or before[branch, segment - 1] <= 0:
                        continue
                drive = strength * options.scale if options.strengths else _drive(1.0, True)
                drive = drive if step.activity else 0.0
                value[branch, segment] += np.float32(drive)
                time[branch, segment] = step.index - 1
                full = options.boolean and segment >= layout.columns and before[branch, segment] > 0
                if drive > 0 and not full:
                    found.append(Contribution(step.index, step.source, segment, branch, strength, drive))
            if options.boolean:
                value[:, layout.columns :] = value[:, layout.columns :] > 0
        if step.source == neuron:
            silenced = int(value.sum(1).argmax())
            value[silenced] = 0
            found = [item for item in found if item.branch != silenced]
        if step is not steps[-1] and step.next == neuron:
            first = 0 if options.burst_all else layout.last
            value[int(value.sum(1).argmax()), first:] += np.float32(options.burst)
    return tuple(found)


def _links(row: tuple[Integers, Floats], neuron: int) -> list[tuple[int, int, float]]:
    """Return segment, branch and strength of the connections of a row to a neuron."""
    segment, target, branch = unpack_target(row[0])
    at = np.flatnonzero(target == neuron)
    return list(zip(segment[at].tolist(), branch[at].tolist(), row[1][at].tolist(), strict=True))


def _drive(strength: float, squash: bool) -> float:
    return float(squashed(np.float32(strength))) if squash else strength


_NO_TARGETS: Integers = np.zeros(0, np.int64)
_NO_STRENGTHS: Floats = np.zeros(0, np.float32)


class V2Session(SequenceSession[SequenceState, V2Options]):
    """Advances one sequence at a time over a network of profile ``v2`` that does not change.

    The parameters are those of `SequenceSession`.

    Raises
    ------
    OptionError
        If the dynamics are not those of the network, or auxiliary neurons are asked
        for that the flags do not have.
    """

    _rules_type = V2Options

    def __init__(
        self,
        specification: Specification,
        rows: RowSource,
        flags: FlagTable,
        *,
        options: V2Options | None = None,
        state_bytes: int | None = None,
    ) -> None:
        super().__init__(specification, rows, flags, options=options, state_bytes=state_bytes)
        if self.options.auxiliary:
            if flags.auxiliary is None:
                raise OptionError("auxiliary neurons without attachments", "flags that have them", "attach features")
            self.rows = AuxiliaryRows(rows, flags.auxiliary)
        self._layout = SegmentLayout.of(specification)
        self._layout.require_soma(self.options.lif)

    def explain(self, steps: tuple[StepResult, ...], index: int) -> tuple[Contribution, ...]:
        """Return the connections that raised the predicted neuron; see `SequenceSession.explain`."""
        neuron = steps[index].predicted
        if neuron is None:
            return ()
        done, dynamics = steps[: index + 1], self.options.dynamics
        if isinstance(dynamics, LifOptions):
            return explain_lif(done, neuron, self._whole_row, layout=self._layout, options=dynamics)
        return explain_legacy(done, neuron, self._whole_row, layout=self._layout, options=dynamics)

    @property
    def new_state(self) -> Callable[[], SequenceState]:
        """See `SequenceSession.new_state`."""
        return partial(new_state, self._layout, self.options.dynamics)

    def predict_prefixes(
        self, prefixes: Sequence[PrefixColumns], *, observer: Observer | None = None
    ) -> tuple[StepResult, ...]:
        """Predict the tokens of a sequence from left to right, each as the first one after those before it as a prompt.

        Parameters
        ----------
        prefixes : sequence of PrefixColumns
            Columns of the sequence as its concepts come.
        observer : callable, optional
            Called with the `StepTrace` of every prediction, without its state.

        Returns
        -------
        tuple of StepResult
            Of the tokens that are predicted.
        """
        decoding, results = DecodingStrategy(feed="target", traced=observer is not None), list[StepResult]()
        state = kept = self.new_state()
        # Where the columns that follow differ, the state of the step before is continued with them.
        for prefix, changed in zip(prefixes, [*(each.begin for each in prefixes[1:]), None], strict=True):
            session, state, sequence = self.with_flags(prefix.flags), kept, prefix.sequence
            columns = [0, *np.cumsum(sequence.noun).tolist()]
            for index in range(prefix.begin, len(sequence)):
                if index == changed:
                    kept = state.copy()
                seed = index < prefix.first
                token = Token(
                    times=TokenTimes(feature_time=index, column_time=columns[index + seed], open_noun=not seed),
                    source_column=columns[index],
                    seed=seed,
                    target=int(sequence.neuron[index]),
                    number=sequence.number,
                )
                source = int(sequence.neuron[max(index - 1, 0)])
                result, found = session._advance(state, source, token, decoding)
                if not seed:
                    results.append(result)
                    if observer is not None:
                        observer(StepTrace(result, found))
            kept = state if changed == len(sequence) else kept
        return tuple(results)

    def with_flags(self, flags: FlagTable) -> Self:
        """Return a session with other stored flags."""
        if flags is self.flags:
            return self
        session = copy(self)
        session.flags = flags
        return session

    def _can_send(self, target: Integers) -> bool:
        """Return whether a source with these target keys can lead to a prediction at all."""
        return len(target) > 0 and (self._layout.soma or int(target[-1] >> SEGMENT_SHIFT) == self._layout.last)

    def _advance(
        self, state: SequenceState, source: int, token: Token, decoding: DecodingStrategy
    ) -> tuple[StepResult, Candidates | None]:
        """Do one step of section 7 or 8."""
        times = token.times
        clock = Clock(times.feature_time, times.column_time, token.source_column, times.open_noun)
        known: dict[str, Any] = {
            "index": clock.token,
            "seed": token.seed,
            "source": source,
            "column_time": token.source_column,
        }
        neuron, score = _NO_TARGETS, _NO_STRENGTHS
        if clock.token:
            row = self._row(source)
            bound = decoding.feed == "prediction" and not decoding.pooled
            if bound and not token.seed and not self._can_send(row[0]):
                return StepResult(**known, stop="no connections"), None
            known["activity"], neuron, score = state.advance(source, row, clock)
        found = None
        if token.seed:
            result = StepResult(**known, next=token.target)
        else:
            result, found = self._predict(known, (neuron, score), token, decoding)
            if decoding.pooled:
                result, found = revise(result, found, self.flags)
        if result.next is not None:
            state.settle(source, result.next, clock)
        return result, found

    def _predict(
        self,
        known: dict[str, Any],
        scored: tuple[Integers, Floats],
        token: Token,
        decoding: DecodingStrategy,
    ) -> tuple[StepResult, Candidates | None]:
        """Choose among the candidates and find the next source (sections 7f and 7g)."""
        rules, source, choose = self.options.selection, known["source"], decoding.choose
        mode = self.flags.mode(feature_of(source), token.number)
        passes = passing(scored[0], source, mode, self.flags, token.number, rules)
        neuron, score, best = select(*scored, passes, rules, self.flags.order)
        found, count = None, len(neuron)
        if count and (decoding.traced or choose is not None):
            found = Candidates(neuron, score, self.flags.order)
        if choose is not None and found is not None:
            best = choose(token.times.feature_time, found)
            best = best if rules.filtered or passes is None or passes[best] else None
        predicted = None if best is None else int(neuron[best])
        largest = score.max() if count else None
        result = StepResult(
            **known,
            mode=mode,
            candidates=count,
            ties=int(np.count_nonzero(score == largest)) if count else 0,
            value=None if largest is None else float(largest),
            predicted=predicted,
            stop=None if predicted is not None else "rejected" if len(scored[0]) else "no candidates",
            next=token.target if decoding.feed == "target" else predicted,
        )
        return result, found

    def _row(self, source: int) -> tuple[Integers, Floats]:
        """Return the target keys of a source and, where they are sent, its strengths."""
        if self.options.dynamics.strengths:
            return self._whole_row(source)
        row = self.rows.row(source)
        return (_NO_TARGETS if row is None else self._targets(row)), _NO_STRENGTHS

    def _whole_row(self, source: int) -> tuple[Integers, Floats]:
        row = self.rows.row(source)
        if row is None:
            return _NO_TARGETS, _NO_STRENGTHS
        return self._targets(row), self.specification.strengths(row.strength).astype(np.float32)

    def _targets(self, row: Row) -> Integers:
        return require_layout(row.target, self.specification.last_segment + 1, self.specification.branches)
