"""Check that cached compiled code is not used where a module that it calls has changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CALLER = (
    "from giaann_dask.lazy import jit\nfrom inner import STEP, add\n\n@jit\ndef call(x):\n    return add(x) + STEP\n"
)
INNER = "from giaann_dask.lazy import jit_inner\n\nSTEP = {}\n\n@jit_inner\ndef add(x):\n    return x + {}\n"
RUN = "import caller; call = caller.call.dispatcher; print(call(0), sum(call.stats.cache_hits.values()))"


def test_code_is_compiled_again_where_what_it_calls_has_changed(tmp_path: Path) -> None:
    pytest.importorskip("numba")

    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}

    def called() -> list[bytes]:
        """Return a result and how often cached code was used, in a new process."""
        command = [sys.executable, "-c", RUN]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True).stdout.split()

    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "inner.py").write_text(INNER.format(1, 1))
    assert called() == [b"2", b"0"]
    (tmp_path / "inner.py").write_text(INNER.format(1, 1000))
    assert called() == [b"1001", b"0"], "another function"
    (tmp_path / "inner.py").write_text(INNER.format(1000, 1000))
    assert called() == [b"2000", b"0"], "another constant"
    assert called() == [b"2000", b"1"], "nothing else"
