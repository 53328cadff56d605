"""Build, store and query the ever-POS lexicon: which words can ever be a verb, an adposition or a conjunction.

Implements section 2 of the contract: four word sets, read from a file, collected from tagged sentences or taken from
LemmInflect's dictionary, and the rules ``det`` and ``prb`` that are defined by them.

Does not cover: ``prbctx``, which needs the sentence (`blocks`), and stored flags (`vocabulary`).
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from giaann_dask.errors import (
    InputFormatError,
    InputMissingError,
    MissingDependencyError,
    StoreFormatError,
)
from giaann_dask.local_files import decode_utf8, local_path
from giaann_dask.text.lexicon.rules import read_words
from giaann_dask.text.lexicon.words import dictionary_lines
from giaann_dask.text.tokens import TaggedWord

EverPart = Literal["VERB", "ADP", "CCONJ", "SCONJ"]
PARTS: tuple[EverPart, ...] = ("VERB", "ADP", "CCONJ", "SCONJ")

STOPS = frozenset(";:.?!")
PROBABLE_WORDS = frozenset(("is", "are", ",", "("))
_CACHED_WORDS = 1 << 17


_ADPOSITIONS = read_words(
    """
    aboard about above across after against along alongside amid amidst among amongst around as at
    atop away back because before behind below beneath beside besides between beyond but by despite down
    during except for from in inside into like minus near next of off on onto opposite out outside over past
    per plus round since than through throughout till to toward towards under underneath unlike until
    unto up upon versus via vs vs. with within without worth
    """
)
_COORDINATORS = read_words("and & or nor but yet plus both either neither 'n' n et")
_SUBORDINATORS = read_words(
    """
    after albeit although as because before cos 'cause cuz except for if lest like once provided
    providing since so than that though till unless until when whenever where whereas wherever whether
    while whilst
    """
)


@dataclass(frozen=True, slots=True)
class EverPos:
    """Lexicon of the words that can ever have a part of speech (section 2 of the contract).

    The default is `from_lemminflect`. It lists nearly every common noun as a possible verb, without
    effect, because nouns never become features and never lie between two neighbouring nouns. Only
    the words that are not nouns matter. On the gold tags of EWT's training part, 42.7 % of the
    tokens that are not nouns are delimiters under the words of EWT dev and test, 48.4 % under the
    default (42.2 % under both). The default adds modals ("will" and "can" are also full
    verbs) and words such as "contexts", "well", "even", "still", "long" and "own"; it mostly lacks
    "no", "then" and mistyped words.

    Attributes
    ----------
    verb, adp, cconj, sconj : frozenset of str
        Lower-cased words and lemmas of each part.
    dictionary : str
        Version of LemmInflect whose dictionary's verbs are included; empty for
        none. The words are read from the installed package, so the pickled lexicon stays small.

    Examples
    --------
    >>> ever = EverPos(verb=frozenset(["sat"]), adp=frozenset(["on"]), cconj=frozenset(["and"]))
    >>> ever.delimiter("sat", "sit", "VBD"), ever.delimiter("mat", "mat", "NN")
    (True, False)
    >>> ever.probable_delimiter("and", "and")
    True
    """

    verb: frozenset[str] = frozenset()
    adp: frozenset[str] = frozenset()
    cconj: frozenset[str] = frozenset()
    sconj: frozenset[str] = frozenset()
    dictionary: str = ""

    def is_ever(self, word: str, part: EverPart) -> bool:
        """Return whether a lower-cased word or lemma can ever be the given part of speech.

        Raises
        ------
        MissingDependencyError
            If the dictionary is needed and another version of LemmInflect, or none, is installed.
        """
        if word in self._words(part):
            return True
        return part == "VERB" and bool(self.dictionary) and _dictionary_verb(self.dictionary)(word)

    def delimiter(self, word: str, lemma: str, xpos: str) -> bool:
        """Return ``det`` of a token from its lower-cased word and lemma and its Penn tag."""
        if word in STOPS or xpos == "POS":
            return True
        return any(each in self.adp or self.is_ever(each, "VERB") for each in (word, lemma))

    def probable_delimiter(self, word: str, lemma: str) -> bool:
        """Return ``prb`` of a token from its lower-cased word and lemma."""
        return word in PROBABLE_WORDS or any(each in self.cconj or each in self.sconj for each in (word, lemma))

    @classmethod
    def from_json(cls, path: str | Path) -> EverPos:
        """Read a lexicon from a JSON object of UPOS to list of words; ``.gz`` is decompressed.

        Words are lower-cased; parts other than the four are ignored.

        Raises
        ------
        InputMissingError
            If the file does not exist.
        InputFormatError
            If the file is not such an object.
        """
        path = local_path(path)
        try:
            data = path.read_bytes()
            content = json.loads(decode_utf8(gzip.decompress(data) if path.suffix == ".gz" else data, str(path)))
        except FileNotFoundError as error:
            raise InputMissingError(f"no file {path}", "an ever-POS lexicon", "give the path of a JSON file") from error
        except (OSError, EOFError, ValueError) as error:
            raise InputFormatError(
                f"{path} cannot be read ({error})", "JSON, or gzipped JSON named .gz", "repair the file"
            ) from error
        return cls._from_lists(content, str(path))

    @classmethod
    def from_words(cls, words: Iterable[TaggedWord]) -> EverPos:
        """Collect the lower-cased form and lemma of every word whose UPOS is one of the parts."""
        found: dict[str, set[str]] = {part: set() for part in PARTS}
        for word in words:
            if word.upos in found:
                found[word.upos].update((word.form.lower(), word.lemma.lower()))
        verb, adp, cconj, sconj = (frozenset(found[part]) for part in PARTS)
        return cls(verb, adp, cconj, sconj)

    @classmethod
    def from_lemminflect(cls) -> EverPos:
        """Return the default: the verbs of LemmInflect's dictionary and short lists of the rest.

        Only words of the dictionary are verbs; LemmInflect's rules for unknown words are not
        used, because they accept any word.

        Raises
        ------
        MissingDependencyError
            If LemmInflect is not installed.
        """
        return cls(adp=_ADPOSITIONS, cconj=_COORDINATORS, sconj=_SUBORDINATORS, dictionary=_installed_version())

    def union(self, other: EverPos) -> EverPos:
        """Return the lexicon that holds the words of both.

        Raises
        ------
        StoreFormatError
            If the two name different versions of LemmInflect.
        """
        if self.dictionary and other.dictionary and self.dictionary != other.dictionary:
            raise StoreFormatError(
                f"two ever-POS lexicons of LemmInflect {self.dictionary} and {other.dictionary}",
                "one version of LemmInflect",
                "make both with the same version",
            )
        return EverPos(
            verb=self.verb | other.verb,
            adp=self.adp | other.adp,
            cconj=self.cconj | other.cconj,
            sconj=self.sconj | other.sconj,
            dictionary=self.dictionary or other.dictionary,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values: sorted word lists, and the version of LemmInflect instead of its words."""
        lists: dict[str, Any] = {part: sorted(self._words(part)) for part in PARTS}
        if not self.dictionary:
            return {"source": "words", **lists}
        return {"source": "lemminflect", "version": self.dictionary, **lists}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> EverPos:
        """Return the lexicon of `as_dict`.

        Raises
        ------
        StoreFormatError
            If the source is unknown.
        InputFormatError
            If a value is not a list of words.
        """
        source = fields.get("source")
        if source not in ("words", "lemminflect"):
            raise StoreFormatError(
                f"an ever-POS lexicon with source {source!r}",
                "words or lemminflect",
                "open the network with the version of giaann_dask that wrote it",
            )
        words = cls._from_lists(fields, "the stored ever-POS lexicon")
        if source == "words":
            return words
        return dataclasses.replace(words, dictionary=str(fields.get("version", "")))

    def identity(self) -> str:
        """Return 16 hexadecimal digits that identify the content."""
        text = json.dumps(self.as_dict(), sort_keys=True, ensure_ascii=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def _words(self, part: EverPart) -> frozenset[str]:
        words: frozenset[str] = getattr(self, part.lower())
        return words

    @classmethod
    def _from_lists(cls, content: object, name: str) -> EverPos:
        """Return the lexicon of an object of UPOS to words, and check the object."""
        if not isinstance(content, Mapping) or not any(part in content for part in PARTS):
            raise InputFormatError(
                f"{name} is not an ever-POS lexicon",
                f"an object with lists for {', '.join(PARTS)}",
                "name another file as ever_pos",
            )
        sets: list[frozenset[str]] = []
        for part in PARTS:
            words = content.get(part, ())
            valid = isinstance(words, (list, tuple)) and all(isinstance(w, str) for w in words)
            if not valid:
                raise InputFormatError(f"{name}: {part} is not a list of words", "a list of strings", "repair the file")
            sets.append(frozenset(word.lower() for word in words))
        verb, adp, cconj, sconj = sets
        return cls(verb, adp, cconj, sconj)


def _installed_version() -> str:
    """Return the version of the installed LemmInflect."""
    try:
        return importlib.metadata.version("lemminflect")
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingDependencyError(
            "lemminflect is not installed", "the lemminflect package", "pip install lemminflect"
        ) from error


@functools.cache
def _dictionary_verb(version: str) -> Callable[[str], bool]:
    """Return a predicate: whether LemmInflect's dictionary lists a lower-cased word as a verb."""
    installed = _installed_version()
    if installed != version:
        raise MissingDependencyError(
            f"lemminflect {installed} is installed",
            f"version {version}, whose dictionary is part of the network",
            f"pip install lemminflect=={version}",
        )
    try:
        lines = dictionary_lines()
    except ModuleNotFoundError as error:
        raise MissingDependencyError.of(error) from error

    @functools.lru_cache(maxsize=_CACHED_WORDS)
    def is_verb(word: str) -> bool:
        return any(entry.startswith("verb,") for entry in lines.get(word, "").split(";"))

    return is_verb
