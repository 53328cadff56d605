"""What happened: values that flow up to whoever subscribes, such as progress bars and histories.

Covers: the events of encoding, training, committing and evaluating. Lower layers emit them and
never call a face. Does not cover: showing them (`giaann_dask.cli`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class BlockEncoded:
    """A block of text has been divided into columns.

    Attributes
    ----------
    sequences : int
        Counted sequences of the block.
    characters : int
        Size of the text it came from; 0 when it came from a corpus.
    """

    sequences: int
    characters: int


@dataclass(frozen=True)
class RoundIntegrated:
    """All increments of a round are part of their regions.

    Attributes
    ----------
    sequences : int
        Counted sequences of the round.
    """

    sequences: int


@dataclass(frozen=True)
class Committed:
    """A commit has been written.

    Attributes
    ----------
    commit : str
        Its identity.
    sequences : int
        Sequences that the network holds as of it.
    seconds : float
        Time it took.
    """

    commit: str
    sequences: int
    seconds: float


@dataclass(frozen=True)
class SequencesEvaluated:
    """Predictions have been made for some sequences.

    Attributes
    ----------
    sequences : int
        How many more.
    matches, steps : int
        Matches and prediction steps among them.
    """

    sequences: int
    matches: int
    steps: int


Event = BlockEncoded | RoundIntegrated | Committed | SequencesEvaluated
Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Observe nothing."""
