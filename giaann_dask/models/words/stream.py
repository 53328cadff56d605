"""Encode the words of text and the contexts that they stand after as keys.

A context is what one segment of the target neuron receives: the neuron at exactly one distance, or several neurons at
fixed distances that have to be active together, as the synapses of one dendritic branch are. An *ending* represents the
neurons of all words with the same ending. The key of a context is a hash of 51 bits, the width of a neuron key, so that
counts are connections like any other: the context is the source, its kind the segment, the word the target. Hashes do
not depend on earlier text, so counts of blocks can be added in any order. Two contexts share a key with a probability
of 1 in 2 ** 51.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np

from giaann_dask.dask_types import register_arrays
from giaann_dask.errors import GiaannError, ModelError, SpecificationError
from giaann_dask.keys import Integers, source_key, word_key
from giaann_dask.keywords import names_keywords
from giaann_dask.spec import MAXIMUM_TOKENS
from giaann_dask.text.blocks import CANDIDATE, plain_name
from giaann_dask.text.segmentation import EncodedBlock

WORD, ENDING = "word", "ending"
NONE = -1

Feature: TypeAlias = Callable[[tuple[str, ...]], "str | None"]
"""Function of the words of a sentence so far, lower-cased, the nearest last; None where it has no value."""
View: TypeAlias = str | Feature
"""What a part of a context sees of a token: ``"word"``, ``"ending"``, or the value of a `Feature` up to the token."""

# Longest word that counts as its own ending: the words of grammar are short.
_WHOLE = 4
_LETTERS = 3
# Key of the place before a sentence.
BOUNDARY = 1
# Source of the context without words: how often words occur at all, on segment 0.
EVERYWHERE = int(source_key(0, [])[0])


@names_keywords
@dataclass(frozen=True, slots=True)
class Context:
    """A kind of context: the neurons that it consists of, by view and distance.

    Parameters
    ----------
    name : str
        Of the kind. Contexts of a model that have one name share a segment: their counts add up.
    parts : tuple of (str or callable, int)
        View and distance of each neuron that takes part, all of which must match. A view is ``"word"``, ``"ending"``,
        or a function of the words of the sentence up to that distance (a `Feature`) whose values are the neurons; it
        is a function of a module, so that each worker computes the same. A distance is 1 for the word before.

    Raises
    ------
    SpecificationError
        If the name is none, a view is another, a distance is no whole number from 1 on, or a part occurs twice.

    Examples
    --------
    >>> Context("skip", (("word", 2),)).parts
    (('word', 2),)
    >>> Context("skip", (("Word", 2),))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    giaann_dask.errors.SpecificationError: part ('Word', 2) of the context 'skip'; expected ...
    """

    name: str
    parts: tuple[tuple[View, int], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise SpecificationError(f"a context of the name {self.name!r}", "text", "name it")
        if not isinstance(self.parts, Sequence) or isinstance(self.parts, str):
            raise self._refused(f"parts {self.parts!r}")
        for part in self.parts:
            if not _is_part(part):
                raise self._refused(f"part {part!r}")
        parts = tuple((view, int(distance)) for view, distance in self.parts)
        if len(set(parts)) < len(parts):
            raise self._refused(f"parts {parts!r}, one of them twice")
        object.__setattr__(self, "parts", parts)

    def _refused(self, what: str) -> SpecificationError:
        distance = f"its distance from 1 to {MAXIMUM_TOKENS}"
        expected = f"pairs of {WORD!r}, {ENDING!r} or a function of words, and {distance}"
        return SpecificationError(f"{what} of the context {self.name!r}", expected, "correct the method contexts")

    @property
    def views(self) -> tuple[View, ...]:
        """View of each part."""
        return tuple(view for view, _ in self.parts)


def _is_part(part: Any) -> bool:
    """Return whether a value is a view with a distance."""
    if not isinstance(part, Sequence) or isinstance(part, str) or len(part) != 2:
        return False
    view, distance = part
    if isinstance(distance, bool) or not isinstance(distance, int | np.integer):
        return False
    known = view in (WORD, ENDING) if isinstance(view, str) else callable(view)
    return known and 1 <= int(distance) <= MAXIMUM_TOKENS


def view_name(view: View) -> str:
    """Return the name of a view, for persons and for the keys of its values.

    Examples
    --------
    >>> view_name("word"), view_name(ending_of)
    ('word', 'ending_of')
    """
    if isinstance(view, str):
        return view
    inner: Any = view.func if isinstance(view, partial) else view
    return str(getattr(inner, "__name__", type(inner).__name__))


def view_identity(view: View) -> Any:
    """Return what makes two views the same: partial functions are compared by what they are made of."""
    return (view.func, view.args, view.keywords) if isinstance(view, partial) else view


def value_of(view: View, words: tuple[str, ...]) -> str | None:
    """Return what a view sees of the last of some words.

    Raises
    ------
    SpecificationError
        If a function returns something else than text or None.
    """
    if isinstance(view, str):
        return words[-1] if view == WORD else ending_of(words[-1])
    try:
        found = view(words)
    except GiaannError:
        raise
    except Exception as error:
        raise ModelError.of("a context", f"its view {view_name(view)}", error) from error
    if found is not None and not isinstance(found, str):
        raise SpecificationError(f"the view {view_name(view)} returns {found!r}", "text, or None", "correct it")
    return found


def key_of(view: View, value: str) -> int:
    """Return the key of what a view sees; those of functions are none of words."""
    return word_key(value) if isinstance(view, str) else _feature_key(view_name(view), value)


@lru_cache(maxsize=1 << 12)
def _feature_key(name: str, value: str) -> int:
    return word_key(f"{name}\0{value}")


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
        columns = (np.array(values, np.int64) for values in (index, place, document))
        return cls(words, *_keys_of_words(words), *columns)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.index)

    def sources(self, segment: int, context: Context, begin: int = 0, end: int | None = None) -> Integers:
        """Return the source key of one kind of context before every token of a span.

        Parameters
        ----------
        segment : int
            Segment that the kind is counted on, which the key depends on.
        context : Context
            The kind.
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
        for view, distance in context.parts:
            parts.append(self._before(view, distance, span))
            valid &= parts[-1] != NONE
        return np.where(valid, source_key(segment, parts), NONE)

    def seen(self, view: View, begin: int, end: int) -> Integers:
        """Return the key of what a view sees of each token of a span; `NONE` where that is nothing."""
        index = self.index[begin:end]
        if isinstance(view, str):
            return (self.keys if view == WORD else self.endings)[index]
        found = np.full(len(index), NONE, np.int64)
        first = begin - int(self.place[begin]) if len(index) else begin
        words = [self.words[at] for at in self.index[first:end].tolist()]
        for at, place in enumerate(self.place[begin:end].tolist(), begin - first):
            value = value_of(view, tuple(words[at - place : at + 1]))
            if value is not None:
                found[at - (begin - first)] = key_of(view, value)
        return found

    def _before(self, view: View, distance: int, span: slice) -> Integers:
        """Return the value some tokens before each token of a span, within its sentence."""
        place = self.place[span]
        seen = np.full(len(place), NONE, np.int64)
        # Where the text has no token so far back.
        none = min(max(distance - span.start, 0), len(place))
        seen[none:] = self.seen(view, max(span.start - distance, 0), max(span.stop - distance, 0))
        seen[place < distance] = NONE
        seen[place == distance - 1] = BOUNDARY
        return seen


def _keys_of_words(words: Sequence[str]) -> tuple[Integers, Integers]:
    """Return the keys of words and those of their endings."""
    keys, endings = np.array([_keys_of(word) for word in words], np.int64).reshape(-1, 2).T.copy()
    return keys, endings


# Texts of one evaluation or server have most of their words, and often a long beginning, in common.
@lru_cache(maxsize=1 << 15)
def _keys_of(word: str) -> tuple[int, int]:
    """Return the key of a word and that of its ending."""
    key, ending = word_key(word), ending_of(word)
    return key, key if ending == word else _ending_key(ending)


@lru_cache(maxsize=1 << 12)
def _ending_key(ending: str) -> int:
    """Return the key of an ending, of which there are few."""
    return word_key(ending)


def ending_of(word: str) -> str:
    """Return the ending of a word; short words are kept whole, and all digits become one symbol.

    Examples
    --------
    >>> [ending_of(word) for word in ("the", "walking", "1984", "3rd")]
    ['the', '-ing', '#4', '#3']
    """
    if not word.isalpha() and any(character.isdigit() for character in word):
        return f"#{min(len(word), _WHOLE)}"
    return word if len(word) <= _WHOLE else "-" + word[-_LETTERS:]


def stream_tokens(blocks: Sequence[EncodedBlock], features: Sequence[str] = ()) -> TokenStream:
    """Return the tokens of blocks, the sequences in their order.

    Parameters
    ----------
    blocks : sequence of EncodedBlock
        Sequences of another status than ``CANDIDATE`` are left out.
    features : sequence of str
        Words of the dictionary, which tokens without a surface are named by; blocks of raw words (see
        `giaann_dask.text.blocks`) have a surface for every token.

    Returns
    -------
    TokenStream
        Its words in order of first appearance; documents as the blocks number them.
    """
    number: dict[str, int] = {}
    none = np.zeros(0, np.int64)
    columns: tuple[list[Integers], list[Integers], list[Integers]] = ([none], [none], [none])
    for block in blocks:
        bare = block.surface < 0
        named, spelled = np.unique(block.feature[bare], return_inverse=True)
        # With a dictionary, surfaces are the names of nouns.
        surfaces = map(plain_name, block.surfaces) if features else block.surfaces
        names = (*surfaces, *(features[feature] for feature in named.tolist()))
        local = np.array([number.setdefault(word, len(number)) for word in names], np.int64)
        surface = block.surface.astype(np.int64)
        surface[bare] = len(block.surfaces) + spelled
        lengths = np.diff(block.offsets)
        chosen = np.repeat(block.status == CANDIDATE, lengths)
        place = np.arange(len(block.surface)) - np.repeat(block.offsets[:-1], lengths)
        document = np.repeat(block.document.astype(np.int64), lengths)
        for column, values in zip(columns, (local[surface[chosen]], place[chosen], document[chosen]), strict=True):
            column.append(values)
    index, place, document = (np.concatenate(column) for column in columns)
    # A block names all its words, though its last sentences may lie beyond a limit.
    first = np.full(len(number), len(index))
    # Of several places of a word the last one written stays.
    first[index[::-1]] = np.arange(len(index))[::-1]
    order = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(index))]
    rank = np.empty_like(first)
    rank[order] = np.arange(len(order))
    known = tuple(number)
    words = tuple(known[at] for at in order.tolist())
    return TokenStream(words, *_keys_of_words(words), rank[index], place, document)


def find_numbers(keys: Integers, numbers: Integers, wanted: Integers) -> Integers:
    """Return the numbers of words by their keys, given all keys, ascending, with theirs; `NONE` for unknown ones."""
    at = find_ascending(keys, wanted)
    return np.where(at == NONE, NONE, numbers[at]) if len(numbers) else at


def find_ascending(keys: Integers, wanted: Integers) -> Integers:
    """Return the places of keys among ascending ones, `NONE` where they are not.

    Examples
    --------
    >>> find_ascending(np.array([3, 5]), np.array([5, 4])).tolist()
    [1, -1]
    """
    if not len(keys):
        return np.full(len(wanted), NONE, np.int64)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, at, NONE)
