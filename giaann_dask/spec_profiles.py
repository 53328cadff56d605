"""Define the profiles: named sets of defaults of the specification.

Lists the options that profiles ``v2`` and ``contexts`` added, their defaults in every profile, and which options
require each other. `giaann_dask.spec` has the specification itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from giaann_dask.errors import SpecificationError, parameter

Profile = Literal["v1", "v2", "contexts"]
TokenKind = Literal["words", "subwords"]
BranchOrder = Literal["occurrence", "random"]
OwnStrengths = Literal["segments", "tokens"]
ColumnNames = Literal["first", "span", "lemma"]
Flags = Literal["canonical", "history"]

PROFILES: tuple[Profile, ...] = get_args(Profile)
# Those of concept columns; all others count words.
COLUMN_PROFILES = ("v1", "v2")
# Kinds of contexts by name, in the order of `giaann_dask.models.contexts.kinds.CONTEXTS`, which says what each
# looks at. Their places are the segments that they are counted on: append, never reorder.
CONTEXT_NAMES = (
    *("all", "1", "1+2", "1+2+3", "1+2+3+4", "2", "3", "4", "5", "6", "1+3", "2+3", "1+4", "2+4"),
    *("e1", "e1+e2", "e1+e2+e3", "e1+e3", "e1+2", "1+e2+e3"),
)
# All else is smoothed with these, and an n-gram model is made of them.
CHAIN_NAMES = CONTEXT_NAMES[:5]
# Those that the weights of profile ``contexts`` give something.
_WEIGHED = (*CHAIN_NAMES, "1+3", "2+3", "1+4", "2+4", "e1", "e1+e2", "e1+e2+e3", "e1+e3")
TOKENS: tuple[TokenKind, ...] = get_args(TokenKind)
BRANCH_ORDERS: tuple[BranchOrder, ...] = get_args(BranchOrder)
OWN_STRENGTHS: tuple[OwnStrengths, ...] = get_args(OwnStrengths)
COLUMN_NAMES: tuple[ColumnNames, ...] = get_args(ColumnNames)
FLAGS: tuple[Flags, ...] = get_args(Flags)

# The value of a field that takes the default of its profile; of the type of any field.
PROFILE_DEFAULT: Any = None

_V1: Mapping[str, Any] = {
    "branches": 2,
    "tokens": "words",
    "lif": False,
    "sentences_per_sequence": 1,
    "crop": False,
    "merge_dashes": False,
    "invented_boundaries": False,
    "segment_counts": None,
    "column_catch_all": True,
    "feature_catch_all": True,
    "proximity_exponent": 1.0,
    "branch_order": "occurrence",
    "branch_tree": False,
    "own_strengths": "segments",
    "maximum_subwords": 160,
    "maximum_bytes": 2560,
    "column_names": "first",
}
_V2: Mapping[str, Any] = {
    **_V1,
    "lif": True,
    "sentences_per_sequence": 3,
    "crop": True,
    "merge_dashes": True,
    "invented_boundaries": True,
    "segment_counts": (4, 4),
    "column_catch_all": False,
    "feature_catch_all": False,
    "own_strengths": "tokens",
}
# Models of words have counts instead of strengths. In profile contexts there is a segment for each kind of context; on
# the last one a context is connected with the shorter one it extends.
_WORDS: Mapping[str, Any] = {**_V1, "branches": 1, "segment_counts": (0, 32)}
# All that has a meaning in profile contexts, and in models of other packages.
CONTEXTS_OPTIONS = ("profile", "seed_tokens", "regions", "contexts")
MODEL_OPTIONS = ("profile", "package", "model_options", "seed_tokens", "regions")
# Options that came with profile v2: a network of profile v1 has them all at their defaults, and is
# stored without them, as it was before they existed.
LATER = tuple(name for name in _V1 if name != "branches")
# Of these, what sequences of tokens and their columns depend on, so that an encoded corpus does.
TEXT_RULES = (
    *("profile", "tokens", "sentences_per_sequence", "crop", "merge_dashes", "invented_boundaries"),
    *("branch_order", "maximum_subwords", "maximum_bytes", "column_names"),
)


def profile_defaults(profile: str, lif: bool | None) -> dict[str, Any]:
    """Return the defaults of a profile's options.

    Parameters
    ----------
    profile : str
        Name of a model; those of other packages have the defaults of profile ``contexts``.
    lif : bool, optional
        Whether leaky integrate-and-fire is asked for; the profile's own choice by default. Without it
        profile ``v2`` has the two branches that ``v1`` has.

    Examples
    --------
    >>> profile_defaults("v2", None)["branches"], profile_defaults("v2", False)["branches"]
    (1, 2)
    """
    if profile == "v1":
        return dict(_V1)
    if profile not in COLUMN_PROFILES:
        return dict(_WORDS)
    return {**_V2, "branches": 1 if lif is None or lif else 2}


def check_later(options: Mapping[str, Any], longest: int) -> None:
    """Check the options that were added with profile ``v2``, alone and in combination.

    Parameters
    ----------
    options : mapping of str to Any
        The fields of a specification, with every default filled in.
    longest : int
        Most tokens of a sequence that keys have room for.

    Raises
    ------
    SpecificationError
        If an option is out of range, belongs to another profile, or has no meaning with the others.
    """
    if options["profile"] == "v1":
        for name in LATER:
            value = options[name]
            require(
                value == _V1[name], name, value, f"{_V1[name]!r}, its only value in profile v1", "choose profile v2"
            )
        return
    if options["profile"] not in COLUMN_PROFILES:
        for name, value in _WORDS.items():
            _require_fixed(name, options, value)
        return
    choices = {"tokens": TOKENS, "branch_order": BRANCH_ORDERS, "own_strengths": OWN_STRENGTHS}
    for name, values in (choices | {"column_names": COLUMN_NAMES}).items():
        require(options[name] in values, name, options[name], " or ".join(values))
    for name in (
        "lif",
        "crop",
        "merge_dashes",
        "invented_boundaries",
        "column_catch_all",
        "feature_catch_all",
        "branch_tree",
    ):
        require(isinstance(options[name], bool), name, options[name], "True or False")
    sentences = options["sentences_per_sequence"]
    require(1 <= sentences <= 1000, "sentences_per_sequence", sentences, "1 to 1000")
    require(0 < options["proximity_exponent"] <= 8, "proximity_exponent", options["proximity_exponent"], "0 to 8")
    _check_segments(options)
    random = options["branch_order"] == "random"
    require(not random or options["branches"] > 1, "branch_order", "random", "more than one branch to choose from")
    _check_tree(options)
    most, subwords = options["maximum_subwords"], options["tokens"] == "subwords"
    require(
        options["seed_tokens"] < most <= longest,
        "maximum_subwords",
        most,
        f"more than {parameter('seed_tokens')}, at most {longest}",
    )
    require(options["maximum_bytes"] >= 1, "maximum_bytes", options["maximum_bytes"], "1 or more")
    for name in ("maximum_subwords", "maximum_bytes", "column_names"):
        value = options[name]
        require(
            subwords or value == _V2[name],
            name,
            value,
            "subwords as tokens",
            f"give {parameter('tokenizer')}, or leave it out",
        )


def check_contexts(given: Sequence[str], options: Mapping[str, Any], plain: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the kinds of contexts that a network counts, in their one order.

    Parameters
    ----------
    given : sequence of str
        As asked for; none for those of the profile.
    options : mapping of str to Any
        The fields of a specification, with every default filled in.
    plain : mapping of str to Any
        Values that profile ``contexts`` has of the fields that mean nothing in it.

    Raises
    ------
    SpecificationError
        If a kind is unknown, one of the chain is missing, or another option belongs to other profiles.

    Examples
    --------
    >>> check_contexts(["2", *CHAIN_NAMES], {"profile": "contexts"}, {})
    ('all', '1', '1+2', '1+2+3', '1+2+3+4', '2')
    """
    if options["profile"] != "contexts":
        require(not given, "contexts", given, "none in this profile", "choose profile contexts")
    if options["profile"] not in COLUMN_PROFILES:
        for name, value in plain.items():
            _require_fixed(name, options, value)
    if options["profile"] != "contexts":
        return ()
    wanted = set(given or _WEIGHED)
    unknown, missing = sorted(wanted.difference(CONTEXT_NAMES)), set(CHAIN_NAMES) - wanted
    require(not unknown, "contexts", unknown, f"some of {', '.join(CONTEXT_NAMES)}")
    require(not missing, "contexts", given, f"{', '.join(CHAIN_NAMES)} among them, which all else is smoothed with")
    return tuple(name for name in CONTEXT_NAMES if name in wanted)


def _require_fixed(name: str, options: Mapping[str, Any], only: object) -> None:
    """Refuse another value of an option that means nothing in a model of words."""
    expected = f"{only!r}, its only value in profile {options['profile']}"
    require(options[name] == only, name, options[name], expected, "leave it out")


def _check_segments(options: Mapping[str, Any]) -> None:
    """Check the numbers of segments and the contents of the first ones."""
    counts = options["segment_counts"]
    valid = counts is not None and len(counts) == 2 and all(isinstance(n, int) and 0 <= n <= 32 for n in counts)
    require(valid, "segment_counts", counts, "a number of column segments and one of feature segments")
    columns, features = counts or (0, 0)
    require(columns + features > 0, "segment_counts", counts, "column segments, feature segments or both")
    require(
        columns > 0 or not options["column_catch_all"],
        "column_catch_all",
        True,
        "column segments, of which one takes all",
    )
    require(
        features > 0 or not options["feature_catch_all"],
        "feature_catch_all",
        True,
        "feature segments, of which one takes all",
    )


def _check_tree(options: Mapping[str, Any]) -> None:
    """Check that branches can join two by two until one is left at the soma."""
    if not options["branch_tree"]:
        return
    expected = "leaky integrate-and-fire, in which signals move from segment to segment"
    require(
        options["lif"],
        "branch_tree",
        True,
        expected,
        f"leave {parameter('branch_tree')} out, or take {parameter('lif')}",
    )
    moves, branches = options["segment_counts"][1], options["branches"]
    whole = branches > 1 and branches & (branches - 1) == 0 and branches <= 1 << moves
    expected = f"2, 4, 8 or so for a tree, at most {1 << moves}, of which {moves} feature segments leave one"
    require(whole, "branches", branches, expected)


def require(valid: bool, name: str, value: object, expected: str, remedy: str | None = None) -> None:
    """Raise a `SpecificationError` that names the field when it is not valid."""
    if not valid:
        shown = parameter(name) if name.isidentifier() else name
        raise SpecificationError(f"{shown} is {value!r}", expected, remedy or f"set {shown} to such a value")
