"""Define how text is read and tagged, and choose defaults for what a user leaves open.

A default is what the network or the corpus has, else that of `TextOptions`. Reading and tagging are in
`giaann_dask.text`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distributed import Client

from giaann_dask.encoding.lexicon import DEFAULT, check_ever, choose_ever
from giaann_dask.encoding.sources import SourceOptions
from giaann_dask.encoding.tokenizing import LEARN, check_tokenizer, choose_tokenizer
from giaann_dask.errors import OptionError, parameter
from giaann_dask.spec import Specification
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.corpus import EncodedCorpus, is_corpus
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.reading import ReadOptions
from giaann_dask.text.tagging import check_tagger
from giaann_dask.text.tokenizer import SubwordTokenizer
from giaann_dask.training.target import require_tokenizer

Inputs = str | Path | Sequence[str | Path]


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options of reading and tagging text.

    Parameters
    ----------
    tagger : str
        ``lexicon``, ``spacy:MODEL`` or ``gold``.
    ever_pos : str, optional
        ``lemminflect``, ``corpus`` or the path of a JSON file; what the network or corpus already
        has by default, else ``lemminflect``.
    reading : ReadOptions
        How files are read.
    parts_of_speech : bool
        Keep the part of speech of every token in a corpus, so that networks that scale strengths by
        it (`Specification.pos_factors`) can train on it.
    tokenizer : str, optional
        ``none``, ``learn:SIZE``, ``tiktoken:NAME`` or the path of a tokenizer's file; what the network or
        corpus already has by default, else ``none``. All but ``none`` need subwords as tokens
        (`Specification.tokens`). A tokenizer that was learnt is not learnt again.

    Raises
    ------
    OptionError
        If the name of the tagger is no text.

    Examples
    --------
    >>> TextOptions(tagger="gold", ever_pos="corpus").tagger
    'gold'
    """

    tagger: str = "lexicon"
    ever_pos: str | None = None
    reading: ReadOptions = field(default_factory=ReadOptions)
    parts_of_speech: bool = False
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        check_tagger(self.tagger)

    def require_fit(self, specification: Specification) -> None:
        """Raise an error when options cannot be used, or not for networks of this kind; text is not read for it.

        Raises
        ------
        OptionError
            If a word lexicon is named for a profile that has none, or a tokenizer that cannot be.
        InputMissingError, InputFormatError, MissingDependencyError
            If what an option names cannot be used.
        """
        if self.ever_pos is not None:
            if not specification.has_columns:
                raise OptionError(
                    f"{parameter('ever_pos')} with profile best", "words that have no parts of speech", "leave it out"
                )
            check_ever(self.ever_pos)
        if self.tokenizer is not None:
            check_tokenizer(self.tokenizer)


def names(inputs: Inputs) -> list[str]:
    """Return inputs as a list of strings."""
    return [str(inputs)] if isinstance(inputs, str | Path) else [str(name) for name in inputs]


def sources_of(
    specification: Specification,
    text: TextOptions,
    lexicon: EverPos | SubwordTokenizer,
    drop_short: bool = False,
) -> SourceOptions:
    """Return the reading and tagging of text for a network; `drop_short` omits sequences without a token to predict."""
    return SourceOptions.of(
        specification, tagger=text.tagger, lexicon=lexicon, reading=text.reading, drop_short=drop_short
    )


def decide_text(
    client: Client,
    store: NetworkStore | None,
    inputs: list[str],
    specification: Specification | None,
    text: TextOptions,
) -> tuple[Specification, EverPos | SubwordTokenizer]:
    """Return specification and lexicon: those given, else the network's or a corpus's, else the default."""
    corpora = [EncodedCorpus(name) for name in inputs if is_corpus(name)]
    known: EverPos | None = None
    tokenizer: SubwordTokenizer | None = None
    if store is not None:
        reader = store.open(store.head())
        wanted, known, tokenizer = (
            specification or reader.manifest().specification,
            reader.ever_pos(),
            reader.tokenizer(),
        )
    elif corpora:
        stored = corpora[0].attributes
        rules = {name: value for name, value in stored.get("rules", {}).items() if name != "tokenizer"}
        limits = ("seed_tokens", "maximum_tokens") if rules else ("seed_tokens", "maximum_tokens", "branches")
        fields = {name: stored[name] for name in limits} | rules
        wanted, known = specification or Specification(**fields), corpora[0].ever_pos()
        tokenizer = corpora[0].tokenizer()
    else:
        wanted = specification or Specification()
    text.require_fit(wanted)
    if text.tokenizer is not None and not (tokenizer is not None and text.tokenizer.startswith(LEARN)):
        tokenizer = choose_tokenizer(text.tokenizer, inputs, text.reading)
    require_tokenizer(wanted, tokenizer)
    if not wanted.has_columns:
        return wanted, EverPos()
    if tokenizer is not None:
        return wanted, tokenizer
    if text.ever_pos is None and known is not None:
        return wanted, known
    return wanted, choose_ever(client, text.ever_pos or DEFAULT, inputs, text.tagger, text.reading)
