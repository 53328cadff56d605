"""Map errors of scheduled scripts to exit codes, and print one line for a failure.

The commands of ``giaann-dask`` use the codes 0, 1, 2, 3 (`doctor`) and 130 only (`giaann_dask.cli`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from giaann_dask.errors import ClusterError, GiaannError, StoreDamagedError, StoreUnreachableError, StoreWriteError

DONE = 0
DEFECT = 1
BAD_INPUT = 2
CHECK_FAILED = 3
TRY_AGAIN = 75
INTERRUPTED = 130


class CheckFailedError(GiaannError, RuntimeError):
    """A check of a script failed, and a person should look into it."""


class TryAgainError(GiaannError, RuntimeError):
    """A script cannot work now and should be retried: another one is running, or text is still being written."""


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
        said = "interrupted; what was committed is kept, run it again to continue"
    elif isinstance(error, GiaannError):
        said = str(error)
    else:
        said = f"{type(error).__name__}: {error} (set GIAANN_TRACEBACK=1 for the traceback)"
    return " ".join(said.split())


def run_script(command: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Run a script's command and return its exit code; a failure is one line on standard error.

    Parameters
    ----------
    command : click.Command
        What the script does.
    arguments : sequence of str, optional
        Those of the process by default.
    """
    name = command.name or "workflow"
    try:
        status = command.main(args=arguments, prog_name=name, standalone_mode=False)
    except BaseException as error:
        if isinstance(error, SystemExit | GeneratorExit):
            raise
        if os.environ.get("GIAANN_TRACEBACK") and status_of(error) == DEFECT:
            raise
        print(f"{name}: {message_of(error)}", file=sys.stderr)
        return status_of(error)
    return status if isinstance(status, int) else DONE
