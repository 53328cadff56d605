"""Define the specification of a network: every number that determines what training computes.

It has the options of training and of the steps before it, the segment layout derived from them, and the modes that
limit, scale or forget strengths, all off by default. A specification is stored with the network and never changes
afterwards. Its model has the defaults and checks (`giaann_dask.registry.fields_of`), options of prediction are in
`giaann_dask.models.columns.state.inference_options`, and `giaann_dask.models.columns.scaling` checks which modes can
be trained.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import SpecificationError
from giaann_dask.keywords import names_keywords
from giaann_dask.registry import (
    BASES,
    BUILT_IN,
    DEFAULT_PROFILE,
    FLAGS,
    HISTORY,
    MODEL_DEFAULT,
    STORED_PROFILES,
    BranchOrder,
    ColumnNames,
    Flags,
    ModelTraits,
    OwnStrengths,
    TokenKind,
    fields_of,
    find_model,
    module_of,
    name_model,
    traits_of,
)
from giaann_dask.registry import require as _require

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
MAXIMUM_TOKENS = 4096

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


@names_keywords
@dataclass(frozen=True, kw_only=True)
class Specification:
    """Specification of a network: the numbers that define training, stored with the network.

    Parameters
    ----------
    profile : str
        Name of the set of rules; it sets the defaults of the options below: ``"v1"``, ``"v2"``, ``"contexts"``, or a
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
        Number of regions that columns are assigned to; large ones are split later. A network begins with at most 4, and
        gets the others when these have become too large.
    placement : {"hash", "balanced", "co-occurrence"}
        How columns are assigned to regions: ``"hash"``, ``"balanced"`` (by their outgoing connections) or
        ``"co-occurrence"`` (columns that occur together share a region).
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
        Consecutive sentences of a document that make a sequence; 0 for windows of `maximum_tokens` words, one after
        the other, wherever sentences begin and end.
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
    self_transitions : bool
        Whether every token also makes a pair with itself, so that each trained neuron is connected to itself as if it
        followed itself: on the segments of adjacent tokens, over distance 0. Off, a neuron is connected to itself
        where it occurs again.
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
        Kinds of contexts that profile ``contexts`` counts words after
        (`giaann_dask.models.contexts.specification`); by default those that its weights read. Empty in other profiles,
        as nearly all of the options above have one value only in profile ``contexts``.
    package : str
        Distribution that has the model, filled in for models of other packages.
    model_options : mapping of str to Any, or pairs of these
        Options of a model of another package, as its `options` class checks them; kept as pairs in the order of the
        names.
    base : str
        Profile whose rules a model of another package changes, filled in: `Model.base`.
    own_exports : bool
        Whether exports and digests of such a model need its package, filled in.

    Raises
    ------
    SpecificationError
        If a value is out of range, or the segments do not fit into the seed tokens, or options of
        modes contradict each other.

    Examples
    --------
    >>> Specification(seed_tokens=12).segments
    11
    >>> Specification(profile="v2").segments, Specification(profile="v2", lif=False).segments
    (9, 8)
    >>> Specification(strength_limit=7.0).strengths(np.array([5 << 20, 9 << 20])).tolist()
    [5.0, 7.0]
    >>> Specification().flags, Specification(profile="v2", tokens="subwords").flags
    ('canonical', 'history')
    """

    # Whether flags were asked for; if not, those of an existing network or corpus are used.
    _flags_given: ClassVar[bool] = False

    profile: str = DEFAULT_PROFILE
    seed_tokens: int = 8
    branches: int = MODEL_DEFAULT
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
    flags: Flags = MODEL_DEFAULT
    trace: bool = False
    tokens: TokenKind = MODEL_DEFAULT
    lif: bool = MODEL_DEFAULT
    sentences_per_sequence: int = MODEL_DEFAULT
    crop: bool = MODEL_DEFAULT
    merge_dashes: bool = MODEL_DEFAULT
    invented_boundaries: bool = MODEL_DEFAULT
    segment_counts: tuple[int, int] | None = MODEL_DEFAULT
    column_catch_all: bool = MODEL_DEFAULT
    feature_catch_all: bool = MODEL_DEFAULT
    proximity_exponent: float = MODEL_DEFAULT
    self_transitions: bool = False
    branch_order: BranchOrder = MODEL_DEFAULT
    branch_tree: bool = MODEL_DEFAULT
    own_strengths: OwnStrengths = MODEL_DEFAULT
    maximum_subwords: int = MODEL_DEFAULT
    maximum_bytes: int = MODEL_DEFAULT
    column_names: ColumnNames = MODEL_DEFAULT
    contexts: tuple[str, ...] = ()
    package: str = ""
    model_options: Mapping[str, Any] | Sequence[tuple[str, Any]] = ()
    base: str = ""
    own_exports: bool = False

    def __post_init__(self) -> None:
        try:
            self._set("model_options", tuple(sorted(dict(self.model_options).items())))
        except (TypeError, ValueError):
            _require(False, "model_options", self.model_options, "names with values")
            raise
        if self.profile not in BUILT_IN and not self.package:
            self._begin_own()
        _require(self.base in ("", *BASES), "base", self.base, ", ".join(BASES))
        rules = fields_of(self.profile, self.base)
        self._fill(rules.defaults_for(self))
        if self.segment_counts is not None:
            # JSON has lists only.
            self._set("segment_counts", tuple(self.segment_counts))
        self._set("_flags_given", self.flags is not None)
        if not self._flags_given:
            self._set("flags", "canonical" if rules.canonical_flags(self) else HISTORY)
        self._check()
        for name, value in rules.check(self).items():
            self._set(name, value)

    def _begin_own(self) -> None:
        """Name the model of another package, and fill in what it is based on and its defaults."""
        name_model(self.profile)
        model = find_model(self.profile)
        self._set("base", model.base)
        optional = {field.name for field in dataclasses.fields(self) if field.default is MODEL_DEFAULT}
        unknown = sorted(set(model.defaults) - optional)
        _require(not unknown, "defaults", unknown, f"those of {', '.join(sorted(optional))}", "correct the model")
        self._fill(model.defaults)

    def _fill(self, defaults: Mapping[str, Any]) -> None:
        """Set the fields that have no value yet."""
        for name, value in defaults.items():
            if getattr(self, name) is None:
                self._set(name, value)

    def _set(self, name: str, value: object) -> None:
        """Set a field while the value is made."""
        object.__setattr__(self, name, value)

    def _check(self) -> None:
        """Check the fields that mean the same in all models."""
        if self.profile in BUILT_IN:
            for name in ("package", "model_options", "base", "own_exports"):
                _require(not getattr(self, name), name, getattr(self, name), "none with a model of this package")
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
        _require(self.flags in FLAGS, "flags", self.flags, " or ".join(FLAGS))
        for name in ("trace", "self_transitions"):
            value = getattr(self, name)
            _require(isinstance(value, bool), name, value, "True or False")

    @property
    def traits(self) -> ModelTraits:
        """Traits of the model: what it reads and offers.

        Raises
        ------
        MissingDependencyError
            If the model's package is not installed.
        """
        return traits_of(self.profile, self.package, self.base)

    @property
    def ruled_by(self) -> str:
        """Profile of this package whose rules the network has, else its own."""
        return self.base or self.profile

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
            f"{what} determines delimiters by the order of its text",
            "delimiters determined by the word alone, or profile contexts",
            f"train a new one {words}{ordered}with flags canonical, which is the default",
            names=("flags",),
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
    def segments(self) -> int:
        """Number of all segments, that of the soma included."""
        return self.column_segments + self.feature_segments + int(self.lif)

    @property
    def reach(self) -> int:
        """Distance up to which pairs of tokens have a segment each after the column segments."""
        return self.segments - self.column_segments

    @property
    def least_distance(self) -> int:
        """Least distance of the tokens of a pair; at 0 a token makes a pair with itself."""
        return 0 if self.self_transitions else 1

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
        rules = {name: getattr(self, name) for name in fields_of(self.profile, self.base).text_fields}
        if "profile" in rules:
            rules["profile"] = STORED_PROFILES.get(self.ruled_by, self.ruled_by)
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

    def weights(self, distances: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return what a pair of tokens adds by the rule of the profile, by their distance; float32."""
        place = distances + 1.0
        if self.proximity_exponent != 1:
            place = place**self.proximity_exponent
        return (1.0 / place).astype(np.float32) * np.float32(self.proximity_scale)

    def increments(self, factor: float = 1.0) -> npt.NDArray[np.int64]:
        """Fixed-point increment of a connection by the distance of its tokens.

        Parameters
        ----------
        factor : float
            What the increments are scaled by before they are limited and rounded.

        Returns
        -------
        ndarray
            Strength units, int64, shape ``(longest_sequence,)``; entry 0 is 0 without `self_transitions`. The real
            value is ``float32(float32(1 / (d + 1)) * proximity_scale)``, rounded to the nearest unit.
        """
        distances = np.arange(self.longest_sequence, dtype=np.int64)
        real = self.weights(distances)
        if self.base:
            real = np.asarray(find_model(self.profile, self.package).weights(distances, self), np.float32)
            valid = real.shape == distances.shape and bool(np.isfinite(real).all() and (real >= 0).all())
            _require(
                valid, "weights", real.tolist()[:9], "numbers of at least 0, one for each distance", "correct them"
            )
        scaled = (real * np.float32(factor)).astype(np.float64)
        if self.limit_scope == "pair":
            scaled = self._limited(scaled)
        units = np.rint(scaled * (1 << self.strength_bits)).astype(np.int64)
        units[: self.least_distance] = 0
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
        return {**fields_of(self.profile, self.base).stored(self), "profile": self._stored_profile}

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
        _require(isinstance(profile, str), "profile", profile, "a name")
        profile = named.get(profile, profile)
        # Without a package it would be a profile that the user names.
        package = {} if profile in BUILT_IN else {"package": str(fields.get("package") or module_of(profile))}
        return cls(**{"flags": HISTORY, **fields, **package, "profile": profile})
