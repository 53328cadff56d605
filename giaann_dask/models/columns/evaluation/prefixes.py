"""Divide sequences from left to right: the columns that the words before each token give, as prompts have them.

A sequence that is divided as a whole has every word in the column of the concept that follows it, which nobody knows
who reads from left to right. Here the words before a token alone decide the columns, by the rules of prompts
(`giaann_dask.models.columns.predictor.prepare_prompt`): words after the last concept so far are in its column, until
the next concept begins a column of its own behind the boundary between the two. So columns change at concepts only,
and only after the last boundary; what was read before it stays as it is. A `PrefixColumns` holds between two concepts.

Stored flags are those of the commit, with what the words of the same sequence so far have added. Words have the parts
of speech that their whole sentence gives them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import Integers, pack_neuron
from giaann_dask.models.columns.flags import FlagChange, changed_flags
from giaann_dask.models.columns.state.session import FlagTable, PrefixColumns, PreparedSequence
from giaann_dask.spec import Specification
from giaann_dask.text.blocks import DELIMITER, PROBABLE
from giaann_dask.text.segmentation import EncodedBlock


@dataclass(frozen=True, eq=False)
class PrefixRules:
    """Rules that divide the sequences of a block from left to right.

    Attributes
    ----------
    block : EncodedBlock
        The sequences.
    specification : Specification
        Of the network.
    flags : FlagTable
        Stored flags of the commit, or as the text has expanded them where words alone decide about their flags.
    """

    block: EncodedBlock
    specification: Specification
    flags: FlagTable

    @property
    def own(self) -> bool:
        """Whether the flags of tokens decide, which no other text changes, instead of stored ones."""
        return self.specification.flags == "canonical" or self.specification.tokens == "subwords"

    def prefixes(self, place: int) -> tuple[PrefixColumns, ...]:
        """Return the columns from which the tokens of a sequence after its seed are predicted, in order.

        Tokens before the first concept have none, and none follow two concepts without a boundary between them.
        """
        tokens = _Tokens.of(self, place)
        ends = [*(tokens.concept[1:] + 1).tolist(), len(tokens.feature)]
        found: list[PrefixColumns] = []
        for last, end in enumerate(ends):
            first = max(self.specification.seed_tokens, int(tokens.concept[last]) + 1)
            starts = tokens.starts(last) if first < end else None
            if starts is None:
                continue
            sequence = tokens.divided(starts, end)
            begin = _first_difference(found[-1].sequence.neuron, sequence.neuron) if found else 0
            found.append(PrefixColumns(sequence=sequence, begin=begin, first=first, flags=tokens.flags(last)))
        # Stored flags can change earlier columns; then those before are followed from there on, too.
        begins = np.minimum.accumulate([prefix.begin for prefix in reversed(found)])[::-1].tolist()
        return tuple(replace(prefix, begin=begin) for prefix, begin in zip(found, begins, strict=True))

    def seed(self, place: int) -> PrefixColumns | None:
        """Return the columns of the seed tokens of a sequence, divided alone; None where they cannot be."""
        tokens, seed = _Tokens.of(self, place), self.specification.seed_tokens
        concepts = int(np.searchsorted(tokens.concept, seed))
        starts = tokens.starts(concepts - 1) if concepts else None
        if starts is None:
            return None
        return PrefixColumns(
            sequence=tokens.divided(starts, seed), begin=0, first=seed, flags=tokens.flags(concepts - 1)
        )


def _first_difference(before: Integers, now: Integers) -> int:
    """Return the first place at which neurons differ from those before; the number of those before where none does."""
    changed = np.flatnonzero(before != now[: len(before)])
    return int(changed[0]) if len(changed) else len(before)


@dataclass(frozen=True, eq=False)
class _Tokens:
    """A sequence of a block: features, columns of its concepts, places of these, and own flags."""

    rules: PrefixRules
    number: int
    feature: Integers
    column: Integers
    concept: Integers
    marks: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, rules: PrefixRules, place: int) -> _Tokens:
        block = rules.block
        here = slice(int(block.offsets[place]), int(block.offsets[place + 1]))
        feature = block.feature[here].astype(np.int64)
        concept = np.flatnonzero(feature == 0)
        column = block.column[here][concept].astype(np.int64)
        return cls(rules, block.first_sequence + place, feature, column, concept, block.flags[here])

    def divided(self, starts: list[int], end: int) -> PreparedSequence:
        """Return the tokens before `end` in columns that begin at some tokens, a last concept after them in its own."""
        column = np.repeat(self.column[: len(starts)], np.diff([*starts, end]))
        noun = self.feature[:end] == 0
        if noun[-1]:
            column[-1] = self.column[int(noun.sum()) - 1]
        return PreparedSequence(neuron=pack_neuron(column, self.feature[:end]), noun=noun, number=self.number)

    def starts(self, last: int) -> list[int] | None:
        """Return where the columns of the concepts up to one begin; None where two have no boundary between them."""
        marked = self._delimiters(last)
        starts = [0]
        for left, right in pairwise(self.concept[: last + 1].tolist()):
            inside = (np.flatnonzero(marks[left + 1 : right]) for marks in marked)
            boundary = next((left + 1 + int(found[-1]) for found in inside if len(found)), None)
            if boundary is None:
                if not self.rules.specification.invented_boundaries:
                    return None
                boundary = right - 1
            starts.append(boundary + 1)
        return starts

    def _delimiters(self, last: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return which tokens have a delimiter's flag, and a probable one's, once the concepts up to one are known."""
        if self.rules.own:
            return (self.marks & DELIMITER) != 0, (self.marks & PROBABLE) != 0
        flags = self.flags(last)
        return flags.delimiter[self.feature], flags.probable_since[self.feature] >= 0

    def flags(self, last: int) -> FlagTable:
        """Return the stored flags once the concepts up to one are known."""
        base, specification = self.rules.flags, self.rules.specification
        if specification.flags == "canonical":
            return base
        size, feature, delimits = len(base.probable_since), self.feature, (self.marks & DELIMITER) != 0
        # Whether a word probably delimits depends on the concept after it.
        settled = np.arange(len(feature)) < self.concept[last]
        probable = np.unique(feature[settled & ((self.marks & PROBABLE) != 0)])
        fresh = probable[(probable >= size) | (base.probable_since[np.minimum(probable, size - 1)] < 0)]
        added = np.zeros(max(0, int(feature.max()) + 1 - size), np.bool_)
        word, first = np.unique(feature, return_index=True)
        added[word[word >= size] - size] = delimits[first[word >= size]]
        later = np.zeros(0, np.int64)
        if base.delimiter_since is not None:
            later = np.unique(feature[delimits & (base.delimiter_since[feature] < 0)])
        if not (len(fresh) or len(added) or len(later)):
            return base
        return changed_flags(base, FlagChange(size, added, fresh, np.zeros_like(fresh), later, np.zeros_like(later)))


def unpredicted(prefixes: tuple[PrefixColumns, ...], seed: int, tokens: int) -> list[int]:
    """Return the places of the tokens after the seed that no columns predict."""
    starts = [*(prefix.first for prefix in prefixes), tokens]
    ends = [seed, *(len(prefix.sequence) for prefix in prefixes)]
    return [place for end, start in zip(ends, starts, strict=True) for place in range(end, start)]
