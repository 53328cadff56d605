"""Define the specification of a network: every number that determines what training computes.

It has the options of training and of the steps before it, the segment layout derived from them, and the modes that
limit, scale or forget strengths, all off by default. A specification is stored with the network and never changes
afterwards. Defaults of each profile are in `giaann_dask.spec_profiles`, options of prediction in
`giaann_dask.models.columns.state.options`, and `giaann_dask.models.columns.scaling` checks which modes can be trained.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import SpecificationError, parameter
from giaann_dask.keywords import names_keywords
from giaann_dask.registry import ModelTraits, find_model, module_of, package_of, traits_of
from giaann_dask.spec_profiles import (
    COLUMN_PROFILES,
    CONTEXTS_OPTIONS,
    FLAGS,
    LATER,
    MODEL_OPTIONS,
    PROFILE_DEFAULT,
    PROFILES,
    TEXT_RULES,
    BranchOrder,
    ColumnNames,
    Flags,
    OwnStrengths,
    TokenKind,
    check_contexts,
    check_later,
    profile_defaults,
)
from giaann_dask.spec_profiles import require as _require

# Bit widths of the keys that connections are sorted by (giaann_dask.keys).
COLUMN_BITS = 26
FEATURE_BITS = 25
BRANCH_BITS = 7
SEGMENT_BITS = 5
NEURON_BITS = COLUMN_BITS + FEATURE_BITS

MAXIMUM_CONCEPTS = 1 << COLUMN_BITS
MAXIMUM_FEATURES = 1 << FEATURE_BITS
MAXIMUM_BRANCHES = 1 << BRANCH_BITS
MAXIMUM_SEGMENTS = 1 << SEGMENT_BITS
MAXIMUM_TOKENS = 256

PlacementKind = Literal["hash", "balanced", "co-occurrence"]
Squash = Literal["none", "tanh"]
LimitScope = Literal["connection", "pair"]
PosScope = Literal["external", "all"]

PLACEMENTS: tuple[PlacementKind, ...] = get_args(PlacementKind)

# The universal parts of speech. Corpora store their place in this order: append, never reorder.
PARTS_OF_SPEECH = (
    *("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM"),
    *("PART", "PRON", "PROPN", "PUNCT", "SCONJ", "SYM", "VERB", "X"),
)

# Names under which profiles are stored, where these differ: digests of networks depend on it.
STORED_PROFILES = {"contexts": "best"}

# Stored only where they are in use, so that a network without them is what it was before they existed.
_MODES = (
    *("strength_limit", "strength_squash", "limit_scope"),
    *("pos_factors", "pos_scope", "permanence_growth", "permanence_decay"),
    "flags",
    "trace",
)
# The flags of what is stored without any, and of networks that cannot have others.
HISTORY: Flags = "history"


@names_keywords
@dataclass(frozen=True, kw_only=True)
class Specification:
    """Specification of a network: the numbers that define training, stored with the network.

    Parameters
    ----------
    profile : str
        Name of the set of rules; it gives the options below their defaults: ``"v1"``, ``"v2"``, ``"contexts"``, or a
        model of another package by its entry point or its import path ``module:attribute`` (see
        `giaann_dask.registry`).
    seed_tokens : int
        Tokens of a sequence that are given before prediction starts; in profile ``v1`` it also fixes
        the number of segments.
    branches : int
        Dendritic branches of a feature neuron; 2 by default, 1 with leaky integrate-and-fire.
    maximum_tokens : int
        Longest raw sequence (in words before noun merging) that is read.
    proximity_scale : float
        A connection over distance d gains ``proximity_scale / (d + 1)``.
    strength_bits : int
        Strengths are integers in units of ``2 ** -strength_bits``.
    regions : int
        Number of regions that the columns are dealt to; large ones are split later. A network begins with no more than
        4, and has as many as this says once these have become too large to be kept together.
    placement : {"hash", "balanced", "co-occurrence"}
        How columns are dealt to regions: ``"hash"``, ``"balanced"`` (by the connections that they
        are the source of) or ``"co-occurrence"`` (columns that occur together share a region).
    strength_limit : float, optional
        Largest strength; none by default.
    strength_squash : {"none", "tanh"}
        How the limit is approached: ``"none"`` cuts a strength off at the limit, ``"tanh"`` makes
        it ``limit * tanh(strength / limit)``.
    limit_scope : {"connection", "pair"}
        What is limited: ``"connection"`` the total strength of a connection, where it is read (sums
        are stored as they are), or ``"pair"`` what each pair of tokens adds, as the published
        implementation does when its limits (1.0) are on.
    pos_factors : mapping of str to float, or pairs of these
        By which factor a pair of tokens adds more, by the universal part of speech of its source
        token; 1 for those that are not named. Kept as pairs in the order of the names.
    pos_scope : {"external", "all"}
        Which pairs are scaled: ``"external"`` those between two column occurrences, ``"all"`` all.
    permanence_growth, permanence_decay : int
        What the permanence of a connection gains when it is trained, and loses when its columns
        are and it is not. Not 0: see `giaann_dask.models.columns.scaling.require_sums`, which refuses it.
    flags : {"canonical", "history"}
        What decides whether a word is a delimiter or a probable one: ``"canonical"``, the ever-POS lexicon and the
        word alone, or ``"history"``, its first occurrences in the text as the contract says. With canonical flags the
        network does not depend on the order and division of the text, so that networks can be added and documents
        forgotten exactly (`giaann_dask.algebra`). Canonical by default, history where flags cannot be: with subwords
        or random branches. Profile ``contexts`` needs no flags.
    trace : bool
        Whether an index of which sequences built each connection is trained along (`giaann_dask.tracing`). It
        changes no strength.
    tokens : {"words", "subwords"}
        What a token is: ``"words"`` or the ``"subwords"`` of a tokenizer, which is stored with the
        network. This option and those that follow are fixed in profile ``v1``.
    lif : bool
        Whether prediction is leaky integrate-and-fire, for which adjacent tokens have a segment of their
        own, that of the soma, after the feature segments.
    sentences_per_sequence : int
        Consecutive sentences of a document that make a sequence.
    crop : bool
        Use the first `maximum_tokens` words of longer sequences instead of leaving these out.
    merge_dashes : bool
        Let an en dash join nouns as a hyphen does, and a hyphen that is tagged as a noun, too.
    invented_boundaries : bool
        Where nothing delimits two neighbouring concepts, end the left column before the right concept,
        instead of leaving the sequence out.
    segment_counts : tuple of (int, int), optional
        Column segments and feature segments, without that of the soma; 0 leaves a kind out. None in
        profile ``v1``, where they follow from `seed_tokens`.
    column_catch_all, feature_catch_all : bool
        Whether the first segment of a kind also takes all that is farther away than the segments reach.
    proximity_exponent : float
        A connection over distance d gains ``proximity_scale / (d + 1) ** proximity_exponent``.
    branch_order : {"occurrence", "random"}
        Which branch a token is on: ``"occurrence"`` counts the neuron's tokens in the sequence up to the
        last branch, ``"random"`` takes any, by a hash of the sequence's neurons and the token's place.
    branch_tree : bool
        Whether branches join on the way to the soma: the branch of a connection is that of its token, halved
        once for every segment between the first of its kind and its own.
    own_strengths : {"segments", "tokens"}
        What a neuron's own strength counts: ``"segments"`` of its place in the sequence (profile
        ``v1``), or its trained ``"tokens"``, on the last segment.
    maximum_subwords, maximum_bytes : int
        Of subwords, the longest sequence, which is cropped, and the most bytes of its text, beyond which
        it is left out.
    column_names : {"first", "span", "lemma"}
        Which column a run of noun subwords opens: that of its ``"first"`` subword, of its whole text
        (``"span"``), or of its words' lemmas (``"lemma"``). In the latter two columns are numbered as they
        appear, as those of words are.
    contexts : tuple of str
        Kinds of contexts that profile ``contexts`` counts words after, of `spec_profiles.CONTEXT_NAMES`; by
        default those that its weights read. Empty in other profiles, as nearly all of the options above
        have one value only in profile ``contexts``.
    package : str
        Distribution that has the model, filled in for models of other packages.
    model_options : mapping of str to Any, or pairs of these
        Options of a model of another package, as its `options` class checks them; kept as pairs in the order of the
        names.

    Raises
    ------
    SpecificationError
        If a value is out of range, or the segments do not fit into the seed tokens, or options of
        modes contradict each other.

    Examples
    --------
    >>> Specification(seed_tokens=12).segments
    11
    >>> Specification(profile="v2").segments, Specification(profile="v2", lif=False).soma_segment
    (9, None)
    >>> Specification(strength_limit=7.0).strengths(np.array([5 << 20, 9 << 20])).tolist()
    [5.0, 7.0]
    >>> Specification().flags, Specification(profile="v2", tokens="subwords").flags
    ('canonical', 'history')
    """

    # Whether flags were asked for; if not, those of an existing network or corpus are used.
    _flags_given: ClassVar[bool] = False

    profile: str = "v1"
    seed_tokens: int = 8
    branches: int = PROFILE_DEFAULT
    maximum_tokens: int = 80
    proximity_scale: float = 10.0
    strength_bits: int = 20
    regions: int = 8
    placement: PlacementKind = "hash"
    strength_limit: float | None = None
    strength_squash: Squash = "none"
    limit_scope: LimitScope = "connection"
    pos_factors: Mapping[str, float] | Sequence[tuple[str, float]] = ()
    pos_scope: PosScope = "external"
    permanence_growth: int = 0
    permanence_decay: int = 0
    flags: Flags = PROFILE_DEFAULT
    trace: bool = False
    tokens: TokenKind = PROFILE_DEFAULT
    lif: bool = PROFILE_DEFAULT
    sentences_per_sequence: int = PROFILE_DEFAULT
    crop: bool = PROFILE_DEFAULT
    merge_dashes: bool = PROFILE_DEFAULT
    invented_boundaries: bool = PROFILE_DEFAULT
    segment_counts: tuple[int, int] | None = PROFILE_DEFAULT
    column_catch_all: bool = PROFILE_DEFAULT
    feature_catch_all: bool = PROFILE_DEFAULT
    proximity_exponent: float = PROFILE_DEFAULT
    branch_order: BranchOrder = PROFILE_DEFAULT
    branch_tree: bool = PROFILE_DEFAULT
    own_strengths: OwnStrengths = PROFILE_DEFAULT
    maximum_subwords: int = PROFILE_DEFAULT
    maximum_bytes: int = PROFILE_DEFAULT
    column_names: ColumnNames = PROFILE_DEFAULT
    contexts: tuple[str, ...] = ()
    package: str = ""
    model_options: Mapping[str, Any] | Sequence[tuple[str, Any]] = ()

    def __post_init__(self) -> None:
        self._check_model()
        for name, value in profile_defaults(self.profile, self.lif).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if self.segment_counts is not None:
            # JSON has lists only.
            object.__setattr__(self, "segment_counts", tuple(self.segment_counts))
        _require(self.placement in PLACEMENTS, "placement", self.placement, ", ".join(PLACEMENTS))
        _require(self.seed_tokens >= 1, "seed_tokens", self.seed_tokens, "at least 1")
        _require(1 <= self.branches <= MAXIMUM_BRANCHES, "branches", self.branches, f"1 to {MAXIMUM_BRANCHES}")
        _require(
            self.seed_tokens < self.maximum_tokens <= MAXIMUM_TOKENS,
            "maximum_tokens",
            self.maximum_tokens,
            f"more than seed_tokens and at most {MAXIMUM_TOKENS}",
        )
        _require(1 <= self.regions <= 65536, "regions", self.regions, "1 to 65536")
        _require(1 <= self.strength_bits <= 30, "strength_bits", self.strength_bits, "1 to 30")
        _require(0 < self.proximity_scale < 1e6, "proximity_scale", self.proximity_scale, "0 to 1000000")
        check_later(vars(self), MAXIMUM_TOKENS)
        self._check_flags()
        object.__setattr__(self, "contexts", check_contexts(self.contexts, vars(self), _plain()))
        if self.profile == "v1":
            expected = (
                f"a number that its {self.segments} segments fit into, and at most {MAXIMUM_SEGMENTS} of them (6 to 40)"
            )
            _require(
                self.segments <= min(self.seed_tokens, MAXIMUM_SEGMENTS), "seed_tokens", self.seed_tokens, expected
            )
        _require(self.segments <= MAXIMUM_SEGMENTS, "segment_counts", self.segment_counts, f"{MAXIMUM_SEGMENTS} in all")
        self._check_modes()

    def _check_model(self) -> None:
        """Check the options of a model of another package; those of a stored network are as it was trained."""
        given = self.model_options
        pairs = given.items() if isinstance(given, Mapping) else ((name, value) for name, value in given)
        object.__setattr__(self, "model_options", tuple(sorted(pairs)))
        if self.profile in PROFILES:
            _require(not self.package, "package", self.package, "none with a model of this package")
            _require(not self.model_options, "model_options", self.model_options, "none with a model of this package")
        elif not self.package:
            complete = _complete(find_model(self.profile).options, dict(self.model_options))
            object.__setattr__(self, "model_options", tuple(sorted(complete.items())))
            object.__setattr__(self, "package", package_of(self.profile) or module_of(self.profile))

    def _check_flags(self) -> None:
        """Choose flags where none are given; check that with canonical ones nothing depends on the order of text."""
        words = self.profile in COLUMN_PROFILES and self.tokens == "words" and self.branch_order == "occurrence"
        object.__setattr__(self, "_flags_given", self.flags is not None)
        if not self._flags_given:
            object.__setattr__(self, "flags", "canonical" if words else HISTORY)
        _require(self.flags in FLAGS, "flags", self.flags, " or ".join(FLAGS))
        _require(isinstance(self.trace, bool), "trace", self.trace, "True or False")
        if self.flags == "canonical":
            expected = "words as tokens, and branches in the order of occurrence, with canonical flags"
            _require(self.tokens == "words", "tokens", self.tokens, expected)
            _require(self.branch_order == "occurrence", "branch_order", self.branch_order, expected)

    def _check_modes(self) -> None:
        """Normalise the modes and check that they can be combined."""
        object.__setattr__(self, "pos_factors", _factors(self.pos_factors))
        limit, unit = self.strength_limit, 1 / (1 << self.strength_bits)
        _require(limit is None or unit <= limit < 1e6, "strength_limit", limit, f"{unit} (a unit) to 1000000")
        object.__setattr__(self, "strength_limit", None if limit is None else float(limit))
        choices = (
            ("strength_squash", get_args(Squash), "strength_limit"),
            ("limit_scope", get_args(LimitScope), "strength_limit"),
            ("pos_scope", get_args(PosScope), "pos_factors"),
        )
        for name, values, needed in choices:
            value = getattr(self, name)
            _require(value in values, name, value, " or ".join(values))
            _require(value == values[0] or bool(getattr(self, needed)), name, value, f"{parameter(needed)} with it")
        for name in ("permanence_growth", "permanence_decay"):
            value = getattr(self, name)
            _require(isinstance(value, int) and 0 <= value < 1 << 20, name, value, "a whole number from 0 to 1048575")
        if self.pos_factors or self.limit_scope == "pair" or self.proximity_exponent != 1:
            # Profile v1 itself takes any scale; what a mode makes of it must still be a strength.
            for factor in (1.0, *dict(self.pos_factors).values()):
                fits = self.proximity_scale * factor < 1e6 and int(self.increments(factor)[1:].min()) > 0
                expected = f"less than 1000000 and a unit or more for every pair, with the factor {factor} too"
                _require(fits, "proximity_scale", self.proximity_scale, expected)

    @property
    def traits(self) -> ModelTraits:
        """Traits of the model: what it reads and offers.

        Raises
        ------
        MissingDependencyError
            If the model's package is not installed.
        """
        return traits_of(self.profile, self.package)

    @property
    def is_order_free(self) -> bool:
        """Whether the network is the same for any order and division of its text."""
        traits = self.traits
        return traits.order_free and (self.flags == "canonical" or not traits.columns)

    @property
    def strength_unit(self) -> int:
        """Units of a strength of 1; counts stand for themselves."""
        return 1 << self.strength_bits if self.traits.columns else 1

    def require_order_free(self, what: str) -> None:
        """Raise a `SpecificationError` of what has the specification when it depends on the order of text."""
        if self.is_order_free:
            return
        words = "" if self.tokens == "words" else "of words instead of subwords, "
        ordered = "" if self.branch_order == "occurrence" else "with branches in the order of occurrence, "
        raise SpecificationError(
            f"{what} has delimiter flags that depend on the order of its text",
            "canonical flags, or profile contexts",
            f"train a new one {words}{ordered}with {parameter('flags')} canonical, which is the default",
        )

    @property
    def column_segments(self) -> int:
        """Number of column segments; they are numbered from 0."""
        return self.seed_tokens // 4 + 1 if self.segment_counts is None else self.segment_counts[0]

    @property
    def feature_segments(self) -> int:
        """Number of feature segments, without that of the soma; they follow the column segments."""
        return math.ceil(self.seed_tokens / 2) + 1 if self.segment_counts is None else self.segment_counts[1]

    @property
    def soma_segment(self) -> int | None:
        """Number of the soma's segment, that of adjacent tokens; None without leaky integrate-and-fire."""
        return self.column_segments + self.feature_segments if self.lif else None

    @property
    def segments(self) -> int:
        """Number of all segments, that of the soma included."""
        return self.column_segments + self.feature_segments + int(self.lif)

    @property
    def reach(self) -> int:
        """Distance up to which pairs of tokens have a segment each after the column segments."""
        return self.segments - self.column_segments

    @property
    def last_segment(self) -> int:
        """Number of the last segment, that of adjacent tokens."""
        return self.segments - 1

    @property
    def longest_sequence(self) -> int:
        """Most tokens that a sequence can have."""
        return self.maximum_subwords if self.tokens == "subwords" else self.maximum_tokens

    @property
    def _stored_profile(self) -> str:
        return STORED_PROFILES.get(self.profile, self.profile)

    def text_rules(self) -> dict[str, Any]:
        """Return the rules that encoded text depends on besides its limits and branches."""
        rules = {} if self.profile == "v1" else {name: getattr(self, name) for name in TEXT_RULES}
        if "profile" in rules:
            rules["profile"] = self._stored_profile
        return rules if self.flags == HISTORY else {**rules, "flags": self.flags}

    def continuing(self, stored: Specification) -> Specification:
        """Return the specification with the flags of what is stored, unless others were asked for, and its index.

        Parameters
        ----------
        stored : Specification
            That of a network that is trained further, or of a corpus that a new one is trained on.

        Examples
        --------
        >>> stored = Specification(flags="history", trace=True)
        >>> Specification().continuing(stored) == stored, Specification(flags="canonical").continuing(stored).flags
        (True, 'canonical')
        """
        flags = HISTORY if stored.flags == HISTORY and not self._flags_given else self.flags
        if (flags, stored.trace or self.trace) == (self.flags, self.trace):
            return self
        return dataclasses.replace(self, flags=flags, trace=stored.trace or self.trace)

    def increments(self, factor: float = 1.0) -> npt.NDArray[np.int64]:
        """Fixed-point increment of a connection by the distance of its tokens.

        Parameters
        ----------
        factor : float
            What the increments are scaled by before they are limited and rounded.

        Returns
        -------
        ndarray
            Strength units, int64, shape ``(longest_sequence,)``; entry 0 is 0. The real value is
            ``float32(float32(1 / (d + 1)) * proximity_scale)``, rounded to the nearest unit.
        """
        place = np.arange(self.longest_sequence, dtype=np.float64) + 1.0
        if self.proximity_exponent != 1:
            place = place**self.proximity_exponent
        real = (1.0 / place).astype(np.float32) * np.float32(self.proximity_scale)
        scaled = (real * np.float32(factor)).astype(np.float64)
        if self.limit_scope == "pair":
            scaled = self._limited(scaled)
        units = np.rint(scaled * (1 << self.strength_bits)).astype(np.int64)
        units[0] = 0
        return units

    def strengths(self, units: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.float64]:
        """Return the strengths of connections from their stored totals, limited as specified.

        Parameters
        ----------
        units : ndarray of int
            Sums of increments, as runs hold them, in strength units.

        Returns
        -------
        ndarray of float64
            Positive and monotonic in `units`; in models of words these are counts and stand for themselves.
            Increments are never negative, so cutting the sum off here equals cutting it off after every
            increment, in whatever order these are added. That is so of ``"none"`` alone: ``"tanh"`` is taken
            once, of the sum; taken again after every sequence it would depend on their order.
        """
        if not self.traits.columns:
            return units.astype(np.float64)
        real: npt.NDArray[np.float64] = units / float(1 << self.strength_bits)
        return self._limited(real) if self.limit_scope == "connection" else real

    def _limited(self, real: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        limit = self.strength_limit
        if limit is None:
            return real
        return np.minimum(real, limit) if self.strength_squash == "none" else limit * np.tanh(real / limit)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values, modes only where they are in use."""
        if self.profile not in COLUMN_PROFILES:
            names = CONTEXTS_OPTIONS if self.profile in PROFILES else MODEL_OPTIONS
            fields = {name: getattr(self, name) for name in (*names, *(("trace",) if self.trace else ()))}
            fields["profile"] = self._stored_profile
            return fields | ({"model_options": dict(self.model_options)} if self.package else {})
        others = ("contexts", "package", "model_options")
        later = (*LATER, *others) if self.profile == "v1" else others
        fields = {k: v for k, v in dataclasses.asdict(self).items() if k not in later}
        unused = {**{name: getattr(Specification, name) for name in _MODES}, "flags": HISTORY}
        return {k: v for k, v in fields.items() if k not in unused or v != unused[k]}

    def describe(self) -> dict[str, Any]:
        """Return the fields as users know them: `as_dict` with the profile's present name and with the flags."""
        return {**self.as_dict(), "profile": self.profile, "flags": self.flags}

    def without_regions(self) -> dict[str, Any]:
        """Return the fields that strengths depend on: `as_dict` without where columns are kept, and what is indexed.

        Examples
        --------
        >>> one, other = Specification(regions=8), Specification(regions=3, placement="balanced")
        >>> one.without_regions() == other.without_regions(), "regions" in one.without_regions()
        (True, False)
        """
        others = ("regions", "placement", "trace")
        return {name: value for name, value in self.as_dict().items() if name not in others}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Specification:
        """Rebuild a stored specification.

        Raises
        ------
        SpecificationError
            If a field is unknown or out of range.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(fields) - names)
        if unknown:
            raise SpecificationError(
                f"the stored specification has unknown fields {unknown}",
                f"only {sorted(names)}",
                "open the network with the version of giaann_dask that wrote it",
            )
        named = {stored: profile for profile, stored in STORED_PROFILES.items()}
        profile = fields.get("profile", cls.profile)
        return cls(**{"flags": HISTORY, **fields, "profile": named.get(profile, profile)})


def _complete(options: type, given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a model of another package with its defaults, as its class checks them."""
    try:
        return dataclasses.asdict(options(**given))
    except (TypeError, ValueError) as error:
        expected = f"those of {options.__module__}.{options.__qualname__}"
        raise SpecificationError(f"{parameter('model_options')} {given}: {error}", expected, "mend them") from error


def _plain() -> dict[str, Any]:
    """Return the values of the fields that profile contexts has only one of and that no profile gives a default."""
    fields = dataclasses.fields(Specification)
    known = (*LATER, "branches", *CONTEXTS_OPTIONS, *MODEL_OPTIONS, "trace")
    return {**{f.name: f.default for f in fields if f.name not in known}, "flags": HISTORY}


def _factors(given: Mapping[str, float] | Sequence[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """Return factors other than 1, each part of speech once, in the order of the names."""
    pairs = list(given.items()) if isinstance(given, Mapping) else [(name, factor) for name, factor in given]
    names = [name for name, _ in pairs]
    of = f"of {parameter('pos_factors')}"
    for name, factor in pairs:
        _require(name in PARTS_OF_SPEECH, f"a part of speech {of}", name, f"one of {', '.join(PARTS_OF_SPEECH)}")
        _require(names.count(name) == 1, f"a part of speech {of}", name, "each of them once")
        _require(0 < factor < 1e6, f"the factor for {name} {of}", factor, "more than 0, less than 1000000")
    return tuple(sorted((name, float(factor)) for name, factor in pairs if factor != 1))
