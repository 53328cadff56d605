"""The default part-of-speech tagger: embedded word lists and hand-written rules, no download.

Covers: the choice of the best sequence of Penn tags under the table of
`giaann_dask.text.lexicon_rules`, and the universal part of speech by context. Does not cover: what
is known about single words (`lexicon_words`), other taggers (`tagging`) and the division of text
into tokens (`reading`). A token's tags depend on its sentence alone.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from giaann_dask.text import lexicon_words
from giaann_dask.text.lexicon_rules import FOLLOWS, UPOS
from giaann_dask.text.lexicon_words import Place, Word, decode, is_adjective, lemma, look_up
from giaann_dask.text.tokens import TaggedSentence

_REMEMBERED_STRETCHES = 1 << 17
_START = "^"
_FAR = 1e9
_CARRIED = 0.8
_PARALLEL = 1.5
_PUNCTUATION = frozenset([".", ",", ":", "``", "''", "-LRB-", "-RRB-", "HYPH", "NFP", "SYM", "_SP"])
_SUBJECTS = frozenset(["i", "you", "he", "she", "it", "we", "they", "there", "this", "that", "these", "those"])
_INDEFINITE = frozenset(
    f"{first}{last}" for first in ("some", "any", "no", "every") for last in ("thing", "one", "body")
) | {"none"}
_DEMONSTRATIVES = frozenset(["this", "that", "these", "those"])
_CLAUSE_OPENERS = frozenset(["if", "because", "that", "although", "though", "while", "whether", "unless", "whereas", "lest"])
_NOMINAL = frozenset(["NN", "NNS", "NNP", "NNPS", "JJ", "JJR", "JJS", "CD", "VBG", "VBN", "PRP$"])


class LexiconTagger:
    """Tags English tokens from embedded word lists and hand-written rules.

    Needs no download and no training; takes a second or two to load its lists in each process.
    Equal sentences are tagged equally in every process.

    Raises
    ------
    MissingDependencyError
        If textblob or lemminflect is not installed.

    Examples
    --------
    >>> sentence, = LexiconTagger().tag([["The", "dogs", "have", "barked", "."]])
    >>> sentence.upos, sentence.xpos
    (['DET', 'NOUN', 'AUX', 'VERB', 'PUNCT'], ['DT', 'NNS', 'VBP', 'VBN', '.'])
    >>> sentence.lemmas
    ['the', 'dog', 'have', 'bark', '.']
    """

    name = "lexicon"

    def __init__(self) -> None:
        lexicon_words.load()

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel by name; the lists are loaded where they are needed."""
        return LexiconTagger, ()

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[TaggedSentence]:
        """Tag sentences of tokens.

        Parameters
        ----------
        sentences : sequence of sequence of str
            Tokens as spaCy's English tokenizer divides them ("do", "n't"; "cat", "'s").

        Returns
        -------
        list of TaggedSentence
            One per sentence, with the given tokens as forms.
        """
        return [_tag_sentence(sentence) for sentence in sentences]


def _tag_sentence(words: Sequence[str]) -> TaggedSentence:
    """Tag one sentence."""
    xpos = _choose_tags(_look_up_all(words))
    lowered = [word.lower() for word in words]
    _repair(lowered, xpos)
    upos = [
        UPOS[tag] if tag not in _BY_CONTEXT else _upos(k, lowered, xpos) for k, tag in enumerate(xpos)
    ]
    lemmas = list(map(lemma, words, xpos, upos))
    return TaggedSentence(list(words), lemmas, upos, xpos)


def _look_up_all(words: Sequence[str]) -> list[Word]:
    """Return what is known about every token, by its place."""
    shouting = _is_shouted(words)
    place: Place = "shouting" if shouting else "first"
    found = []
    for word in words:
        known = look_up(word, place)
        found.append(known)
        if not shouting:
            place = "first" if known.first_kind in _OPENING else "inside"
    return found


_OPENING = frozenset([";", '"'])


def _is_shouted(words: Sequence[str]) -> bool:
    """Return whether a sentence is written in capitals, so that they mean nothing."""
    if not any(map(str.isupper, words)):
        return False
    long = [word for word in words if len(word) > 1 and word.isalpha()]
    return len(long) > 3 and sum(map(str.isupper, long)) > 0.6 * len(long)


def _choose_tags(sentence: list[Word]) -> list[str]:
    """Return the best Penn tags, stretch by stretch between unambiguous tokens."""
    tags: list[str] = []
    kind, begin = _START, 0
    for at, word in enumerate(sentence):
        if not word.tag or word.kind in _DEPENDENT:
            continue
        if at == begin:
            tags.append(word.tag)
            kind = word.kind
        else:
            chosen, kind = _best_path(kind, tuple([word.code for word in sentence[begin : at + 1]]))
            tags.extend(chosen)
        begin = at + 1
    if begin < len(sentence):
        tags.extend(_best_path(kind, tuple([word.code for word in sentence[begin:]]))[0])
    return tags


_INVERTED = frozenset(["WE", "HE", "IT", "YOU", "EX"])
_AUXILIARIES = frozenset(["MD", "DO", "BE", "HAVE"])
_TRANSPARENT = frozenset(["RB", "CC"])
_DEPENDENT = _TRANSPARENT | _INVERTED


@functools.lru_cache(maxsize=_REMEMBERED_STRETCHES)
def _best_path(kind: str, stretch: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Return the tags of highest weight after a kind of word, and the kind they end in."""
    kinds: tuple[str, ...] = (kind,)
    scores = [0.0]
    steps: list[list[_Move]] = []
    for code in stretch:
        kinds, groups = _moves(kinds, code)
        chosen, totals = [], []
        for group in groups:
            best, total = group[0], -_FAR
            for move in group:
                score = scores[move[0]] + move[2]
                if score > total:
                    best, total = move, score
            chosen.append(best)
            totals.append(total)
        steps.append(chosen)
        scores = totals
    at = scores.index(max(scores))
    ending, tags = kinds[at], []
    for step in reversed(steps):
        at, tag, _ = step[at]
        tags.append(tag)
    return tuple(tags[::-1]), ending


_Move = tuple[int, str, float]


@functools.lru_cache(maxsize=_REMEMBERED_STRETCHES)
def _moves(kinds: tuple[str, ...], code: str) -> tuple[tuple[str, ...], tuple[tuple[_Move, ...], ...]]:
    """Return the kinds that a word can be after some kinds, and the ways that lead to each.

    A way is the number of the earlier kind, the tag that the word then has, and its weight.
    """
    found: dict[str, list[_Move]] = {}
    for tag, kind, prior in decode(code):
        column = "." if tag in _PUNCTUATION else tag
        for path, before in enumerate(kinds):
            weight = prior + _follows(before).get(column, 0.0)
            found.setdefault(_kind_after(before, kind), []).append((path, tag, weight))
    return tuple(found), tuple(map(tuple, found.values()))


@functools.lru_cache(maxsize=1 << 14)
def _kind_after(before: str, kind: str) -> str:
    """Return the kind of a word in its place: adverbs and conjunctions remember what they follow."""
    base = before.rpartition(" ")[2]
    if kind in _TRANSPARENT:
        return f"{kind} {base}"
    if kind in _INVERTED and base in _AUXILIARIES:
        return f"RB {base}"
    return kind


@functools.cache
def _follows(kind: str) -> Mapping[str, float]:
    """Return the weights of the tags after a kind of word, looking through adverbs."""
    word, _, before = kind.partition(" ")
    weights = FOLLOWS.get(word, {})
    if not before:
        return MappingProxyType(dict(weights))
    if word == "RB":
        earlier = FOLLOWS.get(before, {})
        tags = set(weights) | set(earlier)
        return {tag: weights.get(tag, 0) + _CARRIED * earlier.get(tag, 0) for tag in tags}
    same = _SAME.get(before, (before,))
    return {**weights, **{tag: weights.get(tag, 0) + _PARALLEL for tag in same}}


_SAME = {
    "NN": ("NN", "NNS", "NNP"), "NNS": ("NN", "NNS", "NNP"), "NNP": ("NNP", "NNPS"), "JJ": ("JJ",),
    "BE": ("VBZ", "VBD", "VBP"), "PRP$": ("PRP$",),
}  # fmt: skip


def _repair(words: list[str], xpos: list[str]) -> None:
    """Correct tags that need a neighbouring word or an opening quotation mark."""
    opened = False
    for k, tag in enumerate(xpos):
        if tag == "''" and words[k] in "\"'":
            opened = not opened
            xpos[k] = "``" if opened else "''"
        elif words[k] in ("'s", "’s") and k and words[k - 1] == "let":
            xpos[k] = "PRP"


_BY_CONTEXT = frozenset(["IN", "VB", "VBP", "VBZ", "VBD", "VBN", "VBG", "DT", "WDT", "WP", "RB", "NN", "NNP", "NNPS", "SYM"])


def _upos(k: int, words: list[str], xpos: list[str]) -> str:
    """Return the universal part of speech of a token whose Penn tag leaves it open."""
    tag, word = xpos[k], words[k].replace("’", "'")
    if tag[0] == "V":
        return _verb_upos(k, word, words, xpos)
    following = xpos[k + 1] if k + 1 < len(xpos) else "."
    if tag == "IN":
        clause = word in _CLAUSE_OPENERS or following in ("VBG", "EX")
        if not clause and following == "PRP" and k + 2 < len(xpos):
            clause = words[k + 1] in _SUBJECTS and (xpos[k + 2][0] == "V" or xpos[k + 2] in ("MD", "RB"))
        return "SCONJ" if clause else "ADP"
    if tag in ("DT", "WDT", "WP"):
        if tag == "DT":
            return "PRON" if word in _DEMONSTRATIVES and following not in _NOMINAL else "DET"
        return "DET" if tag == "WDT" and word != "that" and following in ("NN", "NNS", "JJ") else "PRON"
    if tag == "RB":
        return "PART" if word in ("not", "n't", "nt") else "ADV"
    if tag == "NN":
        return "PRON" if word in _INDEFINITE else "SYM" if word in ("%", "#") else "NOUN"
    if tag == "NNP" and following in ("NNP", "NNPS") and is_adjective(word):
        return "ADJ"
    return UPOS[tag]


def _verb_upos(k: int, word: str, words: list[str], xpos: list[str]) -> str:
    """Return AUX for forms of be, and for have and do before the verb they help."""
    base = lemma(word, xpos[k], "VERB")
    if base == "be":
        return "AUX"
    if base not in ("have", "do") or xpos[k] == "VBN":
        return "VERB"
    wanted = ("VBN",) if base == "have" else ("VB",)
    for later in range(k + 1, min(k + 5, len(xpos))):
        if xpos[later] in wanted:
            return "AUX"
        if base == "do" and words[later] in ("n't", "not"):
            return "AUX"
        if xpos[later] not in ("RB", "PRP", "NNP", "NN", "DT", "NNS"):
            return "VERB"
    return "VERB"
