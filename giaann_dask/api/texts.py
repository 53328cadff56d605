"""Define which objects are accepted as text, how it is read and tagged, and defaults for what a user leaves open.

A default is what the network or the corpus has, else that of `TextOptions`. Reading and tagging are in
`giaann_dask.text`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from distributed import Client

from giaann_dask.api.text_options import TextOptions
from giaann_dask.encoding.lexicon import DEFAULT, LEARN, choose_ever, choose_tokenizer
from giaann_dask.encoding.sources import SourceOptions
from giaann_dask.errors import OptionError
from giaann_dask.object_urls import with_storage_options
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.corpus import EncodedCorpus, is_corpus
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.inputs import Files, expand_lists, names_input, require_there
from giaann_dask.text.ledger import is_identity
from giaann_dask.text.memory_inputs import MemoryInput, Source, memory_input
from giaann_dask.text.read_options import LEXICON
from giaann_dask.text.tokenizer import SubwordTokenizer
from giaann_dask.training.target import require_tokenizer

# A path or `Files`, paths, or an object that yields texts; `as_sources` tells which.
Inputs: TypeAlias = str | os.PathLike[str] | Iterable[Any]


def as_sources(inputs: Inputs) -> Sequence[Source]:
    """Convert what a caller gives as text to a list of inputs.

    Parameters
    ----------
    inputs : Inputs
        A string or path: a file, folder, pattern, dataset (``hf:NAME``) or encoded corpus; several of these as `Files`,
        or as a list of ``Path`` or `EncodedCorpus`. Or texts: a list or iterator of strings, of mappings with a text
        field or of spaCy documents, a column or data frame of pandas or Dask, a ``dask.bag``, or a dataset of Hugging
        Face ``datasets``. A list of strings is never read as names of files.

    Returns
    -------
    sequence of str or MemoryInput
        Names as `Files`, texts as a list of one `MemoryInput`; either can be given to this function again.

    Raises
    ------
    OptionError
        If the object is of another kind, a list mixes paths and texts, or all texts of a list are names of files.

    Examples
    --------
    >>> as_sources("books/*.txt")
    Files(['books/*.txt'])
    >>> as_sources(["A miller sings."])
    [MemoryInput(name='list of 1 texts', tokenized=False, rereadable=True, characters=15)]
    """
    if isinstance(inputs, Files):
        return inputs
    if isinstance(inputs, str | os.PathLike):
        return Files(inputs)
    if isinstance(inputs, MemoryInput):
        return [inputs]
    if isinstance(inputs, Sequence):
        if not inputs or any(isinstance(item, MemoryInput) for item in inputs):
            return list(inputs)
        if any(isinstance(item, os.PathLike) for item in inputs):
            return Files(_path_of(item) for item in inputs)
        if all(isinstance(item, str) and names_input(item) for item in inputs):
            raise OptionError(
                f"the texts of inputs are names of files, such as {inputs[0]!r}",
                "a list of texts",
                "name files with giaann_dask.Files([...]) or as Path objects",
            )
    return [memory_input(inputs)]


def read_inputs(
    inputs: Inputs,
    text: TextOptions | None,
    storage_options: Mapping[str, object] | None = None,
    *,
    identities: bool = False,
) -> tuple[Sequence[Source], TextOptions]:
    """Convert what a caller gives as text, and choose the tagger that fits it where none is named.

    URLs among the names get the storage options. With `identities`, names may be those of parts of a ledger.

    Raises
    ------
    InputMissingError
        If a name leads to nothing; that is known before workers are started.
    """
    read = as_sources(inputs)
    if isinstance(read, Files):
        read = Files(with_storage_options(name, storage_options) for name in expand_lists(map(os.fspath, read)))
        require_there([name for name in read if not (identities and is_identity(name))])
    return read, (text or TextOptions()).fitting(read)


def _path_of(item: object) -> str:
    """Return an item of a list of paths as a string."""
    if not isinstance(item, os.PathLike):
        raise OptionError(
            f"inputs holds paths and a {type(item).__name__}",
            "only paths, or only texts",
            "name files with giaann_dask.Files([...]) or as Path objects, and give texts in a call of their own",
        )
    return str(os.fspath(item))


def sources_of(
    specification: Specification,
    text: TextOptions,
    lexicon: EverPos | SubwordTokenizer,
    drop_short: bool = False,
) -> SourceOptions:
    """Return the reading and tagging of text for a network; `drop_short` omits sequences without a token to predict."""
    return SourceOptions.of(
        specification, tagger=text.tagger or "lexicon", lexicon=lexicon, reading=text.reading, drop_short=drop_short
    )


def trained_sources(
    specification: Specification, text: TextOptions, lexicon: EverPos | SubwordTokenizer
) -> SourceOptions:
    """Return the reading and tagging of text to train or encode, which has to be English for the default tagger."""
    sources = sources_of(specification, text, lexicon)
    return replace(sources, english=sources.tagger == LEXICON and text.language == "english")


def commit_sources(reader: CommitReader, text: TextOptions, drop_short: bool = False) -> SourceOptions:
    """Return the reading and tagging of text for the network of a commit; see `sources_of`."""
    lexicon = reader.tokenizer() or reader.ever_pos()
    return sources_of(reader.manifest().specification, text, lexicon, drop_short)


def decide_text(
    client: Client,
    reader: CommitReader | None,
    inputs: Sequence[Source],
    specification: Specification | None,
    text: TextOptions,
) -> tuple[Specification, EverPos | SubwordTokenizer]:
    """Return specification and lexicon: those given, else the network's or a corpus's, else the default."""
    corpora = [EncodedCorpus(name) for name in inputs if is_corpus(name)]
    known: EverPos | None = None
    tokenizer: SubwordTokenizer | None = None
    if reader is not None:
        wanted, known, tokenizer = (
            _continued(specification, reader.manifest().specification),
            reader.ever_pos(),
            reader.tokenizer(),
        )
    elif corpora:
        stored = corpora[0].attributes
        rules = {name: value for name, value in stored["rules"].items() if name != "tokenizer"}
        limits = ("seed_tokens", "maximum_tokens") if rules else ("seed_tokens", "maximum_tokens", "branches")
        encoded = Specification.from_dict({name: stored[name] for name in limits} | rules)
        wanted, known = _continued(specification, encoded), corpora[0].ever_pos()
        tokenizer = corpora[0].tokenizer()
    else:
        wanted = specification or Specification()
    text.require_fit(wanted)
    if text.tokenizer is not None and not (tokenizer is not None and text.tokenizer.startswith(LEARN)):
        tokenizer = choose_tokenizer(text.tokenizer, inputs, text.reading)
    require_tokenizer(wanted, tokenizer)
    if not wanted.traits.columns:
        return wanted, EverPos()
    if tokenizer is not None:
        return wanted, tokenizer
    if text.ever_pos is None and known is not None:
        return wanted, known
    return wanted, choose_ever(client, text.ever_pos or DEFAULT, inputs, text.tagger or "lexicon", text.reading)


def _continued(specification: Specification | None, stored: Specification) -> Specification:
    """Return the stored specification, or the one that is asked for with flags and index of the stored one."""
    return stored if specification is None else specification.continuing(stored)
