"""Advance the sequences of a batch with the pull engine of profile ``v1``: the same steps as one by one.

The slots of a batch, the sequences that enter and leave, one fetch of rows for all distinct sources of a step, and the
records of the steps. Does not cover: the step itself (`giaann_dask.models.columns.v1.kernels`,
`giaann_dask.models.columns.v1.tensors`), the reference implementation of its rules
(`giaann_dask.models.columns.v1.session`), and words (`giaann_dask.predict.sessions`).

Sequences share nothing but the fetch of rows, so that the steps of each do not depend on what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import numpy.typing as npt

from giaann_dask.device import torch
from giaann_dask.errors import OptionError
from giaann_dask.keys import FEATURE_MASK, Integers
from giaann_dask.models.columns.batch import Advance, Prompt
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.models.columns.state.options import InferenceOptions
from giaann_dask.models.columns.state.sequence import (
    FlagTable,
    Mode,
    Observer,
    PreparedSequence,
    SequenceResult,
    StepResult,
    StepTrace,
    StopReason,
)
from giaann_dask.models.columns.state.session import Choice
from giaann_dask.models.columns.v1.cached_rows import BatchRows
from giaann_dask.models.columns.v1.kernels import advance
from giaann_dask.models.columns.v1.session import Session
from giaann_dask.models.columns.v1.tables import INTERNAL, NO_CONNECTIONS, NONE, KernelRules, empty_slots, widened
from giaann_dask.models.columns.v1.tensors import TensorSteps
from giaann_dask.models.options import BatchOptions
from giaann_dask.rows.source import RowSource
from giaann_dask.runs.run import join_ranges
from giaann_dask.spec import FEATURE_BITS, Specification

_MODES: tuple[Mode | None, ...] = (None, "delimiter", "internal")
_STOPS: tuple[StopReason | None, ...] = (None, "no connections", "no candidates", "rejected")


@dataclass(eq=False)
class _ActiveSequence:
    """A sequence in progress."""

    number: int
    prompt: Prompt
    end: int


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
        Where the steps of all sequences are done together, as tensors; by default compiled code does them on the
        CPU, one sequence after the other.

    Attributes
    ----------
    held : BatchRows
        Rows in use, with counts of those wanted and fetched.
    """

    def __init__(
        self,
        specification: Specification,
        rows: RowSource,
        *,
        options: InferenceOptions | None = None,
        batch: BatchOptions | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.options, self.batch = options or InferenceOptions(), batch or BatchOptions()
        self._specification = specification
        self._rules = KernelRules.of(specification, self.options)
        self.held = BatchRows(rows, specification.segments, self.batch.held_bytes)
        self._order = NameOrder()
        self._tensors = None if device is None else TensorSteps(self._rules, device)
        self._slots = empty_slots(self.batch.slots, 32)
        self._active: dict[int, _ActiveSequence] = {}
        self._free = list(range(self.batch.slots))[::-1]
        self._entered = 0

    def __len__(self) -> int:
        """Return the number of sequences in progress."""
        return len(self._active)

    @property
    def free_slots(self) -> int:
        """Number of free slots."""
        return len(self._free)

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
        length = len(prompt.sequence)
        end = length if prompt.tokens is None else length + prompt.tokens
        if end > self._slots.nouns.shape[1]:
            self._slots = widened(self._slots, max(end, 2 * self._slots.nouns.shape[1]))
        feeds = prompt.tokens is not None or self.options.feed == "prediction"
        seeds = length if prompt.tokens is not None else min(self._specification.seed_tokens, length)
        self._fill(slot, prompt, seeds, length if not feeds else seeds)
        # That of the network, which all prompts have.
        self._order = prompt.flags.order
        self._rules = self._rules._replace(names=self._order.table)
        self._slots.feeds[slot] = feeds
        self._active[slot] = _ActiveSequence(self._entered, prompt, end)
        self._entered += 1
        return self._entered - 1

    def leave(self, number: int) -> None:
        """Let a sequence leave before its end; nothing happens when it is not there any more."""
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
        slots, which = self._slots, np.array(sorted(self._active), np.int64)
        if not len(which):
            return []
        until = np.array([self._until(slot) for slot in which.tolist()], np.int64)
        self._find_rows(which, until)
        begin = slots.done[which]
        if self._tensors is None:
            pointer, neuron, value = advance(slots, which, until, self.held.table, self._rules)
        else:
            pointer, neuron, value = self._tensors.advance(slots, which, until, self.held, self._order)
        done = slots.done[which]
        # A step at which a sequence ends for lack of a prediction is recorded and not done.
        end = done + (done < until)
        results = iter(self._results(*_pairs(which, begin, end)))
        asked = np.cumsum(until - begin) - (until - begin)
        lines = zip(which.tolist(), begin.tolist(), end.tolist(), (done < until).tolist(), asked.tolist(), strict=True)
        found, following = [], list[int]()
        for slot, first, last, stopped, at in lines:
            active, its = self._active[slot], tuple(islice(results, last - first))
            finished = stopped or last == active.end
            bounds = pointer[at : at + last - first + 1]
            found.append(Advance(active.number, range(first, last), finished, its, bounds, neuron, value, self._order))
            if finished:
                self._release(slot)
            elif slots.feeds[slot] and its[-1].predicted is not None:
                self._set_mode(slot, last, its[-1].predicted)
                following.append(its[-1].predicted)
        # They are under way while the caller looks at what was predicted.
        self.held.ask_ahead(following)
        return found

    def feed(self, number: int, neuron: int) -> None:
        """Feed a sequence another neuron than the one that it has just predicted, if it is in progress."""
        for slot, active in self._active.items():
            if active.number == number:
                last = int(self._slots.done[slot])
                self._slots.source[slot, last] = neuron
                self._slots.activity[slot, last] = NONE
                self._set_mode(slot, last, neuron)

    def _set_mode(self, slot: int, step: int, source: int) -> None:
        prompt = self._active[slot].prompt
        self._slots.mode[slot, step] = _MODES.index(prompt.flags.mode(source & FEATURE_MASK, prompt.sequence.number))

    def _until(self, slot: int) -> int:
        active, slots = self._active[slot], self._slots
        done = int(slots.done[slot])
        if not slots.feeds[slot] and self.batch.ahead:
            return active.end
        return min(max(done, int(slots.seeds[slot])) + 1, active.end)

    def _fill(self, slot: int, prompt: Prompt, seeds: int, known: int) -> None:
        """Fill the tables with the given part of a sequence: its sources up to and including the step `known`."""
        slots, sequence = self._slots, prompt.sequence
        length = len(sequence)
        slots.done[slot], slots.seeds[slot], slots.given[slot] = 0, seeds, length
        slots.nouns[slot, :length] = np.cumsum(sequence.noun)
        source = np.concatenate([sequence.neuron[:1], sequence.neuron[:known]])
        mode = _modes(prompt.flags, source & FEATURE_MASK, sequence.number)
        _stay_in_column(source, mode)
        slots.source[slot, : known + 1] = source
        slots.mode[slot, : known + 1] = mode
        for array in (slots.candidates, slots.ties, slots.stop):
            array[slot] = 0
        slots.predicted[slot] = slots.activity[slot] = NONE

    def _find_rows(self, which: Integers, until: Integers) -> None:
        """Fetch the rows of the steps to do."""
        slots = self._slots
        moved = self.held.let_go(np.concatenate([slots.row[s, 1 : slots.done[s]] for s in which.tolist()]))
        if moved is not None:
            for slot in which.tolist():
                line = slots.row[slot, 1 : slots.done[slot]]
                line[line >= 0] = moved[line[line >= 0]]
        line, step = _pairs(which, np.maximum(slots.done[which], 1), until)
        slots.row[line, step] = self.held.places(slots.source[line, step])

    def _release(self, slot: int) -> None:
        del self._active[slot]
        self._free.append(slot)

    def _results(self, line: Integers, step: Integers) -> Iterator[StepResult]:
        """Return the records of steps by their slots."""
        slots = self._slots
        seed = step < slots.seeds[line]
        following = np.where(seed | ~slots.feeds[line], slots.source[line, step + 1], slots.predicted[line, step])
        columns = (
            *(step, seed, slots.source[line, step], np.where(step > 0, slots.nouns[line, step - 1], 0)),
            *(array[line, step] for array in (slots.activity, slots.mode, slots.candidates, slots.ties)),
            *(slots.value[line, step], slots.predicted[line, step], slots.stop[line, step], following),
        )
        for index, is_seed, source, time, activity, mode, candidates, ties, value, predicted, stop, after in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            yield StepResult(
                index=index,
                seed=is_seed,
                source=source,
                column_time=time,
                activity=activity if index else None,
                mode=None if is_seed or stop == NO_CONNECTIONS else _MODES[mode],
                candidates=candidates,
                ties=ties,
                value=value if candidates else None,
                predicted=None if predicted == NONE else predicted,
                stop=_STOPS[stop],
                next=None if after == NONE else after,
            )


class PullSession(Session):
    """Advances one sequence at a time as a batch of one, which computes only the neurons that can win.

    The parameters and every value of every result are those of `Session`; traces have no state. Without a device
    the steps are compiled; on a device they are done as tensors. It may serve any number of sequences, from one thread.
    """

    def run_sequence(
        self, sequence: PreparedSequence, *, observer: Observer | None = None, choose: Choice | None = None
    ) -> SequenceResult:
        """Predict every token of a sentence after the seed tokens; see `SequenceSession.run_sequence`."""
        if choose is not None:
            return super().run_sequence(sequence, observer=observer, choose=choose)
        batch = self._batch
        batch.enter(Prompt(sequence=sequence, flags=self.flags))
        steps: list[StepResult] = []
        while len(batch):
            for found in batch.step():
                steps.extend(found.results)
                if observer is not None:
                    for trace in found.traces:
                        observer(trace)
        return SequenceResult(tuple(steps), steps[-1].end)

    def stream(self, prompt: PreparedSequence, tokens: int, choose: Choice | None = None) -> Iterator[StepTrace]:
        """Yield the steps of `generate` one by one, those of the prompt included."""
        if choose is not None:
            yield from super().stream(prompt, tokens, choose)
            return
        batch = self._new_batch()
        batch.enter(Prompt(sequence=prompt, flags=self.flags, tokens=tokens))
        while len(batch):
            for found in batch.step():
                yield from found.traces

    @cached_property
    def _batch(self) -> PullBatch:
        """Batch of the given sequences, which run to their end one after the other."""
        return self._new_batch()

    def _new_batch(self) -> PullBatch:
        one = BatchOptions(slots=1)
        return PullBatch(self.specification, self.rows, options=self.options, batch=one, device=self._given_device)


def _pairs(slot: Integers, begin: Integers, end: Integers) -> tuple[Integers, Integers]:
    """Return slot and step of every step from `begin` to before `end` of some slots."""
    counts = np.maximum(end - begin, 0)
    return np.repeat(slot, counts), join_ranges(begin, counts)


def _modes(flags: FlagTable, feature: Integers, number: int) -> npt.NDArray[np.int8]:
    """Return the mode of every feature, as `FlagTable.mode` has it, by its place in `_MODES`."""
    since = flags.probable_since[feature]
    internal = np.where((since >= 0) & (since <= number), 0, INTERNAL)
    return np.where(flags.delimiter[feature], 1, internal).astype(np.int8)


def _stay_in_column(source: Integers, mode: npt.NDArray[np.int8]) -> None:
    """Keep what follows a source of internal mode in its column (contract, section 8.6a), in place."""
    column = source >> FEATURE_BITS
    leaving = np.flatnonzero((mode[:-1] == INTERNAL) & (column[1:] != column[:-1]))
    for step in range(int(leaving[0]), len(source) - 1) if len(leaving) else ():
        if mode[step] == INTERNAL:
            source[step + 1] = (source[step] >> FEATURE_BITS << FEATURE_BITS) | (source[step + 1] & FEATURE_MASK)
