"""Number distinct values in tables that only grow, and remember what functions return for them.

What depends on a word alone is so computed once in a process and not once for each part of a text that has the word.

Does not cover: the words of a network (`vocabulary`) and numbering the values of one sequence (`tokens`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

_T = TypeVar("_T")
_U = TypeVar("_U")
_FIRST_VALUES = 64


def reserved(values: npt.NDArray[Any], needed: int) -> npt.NDArray[Any]:
    """Return values with at least the needed length, of which those that were there are the first."""
    if needed <= len(values):
        return values
    larger = np.empty(max(needed, 2 * len(values)), values.dtype)
    larger[: len(values)] = values
    return larger


class GrowingArray:
    """Array of one axis that values are appended to.

    Parameters
    ----------
    dtype : dtype
        Of its values.

    Examples
    --------
    >>> squares = GrowingArray(np.int64)
    >>> squares.append(np.array([0, 1, 4]))
    >>> squares.values
    array([0, 1, 4])
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._whole = np.empty(_FIRST_VALUES, dtype)
        self._used = 0

    def __len__(self) -> int:
        """Return the number of values."""
        return self._used

    @property
    def values(self) -> npt.NDArray[Any]:
        """The values so far; appending does not change them."""
        return self._whole[: self._used]

    def append(self, values: npt.NDArray[Any]) -> None:
        """Append values."""
        end = self._used + len(values)
        self._whole = reserved(self._whole, end)
        self._whole[self._used : end] = values
        self._used = end


class ValueTable(Generic[_T]):
    """Values by number. Values are only appended, so numbers and results of functions stay valid.

    Parameters
    ----------
    values : iterable
        The first values.

    Attributes
    ----------
    values : list
        Appended to by one thread at a time.
    lock : RLock
        Held while functions of `results`, `mapped` and `derived` are called.

    Examples
    --------
    >>> words = ValueTable(["a", "word"])
    >>> words.results(len), words.mapped(str.upper).values
    (array([1, 4]), ['A', 'WORD'])
    """

    def __init__(self, values: Iterable[_T] = ()) -> None:
        self.values = list(values)
        self.lock = threading.RLock()
        self._results: dict[Callable[[_T], int], GrowingArray] = {}
        self._mapped: dict[Callable[[_T], Any], ValueTable[Any]] = {}
        self._derived: dict[Callable[[ValueTable[_T]], Any], Any] = {}

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self.values)

    def results(self, function: Callable[[_T], int]) -> npt.NDArray[np.int64]:
        """Return the integer that a function returns for each value; the function is called once for a value."""
        with self.lock:
            found = self._results.setdefault(function, GrowingArray(np.int64))
            if len(found) < len(self.values):
                found.append(np.fromiter(map(function, self.values[len(found) :]), np.int64))
            return found.values

    def mapped(self, function: Callable[[_T], _U]) -> ValueTable[_U]:
        """Return a table of what a function returns for each value; the function is called once for a value."""
        with self.lock:
            found: ValueTable[_U] = self._mapped.setdefault(function, ValueTable())
            if len(found) < len(self.values):
                found.values.extend(map(function, self.values[len(found) :]))
            return found

    def derived(self, create: Callable[[ValueTable[_T]], _U]) -> _U:
        """Return what a function returns for this table; it is called once and its result kept with the table."""
        with self.lock:
            if create not in self._derived:
                self._derived[create] = create(self)
            found: _U = self._derived[create]
            return found


class CodeTable(Generic[_T]):
    """Table of values that follow from non-negative integers of a limited range, the codes.

    Parameters
    ----------
    value : callable
        Returns the value of a code; called once for each code.

    Attributes
    ----------
    table : ValueTable
        Values of the codes that were numbered.

    Examples
    --------
    >>> letters = CodeTable(chr)
    >>> letters.number(np.array([99, 97, 99])), letters.number(np.array([98, 97]))
    (array([1, 0, 1]), array([2, 0]))
    >>> letters.table.values
    ['a', 'c', 'b']
    """

    def __init__(self, value: Callable[[int], _T]) -> None:
        self.table: ValueTable[_T] = ValueTable()
        self._value = value
        # The number of each code counted from 1, 0 for none.
        self._numbers = np.zeros(_FIRST_VALUES, np.int32)

    def number(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of the value of each code; not for several threads at the same time."""
        bound = int(codes.max(initial=-1)) + 1
        if bound > len(self._numbers):
            larger = np.zeros(max(bound, 2 * len(self._numbers)), np.int32)
            larger[: len(self._numbers)] = self._numbers
            self._numbers = larger
        found = self._numbers[codes]
        new = np.unique(codes[found == 0])
        if len(new):
            # Values come first: where an interrupt stops this, they are in the table without a number.
            first = len(self.table) + 1
            self.table.values.extend(map(self._value, new.tolist()))
            self._numbers[new] = np.arange(first, first + len(new))
            found = self._numbers[codes]
        return found.astype(np.int64) - 1
