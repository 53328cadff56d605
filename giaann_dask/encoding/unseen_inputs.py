"""Which inputs hold text that a network does not hold yet.

Covers: comparing what inputs contain with a ledger, input by input, in this process. Does not cover:
training on what is new, which leaves known parts out by itself (`stream`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from giaann_dask.encoding.sources import CORPUS_CHARACTERS, SourceOptions, read_units
from giaann_dask.errors import EmptyInputError, InputEncodingError, InputFormatError
from giaann_dask.text.corpus import EncodedCorpus, is_corpus
from giaann_dask.text.ledger import LedgerEntry


@dataclass(frozen=True)
class UnseenInputs:
    """What an input holds that is not known.

    Attributes
    ----------
    name : str
        The input.
    characters, new_characters : int
        Size of its text, and of the parts that are not known; of an encoded corpus an estimate.
    problem : str
        Why it cannot be read; empty where it can.
    """

    name: str
    characters: int
    new_characters: int
    problem: str = ""


def find_unseen_inputs(
    inputs: Sequence[str], sources: SourceOptions, ledger: Iterable[LedgerEntry]
) -> list[UnseenInputs]:
    """Return what each input holds that neither a ledger nor an input before it does.

    Other than in training, a copy of a text is never new, however often it occurs. A part that the ledger
    has begun and not completed is.

    Parameters
    ----------
    inputs : sequence of str
        Files, datasets or encoded corpora; each is read as a whole.
    sources : SourceOptions
        How they are read; the same text read in another way is new.
    ledger : iterable of LedgerEntry
        What is known.

    Returns
    -------
    list of UnseenInputs
        One for each input, in order. An input that cannot be read makes nothing known.
    """
    known = {entry.identity for entry in ledger if entry.complete}
    news = []
    for name in inputs:
        sizes: dict[bytes, int] = {}
        characters = 0
        try:
            for identity, size in _parts(name, sources):
                characters += size
                sizes[identity] = size
        except EmptyInputError:
            # Training leaves it out, too.
            pass
        except (InputFormatError, InputEncodingError) as error:
            news.append(UnseenInputs(name, characters, 0, str(error)))
            continue
        news.append(UnseenInputs(name, characters, sum(size for each, size in sizes.items() if each not in known)))
        known.update(sizes)
    return news


def _parts(name: str, sources: SourceOptions) -> Iterator[tuple[bytes, int]]:
    """Yield identity and size of the parts of an input; whether a corpus fits the network is seen in training."""
    if is_corpus(name):
        yield from ((entry.identity, CORPUS_CHARACTERS * entry.sequences) for entry in EncodedCorpus(name).ledger())
        return
    for unit in read_units([name], sources):
        yield unit.identity, unit.weight
