"""What the default tagger knows about single words: the tags they can have and their lemmas.

Covers: the readings of a word by the closed classes of `lexicon_rules`, TextBlob's word list (the
most frequent Penn tag), LemmInflect's dictionary (all parts of speech and lemmas) and, for words
that neither knows, its shape and ending. Does not cover: the choice by context (`lexicon_tagger`).
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from giaann_dask.errors import MissingDependencyError
from giaann_dask.text.lexicon_rules import CLOSED, UPOS, Reading

Place = Literal["first", "inside", "shouting"]
Readings = tuple[Reading, ...]

_REMEMBERED_WORDS = 1 << 17

_MARKS = {
    ".": ". ;", "!": ". ;", "?": ". ;", ",": ", ,", ";": ": ;", ":": ": ;", "...": ": ;", "…": ": ;",
    "--": ": ;", "—": ": ;", "–": ": ;", "(": "-LRB- ;", "[": "-LRB- ;", "{": "-LRB- ;", "<": "-LRB- ;",
    ")": "-RRB- ,", "]": "-RRB- ,", "}": "-RRB- ,", ">": "-RRB- ,", "``": '`` "', "“": '`` "', "„": '`` "',
    "«": '`` "', "‘": '`` "', "`": '`` "', "''": "'' \"", "”": "'' \"", "»": "'' \"", '"': "'' \"",
    "-": "HYPH -", "/": "SYM CC", "$": "$ $", "£": "$ $", "€": "$ $", "%": "NN NN", "#": "NN $", "@": "IN IN",
}  # fmt: skip
_ADDRESS = re.compile(r"(?:https?://|www\.).+|[\w.+-]+@[\w-]+\.[\w.-]+|[\w-]+\.(?:com|org|net|edu|gov)(?:/.*)?")
_NUMBER = re.compile(r"[+-]?[\d.,:/]*\d[\d.,:/]*(?:%|k|m|bn)?|\d+(?:[-–.]\d+)+|[ivx]{2,}")
_ORDINAL = re.compile(r"\d+(?:st|nd|rd|th)")
_DECADE = re.compile(r"'?\d+'?s")
_SMILEY = re.compile(r"[:;=8xX][-o']?[()DPp/\\|\]\[3*]+|<3|\^_*\^")
_ROMAN = re.compile(r"[IVXLC]+")

_PAST = ("VBD", "VBN")
_BASE = ("VB", "VBP")
_ALIKE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"VB": _BASE, "VBP": _BASE, "VBD": _PAST, "VBN": _PAST}
)
_CLASSES = {"N": "NOUN", "V": "VERB", "J": "ADJ", "R": "ADV"}
_BEST = 2.0
_RARE: Mapping[str, float] = MappingProxyType(
    {
        "NOUN ADJ": -1, "NOUN VERB": 0, "NOUN ADV": -2,
        "VERB NOUN": 0, "VERB ADJ": -1, "VERB ADV": -2,
        "ADJ NOUN": -1, "ADJ VERB": -1.5, "ADJ ADV": -0.5,
        "ADV NOUN": -2, "ADV VERB": -2.5, "ADV ADJ": -0.5,
        " NOUN": 0.5, " VERB": 0, " ADJ": 0, " ADV": 0,
    }
)  # fmt: skip
_NAME_FIRST = -0.5
_NAME_INSIDE = {"N": 3.5, "J": 3.5, "R": 3.5, "V": 3.5}
_PEOPLE = 1.0
_ENDINGS = (
    ("ly", "RB 1 JJ -1"),
    ("ing", "VBG .5 NN 0 JJ -1"),
    ("ed", "VBN .5 VBD .5 JJ 0"),
    ("ness ment tion sion ity ism ship hood ance ence", "NN 2"),
    ("ous ful ive able ible less ish ical ic ary", "JJ 1 NN -.5"),
    ("ss us is", "NN 1 JJ -1"),
    ("s", "NNS 1 VBZ -1 NN -1"),
    ("", "NN 1 JJ -.5 VB -2 RB -3"),
)
_PEOPLES = frozenset(
    ["american", "arab", "asian", "baltic", "british", "catholic", "celtic", "christian", "chinese", "czech", "danish", "dutch", "european", "french", "german", "greek", "hindu", "indian", "iraqi", "iraqi", "irish", "islamic", "israeli", "jewish", "muslim", "orthodox", "pakistani", "protestant", "saudi", "scottish", "shia", "shiite", "sunni", "swiss", "thai", "turkish"]
)
_PEOPLE_ENDINGS = ("ian", "ean", "ese", "ish")
_NAMES_TOO = frozenset(["May", "Will", "US", "Can"])
_SAME_PAST = frozenset(
    ["put", "cut", "set", "let", "hit", "hurt", "cost", "shut", "cast", "quit", "split", "spread", "read", "bet", "burst", "bid", "rid", "shed", "thrust", "upset"]
)


@dataclass(frozen=True, slots=True)
class Word:
    """What is known about a token.

    Attributes
    ----------
    code : str
        The readings as text (see `decode`). Texts serve as keys of caches, because the garbage
        collector need not look at them.
    tag, kind : str
        Penn tag and kind of the only reading; both empty if there are several.
    first_kind : str
        Kind of the first reading.
    """

    code: str
    tag: str
    kind: str
    first_kind: str


def decode(code: str) -> Readings:
    """Return the readings that a code stands for.

    Examples
    --------
    >>> decode("NN/NN/2.0 VB/VB/0.0")
    (Reading(tag='NN', kind='NN', prior=2.0), Reading(tag='VB', kind='VB', prior=0.0))
    """
    fields = (reading.split("/") for reading in code.split(" "))
    return tuple(Reading(tag, kind, float(prior)) for tag, kind, prior in fields)


@functools.lru_cache(maxsize=_REMEMBERED_WORDS)
def look_up(word: str, place: Place) -> Word:
    """Return the readings of a token.

    Parameters
    ----------
    word : str
        The token as written.
    place : {"first", "inside", "shouting"}
        Where it stands: at a beginning, where every word is capitalised; inside a sentence; in a
        sentence written in capitals.

    Returns
    -------
    Word
    """
    found = _readings(word, place)
    code = " ".join(f"{tag}/{kind}/{prior}" for tag, kind, prior in found)
    only = found[0] if len(found) == 1 else Reading("", "", 0)
    return Word(code, only.tag, only.kind, found[0].kind)


def _readings(word: str, place: Place) -> Readings:
    """Return the readings of a token."""
    plain = word.replace("’", "'").replace("‘", "'") if len(word) > 1 else word
    mark = _mark(plain)
    if mark:
        return mark
    lower = plain.lower()
    if plain == lower or place == "shouting":
        return _lower_readings(lower)
    if place == "first" and not _has_inner_capital(plain):
        return _first_readings(plain, lower)
    return _capital_readings(plain, lower)


def _mark(word: str) -> Readings:
    """Return the one reading of what is no word, or nothing."""
    known = _MARKS.get(word)
    if known:
        tag, kind = known.split()
        return (Reading(tag, kind, 0),)
    if not any(map(str.isalnum, word)):
        if word.isspace() or not word:
            return (Reading("_SP", ",", 0),)
        if word == "'":
            return Reading("''", '"', 0), Reading("POS", "POS", 0.3)
        tag = "." if word[0] in ".!?" and set(word) <= set(".!?") else "NFP"
        if tag == "." and len(set(word)) == 1 and word[0] == ".":
            tag = ":"
        if set(word) <= set("-–—"):
            tag = ":"
        return (Reading(tag, ";", 0),)
    if _SMILEY.fullmatch(word):
        return (Reading("NFP", ";", 0),)
    if _ADDRESS.fullmatch(word):
        return (Reading("ADD", "NNP", 0),)
    return ()


def _lower_readings(word: str) -> Readings:
    """Return the readings of a lower-cased word."""
    closed = CLOSED.get(word)
    if closed:
        return closed
    if word == "'s":
        return Reading("POS", "POS", 0.5), Reading("VBZ", "BE", 0)
    if word == "s":
        return Reading("POS", "POS", 0), Reading("VBZ", "BE", 0), Reading("NN", "NN", -1)
    best = _frequent_tags().get(word, "")
    if _NUMBER.fullmatch(word):
        return (Reading("CD", "CD", 0),)
    if _ORDINAL.fullmatch(word):
        return Reading("JJ", "JJ", 0), Reading("NN", "NN", -0.5)
    if _DECADE.fullmatch(word):
        return (Reading("NNS", "NNS", 0),)
    return _open_readings(word, best)


def _open_readings(word: str, best: str) -> Readings:
    """Return the readings of an open-class word from its most frequent tag and the dictionary."""
    found: dict[str, float] = {}
    best_class = _CLASSES.get(best[:1], "")
    for upos, lemmas in _dictionary(word).items():
        for tag in _dictionary_tags(word, upos, lemmas):
            if _CLASSES.get(tag[0]) != best_class:
                found.setdefault(tag, _RARE.get(f"{best_class} {upos}", -1.5))
    if best_class:
        for tag in _ALIKE.get(best, (best,)):
            found[tag] = _BEST - (0 if tag == best else 0.3)
    elif best:
        found[best] = _BEST
    if not found:
        found = _guess(word)
    return tuple(Reading(tag, tag, prior) for tag, prior in sorted(found.items()))


def _dictionary_tags(word: str, upos: str, lemmas: tuple[str, ...]) -> tuple[str, ...]:
    """Return the Penn tags that a dictionary entry stands for, from the shape of the word."""
    base = word in lemmas
    if upos == "NOUN":
        return ("NN",) if base else ("NNS",)
    if upos == "VERB":
        if word.endswith("ing") and not base:
            return ("VBG",)
        if base:
            return _BASE + (_PAST if word in _SAME_PAST else ())
        return ("VBZ",) if word.endswith("s") else _PAST
    if upos in ("ADJ", "ADV"):
        tag = "JJ" if upos == "ADJ" else "RB"
        return (tag,) if base else (tag + ("S" if word.endswith("st") else "R"),)
    return ()


def _guess(word: str) -> dict[str, float]:
    """Return tags of a word that no list knows."""
    head, hyphen, tail = word.rpartition("-")
    if hyphen and head and tail:
        return {"JJ": 0.5, "NN": 0.5} if not tail.endswith("s") else {"NNS": 0.7, "JJ": 0, "NN": 0}
    for endings, tags in _ENDINGS:
        if word.endswith(tuple(endings.split())) or not endings:
            cells = tags.split()
            return dict(zip(cells[::2], map(float, cells[1::2]), strict=True))
    raise AssertionError("the last ending is empty")


def _first_readings(word: str, lower: str) -> Readings:
    """Return the readings of a capitalised word where every word is capitalised."""
    closed = CLOSED.get(lower)
    if closed:
        return closed
    lists = _frequent_tags()
    listed = lists.get(word, "")
    known = lower in lists or bool(_dictionary(lower))
    if listed in ("NNP", "NNPS"):
        if not known:
            return (Reading(listed, listed, 0),)
        return (*_lower_readings(lower), Reading(listed, listed, 1.5 if lower not in lists else 0.5))
    if listed and not known:
        return _open_readings(word, listed)
    if known:
        return (*_lower_readings(lower), Reading("NNP", "NNP", _NAME_FIRST))
    return (*_lower_readings(lower), Reading("NNP", "NNP", 1.5))


def _capital_readings(word: str, lower: str) -> Readings:
    """Return the readings of a capitalised word inside a sentence."""
    closed = CLOSED.get(lower)
    lists = _frequent_tags()
    listed = lists.get(word, "")
    if closed and not (listed.startswith("NNP") and word.isupper() and len(word) > 1):
        if word in _NAMES_TOO:
            return (*closed, Reading("NNP", "NNP", 0.5))
        return closed
    if listed == "JJ" or lower in _PEOPLES or (lower.endswith(_PEOPLE_ENDINGS) and lower not in lists):
        return Reading("JJ", "JJ", _PEOPLE), Reading("NNP", "NNP", 1)
    plural = lower.endswith("s") and "NNS" in {reading.tag for reading in _lower_readings(lower)}
    if listed == "NNPS" or (plural and listed != "NNP" and not word.isupper()):
        return Reading("NNPS", "NNPS", 1), Reading("NNP", "NNP", 0), Reading("NNS", "NNS", -1)
    if listed == "NNP" or not (lower in lists or _dictionary(lower)):
        if _NUMBER.fullmatch(lower) and not _ROMAN.fullmatch(word):
            return (Reading("CD", "CD", 0),)
        return (Reading("NNP", "NNP", 0),)
    prior = _NAME_INSIDE.get(lists.get(lower, "NN")[:1], _NAME_INSIDE["N"])
    return (Reading("NNP", "NNP", prior), *_lower_readings(lower))


def _has_inner_capital(word: str) -> bool:
    """Return whether a word has a capital after its first letter, as acronyms and some names do."""
    return any(map(str.isupper, word[1:]))


@functools.lru_cache(maxsize=_REMEMBERED_WORDS)
def is_adjective(word: str) -> bool:
    """Return whether a lower-cased word is an adjective and no noun in both lists."""
    return _frequent_tags().get(word) in ("JJ", "VBN") and "NOUN" not in _dictionary(word)


@functools.lru_cache(maxsize=_REMEMBERED_WORDS)
def lemma(word: str, xpos: str, upos: str) -> str:
    """Return the lemma of a token.

    Parameters
    ----------
    word : str
        The token as written.
    xpos, upos : str
        Its Penn tag and universal part of speech.

    Returns
    -------
    str
        The form itself for proper names, else lower case but for "I".
    """
    if upos == "PROPN":
        return _plural_name(word) if xpos == "NNPS" else word
    lower = word.replace("’", "'").lower()
    fixed = _FIXED_LEMMAS.get(f"{lower} {xpos}") or _FIXED_LEMMAS.get(lower + " " + upos)
    if fixed:
        return fixed
    if xpos in ("NNS", "VBZ", "VBP", "VBD", "VBN", "VBG", "JJR", "JJS", "RBR", "RBS"):
        wanted = "VERB" if xpos[0] == "V" else {"N": "NOUN", "J": "ADJ", "R": "ADV"}[xpos[0]]
        known = _dictionary(lower).get(wanted)
        if known:
            return _prefer(lower, known)
        return _strip(lower, xpos)
    return _QUOTES.get(word, lower)


_FIXED_LEMMAS: Mapping[str, str] = MappingProxyType(
    {
        "i PRP": "I", "me PRP": "I", "him PRP": "he", "her PRP": "she", "us PRP": "we", "them PRP": "they",
        "'em PRP": "they", "u PRP": "you", "mine PRP": "my", "yours PRP": "your", "hers PRP": "her",
        "ours PRP": "our", "theirs PRP": "their", "'s PRP": "we", "an DT": "a", "these DT": "this", "those DT": "that",
        "n't RB": "not", "nt RB": "not", "ca MD": "can", "wo MD": "will", "sha MD": "shall", "'ll MD": "will",
        "'d MD": "would", "'d VBD": "have", "'ve VBP": "have", "'ve VB": "have", "'re VBP": "be", "'m VBP": "be",
        "am VBP": "be", "are VBP": "be", "is VBZ": "be", "was VBD": "be", "were VBD": "be", "'s VBZ": "be",
        "been VBN": "be", "being VBG": "be", "s VBZ": "be", "s POS": "'s", "' POS": "'s", "na TO": "to", "ta TO": "to",
        "gon VBG": "go", "wan VBP": "want", "wan VB": "want", "better RBR": "well", "best RBS": "well",
        "better JJR": "good", "best JJS": "good", "worse JJR": "bad", "worst JJS": "bad", "worse RBR": "badly",
        "worst RBS": "badly", "more JJR": "more", "more RBR": "more", "most JJS": "most",
        "most RBS": "most", "less JJR": "less", "less RBR": "less", "least JJS": "least",
        "people NNS": "people", "got VBD": "get", "got VBN": "get",
    }
)  # fmt: skip
_QUOTES = {"“": '"', "”": '"', "’": "'", "‘": "'"}


def _prefer(word: str, lemmas: tuple[str, ...]) -> str:
    """Return one of several lemmas: the longest that the word begins with, else the first."""
    if len(lemmas) == 1:
        return lemmas[0]
    return lemmas[0]


def _plural_name(word: str) -> str:
    """Return the singular of a plural name, in its own capitals."""
    known = _dictionary(word.lower()).get("NOUN")
    base = known[0] if known else _strip(word.lower(), "NNS")
    return base.upper() if word.isupper() else base[:1].upper() + base[1:]


def _strip(word: str, xpos: str) -> str:
    """Return the lemma of a word that the dictionary does not know, by its ending."""
    if xpos in ("NNS", "VBZ"):
        if word.endswith("ies") and len(word) > 4:
            return word[:-3] + "y"
        if word.endswith(("sses", "shes", "ches", "xes", "zes")):
            return word[:-2]
        return word[:-1] if word.endswith("s") and not word.endswith("ss") else word
    ending = {"VBG": "ing", "VBD": "ed", "VBN": "ed", "JJR": "er", "RBR": "er", "JJS": "est", "RBS": "est"}
    suffix = ending.get(xpos, "")
    if not suffix or not word.endswith(suffix) or len(word) < len(suffix) + 3:
        return word
    stem = word[: -len(suffix)]
    if stem.endswith("i"):
        return stem[:-1] + "y"
    if stem[-1] == stem[-2] and stem[-1] not in "lsz":
        return stem[:-1]
    return stem + "e" if stem + "e" in _frequent_tags() else stem


@functools.cache
def _frequent_tags() -> Mapping[str, str]:
    """Return TextBlob's list of word to most frequent Penn tag.

    The file is read as it lies in the package, because importing the package imports NLTK.
    """
    found: dict[str, str] = {}
    with _package_file("textblob", "en", "en-lexicon.txt").open(encoding="utf-8") as lines:
        for line in lines:
            word, _, tag = line.strip().partition(" ")
            tag = tag.partition("|")[0]
            if tag in UPOS and word != ";;;":
                found[word] = tag
    return found


@functools.cache
def dictionary_lines() -> Mapping[str, str]:
    """Return LemmInflect's dictionary: lower-cased word to ``noun,lemma/lemma;verb,lemma``.

    The file is read as it lies in the package, because importing the package imports spaCy; values
    are plain strings because the garbage collector need not look at those.

    Raises
    ------
    MissingDependencyError
        If lemminflect is not installed.
    """
    found: dict[str, str] = {}
    path = _package_file("lemminflect", "resources", "lemma_lu.csv.gz")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            word, _, entry = line.strip().partition(",")
            lower = word.lower()
            found[lower] = f"{found[lower]};{entry}" if lower in found else entry
    return found


def _dictionary(word: str) -> dict[str, tuple[str, ...]]:
    """Return the lower-cased lemmas of a lower-cased word by universal part of speech."""
    line = dictionary_lines().get(word)
    if line is None:
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for entry in line.split(";"):
        category, _, lemmas = entry.partition(",")
        upos = category.upper()
        found[upos] = found.get(upos, ()) + tuple(lemmas.lower().split("/"))
    return found


def _package_file(package: str, *parts: str) -> Path:
    """Return a data file of an installed package without importing the package."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, *parts)
        if path.is_file():
            return path
    raise MissingDependencyError(
        f"{package} is not installed, or without {'/'.join(parts)}",
        f"the {package} package",
        f"pip install {package}",
    )


def load() -> None:
    """Read the word lists of this process, which takes half a second.

    Raises
    ------
    MissingDependencyError
        If textblob or lemminflect is not installed.
    """
    _frequent_tags()
    dictionary_lines()
