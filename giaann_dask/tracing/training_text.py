"""Find the text of training sequences again: in the original files, in an encoded corpus, or in text that is given.

Text is found by its content: a part of a file counts only where it has the identity that the ledger recorded, so that
a changed file is never shown as what was trained.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.encoding.sources import (
    CorpusRange,
    SourceOptions,
    Unit,
    is_rereadable,
    open_corpus,
    read_units,
    reading_of,
)
from giaann_dask.errors import GiaannError
from giaann_dask.keys import Integers
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.detokenizer import detokenize
from giaann_dask.text.memory_inputs import MemoryInput, Source
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.subword_blocks import join_words
from giaann_dask.text.tagging import make_builder, tag_part
from giaann_dask.text.tokens import Part, TaggedText, TaggedWord

# Parts of text, of up to 262,144 characters, whose sentences are kept: a megabyte or two each.
_KEPT_PARTS = 64
# Characters of parts that were passed in search of another one, for each input.
_KEPT_CHARACTERS = 1 << 26


class FoundText(NamedTuple):
    """A training sequence in its text.

    Attributes
    ----------
    place : str
        File, URL, corpus or description of the input that it was read from.
    document : int or None
        Number of its document in the place, counted from 1; None where the text is gone.
    sentence : int or None
        Number of its first sentence in the document, counted from 1; None in a file that is read in several parts.
    offset : int or None
        Characters of the document before it, lines of a paragraph joined by a space and paragraphs by a newline; None
        where that is not known, as in an encoded corpus.
    text : str or None
        Its words; None where the text is gone.
    missing : str
        Why there is no text, else empty.
    part : str
        Identity of its part of text in the ledger, 32 hexadecimal digits, by which ``forget`` finds it.
    """

    place: str
    document: int | None = None
    sentence: int | None = None
    offset: int | None = None
    text: str | None = None
    missing: str = ""
    part: str = ""


class TrainingText:
    """The text that a network was trained on, as far as it is still there.

    Parameters
    ----------
    reader : CommitReader
        A commit of a network with an index.
    texts : sequence of str or MemoryInput
        Files, corpora or texts to look in before the places that text was read from.
    """

    def __init__(self, reader: CommitReader, texts: Sequence[Source] = ()) -> None:
        origins = reader.origins()
        assert origins is not None, "a network with an index has origins"
        self._origins, self._texts = origins, list(texts)
        self._specification = reader.manifest().specification
        self._lexicon = reader.tokenizer() or reader.ever_pos()
        self._ledger = [entry.identity for entry in reader.ledger()]
        self._catalogues: dict[tuple[int | str, str], _Catalogue] = {}
        self._parts: OrderedDict[int, _Sentences | _CorpusSentences | str] = OrderedDict()

    def find(self, sequence: int) -> FoundText:
        """Return a sequence, by its number in the network, in its text."""
        part, number = self._origins.find(sequence)
        place = json.loads(self._origins.place(part) or "{}")
        name = place.get("corpus", place.get("name", ""))
        found = self._sentences(part, place, name)
        text = FoundText(name, missing=found) if isinstance(found, str) else found.find(number)
        return text._replace(part=self._ledger[part].hex())

    def _sentences(self, part: int, place: dict[str, Any], name: str) -> _Sentences | _CorpusSentences | str:
        """Return the sentences of a part of the ledger, or why they are gone."""
        found = self._parts.get(part)
        if found is None:
            found = self._parts[part] = self._search(part, place, name)
            while len(self._parts) > _KEPT_PARTS:
                self._parts.popitem(last=False)
        else:
            self._parts.move_to_end(part)
        return found

    def _search(self, part: int, place: dict[str, Any], name: str) -> _Sentences | _CorpusSentences | str:
        problem = ""
        own = [name] if is_rereadable(name) else []
        for number, text in enumerate([*self._texts, *own]):
            catalogue = self._catalogue(number if isinstance(text, MemoryInput) else text, text, place)
            try:
                if (found := catalogue.find(self._ledger[part])) is not None:
                    return found
            except GiaannError as error:
                if number < len(self._texts):
                    # What is named has to be there.
                    raise
                problem = str(error)
        if self._texts:
            return f"neither {', '.join(map(str, self._texts))} nor {name or 'an unknown place'} holds this text"
        given = "name a copy of it"
        if not own:
            return f"the text was read from {name or 'an unknown place'}, which cannot be read again; {given}"
        if problem:
            return f"{name} cannot be read any more ({problem}); {given}"
        return f"{name} does not hold this text any more; {given}"

    def _catalogue(self, key: int | str, text: Source, place: dict[str, Any]) -> _Catalogue:
        tagger = place.get("tagger", "lexicon")
        options = reading_of(place)
        identity = (key, json.dumps([tagger, options], sort_keys=True))
        found = self._catalogues.get(identity)
        if found is None:
            sources = SourceOptions.of(
                self._specification, tagger=tagger, lexicon=self._lexicon, reading=ReadOptions(**options)
            )
            found = self._catalogues[identity] = _Catalogue(text, sources)
        return found


class _Catalogue:
    """Parts of one input by identity, which is read only as far as needed.

    Parameters
    ----------
    source : str or MemoryInput
        The input.
    options : SourceOptions
        How it is read.
    """

    def __init__(self, source: Source, options: SourceOptions) -> None:
        self._source, self._options = source, options
        self._units: Iterator[_Placed] | None = None
        self._passed: set[bytes] = set()
        self._kept: OrderedDict[bytes, _Placed] = OrderedDict()
        self._kept_characters = 0

    def find(self, identity: bytes) -> _Sentences | _CorpusSentences | None:
        """Return the sentences of a part; None where the input does not hold it.

        Raises
        ------
        GiaannError
            If the input cannot be read.
        """
        if (kept := self._kept.get(identity)) is not None:
            return self._sentences(kept)
        if self._units is None or identity in self._passed:
            # From the beginning again, for a part that was passed.
            self._units, self._passed = self._placed(), set()
        try:
            for placed in self._units:
                self._keep(placed)
                if placed.unit.identity == identity:
                    return self._sentences(placed)
        except GiaannError:
            # The next part has the same reason.
            self._units = None
            raise
        return None

    def _keep(self, placed: _Placed) -> None:
        """Keep a part of the input, which costs less than reading the input again."""
        self._passed.add(placed.unit.identity)
        if placed.unit.identity not in self._kept:
            self._kept[placed.unit.identity] = placed
            self._kept_characters += placed.unit.weight
        while self._kept_characters > _KEPT_CHARACTERS:
            self._kept_characters -= self._kept.popitem(last=False)[1].unit.weight

    def _placed(self) -> Iterator[_Placed]:
        """Yield the parts with the characters of their first document before them."""
        file, first, document, before = "", 0, -1, 0
        for unit in read_units([self._source], self._options):
            if isinstance(unit.content, CorpusRange):
                yield _Placed(unit, 0, 0)
                continue
            documents = unit.content.documents
            if unit.content.source != file:
                file, first = unit.content.source, documents[0]
            if documents[0] != document:
                before = 0
            yield _Placed(unit, before, first)
            for passage, number in zip(unit.content.passages, documents, strict=True):
                before = (before if number == document else 0) + len(passage) + 1
                document = number

    def _sentences(self, placed: _Placed) -> _Sentences | _CorpusSentences:
        name, content = str(self._source), placed.unit.content
        if isinstance(content, CorpusRange):
            return _CorpusSentences(content)
        return _Sentences(name if isinstance(self._source, MemoryInput) else content.source, placed, self._options)


class _Placed(NamedTuple):
    """Part of an input, the characters of its first document in earlier parts, and the first document of its file."""

    unit: Unit
    before: int
    first: int


class _Sentences:
    """Counted sequences of a part of text."""

    def __init__(self, name: str, placed: _Placed, options: SourceOptions) -> None:
        assert isinstance(placed.unit.content, Part)
        self._name, self._part, self._before = name, placed.unit.content, placed.before
        self._first = placed.first
        self._text: TaggedText = tag_part(self._part, None)
        builder = make_builder(options.tokenizer or options.ever_pos, options.filter)
        self._begin, self._end, self._document, self._number = builder.counted(self._text)

    def find(self, number: int) -> FoundText:
        """Return a sequence by its number in the part."""
        begin, end = int(self._begin[number]), int(self._end[number])
        document = int(self._document[number])
        whole = self._before == 0 or document != self._part.documents[0]
        return FoundText(
            self._name,
            document - self._first + 1,
            int(self._number[number]) + 1 if whole else None,
            self._offset(begin, document),
            join_words(self._text.between(begin, end)),
        )

    def _offset(self, token: int, document: int) -> int | None:
        """Return the characters of a document before a token."""
        if self._part.kind != "text" or self._character is None:
            return None
        first = self._part.documents.index(document)
        begin = sum(len(passage) + 1 for passage in self._part.passages[:first])
        return int(self._character[token]) - begin + (self._before if document == self._part.documents[0] else 0)

    @cached_property
    def _character(self) -> Integers | None:
        """Character of the joined passages at which each token begins; None where tokens are not their text."""
        codes = np.frombuffer("\n".join(self._part.passages).encode("utf-32-le"), np.uint32)
        blank = [code for code in np.unique(codes).tolist() if chr(code).isspace()]
        black: npt.NDArray[np.int64] = np.flatnonzero(~np.isin(codes, np.array(blank, np.uint32)))
        lengths = self._text.entries.results(_characters)[self._text.entry]
        if int(lengths.sum()) != len(black):
            return None
        begins: Integers = black[np.cumsum(lengths) - lengths]
        return begins


def _characters(word: TaggedWord) -> int:
    """Return the number of characters of a token without white space."""
    return len("".join(word.form.split()))


@dataclass(frozen=True)
class _CorpusSentences:
    """Counted sequences of a part of an encoded corpus."""

    range: CorpusRange

    def find(self, number: int) -> FoundText:
        """Return a sequence by its number in the part."""
        corpus = open_corpus(self.range)
        block = corpus.encoded(self.range.start + number, self.range.start + number + 1)
        features = corpus.strings("features")
        words = [
            (word := block.surfaces[surface] if surface >= 0 else features[feature], "" if feature else word)
            for surface, feature in zip(block.surface.tolist(), block.feature.tolist(), strict=True)
        ]
        text = detokenize(words, corpus.tokenizer() is not None).strip()
        return FoundText(self.range.path, int(block.document[0]) + 1, int(block.sentence[0]) + 1, None, text)
