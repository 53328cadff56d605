"""Resolve inputs (paths, folders, patterns, standard input, dataset names) to files and datasets before reading.

Does not cover: reading them (`reading`), and texts in memory (`memory_inputs`), which are resolved already.
"""

from __future__ import annotations

import errno
import functools
import glob
import json
import logging
import os
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from giaann_dask.errors import (
    EmptyInputError,
    InputEncodingError,
    InputFormatError,
    InputMissingError,
    OptionError,
)
from giaann_dask.lazy import import_optional
from giaann_dask.local_files import BYTE_ORDER_MARK, UTF16_MARKS, local_name, read_utf8
from giaann_dask.text.input_files import (
    COMPRESSED,
    STANDARD_INPUT,
    RemoteInput,
    StandardInput,
    find_files,
    first_bytes,
    holds_text,
    is_pipe,
    names_url,
    suffix_of,
    unreadable,
)
from giaann_dask.text.memory_inputs import MemoryInput, Source

_LOG = logging.getLogger(__name__)
TEXT_SUFFIXES = (".txt", ".text", ".md", ".markdown", ".rst")
CONLLU_SUFFIXES = (".conllu",)
_JSON_LINES = (".jsonl", ".ndjson")
_JSON = ".json"
JSON_SUFFIXES = (*_JSON_LINES, _JSON)
"""Suffixes of files that are read as JSON lines."""
DATASET_PREFIX = "hf:"
# Files of the hub, which fsspec opens.
_HUB_FILES = "hf://"
# Before the name of a file that names inputs.
_LIST = "@"
_SHOWN_CHARACTERS = 60
_ABSENT = "does not exist"
# Linux allows no path of more bytes.
_LONGEST_NAME = 4096

# Of text in a folder.
_KNOWN_SUFFIXES = TEXT_SUFFIXES + CONLLU_SUFFIXES + _JSON_LINES
# Of tables, which the package datasets reads, as it does JSON of other forms than lines.
_TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".arrow")
_DATA_SUFFIXES = (_JSON, *_TABLE_SUFFIXES)


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

    A list of strings is a list of texts; this class makes it a list of names.

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
        return super().__new__(cls, map(local_name, given))

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
        return os.path.exists(os.path.expanduser(text))
    if names_url(text) or text.startswith(DATASET_PREFIX):
        return True
    return names_text_file(text) or os.path.exists(os.path.expanduser(text))


def names_text_file(name: str) -> bool:
    """Return whether a name ends as those of files of text do, compressed or not.

    Examples
    --------
    >>> names_text_file("s3://bucket/books/emma.txt.gz"), names_text_file("s3://bucket/corpus")
    (True, False)
    """
    return suffix_of(name) in _KNOWN_SUFFIXES + _DATA_SUFFIXES


def resolve_inputs(inputs: Sequence[Source | os.PathLike[str]], passed: set[Hashable] | None = None) -> list[Input]:
    """Return the files and datasets that inputs name, in order, each once.

    Parameters
    ----------
    inputs : sequence of str, path or MemoryInput
        A file is read with any suffix (an unknown one as plain text), but for tables and JSON that is not one object a
        line. A folder expands to the files below it with a known suffix, without hidden ones; links to folders are
        followed. A pattern (``*``, ``?``, ``[a-z]``, ``**``) expands to its matches. Both are sorted. ``-`` is standard
        input, ``./-`` a file of that name. A URL is a file, or with a pattern or the URL of a folder several, which
        fsspec opens (``https://...``, ``s3://...``, ``zip://*.txt::books.zip``); ``file://`` names a path. ``@FILE``
        stands for the inputs that a file names, one a line. ``hf:NAME[:CONFIG]`` is a dataset,
        ``hf://datasets/NAME/FILE`` a file of one. Broken links and pipes found by a folder or pattern, and tables in a
        folder, are left out with a warning. A file with several names (links, two ways to it) is read once.
    passed : set, optional
        Files of earlier calls, which are left out; those of this call are added.

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
        If the name of such a file ends in ``.gz`` and the file is not gzip, or if a file that is named or matched is a
        table, or JSON of another form.
    MissingDependencyError
        If a dataset is named and the package ``datasets`` is not installed, or the package for a URL is not.
    """
    # A string is itself a sequence of strings, but means one input here.
    given = [inputs] if isinstance(inputs, str) else inputs
    found = [each for source in given for each in _resolve(source)]
    if not found:
        raise InputMissingError("no input was given", "at least one file, folder, pattern or dataset")
    if found.count(StandardInput()) > 1:
        raise InputMissingError("standard input ('-') is named twice", "once, as it can be read only once")
    return _without_repeats(found, set() if passed is None else passed)


def _resolve(source: Source | os.PathLike[str]) -> Sequence[Input]:
    """Return the files and datasets that an input names."""
    if isinstance(source, MemoryInput):
        return [source]
    name = local_name(source)
    if name == STANDARD_INPUT:
        return [StandardInput()]
    if name.startswith(DATASET_PREFIX) and not name.startswith(_HUB_FILES):
        return [_parse_dataset(name)]
    if name and os.path.exists(name):
        return _expand(Path(name))
    if _names_list(name):
        return [each for listed in expand_lists([name]) for each in _resolve(listed)]
    if names_url(name):
        return _require_text(find_files(name, _KNOWN_SUFFIXES))
    if glob.has_magic(name):
        return _match(name)
    raise _missing(name)


def _without_repeats(found: Sequence[Input], passed: set[Hashable]) -> list[Input]:
    """Return inputs without those that are the file of an earlier one, which a warning counts."""
    kept: list[Input] = []
    repeats: list[Input] = []
    for each in found:
        identity = _identity(each)
        (repeats if identity in passed else kept).append(each)
        passed.add(identity)
    if repeats:
        _warn_once(f"left out {len(repeats):,} names of files that are read under another name, such as {repeats[0]}")
    return kept


def _identity(each: Input) -> Hashable:
    """Return what two names of one file have in common."""
    if isinstance(each, MemoryInput):
        return object()
    if not isinstance(each, Path):
        return str(each)
    try:
        status = each.stat()
    except OSError as error:
        raise unreadable(each, error) from error
    # Some network file systems number no files.
    return (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(each)


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
        each = local_name(given)
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
    if not name.startswith(_LIST) or os.path.exists(name):
        return False
    file = local_name(name.removeprefix(_LIST))
    return os.path.isfile(file) or names_url(file)


def _listed(given: str) -> list[str]:
    """Return the inputs that a file names, one a line; blank lines and lines that begin with ``#`` are left out."""
    file = local_name(given)
    if names_url(file):
        raise InputMissingError(f"the list {file!r} is at a URL", "a list on this machine", "copy it to a file")
    try:
        lines = [line.strip() for line in read_utf8(file).splitlines()]
    except (OSError, InputEncodingError) as error:
        raise InputMissingError(
            f"the list {file!r} cannot be read ({error})", "names of inputs in UTF-8, one a line", "correct it"
        ) from error
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise EmptyInputError(f"the list {file!r} names no input", "one name a line", "add some")
    return found


def _missing(given: str) -> InputMissingError:
    """Return the error for a path that leads to no file, which says why."""
    kind, path = ("list", given[1:]) if given.startswith(_LIST) and not os.path.lexists(given) else ("input", given)
    reason = _absence(path)
    if reason == _ABSENT and any(map(str.isspace, given)):
        shown = given if len(given) <= _SHOWN_CHARACTERS else given[:_SHOWN_CHARACTERS] + "…"
        return InputMissingError(
            f"the input {shown!r} is not a file", "", "correct the path; in Python, texts are a list"
        )
    correct = "correct the link" if os.path.islink(path) else "correct the path"
    return InputMissingError(f"the {kind} {path!r} {reason}", "", correct)


def _absence(path: str) -> str:
    """Say of a path that leads to no file why it does not."""
    try:
        os.stat(path)
    except OSError as error:
        loop = error.errno == errno.ELOOP
        if not loop and error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            return f"cannot be reached ({error.strerror})"
        if os.path.islink(path):
            return f"is a link to {os.readlink(path)!r}, " + ("in a loop of links" if loop else "which does not exist")
        if loop:
            return "leads through a loop of links"
    # A name that no path has, with a NUL character.
    except ValueError:
        pass
    return _ABSENT


def _parse_dataset(given: str) -> DatasetInput:
    """Return the dataset of ``hf:NAME[:CONFIG]``."""
    import_optional("datasets", "hub")
    name, colon, config = local_name(given.removeprefix(DATASET_PREFIX)).partition(":")
    if not name or (colon and not config):
        raise InputMissingError(f"the input {given!r} names no dataset", "hf:NAME or hf:NAME:CONFIG")
    return DatasetInput(name, config or None)


def _match(pattern: str) -> Sequence[Path]:
    """Return the files that a pattern matches, sorted, including those of matching folders."""
    matches = [Path(match) for match in _glob(pattern)]
    files = [match for match in matches if not match.is_dir() and not _is_skipped(match)]
    for file in files:
        _require_readable(file)
    files = _nearest([*files, *_text_below(match for match in matches if match.is_dir())])
    if not files:
        raise InputMissingError(f"the pattern {pattern!r} matches no file", "at least one", "correct it")
    return _require_text(files)


def _glob(pattern: str) -> Iterator[str]:
    """Yield the names that match a pattern; ``**`` reads each folder once, also in a loop of links."""
    parts = pattern.split(os.sep)
    if "**" not in parts:
        yield from glob.glob(pattern)
        return
    at = parts.index("**")
    before, after = os.sep.join([*parts[:at], ""]), os.sep.join(parts[at + 1 :] or ["*"])
    for root in glob.glob(before) if before else [os.curdir]:
        for folder, _ in _walk([Path(root)]):
            yield from _glob(os.path.join(glob.escape(str(folder)), after))


def _nearest(files: Iterable[Path]) -> list[Path]:
    """Return paths sorted, of several of one file the shortest."""
    found: dict[Hashable, Path] = {}
    for file in sorted(set(files), key=_by_length):
        found.setdefault(_identity(file), file)
    return sorted(found.values(), key=lambda file: file.parts)


def _expand(path: Path) -> Sequence[Path]:
    """Return a file that is named itself, or the files below a folder, sorted."""
    if path.is_dir():
        return _text_below([path], named=path)
    _require_readable(path)
    # A pipe can be read only once, so its content is not checked.
    if path.is_file() and not holds_text(path):
        raise EmptyInputError(f"the file {str(path)!r} is empty", "text", "leave it out")
    return _require_text([path])


def _text_below(folders: Iterable[Path], named: Path | None = None) -> list[Path]:
    """Return the files of text below folders, sorted; a folder that is named has to hold some."""
    files = _nearest(_files_below(folders))
    found = [file for file in files if suffix_of(file.name) in _KNOWN_SUFFIXES]
    data = [file for file in files if suffix_of(file.name) in _DATA_SUFFIXES]
    if named is not None and not found:
        raise InputMissingError(
            f"the folder {str(named)!r} holds no file to read" + (f", and {data[0].name}" if data else ""),
            f"files that end in {' '.join(_KNOWN_SUFFIXES)}, compressed ({' '.join(COMPRESSED)}) or not",
            f"{_READ_DATA}, with text_field as the name of a column" if data else "",
        )
    if data:
        _warn_once(f"left out {len(data):,} files of folders that are no text, such as {data[0]}; {_READ_DATA}")
    return found


_Found = TypeVar("_Found", Path, RemoteInput)
_READ_DATA = "hf:FOLDER reads a folder of tables or JSON (extra hub)"


def _require_text(files: list[_Found]) -> list[_Found]:
    """Return files; raise an error that says what reads them if one is a table, or JSON of another form than lines."""
    for file in files:
        suffix = suffix_of(file.name)
        if suffix in _TABLE_SUFFIXES:
            raise _refused(file, "is a table")
        if suffix == _JSON and isinstance(file, Path) and file.is_file() and not _begins_json_lines(file):
            raise _refused(file, "is JSON, but not one object a line")
    return files


def _refused(file: Path | RemoteInput, problem: str) -> InputFormatError:
    """Return the error for a file of data that is no text."""
    return InputFormatError(
        f"{str(file)!r} {problem}",
        "text, CoNLL-U or JSON lines",
        f"convert it to JSON lines; or {_READ_DATA}, with text_field as the name of a column",
    )


def _begins_json_lines(path: Path) -> bool:
    """Return whether the first line of a file, as far as it is read here, may be an object."""
    block = first_bytes(path).removeprefix(BYTE_ORDER_MARK.encode()).lstrip()
    if block.startswith(UTF16_MARKS):
        # Reading it says so.
        return True
    line, *following = block.splitlines() or [b""]
    if not following:
        return block.startswith(b"{")
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _files_below(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the files below folders that are not hidden and have the suffix of text or of data."""
    for parent, names in _walk(folders):
        for name in names:
            file, suffix = parent / name, suffix_of(name)
            known = suffix in _KNOWN_SUFFIXES
            # A broken link may have led to a folder.
            if (known or file.is_symlink()) and _is_skipped(file):
                continue
            if known:
                _require_readable(file)
            if known or suffix in _DATA_SUFFIXES:
                yield file


def _walk(folders: Iterable[Path]) -> Iterator[tuple[Path, list[str]]]:
    """Yield folders and those below them with the names in each that are no folders; hidden ones are left out.

    Links are followed. A folder that several paths lead to is visited once, by the shortest.
    """
    visited: set[Hashable] = set()
    level = sorted(folders, key=_by_length)
    while level:
        below: list[Path] = []
        for each in level:
            try:
                if (identity := _identity(each)) in visited:
                    continue
                with os.scandir(each) as entries:
                    shown = sorted((entry for entry in entries if entry.name[0] != "."), key=lambda entry: entry.name)
            except OSError as error:
                raise unreadable(each, error) from error
            visited.add(identity)
            inside = {entry.name for entry in shown if _is_folder(entry)}
            below.extend(each / name for name in inside)
            yield each, [entry.name for entry in shown if entry.name not in inside]
        level = sorted(below, key=_by_length)


def _by_length(path: Path) -> tuple[int, tuple[str, ...]]:
    """Return what sorts paths by the number of their parts first."""
    return len(path.parts), path.parts


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry of a folder is a folder, or a link to one."""
    try:
        return entry.is_dir()
    # Such as a link in a loop of links.
    except OSError:
        return False


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
        _warn_once(f"left out {path}: it {_absence(str(path))}")
        return True


@functools.lru_cache(maxsize=4096)
def _warn_once(message: str) -> None:
    """Log a warning once per process: a run resolves its inputs several times."""
    _LOG.warning("%s", message)
