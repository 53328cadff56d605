"""Advance the sequences of a batch with the pull engine of profile ``v1``: the same steps as one by one.

The slots of a batch, the sequences that enter and leave, one fetch of rows for all distinct sources of a step, and the
steps as arrays. Does not cover: the step itself (`giaann_dask.models.columns.v1.kernels`, on a device
`giaann_dask.models.columns.v1.device_steps`), the reference implementation of its rules
(`giaann_dask.models.columns.v1.session`), and words (`giaann_dask.predict.generation`).

Sequences share nothing but the fetch of rows, so that the steps of each do not depend on what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, overload

import numpy as np
import numpy.typing as npt

from giaann_dask.device import torch
from giaann_dask.errors import OptionError
from giaann_dask.keys import FEATURE_MASK, Integers
from giaann_dask.models.columns.batch import Advance, Prompt
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.models.columns.state.session import (
    FlagTable,
    Mode,
    PrefixColumns,
    StepResult,
    StopReason,
    revise,
)
from giaann_dask.models.columns.v1.kernels import advance
from giaann_dask.models.columns.v1.tables import (
    INTERNAL,
    NO_CONNECTIONS,
    NONE,
    BatchRows,
    KernelRules,
    empty_rows,
    empty_slots,
    step_pairs,
    widened,
)
from giaann_dask.models.generation_options import BatchOptions
from giaann_dask.rows.source import RowSource
from giaann_dask.runs.run import join_ranges, pointer_of
from giaann_dask.spec import FEATURE_BITS, Specification

if TYPE_CHECKING:
    from giaann_dask.models.columns.v1.device_steps import DeviceSteps

_MODES: tuple[Mode | None, ...] = (None, "delimiter", "internal")
_STOPS: tuple[StopReason | None, ...] = (None, "no connections", "no candidates", "rejected")


def compile_steps(specification: Specification) -> None:
    """Compile the steps on the CPU for the types of a batch, by doing none."""
    rules, none = KernelRules.of(specification, InferenceOptions()), np.zeros(0, np.int64)
    advance(empty_slots(1, 1), none, none, empty_rows(1, specification.segments), rules)


@dataclass(frozen=True, eq=False, kw_only=True)
class StepTable:
    """Steps of a batch as arrays, sequence by sequence.

    Attributes
    ----------
    number : ndarray
        Which of the sequences that entered each step is of, int64.
    index, seed, source, column_time, activity, mode, candidates, ties, value, predicted, stop, following : ndarray
        As in `StepResult`, where numbers stand for names and `NONE` for none.
    pointer, neuron, found : ndarray
        Candidates: those of the i-th step are ``pointer[i]:pointer[i + 1]`` of `neuron` (neuron keys) and of `found`
        (values); int64, int64, float32.
    bounds : ndarray
        Where the steps of each sequence begin, and the end, int64.
    finished : ndarray
        Whether these are the last steps of the sequence, bool.
    """

    number: Integers
    index: Integers
    seed: npt.NDArray[np.bool_]
    source: Integers
    column_time: npt.NDArray[np.integer]
    activity: npt.NDArray[np.integer]
    mode: npt.NDArray[np.integer]
    candidates: npt.NDArray[np.integer]
    ties: npt.NDArray[np.integer]
    value: npt.NDArray[np.float32]
    predicted: Integers
    stop: npt.NDArray[np.integer]
    following: Integers
    pointer: Integers
    neuron: Integers
    found: npt.NDArray[np.float32]
    bounds: Integers
    finished: npt.NDArray[np.bool_]

    def result(self, at: int) -> StepResult:
        """Return one step as a record."""
        index, seed, stop = int(self.index[at]), bool(self.seed[at]), int(self.stop[at])
        candidates, predicted, following = (
            int(array[at]) for array in (self.candidates, self.predicted, self.following)
        )
        return StepResult(
            index=index,
            seed=seed,
            source=int(self.source[at]),
            column_time=int(self.column_time[at]),
            activity=int(self.activity[at]) if index else None,
            mode=None if seed or stop == NO_CONNECTIONS else _MODES[self.mode[at]],
            candidates=candidates,
            ties=int(self.ties[at]),
            value=float(self.value[at]) if candidates else None,
            predicted=None if predicted == NONE else predicted,
            stop=_STOPS[stop],
            next=None if following == NONE else following,
        )


class _Results(Sequence[StepResult]):
    """Records of some steps of a table, made when they are read."""

    def __init__(self, table: StepTable, steps: range) -> None:
        self._table, self._steps = table, steps

    def __len__(self) -> int:
        return len(self._steps)

    @overload
    def __getitem__(self, at: int) -> StepResult: ...  # pragma: no cover

    @overload
    def __getitem__(self, at: slice) -> Sequence[StepResult]: ...  # pragma: no cover

    def __getitem__(self, at: int | slice) -> StepResult | Sequence[StepResult]:
        """Return a record, or some."""
        found = self._steps[at]
        return _Results(self._table, found) if isinstance(found, range) else self._table.result(found)


@dataclass(eq=False)
class _PulledSequence:
    """A sequence in progress: its stored flags, and the columns that are yet to come."""

    number: int
    prompt: Prompt
    flags: FlagTable
    later: Iterator[PrefixColumns]


class PullBatch:
    """Advances the sequences in its slots over a network that does not change.

    Parameters
    ----------
    specification : Specification
        Of the network.
    rows : RowSource
        Outgoing connections by neuron key; those of a step are asked for together, by ``rows`` where the
        source has it.
    options : InferenceOptions, optional
        Rules of inference. Prompts after which tokens are generated are fed predictions whatever these say.
    batch : BatchOptions, optional
        How many sequences advance together.
    device : torch.device, optional
        Where one kernel does the steps of all sequences together; by default compiled code does them on the CPU, one
        sequence after the other.
    traced : bool
        Whether the candidates of steps are kept, where they have to come from a device.

    Attributes
    ----------
    held : BatchRows
        Rows in use on the CPU, with counts of those wanted and fetched.
    """

    def __init__(
        self,
        specification: Specification,
        rows: RowSource,
        *,
        options: InferenceOptions | None = None,
        batch: BatchOptions | None = None,
        device: torch.device | None = None,
        traced: bool = True,
    ) -> None:
        self.options, self.batch = options or InferenceOptions(), batch or BatchOptions()
        self._specification = specification
        self._rules = KernelRules.of(specification, self.options)
        self.held = BatchRows(rows, specification.segments, specification.branches, self.batch.held_bytes)
        self._order = NameOrder()
        self._device_steps: DeviceSteps | None = None
        if device is not None:
            from giaann_dask.models.columns.v1.device_steps import DeviceSteps

            self._device_steps = DeviceSteps(self._rules, rows, traced=traced)
        self._slots = empty_slots(self.batch.slots, 32)
        self._active: dict[int, _PulledSequence] = {}
        # By slot: number in the batch and in the text, and the step after the last.
        self._number, self._sequence, self._end = np.zeros((3, self.batch.slots), np.int64)
        # Whether what was predicted is chosen after a step, and then fed.
        self._pooled = np.zeros(self.batch.slots, np.bool_)
        self._free = list(range(self.batch.slots))[::-1]
        # Slots of the sequences that have entered since the last step.
        self._entering: list[int] = []
        self._entered = 0

    def __len__(self) -> int:
        """Return the number of sequences in progress."""
        return len(self._active)

    @property
    def free_slots(self) -> int:
        """Number of free slots."""
        return len(self._free)

    @property
    def pools(self) -> bool:
        """Whether the source of a sequence in progress is its word in every column, too, which `step` alone follows."""
        return any(active.prompt.pooled for active in self._active.values())

    def enter(self, prompt: Prompt) -> int:
        """Let a sequence enter; return its number.

        Raises
        ------
        OptionError
            If all slots are taken.
        """
        if not self._free:
            raise OptionError("a sequence enters a full batch", "a free slot", "step until one has finished")
        slot = self._free.pop()
        self._active[slot] = _PulledSequence(self._entered, prompt, prompt.flags, iter(prompt.prefixes))
        self._number[slot], self._sequence[slot] = self._entered, prompt.sequence.number
        self._entering.append(slot)
        if prompt.flags.order is not self._order:
            # That of the network, which all prompts have.
            self._order = prompt.flags.order
            self._rules = self._rules._replace(names=self._order.table)
        self._entered += 1
        return self._entered - 1

    def leave(self, number: int) -> None:
        """Let a sequence leave before its end; nothing happens when it is not there any more."""
        self._fill()
        for slot, active in list(self._active.items()):
            if active.number == number:
                self._release(slot)

    def step(self) -> list[Advance]:
        """Do the next steps of all sequences: those of the seed together with the first after them.

        Returns
        -------
        list of Advance
            One for each sequence under way, in the order of their slots; those finished have left.
        """
        table = self.step_together()
        if table is None:
            return []
        found, bounds = [], table.bounds.tolist()
        for first, last, finished in zip(bounds[:-1], bounds[1:], table.finished.tolist(), strict=True):
            advance = Advance(
                int(table.number[first]),
                range(int(table.index[first]), int(table.index[first]) + last - first),
                finished,
                _Results(table, range(first, last)),
                table.pointer[first : last + 1],
                table.neuron,
                table.found,
                self._order,
            )
            found.append(self._revised(advance))
        return found

    def _pooled_slot(self, number: int) -> int | None:
        """Return the slot of a sequence whose sources are their words in every column, too; None for any other."""
        slots = (slot for slot, active in self._active.items() if self._pooled[slot] and active.number == number)
        return next(slots, None)

    def _revised(self, advance: Advance) -> Advance:
        """Return what a step has done, and feed the prediction where its source is its word in every column, too."""
        slot = self._pooled_slot(advance.number)
        if slot is None:
            return advance
        *seeds, last = advance.traces
        result, found = revise(replace(last.result, next=None), last.candidates, self._active[slot].flags)
        finished = advance.finished or result.next is None
        if finished or result.next is None:
            self._release(slot)
        else:
            self._feed(slot, result.next)
        none = np.zeros(0, np.int64), np.zeros(0, np.float32)
        neuron, value = none if found is None else (found.neuron, found.value)
        pointer = np.append(np.zeros(len(seeds) + 1, np.int64), len(neuron))
        results = (*(trace.result for trace in seeds), result)
        return Advance(advance.number, advance.steps, finished, results, pointer, neuron, value, advance.order)

    def step_together(self) -> StepTable | None:
        """Do the next steps of all sequences as `step` does; return them as arrays, None for an empty batch."""
        self._fill()
        slots, which = self._slots, np.array(sorted(self._active), np.int64)
        if not len(which):
            return None
        seeds, done, last = slots.seeds[which], slots.done[which], self._end[which]
        until = np.minimum(np.maximum(done, seeds) + 1, last)
        if self.batch.ahead:
            until = np.where(slots.feeds[which] | self._pooled[which], until, last)
        if self._device_steps is None:
            pointer, neuron, found = self._advance(which, until)
        else:
            pointer, neuron, found = self._device_steps.advance(slots, which, until, self._order, self._advance)
        # A step at which a sequence ends for lack of a prediction is recorded and not done.
        stopped = slots.done[which] < until
        end = slots.done[which] + stopped
        redivided = self._redivisions(which[end == last])
        finished = stopped | ((end == last) & ~np.isin(which, list(redivided)))
        # Steps that were asked for and not done have no candidates.
        asked = np.cumsum(until - done) - (until - done)
        candidates = np.append(pointer[join_ranges(asked, end - done)], pointer[-1])
        table = self._table(which, done, end, (candidates, neuron, found, finished))
        going = which[~finished & slots.feeds[which]]
        source = slots.source[going, slots.done[going]]
        self._set_modes(going, source)
        for slot, prefix in redivided.items():
            self._redivide(slot, prefix)
        for slot in which[finished & ~self._pooled[which]].tolist():
            self._release(slot)
        # They are under way while the caller looks at what was predicted.
        (self._device_steps or self.held).ask_ahead(source.tolist())
        return table

    def _advance(self, which: Integers, until: Integers) -> tuple[Integers, Integers, npt.NDArray[np.float32]]:
        """Do steps of some slots with compiled code."""
        self._find_rows(which, until)
        found: tuple[Integers, Integers, npt.NDArray[np.float32]] = advance(
            self._slots, which, until, self.held.table, self._rules
        )
        return found

    def feed(self, number: int, neuron: int) -> None:
        """Feed a sequence another neuron than the one that it has just predicted, if it is in progress."""
        self._fill()
        for slot, active in self._active.items():
            if active.number == number:
                self._feed(slot, neuron)

    def _feed(self, slot: int, neuron: int) -> None:
        slots, last = self._slots, int(self._slots.done[slot])
        slots.source[slot, last], slots.activity[slot, last] = neuron, NONE
        self._set_modes(np.array([slot]), np.array([neuron]))
        if self._pooled[slot]:
            slots.burst[slot, last - 1] = neuron
            slots.nouns[slot, last - 1] = slots.nouns[slot, last - 2] + (neuron & FEATURE_MASK == 0)

    def _set_modes(self, which: Integers, source: Integers) -> None:
        """Set the modes of the next sources of some slots."""
        self._slots.mode[which, self._slots.done[which]] = self._modes(which, source)

    def _modes(self, which: Integers, source: Integers) -> npt.NDArray[np.int8]:
        """Return the modes of sources, one or a line of them for each of some slots."""
        found, kinds = np.zeros(source.shape, np.int8), dict[int, list[int]]()
        for at, slot in enumerate(which.tolist()):
            kinds.setdefault(id(self._active[slot].flags), []).append(at)
        for places in kinds.values():
            flags = self._active[int(which[places[0]])].flags
            number = self._sequence[which[places]].reshape(-1, *[1] * (source.ndim - 1))
            found[places] = _modes(flags, source[places] & FEATURE_MASK, number)
        return found

    def _fill(self) -> None:
        """Fill the slots of sequences that have entered with what is given, up to the first source that is not."""
        if not self._entering:
            return
        which, prompts = np.array(self._entering), [self._active[slot].prompt for slot in self._entering]
        self._entering = []
        length = np.array([len(prompt.sequence) for prompt in prompts])
        more = np.array([-1 if prompt.tokens is None else prompt.tokens for prompt in prompts])
        end, generates = length + np.maximum(more, 0), more >= 0
        longest = max(int(end.max()), *(len(prompt.prefixes[-1].sequence) for prompt in prompts if prompt.prefixes), 0)
        if longest > self._slots.nouns.shape[1]:
            self._slots = widened(self._slots, max(longest, 2 * self._slots.nouns.shape[1]))
        slots = self._slots
        pooled = np.array([prompt.pooled for prompt in prompts])
        feeds = (generates | (self.options.feed == "prediction")) & ~pooled
        self._pooled[which] = pooled
        seeds = np.where(generates, length, np.minimum(self._specification.seed_tokens, length))
        known = np.where(generates | feeds, seeds, length)
        slots.done[which], slots.seeds[which], slots.given[which], slots.feeds[which] = 0, seeds, length, feeds
        self._end[which] = end
        neuron, noun = np.zeros((2, len(which), int(length.max())), np.int64)
        at = step_pairs(np.arange(len(which)), np.zeros_like(length), length)
        neuron[at] = np.concatenate([prompt.sequence.neuron for prompt in prompts])
        noun[at] = np.concatenate([prompt.sequence.noun for prompt in prompts])
        slots.nouns[which, : noun.shape[1]] = np.cumsum(noun, axis=1)
        source = np.concatenate([neuron[:, :1], neuron], axis=1)[:, : int(known.max()) + 1]
        mode = self._modes(which, source)
        _stay_in_column(source, mode, known)
        slots.source[which, : source.shape[1]], slots.mode[which, : source.shape[1]] = source, mode
        slots.activity[which], slots.bursts[which] = NONE, pooled
        self._clear(which)
        for slot, prefix in self._redivisions(which).items():
            # What is predicted is not known to be a concept, though it is given.
            slots.given[slot], slots.bursts[slot] = 0, True
            self._redivide(slot, prefix)

    def _redivisions(self, which: Integers) -> dict[int, PrefixColumns]:
        """Return the next columns of some slots, those of the slots that have none left out."""
        following = ((slot, next(self._active[slot].later, None)) for slot in which.tolist())
        return {slot: prefix for slot, prefix in following if prefix is not None}

    def _redivide(self, slot: int, prefix: PrefixColumns) -> None:
        """Give a slot its next columns: steps from the first token in another column on are done again."""
        slots, begin, length = self._slots, prefix.begin, len(prefix.sequence)
        self._active[slot].flags = prefix.flags
        slots.done[slot], slots.seeds[slot], self._end[slot] = begin, prefix.first, length
        source, noun = slots.source[slot], prefix.sequence.noun
        source[begin + 1 : length + 1] = prefix.sequence.neuron[begin:]
        source[0] = source[1]
        slots.nouns[slot, :length] = np.cumsum(noun)
        line = source[None, : length + 1]
        slots.mode[slot, : length + 1] = self._modes(np.array([slot]), line)[0]
        slots.activity[slot, begin + 1 :] = NONE
        self._clear(slot, begin)

    def _clear(self, slot: int | Integers, begin: int = 0) -> None:
        """Forget what the steps of slots have predicted, from one on."""
        slots = self._slots
        for array in (slots.candidates, slots.ties, slots.stop):
            array[slot, begin:] = 0
        slots.predicted[slot, begin:] = NONE

    def _find_rows(self, which: Integers, until: Integers) -> None:
        """Fetch the rows of the steps to do."""
        slots = self._slots
        moved = self.held.let_go(np.concatenate([slots.row[s, 1 : slots.done[s]] for s in which.tolist()]))
        if moved is not None:
            for slot in which.tolist():
                line = slots.row[slot, 1 : slots.done[slot]]
                line[line >= 0] = moved[line[line >= 0]]
        line, step = step_pairs(which, np.maximum(slots.done[which], 1), until)
        slots.row[line, step] = self.held.places(slots.source[line, step])

    def _release(self, slot: int) -> None:
        del self._active[slot]
        self._free.append(slot)

    def _table(
        self,
        which: Integers,
        begin: Integers,
        end: Integers,
        found: tuple[Integers, Integers, npt.NDArray[np.float32], npt.NDArray[np.bool_]],
    ) -> StepTable:
        """Return steps of some slots as a table."""
        slots, (line, step) = self._slots, step_pairs(which, begin, end)
        seed = step < slots.seeds[line]
        following = np.where(seed | ~slots.feeds[line], slots.source[line, step + 1], slots.predicted[line, step])
        return StepTable(
            number=self._number[line],
            index=step,
            seed=seed,
            source=slots.source[line, step],
            column_time=np.where(step > 0, slots.nouns[line, step - 1], 0),
            activity=slots.activity[line, step],
            mode=slots.mode[line, step],
            candidates=slots.candidates[line, step],
            ties=slots.ties[line, step],
            value=slots.value[line, step],
            predicted=slots.predicted[line, step],
            stop=slots.stop[line, step],
            following=following,
            pointer=found[0],
            neuron=found[1],
            found=found[2],
            bounds=pointer_of(end - begin),
            finished=found[3],
        )


def _modes(flags: FlagTable, feature: Integers, number: Integers) -> npt.NDArray[np.int8]:
    """Return the mode of every feature, as `FlagTable.mode` has it, by its place in `_MODES`."""
    since = flags.probable_since[feature]
    internal = np.where((since >= 0) & (since <= number), 0, INTERNAL)
    return np.where(flags.delimiter[feature], 1, internal).astype(np.int8)


def _stay_in_column(source: Integers, mode: npt.NDArray[np.int8], known: Integers) -> None:
    """Keep what follows a source of internal mode in its column (contract, section 8.6a), in place.

    The lines are those of sequences, each up to the step `known`.
    """
    for step in range(source.shape[1] - 1):
        column, following = source[:, step] >> FEATURE_BITS, source[:, step + 1]
        stays = (mode[:, step] == INTERNAL) & (step < known)
        source[:, step + 1] = np.where(stays, (column << FEATURE_BITS) | (following & FEATURE_MASK), following)
