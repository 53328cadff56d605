"""Encode the contexts of tokens as source keys: single neurons by distance, and branches of several.

A context is what one segment of the target neuron receives: the neuron at exactly one distance (a connection as in
profile ``v1``, summed over all columns), or several neurons at fixed distances that have to be active together, as the
synapses of one dendritic branch are. An *ending* represents the neurons of all words with the same ending. The key of
a context is a hash of 51 bits, the width of a neuron key, so that counts are connections like any other: the context
is the source, its kind the segment, the word the target. Hashes do not depend on earlier text, so counts of blocks can
be added in any order. Two contexts share a key with a probability of 1 in 2 ** 51. `counting` counts them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.keys import NEURON_MASK, Integers
from giaann_dask.spec import NEURON_BITS

WORD, ENDING = "word", "ending"
NONE = -1

# Longest word that counts as its own ending: the words of grammar are short.
_WHOLE = 4
_LETTERS = 3
# Key of the place before a sentence.
BOUNDARY = 1


class Context(NamedTuple):
    """A kind of context: the neurons that it consists of, by view and distance.

    Attributes
    ----------
    name : str
        Of the kind.
    parts : tuple of (str, int)
        View (``"word"`` or ``"ending"``) and distance of each neuron that takes part.
    """

    name: str
    parts: tuple[tuple[str, int], ...]


def _words(name: str, *distances: int) -> Context:
    return Context(name, tuple((WORD, d) for d in distances))


# In the order of `CONTEXT_NAMES`: their places are the segments that they are counted on. The first is empty
# (how often a word occurs at all), the next ones are each a part of the one after: the chain of `CHAIN`.
CONTEXTS = (
    _words("all"),
    _words("1", 1),
    _words("1+2", 1, 2),
    _words("1+2+3", 1, 2, 3),
    _words("1+2+3+4", 1, 2, 3, 4),
    *(_words(str(d), d) for d in range(2, 7)),
    *(_words("+".join(map(str, ds)), *ds) for ds in ((1, 3), (2, 3), (1, 4), (2, 4))),
    Context("e1", ((ENDING, 1),)),
    Context("e1+e2", ((ENDING, 1), (ENDING, 2))),
    Context("e1+e2+e3", ((ENDING, 1), (ENDING, 2), (ENDING, 3))),
    Context("e1+e3", ((ENDING, 1), (ENDING, 3))),
    Context("e1+2", ((ENDING, 1), (WORD, 2))),
    Context("1+e2+e3", ((WORD, 1), (ENDING, 2), (ENDING, 3))),
)
CHAIN = 4
# Kind of the context of a single word, by distance.
SINGLE = {kind.parts[0][1]: at for at, kind in enumerate(CONTEXTS) if [view for view, _ in kind.parts] == [WORD]}
# The segment on which a context of the chain is connected with the one that it extends.
EXTENDS = 31


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class TokenStream:
    """The tokens of documents.

    Attributes
    ----------
    words : tuple of str
        Distinct words, lower-cased, in order of first appearance.
    keys, endings : ndarray
        Key of each word and of its ending, int64, shape ``(words,)``.
    index : ndarray
        Word of each token, int64, shape ``(tokens,)``.
    place : ndarray
        Place of each token in its sentence from 0, int64, shape ``(tokens,)``.
    document : ndarray
        Document of each token from 0, int64, shape ``(tokens,)``.
    """

    words: tuple[str, ...]
    keys: Integers
    endings: Integers
    index: Integers
    place: Integers
    document: Integers

    @classmethod
    def from_documents(cls, documents: Iterable[Iterable[Sequence[str]]]) -> TokenStream:
        """Return the tokens of documents, each made of sentences, each made of words.

        Examples
        --------
        >>> stream = TokenStream.from_documents([[["The", "cat"], ["The", "end"]], [["A", "cat"]]])
        >>> stream.words, stream.index.tolist(), stream.place.tolist(), stream.document.tolist()
        (('the', 'cat', 'end', 'a'), [0, 1, 0, 2, 3, 1], [0, 1, 0, 1, 0, 1], [0, 0, 0, 0, 1, 1])
        """
        number: dict[str, int] = {}
        index: list[int] = []
        place: list[int] = []
        document: list[int] = []
        for current, sentences in enumerate(documents):
            for sentence in sentences:
                index.extend(number.setdefault(word.lower(), len(number)) for word in sentence)
                place.extend(range(len(sentence)))
                document.extend([current] * len(sentence))
        words = tuple(number)
        # Texts of one evaluation or server have most of their words, and often a long beginning, in common.
        keys, endings = np.array([_keys_of(word) for word in words], np.int64).reshape(-1, 2).T.copy()
        return cls(words, keys, endings, *(np.array(values, np.int64) for values in (index, place, document)))

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.index)

    def sources(self, kind: int, begin: int = 0, end: int | None = None) -> Integers:
        """Return the source key of one kind of context before every token of a span.

        Parameters
        ----------
        kind : int
            Place in `CONTEXTS`.
        begin, end : int, optional
            The span; all tokens by default.

        Returns
        -------
        ndarray
            int64, shape ``(end - begin,)``. The place before a sentence counts as a neuron of its own, so that
            what a sentence begins with is learnt; where a distance reaches beyond that, the key is `NONE`.
        """
        span = slice(begin, len(self) if end is None else end)
        valid = np.ones(span.stop - span.start, np.bool_)
        parts = []
        for view, distance in CONTEXTS[kind].parts:
            parts.append(self._before(self.keys if view == WORD else self.endings, distance, span))
            valid &= parts[-1] != NONE
        return np.where(valid, source_key(kind, parts), NONE)

    def _before(self, keys: Integers, distance: int, span: slice) -> Integers:
        """Return the value some tokens before each token of a span, within its sentence."""
        place = self.place[span]
        seen = np.full(len(place), NONE, np.int64)
        # Where the text has no token so far back.
        none = min(max(distance - span.start, 0), len(place))
        seen[none:] = keys[self.index[max(span.start - distance, 0) : max(span.stop - distance, 0)]]
        seen[place < distance] = NONE
        seen[place == distance - 1] = BOUNDARY
        return seen


def source_key(kind: int, parts: Sequence[Integers]) -> Integers:
    """Return the source keys of contexts.

    Parameters
    ----------
    kind : int
        Place in `CONTEXTS`.
    parts : sequence of ndarray
        Keys of what each part of such contexts sees, int64, all of one shape.

    Returns
    -------
    ndarray
        int64, of that shape; of shape ``(1,)`` for a kind without parts.
    """
    key = _mixed(np.array([kind + 1], np.uint64)) if not parts else np.full(parts[0].shape, kind + 1, np.uint64)
    for part in parts:
        key = _mixed(key ^ part.astype(np.uint64))
    return (key >> np.uint64(64 - NEURON_BITS)).astype(np.int64)


def word_key(word: str) -> int:
    """Return the key of a word, 51 bits of a hash of its UTF-8 bytes."""
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") & NEURON_MASK


@lru_cache(maxsize=1 << 15)
def _keys_of(word: str) -> tuple[int, int]:
    """Return the key of a word and that of its ending."""
    return word_key(word), word_key(ending_of(word))


def ending_of(word: str) -> str:
    """Return the ending of a word; short words are kept whole, and all digits become one symbol.

    Examples
    --------
    >>> [ending_of(word) for word in ("the", "walking", "1984", "3rd")]
    ['the', '-ing', '#4', '#3']
    """
    if any(character.isdigit() for character in word):
        return f"#{min(len(word), _WHOLE)}"
    return word if len(word) <= _WHOLE else "-" + word[-_LETTERS:]


def _mixed(key: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Spread the bits of keys over all 64 (the finaliser of SplitMix64)."""
    # Multiplication is meant to lose what does not fit.
    with np.errstate(over="ignore"):
        key = key * np.uint64(0x9E3779B97F4A7C15)
        key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = key ^ (key >> np.uint64(31))
    return mixed
