"""The rule of merged nouns read literally, on lists of words."""

from __future__ import annotations

from typing import NamedTuple

from giaann_dask.text.blocks import JOINER, NOUNS
from giaann_dask.text.tokens import TaggedSentence

_DASHES = frozenset({"-", "–"})


class MergedSentence(NamedTuple):
    """The tokens of a sentence after noun merging.

    Attributes
    ----------
    words, lemmas : list of str
        Lower-cased forms and lemmas; merged nouns are joined by ``_`` or ``-``.
    xpos : list of str
        Penn tag; that of the first noun for merged nouns.
    nouns : list of bool
        Whether the token is a noun and opens a concept column.
    upos : list of str
        Universal part of speech; that of the first noun for merged nouns.
    """

    words: list[str]
    lemmas: list[str]
    xpos: list[str]
    nouns: list[bool]
    upos: list[str]


def merge_nouns(sentence: TaggedSentence, dashes: bool = False) -> MergedSentence:
    """Join maximal runs of nouns, including a single hyphen between two of them.

    Parameters
    ----------
    sentence : TaggedSentence
        Raw tokens.
    dashes : bool
        Whether an en dash joins nouns as a hyphen does, and either also when it is tagged as a noun.

    Returns
    -------
    MergedSentence
        Tokens after merging, lower-cased.
    """
    forms, lemmas, upos, xpos = sentence[:4]
    merged = MergedSentence([], [], [], [], [])
    count = len(forms)
    i = 0
    while i < count:
        noun = upos[i] in NOUNS
        word, lemma, part, tag = forms[i], lemmas[i], upos[i], xpos[i]
        i += 1
        while noun and i < count:
            if dashes and _is_joining_dash(sentence, i):
                joiner = "-"
                i += 1
            elif upos[i] in NOUNS:
                joiner = JOINER
            elif i + 1 < count and (forms[i] == "-" or lemmas[i] == "-") and upos[i + 1] in NOUNS:
                joiner = "-"
                i += 1
            else:
                break
            word, lemma = word + joiner + forms[i], lemma + joiner + lemmas[i]
            i += 1
        merged.words.append(word.lower())
        merged.lemmas.append(lemma.lower())
        merged.xpos.append(tag)
        merged.nouns.append(noun)
        merged.upos.append(part)
    return merged


def _is_joining_dash(sentence: TaggedSentence, i: int) -> bool:
    """Return whether token i, after a run of nouns, is a dash that is followed by another noun."""
    dash = sentence.forms[i] in _DASHES or sentence.lemmas[i] in _DASHES
    return dash and i + 1 < len(sentence.forms) and sentence.upos[i + 1] in NOUNS
