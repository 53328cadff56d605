"""Resolve inputs (paths, folders, patterns, standard input, dataset names) to files and datasets before reading.

Does not cover: reading them (`reading`), and texts in memory (`memory_inputs`), which are resolved already.
"""

from __future__ import annotations

import errno
import functools
import glob
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from giaann_dask.errors import EmptyInputError, InputFormatError, InputMissingError, OptionError
from giaann_dask.lazy import import_optional
from giaann_dask.text.lines import STANDARD_INPUT, StandardInput, holds_text, is_pipe, unreadable
from giaann_dask.text.memory_inputs import MemoryInput, Source
from giaann_dask.text.remote_inputs import COMPRESSED, RemoteInput, find_files, names_url, suffix_of

_LOG = logging.getLogger(__name__)
TEXT_SUFFIXES = (".txt", ".text", ".md", ".markdown")
CONLLU_SUFFIXES = (".conllu",)
JSON_SUFFIXES = (".jsonl", ".ndjson")
DATASET_PREFIX = "hf:"
# Files of the hub, which fsspec opens.
_HUB_FILES = "hf://"
# Before the name of a file that names inputs.
_LIST = "@"
_SHOWN_CHARACTERS = 60
# Linux allows no path of more bytes.
_LONGEST_NAME = 4096

_KNOWN_SUFFIXES = TEXT_SUFFIXES + CONLLU_SUFFIXES + JSON_SUFFIXES


@dataclass(frozen=True, slots=True)
class DatasetInput:
    """Hugging Face dataset, given as ``hf:NAME`` or ``hf:NAME:CONFIG``.

    Attributes
    ----------
    name : str
        Name on the hub, or path of a local folder of data files.
    config : str or None
        Configuration, for a dataset with several.
    """

    name: str
    config: str | None = None

    def __str__(self) -> str:
        """Return the input as the user named it."""
        return DATASET_PREFIX + (self.name if self.config is None else f"{self.name}:{self.config}")


Input: TypeAlias = Path | StandardInput | RemoteInput | DatasetInput | MemoryInput


class Files(tuple[str, ...]):
    """Names of files, folders, patterns, encoded corpora or datasets, as one input.

    A list of strings is a list of texts; this class makes a list of names of it.

    Parameters
    ----------
    names : iterable of str or path
        See `resolve_inputs`; one string is one name.

    Examples
    --------
    >>> Files(["books/*.txt", "hf:wikitext"])
    Files(['books/*.txt', 'hf:wikitext'])
    """

    __slots__ = ()

    def __new__(cls, names: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Files:
        """Create the tuple of names."""
        given = [names] if isinstance(names, str | os.PathLike) else names
        return super().__new__(cls, (os.fspath(name) for name in given))

    def __repr__(self) -> str:
        """Return the call that makes these names."""
        return f"Files({list(self)!r})"


def names_input(text: str) -> bool:
    """Return whether a string is more probably the name of an input than a text.

    Examples
    --------
    >>> names_input("books/*.txt"), names_input("hf:wikitext"), names_input("A miller sings.")
    (True, True, False)
    """
    if not text or "\0" in text or len(text) > _LONGEST_NAME:
        return False
    if any(map(str.isspace, text)):
        return os.path.exists(text)
    if names_url(text) or text.startswith(DATASET_PREFIX):
        return True
    return names_text_file(text) or os.path.exists(text)


def names_text_file(name: str) -> bool:
    """Return whether a name ends as those of files of text do, compressed or not.

    Examples
    --------
    >>> names_text_file("s3://bucket/books/emma.txt.gz"), names_text_file("s3://bucket/corpus")
    (True, False)
    """
    return content_suffix(name) in _KNOWN_SUFFIXES


def resolve_inputs(inputs: Sequence[Source | os.PathLike[str]]) -> list[Input]:
    """Return the files and datasets that inputs name, in order.

    Parameters
    ----------
    inputs : sequence of str, path or MemoryInput
        A file is read with any suffix (an unknown one as plain text). A folder expands to the
        files below it with a known suffix, sorted, without hidden ones. A pattern (``*``, ``?``,
        ``[a-z]``, ``**``) expands to its matches, sorted. ``-`` is standard input, ``./-`` a file of
        that name. A URL is a file, or with a pattern or the URL of a folder several, which fsspec opens
        (``https://...``, ``s3://...``, ``zip://*.txt::books.zip``). ``@FILE`` stands for the inputs that a file names,
        one a line. ``hf:NAME[:CONFIG]`` is a dataset, ``hf://datasets/NAME/FILE`` a file of one. Broken links
        and pipes found by a folder or pattern are skipped with a warning.

    Returns
    -------
    list of Path, StandardInput, RemoteInput, DatasetInput or MemoryInput

    Raises
    ------
    InputMissingError
        If no input is given, or one does not exist, matches nothing, or is not readable.
    EmptyInputError
        If a file that is named directly (not by folder or pattern) contains only white space.
    InputFormatError
        If the name of such a file ends in ``.gz`` and the file is not gzip.
    MissingDependencyError
        If a dataset is named and the package ``datasets`` is not installed, or the package for a URL is not.
    """
    # A string is itself a sequence of strings, but means one input here.
    given = [inputs] if isinstance(inputs, str) else inputs
    resolved: list[Input] = []
    for source in given:
        if isinstance(source, MemoryInput):
            resolved.append(source)
            continue
        each = os.fspath(source)
        if each == STANDARD_INPUT:
            resolved.append(StandardInput())
        elif each.startswith(DATASET_PREFIX) and not each.startswith(_HUB_FILES):
            resolved.append(_parse_dataset(each))
        elif each and os.path.exists(each):
            resolved.extend(_expand(Path(each), named=True))
        elif _names_list(each):
            resolved.extend(resolve_inputs(list(expand_lists([each]))))
        elif names_url(each):
            resolved.extend(find_files(each, _KNOWN_SUFFIXES))
        elif glob.has_magic(each):
            resolved.extend(_match(each))
        else:
            raise _missing(each)
    if not resolved:
        raise InputMissingError("no input was given", "at least one file, folder, pattern or dataset")
    if resolved.count(StandardInput()) > 1:
        raise InputMissingError("standard input ('-') is named twice", "once, as it can be read only once")
    return resolved


def require_rereadable(inputs: Sequence[Source | os.PathLike[str]], reason: str) -> None:
    """Check that no input is standard input, a pipe or an iterator, which can be read only once.

    Parameters
    ----------
    inputs : sequence of str or path
        See `resolve_inputs`.
    reason : str
        Subject of the error message: what reads the inputs more than once.

    Raises
    ------
    OptionError
        If one is.
    """
    for given in inputs:
        if isinstance(given, MemoryInput):
            if not given.rereadable:
                raise OptionError(
                    f"{reason} reads the text more than once, and the {given} can be read only once",
                    "a list",
                    "make a list of what the iterator yields",
                )
            continue
        each = os.fspath(given)
        if each == STANDARD_INPUT or (os.path.exists(each) and is_pipe(Path(each))):
            raise OptionError(
                f"{reason} reads the text more than once, and {each!r} can be read only once",
                "files",
                "save the text to a file and name that",
            )


def expand_lists(names: Iterable[str], inside: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield names of inputs, and in the place of a list (``@FILE``) the names in it.

    Parameters
    ----------
    names : iterable of str
        Names of inputs and of lists.
    inside : frozenset of str
        The lists that name these names.

    Raises
    ------
    InputMissingError, EmptyInputError
        If a list cannot be read, or names nothing.
    InputFormatError
        If a list names itself.
    """
    for name in names:
        if not _names_list(name):
            yield name
            continue
        if name in inside:
            raise InputFormatError(
                f"the list {name.removeprefix(_LIST)!r} names itself", "names of inputs", "correct it"
            )
        yield from expand_lists(_listed(name.removeprefix(_LIST)), inside | {name})


def _names_list(name: str) -> bool:
    """Return whether a name is one of a list, and not that of a file which begins so."""
    file = name.removeprefix(_LIST)
    return file != name and not os.path.exists(name) and (os.path.isfile(file) or names_url(file))


def _listed(file: str) -> list[str]:
    """Return the inputs that a file names, one a line; blank lines and lines that begin with ``#`` are left out."""
    if names_url(file):
        raise InputMissingError(f"the list {file!r} is at a URL", "a list on this machine", "copy it to a file")
    try:
        lines = [line.strip() for line in Path(file).read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputMissingError(
            f"the list {file!r} cannot be read ({error})", "names of inputs in UTF-8, one a line", "correct it"
        ) from error
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise EmptyInputError(f"the list {file!r} names no input", "one name a line", "add some")
    return found


def _missing(given: str) -> InputMissingError:
    """Return the error for a path that does not exist, or is a link to one that does not."""
    if os.path.islink(given):
        return InputMissingError(
            f"the input {given!r} is a link to {os.readlink(given)!r}, which does not exist", "", "correct the link"
        )
    if any(map(str.isspace, given)):
        shown = given if len(given) <= _SHOWN_CHARACTERS else given[:_SHOWN_CHARACTERS] + "…"
        return InputMissingError(f"the input {shown!r} is no file", "", "correct the path; in Python, texts are a list")
    return InputMissingError(f"the input {given!r} does not exist", "", "correct the path")


def content_suffix(name: str) -> str:
    """Return the suffix of a file name in lower case, without that of a compression.

    Examples
    --------
    >>> content_suffix("Dev.conllu.GZ")
    '.conllu'
    """
    return suffix_of(name)


def _parse_dataset(given: str) -> DatasetInput:
    """Return the dataset of ``hf:NAME[:CONFIG]``."""
    import_optional("datasets", "hub")
    name, colon, config = given.removeprefix(DATASET_PREFIX).partition(":")
    if not name or (colon and not config):
        raise InputMissingError(f"the input {given!r} names no dataset", "hf:NAME or hf:NAME:CONFIG")
    return DatasetInput(name, config or None)


def _match(pattern: str) -> list[Path]:
    """Return the files that a pattern matches, each once, including the files of matching folders."""
    matches = sorted(glob.glob(pattern, recursive=True))
    files = [file for match in matches for file in _expand(Path(match), named=False)]
    if not files:
        raise InputMissingError(f"the pattern {pattern!r} matches no file", "at least one", "correct it")
    return list(dict.fromkeys(files))


def _expand(path: Path, *, named: bool) -> list[Path]:
    """Return a file itself, or the files below a folder; a file that is named directly must contain text."""
    if path.is_dir():
        files = sorted(_files_below(path), key=lambda file: file.parts)
        if named and not files:
            raise InputMissingError(
                f"the folder {str(path)!r} holds no file to read",
                f"files that end in {' '.join(_KNOWN_SUFFIXES)}, compressed ({' '.join(COMPRESSED)}) or not",
            )
        return files
    if not named and _is_skipped(path):
        return []
    _require_readable(path)
    # A pipe can be read only once, so its content is not checked.
    if named and path.is_file() and not holds_text(path):
        raise EmptyInputError(f"the file {str(path)!r} is empty", "text", "leave it out")
    return [path]


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder that are not hidden and have a known suffix."""

    def refuse(error: OSError) -> None:
        raise unreadable(Path(error.filename or folder), error)

    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            file = Path(parent, name)
            known = not name.startswith(".") and content_suffix(name) in _KNOWN_SUFFIXES
            if known and not _is_skipped(file):
                _require_readable(file)
                yield file


def _require_readable(path: Path) -> None:
    """Raise an `InputMissingError` if a file is not readable."""
    if not os.access(path, os.R_OK):
        raise unreadable(path, PermissionError("permission denied"))


def _is_skipped(path: Path) -> bool:
    """Return whether a path found by folder or pattern is a broken link, a pipe or a device; log a warning if so."""
    try:
        if not is_pipe(path):
            return False
        # Reading it would block forever if nothing writes to it.
        _warn_once(f"left out {path}: it is a pipe or a device; name it itself to read it")
        return True
    except OSError as error:
        if not path.is_symlink() or error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        _warn_once(f"left out {path}: it is a link to {os.readlink(path)}, which does not exist")
        return True


@functools.lru_cache(maxsize=4096)
def _warn_once(message: str) -> None:
    """Log a warning once per process: a run resolves its inputs several times."""
    _LOG.warning("%s", message)
