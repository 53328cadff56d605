"""Draw sequences of a bundle at random, count their offered text again, and compare exactly.

A bundle has the sums of groups of sequences, and only a whole sum can be compared exactly, so that the groups of the
drawn sequences are counted again. Where a share f of the sequences is in groups that are not what their text gives, N
drawn sequences show it with a probability of at least 1 - (1 - f) ** N, as they are drawn without replacement and by
the owner, after the bundle was signed. One false sequence makes its group false, so f is no less than the share of
false sequences. A part of text without sequences would never be drawn, and nothing but its text shows whether its
identity is its own: groups with such parts are always counted again, and refused without an audit.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from distributed import Client, Future

from giaann_dask.cluster import result, send, task_key
from giaann_dask.encoding.sources import SourceOptions, read_units
from giaann_dask.errors import BundleError, GiaannError, OptionError, require_option
from giaann_dask.islands.bundle import Bundle
from giaann_dask.islands.definition import Island
from giaann_dask.islands.packing import CountedGroup, count_block_apart
from giaann_dask.runs.packing import PackedRegionRun
from giaann_dask.text.ledger import identify
from giaann_dask.text.memory_inputs import Source
from giaann_dask.text.segmentation import encode_block
from giaann_dask.text.tagging import tag_block
from giaann_dask.text.tokens import Part
from giaann_dask.text.vocabulary import Vocabulary, summarise
from giaann_dask.training import tasks


@dataclass(frozen=True, kw_only=True, eq=False)
class AuditOptions:
    """Options of audits: the number of sequences that are drawn, and their text.

    Parameters
    ----------
    sequences : int
        Sequences of each bundle, drawn at random, whose groups are counted again; 0 for none.
    seed : int
        Seed of the draw, which whoever packed the bundle must not know before.
    inputs : sequence of str or MemoryInput
        Text of bundles that do not contain it.
    sources : SourceOptions
        How text is tagged, and inputs are read.

    Raises
    ------
    OptionError
        If the number of sequences is negative.
    """

    sequences: int
    seed: int
    inputs: Sequence[Source]
    sources: SourceOptions

    def __post_init__(self) -> None:
        require_option(self.sequences >= 0, "audit", self.sequences, "0 or more")


def draw_groups(sequences: Mapping[int, int], number: int, seed: int, bundle: str) -> list[int]:
    """Draw sequences, each as probable as any other, and return the groups that they are in, in ascending order.

    Parameters
    ----------
    sequences : mapping of int to int
        Number of sequences of each group.
    number : int
        How many are drawn, without replacement.
    seed : int
        Of the draw.
    bundle : str
        Identity of the bundle, for another draw in each.

    Examples
    --------
    >>> draw_groups({0: 2, 3: 1}, 5, 1, "a"), len(draw_groups({0: 1000, 1: 1000}, 100, 1, "a"))
    ([0, 3], 2)
    """
    ends = np.cumsum(list(sequences.values()))
    total = int(ends[-1]) if len(ends) else 0
    drawn = random.Random(f"{seed} {bundle}").sample(range(total), min(number, total))
    groups = np.array(list(sequences), np.int64)
    found: list[int] = np.unique(groups[np.searchsorted(ends, drawn, "right")]).tolist()
    return found


def audit_bundle(
    client: Client, bundle: Bundle, island: Island, groups: Sequence[int], options: AuditOptions
) -> list[int]:
    """Count the groups of some sequences of a bundle again, and return which.

    Parameters
    ----------
    client : Client
        Where they are counted.
    bundle : Bundle
        Its increments have been checked.
    island : Island
        What its base is.
    groups : sequence of int
        Groups that are to be merged, of whose sequences some are drawn.
    options : AuditOptions
        How many.

    Raises
    ------
    OptionError
        If the text of a drawn group is not offered, or was tagged otherwise.
    BundleError
        If a group is not what its text gives, or only an audit can show what it is.
    """
    sequences = {number: bundle.groups[number].counts.sequences for number in groups}
    empty = {number for number in groups if bundle.groups[number].empty_parts}
    if empty and not options.sequences:
        raise BundleError(
            f"{bundle.path} has {sum(bundle.groups[number].empty_parts for number in empty):,} parts of text without "
            "sequences, which can only be verified by their text",
            "parts with sequences, or a check of their text",
            "set audit to 1 or more, or ask for a bundle of this version, which leaves them out",
            names=("audit",),
        )
    drawn = sorted(empty.union(draw_groups(sequences, options.sequences, options.seed, bundle.identity)))
    if not drawn:
        return drawn
    if bundle.tagger != options.sources.tagger:
        raise OptionError(
            f"the text of {bundle.path} was tagged by {bundle.tagger!r}",
            f"{options.sources.tagger!r}, which the audit uses",
            "set tagger to it where you trust it",
            names=("tagger",),
        )
    wanted = {entry.identity for number in drawn if not bundle.has_text(number) for entry in bundle.groups[number][0]}
    given = _parts_of(options, wanted) if wanted else {}
    names = island.vocabulary(bundle.concepts, bundle.features)
    how = [send(client, task_key("how", each), each) for each in (options.sources, names)]
    # Text is small beside increments: a few groups at a time, as the increments are sent to be compared.
    for number in drawn:
        parts = bundle.text(number) if bundle.has_text(number) else _given(bundle, number, given)
        _compare(client, bundle, number, parts, how)
    return drawn


def _parts_of(options: AuditOptions, wanted: set[bytes]) -> Mapping[bytes, Part]:
    """Return parts of the given text by identity."""
    found: dict[bytes, Part] = {}
    for unit in read_units(options.inputs, options.sources) if options.inputs else ():
        if unit.identity in wanted and isinstance(unit.content, Part):
            found[unit.identity] = unit.content
    return found


def _given(bundle: Bundle, number: int, given: Mapping[bytes, Part]) -> Sequence[Part]:
    """Return the text of a group out of given parts."""
    entries = bundle.groups[number].entries
    missing = sum(entry.identity not in given for entry in entries)
    if missing:
        raise OptionError(
            f"{missing:,} of {len(entries):,} parts of group {number} of {bundle.path} have no text",
            "the text of every group that is drawn",
            "name it with texts, or ask for a bundle that was packed with its text",
            names=("texts",),
        )
    return [given[entry.identity] for entry in entries]


def _compare(client: Client, bundle: Bundle, number: int, parts: Sequence[Part], how: Sequence[Future]) -> None:
    """Count a group again and compare it with the bundle's."""
    group, what = bundle.groups[number], f"group {number} of {bundle.path}"
    identities = [identify(part, bundle.tagger) for part in parts]
    if identities != [entry.identity for entry in group.entries]:
        raise BundleError(f"{what} contains other text than its ledger lists", "the text of its ledger")
    key = task_key("count again", bundle.identity, number, *(each.key for each in how))
    counting = client.submit(count_again, tuple(parts), *how, key=key)
    try:
        counted: tuple[CountedGroup, tuple[int, ...]] = result(counting)
    except BundleError as error:
        raise BundleError(f"{what} is of {error.received}", error.expected) from error
    except (GiaannError, ValueError, TypeError) as error:
        raise BundleError(f"the text of {what} cannot be counted ({error})", "text as train reads it") from error
    again, sequences = counted
    same = sequences == tuple(entry.sequences for entry in group.entries) and again.counts == group.counts
    if not same or not equal_runs(again.run, bundle.run(number)):
        raise BundleError(
            f"{what} differs from the counts of its text", "increments that counting the text again gives"
        )


def count_again(
    parts: Sequence[Part], sources: SourceOptions, names: Vocabulary
) -> tuple[CountedGroup, tuple[int, ...]]:
    """Count parts of text as packing a bundle does, and return the sequences of each part, too (a task).

    Parameters
    ----------
    parts : sequence of Part
        The text.
    sources : SourceOptions
        How it is tagged and filtered, and the specification of the network.
    names : Vocabulary
        Dictionaries of the bundle.

    Raises
    ------
    BundleError
        If the text has names that the dictionaries lack.
    """
    block = tag_block(parts, (0,) * len(parts), sources.tagger, sources.ever_pos, sources.filter)
    vocabulary = names.copy()
    mapping = vocabulary.extend(summarise(block))
    if len(vocabulary.concepts) > len(names.concepts):
        raise BundleError("text with columns that it does not name", "names of all columns")
    if len(vocabulary.features) > len(names.features):
        raise BundleError("text with words that it does not name", "names of all words")
    encoded = encode_block(block, mapping, sources.specification)
    return count_block_apart(encoded, sources.specification), block.part_sequences


def equal_runs(one: PackedRegionRun, other: PackedRegionRun) -> bool:
    """Return whether two packed runs hold the same connections and strengths, however they are compressed."""
    for first, second in zip(tasks.decode(one)[:2], tasks.decode(other)[:2], strict=True):
        for name in ("source", "pointer", "target", "strength"):
            if not np.array_equal(getattr(first, name), getattr(second, name)):
                return False
    return True
