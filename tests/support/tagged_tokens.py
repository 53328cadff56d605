"""Tokens with tags from which tests make sentences; also where only NumPy and PyTorch are."""

from __future__ import annotations

from giaann_dask.text.blocks import FilterOptions
from giaann_dask.text.ever_pos import EverPos

EVER = EverPos(
    verb=frozenset({"runs", "ran", "run", "saw"}),
    adp=frozenset({"on", "in"}),
    cconj=frozenset({"and"}),
    sconj=frozenset({"while"}),
)
# (form, lemma, UPOS, XPOS): the same word with different lemmas and tags, so that history matters.
TOKENS = [
    ("Dog", "dog", "NOUN", "NN"),
    ("dogs", "dog", "NOUN", "NNS"),
    ("Mill", "mill", "PROPN", "NNP"),
    ("-", "-", "PUNCT", "HYPH"),
    (",", ",", "PUNCT", ","),
    ("saw", "see", "VERB", "VBD"),
    ("sees", "see", "VERB", "VBZ"),
    ("sees", "saw", "VERB", "VBZ"),
    ("on", "on", "ADP", "IN"),
    ("and", "and", "CCONJ", "CC"),
    ("while", "while", "SCONJ", "IN"),
    ("'s", "'s", "PART", "POS"),
    ("'s", "be", "AUX", "VBZ"),
    ("old", "old", "ADJ", "JJ"),
    ("is", "be", "AUX", "VBZ"),
]
OPTIONS = FilterOptions(seed_tokens=6, maximum_tokens=12)
