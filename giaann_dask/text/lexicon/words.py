"""List possible Penn tags of single words, with weights, and find lemmas, for the default tagger; load its word lists.

The readings of a word come from the closed classes of `rules`, TextBlob's word list (the most frequent Penn
tag), LemmInflect's dictionary (all parts of speech) and, for words in none of these, shape and ending. The weights
are set by hand. The lemma of a word with a known tag comes from short lists, the dictionary, or the ending.

Does not cover: choosing a reading by context (`tagger`).
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from giaann_dask.text.lexicon.rules import CLOSED, UPOS, Reading, read_words


@functools.cache
def frequent_tags() -> Mapping[str, str]:
    """Return TextBlob's list: from a word (case-sensitive) to its most frequent Penn tag.

    Raises
    ------
    ModuleNotFoundError
        If textblob is not installed.
    """
    found: dict[str, str] = {}
    with _package_file("textblob", "en", "en-lexicon.txt").open(encoding="utf-8") as lines:
        for line in lines:
            word, _, tags = line.strip().partition(" ")
            tag = tags.partition("|")[0]
            if tag in UPOS and word != ";;;":
                found[word] = tag
    return MappingProxyType(found)


@functools.cache
def dictionary_lines() -> Mapping[str, str]:
    """Return LemmInflect's dictionary: from a lower-cased word to ``noun,lemma/lemma;verb,lemma``.

    A name is listed only if no other word has its spelling ("paris", but not "weeks").
    Values are plain strings because the garbage collector does not track these.

    Raises
    ------
    ModuleNotFoundError
        If lemminflect is not installed.
    """
    words: dict[str, str] = {}
    names: dict[str, str] = {}
    path = _package_file("lemminflect", "resources", "lemma_lu.csv.gz")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            word, _, entry = line.strip().partition(",")
            lower = word.lower()
            found = words if word == lower else names
            found[lower] = f"{found[lower]};{entry}" if lower in found else entry
    return MappingProxyType(names | words)


def dictionary_lemmas(word: str) -> dict[str, tuple[str, ...]]:
    """Return the lower-cased lemmas of a lower-cased word by universal part of speech.

    Examples
    --------
    >>> dictionary_lemmas("running")
    {'NOUN': ('running',), 'VERB': ('run',)}
    """
    line = dictionary_lines().get(word)
    found: dict[str, tuple[str, ...]] = {}
    for entry in line.split(";") if line else ():
        category, _, lemmas = entry.partition(",")
        upos = category.upper()
        found[upos] = found.get(upos, ()) + tuple(lemmas.lower().split("/"))
    return found


def _package_file(package: str, *parts: str) -> Path:
    """Return the path of a data file of an installed package without importing the package."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, *parts)
        if path.is_file():
            return path
    raise ModuleNotFoundError(f"{package} is not installed, or without {'/'.join(parts)}", name=package)


Place = Literal["first", "inside", "capitals"]
Readings = tuple[Reading, ...]

_CACHED_WORDS = 1 << 17


def _read_marks(table: str) -> Mapping[str, tuple[str, str]]:
    """Parse lines of a Penn tag, a kind and the marks with that tag and kind."""
    rows = (line.split() for line in table.strip().splitlines())
    return MappingProxyType({mark: (tag, kind) for tag, kind, *marks in rows for mark in marks})


_MARKS = _read_marks("""
.     ;  . ! ?
,     ,  ,
:     ;  ; : ... … -- — –
-LRB- ;  ( [ { <
-RRB- ,  ) ] } >
``    "  `` “ „ « ‘ `
''    "  '' ” » "
HYPH  -  -
SYM   CC /
$     $  $ £ €
NN    NN %
NN    $  #
IN    IN @
""")
_DASHES = frozenset("-–—")
_ENDS = frozenset(".!?")
_ADDRESS = re.compile(r"(?:https?://|www\.).+|[\w.+-]+@[\w-]+\.[\w.-]+|[\w-]+\.(?:com|org|net|edu|gov)(?:/.*)?")
_NUMBER = re.compile(r"[+-]?(?=[.,:/]*\d)[\d.,:/]+(?:%|k|m|bn)?|\d+(?:[-–.]\d+)+|[ivx]{2,}")
_ORDINAL = re.compile(r"\d+(?:st|nd|rd|th)")
_DECADE = re.compile(r"'?\d+'?s")
_SMILEY = re.compile(r"[:;=8xX][-o']?[()DPp/\\|\]\[3*]+|<3|\^_*\^")
_ROMAN = re.compile(r"[IVXLC]+")


_PAST = ("VBD", "VBN")
_BASE = ("VB", "VBP")
_ALIKE: Mapping[str, tuple[str, ...]] = MappingProxyType({"VB": _BASE, "VBP": _BASE, "VBD": _PAST, "VBN": _PAST})
_CLASSES: Mapping[str, str] = MappingProxyType({"N": "NOUN", "V": "VERB", "J": "ADJ", "R": "ADV"})
_BEST = 2.5
_RARE: Mapping[str, float] = MappingProxyType(
    {
        "NOUN ADJ": -1, "NOUN VERB": 0.5, "NOUN ADV": -2,
        "VERB NOUN": -0.5, "VERB ADJ": -1, "VERB ADV": -2,
        "ADJ NOUN": -1, "ADJ VERB": -1.5, "ADJ ADV": -0.5,
        "ADV NOUN": -2, "ADV VERB": -2.5, "ADV ADJ": -0.5,
        " NOUN": 0.5, " VERB": 0, " ADJ": 0, " ADV": 0,
    }
)  # fmt: skip
_NAME_FIRST = -2.0
_NAME_INSIDE: Mapping[str, float] = MappingProxyType({"N": 2.5, "J": 3.0, "R": 2.5, "V": 2.0})
_PEOPLE = 2.0
_NOUN_ENDINGS = ("ness", "ment", "tion", "sion", "ity", "ism", "ship", "hood", "ance", "ence")
_ADJECTIVE_ENDINGS = ("ous", "ful", "ive", "able", "ible", "less", "ish", "ical", "ic", "ary")
_ENDINGS: tuple[tuple[tuple[str, ...], dict[str, float]], ...] = (
    (("ly",), {"RB": 1, "JJ": -1}),
    (("ing",), {"VBG": 0.5, "NN": 0, "JJ": -1}),
    (("ed",), {"VBN": 0.5, "VBD": 0.5, "JJ": 0}),
    (_NOUN_ENDINGS, {"NN": 2}),
    (_ADJECTIVE_ENDINGS, {"JJ": 1, "NN": -0.5}),
    (("ss", "us", "is"), {"NN": 1, "JJ": -1}),
    (("s",), {"NNS": 1, "VBZ": -1, "NN": -1}),
    (("",), {"NN": 1, "JJ": -0.5, "VB": -2, "RB": -3}),
)
_PEOPLES = read_words("""
    american arab asian baltic british catholic celtic chinese christian czech danish dutch european
    french german greek hindu indian iraqi irish islamic israeli jewish muslim orthodox pakistani
    protestant saudi scottish shia shiite sunni swiss thai turkish
""")
_PEOPLE_ENDINGS = ("ian", "ean", "ese", "ish")
_NAMES_TOO = read_words("May Will US CA Ca")
_HOURS = read_words("AM PM A.M. P.M.")
_SAME_PAST = read_words("""
    bet bid burst cast cost cut hit hurt let put quit read rid set shed shut split spread thrust upset
""")


def find_readings(word: str, place: Place) -> Readings:
    """Return the readings of a token.

    Parameters
    ----------
    word : str
        The token as written.
    place : {"first", "inside", "capitals"}
        Position: at the beginning of a sentence, where every word is capitalised; inside a sentence; in a
        sentence written in capitals.

    Examples
    --------
    >>> find_readings("fish", "inside")[0]
    Reading(tag='NN', kind='NN', prior=2.5)
    """
    mark = _mark(word)
    if mark:
        return mark
    plain = word.replace("’", "'").replace("‘", "'")
    lower = plain.lower()
    if plain == lower or place == "capitals":
        return _lower_readings(lower)
    if place == "first" and not any(map(str.isupper, plain[1:])):
        return _first_readings(plain, lower)
    return _capital_readings(plain, lower)


def _mark(word: str) -> Readings:
    """Return the readings of a token that is not a word; empty for words."""
    # No mark, and of smileys only those such as "xD", are letters alone.
    if word.isalpha() and word[0] not in "xX":
        return ()
    if word in _MARKS:
        tag, kind = _MARKS[word]
        return (Reading(tag, kind, 0),)
    if word in ("'", "’"):
        return Reading("''", '"', 0), Reading("POS", "POS", 0.3)
    if not word or word.isspace():
        return (Reading("_SP", ",", 0),)
    if not any(map(str.isalnum, word)):
        characters = set(word)
        if characters <= _DASHES or characters == {"."}:
            return (Reading(":", ";", 0),)
        return (Reading("." if characters <= _ENDS else "NFP", ";", 0),)
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
        return Reading("POS", "POS", 0.5), Reading("VBZ", "BE", 0), Reading("PRP", "ME", -6)
    if word == "s":
        return (
            Reading("POS", "POS", 0),
            Reading("VBZ", "BE", 0),
            Reading("PRP", "ME", -6),
            Reading("NN", "NN", -1),
        )
    # Of these, only Roman numbers are letters alone.
    letters = word.isalpha()
    if (not letters or word[0] in "ivx") and _NUMBER.fullmatch(word):
        return (Reading("CD", "CD", 0),)
    if letters:
        return _open_readings(word, frequent_tags().get(word, ""))
    if _ORDINAL.fullmatch(word):
        return Reading("JJ", "JJ", 0), Reading("NN", "NN", -0.5)
    if _DECADE.fullmatch(word):
        return (Reading("NNS", "NNS", 0),)
    return _open_readings(word, frequent_tags().get(word, ""))


def _open_readings(word: str, best: str) -> Readings:
    """Return the readings of an open-class word from its most frequent tag and the dictionary."""
    found: dict[str, float] = {}
    best_class = _CLASSES.get(best[:1], "")
    for upos, lemmas in dictionary_lemmas(word).items():
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
    return _sorted_readings(tuple(found.items()))


@functools.cache
def _sorted_readings(priors: tuple[tuple[str, float], ...]) -> Readings:
    """Return readings by tag; there are only some hundred combinations of tags and weights."""
    return tuple(Reading(tag, tag, prior) for tag, prior in sorted(priors))


def _dictionary_tags(word: str, upos: str, lemmas: tuple[str, ...]) -> tuple[str, ...]:
    """Return the Penn tags of a dictionary entry, from the ending of the word."""
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
    """Return the tags of a word that is in no list, by its ending."""
    head, _, tail = word.rpartition("-")
    if head and tail:
        return {"NNS": 0.7, "JJ": 0, "NN": 0} if tail.endswith("s") else {"JJ": 0.5, "NN": 0.5}
    return next(tags for endings, tags in _ENDINGS if word.endswith(endings))


def _first_readings(word: str, lower: str) -> Readings:
    """Return the readings of a capitalised word at the beginning of a sentence."""
    closed = CLOSED.get(lower)
    if closed:
        return closed
    lists = frequent_tags()
    listed = lists.get(word, "")
    known = lower in lists or lower in dictionary_lines()
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
    lists = frequent_tags()
    listed = lists.get(word, "")
    if closed and (word in _HOURS or not (listed.startswith("NNP") and word.isupper() and len(word) > 1)):
        if word in _NAMES_TOO:
            return (*closed, Reading("NNP", "NNP", 0.5))
        return closed
    if listed == "JJ" or lower in _PEOPLES or (lower.endswith(_PEOPLE_ENDINGS) and lower not in lists):
        return Reading("JJ", "JJ", _PEOPLE), Reading("NNP", "NNP", 1)
    plural = lower.endswith("s") and "NNS" in {reading.tag for reading in _lower_readings(lower)}
    if listed == "NNPS" or (plural and listed != "NNP" and not word.isupper()):
        return Reading("NNPS", "NNPS", 1), Reading("NNP", "NNP", 0), Reading("NNS", "NNS", -1)
    if listed == "NNP" or not (lower in lists or lower in dictionary_lines()):
        if _NUMBER.fullmatch(lower) and not _ROMAN.fullmatch(word):
            return (Reading("CD", "CD", 0),)
        return (Reading("NNP", "NNP", 0),)
    prior = _NAME_INSIDE.get(lists.get(lower, "NN")[:1], _NAME_INSIDE["N"])
    return (Reading("NNP", "NNP", prior), *_lower_readings(lower))


@functools.lru_cache(maxsize=_CACHED_WORDS)
def is_adjective(word: str) -> bool:
    """Return whether a lower-cased word is primarily an adjective."""
    frequent = frequent_tags().get(word)
    return frequent == "JJ" or word in _PEOPLES or (frequent == "VBN" and "NOUN" not in dictionary_lemmas(word))


_INFLECTED = MappingProxyType(
    {"NNS": "NOUN", "JJR": "ADJ", "JJS": "ADJ", "RBR": "ADV", "RBS": "ADV"}
    | dict.fromkeys(("VBZ", "VBP", "VBD", "VBN", "VBG"), "VERB")
)
_SUFFIXES = MappingProxyType(
    {"VBG": "ing", "VBD": "ed", "VBN": "ed", "JJR": "er", "RBR": "er", "JJS": "est", "RBS": "est"}
)
_QUOTES = MappingProxyType({"“": '"', "”": '"', "’": "'", "‘": "'"})
_FIXED = """
I: i/PRP me/PRP
he: him/PRP
she: her/PRP
we: us/PRP 's/PRP s/PRP
they: them/PRP 'em/PRP
you: u/PRP ya/PRP
my: mine/PRP
your: yours/PRP ur/PRP$
her: hers/PRP
our: ours/PRP
their: theirs/PRP
a: an/DT
this: these/DT
that: those/DT
not: n't/RB nt/RB
can: ca/MD
will: wo/MD 'll/MD
shall: sha/MD
would: 'd/MD
have: 'd/VBD 've/VBP 've/VB ve/VBP ve/VB
be: am/VBP are/VBP is/VBZ was/VBD were/VBD been/VBN being/VBG 's/VBZ 're/VBP 'm/VBP s/VBZ m/VBP r/VBP
's: s/POS '/POS
to: na/TO ta/TO
go: gon/VBG
get: got/VBD got/VBN
want: wan/VBP wan/VB
well: better/RBR best/RBS
good: better/JJR best/JJS
bad: worse/JJR worst/JJS
badly: worse/RBR worst/RBS
more: more/JJR more/RBR
most: most/JJS most/RBS
less: less/JJR less/RBR
least: least/JJS least/RBS
late: later/RBR
long: longer/RBR
people: people/NNS
data: data/NNS
media: media/NNS
etc.: etc/FW
p.m.: pm/NN p.m/NN
a.m.: am/NN a.m/NN
"""
_FIXED_LEMMAS = MappingProxyType(
    {
        form: base
        for base, _, forms in (line.partition(": ") for line in _FIXED.strip().splitlines())
        for form in forms.split()
    }
)


@functools.lru_cache(maxsize=_CACHED_WORDS)
def find_lemma(word: str, xpos: str, upos: str) -> str:
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
        The form itself for proper names (their singular for NNPS), else in lower case, except for "I".

    Examples
    --------
    >>> find_lemma("Geese", "NNS", "NOUN"), find_lemma("Paris", "NNP", "PROPN")
    ('goose', 'Paris')
    """
    if upos == "PROPN":
        return _plural_name(word) if xpos == "NNPS" else word
    lower = word.replace("’", "'").lower()
    fixed = _FIXED_LEMMAS.get(f"{lower}/{xpos}")
    if fixed:
        return fixed
    wanted = _INFLECTED.get(xpos)
    if wanted is None:
        return _QUOTES.get(word, lower)
    known = dictionary_lemmas(lower).get(wanted)
    if known:
        return next((base for base in known if base != lower), lower)
    return _strip(lower, xpos)


def _plural_name(word: str) -> str:
    """Return the singular of a plural name, with the same capitalisation."""
    lower = word.lower()
    known = dictionary_lemmas(lower).get("NOUN")
    base = next((base for base in known if base != lower), lower) if known else _strip(lower, "NNS")
    return base.upper() if word.isupper() else base[:1].upper() + base[1:]


def _strip(word: str, xpos: str) -> str:
    """Return the lemma of a word that the dictionary lacks, by its ending."""
    if not word.replace("-", "").isalpha():
        return word
    if xpos in ("NNS", "VBZ"):
        if word.endswith("ies") and len(word) > 4:
            return word[:-3] + "y"
        if word.endswith(("sses", "shes", "ches", "xes", "zes")):
            return word[:-2]
        return word[:-1] if word.endswith("s") and not word.endswith("ss") else word
    suffix = _SUFFIXES.get(xpos, "")
    if not suffix or not word.endswith(suffix) or len(word) < len(suffix) + 3:
        return word
    stem = word[: -len(suffix)]
    if stem.endswith("i"):
        return stem[:-1] + "y"
    if stem[-1] == stem[-2] and stem[-1] not in "lsz":
        return stem[:-1]
    silent = stem[-1] in "cuvz" or stem + "e" in frequent_tags()
    return stem + "e" if silent else stem
