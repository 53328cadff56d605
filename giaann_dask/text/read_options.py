"""Validate the options of reading and tagging text; reading is in `reading`, tagging in `tagging`."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event
from typing import Literal, get_args

from giaann_dask.errors import OptionError, require_at_least, require_option
from giaann_dask.keywords import names_keywords
from giaann_dask.representations import text_fault
from giaann_dask.text.formats import FORMATS, MOST_WINDOW_LOG, WINDOW_LOG, Format

Markup = Literal["strip", "keep"]
GOLD, LEXICON, SPACY = "gold", "lexicon", "spacy:"
"""Names of taggers, the last one before the name of a pipeline."""


@names_keywords
@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options of reading inputs.

    Parameters
    ----------
    part_characters : int
        Maximum size of a part. Longer paragraphs are divided, longer CoNLL-U sentences are not. Text read with a
        different value has different parts, so it counts as new. If sequences have several sentences (profile ``v2``),
        plain text ends one at the end of a part.
    line_characters : int
        Maximum length of a line.
    text_field : str
        Column of a table, or field of a JSON or dataset record, with its text; ``content.text`` is a field of the
        field ``content``.
    id_field : str, optional
        Column or field with the identity of a record: records of equal text and different ids are counted each. By
        default the text alone is its identity.
    read_as : str, optional
        Format of files, standard input and pipes; by default the one that their first kilobytes and names show.
        ``text`` takes them as they are.
    markup : {"strip", "keep"}
        Whether Markdown and reStructuredText are read without their markup or as they are.
    window_log : int
        Base-two logarithm of the bytes that decompressing zstd may look back, up to 31 (2 GiB), as of its option
        ``--long``; it keeps them in memory.
    split : str
        Split of a dataset.
    newdoc : bool
        Whether a comment ``# newdoc`` begins a document of CoNLL-U; by default a file is one.
    group : int
        Sentences per sequence: CoNLL-U is divided only after a multiple of this number in a document.
    count_repeats : bool
        Count a text that occurs more than once in the inputs as often as it occurs; by default it counts once.
    stop : threading.Event, optional
        When it is set, waiting for standard input or a pipe ends with `giaann_dask.text.input_files.ReadingStopped`.

    Raises
    ------
    OptionError
        If a number is not positive or a name is empty.
    """

    part_characters: int = 262_144
    line_characters: int = 1_000_000
    text_field: str = field(default="text", metadata={"alias": "text_column", "flags": ("--text", "--text-column")})
    id_field: str | None = field(default=None, metadata={"alias": "id_column", "flag": "--id"})
    read_as: Format | None = field(default=None, metadata={"flag": "--as"})
    markup: Markup = "strip"
    window_log: int = field(default=WINDOW_LOG, metadata={"flag": "--long"})
    split: str = "train"
    newdoc: bool = False
    group: int = 1
    count_repeats: bool = False
    stop: Event | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_at_least(1, self, "part_characters", "line_characters", "group", "window_log")
        require_option(self.window_log <= MOST_WINDOW_LOG, "window_log", self.window_log, f"at most {MOST_WINDOW_LOG}")
        for name, choices in (("read_as", (None, *FORMATS)), ("markup", get_args(Markup))):
            value = getattr(self, name)
            require_option(value in choices, name, value, " or ".join(filter(None, choices)))
        for name in ("text_field", "id_field", "split"):
            if getattr(self, name) == "":
                raise OptionError(f"{name} is empty", "a name", "name one or leave it out", names=(name,))


def check_tagger(name: str) -> None:
    """Check the syntax of a tagger's name; raise an `OptionError` if it is invalid.

    Whether a spaCy pipeline is installed is not checked, because it may be used on another machine.
    """
    if (fault := text_fault(name)) is not None:
        received = f"the tagger's name {name!r} holds {fault}"
        raise OptionError(received, "lexicon, spacy:MODEL or gold", "set tagger to one of them", names=("tagger",))
    if name not in (LEXICON, GOLD) and (not name.startswith(SPACY) or name == SPACY):
        raise OptionError(
            f"tagger is {name!r}",
            "lexicon, spacy:MODEL or gold",
            "choose one of these, such as lexicon",
            names=("tagger",),
        )
