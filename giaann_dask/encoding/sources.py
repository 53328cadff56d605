"""Convert inputs (text or encoded corpora) to units of the ledger, and group the units for ``tag`` tasks.

The driver reads all text once, to divide it into parts and to identify these, so both are the same with any cluster.
Workers read text that they can see themselves: the driver sends them names and byte ranges, and a worker compares what
it reads with the identity of the part.

Files are read by `giaann_dask.text.reading`, and blocks are merged in order by `stream`. The sizes of inputs are
estimated for progress bars, and text that a network was not trained on yet is found.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import os
from collections import Counter
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from giaann_dask.cluster import task_key
from giaann_dask.cluster.sharing import naming_worker
from giaann_dask.cluster.submitting import TaskSubmitter
from giaann_dask.cluster.waiting import ask_workers, query_scheduler
from giaann_dask.errors import (
    EmptyInputError,
    InputEncodingError,
    InputFormatError,
    InputMissingError,
    SpecificationError,
    describe_difference,
)
from giaann_dask.registry import HISTORY
from giaann_dask.spec import Specification
from giaann_dask.store.corpus import EncodedCorpus, is_corpus
from giaann_dask.text.blocks import FilterOptions, TaggedBlock
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.input_files import is_pipe, names_url, read_head
from giaann_dask.text.inputs import DATASET_PREFIX, format_of, resolve_inputs
from giaann_dask.text.languages import require_english
from giaann_dask.text.ledger import LedgerEntry, copies_of, identify, identify_copy
from giaann_dask.text.memory_inputs import MemoryInput, Source
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import PartRange, locate_part, read_parts, read_range
from giaann_dask.text.records import RECORD_FORMATS, read_records, record_text
from giaann_dask.text.tagging import tag_block
from giaann_dask.text.tokenizer import SubwordTokenizer, open_content
from giaann_dask.text.tokens import Part

if TYPE_CHECKING:
    from distributed import Client, Future

_LOG = logging.getLogger(__name__)
# Parts of fewer characters are not read by workers: a range takes some hundred bytes itself.
_LEAST_CHARACTERS = 2048
# Approximate size of a sequence of an encoded corpus.
CORPUS_CHARACTERS = 130
# Rules of a corpus that has none of its own.
_UNSTORED = {"profile": "v1", "flags": HISTORY}
# Name in place of a tagger if words are used without tags.
RAW = "raw"


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Options of reading and tagging inputs.

    Parameters
    ----------
    specification : Specification
        Of the network or corpus.
    tagger : str
        Name of the tagger.
    ever_pos : EverPos
        Ever-POS lexicon.
    filter : FilterOptions
        Limits and rules for sentences.
    reading : ReadOptions
        Options of reading files and dividing them into parts.
    tokenizer : SubwordTokenizer, optional
        Tokenizer of a subword model; then `ever_pos` is unused.
    only : frozenset of bytes, optional
        Identities of the parts of text that are read; all by default.
    english : bool
        Whether text that is not English is refused.
    counted : container of bytes, optional
        Identities of what a network has counted; then each part is read once, and as often again as it has copies.
    """

    specification: Specification
    tagger: str
    ever_pos: EverPos
    filter: FilterOptions
    reading: ReadOptions = field(default_factory=ReadOptions)
    tokenizer: SubwordTokenizer | None = None
    only: frozenset[bytes] | None = None
    english: bool = False
    counted: Container[bytes] | None = None

    @classmethod
    def of(
        cls,
        specification: Specification,
        *,
        tagger: str,
        lexicon: EverPos | SubwordTokenizer,
        reading: ReadOptions,
        drop_short: bool = False,
    ) -> SourceOptions:
        """Return the options of a network's specification, for training or (`drop_short`) for inference."""
        tokenizer = lexicon if isinstance(lexicon, SubwordTokenizer) else None
        ever_pos = EverPos() if isinstance(lexicon, SubwordTokenizer) else lexicon
        if specification.ruled_by != "v1":
            reading = replace(reading, newdoc=True, group=max(1, specification.sentences_per_sequence))
        limits = FilterOptions.of(specification, drop_short=drop_short)
        # Without tags the identity of text must not depend on the tagger.
        tagger = RAW if limits.raw else tagger
        return cls(
            specification=specification,
            tagger=tagger,
            ever_pos=ever_pos,
            filter=limits,
            reading=reading,
            tokenizer=tokenizer,
        )

    def text_rules(self) -> dict[str, Any]:
        """Return the rules that encoded text depends on besides its limits and branches."""
        known = {} if self.tokenizer is None else {"tokenizer": self.tokenizer.identity()}
        return self.specification.text_rules() | known


@dataclass(frozen=True, slots=True)
class CorpusRange:
    """Range of sequences of an encoded corpus.

    Attributes
    ----------
    path : str
        Place of the corpus.
    start, stop : int
        Range of sequences.
    identity : str
        Of the corpus at this place.
    """

    path: str
    start: int
    stop: int
    identity: str


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit of the ledger: one part of text or of a corpus, with its identity.

    Attributes
    ----------
    identity : bytes
        See `giaann_dask.text.ledger.identify`.
    weight : int
        Size in characters, or an estimate of it.
    content : Part or CorpusRange
        The text itself, or the range of a corpus.
    """

    identity: bytes
    weight: int
    content: Part | CorpusRange


def read_units(
    inputs: Sequence[Source], options: SourceOptions, documents: Iterator[int] | None = None
) -> Iterator[Unit]:
    """Yield the units of all inputs in order; `documents` numbers the documents of text, from 0 by default.

    Raises
    ------
    GiaannError
        If an input cannot be used; missing inputs are detected before anything is read.
    """
    copies: Counter[bytes] = Counter()
    for unit in _all_units(inputs, options, itertools.count() if documents is None else documents):
        if options.only is not None and unit.identity not in options.only:
            continue
        if options.counted is not None:
            if unit.identity not in copies:
                copies[unit.identity] += 1
                yield from (replace(unit, identity=each) for each in copies_of(unit.identity, options.counted))
            continue
        if options.reading.count_repeats:
            copies[unit.identity] += 1
            unit = replace(unit, identity=identify_copy(unit.identity, copies[unit.identity]))
        yield unit


def _all_units(inputs: Sequence[Source], options: SourceOptions, documents: Iterator[int]) -> Iterator[Unit]:
    if not any(is_corpus(name) for name in inputs):
        yield from _text_units(inputs, options, set(), documents)
        return
    passed: set[Hashable] = set()
    for name in inputs:
        if not is_corpus(name):
            yield from _text_units([name], options, passed, documents)
        elif (path := EncodedCorpus(name).path) not in passed:
            passed.add(path)
            yield from _corpus_units(name, options)


def _text_units(
    inputs: Sequence[Source], options: SourceOptions, passed: set[Hashable], documents: Iterator[int]
) -> Iterator[Unit]:
    parts = read_parts(inputs, options.reading, passed, documents)
    for part in require_english(parts) if options.english else parts:
        yield Unit(identify(part, options.tagger), part.characters, part)


def _corpus_units(name: str | Path, options: SourceOptions) -> Iterator[Unit]:
    corpus = EncodedCorpus(name)
    check_corpus(corpus, options)
    path, start = str(corpus.path), 0
    for entry in corpus.ledger():
        content = CorpusRange(path, start, start + entry.sequences, corpus.identity)
        yield Unit(entry.identity, CORPUS_CHARACTERS * entry.sequences, content)
        start += entry.sequences


def check_corpus(corpus: EncodedCorpus, options: SourceOptions) -> None:
    """Check that a corpus was encoded with given options; raise a `SpecificationError` if not."""
    if options.filter.raw:
        raise SpecificationError(
            f"corpus {corpus.path} holds merged tokens, not raw words",
            "text for profile contexts",
            "name the text itself",
        )
    options_of = {
        **_UNSTORED,
        "seed_tokens": options.filter.seed_tokens,
        "maximum_tokens": options.filter.maximum_tokens,
        "ever_pos": options.ever_pos.identity(),
        **options.text_rules(),
    }
    attributes = {**_UNSTORED, **corpus.attributes, **corpus.attributes["rules"]}
    for name, value in options_of.items():
        stored = attributes.get(name)
        if stored != value:
            both = ({} if each is None else {name: each} for each in (stored, value))
            found, wanted = describe_difference(*both)
            raise SpecificationError(
                f"corpus {corpus.path} was encoded with {found}",
                f"{wanted} as in the network",
                "encode the text again with the network's options",
            )
    if options.filter.parts_of_speech and not corpus.attributes["parts_of_speech"]:
        raise SpecificationError(
            f"corpus {corpus.path} was encoded without parts of speech",
            "each token's part of speech, by which the network scales strengths (pos_factors)",
            "encode the text again with parts_of_speech, or train on the text itself",
        )


class WorkerReading:
    """Decide for each folder of input files whether the workers read them.

    Parameters
    ----------
    client : Client
        Client of the cluster.
    options : ReadOptions
        How files are read.
    """

    def __init__(self, client: Client, options: ReadOptions) -> None:
        self._client = client
        self._options = options
        self._seen: dict[str, bool] = {}

    def contents(self, parts: Sequence[Part]) -> tuple[Part | PartRange, ...]:
        """Return the parts as tasks get them: where they are, or their text where not all workers can read it."""
        return tuple(self._content(part) for part in parts)

    def _content(self, part: Part) -> Part | PartRange:
        if part.characters < _LEAST_CHARACTERS:
            return part
        located = locate_part(part, self._options)
        if located is None:
            return part
        folder = os.path.dirname(located.name)
        if folder not in self._seen:
            self._seen[folder] = self._is_seen(located)
        return located if self._seen[folder] else part

    def _is_seen(self, located: PartRange) -> bool:
        """Return whether all workers read the same text; log a notice if not."""
        # Threads of this process get the text itself without copying it.
        if all(worker.startswith("inproc://") for worker in query_scheduler(self._client, "ncores")):
            return False
        for worker, problem in ask_workers(self._client, find_problem, located).items():
            if problem:
                _LOG.warning("the text is sent to the workers, because worker %s does not see it: %s", worker, problem)
                return False
        return True


def join_records(parts: Sequence[Part], skips: Sequence[int]) -> tuple[list[Part], list[int]]:
    """Join records that follow one another, which are tagged in a fraction of the time; see `Part.records`.

    Parameters
    ----------
    parts : sequence of Part
        In the order of the input.
    skips : sequence of int
        Counted sequences of each that are skipped; such a part stays alone.

    Returns
    -------
    tuple of (list of Part, list of int)
        Fewer parts, and the same of them. One that lacks a record of its file between two others has no place.
    """
    groups: list[list[Part]] = []
    left: list[int] = []
    for part, skip in zip(parts, skips, strict=True):
        last = groups[-1][-1] if groups else part
        joins = bool(groups) and part.records and last.records and not skip and not left[-1]
        if joins and (part.source, part.kind) == (last.source, last.kind) and part.documents[0] > last.documents[-1]:
            groups[-1].append(part)
        else:
            groups.append([part])
            left.append(skip)
    return [group[0] if len(group) == 1 else _joined(group) for group in groups], left


def _joined(parts: Sequence[Part]) -> Part:
    """Return records that follow one another as one part."""
    first, last = parts[0].documents[0], parts[-1].documents[0]
    whole = last - first == len(parts) - 1
    passages, documents = (
        tuple(itertools.chain.from_iterable(each))
        for each in zip(*((part.passages, part.documents) for part in parts), strict=True)
    )
    return replace(parts[0], passages=passages, documents=documents, place=parts[0].place if whole else None)


def find_problem(located: PartRange) -> str:
    """Return why this process does not read the same text of a part; empty if it does."""
    try:
        read_range(located)
    except InputMissingError as error:
        return error.received
    return ""


def tag_contents(
    contents: Sequence[Part | PartRange],
    skips: Sequence[int],
    tagger: str,
    lexicon: EverPos | SubwordTokenizer,
    options: FilterOptions,
) -> TaggedBlock:
    """Tag consecutive parts into one block, after reading those that are ranges (a task); see `tag_block`.

    Raises
    ------
    InputMissingError
        If this worker does not see the text of a range.
    """
    with naming_worker():
        parts = [each if isinstance(each, Part) else read_range(each) for each in contents]
    return tag_block(parts, skips, tagger, lexicon, options)


def submit_tag(
    submitter: TaskSubmitter,
    units: Sequence[Unit],
    skips: Sequence[int],
    options: SourceOptions,
    lexicon: Future,
    reading: WorkerReading,
    **where: Any,
) -> Future:
    """Submit the ``tag`` task of a group of units, at a place if one is given; its result is a `TaggedBlock`."""
    parts = tuple(u.content for u in units if isinstance(u.content, Part))
    # Equal texts have one identity, and are documents of their own.
    identities, numbers = [u.identity for u in units], [part.documents[0] for part in parts]
    key = task_key("tag", identities, numbers, list(skips), options.tagger, options.filter, lexicon.key)
    if parts:
        joined, left = join_records(parts, skips)
        contents = reading.contents(joined)
        return submitter.submit(
            key, tag_contents, contents, tuple(left), options.tagger, lexicon, options.filter, **where
        )
    ranges = [u.content for u in units if isinstance(u.content, CorpusRange)]
    counts = tuple(r.stop - r.start for r in ranges)
    whole = replace(ranges[0], start=ranges[0].start + skips[0], stop=ranges[-1].stop)
    return submitter.submit(key, read_corpus_block, whole, counts, options.filter, **where)


def read_corpus_block(place: CorpusRange, part_sequences: tuple[int, ...], options: FilterOptions) -> TaggedBlock:
    """Read a range of a corpus as a tagged block (a task).

    Parameters
    ----------
    place : CorpusRange
        What to read.
    part_sequences : tuple of int
        Counted sequences of each part, including those before the range.
    options : FilterOptions
        Only ``drop_short`` is applied; the length limits were applied by encoding.
    """
    shortest = options.seed_tokens + 1 if options.drop_short else 0
    return open_corpus(place).tagged(place.start, place.stop, part_sequences, shortest)


def open_corpus(place: CorpusRange) -> EncodedCorpus:
    """Open the corpus of a range in a task; the last ones of a process stay open."""
    with naming_worker(place.path):
        return _open_corpus(place.path, place.identity)


@functools.lru_cache(maxsize=2)
def _open_corpus(path: str, identity: str) -> EncodedCorpus:
    """Open a corpus once per process and identity, which distinguishes a new one at the same path."""
    return EncodedCorpus(path)


def submit_lexicon(submitter: TaskSubmitter, options: SourceOptions) -> Future:
    """Submit the ever-POS lexicon or the tokenizer as a future that tasks share."""
    tokenizer, ever_pos = options.tokenizer, options.ever_pos
    if tokenizer is not None:
        return submitter.submit(task_key("tokenizer", tokenizer.identity()), open_content, tokenizer.content)
    return submitter.submit(task_key("ever_pos", ever_pos.identity()), EverPos.from_dict, ever_pos.as_dict())


class LedgerUpdate(NamedTuple):
    """Change of the ledger by a block.

    Attributes
    ----------
    entry : LedgerEntry
        The entry of the part as of the end of the block.
    skip : int
        Sequences of the part that were counted before.
    place : str
        Where the part was read (`describe_place`).
    """

    entry: LedgerEntry
    skip: int
    place: str


def describe_place(content: Part | CorpusRange, options: SourceOptions) -> str:
    """Return as JSON where text is read and with which options, so that it is found again (`giaann_dask.tracing`)."""
    if isinstance(content, CorpusRange):
        return json.dumps({"corpus": content.path})
    reading = {name: getattr(options.reading, name) for name in _READING}
    return _describe_file(content.source, options.tagger, tuple(reading.items()))


# What decides how text is divided into parts and which field of records it is; the rest follows from the network.
_READING = (
    *("part_characters", "line_characters", "text_field", "id_field", "read_as", "markup", "window_log", "split"),
    "count_repeats",
)


@functools.lru_cache(maxsize=64)
def _describe_file(source: str, tagger: str, reading: tuple[tuple[str, Any], ...]) -> str:
    plain = ReadOptions()
    changed = {name: value for name, value in reading if value != getattr(plain, name)}
    name = os.path.abspath(source) if os.path.exists(source) else source
    return json.dumps({"name": name, "tagger": tagger, **changed})


def reading_of(place: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of reading that the description of a place has."""
    return {name: value for name, value in place.items() if name in _READING}


def is_rereadable(name: str) -> bool:
    """Return whether the name of a place is that of something that can be read again."""
    return os.path.isabs(name) or names_url(name) or name.startswith(DATASET_PREFIX)


# Factor of the group size for corpora, which are read that much faster than text.
CORPUS_BLOCK = 4


@dataclass(frozen=True, kw_only=True)
class GroupLimits:
    """Size limits of a group; a single unit may exceed them.

    Attributes
    ----------
    characters : int
        Approximate size of text; `CORPUS_BLOCK` times as much for a corpus.
    joined : int
        Factor of the group size for text.
    sequences : int or None
        Maximum number of sequences of a corpus; that of text is unknown before reading.
    """

    characters: int
    sequences: int | None = None
    joined: int = 1


@dataclass
class UnitGroup:
    """Units that one task reads together.

    Attributes
    ----------
    units : list of Unit
        In the order of the input.
    skips : list of int
        Number of sequences of each unit that are already in the network.
    read : int
        Characters of the inputs up to the end of the group.
    weight : int
        Sum of the units' weights in characters.
    """

    units: list[Unit] = field(default_factory=list)
    skips: list[int] = field(default_factory=list)
    read: int = 0
    weight: int = 0

    def append(self, unit: Unit, skip: int, read: int) -> None:
        """Add a unit, given the sequences of it that are skipped, and the characters of the inputs up to its end."""
        self.units.append(unit)
        self.skips.append(skip)
        self.weight += unit.weight
        self.read = read

    def accepts(self, unit: Unit, skip: int, limits: GroupLimits) -> bool:
        """Return whether a unit may be added; an empty group accepts any unit."""
        if not self.units:
            return True
        weight, content, last = self.weight + unit.weight, unit.content, self.units[-1].content
        if isinstance(content, Part):
            return isinstance(last, Part) and weight <= limits.joined * limits.characters
        first = self.units[0].content
        if isinstance(last, Part) or isinstance(first, Part):
            return False
        if skip or (last.path, last.identity, last.stop) != (content.path, content.identity, content.start):
            return False
        # Only the first unit of a range of a corpus has sequences that are skipped.
        sequences = content.stop - first.start - self.skips[0]
        few = limits.sequences is None or sequences <= limits.sequences
        return few and weight <= CORPUS_BLOCK * limits.characters

    def without_first(self) -> UnitGroup:
        """Return the group without its first unit."""
        return UnitGroup(self.units[1:], self.skips[1:], self.read, self.weight - self.units[0].weight)

    def ledger_updates(
        self, part_sequences: tuple[int, ...], sequences: int, options: SourceOptions
    ) -> tuple[LedgerUpdate, ...]:
        """Return the ledger entries after the first new sequences of the group have been counted.

        Parameters
        ----------
        part_sequences : tuple of int
            Sequences of each unit, including skipped ones.
        sequences : int
            Number of new sequences that are counted.
        options : SourceOptions
            How the units are read.
        """
        updates: list[LedgerUpdate] = []
        places: dict[str, str] = {}
        left = sequences
        for unit, skip, total in zip(self.units, self.skips, part_sequences, strict=True):
            counted = min(max(total - skip, 0), left)
            left -= counted
            done = skip + counted
            if done or total == 0:
                entry, content = LedgerEntry(unit.identity, done, done >= total), unit.content
                source = content.source if isinstance(content, Part) else content.path
                if source not in places:
                    places[source] = describe_place(content, options)
                updates.append(LedgerUpdate(entry, skip, places[source]))
        return tuple(updates)


# Records of a file whose text is compared with their bytes.
_SAMPLE_RECORDS = 100


def estimate_characters(inputs: Sequence[Source], reading: ReadOptions | None = None) -> int | None:
    """Return an estimate of the characters of text in inputs.

    Parameters
    ----------
    inputs : sequence of str or MemoryInput
        Files, folders, globs, datasets or encoded corpora.
    reading : ReadOptions, optional
        How files are read.

    Returns
    -------
    int or None
        In the unit of `giaann_dask.encoding.sources.Unit.weight`; None if an input has a size that is unknown
        until its end: a dataset, a pipe, an iterator or standard input.

    Raises
    ------
    GiaannError
        If an input does not exist.
    """
    reading = ReadOptions() if reading is None else reading
    total = 0.0
    for name in inputs:
        if is_corpus(name):
            total += CORPUS_CHARACTERS * sum(entry.sequences for entry in EncodedCorpus(name).ledger())
            continue
        for each in resolve_inputs([name], reading):
            if isinstance(each, MemoryInput) and each.characters is not None:
                total += each.characters
                continue
            # Reading a sample of a pipe would consume it.
            if not isinstance(each, Path) or is_pipe(each):
                return None
            total += _bytes_of(each) * _characters_per_byte(each, reading)
    return round(total)


def _bytes_of(path: Path) -> int:
    """Return the size of a file in bytes; for gzip an estimate of the decompressed size."""
    size = path.stat().st_size
    if not path.name.lower().endswith(".gz") or size < 18:
        return size
    with path.open("rb") as file:
        file.seek(-4, 2)
        # A gzip member ends with its decompressed size modulo 4 GiB; files with several members are rare.
        return max(int.from_bytes(file.read(4), "little"), size)


def _characters_per_byte(path: Path, reading: ReadOptions) -> float:
    """Return the characters of text per byte in a sample of a file; 1 if the sample has no text."""
    form = format_of(path, reading)
    if form not in RECORD_FORMATS:
        sample = read_head(path, reading.window_log)
        return len(sample.decode("utf-8", "ignore")) / max(len(sample), 1) or 1.0
    records = islice(read_records(path, form, reading), _SAMPLE_RECORDS)
    texts, last = [], 0
    for record in records:
        texts.append(record_text(record, reading.text_field))
        last = record.offset or 0
    # The text of the last record is behind its first byte.
    return sum(map(len, texts[:-1])) / last if last else 1.0


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
