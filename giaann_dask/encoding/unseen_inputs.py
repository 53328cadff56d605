"""Find inputs with text that is not in a network's ledger, without training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from giaann_dask.encoding.sources import CORPUS_CHARACTERS, SourceOptions, read_units
from giaann_dask.errors import EmptyInputError, InputEncodingError, InputFormatError
from giaann_dask.store.corpus import EncodedCorpus, is_corpus
from giaann_dask.text.ledger import LedgerEntry
from giaann_dask.text.memory_inputs import Source


@dataclass(frozen=True)
class UnseenInput:
    """Size of an input and of its text that is not in the ledger.

    Attributes
    ----------
    name : str
        Name of the input.
    characters, new_characters : int
        Size of its text, and of its new parts; estimates for an encoded corpus.
    problem : str
        Reason why it cannot be read; empty if it can.
    """

    name: str
    characters: int
    new_characters: int
    problem: str = ""


def find_unseen_inputs(
    inputs: Sequence[Source], sources: SourceOptions, ledger: Iterable[LedgerEntry]
) -> list[UnseenInput]:
    """Return the new text of each input: parts that are neither in a ledger nor in a preceding input.

    Unlike in training, repeated parts are counted once. A part that is incomplete in the ledger is new.

    Parameters
    ----------
    inputs : sequence of str or MemoryInput
        Files, datasets or encoded corpora; each is read completely.
    sources : SourceOptions
        Options of reading; the same text read with others is new.
    ledger : iterable of LedgerEntry
        Entries of the known parts.

    Returns
    -------
    list of UnseenInput
        One per input, in order. Parts of an input that cannot be read do not count as known.
    """
    known = {entry.identity for entry in ledger if entry.complete}
    found = []
    for name in inputs:
        sizes: dict[bytes, int] = {}
        characters = 0
        try:
            for identity, size in _parts(name, sources):
                characters += size
                sizes[identity] = size
        except EmptyInputError:
            # Training skips empty files, too.
            pass
        except (InputFormatError, InputEncodingError) as error:
            found.append(UnseenInput(str(name), characters, 0, str(error)))
            continue
        found.append(UnseenInput(str(name), characters, sum(size for each, size in sizes.items() if each not in known)))
        known.update(sizes)
    return found


def _parts(name: Source, sources: SourceOptions) -> Iterator[tuple[bytes, int]]:
    """Yield identity and size of the parts of an input; training checks whether a corpus fits the network."""
    if is_corpus(name):
        yield from ((entry.identity, CORPUS_CHARACTERS * entry.sequences) for entry in EncodedCorpus(name).ledger())
        return
    for unit in read_units([name], sources):
        yield unit.identity, unit.weight
