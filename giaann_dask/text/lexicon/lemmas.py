"""Find the lemma of a word with a known Penn tag, for the default tagger.

Short lists are used first, then LemmInflect's dictionary, then word endings. The tags come from `tagger`.
"""

from __future__ import annotations

import functools
from types import MappingProxyType

from giaann_dask.text.lexicon.words import dictionary_lemmas, frequent_tags

_CACHED_LEMMAS = 1 << 17
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


@functools.lru_cache(maxsize=_CACHED_LEMMAS)
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
