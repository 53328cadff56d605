"""What inputs stand for: files and datasets, found before any of them is read.

Covers: paths, folders, patterns, standard input and names of datasets. Does not cover: reading them (`reading`).
"""

from __future__ import annotations

import errno
import functools
import glob
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from giaann_dask.errors import EmptyInputError, InputMissingError, OptionError
from giaann_dask.optional import import_optional
from giaann_dask.text.lines import holds_text, unreadable
from giaann_dask.text.pipes import STANDARD_INPUT, StandardInput, is_pipe

_LOG = logging.getLogger(__name__)
TEXT_SUFFIXES = (".txt", ".text", ".md", ".markdown")
CONLLU_SUFFIXES = (".conllu",)
JSON_SUFFIXES = (".jsonl", ".ndjson")
DATASET_PREFIX = "hf:"

_KNOWN_SUFFIXES = TEXT_SUFFIXES + CONLLU_SUFFIXES + JSON_SUFFIXES


@dataclass(frozen=True, slots=True)
class DatasetInput:
    """A Hugging Face dataset, given as ``hf:NAME`` or ``hf:NAME:CONFIG``.

    Attributes
    ----------
    name : str
        Name on the hub, or path of a local folder of data files.
    config : str or None
        Configuration, for a dataset that has several.
    """

    name: str
    config: str | None = None

    def __str__(self) -> str:
        """Return the input as it was given."""
        return DATASET_PREFIX + (self.name if self.config is None else f"{self.name}:{self.config}")


Input: TypeAlias = Path | StandardInput | DatasetInput


def resolve_inputs(inputs: Sequence[str | os.PathLike[str]]) -> list[Input]:
    """Return the files and datasets that inputs stand for, in order.

    Parameters
    ----------
    inputs : sequence of str or path
        A file is read whatever its suffix (an unknown one as plain text). A folder stands for the
        files below it with a known suffix, sorted, hidden ones left out. A pattern (``*``, ``?``,
        ``[a-z]``, ``**``) stands for what it matches, sorted. ``-`` is standard input, ``./-`` a file of
        that name. ``hf:NAME[:CONFIG]`` is a dataset. What a folder or pattern finds that is a
        link to nothing or a pipe is left out with a warning.

    Returns
    -------
    list of Path, StandardInput or DatasetInput

    Raises
    ------
    InputMissingError
        If there is no input, or one does not exist, matches nothing, or may not be read.
    EmptyInputError
        If a file that is named itself (not by folder or pattern) holds nothing but white space.
    InputFormatError
        If such a file ends in ``.gz`` and is not gzip.
    MissingDependencyError
        If a dataset is asked for and the package ``datasets`` is not installed.
    """
    # A lone string is a sequence of strings, too, but never meant as one.
    given = [inputs] if isinstance(inputs, str) else [os.fspath(each) for each in inputs]
    resolved: list[Input] = []
    for each in given:
        if each == STANDARD_INPUT:
            resolved.append(StandardInput())
        elif each.startswith(DATASET_PREFIX):
            resolved.append(_parse_dataset(each))
        elif each and os.path.exists(each):
            resolved.extend(_expand(Path(each), named=True))
        elif "://" in each:
            raise InputMissingError(
                f"the input {each!r} is an address", "files of this machine, or hf:NAME", "copy the files here first"
            )
        elif glob.has_magic(each):
            resolved.extend(_match(each))
        else:
            raise _missing(each)
    if not resolved:
        raise InputMissingError("no input was given", "at least one file, folder, pattern or dataset")
    if resolved.count(StandardInput()) > 1:
        raise InputMissingError("standard input ('-') is named twice", "once, as it can be read only once")
    return resolved


def require_rereadable(inputs: Sequence[str | os.PathLike[str]], reason: str) -> None:
    """Check that no input is standard input or a pipe, which can be read only once.

    Parameters
    ----------
    inputs : sequence of str or path
        As `resolve_inputs` takes them.
    reason : str
        What reads the inputs more than once.

    Raises
    ------
    OptionError
        If there is one.
    """
    for given in inputs:
        each = os.fspath(given)
        if each == STANDARD_INPUT or (os.path.exists(each) and is_pipe(Path(each))):
            raise OptionError(
                f"{reason} reads the text more than once, and {each!r} can be read only once",
                "files",
                "save the text to a file and name that",
            )


def _missing(given: str) -> InputMissingError:
    """Return the error for a path that does not exist, or is a link to one that does not."""
    if os.path.islink(given):
        return InputMissingError(
            f"the input {given!r} is a link to {os.readlink(given)!r}, which does not exist", "", "correct the link"
        )
    return InputMissingError(f"the input {given!r} does not exist", "", "correct the path")


def content_suffix(name: str) -> str:
    """Return the suffix of a file name in small letters, without that of its compression.

    Examples
    --------
    >>> content_suffix("Dev.conllu.GZ")
    '.conllu'
    """
    return Path(name.lower().removesuffix(".gz")).suffix


def _parse_dataset(given: str) -> DatasetInput:
    """Return the dataset of ``hf:NAME[:CONFIG]``."""
    import_optional("datasets", "hub")
    name, colon, config = given.removeprefix(DATASET_PREFIX).partition(":")
    if not name or (colon and not config):
        raise InputMissingError(f"the input {given!r} names no dataset", "hf:NAME or hf:NAME:CONFIG")
    return DatasetInput(name, config or None)


def _match(pattern: str) -> list[Path]:
    """Return the files that a pattern matches, each once, those of matching folders among them."""
    matches = sorted(glob.glob(pattern, recursive=True))
    files = [file for match in matches for file in _expand(Path(match), named=False)]
    if not files:
        raise InputMissingError(f"the pattern {pattern!r} matches no file", "at least one", "correct it")
    return list(dict.fromkeys(files))


def _expand(path: Path, *, named: bool) -> list[Path]:
    """Return a file itself, or the files below a folder; what is named itself must hold text."""
    if path.is_dir():
        files = sorted(_walk(path), key=lambda file: file.parts)
        if named and not files:
            raise InputMissingError(
                f"the folder {str(path)!r} holds no file to read",
                f"files that end in {' '.join(_KNOWN_SUFFIXES)}, compressed (.gz) or not",
            )
        return files
    if not named and _is_no_file(path):
        return []
    _require_readable(path)
    # A pipe can be read only once, so it is not looked into.
    if named and path.is_file() and not holds_text(path):
        raise EmptyInputError(f"the file {str(path)!r} is empty", "text", "leave it out")
    return [path]


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder that are not hidden and have a known suffix."""

    def refuse(error: OSError) -> None:
        raise unreadable(Path(error.filename or folder), error)

    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            file = Path(parent, name)
            known = not name.startswith(".") and content_suffix(name) in _KNOWN_SUFFIXES
            if known and not _is_no_file(file):
                _require_readable(file)
                yield file


def _require_readable(path: Path) -> None:
    """Raise an `InputMissingError` where the system does not let a file be read."""
    if not os.access(path, os.R_OK):
        raise unreadable(path, PermissionError("permission denied"))


def _is_no_file(path: Path) -> bool:
    """Return whether a path found by folder or pattern is a link to nothing, a pipe or a device; warn of it."""
    try:
        if not is_pipe(path):
            return False
        # It would be waited for without end where nothing writes to it.
        _warn_once(f"left out {path}: it is a pipe or a device; name it itself to read it")
        return True
    except OSError as error:
        if not path.is_symlink() or error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        _warn_once(f"left out {path}: it is a link to {os.readlink(path)}, which does not exist")
        return True


@functools.lru_cache(maxsize=4096)
def _warn_once(message: str) -> None:
    """Log a warning, once in this process: inputs are looked up several times in a run."""
    _LOG.warning("%s", message)
