"""Divide English text into tokens by the rules of the installed spaCy, without importing spaCy every time.

The package spaCy imports PyTorch and takes seconds and hundreds of MiB in every process that reads text. Its English
tokenizer is four regular expressions and a table of special cases. They are read from spaCy once for each installation,
stored in a cache file, and applied as ``spacy.tokenizer.Tokenizer`` does: chunks between spaces are looked up in the
table, prefixes and suffixes are removed one by one, the remainder is divided at infixes, and special cases that were
divided, or that two chunks make together, are restored. Tests compare the tokens with those of spaCy.

Tokens are numbers of types, so a chunk that was seen before costs one look-up and no Python object per token. Chunks
are the keys of a hash table of code points in compiled code (`ChunkNumbers`).

Does not cover: sentences (`splitting`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import distribution, version
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.lazy import compiled, jit_inner
from giaann_dask.lazy import numba_types as nb
from giaann_dask.local_files import private_cache, user_cache
from giaann_dask.text.lexicon.tables import GrowingArray, ValueTable, reserved
from giaann_dask.text.scripts import divide_unspaced
from giaann_dask.text.tokens import look_up_each, names_of

# Attributes of spaCy's tokenizer that hold the search functions of its expressions.
_EXPRESSIONS = {"prefix": "search", "suffix": "search", "infix": "finditer", "url": "match"}

# No rule divides a chunk of these characters alone, so most chunks need no regular expression.
_PLAIN = re.compile(r"[A-Za-z]+")
# Groups: a word, its last two letters, and punctuation.
_WORD = re.compile(r"([A-Za-z]+([A-Za-z]{2}))([^\w\s]+)")
_NONE: Mapping[str, list[str]] = {}

# The rules take time quadratic in the length of a chunk (20,000 brackets take 37 s), so longer chunks are divided, if
# possible after a punctuation mark.
_MAXIMUM_CHUNK = 200
_PIECE = re.compile(rf"\S{{1,{_MAXIMUM_CHUNK - 1}}}[^\w\s]|\S{{1,{_MAXIMUM_CHUNK}}}")


class TypedPassages(NamedTuple):
    """Tokens of some passages as numbers of types.

    Attributes
    ----------
    types : ValueTable of str
        Distinct tokens, and others that the passages do not have, in any order; the table of all calls of a tokenizer,
        until it forgets.
    type_of : ndarray
        Number of each token in `types`; int64, shape ``(tokens,)``.
    spaced : ndarray
        Whether white space, or the end of the passage, follows each token; bool, shape ``(tokens,)``.
    ends : ndarray
        Number of tokens up to the end of each passage; int64, shape ``(passages,)``.
    """

    types: ValueTable[str]
    type_of: npt.NDArray[np.int64]
    spaced: npt.NDArray[np.bool_]
    ends: npt.NDArray[np.int64]

    def tokens(self) -> list[str]:
        """Return the tokens of all passages."""
        return names_of(self.types.values, self.type_of)


class EnglishTokenizer:
    """Divide text into tokens; a chunk between spaces is divided once and then looked up.

    Not for several threads at the same time.

    Parameters
    ----------
    abbreviations : sequence of str
        Strings that stay one token, besides those of the rules.
    maximum_chunks : int
        Number of chunks to remember; when a call begins with more, all are divided again.
    characters : bool
        Whether text in scripts without spaces, such as those of Chinese, Japanese and Thai, is divided into characters,
        each with the marks that belong to it; spaCy's English tokenizer leaves it whole.

    Examples
    --------
    >>> EnglishTokenizer()(["He didn't go (to the U.K.)."]).tokens()
    ['He', 'did', "n't", 'go', '(', 'to', 'the', 'U.K.', ')', '.']
    >>> EnglishTokenizer(characters=True)(["猫はTokyoで寝た。"]).tokens()
    ['猫', 'は', 'Tokyo', 'で', '寝', 'た', '。']
    """

    def __init__(
        self, abbreviations: Sequence[str] = (), maximum_chunks: int = 250_000, *, characters: bool = False
    ) -> None:
        self._characters = characters
        self._rules = rules = english_rules()
        self._special: dict[str, list[str]] = rules["special"] | {text: [text] for text in abbreviations}
        # Kept as the rules are: dividing special cases compiles the expressions, which a short text may not need.
        # Written as Python does, in a tenth of the time that JSON takes.
        content = repr((rules, self._special)).encode()
        name = f"english_phrases-{hashlib.blake2b(content, digest_size=8).hexdigest()}.json"
        self._phrases: dict[str, list[list[str]]] = _stored(name, self._divided_phrases)
        self._maximum_chunks = maximum_chunks
        self._forget()

    @functools.cached_property
    def _special_words(self) -> frozenset[str]:
        return frozenset(word for text in self._special for word in _PLAIN.findall(text))

    @functools.cached_property
    def _prefix(self) -> re.Pattern[str]:
        return re.compile(self._rules["prefix"])

    @functools.cached_property
    def _suffix(self) -> re.Pattern[str]:
        return re.compile(self._rules["suffix"])

    @functools.cached_property
    def _infix(self) -> re.Pattern[str]:
        return re.compile(self._rules["infix"])

    @functools.cached_property
    def _url(self) -> re.Pattern[str]:
        return re.compile(self._rules["url"])

    def _forget(self) -> None:
        """Begin with the types of the divided special cases alone."""
        self._types: ValueTable[str] = ValueTable()
        self._numbers: dict[str, int] = {}
        # Special cases are searched for where the first two tokens of a divided form follow each other, unless it is
        # what they are restored to ("it", "'s").
        every = (phrase for phrases in self._phrases.values() for phrase in phrases)
        phrases = [phrase for phrase in every if self._special.get("".join(phrase)) != phrase]
        # A special case that is divided has two tokens or more.
        first, second = self._number([token for phrase in phrases for token in phrase[:2]]).reshape(-1, 2).T
        # Behind a number that no two tokens have.
        self._openings = np.sort(np.append(_opening(first, second), -1))
        self._opening_types = len(self._types)
        self._chunks = ChunkNumbers()
        # Tokens after a word, by its last two letters and what follows; none where the word is not a token.
        self._endings: dict[tuple[str, str], list[str]] = {}
        # Tokens of chunk c: from _starts[c] to _starts[c + 1].
        self._starts, self._tokens = GrowingArray(np.int64), GrowingArray(np.int64)
        self._spaced = GrowingArray(np.bool_)
        self._starts.append(np.zeros(1, np.int64))
        # Whether a call did not come to its end, so that chunks lack tokens.
        self._changing = False

    @property
    def chunks(self) -> int:
        """Number of chunks that are remembered."""
        return len(self._chunks)

    def __call__(self, passages: Sequence[str]) -> TypedPassages:
        """Return the tokens of passages, none of which spans two passages."""
        if self._changing or len(self._chunks) >= self._maximum_chunks:
            self._forget()
        self._changing = True
        number, ends, new = self._chunks.number(passages)
        self._add_chunks(new)
        self._changing = False
        starts = self._starts.values
        lengths = starts[number + 1] - starts[number]
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        at = np.arange(bounds[-1]) + np.repeat(starts[number] - bounds[:-1], lengths)
        return TypedPassages(
            self._types, *self._restore(self._tokens.values[at], self._spaced.values[at], bounds[ends])
        )

    def _number(self, tokens: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return the type of each token; those of new ones follow."""
        new = [token for token in dict.fromkeys(tokens) if token not in self._numbers]
        self._numbers.update(zip(new, count(len(self._types)), strict=False))
        self._types.values.extend(new)
        return look_up_each(self._numbers.__getitem__, tokens)

    def _add_chunks(self, chunks: Sequence[str]) -> None:
        """Divide new chunks."""
        tokens: list[str] = []
        ends: list[int] = []
        for chunk in chunks:
            for piece in [chunk] if len(chunk) <= _MAXIMUM_CHUNK else _PIECE.findall(chunk):
                found = self._special.get(piece) or self._after_word(piece) or self._divide(piece, self._special)
                if self._characters and not piece.isascii():
                    found = [part for token in found for part in divide_unspaced(token)]
                tokens += found
            ends.append(len(tokens))
        spaced = np.zeros(len(tokens), np.bool_)
        spaced[np.array(ends, np.int64) - 1] = True
        self._starts.append(np.array(ends, np.int64) + len(self._tokens))
        self._tokens.append(self._number(tokens))
        self._spaced.append(spaced)

    def _after_word(self, chunk: str) -> Sequence[str]:
        """Return the tokens of a word of letters with punctuation after it, empty where the rules are needed.

        No rule looks at more than two letters before punctuation, so the punctuation after a word of no special case
        is divided once for each two letters.
        """
        match = _WORD.fullmatch(chunk)
        if match is None:
            return (chunk,) if _PLAIN.fullmatch(chunk) else ()
        word, letters, after = match.groups()
        if word in self._special_words:
            return ()
        tokens = self._endings.get((letters, after))
        if tokens is None:
            divided = self._divide(chunk, self._special)
            tokens = self._endings[letters, after] = divided[1:] if divided[0] == word else []
        return [word, *tokens] if tokens else ()

    def _divide(self, chunk: str, special: Mapping[str, list[str]]) -> list[str]:
        """Return the tokens of a chunk: its prefixes, what is left, and its suffixes."""
        prefixes: list[str] = []
        suffixes: list[str] = []
        length = -1
        while chunk and len(chunk) != length and chunk not in special and not _PLAIN.fullmatch(chunk):
            length = len(chunk)
            before = _matched(self._prefix, chunk)
            if before and chunk[before:] in special:
                prefixes.append(chunk[:before])
                chunk = chunk[before:]
                break
            after = _matched(self._suffix, chunk[before:])
            end = length - after
            if after and chunk[:end] in special:
                suffixes.append(chunk[end:])
                chunk = chunk[:end]
                break
            if before:
                prefixes.append(chunk[:before])
            if after and before <= end:
                suffixes.append(chunk[end:])
                chunk = chunk[before:end]
            else:
                chunk = chunk[before:]
        return [*prefixes, *self._divide_core(chunk, special), *reversed(suffixes)]

    def _divide_core(self, core: str, special: Mapping[str, list[str]]) -> Sequence[str]:
        """Return the tokens of what no prefix and no suffix is removed from."""
        if not core:
            return ()
        if core in special:
            return special[core]
        plain = _PLAIN.fullmatch(core) or self._url.match(core)
        return [core] if plain else list(self._between_infixes(core))

    def _between_infixes(self, core: str) -> Iterator[str]:
        start = 0
        for infix in self._infix.finditer(core):
            begin, end = infix.span()
            # An infix at the very beginning would be a prefix.
            if begin == 0:
                continue
            if begin != start:
                yield core[start:begin]
            if begin != end:
                yield core[begin:end]
            start = end
        if start < len(core):
            yield core[start:]

    def _divided_phrases(self) -> dict[str, list[list[str]]]:
        """Return the tokens that special cases would be divided into, by the first of them."""
        phrases: dict[str, list[list[str]]] = {}
        for text in self._special:
            parts = (_matched(self._prefix, text), _matched(self._suffix, text), self._infix.search(text))
            if any(parts) and not any(letter.isspace() for letter in text):
                tokens = self._divide(text, _NONE)
                phrases.setdefault(tokens[0], []).append(tokens)
        return phrases

    def _restore(
        self, tokens: npt.NDArray[np.int64], spaced: npt.NDArray[np.bool_], ends: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Put in the tokens of special cases in the passages that may hold their divided form."""
        at = np.flatnonzero(tokens < self._opening_types)
        first, second = tokens[at], np.append(tokens, 0)[at + 1]
        opens = self._opens(_opening(first, second)) | self._opens(_opening(first))
        if not opens.any():
            return tokens, spaced, ends
        begin, kept, lengths = 0, 0, np.diff(ends, prepend=0)
        pieces: list[tuple[Any, Any]] = []
        for passage in np.unique(np.searchsorted(ends, at[opens], "right")).tolist():
            begin, end = int(ends[passage] - lengths[passage]), int(ends[passage])
            words, spaces = names_of(self._types.values, tokens[begin:end]), spaced[begin:end].tolist()
            if not self._restore_passage(words, spaces):
                continue
            pieces += [(tokens[kept:begin], spaced[kept:begin]), (self._number(words), spaces)]
            lengths[passage], kept = len(words), end
        pieces.append((tokens[kept:], spaced[kept:]))
        return (
            np.concatenate([np.asarray(piece, np.int64) for piece, _ in pieces]),
            np.concatenate([np.asarray(piece, np.bool_) for _, piece in pieces]),
            np.cumsum(lengths),
        )

    def _opens(self, opening: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which numbers of first tokens are those of special cases; ``np.isin`` imports masked arrays."""
        at = np.searchsorted(self._openings, opening, "right") - 1
        found: npt.NDArray[np.bool_] = self._openings[at] == opening
        return found

    def _restore_passage(self, words: list[str], spaced: list[bool]) -> bool:
        """Put in the tokens of special cases wherever the words of their divided form follow each other.

        Returns
        -------
        bool
            Whether the lists were changed.
        """
        phrases = self._phrases
        found = [
            (len(phrase), at)
            for at, word in enumerate(words)
            if word in phrases
            for phrase in phrases[word]
            if words[at : at + len(phrase)] == phrase
        ]
        # The longest first, of equally long ones the first. One that spaces interrupt changes nothing, yet no shorter
        # one is restored inside it.
        seen: set[int] = set()
        chosen = []
        for length, at in sorted(found, key=lambda each: (-each[0], each[1])):
            if at not in seen and at + length - 1 not in seen:
                chosen.append((at, at + length))
            seen.update(range(at, at + length))
        changed = False
        # From the end, so that indices of earlier ones stay.
        for begin, end in sorted(chosen, reverse=True):
            tokens = None if any(spaced[begin : end - 1]) else self._special.get("".join(words[begin:end]))
            if tokens is not None:
                spaced[begin:end] = [*[False] * (len(tokens) - 1), spaced[end - 1]]
                words[begin:end] = tokens
                changed = True
        return changed


def _opening(first: Any, second: Any = -1) -> Any:
    """Return one number for the first two tokens of a phrase; -1 stands for no second one."""
    return (first << 32) + second + 1


@functools.cache
def english_rules() -> dict[str, Any]:
    """Return the rules of the installed spaCy: from the cache file, else from spaCy, which writes the file.

    Returns
    -------
    dict
        ``prefix``, ``suffix``, ``infix`` and ``url`` are regular expressions; ``special`` has the tokens of each
        special case.
    """
    return _stored(f"english_rules-{_spacy_version()}.json", read_rules)


def _spacy_version() -> str:
    """Return the version of the installed spaCy, without parsing the rest of its metadata as an e-mail."""
    found = re.search(r"^Version: *(\S+)", distribution("spacy").read_text("METADATA") or "", re.MULTILINE)
    return found[1] if found else version("spacy")


def _stored(name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the content of a cache file, which is made and written where there is none."""
    # Where numba keeps compiled code, too: beside the modules, or in the user's folder.
    places = (Path(__file__).with_name("__pycache__") / name, user_cache() / name)
    for place in places:
        with suppress(OSError, ValueError):
            stored: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
            return stored
    made = make()
    for place in places:
        with suppress(OSError):
            _write(made, place)
            break
    return made


def read_rules() -> dict[str, Any]:
    """Read the rules from spaCy, which is imported for it."""
    from spacy.lang.en import English
    from spacy.symbols import ORTH

    tokenizer = English().tokenizer
    return {
        **{name: getattr(tokenizer, f"{name}_{how}").__self__.pattern for name, how in _EXPRESSIONS.items()},
        "special": {
            text: [part[ORTH] if ORTH in part else part["ORTH"] for part in parts]
            for text, parts in sorted(tokenizer.rules.items())
        },
    }


def _write(rules: dict[str, Any], place: Path) -> None:
    """Write the cache file in one step, as several processes may write it at the same time."""
    if place.parent == user_cache():
        private_cache("")
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=place.parent, encoding="utf-8", delete=False) as file:
        json.dump(rules, file)
    os.replace(file.name, place)


def _matched(pattern: re.Pattern[str], text: str) -> int:
    """Return the length of the first match of a pattern in a text, 0 for none."""
    match = pattern.search(text)
    return 0 if match is None else match.end() - match.start()


# No character above it is white space.
_SPACES = np.array([chr(code).isspace() for code in range(0x3001)])
_FIRST_SLOTS = 1 << 10
_ENCODING = "utf-32-le", "surrogatepass"


class NumberedChunks(NamedTuple):
    """Chunks of some passages as numbers.

    Attributes
    ----------
    numbers : ndarray
        Number of each chunk; int64, shape ``(chunks,)``.
    ends : ndarray
        Number of chunks up to the end of each passage; int64, shape ``(passages,)``.
    new : list of str
        Chunks that no passage had before; their numbers follow the earlier ones.
    """

    numbers: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    new: list[str]


class ChunkNumbers:
    """Number distinct chunks in order of first appearance.

    Examples
    --------
    >>> numbers = ChunkNumbers()
    >>> numbers.number([" a  bc a", "", "d"])
    NumberedChunks(numbers=array([0, 1, 0, 2]), ends=array([3, 3, 4]), new=['a', 'bc', 'd'])
    >>> numbers.number(["e bc"])
    NumberedChunks(numbers=array([3, 1]), ends=array([2]), new=['e'])
    """

    def __init__(self) -> None:
        # Code points of all chunks, and where each of them ends; the number of a chunk counted from 1, or 0, per slot.
        self._letters, self._ends = np.zeros(0, np.uint32), np.zeros(0, np.int64)
        self._slots, self._count = np.zeros(_FIRST_SLOTS, np.int32), 0

    def __len__(self) -> int:
        """Return the number of distinct chunks."""
        return self._count

    def number(self, passages: Sequence[str]) -> NumberedChunks:
        """Return the chunks of passages as numbers."""
        codes = np.frombuffer(" ".join(passages).encode(*_ENCODING), np.uint32)
        lengths = np.fromiter(map(len, passages), np.int64, len(passages))
        # What is reserved suffices if all chunks are new.
        before, used = self._count, int(self._ends[self._count - 1]) if self._count else 0
        self._letters = reserved(self._letters, used + len(codes))
        self._ends = reserved(self._ends, before + len(codes) // 2 + 1)
        number: Any = _number
        numbers, ends, self._slots, self._count = number(
            codes, lengths, _SPACES, (self._letters, self._ends), self._slots, before
        )
        edges = [used, *self._ends[before : self._count].tolist()]
        text = self._letters[used : edges[-1]].tobytes().decode(*_ENCODING)
        new = [text[begin - used : end - used] for begin, end in pairwise(edges)]
        return NumberedChunks(numbers, ends, new)


@jit_inner
def _mix(code, letter):  # type: ignore[no-untyped-def]
    """Return the hash of a chunk with one more letter (FNV-1a)."""
    return (code ^ np.uint64(letter)) * np.uint64(0x100000001B3)


@jit_inner
def _slot(code, slots):  # type: ignore[no-untyped-def]
    """Return the first slot for a hash."""
    return np.int64((code ^ (code >> np.uint64(29))) & np.uint64(len(slots) - 1))


_HASH = np.uint64(0xCBF29CE484222325)


@jit_inner
def _enlarged(slots, letters, ends, count):  # type: ignore[no-untyped-def]
    """Return twice as many slots with the same chunks."""
    larger = np.zeros(2 * len(slots), np.int32)
    begin = 0
    for number in range(count):
        code = _HASH
        for at in range(begin, ends[number]):
            code = _mix(code, letters[at])
        begin = ends[number]
        slot = _slot(code, larger)
        while larger[slot]:
            slot = (slot + 1) & (len(larger) - 1)
        larger[slot] = number + 1
    return larger


_CODES = nb.types.Array(nb.uint32, 1, "C", readonly=True)
_CHUNKS = nb.types.Tuple((nb.uint32[::1], nb.int64[::1]))


@compiled(
    nb.types.Tuple((nb.int64[::1], nb.int64[::1], nb.int32[::1], nb.int64))(
        _CODES, nb.int64[::1], nb.boolean[::1], _CHUNKS, nb.int32[::1], nb.int64
    ),
    plain_us=lambda codes, *_: 3 * len(codes),
)
def _number(codes, lengths, spaces, chunks, slots, count):  # type: ignore[no-untyped-def]
    """Return the number of each chunk, the chunks up to the end of each passage, and the slots and count afterwards."""
    letters, chunk_ends = chunks
    numbers, ends = np.empty(len(codes) // 2 + 1, np.int64), np.empty(len(lengths), np.int64)
    used = chunk_ends[count - 1] if count else 0
    found = at = 0
    for passage, length in enumerate(lengths):
        last = at + length
        while at < last:
            letter = codes[at]
            if letter < len(spaces) and spaces[letter]:
                at += 1
                continue
            begin, code = at, _HASH
            while at < last:
                letter = codes[at]
                if letter < len(spaces) and spaces[letter]:
                    break
                code = _mix(code, letter)
                at += 1
            slot, size = _slot(code, slots), at - begin
            while slots[slot]:
                number = slots[slot] - 1
                first = chunk_ends[number - 1] if number else 0
                if chunk_ends[number] - first == size:
                    same = 0
                    while same < size and letters[first + same] == codes[begin + same]:
                        same += 1
                    if same == size:
                        break
                slot = (slot + 1) & (len(slots) - 1)
            if slots[slot]:
                numbers[found] = slots[slot] - 1
            else:
                for offset in range(size):
                    letters[used + offset] = codes[begin + offset]
                used += size
                chunk_ends[count] = used
                numbers[found] = count
                count += 1
                slots[slot] = count
                if 2 * count > len(slots):
                    slots = _enlarged(slots, letters, chunk_ends, count)
            found += 1
        ends[passage] = found
        # A space is between two passages.
        at = last + 1
    return numbers[:found].copy(), ends, slots, count
