r"""Convert between nouns and their names, in which joiners of merged nouns differ from underscores of the text.

A merged noun is named by its parts, joined by ``_`` (or ``-``). In networks with canonical flags, an underscore that
stands in the text is marked by a backslash: ``snake\_case`` is one word, and ``pine_tree`` are two. Backslashes
directly before an underscore are doubled; all others stand as they are. Networks with flags of ``history`` have the
names of the published implementation, without marks. There a single ``_`` between other characters counts as a joiner.

Does not cover: which nouns are merged (`giaann_dask.text.block_building`), spaces between words (`detokenizer`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import reduce

JOINER = "_"
_UNDERSCORE = re.compile(r"(\\*)_")
_LAST_BACKSLASHES = re.compile(r"\\+\Z")
_UNDERSCORES = re.compile(r"(\\*)(_+)")


def mark_underscores(word: str) -> str:
    r"""Return the name of a noun that is not merged.

    Examples
    --------
    >>> print(mark_underscores("snake_case"), mark_underscores("c:\\new"))
    snake\_case c:\new
    """
    return _UNDERSCORE.sub(r"\1\1\\_", word) if JOINER in word else word


def join_nouns(names: str, joiner: str, name: str) -> str:
    r"""Return the name of merged nouns, given those of its parts, which `mark_underscores` returned.

    Parameters
    ----------
    names : str
        Name of the parts so far.
    joiner : {"_", "-"}
        What joins them to the next one.
    name : str
        Name of the next part.

    Examples
    --------
    >>> join_nouns("pine", "_", "tree"), join_nouns("pine_tree", "-", "house")
    ('pine_tree', 'pine_tree-house')
    """
    if joiner == JOINER:
        names = _LAST_BACKSLASHES.sub(lambda found: 2 * found[0], names)
    return names + joiner + name


def noun_name(parts: Iterable[str]) -> str:
    r"""Return the name of nouns that are merged without a hyphen.

    Examples
    --------
    >>> print(noun_name(["pine", "tree"]), noun_name(["snake_case", "file"]))
    pine_tree snake\_case_file
    """
    return reduce(lambda names, name: join_nouns(names, JOINER, name), map(mark_underscores, parts))


def noun_text(name: str) -> str:
    r"""Return the text of a noun's name, its parts separated by spaces.

    Examples
    --------
    >>> noun_text("pine_tree"), noun_text(r"snake\_case_file"), noun_text("__init__")
    ('pine tree', 'snake_case file', '__init__')
    """
    if JOINER not in name:
        return name
    return _UNDERSCORES.sub(lambda found: _text_of_run(found, len(name)), name)


def plain_name(name: str) -> str:
    r"""Return a noun's name without marks, as the published implementation names it.

    Examples
    --------
    >>> plain_name(r"snake\_case_file")
    'snake_case_file'
    """
    if "\\" not in name:
        return name
    return _UNDERSCORES.sub(lambda found: "\\" * (len(found[1]) // 2) + found[2], name)


def _text_of_run(found: re.Match[str], length: int) -> str:
    """Return the text of a run of underscores and the backslashes before it."""
    backslashes, run = found[1], found[2]
    kept, marked = "\\" * (len(backslashes) // 2), len(backslashes) % 2 == 1
    if marked:
        kept, run = kept + JOINER, run[1:]
    ends = found.end() == length or (found.start() == 0 and not backslashes)
    return kept + (" " if run == JOINER and not ends else run)
