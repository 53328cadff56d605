"""Commands as in a process whose standard streams are closed, each in a fork of one that has imported everything.

As a module it takes a JSON list of pairs, arguments and the descriptors that are closed, and prints a JSON list of exit
codes and of what was written to the streams that were open.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any

STREAMS = ("stdin", "stdout", "stderr")
# Every choice of standard streams but none.
CLOSED = [which for count in (1, 2, 3) for which in combinations(range(3), count)]

Case = tuple[list[str], tuple[int, ...]]


def run_all(cases: list[Case], where: Path) -> list[tuple[int, str, str]]:
    """Run commands in a folder; return exit codes and what was written to standard output and error."""
    done = subprocess.run(
        [sys.executable, "-m", "support.closed_streams", json.dumps(cases)],
        capture_output=True,
        check=False,
        timeout=1700,
        cwd=where,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return [(code, out, err) for code, out, err in json.loads(done.stdout)]


def _run(arguments: list[str], closed: tuple[int, ...]) -> tuple[int, str, str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            os.closerange(3, 256)
            _close(closed)
            _leave_by(arguments)
        _, status = os.waitpid(child, 0)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return os.waitstatus_to_exitcode(status), texts[0], texts[1]


def _close(closed: tuple[int, ...]) -> None:
    for number in closed:
        # Python has no object for a stream that is closed when it starts.
        for name in (STREAMS[number], f"__{STREAMS[number]}__"):
            setattr(sys, name, None)
        os.close(number)


def _leave_by(arguments: list[str]) -> None:
    """Run a command and end this process with its exit code."""
    from giaann_dask.cli import main

    code: Any = 99
    try:
        main(arguments)
    except SystemExit as left:
        code = left.code
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    import giaann_dask.api.network
    import giaann_dask.cluster.forked_modules
    import giaann_dask.diagnostics.pictures.drawing  # noqa: F401

    # The objects of streams live as long as the process: their end would close a descriptor of another file.
    kept = [sys.stdin, sys.stdout, sys.stderr]
    json.dump([_run(arguments, tuple(closed)) for arguments, closed in json.loads(sys.argv[1])], sys.stdout)
