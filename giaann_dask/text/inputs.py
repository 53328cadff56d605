"""What inputs stand for: files and datasets, found before any of them is read.

Covers: paths, folders, patterns and names of datasets. Does not cover: reading them (`reading`).
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from giaann_dask.errors import EmptyInputError, InputMissingError
from giaann_dask.optional import import_optional
from giaann_dask.text.lines import holds_text, unreadable

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


def resolve_inputs(inputs: Sequence[str | os.PathLike[str]]) -> list[Path | DatasetInput]:
    """Return the files and datasets that inputs stand for, in order.

    Parameters
    ----------
    inputs : sequence of str or path
        A file is read whatever its suffix (an unknown one as plain text). A folder stands for the
        files below it with a known suffix, sorted, hidden ones left out. A pattern (``*``, ``?``,
        ``[a-z]``, ``**``) stands for what it matches, sorted. ``hf:NAME[:CONFIG]`` is a dataset.

    Returns
    -------
    list of Path or DatasetInput

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
    resolved: list[Path | DatasetInput] = []
    for each in given:
        if each.startswith(DATASET_PREFIX):
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
            raise InputMissingError(f"the input {each!r} does not exist", "", "correct the path")
    if not resolved:
        raise InputMissingError("no input was given", "at least one file, folder, pattern or dataset")
    return resolved


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
    if not os.access(path, os.R_OK):
        raise unreadable(path, PermissionError("permission denied"))
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
            if not name.startswith(".") and content_suffix(name) in _KNOWN_SUFFIXES:
                file = Path(parent, name)
                if not os.access(file, os.R_OK):
                    raise unreadable(file, PermissionError("permission denied"))
                yield file
