"""Validate the options of reading and tagging text; `giaann_dask.api.texts` reads with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, get_args

from giaann_dask.errors import OptionError, require_option
from giaann_dask.keywords import names_keywords
from giaann_dask.text.read_options import ReadOptions, check_tagger

if TYPE_CHECKING:
    from giaann_dask.spec import Specification
    from giaann_dask.text.memory_inputs import Source


Language = Literal["english", "any"]


@names_keywords
@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options of reading and tagging text.

    Parameters
    ----------
    tagger : str, optional
        Tagger of words: ``lexicon``, ``spacy:MODEL`` or ``gold``, which takes the tags that CoNLL-U and spaCy
        documents have. By default ``gold`` for spaCy documents, else ``lexicon``.
    ever_pos : str, optional
        Words that can ever be verbs, adpositions or conjunctions, and so end a column: ``lemminflect``, ``corpus`` or
        the path of a JSON file of UPOS to words; what the network or corpus already
        has by default, else ``lemminflect``.
    language : {"english", "any"}
        What training and encoding do with text that is not English where the tagger is ``lexicon``: refuse it, or tag
        it all the same.
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

    tagger: str | None = None
    ever_pos: str | None = None
    language: Language = "english"
    reading: ReadOptions = field(default_factory=ReadOptions)
    parts_of_speech: bool = False
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        if self.tagger is not None:
            check_tagger(self.tagger)
        allowed = get_args(Language)
        require_option(self.language in allowed, "language", self.language, " or ".join(allowed))

    def fitting(self, sources: Sequence[Source]) -> TextOptions:
        """Return these options with the tagger of the inputs where none is named."""
        if self.tagger is not None:
            return self
        from giaann_dask.text.memory_inputs import MemoryInput

        tokenized = any(isinstance(each, MemoryInput) and each.tokenized for each in sources)
        return replace(self, tagger="gold" if tokenized else "lexicon")

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
            if not specification.traits.columns:
                raise OptionError(
                    f"ever_pos with profile {specification.profile}",
                    "words that have no parts of speech",
                    "leave it out",
                )
            from giaann_dask.encoding.lexicon import check_ever

            check_ever(self.ever_pos)
        if self.tokenizer is not None:
            from giaann_dask.encoding.lexicon import check_tokenizer

            check_tokenizer(self.tokenizer)
