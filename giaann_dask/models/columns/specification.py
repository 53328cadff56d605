"""Define the rules for the fields of specifications of concept columns: profiles ``v1`` and ``v2``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, get_args

from giaann_dask.registry import (
    BRANCH_ORDERS,
    COLUMN_NAMES,
    HISTORY,
    OWN_STRENGTHS,
    PLAIN,
    TOKENS,
    FieldRules,
    require,
    require_values,
)
from giaann_dask.spec import (
    MAXIMUM_SEGMENTS,
    MAXIMUM_TOKENS,
    PARTS_OF_SPEECH,
    LimitScope,
    PosScope,
    Specification,
    Squash,
)

# Stored only where they are in use, so that a network without them is what it was before they existed.
_MODES = (
    *("strength_limit", "strength_squash", "limit_scope"),
    *("pos_factors", "pos_scope", "permanence_growth", "permanence_decay"),
    *("flags", "trace", "self_transitions"),
)
# Fields of models of words.
_OTHERS = ("contexts", "package", "model_options", "base", "own_exports")
# Fields that came with profile v2: a network of profile v1 has them all as they are here, and is stored without them.
_LATER = tuple(name for name in PLAIN if name != "branches")
_SWITCHES = (
    *("lif", "crop", "merge_dashes", "invented_boundaries"),
    *("column_catch_all", "feature_catch_all", "branch_tree"),
)


class ColumnFields(FieldRules):
    """Rules that all profiles of concept columns have."""

    not_stored: tuple[str, ...] = _OTHERS

    def canonical_flags(self, specification: Specification) -> bool:
        """See `FieldRules.canonical_flags`."""
        return specification.tokens == "words" and specification.branch_order == "occurrence"

    def stored(self, specification: Specification) -> dict[str, Any]:
        """Return the fields of columns, of the modes those in use."""
        fields = {k: v for k, v in dataclasses.asdict(specification).items() if k not in self.not_stored}
        unused = {**{name: getattr(Specification, name) for name in _MODES}, "flags": HISTORY}
        return {k: v for k, v in fields.items() if k not in unused or v != unused[k]}

    def check(self, specification: Specification) -> dict[str, Any]:
        """See `FieldRules.check`."""
        _check_canonical(specification)
        given = specification.contexts
        require(not given, "contexts", given, "none in this profile", "choose profile contexts")
        return _modes(specification)


class V1Fields(ColumnFields):
    """Rules of profile ``v1``: one way to read text, and segments that follow from the seed tokens."""

    text_fields = ()
    not_stored = (*_LATER, *_OTHERS)

    def check(self, specification: Specification) -> dict[str, Any]:
        """See `FieldRules.check`."""
        require_values(specification, {name: PLAIN[name] for name in _LATER}, "choose profile v2")
        modes = super().check(specification)
        segments, seeds = specification.segments, specification.seed_tokens
        expected = f"a number that its {segments} segments fit into, and at most {MAXIMUM_SEGMENTS} of them (6 to 40)"
        require(segments <= min(seeds, MAXIMUM_SEGMENTS), "seed_tokens", seeds, expected)
        return modes


class V2Fields(ColumnFields):
    """Rules of profile ``v2``: segments and text as asked for, with leaky integrate-and-fire by default."""

    defaults = MappingProxyType(
        {
            **PLAIN,
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
    )

    def defaults_for(self, specification: Specification) -> Mapping[str, Any]:
        """Return the defaults, with one branch where prediction is leaky integrate-and-fire."""
        return {**self.defaults, "branches": 2 if specification.lif is False else 1}

    def check(self, specification: Specification) -> dict[str, Any]:
        """See `FieldRules.check`."""
        s = specification
        choices = {"tokens": TOKENS, "branch_order": BRANCH_ORDERS, "own_strengths": OWN_STRENGTHS}
        for name, values in (choices | {"column_names": COLUMN_NAMES}).items():
            value = getattr(s, name)
            require(value in values, name, value, " or ".join(values))
        for name in _SWITCHES:
            require(isinstance(getattr(s, name), bool), name, getattr(s, name), "True or False")
        sentences, exponent = s.sentences_per_sequence, s.proximity_exponent
        require(0 <= sentences <= 1000, "sentences_per_sequence", sentences, "1 to 1000, or 0 for windows")
        require(0 < exponent <= 8, "proximity_exponent", exponent, "0 to 8")
        _check_segments(s)
        random = s.branch_order == "random"
        require(not random or s.branches > 1, "branch_order", "random", "more than one branch to choose from")
        _check_tree(s)
        _check_subwords(s, self.defaults)
        modes = super().check(s)
        require(s.segments <= MAXIMUM_SEGMENTS, "segment_counts", s.segment_counts, f"{MAXIMUM_SEGMENTS} in all")
        return modes


V1, V2 = V1Fields(), V2Fields()


def _check_subwords(specification: Specification, defaults: Mapping[str, Any]) -> None:
    """Check the fields that have a meaning with subwords alone."""
    most, subwords = specification.maximum_subwords, specification.tokens == "subwords"
    expected = f"more than seed_tokens, at most {MAXIMUM_TOKENS}"
    require(specification.seed_tokens < most <= MAXIMUM_TOKENS, "maximum_subwords", most, expected)
    require(specification.maximum_bytes >= 1, "maximum_bytes", specification.maximum_bytes, "1 or more")
    for name in ("maximum_subwords", "maximum_bytes", "column_names"):
        value, remedy = getattr(specification, name), "give tokenizer, or leave it out"
        require(subwords or value == defaults[name], name, value, "subwords as tokens", remedy, "tokenizer")


def _check_segments(specification: Specification) -> None:
    """Check the numbers of segments and the contents of the first ones."""
    counts = specification.segment_counts
    valid = counts is not None and len(counts) == 2 and all(isinstance(n, int) and 0 <= n <= 32 for n in counts)
    require(valid, "segment_counts", counts, "a number of column segments and one of feature segments")
    columns, features = counts or (0, 0)
    require(columns + features > 0, "segment_counts", counts, "column segments, feature segments or both")
    for name, count, kind in (("column_catch_all", columns, "column"), ("feature_catch_all", features, "feature")):
        require(count > 0 or not getattr(specification, name), name, True, f"{kind} segments, of which one takes all")


def _check_tree(specification: Specification) -> None:
    """Check that branches can join two by two until one is left at the soma."""
    if not specification.branch_tree:
        return
    expected = "leaky integrate-and-fire, in which signals move from segment to segment"
    remedy = "leave branch_tree out, or take lif"
    require(specification.lif, "branch_tree", True, expected, remedy, "lif")
    moves, branches = specification.feature_segments, specification.branches
    whole = branches > 1 and branches & (branches - 1) == 0 and branches <= 1 << moves
    expected = f"2, 4, 8 or so for a tree, at most {1 << moves}, of which {moves} feature segments leave one"
    require(whole, "branches", branches, expected)


def _check_canonical(specification: Specification) -> None:
    """Check that with canonical flags nothing depends on the order of text."""
    if specification.flags == "canonical":
        expected = "words as tokens, and branches in the order of occurrence, with canonical flags"
        require(specification.tokens == "words", "tokens", specification.tokens, expected)
        order = specification.branch_order
        require(order == "occurrence", "branch_order", order, expected)


def _modes(specification: Specification) -> dict[str, Any]:
    """Return the modes that scale and limit strengths in their one form, after checking that they can be combined."""
    s = specification
    factors, limit, unit = _factors(s.pos_factors), s.strength_limit, 1 / (1 << s.strength_bits)
    require(limit is None or unit <= limit < 1e6, "strength_limit", limit, f"{unit} (a unit) to 1000000")
    choices = (
        ("strength_squash", get_args(Squash), "strength_limit", limit),
        ("limit_scope", get_args(LimitScope), "strength_limit", limit),
        ("pos_scope", get_args(PosScope), "pos_factors", factors),
    )
    for name, values, needed, given in choices:
        value = getattr(s, name)
        require(value in values, name, value, " or ".join(values))
        require(value == values[0] or bool(given), name, value, f"{needed} with it")
    for name in ("permanence_growth", "permanence_decay"):
        value = getattr(s, name)
        require(isinstance(value, int) and 0 <= value < 1 << 20, name, value, "a whole number from 0 to 1048575")
    if factors or s.limit_scope == "pair" or s.proximity_exponent != 1:
        # Profile v1 itself takes any scale; what a mode makes of it must still be a strength.
        for factor in (1.0, *dict(factors).values()):
            fits = s.proximity_scale * factor < 1e6 and int(s.increments(factor)[1:].min()) > 0
            expected = f"less than 1000000 and a unit or more for every pair, with the factor {factor} too"
            require(fits, "proximity_scale", s.proximity_scale, expected)
    return {"pos_factors": factors, "strength_limit": None if limit is None else float(limit)}


def _factors(given: Mapping[str, float] | Sequence[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """Return factors other than 1, each part of speech once, in the order of the names."""
    pairs = list(given.items()) if isinstance(given, Mapping) else [(name, factor) for name, factor in given]
    names = [name for name, _ in pairs]
    of = "of pos_factors"
    for name, factor in pairs:
        require(name in PARTS_OF_SPEECH, f"a part of speech {of}", name, f"one of {', '.join(PARTS_OF_SPEECH)}")
        require(names.count(name) == 1, f"a part of speech {of}", name, "each of them once")
        require(0 < factor < 1e6, f"the factor for {name} {of}", factor, "more than 0, less than 1000000")
    return tuple(sorted((name, float(factor)) for name, factor in pairs if factor != 1))
