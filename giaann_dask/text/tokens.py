"""Define the value types of the text layer: parts of the input and tagged sentences."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

PartKind = Literal["text", "conllu"]


class TaggedSentence(NamedTuple):
    """Tokens of one sentence with the four fields of CoNLL-U that the model uses.

    Attributes
    ----------
    forms, lemmas, upos, xpos : sequence of str
        One entry per syntactic word, in order, all of the same length.
    """

    forms: Sequence[str]
    lemmas: Sequence[str]
    upos: Sequence[str]
    xpos: Sequence[str]


class SpacedSentence(NamedTuple):
    """Tokens of one sentence with their fields and the spaces between them, which determine its text.

    Attributes
    ----------
    forms, lemmas, upos, xpos : sequence of str
        See `TaggedSentence`.
    spaces : sequence of bool
        Whether white space follows each word; always True for the last one.
    """

    forms: Sequence[str]
    lemmas: Sequence[str]
    upos: Sequence[str]
    xpos: Sequence[str]
    spaces: Sequence[bool]


Sentence: TypeAlias = TaggedSentence | SpacedSentence


@dataclass(frozen=True, slots=True)
class Part:
    """Piece of one input file or dataset, the unit of the ledger.

    Attributes
    ----------
    source : str
        Path or dataset name, for error messages.
    kind : {"text", "conllu"}
        Whether passages are running text (a paragraph or a record each) or CoNLL-U lines.
    passages : tuple of str
        Whole paragraphs, records, or groups of whole CoNLL-U sentences.
    documents : tuple of int
        Number of the document that each passage belongs to, counted from 0 over the whole
        input; same length as `passages`.
    """

    source: str
    kind: PartKind
    passages: tuple[str, ...]
    documents: tuple[int, ...]

    @property
    def characters(self) -> int:
        """Number of characters of all passages."""
        return sum(map(len, self.passages))

    def fingerprint(self) -> bytes:
        """Return 16 bytes that identify the content, independent of its source.

        Examples
        --------
        >>> a = Part("a.txt", "text", ("One.",), (0,))
        >>> b = Part("b.txt", "text", ("One.",), (7,))
        >>> a.fingerprint() == b.fingerprint()
        True
        """
        digest = hashlib.blake2b(self.kind.encode(), digest_size=16)
        for passage in self.passages:
            digest.update(len(passage).to_bytes(8, "little"))
            digest.update(passage.encode("utf-8"))
        return digest.digest()
