"""Trace the connections behind predicted tokens to the training sequences that built them, with their text.

Of the index of a network, only the chunks are read that hold the postings of the neurons asked for; each model has the
rule by which these make a connection. The text of sequences is read again where they came from (`TrainingText`).
"""

from __future__ import annotations

import functools
import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

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
from giaann_dask.errors import GiaannError, OptionError
from giaann_dask.keys import Integers
from giaann_dask.models import model_of
from giaann_dask.models.results import ConnectionKey
from giaann_dask.representations import Summarised, Summary
from giaann_dask.runs.packed_rows import RowReader
from giaann_dask.runs.placement import SEQUENCE_MASK
from giaann_dask.runs.postings import Postings, PostingsPart, find_postings, join_postings, sequence_ranges
from giaann_dask.storage import reading
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.detokenizer import detokenize
from giaann_dask.text.memory_inputs import MemoryInput, Source
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.subword_blocks import join_words
from giaann_dask.text.tagging import make_builder, tag_part
from giaann_dask.text.tokens import Part, TaggedText, TaggedWord

if TYPE_CHECKING:
    import pandas as pd

# Bytes of postings that are kept; what is kept is dropped together.
_KEPT_BYTES = 1 << 26
# Targets of postings that are decoded at a time, about, and of the parts that a row of more is read in.
POSTINGS_TOGETHER, POSTINGS_PART = 1 << 20, 1 << 16
_NO_POSTINGS = Postings(*np.zeros((3, 0), np.int64))


@dataclass(frozen=True, slots=True)
class TracedSentence:
    """A training sequence that built a part of a connection.

    Attributes
    ----------
    sequence : int
        Its number in the network.
    place : str
        File, URL, corpus or description of the input that it was read from.
    document, sentence, offset : int or None
        Number of its document in that place and of its first sentence in the document, each from 1, and the
        characters of the document before it; None where that is not known (`giaann_dask.tracing`).
    text : str or None
        Its words; None where the text is gone.
    missing : str
        Why there is no text, else empty.
    part : str
        Identity of its part of text in the ledger, which `giaann_dask.forget` takes.
    units : int
        What it added, in strength units; of profile ``contexts`` how often the word follows the context in it.
    share : float
        The same as a share of the connection's whole strength.
    """

    sequence: int
    place: str
    document: int | None
    sentence: int | None
    offset: int | None
    text: str | None
    missing: str
    part: str
    units: int
    share: float

    def line(self) -> str:
        """Return the sequence, its place and its share as one line."""
        where = [self.place, *([f"document {self.document}"] if (self.document or 1) > 1 else [])]
        where += [] if self.offset is None else [f"character {self.offset:,}"]
        where += [] if self.sentence is None else [f"sentence {self.sentence:,}"]
        return f"{100 * self.share:.3g} %  {self.text or f'({self.missing})'}  ({', '.join(filter(None, where))})"


@dataclass(frozen=True, slots=True)
class TracedConnection:
    """A connection that raised a token, with the training sequences that built it.

    Attributes
    ----------
    source, column : str
        Its source neuron; of profile ``contexts`` its context, and an empty string.
    segment, branch : int
        Where it ends; of profile ``contexts`` the kind of context, and 0.
    contribution : float
        By how much it raised the token (`giaann_dask.models.results.Reason`).
    units : int
        Its stored strength, in strength units; of profile ``contexts`` a count.
    sequences : int
        How many sequences built it.
    sentences : tuple of TracedSentence
        Those with the largest shares, the largest first; all of them where as many were asked for.
    """

    source: str
    column: str
    segment: int
    branch: int
    contribution: float
    units: int
    sequences: int
    sentences: tuple[TracedSentence, ...]

    def line(self) -> str:
        """Return the connection as one line."""
        source = f"{self.source} [{self.column}] on segment {self.segment}" if self.column else self.source
        return f"{source}: {self.sequences:,} {'sentence' if self.sequences == 1 else 'sentences'}"


@dataclass(frozen=True, slots=True)
class TracedToken:
    """A predicted token with the connections that decided.

    Attributes
    ----------
    word, column : str
        The word, and the concept of its column.
    connections : tuple of TracedConnection
        Largest contribution first; what the prompt itself contributed, in profile ``contexts``, is left out.
    """

    word: str
    column: str
    connections: tuple[TracedConnection, ...]

    def lines(self) -> list[str]:
        """Return the token, its connections and their sentences for a person."""
        shown = [f"{self.word} [{self.column}]" if self.column else self.word]
        for connection in self.connections:
            shown.append(f"  from {connection.line()}")
            shown.extend(f"    {sentence.line()}" for sentence in connection.sentences)
        return shown


@dataclass(frozen=True, repr=False)
class Trace(Summarised):
    """The training sequences behind the tokens of a continuation.

    Attributes
    ----------
    tokens : tuple of TracedToken
        The tokens of the continuation.
    commit : str
        The commit that predicted.
    """

    tokens: tuple[TracedToken, ...]
    commit: str

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the trace as readable lines."""
        return [line for token in self.tokens for line in token.lines()]

    def summary(self) -> Summary:
        """Return the lines that represent the trace: for each token, connections and their largest sentence."""
        rows = []
        for token in self.tokens:
            found = [
                "\n".join([each.line(), *(f"  {sentence.line()}" for sentence in each.sentences[:1])])
                for each in token.connections
            ]
            rows.append((token.word, "\n".join(found) or "(no connection)"))
        return Summary("Trace", rows)

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with a row for each sentence of each connection of each token."""
        from giaann_dask.lazy import import_optional

        names = ("source", "column", "segment", "branch", "contribution")
        rows = [
            {
                "token": number,
                "word": token.word,
                **{name: getattr(connection, name) for name in names},
                "strength_units": connection.units,
                "sequences": connection.sequences,
                **asdict(sentence),
            }
            for number, token in enumerate(self.tokens)
            for connection in token.connections
            for sentence in connection.sentences
        ]
        return import_optional("pandas", "dataframe").DataFrame(rows)


class SequenceShares(NamedTuple):
    """Shares of sequences in a connection.

    Attributes
    ----------
    sequence : ndarray
        Numbers of the sequences that added something, ascending; int64.
    units : ndarray
        Strength units of each; of models of words counts; int64, of the same shape. Their sum is the stored strength.
    """

    sequence: Integers
    units: Integers


def require_index(reader: CommitReader) -> None:
    """Raise an `OptionError` where a network has no index."""
    if not reader.manifest().specification.trace:
        raise OptionError(
            f"network {reader.path} has no index of its sequences",
            "one that was trained with trace, or indexed afterwards",
            f"index it with its text: giaann-dask index {reader.path} TEXT..., or giaann_dask.index in Python",
            names=("trace",),
        )


class TraceIndex:
    """The index of a commit, read on demand: of a key with many postings, those of a range of sequences at a time.

    Parameters
    ----------
    reader : CommitReader
        A commit of a network that is trained with ``trace``.

    Raises
    ------
    OptionError
        If the network has no index.
    """

    def __init__(self, reader: CommitReader) -> None:
        require_index(reader)
        self._specification = reader.manifest().specification
        self._reader, self._placement = reader, reader.placement()
        self._divided = self._placement.divided()
        self._runs: dict[int, list[str]] = {}
        for run in reader.manifest().runs:
            self._runs.setdefault(run.region, []).append(run.identity)
        self._rows: dict[str, RowReader] = {}
        self._postings: dict[int, Postings] = {}
        self._kept_bytes = 0

    def shares(self, connection: ConnectionKey) -> Iterator[SequenceShares]:
        """Yield what each sequence added to a connection, for ranges of ascending sequences."""
        model = model_of(self._specification)
        kept, parts = dict[int, Postings](), dict[int, list[PostingsPart]]()

        def find(key: int) -> Postings:
            if key in self._postings:
                kept[key] = self._postings[key]
            else:
                parts[key] = self._find(key)
            return _NO_POSTINGS

        # Which keys decide.
        model.shares(find, connection, self._specification)
        for low, high in sequence_ranges([part for its in parts.values() for part in its], POSTINGS_TOGETHER):

            def postings(key: int, low: int = low, high: int = high) -> Postings:
                return kept[key].between(low, high) if key in kept else self._read(key, parts[key], low, high)

            yield SequenceShares(*model.shares(postings, connection, self._specification))

    def _find(self, key: int) -> list[PostingsPart]:
        regions = self._divided.get(key) or (self._placement.region_of(key),)
        readers = []
        with reading(f"network {self._reader.path}"):
            for identity in (name for region in regions for name in self._runs.get(region, ())):
                if identity not in self._rows:
                    self._rows[identity] = self._reader.rows(identity, "postings")
                readers.append(self._rows[identity])
            return find_postings(readers, key, POSTINGS_TOGETHER, POSTINGS_PART)

    def _read(self, key: int, parts: Sequence[PostingsPart], low: int, high: int) -> Postings:
        """Return the places of a key in a range of sequences; they are kept if these are all."""
        with reading(f"network {self._reader.path}"):
            found = join_postings(parts, low, high)
        if high - low > SEQUENCE_MASK:
            nbytes = sum(column.nbytes for column in found)
            if self._kept_bytes + nbytes > _KEPT_BYTES:
                self._postings, self._kept_bytes = {}, 0
                for rows in self._rows.values():
                    rows.release()
            self._postings[key] = found
            self._kept_bytes += nbytes
        return found


class Tracer:
    """Index and training text of a commit, opened once for many traces.

    Parameters
    ----------
    reader : CommitReader
        A commit of a network that is trained with ``trace``.
    texts : sequence of str or MemoryInput
        Where the text is looked for first.

    Raises
    ------
    OptionError
        If the network has no index.
    """

    def __init__(self, reader: CommitReader, texts: Sequence[Source] = ()) -> None:
        self.index, self.commit = TraceIndex(reader), reader.commit
        self._text = TrainingText(reader, texts)

    def connection(
        self, key: ConnectionKey, *, source: str, column: str, contribution: float, sentences: int
    ) -> TracedConnection:
        """Return a connection with the sequences that built it.

        Parameters
        ----------
        key : ConnectionKey
            The connection.
        source, column, contribution
            See `TracedConnection`.
        sentences : int
            Sequences whose text is read.
        """
        total, sequences, largest = 0, 0, SequenceShares(*np.zeros((2, 0), np.int64))
        for shares in self.index.shares(key):
            total += int(shares.units.sum())
            sequences += len(shares.sequence)
            number, units = (np.concatenate(each) for each in zip(largest, shares, strict=True))
            order = np.argsort(-units, kind="stable")[:sentences]
            largest = SequenceShares(number[order], units[order])
        found = tuple(
            TracedSentence(number, *self._text.find(number), units, units / total)
            for number, units in zip(largest.sequence.tolist(), largest.units.tolist(), strict=True)
        )
        return TracedConnection(source, column, key.segment, key.branch, contribution, total, sequences, found)


@functools.lru_cache(maxsize=4)
def _open(path: str, commit: str) -> Tracer:
    return Tracer(NetworkStore(path).open(commit))


def open_tracer(path: str, commit: str, texts: Sequence[Source] = ()) -> Tracer:
    """Return the tracer of a commit, which this process keeps for the last ones without texts of their own."""
    return Tracer(NetworkStore(path).open(commit), texts) if texts else _open(path, commit)


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
        Identity of its part of text in the ledger, 22 hexadecimal digits, by which ``forget`` finds it.
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
