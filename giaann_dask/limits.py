"""Check the limits that the system sets to a process, and recognise the errors of a limit that is reached.

Libraries abort without a message where the limits are too low, and each has errors of its own.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator, Sequence

from giaann_dask.errors import ResourceLimitError

# Open files of a command with a worker: 50 were too few.
_LEAST_FILES, _ENOUGH_FILES = 64, 1024
# Address space that the libraries of a training reserve: 1.6 GB were too few.
_LEAST_BYTES = 2 << 30
_TOO_MANY_FILES = ("too many open files", "os error 24)", "os error 23)")
_TOO_MANY_THREADS = ("can't start new thread", "failed to spawn thread")
_NO_MEMORY = ("cannot allocate memory", "os error 12)")


def require_resources() -> None:
    """Raise the limit of open files as far as this process may.

    Raises
    ------
    ResourceLimitError
        If that, or the limit of the address space, is too low for any training.
    """
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < _ENOUGH_FILES and files != resource.RLIM_INFINITY:
        files = _ENOUGH_FILES if most == resource.RLIM_INFINITY else min(_ENOUGH_FILES, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    if 0 <= files < _LEAST_FILES:
        raise ResourceLimitError(
            f"this process may open {files} files", f"{_LEAST_FILES} or more", f"set ulimit -n {_ENOUGH_FILES}"
        )
    nbytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= nbytes < _LEAST_BYTES:
        raise ResourceLimitError(
            f"this process may have {nbytes / 2**30:.1f} GiB of address space",
            f"{_LEAST_BYTES >> 30} GiB or more, which libraries reserve without using them",
            "set ulimit -v unlimited",
        )


def resource_limit(error: BaseException) -> ResourceLimitError | None:
    """Return the error for a limit of the system that an error, or one that caused it, is about; None for any other.

    Examples
    --------
    >>> print(resource_limit(RuntimeError("can't start new thread")).received)
    this process may start no more threads
    """
    for what, setting, numbers, signs in (
        ("open no more files", "-n", (errno.EMFILE, errno.ENFILE), _TOO_MANY_FILES),
        ("start no more threads", "-u or -v", (), _TOO_MANY_THREADS),
        ("have no more memory", "-v", (errno.ENOMEM,), _NO_MEMORY),
    ):
        if matches(error, numbers, signs):
            return ResourceLimitError(
                f"this process may {what}", "a higher limit of the system", f"raise it with ulimit {setting}"
            )
    return None


def matches(error: BaseException, numbers: Sequence[int], signs: Sequence[str]) -> bool:
    """Return whether an error, or one that caused it, has one of some error numbers or says so in words."""
    return any(
        (isinstance(seen, OSError) and seen.errno in numbers) or any(sign in str(seen).lower() for sign in signs)
        for seen in causes_of(error)
    )


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that caused it."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__
