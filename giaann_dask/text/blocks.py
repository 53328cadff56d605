r"""Define tagged blocks: filtered, cropped and noun-merged sequences with block-local symbol tables, and their options.

A tagged block holds everything that a worker can compute without the preceding blocks: sentences joined to sequences,
the length filter, cropping, noun merging, the delimiter properties of each token within its own sentence, and symbol
tables in order of first appearance. Blocks of raw words, for profile ``contexts``, have every word as a feature.

A merged noun is named by its parts, joined by ``_`` (or ``-``). In networks with canonical flags, an underscore that
stands in the text is marked by a backslash: ``snake\_case`` is one word, and ``pine_tree`` are two. Backslashes
directly before an underscore are doubled; all others stand as they are. Networks with flags of ``history`` have the
names of the published implementation, without marks. There a single ``_`` between other characters counts as a joiner.

Blocks are built in `block_building`. Identifiers in the network's dictionaries are in `vocabulary`, columns, which
depend on stored flags, in `segmentation`, and subwords in `subword_blocks`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import register_arrays
from giaann_dask.errors import OptionError
from giaann_dask.spec import PARTS_OF_SPEECH, Specification

NOUNS = frozenset({"NOUN", "PROPN"})
"""Universal parts of speech of concepts."""

NOUN = 1
DELIMITER = 2
PROBABLE = 4
# The higher bits hold the part of speech: its index in PARTS_OF_SPEECH counted from 1, or 0 for none.
POS_SHIFT = 3
POS_FLAGS = {name: code << POS_SHIFT for code, name in enumerate(PARTS_OF_SPEECH, 1)}

JOINER = "_"
_UNDERSCORE = re.compile(r"(\\*)_")
_LAST_BACKSLASHES = re.compile(r"\\+\Z")
_UNDERSCORES = re.compile(r"(\\*)(_+)")

# Maximum sentence length where there is no limit.
UNLIMITED = 1 << 40

CANDIDATE = 0
NO_CONCEPT = 1
NO_DELIMITER = 2
TOO_SHORT = 3
TOO_MANY_BYTES = 4
STATUS_NAMES = ("trained", "no_concept", "no_delimiter", "too_short", "too_many_bytes")


@dataclass(frozen=True, kw_only=True)
class FilterOptions:
    """Limits and rules that select and prepare sentences.

    Parameters
    ----------
    seed_tokens : int
        A raw sentence needs more tokens than this.
    maximum_tokens : int
        A raw sentence has at most this many tokens.
    drop_short : bool
        Drop sentences that merging shortens to `seed_tokens` or fewer before they are added to the
        dictionaries, as inference does and training does not (rules 1.3 and 7.1).
    parts_of_speech : bool
        Keep each token's part of speech, for scaling strengths by it (`giaann_dask.models.columns.scaling`).
    sentences : int
        Sentences per sequence; 0 for windows of `maximum_tokens` words.
    crop : bool
        Use the first `maximum_tokens` words of a longer sequence instead of leaving it out.
    merge_dashes : bool
        Whether an en dash joins nouns as a hyphen does, and either also when it is tagged as a noun.
    maximum_subwords, maximum_bytes, column_names
        Options of subword models (see `giaann_dask.text.subword_blocks`).
    raw : bool
        Whether words are used without tags (see `giaann_dask.text.block_building`).
    canonical : bool
        Whether delimiters depend on the word alone (``flags="canonical"``), not on lemma, tag and neighbours, and
        underscores of nouns are marked in their names.

    Raises
    ------
    OptionError
        If no sentence can satisfy the limits.
    """

    seed_tokens: int
    maximum_tokens: int
    drop_short: bool = False
    parts_of_speech: bool = False
    sentences: int = 1
    crop: bool = False
    merge_dashes: bool = False
    maximum_subwords: int = 160
    maximum_bytes: int = 2560
    column_names: str = "first"
    raw: bool = False
    canonical: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.seed_tokens < self.maximum_tokens:
            raise OptionError(
                f"seed_tokens is {self.seed_tokens} and maximum_tokens {self.maximum_tokens}",
                "0 <= seed_tokens < maximum_tokens",
                "choose other limits",
            )

    @classmethod
    def of(cls, specification: Specification, *, drop_short: bool = False) -> FilterOptions:
        """Return the options of a network's specification, for training or (`drop_short`) for inference."""
        if not specification.traits.columns:
            return cls(seed_tokens=0, maximum_tokens=UNLIMITED, raw=True)
        return cls(
            seed_tokens=specification.seed_tokens,
            maximum_tokens=specification.maximum_tokens,
            drop_short=drop_short,
            # Only training scales strengths by them; inference is the case with drop_short.
            parts_of_speech=bool(specification.pos_factors) and not drop_short,
            sentences=specification.sentences_per_sequence,
            crop=specification.crop,
            merge_dashes=specification.merge_dashes,
            maximum_subwords=specification.maximum_subwords,
            maximum_bytes=specification.maximum_bytes,
            column_names=specification.column_names,
            canonical=specification.flags == "canonical",
        )


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class TaggedBlock:
    """Sequences of consecutive parts that pass the length filter (counted sequences).

    Attributes
    ----------
    offsets : ndarray
        Sequence q has the tokens ``offsets[q]:offsets[q + 1]``; int64, shape ``(sequences + 1,)``.
        Sequences that are not candidates do not change any dictionary and have no tokens here.
    status : ndarray
        ``CANDIDATE``, ``NO_CONCEPT``, ``TOO_SHORT`` or ``TOO_MANY_BYTES`` per sequence, uint8.
    symbol : ndarray
        Per token the index into `concepts` for a noun, into `features` for any other; int32.
    flags : ndarray
        Per token a sum of ``NOUN``, ``DELIMITER`` (det) and ``PROBABLE`` (prbctx), and of the part of speech
        in the higher bits (``POS_SHIFT``) where parts of speech are kept; uint8.
    surface : ndarray
        Per noun token the index of its word in `surfaces`, -1 for any other; int32.
    document, sentence : ndarray
        Origin of each sequence: document of the input, and sentence within the document, counted
        from the document's first sentence in this block; int32.
    concepts, features, surfaces : tuple of str
        Noun lemmas, other words and noun words, in order of first appearance.
    part_sequences : tuple of int
        Counted sequences of each part, including skipped ones.
    document_sentences : tuple of (int, int)
        Document number and number of sentences in this block, in order.
    own_flags : bool
        Whether columns depend on the flags of the sequence's own tokens instead of the stored flags.
    """

    offsets: npt.NDArray[np.int64]
    status: npt.NDArray[np.uint8]
    symbol: npt.NDArray[np.int32]
    flags: npt.NDArray[np.uint8]
    surface: npt.NDArray[np.int32]
    document: npt.NDArray[np.int32]
    sentence: npt.NDArray[np.int32]
    concepts: tuple[str, ...]
    features: tuple[str, ...]
    surfaces: tuple[str, ...]
    part_sequences: tuple[int, ...]
    document_sentences: tuple[tuple[int, int], ...]
    own_flags: bool = False

    def __len__(self) -> int:
        """Return the number of counted sequences."""
        return len(self.status)

    @property
    def noun(self) -> npt.NDArray[np.bool_]:
        """Mask of the noun tokens; bool, shape ``(tokens,)``."""
        marked: npt.NDArray[np.bool_] = (self.flags & NOUN) != 0
        return marked


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
