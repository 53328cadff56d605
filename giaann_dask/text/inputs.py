"""Resolve inputs (paths, folders, patterns, standard input, dataset names) to files and datasets before reading.

Does not cover: reading them (`reading`), and texts in memory (`memory_inputs`), which are resolved already.
"""

from __future__ import annotations

import errno
import functools
import glob
import logging
import os
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from giaann_dask.errors import (
    EmptyInputError,
    GiaannError,
    InputEncodingError,
    InputFormatError,
    InputMissingError,
    MissingDependencyError,
    OptionError,
    UnreadFormatError,
)
from giaann_dask.lazy import import_optional
from giaann_dask.local_files import local_name, read_utf8
from giaann_dask.text.formats import SUFFIXES, Format, find_format, is_utf8, names_text, suffix_of
from giaann_dask.text.input_files import (
    STANDARD_INPUT,
    BegunInput,
    RemoteInput,
    StandardInput,
    find_files,
    is_pipe,
    names_url,
    read_head,
    unreadable,
)
from giaann_dask.text.markup import require_markup
from giaann_dask.text.memory_inputs import MemoryInput, Source
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.records import RECORD_FORMATS, read_records, record_id, record_text

_LOG = logging.getLogger(__name__)
DATASET_PREFIX = "hf:"
# Files of the hub, which fsspec opens.
_HUB_FILES = "hf://"
# Before the name of a file that names inputs.
_LIST = "@"
_SHOWN_CHARACTERS = 60
_NUMBER = re.compile(r"\d+")
_ABSENT = "does not exist"
# Linux allows no path of more bytes.
_LONGEST_NAME = 4096
# Suffixes of text at a URL, which is not opened before it is read.
_PLAIN = (".txt", ".text")


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
    return suffix_of(name) in SUFFIXES


def resolve_inputs(
    inputs: Sequence[Source | os.PathLike[str]],
    options: ReadOptions | None = None,
    passed: set[Hashable] | None = None,
) -> list[Input]:
    """Return the files and datasets that inputs name, in order, each once.

    Parameters
    ----------
    inputs : sequence of str, path or MemoryInput
        A file is read as its content says, and as its name says where that leaves it open (`find_format`). A folder
        expands to the files below it, without hidden ones; links to folders are followed. A pattern (``*``, ``?``,
        ``[a-z]``, ``**``) expands to its matches, and to the files below matching folders. Both are sorted, and what
        they find is read as if it were named, but for files in another format or without the field of the text, and
        text with the suffix of other files, such as ``.py``, that the pattern does not end with: a warning says how
        many were left out, and why. ``-`` is standard input, ``./-`` a file of that name. A URL is a file, or with a
        pattern or the URL of a folder several, which fsspec opens (``https://...``, ``s3://...``,
        ``zip://*.txt::books.zip``); ``file://`` names a path. ``@FILE`` stands for the inputs that a file names, one a
        line. ``hf:NAME[:CONFIG]`` is a dataset, ``hf://datasets/NAME/FILE`` a file of one. Broken links and pipes found
        by a folder or pattern are left out with a warning. A file with several names (links, two ways to it) is read
        once.
    options : ReadOptions, optional
        How files are read.
    passed : set, optional
        Files of earlier calls, which are left out; those of this call are added.

    Returns
    -------
    list of Path, StandardInput, RemoteInput, DatasetInput or MemoryInput

    Raises
    ------
    InputMissingError
        If no input is given, or one does not exist, is not readable, or finds no file to read.
    EmptyInputError
        If a file that is named directly (not by folder or pattern) contains only white space.
    InputFormatError
        If such a file is not compressed as its name says, is in a format that is not read, or has no field of the text.
    MissingDependencyError
        If a dataset is named and the package ``datasets`` is not installed, or the package for a URL or format is not.
    """
    options = ReadOptions() if options is None else options
    # A string is itself a sequence of strings, but means one input here.
    given = [inputs] if isinstance(inputs, str) else inputs
    found = [each for source in given for each in _resolve(source, options)]
    if not found:
        raise InputMissingError("no input was given", "at least one file, folder, pattern or dataset")
    if found.count(StandardInput()) > 1:
        raise InputMissingError("standard input ('-') is named twice", "once, as it can be read only once")
    return _without_repeats(found, set() if passed is None else passed)


def require_there(names: Iterable[str | os.PathLike[str]]) -> None:
    """Check that names of local inputs lead to something, without reading it.

    Raises
    ------
    InputMissingError
        If one is neither a file nor a folder, and cannot be a pattern, a list, a URL, a dataset or standard input.
    """
    for each in names:
        name = local_name(each)
        known = name == STANDARD_INPUT or name.startswith(DATASET_PREFIX) or names_url(name) or glob.has_magic(name)
        if not (known or _names_list(name) or (name and os.path.exists(name))):
            raise _missing(name)


def _resolve(source: Source | os.PathLike[str], options: ReadOptions) -> Sequence[Input]:
    """Return the files and datasets that an input names."""
    if isinstance(source, MemoryInput):
        return [source]
    name = local_name(source)
    if name == STANDARD_INPUT:
        return [StandardInput()]
    if name.startswith(DATASET_PREFIX) and not name.startswith(_HUB_FILES):
        return [_parse_dataset(name)]
    if name and os.path.exists(name):
        return _expand(Path(name), options)
    if _names_list(name):
        return [each for listed in expand_lists([name]) for each in _resolve(listed, options)]
    if names_url(name):
        files, named = find_files(name)
        return _named(files[0], options) if named else _choose(files, f"the URL {name!r}", suffix_of(name), options)
    if glob.has_magic(name):
        return _match(name, options)
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


def _match(pattern: str, options: ReadOptions) -> Sequence[Path]:
    """Return the files that a pattern matches, sorted, including those of matching folders."""
    matches = [Path(match) for match in _glob(pattern)]
    files = [match for match in matches if not match.is_dir() and not _is_skipped(match)]
    files = _nearest([*files, *_files_below(match for match in matches if match.is_dir())])
    if not files:
        raise InputMissingError(f"the pattern {pattern!r} matches no file", "at least one", "correct it")
    return _choose(files, f"the pattern {pattern!r}", suffix_of(pattern), options)


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


def _expand(path: Path, options: ReadOptions) -> Sequence[Path]:
    """Return a file that is named itself, or the files below a folder, sorted."""
    if path.is_dir():
        files = _nearest(_files_below([path]))
        if not files:
            raise InputMissingError(f"the folder {str(path)!r} holds no file to read", "at least one", "correct it")
        return _choose(files, f"the folder {str(path)!r}", "", options)
    return _named(path, options)


_Found = TypeVar("_Found", Path, RemoteInput)


def _named(file: _Found, options: ReadOptions) -> list[_Found]:
    """Return a file that is named itself; raise an error if it is empty or is not read."""
    if isinstance(file, Path):
        _require_readable(file)
        if not file.is_file():
            # A pipe can be read only once, so its content is not looked at.
            return [file]
        if _look_at(file, options).blank:
            raise EmptyInputError(f"the file {str(file)!r} is empty", "text", "leave it out")
    if isinstance(file, Path) or suffix_of(file.name) not in _PLAIN:
        _require_text(file, options)
    return [file]


def _require_text(file: Path | RemoteInput, options: ReadOptions) -> Format:
    """Return the format of a file; raise an error if it is not read, or its first record has no text."""
    form = format_of(file, options)
    if options.markup == "strip":
        require_markup(form)
    if form in RECORD_FORMATS:
        for record in islice(read_records(file, form, replace(options, stop=None)), 1):
            record_text(record, options.text_field)
            record_id(record, options.id_field)
    return form


def _choose(files: Iterable[_Found], where: str, ending: str, options: ReadOptions) -> list[_Found]:
    """Return those of the files of a folder or pattern that are read; a warning says which are not, and why.

    Parameters
    ----------
    files : iterable of Path or RemoteInput
        What was found.
    where : str
        What found them, for messages.
    ending : str
        Suffix that names have to be found: files with it count as named.
    options : ReadOptions
        How files are read.

    Raises
    ------
    InputMissingError
        If none of them is read.
    """
    kept: list[_Found] = []
    left: dict[str, list[GiaannError]] = {}
    for file in files:
        refusal = _refusal(file, ending, options)
        if refusal is None:
            kept.append(file)
        else:
            # Reasons that differ by the name of the file alone are of one kind.
            kind = _NUMBER.sub("", refusal.received.replace(str(file), "")) if refusal.expected else refusal.remedy
            left.setdefault(kind, []).append(refusal)
    for refusals in left.values():
        message = f"left out {len(refusals):,} of {where}: {refusals[0]}"
        if not kept:
            raise InputMissingError(f"{where} finds no file to read: {message}")
        _warn_once(message)
    return kept


def _refusal(file: Path | RemoteInput, ending: str, options: ReadOptions) -> GiaannError | None:
    """Return why a file that was found is not read; None if it is."""
    suffix = suffix_of(file.name)
    if isinstance(file, RemoteInput) and suffix in _PLAIN:
        return None
    if isinstance(file, Path):
        _require_readable(file)
        if _look_at(file, options).blank:
            return None
    try:
        form = _require_text(file, options)
    except (UnreadFormatError, MissingDependencyError) as error:
        return error
    if form != "text" or options.read_as is not None or suffix in SUFFIXES:
        return None
    if not _look_at(file, options).is_utf8:
        return UnreadFormatError(f"{str(file)!r} is not text in UTF-8")
    if not names_text(suffix) and suffix != ending:
        return UnreadFormatError(f"{str(file)!r} is text with the suffix of other files", "", "name it to read it")
    return None


class _Beginning(NamedTuple):
    """Format that the first bytes of a file show; `error` is set where it is not read."""

    form: Format
    error: UnreadFormatError | None
    blank: bool
    is_utf8: bool


def format_of(file: Path | RemoteInput | BegunInput, options: ReadOptions) -> Format:
    """Return the format in which a file is read.

    Raises
    ------
    UnreadFormatError
        If it has one that is not read.
    InputMissingError, InputFormatError
        If it cannot be read, or is not compressed as its name says.
    """
    if options.read_as is not None:
        return options.read_as
    look = (
        _looked_at(repr(str(file)), file.name, file.head) if isinstance(file, BegunInput) else _look_at(file, options)
    )
    if look.error is not None:
        raise look.error
    return look.form


def _look_at(file: Path | RemoteInput, options: ReadOptions) -> _Beginning:
    if not isinstance(file, Path):
        return _looked_at(repr(str(file)), file.name, read_head(file, options.window_log))
    try:
        status = file.stat()
    except OSError as error:
        raise unreadable(file, error) from error
    return _look_at_version(file, status.st_size, status.st_mtime_ns, options.window_log)


@functools.lru_cache(maxsize=65536)
def _look_at_version(file: Path, size: int, changed_ns: int, window_log: int) -> _Beginning:
    """Look at a file once while it is unchanged: a run resolves its inputs several times."""
    return _looked_at(repr(str(file)), file.name, read_head(file, window_log))


def _looked_at(place: str, name: str, head: bytes) -> _Beginning:
    form: Format = "text"
    error = None
    try:
        form = find_format(place, name, head)
    except UnreadFormatError as found:
        error = found
    return _Beginning(form, error, not head, is_utf8(head))


def _files_below(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the files below folders that are not hidden."""
    for parent, names in _walk(folders):
        for name in names:
            # A broken link may have led to a folder.
            if not _is_skipped(parent / name):
                yield parent / name


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
