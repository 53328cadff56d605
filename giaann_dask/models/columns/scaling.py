"""Scale increments by the part of speech of the source token, and reject modes that depend on the order of the text.

What a pair adds depends on its distance and the class of its source token alone, where a class is a distinct factor;
so scaled strengths are still sums. The class is stored above the distance in a pair's key, so that both together are
the index of one table. Without factors there is one class, which takes no bits.
`giaann_dask.spec.Specification.strengths` limits strengths.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from giaann_dask.errors import SpecificationError
from giaann_dask.keys import Integers
from giaann_dask.spec import PARTS_OF_SPEECH, Specification
from giaann_dask.text.blocks import CANDIDATE, POS_SHIFT
from giaann_dask.text.segmentation import EncodedBlock

# The factors of the published implementation, which has them off by default.
PUBLISHED_FACTORS = {
    **dict.fromkeys(("NOUN", "PROPN", "VERB"), 10.0),
    **dict.fromkeys(("ADP",), 5.0),
    **dict.fromkeys(("ADJ", "ADV"), 3.0),
    **dict.fromkeys(("AUX", "PRON"), 2.0),
}


def distance_bits(specification: Specification) -> int:
    """Return the width of a distance in a pair's key."""
    return (specification.longest_sequence - 1).bit_length()


def class_bits(specification: Specification) -> int:
    """Return the width of a source token's class in a pair's key; 0 without factors."""
    return (len(_classes(specification)) - 1).bit_length()


def _classes(specification: Specification) -> tuple[float, ...]:
    """Return the distinct factors; class 0 is the factor 1, also that of pairs which are not scaled."""
    return (1.0, *sorted(set(dict(specification.pos_factors).values())))


def increment_table(specification: Specification) -> Integers:
    """Return the increment of a pair by class and distance.

    Returns
    -------
    ndarray of int64
        Strength units; entry ``class << distance_bits | distance``. Without factors the plain
        increments by distance, shape ``(longest_sequence,)``.

    Examples
    --------
    >>> table = increment_table(Specification(strength_bits=4, pos_factors={"VERB": 3}))
    >>> table[[1, 4, 128 + 1, 128 + 4]].tolist()
    [80, 32, 240, 96]
    """
    if not specification.pos_factors:
        return specification.increments()
    classes = _classes(specification)
    table = np.zeros((len(classes), 1 << distance_bits(specification)), np.int64)
    for row, factor in zip(table, classes, strict=True):
        row[: specification.longest_sequence] = specification.increments(factor)
    return table.reshape(-1)


def feature_reach(specification: Specification) -> tuple[int, int]:
    """Return the number of segments after the column segments and the largest distance that they take."""
    reach = specification.reach
    return reach, specification.longest_sequence if specification.feature_catch_all else reach


def token_classes(blocks: Sequence[EncodedBlock], specification: Specification) -> Integers:
    """Return the class of every trained token of some blocks, in their order.

    Parameters
    ----------
    blocks : sequence of EncodedBlock
        Encoded with `giaann_dask.text.blocks.FilterOptions.parts_of_speech`; a token whose part of
        speech is not known has class 0.
    specification : Specification
        Its factors.
    """
    classes, factors = _classes(specification), dict(specification.pos_factors)
    of_code = np.array([0, *(classes.index(factors.get(name, 1.0)) for name in PARTS_OF_SPEECH)], np.int64)
    found = [np.zeros(0, np.int64)]
    for block in blocks:
        trained = np.repeat(block.status == CANDIDATE, np.diff(block.offsets))
        found.append(of_code[block.flags[trained] >> POS_SHIFT])
    return np.concatenate(found)


def require_sums(specification: Specification) -> None:
    """Raise a `SpecificationError` when a network cannot be trained by adding up.

    Everything that is trained here is a sum of integers, which is the same however sequences are
    divided among batches, rounds and workers. The permanence of a connection is none. It starts with
    the first pair that the connection joins, gains ``permanence_growth`` with every further one, and
    loses ``permanence_decay`` with every sequence that holds the columns of both its ends and does
    not train it; at 0 the connection is forgotten, strength and all. So what a sequence takes away
    depends on what earlier ones left: with 1 for both, the events growth, decay, decay end at 0, and
    decay, decay, growth at 1. Without that floor, and with decays counted from the beginning of the
    text instead of the connection's first pair, it would be a sum, as growth alone is; but a sum of
    further numbers for which runs have no place: the pairs and sequences that train each connection,
    and the sequences that hold each pair of columns. It would change no strength and no prediction.

    An exact evaluation in parallel is possible in principle, because the events of a stretch of text
    act on a permanence p as ``max(p + a, b)``, and such functions compose into one of the same form:
    adding up runs would become composing them, which is associative. It is not commutative, though,
    so every sequence would have to be integrated in the order of the text, where today a round's
    sequences are dealt to batches freely and runs are merged in any order; and a run would have to hold
    for each connection a, b, the lowest point in between, the strength of the whole stretch and that
    since the last time it was forgotten, and for each pair of columns the number of sequences that hold
    both, since these act on connections which the stretch does not train.

    Raises
    ------
    SpecificationError
        If the specification asks for permanence.
    """
    asked = {name: getattr(specification, name) for name in ("permanence_growth", "permanence_decay")}
    if any(asked.values()):
        raise SpecificationError(
            f"{' and '.join(f'{name} {value}' for name, value in asked.items())}: what a sequence takes "
            "away from a permanence depends on the sequences before it",
            "0 for both: training adds up sequences in parallel, in any order",
            "leave both out; strength_limit and pos_factors are sums and can be trained",
        )
