"""Keep tables of strings packed: the UTF-8 bytes of all strings and their end offsets, as they are stored in Zarr.

So a table can be extended, and a few of a million names are found without decoding all.
"""

from __future__ import annotations

import difflib
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import zarr

from giaann_dask.errors import StoreDamagedError
from giaann_dask.keys import encode_words
from giaann_dask.storage import append_values, read_arrays

# A search compares the bytes of all names of the same length; more searches than these are worth an index of all names.
_SEARCHES = 64
# Least likeness of similar names, that of `difflib.get_close_matches`.
_ALIKE = 0.6


class Names(Sequence[str]):
    """Sequence of distinct names that only grows; finds the number of a name.

    Names that come from a store stay packed, and copies share them. A few are found by comparing bytes; for many an
    index is made.

    Parameters
    ----------
    names : iterable of str
        Names by number.

    Examples
    --------
    >>> names = Names.of_packed(*pack_strings(["cat", "dog"]))
    >>> names.append("fox"), names.find("dog"), names.find("cow"), names[-1], names[:2]
    (2, 1, None, 'fox', ['cat', 'dog'])
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._stored = _EMPTY
        self._kept = 0
        self._own = list(names)
        self._own_index: dict[str, int] | None = None

    @classmethod
    def of_packed(cls, text: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> Names:
        """Return the names of a packed table (`pack_strings`), which is not copied.

        Raises
        ------
        StoreDamagedError
            If the arrays are inconsistent or not UTF-8.
        """
        made = cls()
        made._stored, made._kept = _StoredNames(text, ends), len(ends)
        return made

    def copy(self) -> Names:
        """Return an independent copy."""
        made = self.head(len(self))
        made._own_index = None if self._own_index is None else self._own_index.copy()
        return made

    def head(self, count: int) -> Names:
        """Return the first so many names."""
        made = Names()
        made._stored, made._kept = self._stored, min(count, self._kept)
        made._own = self._own[: max(count - self._kept, 0)]
        return made

    def find(self, name: str) -> int | None:
        """Return the number of a name, None of an unknown one."""
        found = self._index_of_own().get(name)
        return self._stored.find(name, self._kept) if found is None else found

    def append(self, name: str) -> int:
        """Add a name, and return its number."""
        found = self._index_of_own()[name] = len(self)
        self._own.append(name)
        return found

    def similar(self, word: str, most: int, without: str = "") -> list[str]:
        """Return the names that are spelled most like a word, as `difflib.get_close_matches` chooses them.

        Only those are compared whose letters, whatever their order, are alike enough.

        Parameters
        ----------
        word : str
            The word.
        most : int
            Names at most.
        without : str
            ASCII character that none of them has; empty for any.

        Examples
        --------
        >>> Names(["miller", "baker", "mill_er"]).similar("miler", 2, "_")
        ['miller']
        """
        text, ends = self.packed()
        matcher, best = difflib.SequenceMatcher(b=word), list[tuple[float, str]]()
        for at, bound in _alike_by_letters(word, text, ends, without):
            if len(best) == most and bound < best[0][0]:
                break
            name = self[at]
            matcher.set_seq1(name)
            if matcher.ratio() >= _ALIKE:
                heapq.heappush(best, (matcher.ratio(), name))
            if len(best) > most:
                heapq.heappop(best)
        return [name for _, name in sorted(best, reverse=True)]

    def having(self, character: str) -> list[str]:
        """Return the names that have an ASCII character."""
        text, ends = self.packed()
        places = np.searchsorted(ends, np.flatnonzero(text == ord(character)), side="right")
        return [self[at] for at in np.unique(places).tolist()]

    def packed(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Return the UTF-8 bytes of all names and the end offset of each."""
        text, ends = self._stored.head(self._kept)
        if not self._own:
            return text, ends
        own, own_ends = pack_strings(self._own)
        return np.concatenate([text, own]), np.concatenate([ends, own_ends + len(text)])

    def __len__(self) -> int:
        return self._kept + len(self._own)

    @overload
    def __getitem__(self, key: int) -> str: ...
    @overload
    def __getitem__(self, key: slice) -> list[str]: ...
    def __getitem__(self, key: int | slice) -> str | list[str]:
        if isinstance(key, slice):
            return self._slice(*key.indices(len(self)))
        at = range(len(self))[key]
        return self._stored.name(at) if at < self._kept else self._own[at - self._kept]

    def _slice(self, start: int, stop: int, step: int) -> list[str]:
        if step != 1:
            return [self[at] for at in range(start, stop, step)]
        own = self._own[max(start - self._kept, 0) : max(stop - self._kept, 0)]
        return [*self._stored.names(start, min(stop, self._kept)), *own]

    def __iter__(self) -> Iterator[str]:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Names | list | tuple):
            return NotImplemented
        return len(self) == len(other) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(self[:])

    def _index_of_own(self) -> dict[str, int]:
        if self._own_index is None:
            self._own_index = {name: at for at, name in enumerate(self._own, self._kept)}
        return self._own_index


class _StoredNames:
    """Packed names, which do not change."""

    def __init__(self, text: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> None:
        self.text, self.ends = text, ends
        self.lengths = np.diff(ends, prepend=0)
        if (int(ends[-1]) if len(ends) else 0) != len(text) or bool((self.lengths < 0).any()):
            raise StoreDamagedError(
                f"a string table ends at byte {int(ends[-1]) if len(ends) else 0} of {len(text)}",
                "offsets that rise to the end",
            )
        try:
            self.text.tobytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise StoreDamagedError(f"a string table is not UTF-8 at byte {error.start}") from error
        begins = (ends - self.lengths)[self.lengths > 0]
        divided = begins[(text[begins] & 0xC0) == 0x80]
        if len(divided):
            raise StoreDamagedError(f"a string table is not UTF-8 at byte {int(divided[0])}")
        self._searches = 0
        self._index: dict[str, int] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _StoredNames, (self.text, self.ends)

    def head(self, count: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        ends = self.ends[:count]
        return self.text[: int(ends[-1]) if count else 0], ends

    def name(self, at: int) -> str:
        return self.text[self.ends[at] - self.lengths[at] : self.ends[at]].tobytes().decode("utf-8")

    def names(self, start: int, stop: int) -> list[str]:
        if start >= stop:
            return []
        first = int(self.ends[start - 1]) if start else 0
        text = self.text[first : int(self.ends[stop - 1])]
        # Decoding them together takes a quarter of the time; in letters, each of which begins with one such byte.
        letters = np.append(0, np.cumsum((text & 0xC0) != 0x80))
        edges, decoded = letters[self.ends[start:stop] - first].tolist(), text.tobytes().decode("utf-8")
        return [decoded[begin:end] for begin, end in pairwise([0, *edges])]

    def find(self, name: str, count: int) -> int | None:
        """Return the number of a name among the first so many."""
        if not count:
            return None
        self._searches += 1
        if self._index is None and self._searches > _SEARCHES:
            self._index = {each: at for at, each in enumerate(self.names(0, len(self.ends)))}
        found = self._search(name) if self._index is None else self._index.get(name)
        return found if found is not None and found < count else None

    def _search(self, name: str) -> int | None:
        try:
            wanted = name.encode("utf-8")
        except UnicodeEncodeError:
            return None
        found = np.flatnonzero(self.lengths == len(wanted))
        for offset, byte in enumerate(wanted):
            found = found[self.text[self.ends[found] - len(wanted) + offset] == byte]
        return int(found[-1]) if len(found) else None


def _alike_by_letters(
    word: str, text: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], without: str
) -> list[tuple[int, float]]:
    """Return packed names that may be alike enough, and how much at most, the most alike first."""
    begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[: len(ends)]
    some = np.flatnonzero(ends > begins)
    begins = begins[some]
    if not len(some) or not word:
        return []

    def count(marked: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
        # Wide enough for all names but those that have a letter 256 times.
        return np.add.reduceat(marked.view(np.uint8), begins, dtype=np.uint8)

    # Of the bytes of a character the first is counted, so that equal characters are.
    matched = np.zeros(len(some), np.int64)
    for byte, times in Counter(character.encode("utf-8", "replace")[0] for character in word).items():
        matched += np.minimum(count(text == byte), min(times, 255))
    likeness = 2 * matched / (count((text & 0xC0) != 0x80) + float(len(word)))
    if without:
        likeness[count(text == ord(without)) > 0] = 0.0
    chosen = np.flatnonzero(likeness >= _ALIKE)
    chosen = chosen[np.argsort(-likeness[chosen], kind="stable")]
    return list(zip(some[chosen].tolist(), likeness[chosen].tolist(), strict=True))


_EMPTY = _StoredNames(np.zeros(0, np.uint8), np.zeros(0, np.int64))


def pack_strings(strings: Sequence[str]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the UTF-8 bytes of all strings and the end offset of each.

    Examples
    --------
    >>> text, ends = pack_strings(["ab", "", "c"])
    >>> bytes(text), ends.tolist()
    (b'abc', [2, 2, 3])
    """
    encoded, ends = encode_words(strings, "strict")
    return np.frombuffer(encoded, np.uint8), ends


async def append_strings(group: zarr.AsyncGroup, name: str, strings: Sequence[str]) -> None:
    """Append strings to a table in a group; create the table if it does not exist."""
    text, ends = pack_strings(strings)
    text_array, end_array = string_arrays(name)
    offset = await append_values(group, text_array, text)
    await append_values(group, end_array, ends + offset)


def read_strings(group: zarr.Group, name: str) -> list[str]:
    """Return the strings of a table in a group.

    Raises
    ------
    StoreDamagedError
        If the table is missing or inconsistent.
    """
    return strings_of(read_arrays(group, string_arrays(name)), name)


def string_arrays(name: str) -> tuple[str, str]:
    """Return the names of the arrays of a table of strings."""
    return f"{name}_text", f"{name}_end"


def strings_of(arrays: Mapping[str, npt.NDArray[Any]], name: str) -> list[str]:
    """Return the strings of a table whose arrays have been read; see `read_strings`."""
    text, ends = (arrays[each] for each in string_arrays(name))
    return list(Names.of_packed(text, ends))
