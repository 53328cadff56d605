"""Every error a user can cause, and nothing else.

Covers: one small class per kind of mistake or damage, each also a subclass of the builtin a
Python programmer would catch. The command line turns any of them into one line and exit code 2.
Does not cover: programming errors inside the package, which stay ordinary exceptions.
"""

from __future__ import annotations

from typing import Any


class GiaannError(Exception):
    """Base class: says what was received, what was expected and what to do.

    Parameters
    ----------
    received : str
        What was found, with the identity of the thing (path, option, value).
    expected : str, optional
        What would have been accepted.
    remedy : str, optional
        What the user can do about it.
    """

    def __init__(self, received: str, expected: str = "", remedy: str = "") -> None:
        self.received = received
        self.expected = expected
        self.remedy = remedy
        message = received
        if expected:
            message += f"; expected {expected}"
        if remedy:
            message += f"; {remedy}"
        super().__init__(" ".join(message.split()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the three parts, so that errors survive the way back from a worker."""
        return type(self), (self.received, self.expected, self.remedy)


class OptionError(GiaannError, ValueError):
    """An option has a value that cannot be used."""


class SpecificationError(GiaannError, ValueError):
    """A specification that no network can have, or that differs from the stored one."""


class InputMissingError(GiaannError, FileNotFoundError):
    """An input path that does not exist or matches nothing."""


class InputFormatError(GiaannError, ValueError):
    """An input that can be read as bytes but not as what it claims to be."""


class InputEncodingError(GiaannError, ValueError):
    """An input that is not UTF-8 text, or holds NUL bytes."""


class EmptyInputError(GiaannError, ValueError):
    """An input without any text, or a text from which nothing can be trained."""


class PromptError(GiaannError, ValueError):
    """A prompt that cannot be divided into concept columns."""


class MissingDependencyError(GiaannError, ImportError):
    """An optional package that the chosen feature needs is not installed."""


class StoreMissingError(GiaannError, FileNotFoundError):
    """No network or corpus at the given path."""


class StoreExistsError(GiaannError, FileExistsError):
    """Something that must not be overwritten is at the given path."""


class StoreFormatError(GiaannError, ValueError):
    """A store of another kind or of another format version."""


class StoreDamagedError(GiaannError, RuntimeError):
    """A store whose content contradicts itself or cannot be decoded."""


class StoreWriteError(GiaannError, OSError):
    """A store could not be written, for example because the disk is full."""


class StoreRefusedError(GiaannError, PermissionError):
    """A path that the system does not let be written: no permission, or a part of it is a file."""


class StoreForkedError(GiaannError, RuntimeError):
    """A store used in a process that was forked from one that had used a store before."""


class StoreUnreachableError(GiaannError, ConnectionError):
    """A store on another machine that does not answer now."""


class StrengthOverflowError(GiaannError, OverflowError):
    """A strength or identifier has outgrown the integers that hold it."""


class ClusterError(GiaannError, RuntimeError):
    """A cluster that cannot be reached, or that lost what a task needs."""
