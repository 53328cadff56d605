"""Map errors of scheduled jobs to exit codes and to one line of text.

The commands of ``giaann-dask`` use the codes 0, 1, 2, 3 (`doctor`), 75 (`train`, when it was stopped) and 130 only
(`giaann_dask.cli`).
"""

from __future__ import annotations

import click

from giaann_dask.errors import ClusterError, GiaannError, StoreDamagedError, StoreUnreachableError, StoreWriteError

DONE = 0
DEFECT = 1
BAD_INPUT = 2
CHECK_FAILED = 3
# EX_TEMPFAIL of sysexits.h; also of `train` that was stopped and has committed.
TRY_AGAIN = 75
INTERRUPTED = 130


class CheckFailedError(GiaannError, RuntimeError):
    """A check of a job failed, and a person should look into it."""


class TryAgainError(GiaannError, RuntimeError):
    """A job cannot work now and should be retried: another one is running, or text is still being written."""


def status_of(error: BaseException) -> int:
    """Return the exit code for an error.

    Examples
    --------
    >>> status_of(ClusterError("no scheduler answers")), status_of(ValueError())
    (75, 1)
    """
    match error:
        case TryAgainError() | ClusterError() | StoreWriteError() | StoreUnreachableError():
            return TRY_AGAIN
        case CheckFailedError() | StoreDamagedError():
            return CHECK_FAILED
        # Errors of the system: no write permission, a folder that is a file.
        case GiaannError() | click.ClickException() | PermissionError() | NotADirectoryError() | IsADirectoryError():
            return BAD_INPUT
        case FileExistsError():
            return BAD_INPUT
        case KeyboardInterrupt() | click.Abort():
            return INTERRUPTED
    return DEFECT


def message_of(error: BaseException) -> str:
    """Return an error as one line."""
    if isinstance(error, click.ClickException):
        said = error.format_message()
    elif isinstance(error, KeyboardInterrupt | click.Abort):
        said = "interrupted; commits are kept, run it again to continue"
    elif isinstance(error, GiaannError):
        said = str(error)
    else:
        said = f"{type(error).__name__}: {error} (set GIAANN_TRACEBACK=1 for the traceback)"
    return " ".join(said.split())
