"""Load the word lists of the default tagger from the packages textblob and lemminflect.

TextBlob's list has the most frequent Penn tag of a word, LemmInflect's dictionary the parts of speech and lemmas. Both
are read as data files without importing their packages: these would import NLTK and spaCy, which takes seconds and
hundreds of megabytes.
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from giaann_dask.errors import MissingDependencyError
from giaann_dask.text.lexicon_rules import UPOS


@functools.cache
def frequent_tags() -> Mapping[str, str]:
    """Return TextBlob's list: from a word (case-sensitive) to its most frequent Penn tag.

    Raises
    ------
    MissingDependencyError
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
    MissingDependencyError
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
    raise MissingDependencyError(
        f"{package} is not installed, or without {'/'.join(parts)}",
        f"the {package} package",
        f"pip install {package}",
    )
