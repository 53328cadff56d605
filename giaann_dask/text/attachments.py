"""Attach features to auxiliary source neurons by lemma, part of speech, subword role, spelling or shared neighbours.

An auxiliary neuron belongs to a column, as the features attached to it do, and has outgoing connections only: the sum
of its members' connections, times its weight. Training would produce the same sum. A word is tagged on its own,
without a sentence, because the dictionaries have no other context.

Does not cover: finding features with shared neighbours (`giaann_dask.models.columns.flags`), and the rows that
auxiliary neurons contribute (`giaann_dask.rows.source`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import combinations

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.errors import OptionError

# Kinds of auxiliary neurons. The weights of both kinds of similarity are our choice; the others are published.
WEIGHTS = {"lemma": 0.25, "pos": 0.05, "role": 0.01, "spelling": 0.25, "neighbours": 0.25}
NEIGHBOURS = "neighbours"
AUXILIARY = tuple(WEIGHTS)
LEAST_PREFIX = 3
LEAST_SIMILARITY = 0.7


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class Attachments:
    """The auxiliary neurons of features, the same in every column.

    Attributes
    ----------
    offsets, group : ndarray
        Feature f is attached to ``group[offsets[f]:offsets[f + 1]]``; int64, shapes ``(features + 1,)``
        and any.
    begins, member : ndarray
        Auxiliary neuron g sums up the features ``member[begins[g]:begins[g + 1]]``; int64.
    weight : ndarray
        Factor of each auxiliary neuron's sum; float64, shape ``(groups,)``.
    """

    offsets: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]
    begins: npt.NDArray[np.int64]
    member: npt.NDArray[np.int64]
    weight: npt.NDArray[np.float64]

    @classmethod
    def of(cls, features: int, groups: Iterable[tuple[Sequence[int], Sequence[int], float]]) -> Attachments:
        """Return the attachments of groups of (features that are attached, members, weight)."""
        attached: list[list[int]] = [[] for _ in range(features)]
        members: list[Sequence[int]] = []
        weights: list[float] = []
        for features_of, members_of, weight in groups:
            for feature in features_of:
                attached[feature].append(len(weights))
            members.append(members_of)
            weights.append(weight)
        return cls(*_flat(attached), *_flat(members), np.array(weights, np.float64))

    def groups_of(self, feature: int) -> list[int]:
        """Return the auxiliary neurons of a feature; empty for a feature that was added later."""
        if feature >= len(self.offsets) - 1:
            return []
        found: list[int] = self.group[self.offsets[feature] : self.offsets[feature + 1]].tolist()
        return found

    def members_of(self, group: int) -> npt.NDArray[np.int64]:
        """Return the features that an auxiliary neuron sums up."""
        return self.member[self.begins[group] : self.begins[group + 1]]


def check_kinds(kinds: Sequence[str], subwords: bool | None = None) -> tuple[str, ...]:
    """Return kinds of auxiliary neurons in their usual order, each once.

    Parameters
    ----------
    kinds : sequence of str
        Requested kinds.
    subwords : bool, optional
        Whether features are subwords, where that is known.

    Raises
    ------
    OptionError
        If a kind does not exist, or does not apply to such features.
    """
    wrong = [kind for kind in kinds if kind not in AUXILIARY]
    if wrong:
        raise OptionError(f"auxiliary neurons by {wrong[0]!r}", f"some of {', '.join(AUXILIARY)}", "choose of these")
    inapplicable = () if subwords is None else ("lemma", "pos") if subwords else ("role",)
    for kind in inapplicable:
        if kind in kinds:
            tokens, other = ("subwords", "words") if subwords else ("words", "subwords")
            raise OptionError(f"auxiliary neurons by {kind} of {tokens}", f"a network of {other}", f"leave {kind} out")
    return tuple(kind for kind in AUXILIARY if kind in kinds)


def attach(
    features: Sequence[str],
    kinds: Sequence[str],
    *,
    subwords: bool,
    neighbours: Mapping[int, Sequence[int]] | None = None,
) -> Attachments:
    """Attach features to auxiliary neurons.

    Parameters
    ----------
    features : sequence of str
        Words or subwords by feature index; the first one is the prime concept feature and is not attached.
    kinds : sequence of str
        Some of `AUXILIARY`.
    subwords : bool
        Whether features are subwords.
    neighbours : mapping of int to sequence of int, optional
        For kind ``"neighbours"``: features that share many of their neighbours, by feature.

    Raises
    ------
    OptionError
        If a kind does not exist, or does not apply to such features.
    """
    wanted = check_kinds(kinds, subwords)
    names = list(features[1:])
    labels: dict[str, Sequence[str]] = {"role": [subword_role(name) for name in names]}
    if {"lemma", "pos"} & set(wanted):
        from giaann_dask.text.tagging import make_tagger

        tagged = make_tagger("lexicon").tag([[name] for name in names])
        labels["lemma"] = [sentence.lemmas[0].lower() for sentence in tagged]
        labels["pos"] = [sentence.upos[0] for sentence in tagged]
    groups: list[tuple[Sequence[int], Sequence[int], float]] = []
    for kind in wanted:
        if kind == "spelling":
            similar = similar_spellings(names)
            groups += [([f + 1], [other + 1 for other in similar[f]], WEIGHTS[kind]) for f in sorted(similar)]
            continue
        if kind == NEIGHBOURS:
            alike = {f: others for f, others in (neighbours or {}).items() if f < len(features)}
            groups += [([f], [o for o in alike[f] if o < len(features)], WEIGHTS[kind]) for f in sorted(alike)]
            continue
        together: defaultdict[str, list[int]] = defaultdict(list)
        for feature, label in enumerate(labels[kind], 1):
            together[label].append(feature)
        groups += [(members, members, WEIGHTS[kind]) for members in together.values()]
    return Attachments.of(len(features), groups)


def subword_role(name: str) -> str:
    """Return whether a subword begins a word, continues one, or is neither.

    Examples
    --------
    >>> [subword_role(name) for name in (" mill", "er", " ,", "<byte:e2>")]
    ['beginning', 'inside', 'other', 'other']
    """
    if not name.strip().isalnum():
        return "other"
    return "beginning" if name[:1].isspace() else "inside"


def similar_spellings(words: Sequence[str]) -> dict[int, list[int]]:
    """Return the similarly spelled words of each word, by index.

    Parameters
    ----------
    words : sequence of str
        Surrounding spaces and capital letters are ignored.

    Returns
    -------
    dict of int to list of int
        Words that share at least their first `LEAST_PREFIX` characters and have a `difflib` ratio of at least
        `LEAST_SIMILARITY`. Words without similar ones are left out.

    Examples
    --------
    >>> similar_spellings(["carried", "carries", "cart", "married", " carrying"])
    {0: [1], 1: [0]}
    """
    plain = [word.strip().lower() for word in words]
    begin: defaultdict[str, list[int]] = defaultdict(list)
    for at, word in enumerate(plain):
        if len(word) >= LEAST_PREFIX:
            begin[word[:LEAST_PREFIX]].append(at)
    found: defaultdict[int, list[int]] = defaultdict(list)
    for places in begin.values():
        for one, other in combinations(places, 2):
            if _similarity(*sorted((plain[one], plain[other]))) >= LEAST_SIMILARITY:
                found[one].append(other)
                found[other].append(one)
    return {at: sorted(found[at]) for at in sorted(found)}


def _similarity(one: str, other: str) -> float:
    """Return the `difflib` ratio of two words, or an upper bound of it below `LEAST_SIMILARITY`."""
    bound = 2 * min(len(one), len(other)) / (len(one) + len(other))
    if bound < LEAST_SIMILARITY:
        return bound
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    bound = matcher.quick_ratio()
    return bound if bound < LEAST_SIMILARITY else matcher.ratio()


def _flat(lists: Sequence[Sequence[int]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the offsets of some lists in their concatenation, and the concatenation."""
    begins = np.concatenate([[0], np.cumsum([len(each) for each in lists])]).astype(np.int64)
    return begins, np.array([item for each in lists for item in each], np.int64)
