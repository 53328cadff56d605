"""Run the command line ``giaann-dask COMMAND``.

Every failure becomes one line on standard error and an exit code. The commands are in `commands` and the modules that
are imported here, their common options in `shared_options`.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
import time
from collections.abc import Sequence

import click

from giaann_dask.cli.algebra import add, diff, forget, index, prune
from giaann_dask.cli.commands import giaann_dask
from giaann_dask.cli.draw import draw, report
from giaann_dask.cli.islands import island
from giaann_dask.cli.jobs import job
from giaann_dask.cli.machine import cluster, compile_ahead, doctor
from giaann_dask.cli.networks import (
    branch,
    checkout,
    compact,
    digest,
    export,
    inspect,
    log,
    persist,
    tag,
    unpersist,
)
from giaann_dask.cli.output import escape_warnings, say
from giaann_dask.cli.planning import plan
from giaann_dask.cli.process import OUTPUT, interrupt_on_signals, provide_streams
from giaann_dask.cli.serving import serve
from giaann_dask.errors import GiaannError
from giaann_dask.limits import require_resources, resource_limit
from giaann_dask.registry import naming_anew

BAD_INPUT = 2
INTERRUPTED = 130
DEFECT = 1
# Allocations of containers between two garbage collections.
_ALLOCATIONS = 10_000
# A file without write permission, a folder that is a file, a full disk.
_SYSTEM_ERRORS = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ELOOP, errno.ENAMETOOLONG),
)

for command in (
    *(
        add,
        branch,
        checkout,
        cluster,
        compact,
        compile_ahead,
        diff,
        digest,
        doctor,
        draw,
        export,
        forget,
        index,
        inspect,
    ),
    *(island, job, log, persist, plan, prune, report, serve, tag, unpersist),
):
    giaann_dask.add_command(command)
_NO_MEMORY = "the memory is not enough; expected more memory; close other programs, or raise the limit with ulimit -v"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code: 0 done, 2 bad input, 3 failed check, 75 stopped, 130 interrupted, 1 defect.

    Parameters
    ----------
    arguments : sequence of str, optional
        Command-line arguments; those of the process by default.
    """
    provide_streams()
    escape_warnings()
    # Most objects are those of modules, which live until the end: collecting garbage while they are imported, and at
    # the end, takes a third of a second.
    gc.set_threshold(_ALLOCATIONS)
    interrupt_on_signals()
    status = run(arguments)
    gc.freeze()
    sys.exit(status)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; failures are one line on standard error."""
    try:
        require_resources()
        with naming_anew():
            # The object of the contexts is when the command began.
            began = time.perf_counter()
            status = giaann_dask.main(args=arguments, prog_name="giaann-dask", standalone_mode=False, obj=began)
    except GiaannError as error:
        return _fail(str(error), BAD_INPUT)
    except click.exceptions.NoArgsIsHelpError as error:
        # A group that is named without a command shows its help.
        click.echo(error.format_message())
        return 0
    except click.UsageError as error:
        asked = error.ctx.command_path if error.ctx is not None else "giaann-dask"
        return _fail(f"{error.format_message()} Try '{asked} --help'.", BAD_INPUT)
    except click.ClickException as error:
        return _fail(error.format_message(), BAD_INPUT)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted; commits are kept, run the command again to continue", INTERRUPTED)
    except MemoryError:
        return _fail(_NO_MEMORY, BAD_INPUT)
    except Exception as error:
        if (limit := resource_limit(error)) is not None:
            return _fail(str(limit), BAD_INPUT)
        if isinstance(error, OSError) and (error.errno in _SYSTEM_ERRORS or error.filename == OUTPUT):
            where = error.filename or OUTPUT
            return _fail(
                f"{where}: {error.strerror}; expected a path that can be written; name such a path",
                BAD_INPUT,
            )
        if os.environ.get("GIAANN_TRACEBACK"):
            raise
        detail = " ".join(str(error).split())[:300]
        return _fail(f"{type(error).__name__}: {detail} (set GIAANN_TRACEBACK=1 for the traceback)", DEFECT)
    except BaseException as error:
        # Of Icechunk, whose panics are no exceptions.
        if (limit := resource_limit(error)) is None:
            raise
        return _fail(str(limit), BAD_INPUT)
    return status if isinstance(status, int) else 0


def _fail(message: str, status: int) -> int:
    say(message)
    return status
