"""Define every error that a user can cause.

There is one small class for each kind of mistake or damage, each also a subclass of the builtin that a Python
programmer would catch. The command line turns any of them into one line and exit code 2. Programming errors inside the
package stay ordinary exceptions.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from itertools import takewhile
from types import TracebackType
from typing import Any, Self

from giaann_dask.representations import printable

# Names of parameters in the text of an error, outside quotes and paths: words with an underscore, and those that the
# error lists.
_NAMES = r"""(?<![\w'"./-])(?:[a-z]+_\w+{})(?![\w'"/-]|\.\w)"""
# Folder of this package, whose frames notebooks leave out.
_PACKAGE = os.path.dirname(__file__)
# Characters of a value that an error shows.
_SHOWN = 200
# What to do about a store that is not what was written.
RESTORE = "check it with giaann-dask doctor, and restore it from a copy"


class GiaannError(Exception):
    """Base class of errors, with the value received, the value expected and the remedy.

    The text is one line without control characters, whatever the received value contains. It names parameters as in
    Python, until a command replaces them by its options (`choose_spelling`); text in quotes or paths is not replaced.

    Parameters
    ----------
    received : str
        What was found, with the identity of the thing (path, option, value).
    expected : str, optional
        What would have been accepted.
    remedy : str, optional
        What the user can do about it.
    names : tuple of str
        Parameters that the text names; those with an underscore need not be listed.

    Examples
    --------
    >>> error = OptionError("top_k is 0 with beams", "1 or more", names=("beams",))
    >>> str(error)
    'top_k is 0 with beams; expected 1 or more'
    >>> error.choose_spelling(lambda name: "--" + name.replace("_", "-"))
    >>> str(error)
    '--top-k is 0 with --beams; expected 1 or more'
    """

    def __init__(self, received: str, expected: str = "", remedy: str = "", names: tuple[str, ...] = ()) -> None:
        self.received, self.expected, self.remedy, self.names = received, expected, remedy, names
        super().__init__(self._text())

    def _text(self) -> str:
        expected = f"; expected {self.expected}" if self.expected else ""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return printable(" ".join(f"{self.received}{expected}{remedy}".split()))

    def at(self, place: str) -> Self:
        """Return the same error that says first where it occurred."""
        return type(self)(f"{place}: {self.received}", self.expected, self.remedy, self.names)

    def choose_spelling(self, spelling: Callable[[str], str]) -> None:
        """Let ``str(error)`` be the message with every parameter as `spelling` writes its name."""
        pattern = _NAMES.format("".join(f"|{re.escape(name)}" for name in self.names))
        self.args = (re.sub(pattern, lambda found: spelling(found[0]), self._text()),)

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows instead of a traceback: the lines that called this package, and the message.

        ``GIAANN_TRACEBACK=1`` in the environment shows all.
        """
        if os.environ.get("GIAANN_TRACEBACK"):
            return "".join(traceback.format_exception(self)).splitlines()
        return [*_calling_lines(self.__traceback__), f"{type(self).__name__}: {self}"]

    def __str__(self) -> str:
        """Return the message; some builtins have ways of their own to show it."""
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the parts, so that errors can be passed from workers."""
        return type(self), (self.received, self.expected, self.remedy, self.names)


def _calling_lines(trace: TracebackType | None) -> list[str]:
    """Return the frames before the first one of this package, those of IPython left out."""
    frames = list(takewhile(lambda each: not _is_of(_PACKAGE, each), traceback.extract_tb(trace)))
    shell = sys.modules.get("IPython")
    folder = "" if shell is None else os.path.dirname(str(shell.__file__))
    return "".join(traceback.format_list([each for each in frames if not _is_of(folder, each)])).splitlines()


def _is_of(package: str, frame: traceback.FrameSummary) -> bool:
    """Return whether a frame runs code of a package in a folder."""
    return frame.filename.startswith(package + os.sep)


class OptionError(GiaannError, ValueError):
    """An option has a value that cannot be used."""


def require_option(valid: bool, name: str, value: object, expected: str) -> None:
    """Raise an `OptionError` that names a parameter when its value is not valid.

    Parameters
    ----------
    valid : bool
        Whether it is.
    name : str
        Of the parameter, as Python spells it.
    value : object
        As received.
    expected : str
        What it may be.

    Examples
    --------
    >>> require_option(0 >= 1, "top_k", 0, "1 or more")
    Traceback (most recent call last):
    giaann_dask.errors.OptionError: top_k is 0; expected 1 or more; set top_k to such a value
    """
    if not valid:
        raise OptionError(f"{name} is {value!r}", expected, f"set {name} to such a value", (name,))


def require_at_least(least: int, options: object, *names: str) -> None:
    """Raise an `OptionError` that names the first of some parameters whose value is too small; None is none.

    Parameters
    ----------
    least : int
        The smallest value.
    options : object
        Has the values as attributes.
    *names : str
        Of the parameters, as Python spells them.
    """
    for name in names:
        value = getattr(options, name)
        require_option(value is None or value >= least, name, value, f"{least} or more")


def require_between(least: float, most: float, options: object, *names: str) -> None:
    """Raise an `OptionError` that names the first of some parameters whose value is out of a range.

    Parameters
    ----------
    least, most : float
        The smallest and the largest value.
    options : object
        Has the values as attributes.
    *names : str
        Of the parameters, as Python spells them.
    """
    for name in names:
        value = getattr(options, name)
        require_option(least <= value <= most, name, value, f"{least:g} to {most:g}")


def require_one_of(name: str, value: object, allowed: Collection[str]) -> None:
    """Raise an `OptionError` that names a parameter when its value is not one of those allowed.

    Parameters
    ----------
    name : str
        Of the parameter, as Python spells it.
    value : object
        As received.
    allowed : collection of str
        The values that it may have.
    """
    if value not in allowed:
        raise OptionError(f"{name} is {value!r}", " or ".join(allowed), f"set {name} to one of them", (name,))


def describe_difference(found: object, wanted: object) -> tuple[str, str]:
    """Return two values as an error shows them: of mappings the fields that differ, the beginning of all else.

    Parameters
    ----------
    found, wanted : object
        Two different values of one kind.

    Examples
    --------
    >>> describe_difference({"profile": "v2", "crop": True}, {"profile": "v2"})
    ('crop=True', 'no crop')
    >>> describe_difference("5b1f", None)
    ('5b1f', 'None')
    """
    if not (isinstance(found, Mapping) and isinstance(wanted, Mapping)):
        return str(found)[:_SHOWN], str(wanted)[:_SHOWN]
    names = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
    one, other = (
        ", ".join(f"{name}={each[name]}" if name in each else f"no {name}" for name in names)
        for each in (found, wanted)
    )
    return one, other


class ConceptMissingError(OptionError, KeyError):
    """A concept that a network has no column of."""


class KeywordError(GiaannError, TypeError):
    """A keyword argument that a function does not have."""


class ReportMissingError(GiaannError, AttributeError):
    """The report of a training was requested of a network that was opened, not trained."""


class SpecificationError(GiaannError, ValueError):
    """A specification that no network can have, or that differs from the stored one."""


class InputMissingError(GiaannError, FileNotFoundError):
    """An input path that does not exist or matches nothing."""


class InputFormatError(GiaannError, ValueError):
    """An input whose bytes do not have the format of its type."""


class UnreadFormatError(InputFormatError):
    """An input in a format that is not read, or without the field of the text."""


class LanguageError(GiaannError, ValueError):
    """A text in a language that its tagger does not know."""


class InputEncodingError(GiaannError, ValueError):
    """An input that is not UTF-8 text, or holds NUL bytes."""


class EmptyInputError(GiaannError, ValueError):
    """An input without any text, or a text from which nothing can be trained."""


class PromptError(GiaannError, ValueError):
    """A prompt that cannot be divided into concept columns."""


class StateTooLargeError(PromptError, MemoryError):
    """The activation of a prompt exceeds its limit."""


class MissingDependencyError(GiaannError, ImportError):
    """An optional package that the chosen feature needs is not installed."""

    @classmethod
    def of(cls, error: ModuleNotFoundError) -> Self:
        """Return the error for a package that was not found."""
        return cls(str(error), f"the {error.name} package", f"pip install {error.name}")


class ModelError(GiaannError, RuntimeError):
    """Code of a model of another package fails.

    Examples
    --------
    >>> str(ModelError.of("the model m:MODEL", "probabilities", KeyError("the")))
    "the model m:MODEL fails in probabilities (KeyError: 'the'); correct it, GIAANN_TRACEBACK=1 shows where"
    """

    @classmethod
    def of(cls, what: str, where: str, error: Exception) -> Self:
        """Return the error for one that was raised in a method or function."""
        frames = traceback.extract_tb(error.__traceback__)
        line = f" at {os.path.basename(frames[-1].filename)} line {frames[-1].lineno}" if frames else ""
        reason = f"{type(error).__name__}: {error}{line}"
        return cls(f"{what} fails in {where} ({reason})", "", "correct it, GIAANN_TRACEBACK=1 shows where")


class ModelNotNamedError(GiaannError, ImportError):
    """A stored network would import a module that its user has not named."""


class BundleError(GiaannError, ValueError):
    """A bundle of increments that is not accepted: changed, not signed by a listed key, or not what its text gives."""


class ResourceLimitError(GiaannError, OSError):
    """The system allows a process too few open files or threads, or too little memory."""


class HardwareTooSmallError(GiaannError, ValueError):
    """Workers of planned hardware have too little memory for the network."""


class StoreMissingError(GiaannError, FileNotFoundError):
    """No network or corpus at the given path."""


class StoreExistsError(GiaannError, FileExistsError):
    """Something that must not be overwritten is at the given path."""


class StoreFormatError(GiaannError, ValueError):
    """A store of another kind or of another format version."""


class StoreDamagedError(GiaannError, RuntimeError):
    """A store whose content is inconsistent or cannot be decoded."""


class StoreWriteError(GiaannError, OSError):
    """A store could not be written, for example because the disk is full."""


class StoreConflictError(StoreWriteError):
    """Another process has written to a store, or has taken its lease, since this one began."""


class StoreFullError(StoreWriteError):
    """A disk is full, or a quota is used up."""


class StoreRefusedError(GiaannError, PermissionError):
    """A path that the system does not let be written: no permission, or a part of it is a file."""


class StoreUnsharedError(GiaannError, FileNotFoundError):
    """A store that a worker does not see where the process that directs it has it."""


class StoreForkedError(GiaannError, RuntimeError):
    """A store used in a process that was forked from one that had used a store before."""


class StoreUnreachableError(GiaannError, ConnectionError):
    """A store on another machine that does not answer now."""


class StrengthOverflowError(GiaannError, OverflowError):
    """A strength or identifier has outgrown the integers that hold it."""


class ClusterError(GiaannError, RuntimeError):
    """A cluster that cannot be reached, or that lost the inputs of a task."""


class LostPartsError(ClusterError):
    """Increments that a task fetches are on no worker any more; waiting for its result has them computed again."""
