"""Divide English text into tokens by the rules of the installed spaCy, without importing spaCy every time.

The package spaCy imports PyTorch and takes seconds and hundreds of MiB in every process that reads text. Its English
tokenizer is four regular expressions and a table of special cases. They are read from spaCy once for each installation,
stored in a cache file, and applied as ``spacy.tokenizer.Tokenizer`` does: chunks between spaces are looked up in the
table, prefixes and suffixes are removed one by one, the remainder is divided at infixes, and special cases that were
divided, or that two chunks make together, are restored. Tests compare the tokens with those of spaCy.

Does not cover: sentences (`splitting`).
"""

from __future__ import annotations

import functools
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from giaann_dask.user_cache import user_cache

# Attributes of spaCy's tokenizer that hold the search functions of its expressions.
_EXPRESSIONS = {"prefix": "search", "suffix": "search", "infix": "finditer", "url": "match"}

# No rule divides a chunk of these characters alone, so most chunks need no regular expression.
_PLAIN = re.compile(r"[A-Za-z]+")
_NONE: Mapping[str, list[str]] = {}


class EnglishTokenizer:
    """Divide text into tokens; a chunk between spaces is divided once and then looked up.

    Parameters
    ----------
    abbreviations : sequence of str
        Strings that stay one token, besides those of the rules.
    maximum_chunks : int
        Number of chunks to remember; beyond it all are divided again.

    Examples
    --------
    >>> EnglishTokenizer()("He didn't go (to the U.K.).")[0]
    ['He', 'did', "n't", 'go', '(', 'to', 'the', 'U.K.', ')', '.']
    """

    def __init__(self, abbreviations: Sequence[str] = (), maximum_chunks: int = 250_000) -> None:
        rules = english_rules()
        self._special: dict[str, list[str]] = rules["special"] | {text: [text] for text in abbreviations}
        self._prefix, self._suffix, self._infix, self._url = (
            re.compile(rules[name]) for name in ("prefix", "suffix", "infix", "url")
        )
        self._phrases = self._divided_phrases()
        self._maximum_chunks = maximum_chunks
        self._known: dict[str, list[str]] = {}

    @property
    def chunks(self) -> int:
        """Number of chunks that are remembered."""
        return len(self._known)

    def __call__(self, text: str) -> tuple[list[str], list[bool]]:
        """Return the tokens of a text, and whether a space follows each.

        Parameters
        ----------
        text : str
            Its white space is single spaces, with none at its ends.
        """
        if not text:
            return [], []
        words: list[str] = []
        spaced: list[bool] = []
        for chunk in text.split(" "):
            tokens = self._known.get(chunk)
            if tokens is None:
                tokens = self._divide_and_remember(chunk)
            words += tokens
            if len(tokens) > 1:
                spaced += [False] * (len(tokens) - 1)
            spaced.append(True)
        spaced[-1] = False
        return self._restore(words, spaced)

    def _divide_and_remember(self, chunk: str) -> list[str]:
        if len(self._known) >= self._maximum_chunks:
            self._known.clear()
        found = self._known[chunk] = self._special.get(chunk) or self._divide(chunk, self._special)
        return found

    def _divide(self, chunk: str, special: Mapping[str, list[str]]) -> list[str]:
        """Return the tokens of a chunk: its prefixes, what is left, and its suffixes."""
        if _PLAIN.fullmatch(chunk):
            return [chunk]
        prefixes: list[str] = []
        suffixes: list[str] = []
        length = -1
        while chunk and len(chunk) != length and chunk not in special:
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
        return [core] if self._url.match(core) else list(self._between_infixes(core))

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

    def _restore(self, words: list[str], spaced: list[bool]) -> tuple[list[str], list[bool]]:
        """Put in the tokens of special cases wherever the words of their divided form follow each other."""
        phrases = self._phrases
        found = [
            (len(phrase), at)
            for at, word in enumerate(words)
            if word in phrases
            for phrase in phrases[word]
            if words[at : at + len(phrase)] == phrase
        ]
        if not found:
            return words, spaced
        # The longest first, of equally long ones the first. One that spaces interrupt changes nothing, yet no shorter
        # one is restored inside it.
        seen: set[int] = set()
        chosen = []
        for length, at in sorted(found, key=lambda each: (-each[0], each[1])):
            if at not in seen and at + length - 1 not in seen:
                chosen.append((at, at + length))
            seen.update(range(at, at + length))
        # From the end, so that indices of earlier ones stay.
        for begin, end in sorted(chosen, reverse=True):
            tokens = None if any(spaced[begin : end - 1]) else self._special.get("".join(words[begin:end]))
            if tokens is not None:
                spaced[begin:end] = [*[False] * (len(tokens) - 1), spaced[end - 1]]
                words[begin:end] = tokens
        return words, spaced


@functools.cache
def english_rules() -> dict[str, Any]:
    """Return the rules of the installed spaCy: from the cache file, else from spaCy, which writes the file.

    Returns
    -------
    dict
        ``prefix``, ``suffix``, ``infix`` and ``url`` are regular expressions; ``special`` has the tokens of each
        special case.
    """
    name = f"english_rules-{version('spacy')}.json"
    # Where numba keeps compiled code, too: beside the modules, or in the user's folder.
    places = (Path(__file__).with_name("__pycache__") / name, user_cache() / name)
    for place in places:
        with suppress(OSError, ValueError):
            stored: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
            return stored
    rules = read_rules()
    for place in places:
        with suppress(OSError):
            _write(rules, place)
            break
    return rules


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
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=place.parent, encoding="utf-8", delete=False) as file:
        json.dump(rules, file)
    os.replace(file.name, place)


def _matched(pattern: re.Pattern[str], text: str) -> int:
    """Return the length of the first match of a pattern in a text, 0 for none."""
    match = pattern.search(text)
    return 0 if match is None else match.end() - match.start()
