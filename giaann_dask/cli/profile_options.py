"""The options that say by which rules text becomes a network: the profile, and each of its rules.

Covers: declaring them and reading them from a command's values. Does not cover: modes that limit or
scale strengths, and how training is spread (`training_options`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from giaann_dask.spec_profiles import CONTEXT_NAMES

if TYPE_CHECKING:
    from giaann_dask.spec import Specification

Command = TypeVar("Command", bound=Callable[..., Any])

# Options that are fields of `Specification` under the same name.
_FIELDS = (
    *("profile", "seed_tokens", "maximum_tokens", "branches", "proximity_scale", "proximity_exponent"),
    *("sentences_per_sequence", "lif", "crop", "merge_dashes", "invented_boundaries"),
    *("column_catch_all", "feature_catch_all", "branch_order", "branch_tree", "own_strengths"),
    *("maximum_subwords", "maximum_bytes", "column_names"),
)

_OPTIONS = (
    click.option(
        "--profile",
        type=click.Choice(["v1", "v2", "best"]),
        help="Rules of a new network; the options below are of new networks, too, and mostly of v2.  [default: v1]",
    ),
    click.option(
        "--tokenizer",
        metavar="FILE|learn:SIZE|tiktoken:NAME|none",
        help="Divide text into subwords by a tokenizer's file, one learnt from the text, or an encoding of "
        "tiktoken; none takes words.  [default: none]",
    ),
    click.option("--seed-tokens", type=int, help="Tokens given before prediction starts.  [default: 8]"),
    click.option(
        "--maximum-tokens", type=int, metavar="N", help="Longest sequence in words before merging.  [default: 80]"
    ),
    click.option(
        "--sentences-per-sequence", type=int, metavar="N", help="Sentences of a sequence.  [default: 1; v2: 3]"
    ),
    click.option(
        "--crop/--no-crop", default=None, help="Crop longer sequences or leave them out.  [default: v2: crop]"
    ),
    click.option(
        "--merge-dashes/--no-merge-dashes", default=None, help="Let an en dash join nouns.  [default: v2: merge]"
    ),
    click.option(
        "--invented-boundaries/--no-invented-boundaries",
        default=None,
        help="Divide columns also where nothing delimits them.  [default: v2: invented]",
    ),
    click.option("--lif/--no-lif", default=None, help="Leaky integrate-and-fire.  [default: v2: lif]"),
    click.option("--branches", type=int, help="Dendritic branches of a neuron.  [default: 2; with lif: 1]"),
    click.option(
        "--branch-order",
        type=click.Choice(["occurrence", "random"]),
        help="Tokens of one neuron take branches in turn or by a hash.  [default: occurrence]",
    ),
    click.option("--branch-tree/--no-branch-tree", default=None, help="Let branches join two by two towards the soma."),
    click.option("--column-segments", type=int, metavar="N", help="0 leaves them out.  [default: v2: 4]"),
    click.option("--feature-segments", type=int, metavar="N", help="0 leaves them out.  [default: v2: 4]"),
    click.option(
        "--column-catch-all/--no-column-catch-all",
        default=None,
        help="Whether the first column segment takes all that is farther away.  [default: v2: no]",
    ),
    click.option(
        "--feature-catch-all/--no-feature-catch-all",
        default=None,
        help="Whether the first feature segment takes all that is farther away.  [default: v2: no]",
    ),
    click.option("--proximity-scale", type=float, help="Strength gained at distance 0.  [default: 10]"),
    click.option("--proximity-exponent", type=float, help="How fast it falls with the distance.  [default: 1]"),
    click.option(
        "--maximum-subwords", type=int, metavar="N", help="Crop sequences to so many subwords.  [default: 160]"
    ),
    click.option(
        "--maximum-bytes", type=int, metavar="N", help="Leave out sequences of subwords with more.  [default: 2560]"
    ),
    click.option(
        "--column-names",
        type=click.Choice(["first", "span", "lemma"]),
        help="Name columns of subwords by the first of a run of nouns, its text or its lemmas.  [default: first]",
    ),
    click.option(
        "--contexts",
        metavar="NAME,...|all",
        help="Profile best: kinds of contexts that words are counted after.  [default: those that it weighs]",
    ),
    click.option(
        "--own-strengths",
        type=click.Choice(["segments", "tokens"]),
        help="What a neuron's own strength counts.  [default: segments; v2: tokens]",
    ),
)


def profile_options(command: Command) -> Command:
    """Add ``--profile`` and the options that are its rules."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_profile(values: dict[str, Any], stored: Specification | None = None) -> dict[str, Any]:
    """Return the fields of a specification that the options set; None where left open.

    Parameters
    ----------
    values : dict of str to Any
        The command's values.
    stored : Specification, optional
        That of the network, which says what is left open.
    """
    fields = {name: values[name] for name in _FIELDS}
    tokenizer = values["tokenizer"]
    fields["tokens"] = None if tokenizer is None else "words" if tokenizer == "none" else "subwords"
    if values["contexts"] is not None:
        fields["contexts"] = CONTEXT_NAMES if values["contexts"] == "all" else tuple(values["contexts"].split(","))
    counts = values["column_segments"], values["feature_segments"]
    if counts != (None, None):
        columns, features = (stored.segment_counts if stored is not None else None) or (4, 4)
        given = columns if counts[0] is None else counts[0], features if counts[1] is None else counts[1]
        fields["segment_counts"] = given
    return fields
